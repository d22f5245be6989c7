//! Fuzzes RDB files: the result and the keys must not depend on how the file is cut into pieces; an error is one line.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    weft_server::fuzzing::check_rdb_file(input);
});
