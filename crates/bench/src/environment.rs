//! The machine on which a run takes place, and its time.

use crate::machine_memory;
use crate::process;

/// The machine and the time of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunEnvironment {
    /// The date and the time at which the run began.
    pub date: String,
    /// The name of the CPU.
    pub processor: String,
    /// The number of logical CPUs.
    pub processors: usize,
    /// The size of the memory in bytes, if it is known.
    pub memory_bytes: Option<u64>,
    /// The release of the kernel.
    pub kernel: String,
}

impl RunEnvironment {
    /// Returns this machine and the current time.
    pub fn current() -> RunEnvironment {
        RunEnvironment {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            processor: process::processor_name(),
            processors: process::processor_count(),
            memory_bytes: machine_memory::total_bytes(),
            kernel: process::kernel_release(),
        }
    }

    /// Formats the size of the memory.
    pub fn memory_text(&self) -> String {
        let gigabytes = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        self.memory_bytes.map_or("unknown".into(), gigabytes)
    }

    /// Formats everything as one line.
    pub fn text(&self) -> String {
        format!(
            "{}, {} logical CPUs, {} of memory, Linux {}, {}",
            self.processor,
            self.processors,
            self.memory_text(),
            self.kernel,
            self.date
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_and_a_size() {
        let environment = RunEnvironment::current();
        assert!(environment.processors > 0 && environment.memory_bytes > Some(0));
        assert!(environment.date.ends_with(" UTC") && !environment.kernel.is_empty());
        let text = environment.text();
        for part in [&environment.processor, &environment.kernel, &environment.date] {
            assert!(text.contains(part.as_str()), "{part} is missing in {text}");
        }
    }

    #[test]
    fn memory_is_shown_in_gibibytes() {
        let with = |memory_bytes| RunEnvironment {
            memory_bytes,
            ..RunEnvironment::default()
        };
        assert_eq!(with(Some(24 << 30)).memory_text(), "24.0 GiB");
        assert_eq!(with(None).memory_text(), "unknown");
    }
}
