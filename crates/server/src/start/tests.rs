//! Tests of the start of threads.

use std::collections::BTreeSet;
use std::fs;

use super::*;

/// Returns the names of all threads of this process, each with a line feed.
fn thread_names() -> Vec<String> {
    let list = || fs::read_dir("/proc/self/task").expect("lists the threads");
    // Threads of other tests end meanwhile, and then the kernel leaves others out.
    let threads: BTreeSet<PathBuf> = (0..3)
        .flat_map(|_| list())
        .flatten()
        .map(|thread| thread.path())
        .collect();
    let name = |thread: PathBuf| fs::read_to_string(thread.join("comm")).ok();
    threads.into_iter().filter_map(name).collect()
}

/// A report on the threads of a server that has just become ready shows its workers.
#[test]
fn workers_have_their_names_once_they_are_started() {
    // More than in other tests: all of them are threads of one process.
    const WORKERS: usize = 20;
    let server = create_idle_server_with_workers(Config::defaults(), WORKERS);
    let workers = create_workers(&server).expect("workers");
    let threads = start_workers(workers).expect("threads");
    let names = thread_names();
    for worker in 0..WORKERS {
        let name = format!("weft-worker-{worker}\n");
        assert!(names.contains(&name), "no {name:?} in {names:?}");
    }
    for worker in &server.workers {
        worker.send(Message::Stop {
            grace_period: Duration::ZERO,
        });
    }
    for thread in threads {
        thread.join().expect("the worker ends");
    }
}

/// Returns a thread that takes the part of the one that loads data, and what ends it: `true` makes it succeed.
fn start_loading_thread() -> (LoadingThread, mpsc::Sender<bool>) {
    let (end, ends) = mpsc::channel();
    let (alive, progress) = mpsc::sync_channel(1);
    let thread = weft_os::thread::spawn(move || {
        alive.send(()).expect("the test waits");
        match ends.recv() {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(StartFailure),
        }
    });
    (LoadingThread { thread, progress }, end)
}

#[test]
fn a_load_that_does_not_end_is_left_to_itself_on_request() {
    let (loading, end) = start_loading_thread();
    let mut questions = 0;
    let is_loaded = loading.finish_unless(|| {
        questions += 1;
        questions == 3
    });
    assert!(matches!(is_loaded, Ok(false)), "{is_loaded:?}");
    assert_eq!(questions, 3);
    assert!(end.send(true).is_ok(), "the thread still loads");
}

#[test]
fn a_load_that_ends_is_waited_for() {
    for succeeds in [true, false] {
        let (loading, end) = start_loading_thread();
        let mut end = Some(end);
        let is_loaded = loading.finish_unless(|| {
            if let Some(end) = end.take() {
                end.send(succeeds).expect("the thread still loads");
            }
            false
        });
        match succeeds {
            true => assert!(matches!(is_loaded, Ok(true)), "{is_loaded:?}"),
            false => assert!(is_loaded.is_err(), "{is_loaded:?}"),
        }
    }
}
