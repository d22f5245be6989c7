//! Fuzzes manifests of the append-only file: an accepted one is written and parsed as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    weft_server::fuzzing::check_manifest(input);
});
