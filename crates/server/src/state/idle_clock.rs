//! The idle time of the CPUs that this process may use, from `/proc/stat`.

use weft_os::time::Instant;

/// Returns the summed idle time of the CPUs in this process's affinity mask since the machine started, in milliseconds,
/// or `None` if the system does not report it.
pub type IdleClock = Box<dyn FnMut() -> Option<u64> + Send>;

/// The kernel reports hundredths of a second to programs, whatever resolution it uses internally.
const MS_PER_TICK: u64 = 10;

/// Returns a clock for the cores that the process may use now. In a simulation, one of them is always idle.
pub fn idle_clock() -> IdleClock {
    if cfg!(feature = "simulated") {
        let start = Instant::now();
        return Box::new(move || u64::try_from(start.elapsed().as_millis()).ok());
    }
    let cores = weft_reactor::allowed_cpus().unwrap_or_default();
    Box::new(move || {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        idle_ms(&text, &cores)
    })
}

/// Returns the idle time of `cores` in the text of `/proc/stat`, in milliseconds, or `None` if it contains none of
/// them.
fn idle_ms(text: &str, cores: &[usize]) -> Option<u64> {
    let ticks = text.lines().filter_map(|line| {
        // cpu1 user nice system idle iowait ...
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core: usize = fields.next()?.parse().ok()?;
        let mut times = fields.skip(3).map_while(|field| field.parse::<u64>().ok());
        let idle = times.next()? + times.next().unwrap_or(0);
        cores.contains(&core).then_some(idle)
    });
    ticks.reduce(|sum, idle| sum + idle).map(|ticks| ticks * MS_PER_TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  10 0 20 3000 7 0 0 0\ncpu0 5 0 10 1000 3 0 0 0\ncpu1 5 0 10 2000 4 0 0 0\nintr 1 2 3\n";

    #[test]
    fn only_cpus_of_this_process_are_counted() {
        assert_eq!(idle_ms(STAT, &[0]), Some(10_030));
        assert_eq!(idle_ms(STAT, &[0, 1]), Some(30_070));
        assert_eq!(idle_ms(STAT, &[5]), None);
        assert_eq!(idle_ms("nonsense", &[0]), None);
    }

    #[test]
    fn the_idle_clock_of_this_machine_advances() {
        let mut clock = idle_clock();
        if let (Some(first), Some(second)) = (clock(), clock()) {
            assert!(second >= first);
        }
    }
}
