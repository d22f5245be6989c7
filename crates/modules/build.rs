//! Compiles the functions of the module API that stable Rust cannot define: those with a variable number of arguments,
//! and those that take or return a `long double`.

fn main() {
    println!("cargo::rerun-if-changed=native");
    cc::Build::new()
        .file("native/variadic.c")
        .warnings(true)
        .extra_warnings(true)
        .compile("weft_modules_native");
}
