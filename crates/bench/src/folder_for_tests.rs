//! Folders for the files of tests.

use std::fs;
use std::path::PathBuf;

/// A folder for the files of one test, which is removed at its end.
pub struct TestFolder(pub PathBuf);

impl TestFolder {
    /// Creates the folder of the test with this name.
    pub fn create(name: &str) -> TestFolder {
        let folder = std::env::temp_dir().join(format!("weft-bench-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        TestFolder(folder)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
