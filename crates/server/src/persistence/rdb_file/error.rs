//! The errors of loading and writing a dump.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};

use weft_base::DbIndex;
use weft_base::files::{FixedPath, error_text};
use weft_modules::objects::value::AuxError;

/// The reason why an RDB file was not loaded.
#[derive(Debug)]
pub struct RdbLoadError {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of bytes of the file that were read successfully.
    pub offset: u64,
    /// The fault at that offset.
    pub fault: RdbFault,
}

impl RdbLoadError {
    /// Returns `true` if the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(&self.fault, RdbFault::Open(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// A fault of a dump.
#[derive(Debug)]
pub enum RdbFault {
    /// The file cannot be opened.
    Open(io::Error),
    /// The file cannot be read.
    Read(io::Error),
    /// The file is truncated.
    Truncated,
    /// The file does not start with a known magic. Contains the bytes found.
    Signature(Vec<u8>),
    /// A type or opcode that does not exist up to this version, or that other servers use for something else. Contains
    /// the type or opcode, and the version.
    ForeignType(u8, u32),
    /// A type that does not exist. Contains the type.
    UnknownType(u8),
    /// A type of a version that is not supported, which `rdb-version-check relaxed` lets in.
    UnknownNewerType,
    /// The version is not supported.
    Version(u32),
    /// The file has a database that this server does not have. Contains the number of databases of this server.
    Database(usize),
    /// The file has data of a module besides the keys that is not loaded. Contains the reason.
    ModuleData(AuxError),
    /// A key occurs twice. Contains the number of its database.
    Duplicate(DbIndex),
    /// The checksum does not match. Contains that of the contents, and that in the file.
    Checksum(u64, u64),
    /// The file is invalid in another way. Contains the error text.
    Damaged(String),
}

impl From<AuxError> for RdbFault {
    fn from(reason: AuxError) -> Self {
        RdbFault::ModuleData(reason)
    }
}

impl RdbFault {
    /// Creates a [`RdbFault::Damaged`] with this error text.
    pub fn damaged(what: impl Into<String>) -> RdbFault {
        RdbFault::Damaged(what.into())
    }
}

/// Returns bytes of a file as text for the log. A control character becomes a blank, so that a file, which a primary
/// may have sent, cannot write lines of its own.
pub(super) fn on_one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

impl Display for RdbLoadError {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.fault {
            RdbFault::Open(error) => write!(
                out,
                "Fatal error: can't open the RDB file {path} for reading: {}",
                error_text(error)
            ),
            RdbFault::Signature(magic) => write!(
                out,
                "Wrong signature trying to load DB from file: {}",
                on_one_line(magic)
            ),
            RdbFault::ForeignType(kind, version) => {
                write!(
                    out,
                    "Can't handle foreign type or opcode {kind} in RDB with version {version}"
                )
            }
            RdbFault::UnknownType(kind) => self.write_with_offset(out, &format!("Unknown RDB encoding type {kind}")),
            RdbFault::UnknownNewerType => {
                write!(
                    out,
                    "Unknown type or opcode when loading DB. Unrecoverable error, aborting now."
                )
            }
            RdbFault::Version(version) => write!(out, "Can't handle RDB format version {version}"),
            RdbFault::Database(databases) => write!(
                out,
                "FATAL: Data file was created with a server configured to handle more than {databases} databases. \
                 Exiting"
            ),
            RdbFault::ModuleData(reason) => write!(out, "{reason}"),
            RdbFault::Duplicate(db) => write!(out, "RDB has duplicated key in DB {db}"),
            RdbFault::Checksum(expected, found) => write!(
                out,
                "Wrong RDB checksum expected: ({expected:x}) but got ({found:x}). Aborting now."
            ),
            RdbFault::Read(error) => self.write_with_offset(out, &error_text(error)),
            RdbFault::Truncated => self.write_with_offset(out, "Unexpected EOF reading RDB file"),
            RdbFault::Damaged(what) => self.write_with_offset(out, what),
        }
    }
}

impl RdbLoadError {
    fn write_with_offset(&self, out: &mut Formatter<'_>, what: &str) -> fmt::Result {
        let (offset, path) = (self.offset, self.path.display());
        write!(out, "Internal error in RDB reading offset {offset} of {path} -> {what}")
    }
}

/// The reason why an RDB file was not written.
#[derive(Debug)]
pub struct RdbSaveError {
    /// The path of the file.
    pub path: Box<FixedPath>,
    /// The purpose of the file.
    pub purpose: RdbFilePurpose,
    /// The step that failed.
    pub step: SaveStep,
    /// The cause.
    pub reason: io::Error,
}

/// The purpose of an RDB file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdbFilePurpose {
    /// A dump.
    Dump,
    /// The base of an append-only file.
    AofBase,
}

/// A step of writing an RDB file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveStep {
    /// Creating the temporary file.
    Open,
    /// Writing the file.
    Write,
    /// Syncing the file to the disk.
    Sync,
    /// Renaming the file to its final path.
    Rename(Box<FixedPath>),
    /// Syncing the directory to the disk.
    SyncDirectory,
}

impl std::error::Error for RdbSaveError {}

impl Display for RdbSaveError {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let directory = self.path.directory().path().unwrap_or(Path::new("unknown")).display();
        let reason = error_text(&self.reason);
        if self.purpose == RdbFilePurpose::AofBase {
            return match &self.step {
                SaveStep::Open => write!(
                    out,
                    "Opening the temp file for AOF rewrite in rewriteAppendOnlyFile(): {reason}"
                ),
                SaveStep::Write | SaveStep::Sync => {
                    write!(out, "Write error writing append only file on disk: {reason}")
                }
                SaveStep::Rename(_) => write!(
                    out,
                    "Error moving temp append only file on the final destination: {reason}"
                ),
                SaveStep::SyncDirectory => write!(out, "Failed to fsync directory while saving DB: {reason}"),
            };
        }
        match &self.step {
            SaveStep::Open => write!(
                out,
                "Failed opening the temp RDB file {path} (in server root dir {directory}) for saving: {reason}"
            ),
            SaveStep::Write => write!(out, "Write error while saving DB to the disk(rdbSaveRio): {reason}"),
            SaveStep::Sync => write!(out, "Write error while saving DB to the disk(fsync): {reason}"),
            SaveStep::Rename(target) => write!(
                out,
                "Error moving temp DB file {path} on the final destination {} (in server root dir {directory}): {reason}",
                target.display()
            ),
            SaveStep::SyncDirectory => write!(out, "Failed to fsync directory while saving DB: {reason}"),
        }
    }
}
