//! The manifest: the ordered list of the files that make up the append-only file.
//!
//! It has one line for each file: `file NAME seq NUMBER type b|h|i`. The types are a base (an RDB file, or commands),
//! history files that were replaced and wait to be deleted, and increments with ascending numbers. The manifest is
//! always written as a whole, under a temporary name first.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use weft_resp::quote::split_arguments;

use weft_base::files::{FixedPath, error_text};

/// The length of the longest accepted line, including its end.
const MAX_LINE_BYTES: usize = 1024;
/// The length of the longest accepted name in a written line, where a byte of it can take four. The rest of the line
/// fits beside it.
const MAX_QUOTED_NAME_BYTES: usize = MAX_LINE_BYTES - 64;
const LINE_TOO_LONG: &str = "The AOF manifest file contains too long line";
/// The sequence number from which on no file is accepted.
const MAX_SEQUENCE: i64 = 1 << 62;
/// The end of the name of an increment.
const INCREMENT_SUFFIX: &str = ".incr.aof";

/// One file of the append-only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The name of the file in the directory.
    pub name: String,
    /// The sequence number among the files of its kind.
    pub sequence: i64,
}

/// The files of an append-only file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The base.
    pub base: Option<ManifestEntry>,
    /// Replaced files that are to be deleted, the latest first.
    pub history: Vec<ManifestEntry>,
    /// The increments since the base, in order.
    pub increments: Vec<ManifestEntry>,
    base_sequence: i64,
    increment_sequence: i64,
    changed: bool,
}

/// The reason why a manifest cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// The number and the text of the faulty line, if the error concerns one line.
    pub line: Option<(usize, String)>,
    /// The fault.
    pub reason: &'static str,
}

impl Manifest {
    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// If the text is not a valid manifest.
    pub fn parse(text: &[u8]) -> Result<Self, ManifestError> {
        let mut manifest = Manifest::default();
        let mut latest = 0;
        if text.is_empty() {
            return Err(ManifestError {
                line: None,
                reason: "Found an empty AOF manifest",
            });
        }
        for (index, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if line.first() == Some(&b'#') {
                continue;
            }
            if line.last() != Some(&b'\n') || line.len() > MAX_LINE_BYTES {
                return Err(ManifestError {
                    line: None,
                    reason: LINE_TOO_LONG,
                });
            }
            let line = line.trim_ascii();
            manifest.add_line(line, &mut latest).map_err(|reason| ManifestError {
                line: Some((index + 1, String::from_utf8_lossy(line).into_owned())),
                reason,
            })?;
        }
        Ok(manifest)
    }

