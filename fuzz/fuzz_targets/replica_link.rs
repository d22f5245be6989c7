//! Fuzzes what a replica receives from its primary: answers of the handshake, a dump, and the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    weft_server::fuzzing::check_replica_link(input);
});
