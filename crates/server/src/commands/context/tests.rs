//! Tests of the limits that depend on the client of a command, and of work on background threads.

use weft_command_table::spec::CommandFlags;
use weft_config::Config;
use weft_modules::module::Module;
use weft_modules::module::command::DeclaredRange;
use weft_os::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn commands_that_have_run_before_may_make_strings_longer_than_new_ones() {
    const DEFAULT: u64 = 512 << 20;
    const HIGH: u64 = 4 << 30;
    for (flags, with_default, with_high) in [
        (ClientFlags::empty(), DEFAULT, HIGH),
        (ClientFlags::IMPORT_SOURCE, DEFAULT, HIGH),
        (ClientFlags::REPLICA, DEFAULT, HIGH),
        (ClientFlags::PRIMARY, 64 << 30, 64 << 30),
        (ClientFlags::REPLAY, 64 << 30, 64 << 30),
        (ClientFlags::SLOT_IMPORT, 1 << 30, HIGH),
    ] {
        assert_eq!(max_string_bytes(flags, DEFAULT), with_default, "{flags:?}");
        assert_eq!(max_string_bytes(flags, HIGH), with_high, "{flags:?}");
    }
}

#[test]
fn client_kill_waits_for_the_effect_of_work_and_not_for_its_preparation() {
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let requester = ParkedClient {
        worker: ThreadIndex::FIRST,
        client: server.clients.next_client_id(),
        park_id: server.clients.next_park_id(),
    };
    for is_killed in [false, true] {
        let mark = Arc::new(KillMark::default());
        let (preparing, effective) = (mark.clone(), mark.clone());
        let is_done = Arc::new(AtomicBool::new(false));
        let done = is_done.clone();
        let effect: BackgroundRun = Box::new(move |_, _| {
            assert!(effective.is_lasting(), "CLIENT KILL waits for the effect");
            done.store(true, Ordering::Relaxed);
            BackgroundStep::reply(b"+OK\r\n".to_vec())
        });
        let run: BackgroundRun = Box::new(move |_, _| {
            assert!(!preparing.is_lasting(), "CLIENT KILL does not wait for the preparation");
            if is_killed {
                preparing.kill();
            }
            BackgroundStep::TakeEffect(effect)
        });
        let work = BackgroundWork {
            run,
            waits_for_server: false,
            delays_kill: false,
            permission: None,
            completes_effect: false,
        };
        background_job(work, mark.clone(), requester)(&server, &mut seat);
        assert_eq!(is_done.load(Ordering::Relaxed), !is_killed);
        assert!(!mark.is_lasting());
    }
}

/// Replies wait for those of the next batch unless that may wait at the gate, so commands that do not should not look
/// as if they did.
#[test]
fn commands_of_modules_run_at_home_unless_they_are_declared_for_other_workers() {
    let owner = Module::new("test.so".to_owned());
    let keys = DeclaredRange::default();
    let command = ModuleCommand::create(owner, None, "test.run", None, CommandFlags::empty(), keys);
    assert!(module(Some(command)).runs_at_home());
    for (concurrency, expected) in [
        (Concurrency::SlotSafe, false),
        (Concurrency::Serial, false),
        (Concurrency::Home, true),
    ] {
        command.set_concurrency(concurrency);
        assert_eq!(module(Some(command)).runs_at_home(), expected, "{concurrency:?}");
    }
    assert!(module(None).runs_at_home(), "MODULE LOAD");
}