    fn add_line(&mut self, line: &[u8], latest: &mut i64) -> Result<(), &'static str> {
        const FORMAT: &str = "Invalid AOF manifest file format";
        let words = split_arguments(line).ok_or(FORMAT)?;
        // A later version may write more pairs.
        if words.len() < 6 || words.len() % 2 != 0 {
            return Err(FORMAT);
        }
        let (mut name, mut sequence, mut kind) = (None, 0, None);
        for pair in words.chunks_exact(2) {
            let [key, value] = pair else { return Err(FORMAT) };
            if key.eq_ignore_ascii_case(b"file") {
                if value.contains(&b'/') || value.contains(&b'\\') {
                    return Err("File can't be a path, just a filename");
                }
                name = Some(String::from_utf8(value.clone()).map_err(|_| FORMAT)?);
            } else if key.eq_ignore_ascii_case(b"seq") {
                sequence = parse_leading_number(value);
            } else if key.eq_ignore_ascii_case(b"type") {
                kind = value.first().copied();
            }
        }
        // The limit keeps the numbers of new files from overflowing.
        let (Some(name), Some(kind), true) = (name, kind, sequence != 0 && sequence < MAX_SEQUENCE) else {
            return Err(FORMAT);
        };
        if quote_name(&name).len() > MAX_QUOTED_NAME_BYTES {
            return Err(LINE_TOO_LONG);
        }
        let part = ManifestEntry { name, sequence };
        match kind {
            b'b' if self.base.is_some() => return Err("Found duplicate base file information"),
            b'b' => {
                self.base_sequence = sequence.max(self.base_sequence);
                self.base = Some(part);
            }
            b'h' => {
                // No new file may get the name of a history file, which is about to be deleted.
                let latest = match part.name.ends_with(INCREMENT_SUFFIX) {
                    true => &mut self.increment_sequence,
                    false => &mut self.base_sequence,
                };
                *latest = sequence.max(*latest);
                self.history.push(part);
            }
            b'i' if sequence <= *latest => return Err("Found a non-monotonic sequence number"),
            b'i' => {
                *latest = sequence;
                self.increment_sequence = sequence.max(self.increment_sequence);
                self.increments.push(part);
            }
            _ => return Err("Unknown AOF file type"),
        }
        Ok(())
    }

    /// Returns the text of the manifest.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let lines = [(&self.history, 'h'), (&self.increments, 'i')];
        let base = self.base.iter().map(|part| (part, 'b'));
        let others = lines
            .iter()
            .flat_map(|(parts, kind)| parts.iter().map(move |part| (part, *kind)));
        for (ManifestEntry { name, sequence }, kind) in base.chain(others) {
            text.extend_from_slice(b"file ");
            text.extend_from_slice(&quote_name(name));
            text.extend_from_slice(format!(" seq {sequence} type {kind}\n").as_bytes());
        }
        text
    }

    /// Returns `true` if the manifest names no file that holds data.
    pub fn is_empty(&self) -> bool {
        self.base.is_none() && self.increments.is_empty()
    }

    /// The base and the increments, in order.
    pub fn files(&self) -> impl Iterator<Item = &ManifestEntry> {
        self.base.iter().chain(&self.increments)
    }

    /// Makes the single file of an old server the base.
    pub fn add_migrated_base(&mut self, name: &str) {
        self.base = Some(ManifestEntry {
            name: name.to_owned(),
            sequence: 1,
        });
        self.base_sequence = 1;
        self.changed = true;
    }

    /// Adds a new base and returns its name. The old base becomes history.
    pub fn begin_base(&mut self, filename: &str, as_dump: bool) -> String {
        if let Some(old) = self.base.take() {
            self.history.insert(0, old);
        }
        self.base_sequence += 1;
        let sequence = self.base_sequence;
        let format = if as_dump { "rdb" } else { "aof" };
        let name = format!("{filename}.{sequence}.base.{format}");
        self.base = Some(ManifestEntry {
            name: name.clone(),
            sequence,
        });
        self.changed = true;
        name
    }

    /// Adds a new increment at the end and returns its name.
    pub fn begin_increment(&mut self, filename: &str) -> String {
        self.increment_sequence += 1;
        let sequence = self.increment_sequence;
        assert!(
            self.increments.last().is_none_or(|last| last.sequence < sequence),
            "the sequence numbers of increments ascend"
        );
        let name = format!("{filename}.{sequence}{INCREMENT_SUFFIX}");
        self.increments.push(ManifestEntry {
            name: name.clone(),
            sequence,
        });
        self.changed = true;
        name
    }

    /// The name of the last increment, which is created if there is none.
    pub fn last_increment(&mut self, filename: &str) -> String {
        match self.increments.last() {
            Some(part) => part.name.clone(),
            None => self.begin_increment(filename),
        }
    }

    /// Turns the increments that a new base contains into history. With `keep_last` the last one stays, because it is
    /// being written.
    pub fn retire_increments(&mut self, keep_last: bool) {
        assert!(self.base.is_some(), "increments are replaced by a base");
        let kept = usize::from(keep_last).min(self.increments.len());
        let split = self.increments.len() - kept;
        for part in self.increments.drain(..split).rev() {
            self.history.insert(0, part);
        }
        self.changed = true;
    }

    /// Removes and returns the history, whose files are about to be deleted.
    pub fn take_history(&mut self) -> Vec<ManifestEntry> {
        self.changed |= !self.history.is_empty();
        std::mem::take(&mut self.history)
    }

    /// Makes the next [`Manifest::store`] write the manifest even if it has not changed.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Writes the manifest to its directory and syncs it, if it has changed.
    ///
    /// The directory is synced before, too. Otherwise the new manifest could be on the disk without the names of the
    /// files that it lists.
    ///
    /// # Errors
    /// The failed step. [`ManifestStoreError::is_replaced`] returns `true` if the directory contains the new manifest
    /// nevertheless.
    pub fn store(&mut self, directory: &FixedPath, filename: &str) -> Result<(), ManifestStoreError> {
        if !self.changed {
            return Ok(());
        }
        let directory_error = |error| (directory.join(file_name(filename)).name().to_owned(), error);
        sync_directory(directory.as_path()).map_err(|error| {
            let (path, error) = directory_error(error);
            ManifestStoreError::SyncFileNames { path, error }
        })?;
        self.replace_file(directory, filename)?;
        sync_directory(directory.as_path()).map_err(|error| {
            let (path, error) = directory_error(error);
            ManifestStoreError::SyncDirectory { path, error }
        })?;
        self.changed = false;
        Ok(())
    }

    /// Replaces the manifest in a directory.
    fn replace_file(&self, directory: &FixedPath, filename: &str) -> Result<(), ManifestStoreError> {
        let name = file_name(filename);
        let temporary_name = format!("temp-{name}");
        let temporary = directory.join(&temporary_name);
        let step = |failed: fn(String, io::Error) -> ManifestStoreError| {
            let name = temporary_name.clone();
            move |error| failed(name, error)
        };
        let mut file =
            File::create(&temporary).map_err(step(|name, error| ManifestStoreError::Open { name, error }))?;
        let text = self.to_bytes();
        debug_assert!(
            Manifest::parse(&text).is_ok_and(|read| read.files().eq(self.files()) && read.history == self.history),
            "a stored manifest can be read again"
        );
        file.write_all(&text)
            .map_err(step(|name, error| ManifestStoreError::Write { name, error }))?;
        weft_os::disk::sync_all(&file).map_err(step(|name, error| ManifestStoreError::Sync { name, error }))?;
        std::fs::rename(&temporary, directory.join(&name)).map_err(|error| ManifestStoreError::Rename {
            temporary: temporary_name,
            name,
            error,
        })
    }
}

