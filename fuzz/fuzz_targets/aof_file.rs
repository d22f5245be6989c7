//! Fuzzes append-only files: the commands, their replay, transactions without an end, and an RDB base.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    weft_server::fuzzing::check_aof(input);
});
