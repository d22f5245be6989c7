//! `server-cpulist` and `bio-cpulist`: the CPUs that the threads may run on.
//!
//! A thread inherits the CPUs of the thread that starts it. So the main thread sets its own CPUs to those of the next
//! threads, starts them, and continues.

use weft_reactor::{allowed_cpus, parse_cpu_list, pin_to_cpus};

use crate::observability::log;
use weft_config::{Config, ParameterId, id};

/// The CPUs of each kind of thread.
pub struct CpuLists {
    /// The CPUs with which the process was started.
    all: Vec<usize>,
    server: Option<Vec<usize>>,
    background: Option<Vec<usize>>,
}

impl CpuLists {
    /// Reads the parameters. An invalid list is ignored with a warning.
    pub fn read(config: &Config) -> CpuLists {
        let all = allowed_cpus().unwrap_or_default();
        let list = |id: ParameterId| {
            let text = config.text(id);
            if text.is_empty() {
                return None;
            }
            let text = String::from_utf8_lossy(&text);
            let cpus = parse_cpu_list(&text).map(|mut cpus| {
                cpus.retain(|cpu| all.contains(cpu));
                cpus.sort_unstable();
                cpus.dedup();
                cpus
            });
            let usable = cpus.filter(|cpus| !cpus.is_empty());
            if usable.is_none() {
                let name = id.parameter().name;
                log::warning!("{name} '{text}' names no CPU that this process may use: it is not applied.");
            }
            usable
        };
        CpuLists {
            server: list(id::SERVER_CPULIST),
            background: list(id::BIO_CPULIST),
            all,
        }
    }

    /// Returns the number of CPUs that the workers may use; 0 if unknown.
    pub fn worker_cpu_count(&self) -> usize {
        self.server.as_ref().unwrap_or(&self.all).len()
    }

    /// Sets the CPUs of background threads for the threads that the calling thread starts from now on.
    pub fn use_background_cpus(&self) {
        self.set_affinity(self.background.as_ref());
    }

    /// Sets the CPUs of client-serving threads for the calling thread and the threads it starts from now on.
    pub fn use_server_cpus(&self) {
        self.set_affinity(self.server.as_ref());
    }

    fn set_affinity(&self, cpus: Option<&Vec<usize>>) {
        if self.server.is_none() && self.background.is_none() {
            return;
        }
        let cpus = cpus.unwrap_or(&self.all);
        if let Err(error) = pin_to_cpus(cpus) {
            log::warning!("Cannot run on CPUs {cpus:?}: {error}");
        }
    }
}
