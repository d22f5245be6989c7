//! Tests of the configuration: against recorded replies of Valkey 9.1.2, and of Weft's own behaviour.

mod command_line;
mod contexts;
mod documents;
mod files;
mod rewriting;
mod setting;
mod syntax;
mod table;

use parking_lot::{Mutex, MutexGuard};
use std::path::{Path, PathBuf};

use super::{Config, ParameterId, SetError, SetPermissions};

const ALL_PERMISSIONS: SetPermissions = SetPermissions {
    may_set_protected: true,
    is_loading: false,
};

/// Sets pairs of text as a client with all permissions.
fn set(config: &Config, pairs: &[(&str, &str)]) -> Result<Vec<ParameterId>, SetError> {
    let pairs: Vec<(&[u8], &[u8])> = pairs
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    config.set(&pairs, ALL_PERMISSIONS, &mut |_| Ok(()))
}

fn refusal(config: &Config, pairs: &[(&str, &str)]) -> String {
    match set(config, pairs) {
        Err(SetError::Refused(text)) => String::from_utf8(text).unwrap(),
        other => panic!("{pairs:?} was not refused: {other:?}"),
    }
}

/// Returns the value that CONFIG GET shows for one name.
fn config_get(config: &Config, name: &str) -> String {
    let matches = config.matching_parameters(&[name.as_bytes()]);
    let [(_, value)] = matches.as_slice() else {
        panic!("{name} gave {matches:?}")
    };
    String::from_utf8_lossy(value).into_owned()
}

/// Loads the text of a file.
fn loaded(text: &str) -> Config {
    Config::parse(text.as_bytes(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// Locks the working directory of the process. Tests that change or read it run one after another.
fn working_directory() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// A directory that is removed with its contents at the end of a test.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> ScratchDirectory {
        let path = std::env::temp_dir().join(format!("weft-config-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a scratch directory");
        ScratchDirectory(path.canonicalize().expect("the path of the scratch directory"))
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a scratch file");
        path
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
