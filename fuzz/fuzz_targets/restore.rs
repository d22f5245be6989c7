//! Fuzzes the payloads of RESTORE: each must give an error, or a value whose DUMP payload loads as an equal value.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    weft_server::fuzzing::check_restore(body);
});
