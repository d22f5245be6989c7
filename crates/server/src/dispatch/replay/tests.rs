//! Tests of a replay during which the process ends.

use weft_config::Config;
use weft_resp::command::write_command;

use super::*;

/// Otherwise the threads that wait for the end of the load could not end.
#[test]
fn the_end_of_the_process_stops_the_code_of_a_library_in_a_file() {
    let code = format!("#!lua name=long\nfor i = 1, {} do end", 1_u64 << 33);
    let load = ["FUNCTION", "LOAD", code.as_str()];
    for is_in_transaction in [false, true] {
        let mut commands: Vec<&[&str]> = vec![&load[..]];
        if is_in_transaction {
            commands.insert(0, &["MULTI"]);
            commands.push(&["EXEC"]);
        }
        let mut file = Vec::new();
        for words in commands {
            write_command(words.iter().map(|word| word.as_bytes()), &mut file);
        }
        let server = crate::start::create_idle_server(Config::defaults());
        let mut seat = server.keyspace.slots.join().expect("a seat");
        let thread_index = ThreadIndex::new(seat.index());
        server.scripting.running.stop_all();
        let began = Instant::now();
        let mut reader = AofReader::new(&file[..], 0);
        let outcome = replay_on_threads(&server, &mut seat.exclusive(), thread_index, &mut reader, 1);
        assert!(matches!(outcome, ReplayOutcome::Complete));
        assert!(began.elapsed() < Duration::from_secs(5), "the code takes longer");
        assert_eq!(server.replication.unexpected_errors.load(Ordering::Relaxed), 0);
    }
}
