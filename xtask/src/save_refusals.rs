//! The errors with which a healthy server refuses SAVE, BGSAVE and BGREWRITEAOF: it is saving already.

const SAVE_IN_PROGRESS: &str = "ERR Background save already in progress";
/// The append-only file is being rewritten, or slots are being exported.
const OTHER_SNAPSHOT_IN_PROGRESS: &str = "ERR Another child process is active (AOF?): can't BGSAVE right now. Use \
                                          BGSAVE SCHEDULE in order to schedule a BGSAVE whenever possible.";
const REWRITE_IN_PROGRESS: &str = "ERR Background append only file rewriting already in progress";

/// Returns `true` if `error` says that the server does not execute `command` now because it is saving already.
pub fn is_already_saving(command: &str, error: &str) -> bool {
    let refusals: &[&str] = match command {
        "SAVE" => &[SAVE_IN_PROGRESS],
        "BGSAVE" => &[SAVE_IN_PROGRESS, OTHER_SNAPSHOT_IN_PROGRESS],
        "BGREWRITEAOF" => &[REWRITE_IN_PROGRESS],
        _ => &[],
    };
    refusals.contains(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_refusals_of_a_server_that_is_saving_are_expected() {
        let cases = [
            ("SAVE", SAVE_IN_PROGRESS, true),
            ("SAVE", OTHER_SNAPSHOT_IN_PROGRESS, false),
            ("SAVE", "ERR", false),
            ("BGSAVE", SAVE_IN_PROGRESS, true),
            ("BGSAVE", OTHER_SNAPSHOT_IN_PROGRESS, true),
            ("BGSAVE", "ERR", false),
            ("BGREWRITEAOF", REWRITE_IN_PROGRESS, true),
            ("BGREWRITEAOF", SAVE_IN_PROGRESS, false),
            (
                "BGREWRITEAOF",
                "ERR Can't execute an AOF background rewriting. Please check the server logs for more information.",
                false,
            ),
            ("CONFIG SET", SAVE_IN_PROGRESS, false),
        ];
        for (command, error, is_expected) in cases {
            assert_eq!(is_already_saving(command, error), is_expected, "{command}: {error}");
        }
    }
}
