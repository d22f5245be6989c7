//! Tests which entries the logs keep, and how they show long commands.

use super::*;

fn shown_of(arguments: &[&[u8]]) -> Vec<Vec<u8>> {
    loggable_arguments(arguments.iter().copied(), |index| index == 1)
}

#[test]
fn long_arguments_and_commands_are_truncated_with_a_note() {
    let long = vec![b'a'; 200];
    let mut arguments: Vec<&[u8]> = vec![b"set", b"secret", &long];
    assert_eq!(
        shown_of(&arguments),
        vec![
            b"set".to_vec(),
            b"(redacted)".to_vec(),
            [&long[..128], b"... (72 more bytes)"].concat()
        ]
    );
    arguments.resize(32, b"x");
    assert_eq!(shown_of(&arguments).len(), 32);
    assert_eq!(shown_of(&arguments)[31], b"x");
    arguments.push(b"x");
    let cut = shown_of(&arguments);
    assert_eq!(cut.len(), 32);
    assert_eq!(cut[31], b"... (2 more arguments)");
}

#[test]
fn a_log_keeps_the_newest_entries_and_its_ids_survive_a_reset() {
    let log = CommandLog::default();
    for size in 0..5 {
        log.push(CommandLogKind::Slow, 3, 1, size, LoggedCommand::default());
    }
    let ids = |entries: Vec<CommandLogEntry>| entries.iter().map(|entry| entry.id).collect::<Vec<_>>();
    assert_eq!(ids(log.newest(CommandLogKind::Slow, 10)), vec![4, 3, 2]);
    assert_eq!(ids(log.newest(CommandLogKind::Slow, 1)), vec![4]);
    assert_eq!(log.len(CommandLogKind::LargeReply), 0);
    log.reset(CommandLogKind::Slow);
    assert_eq!(log.len(CommandLogKind::Slow), 0);
    log.push(CommandLogKind::Slow, 3, 1, 9, LoggedCommand::default());
    assert_eq!(ids(log.newest(CommandLogKind::Slow, 10)), vec![5]);
    log.push(CommandLogKind::Slow, 0, 1, 9, LoggedCommand::default());
    log.push(CommandLogKind::Slow, 3, 1, 9, LoggedCommand::default());
    assert_eq!(
        ids(log.newest(CommandLogKind::Slow, 10)),
        vec![6, 5],
        "a log of length 0 takes nothing and gives no id"
    );
}
