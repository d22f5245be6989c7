//! Tests of changes of the rules that replies wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_base::LogSequence;
use weft_config::Config;
use weft_os::atomic::{AtomicU64, Ordering};

use crate::propagation::{LogConsumer, LogTarget, start};
use crate::state::Server;

/// Changes the rules while the log thread flushes, as another thread may at that moment.
struct ChangingConsumer {
    server: Arc<Server>,
    flushes: Arc<AtomicU64>,
}

impl LogConsumer for ChangingConsumer {
    fn target(&self) -> LogTarget {
        LogTarget::REPLICAS
    }

    fn append(&mut self, _offset: u64, _bytes: &[u8]) {}

    fn flush(&mut self, _sequence: LogSequence) -> Option<Duration> {
        if self.flushes.fetch_add(1, Ordering::SeqCst) < 100 {
            self.server.update_reply_milestone();
        }
        None
    }
}

#[test]
fn the_log_thread_flushes_after_a_change_that_comes_while_it_falls_asleep() {
    let server = crate::start::create_idle_server(Config::defaults());
    start(&server.propagation).expect("there is a thread");
    let flushes = Arc::new(AtomicU64::new(0));
    let consumer = ChangingConsumer {
        server: server.clone(),
        flushes: flushes.clone(),
    };
    let consumer = Box::new(consumer);
    server
        .propagation
        .schedule_mark(move |consumers| consumers.add("changing", consumer, 0));
    let begin = Instant::now();
    while flushes.load(Ordering::SeqCst) < 100 {
        assert!(begin.elapsed() < Duration::from_secs(20), "the log thread sleeps");
        std::thread::sleep(Duration::from_millis(1));
    }
}
