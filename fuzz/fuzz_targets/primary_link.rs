//! Fuzzes what a primary receives from a replica: the server must serve another client afterwards.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    weft_server::fuzzing::check_primary_link(input);
});
