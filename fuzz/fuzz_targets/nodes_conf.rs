//! Fuzzes the cluster configuration file: what is written of an accepted one must be read as the same state.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_cluster::nodes_conf::{CorruptedLine, nodes_file_text, parse};
use weft_cluster::settings::ClusterSettings;

/// The time at which the file is read.
const NOW_MS: u64 = 1_000_000;

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let state = match parse(&text, ClusterSettings::default(), NOW_MS) {
        Ok(state) => state,
        Err(CorruptedLine(line)) => {
            assert!(!line.contains('\n'), "{line:?}");
            return;
        }
    };
    // A node takes at least its ID in the file.
    assert!(state.nodes.len() <= 1 + text.len() / 40);
    // A node that a slot moves to or from is written if it is known, which a node in its handshake is only the second
    // time.
    let written = rewrite(&nodes_file_text(&state));
    assert_eq!(rewrite(&written), written, "of {text:?}");
});

/// Reads a file that was written, and writes it again.
fn rewrite(written: &str) -> String {
    match parse(written, ClusterSettings::default(), NOW_MS) {
        Ok(state) => nodes_file_text(&state),
        Err(CorruptedLine(line)) => panic!("{line:?} was written in {written:?}"),
    }
}
