//! Makes the functions of the module API that modules use as symbols of the program visible to them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The functions that modules do not get through `GetApi` (`crates/modules/native/calls.c`).
const SYMBOLS: [&str; 3] = ["VM_CallArgv", "VM_CallArgvAbort", "VM_ReplyRaw"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    if is_zig(std::env::var_os("RUSTC_LINKER").as_deref().map(Path::new)) {
        let library = build_user_of_symbols();
        println!("cargo::rustc-link-arg-bins={}", library.display());
        return;
    }
    for symbol in SYMBOLS {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
}

/// Returns `true` for the linker of `cargo zigbuild` (`packaging/release --portable`), which cannot be told the names
/// of symbols.
fn is_zig(linker: Option<&Path>) -> bool {
    let name = linker.and_then(Path::file_name).and_then(|name| name.to_str());
    name.is_some_and(|name| name.contains("zig"))
}

/// Builds a shared library that uses the symbols. Programs that are linked with it have to export them. Since they use
/// nothing of the library, they do not need it when they run. Returns its path.
fn build_user_of_symbols() -> PathBuf {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (source, library) = (out.join("symbols.c"), out.join("libweft_symbols.so"));
    let mut text = String::new();
    for symbol in SYMBOLS {
        let _ = writeln!(
            text,
            "extern char {symbol};\nconst char *weft_use_of_{symbol} = &{symbol};"
        );
    }
    std::fs::write(&source, text).expect("the source can be written");
    let mut compiler = cc::Build::new().get_compiler().to_command();
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    let status = compiler.status().expect("the compiler starts");
    assert!(status.success(), "{compiler:?}: {status}");
    library
}
