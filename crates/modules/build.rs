//! Compiles the functions of the module API that stable Rust cannot define: those with a variable number of arguments,
//! and those that take or return a `long double`.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=native");
    let mut files: Vec<PathBuf> = std::fs::read_dir("native")
        .expect("the directory native exists")
        .map(|entry| entry.expect("an entry of native").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    cc::Build::new()
        .files(files)
        .warnings(true)
        .extra_warnings(true)
        .compile("weft_modules_native");
}
