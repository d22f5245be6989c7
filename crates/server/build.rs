//! Makes the functions of the module API that modules use as symbols of the program visible to them.

/// The functions that modules do not get through `GetApi` (`crates/modules/native/calls.c`).
const SYMBOLS: [&str; 3] = ["VM_CallArgv", "VM_CallArgvAbort", "VM_ReplyRaw"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for symbol in SYMBOLS {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
}
