//! Files that are replaced as a whole, paths that outlast a change of the working directory, and the error texts of
//! system calls.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Display, Path, PathBuf};

/// The working directory at some moment.
///
/// The working directory belongs to the process, and `CONFIG SET dir` may change it at any time. So a thread that works
/// with a file for a while, or with several files that belong together, resolves their names with one such value. In
/// Valkey a child process does such work, and keeps its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingDirectory {
    /// Empty if the directory is unknown, for instance because it was removed.
    path: PathBuf,
    /// `true` if the path leads to the directory. Otherwise names stay relative: a directory above it may not be
    /// searchable for this process, or another file system may be mounted above it.
    is_reachable: bool,
}

impl WorkingDirectory {
    /// Returns the present working directory.
    pub fn current() -> Self {
        let is_current = |path: &Path| is_same_directory(path, Path::new("."));
        Self::resolve(&mut || std::env::current_dir().ok(), &is_current)
    }

    /// Does the same with a source of the path and a check if a path leads to the directory.
    fn resolve(read_path: &mut dyn FnMut() -> Option<PathBuf>, is_current: &dyn Fn(&Path) -> bool) -> Self {
        loop {
            let path = read_path().unwrap_or_default();
            let is_reachable = is_current(&path);
            // The directory may have changed between the two calls.
            if is_reachable || read_path().unwrap_or_default() == path {
                return WorkingDirectory { path, is_reachable };
            }
        }
    }

    /// Returns the path for messages, or `None` if it is unknown.
    pub fn path(&self) -> Option<&Path> {
        (!self.path.as_os_str().is_empty()).then_some(&*self.path)
    }

    /// Returns the path by which the directory can be opened.
    pub fn as_path(&self) -> &Path {
        match self.is_reachable {
            true => self.path.as_path(),
            false => Path::new("."),
        }
    }

    /// Returns the path of the file with this name in the directory.
    pub fn file(&self, name: impl Into<PathBuf>) -> FixedPath {
        let name = name.into();
        let absolute = match self.is_reachable {
            true => self.path.join(&name),
            false => name.clone(),
        };
        let directory = self.clone();
        FixedPath {
            name,
            absolute,
            directory,
        }
    }
}

/// Returns `true` if both paths lead to the same directory.
fn is_same_directory(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let found = identity(one);
    found.is_some() && found == identity(other)
}

/// The path of a file, which stays the same when the working directory changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPath {
    name: PathBuf,
    absolute: PathBuf,
    directory: WorkingDirectory,
}

impl FixedPath {
    /// Returns the path of the file with this name in the present working directory.
    pub fn new(name: impl Into<PathBuf>) -> Self {
        WorkingDirectory::current().file(name)
    }

    /// Returns the name, relative to the working directory, by which messages name the file.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the name for messages.
    pub fn display(&self) -> Display<'_> {
        self.name.display()
    }

    /// Returns the absolute path, or the name if the path of the working directory does not lead to it.
    pub fn as_path(&self) -> &Path {
        &self.absolute
    }

    /// Returns the working directory that the name is relative to.
    pub fn directory(&self) -> &WorkingDirectory {
        &self.directory
    }

    /// Returns the path of a file below this path.
    pub fn join(&self, name: impl AsRef<Path>) -> FixedPath {
        self.directory.file(self.name.join(name))
    }

    /// Returns the same path with another extension.
    pub fn with_extension(&self, extension: &str) -> FixedPath {
        self.directory.file(self.name.with_extension(extension))
    }
}

impl AsRef<Path> for FixedPath {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

/// Replaces a file atomically: a reader, even after a crash, sees either the whole old text or the whole new one.
///
/// # Errors
/// When the new file cannot be written or renamed. The old file is unchanged then.
pub fn replace_file(file: &Path, text: &[u8]) -> io::Result<()> {
    let file = FixedPath::new(file);
    let file = file.as_path();
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(format!(".{:08x}", fastrand::u32(..)));
    let temporary = PathBuf::from(temporary);
    let written = write_new(&temporary, file, text).and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        // The error above is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let directory = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Writes a new file to disk with the permissions of the file that it replaces.
fn write_new(path: &Path, model: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    if let Ok(model) = fs::metadata(model) {
        file.set_permissions(model.permissions())?;
    }
    file.write_all(text)?;
    file.sync_all()
}

/// Returns the operating system's text for an error, without its number: what `strerror` returns, which clients and
/// logs see in Valkey.
pub fn error_text(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(number) = error.raw_os_error() {
        // The standard library appends the number to the text of `strerror`.
        let suffix = format!(" (os error {number})");
        text.truncate(text.strip_suffix(&suffix).map_or(text.len(), str::len));
    }
    text
}

/// Returns the operating system's text for an error number.
pub fn errno_text(number: i32) -> String {
    error_text(&io::Error::from_raw_os_error(number))
}

#[cfg(test)]
mod tests;