/// The reason why a manifest is not safely on the disk: the step that failed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestStoreError {
    /// Creating the temporary file.
    #[error("Can't open the AOF manifest file {name}: {}", error_text(.error))]
    Open {
        /// The name of the temporary file.
        name: String,
        /// The cause.
        error: io::Error,
    },
    /// Writing the temporary file.
    #[error("Error trying to write the temporary AOF manifest file {name}: {}", error_text(.error))]
    Write {
        /// The name of the temporary file.
        name: String,
        /// The cause.
        error: io::Error,
    },
    /// Syncing the temporary file to the disk.
    #[error("Fail to fsync the temp AOF file {name}: {}.", error_text(.error))]
    Sync {
        /// The name of the temporary file.
        name: String,
        /// The cause.
        error: io::Error,
    },
    /// Renaming the temporary file.
    #[error("Error trying to rename the temporary AOF manifest file {temporary} into {name}: {}", error_text(.error))]
    Rename {
        /// The name of the temporary file.
        temporary: String,
        /// The name of the manifest.
        name: String,
        /// The cause.
        error: io::Error,
    },
    /// Syncing the directory, with the names of the files that the manifest lists, before the manifest is replaced.
    #[error("Fail to fsync AOF directory {}: {}.", .path.display(), error_text(.error))]
    SyncFileNames {
        /// The path of the manifest.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Syncing the directory after the manifest was replaced.
    #[error("Fail to fsync AOF directory {}: {}.", .path.display(), error_text(.error))]
    SyncDirectory {
        /// The path of the manifest.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

impl ManifestStoreError {
    /// Returns `true` if the directory contains the new manifest nevertheless. After a power failure it may contain the
    /// old one again. So neither the files of the old one nor those of the new one may be removed.
    pub const fn is_replaced(&self) -> bool {
        matches!(self, ManifestStoreError::SyncDirectory { .. })
    }
}

/// The name of the manifest of an append-only file.
pub fn file_name(filename: &str) -> String {
    format!("{filename}.manifest")
}

/// Syncs the entries of a directory to the disk, after a rename.
///
/// # Errors
/// If the directory cannot be synced.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    weft_os::disk::sync_all(&File::open(directory)?)
}

fn parse_leading_number(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text.split_first() {
        Some((b'-', rest)) => (-1, rest),
        Some((b'+', rest)) => (1, rest),
        _ => (1, text),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0i64, |number, digit| {
        number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    sign * number
}

/// A name as it appears in a line of the manifest, quoted if necessary.
fn quote_name(name: &str) -> Vec<u8> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !name.is_empty() && name.bytes().all(plain) {
        return name.as_bytes().to_vec();
    }
    let mut quoted = vec![b'"'];
    for byte in name.bytes() {
        match byte {
            b'\\' | b'"' => quoted.extend([b'\\', byte]),
            b'\n' => quoted.extend(b"\\n"),
            b'\r' => quoted.extend(b"\\r"),
            b'\t' => quoted.extend(b"\\t"),
            0x07 => quoted.extend(b"\\a"),
            0x08 => quoted.extend(b"\\b"),
            byte if byte.is_ascii_graphic() || byte == b' ' => quoted.push(byte),
            byte => quoted.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}

#[cfg(test)]
mod tests;
