//! Builds Lua 5.1.5 with its known vulnerabilities fixed, and the functions by which scripts reach their host.
//!
//! The sources are those of the crate `lua-src`. They are copied to the build directory, changed by the list in
//! `patches.rs`, and compiled from there. The build fails if the text of a patch does not occur exactly as often as the
//! patch states. A new release of `lua-src` therefore cannot silently disable a patch.

mod patches;

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the crate `lua-src` that contains Lua 5.1.
const LUA_DIRECTORY: &str = "lua-5.1.5";

/// The interpreter's main programs, which are not part of the library.
const PROGRAMS: &[&str] = &["lua.c", "luac.c", "print.c"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=native");
    let patched = PathBuf::from(env::var("OUT_DIR")?).join(LUA_DIRECTORY);
    copy_and_patch(&find_lua_src()?.join(LUA_DIRECTORY), &patched)?;

    let mut build = cc::Build::new();
    build
        .include(&patched)
        .warnings(false)
        .flag_if_supported("-fno-common")
        // In position-independent code GCC would inline no function of Lua's API: another library might replace it.
        .flag_if_supported("-fno-semantic-interposition")
        .cargo_metadata(false);
    // Scripts are performance-critical, also in tests.
    build.opt_level(3).force_frame_pointer(false);
    // Of the features that LUA_USE_LINUX enables, only cheap non-local jumps are needed: scripts load no shared
    // objects.
    build.define("LUA_USE_POSIX", None);
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        build.define("LUA_USE_APICHECK", None);
    }
    build.file(write_whole_program(&patched)?);
    build.try_compile("weft-lua5.1")?;
    // The whole archive is linked, because this crate may precede `mlua-sys` on the linker's command line.
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR")?);
    println!("cargo:rustc-link-lib=static:+whole-archive=weft-lua5.1");
    Ok(())
}

/// Finds the directory of the crate `lua-src` with `cargo metadata`.
///
/// # Errors
/// Fails if `cargo metadata` fails or does not list the crate.
fn find_lua_src() -> Result<PathBuf, Box<dyn Error>> {
    let cargo = env::var("CARGO")?;
    let manifest = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("Cargo.toml");
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            &env::var("TARGET")?,
            "--manifest-path",
        ])
        .arg(&manifest)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    let package = packages
        .iter()
        .find(|package| package["name"] == "lua-src")
        .ok_or("lua-src is not a dependency")?;
    let manifest = package["manifest_path"].as_str().ok_or("lua-src has no manifest")?;
    Ok(Path::new(manifest)
        .parent()
        .ok_or("the manifest of lua-src has no parent directory")?
        .to_path_buf())
}

/// Copies Lua's sources and headers to `to` and applies every patch.
///
/// # Errors
/// Fails if a patch does not match as often as it states, or if a file cannot be read or written.
fn copy_and_patch(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    let mut unused: Vec<&patches::Patch> = patches::PATCHES.iter().collect();
    for name in file_names_ending_with(from, ".c")?
        .into_iter()
        .chain(file_names_ending_with(from, ".h")?)
    {
        if PROGRAMS.contains(&name.as_str()) {
            continue;
        }
        let mut text = fs::read_to_string(from.join(&name))?;
        for patch in unused.extract_if(.., |patch| patch.file == name) {
            let found = text.matches(patch.search).count();
            if found != patch.occurrences {
                return Err(format!(
                    "{name}: {:?} occurs {found} times instead of {}",
                    patch.search, patch.occurrences
                )
                .into());
            }
            text = text.replace(patch.search, patch.replace);
        }
        fs::write(to.join(&name), text)?;
    }
    match unused.first() {
        None => Ok(()),
        Some(patch) => Err(format!("the file {} to patch does not exist", patch.file).into()),
    }
}

/// Writes one source file that includes all others, and returns its path. The compiler can then inline functions of the
/// interpreter into each other and into `native/calls.c`. Lua's sources support this by the macro `luaall_c`.
///
/// # Errors
/// Fails if a directory cannot be read or the file cannot be written.
fn write_whole_program(patched: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let whole = patched.with_file_name("whole.c");
    let calls = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("native/calls.c");
    let sources = file_names_ending_with(patched, ".c")?;
    let paths = sources.iter().map(|name| patched.join(name)).chain([calls]);
    let includes: String = paths.map(|path| format!("#include \"{}\"\n", path.display())).collect();
    // Lua has a macro with the name of a function of this header.
    fs::write(&whole, format!("#define luaall_c\n#include <stdio.h>\n{includes}"))?;
    Ok(whole)
}

fn file_names_ending_with(directory: &Path, ending: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.ends_with(ending)
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
