//! Compiles the module that the servers of a simulation load.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=module");
    println!("cargo::rerun-if-changed=../modules/include");
    if std::env::var_os("CARGO_FEATURE_SIMULATED").is_none() {
        return;
    }
    let target = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("module.so");
    let compiler = cc::Build::new().opt_level(1).get_compiler();
    let status = compiler
        .to_command()
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-pthread",
        ])
        .args(["-I", "../modules/include", "module/module.c", "-o"])
        .arg(&target)
        .status()
        .expect("the C compiler can be started");
    assert!(status.success(), "the module does not compile");
}
