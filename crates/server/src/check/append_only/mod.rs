//! Checks append-only files: a single file, or all files of a manifest.

mod commands;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use commands::{AofItem, AofReader};

use super::dump;
use crate::persistence::aof_files::manifest::{Manifest, ManifestEntry};
use weft_base::files::error_text;
use weft_config::program_version;

/// Ends the check with exit code 1, after the reason has been printed.
struct CheckStopped;

/// The options of a check.
#[derive(Clone, Copy, Debug, Default)]
struct CheckOptions {
    /// `true` to truncate the file before the first error.
    fix: bool,
    /// The time after which commands are truncated, in seconds since the Unix epoch; 0 to truncate none.
    until_s: i64,
}

/// The result for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileOutcome {
    Valid,
    Empty,
    Truncated,
    TruncatedAtTimestamp,
}

/// Runs the check. `arguments` are those after the program name. Returns the exit code.
pub fn check(program: &str, arguments: &[OsString]) -> u8 {
    let (mut input, mut out) = (io::stdin().lock(), io::stdout().lock());
    let code = u8::from(run(program, arguments, &mut input, &mut out).is_err());
    let _ = out.flush();
    code
}

/// The maximum length of a path for the kernel.
const PATH_MAX: usize = 4096;

// Failed writes are ignored, as in any program whose reader has exited.
macro_rules! say {
    ($out:expr, $($text:tt)*) => { drop(writeln!($out, $($text)*)) };
}

fn run(
    program: &str,
    arguments: &[OsString],
    input: &mut dyn BufRead,
    out: &mut dyn Write,
) -> Result<(), CheckStopped> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let mut wishes = CheckOptions::default();
    let path = match words.as_slice() {
        ["-v" | "--version"] => {
            say!(out, "valkey-check-aof {}", program_version());
            return Ok(());
        }
        [_] => &arguments[0],
        ["--fix", _] => {
            wishes.fix = true;
            &arguments[1]
        }
        ["--truncate-to-timestamp", time, _] => {
            let Ok(time) = time.parse() else {
                say!(out, "Invalid timestamp, aborting...");
                return Err(CheckStopped);
            };
            wishes.until_s = time;
            &arguments[2]
        }
        _ => return Err(print_usage(program, out)),
    };
    if path.len() > PATH_MAX {
        say!(out, "Error: filepath is too long (exceeds PATH_MAX)");
        return Err(print_usage(program, out));
    }
    let mut check = Check {
        wishes,
        commands: AofReader::new(),
        input,
        out,
    };
    let path = Path::new(path);
    if check.is_manifest(path)? {
        check.check_manifest_files(path)
    } else {
        let is_dump = check.is_dump(path)?;
        say!(check.out, "Start checking Old-Style AOF");
        let name = path.display().to_string();
        let outcome = check.check_file(&name, path, true, is_dump)?;
        check.print_outcome(outcome, &name, "AOF");
        Ok(())
    }
}

fn print_usage(program: &str, out: &mut dyn Write) -> CheckStopped {
    say!(
        out,
        "Usage: {program} [--fix|--truncate-to-timestamp $timestamp] <file.manifest|file.aof>"
    );
    CheckStopped
}

struct Check<'s> {
    wishes: CheckOptions,
    commands: AofReader,
    input: &'s mut dyn BufRead,
    out: &'s mut dyn Write,
}

impl Check<'_> {
    fn open(&mut self, path: &Path) -> Result<File, CheckStopped> {
        File::open(path).map_err(|error| {
            let reason = error_text(&error);
            say!(self.out, "Cannot open file {}: {reason}", path.display());
            CheckStopped
        })
    }

    /// Returns `true` if the first line that is not a comment begins with `file`.
    fn is_manifest(&mut self, path: &Path) -> Result<bool, CheckStopped> {
        let mut lines = io::BufReader::new(self.open(path)?).split(b'\n');
        let first = lines.find(|line| line.as_ref().map_or(true, |line| line.first() != Some(&b'#')));
        match first.transpose() {
            Ok(line) => Ok(line.is_some_and(|line| line.starts_with(b"file"))),
            Err(_) => {
                say!(self.out, "Cannot read file: {}", path.display());
                Err(CheckStopped)
            }
        }
    }

    fn is_dump(&mut self, path: &Path) -> Result<bool, CheckStopped> {
        let mut magic = [0; 8];
        let mut file = self.open(path)?;
        Ok(file.read_exact(&mut magic).is_ok() && (magic.starts_with(b"REDIS") || magic.starts_with(b"VALKEY")))
    }

    fn print_outcome(&mut self, outcome: FileOutcome, name: &str, kind: &str) {
        let until_s = self.wishes.until_s;
        match outcome {
            FileOutcome::Valid => say!(self.out, "{kind} {name} is valid"),
            FileOutcome::Empty => say!(self.out, "{kind} {name} is empty"),
            FileOutcome::Truncated => say!(self.out, "Successfully truncated AOF {name}"),
            FileOutcome::TruncatedAtTimestamp => {
                say!(self.out, "Successfully truncated AOF {name} to timestamp {until_s}")
            }
        }
    }

    fn read_manifest(&mut self, path: &Path) -> Result<Manifest, CheckStopped> {
        let text = std::fs::read(path).map_err(|error| {
            let (path, reason) = (path.display(), error_text(&error));
            say!(
                self.out,
                "Fatal error: can't open the AOF manifest file {path} for reading: {reason}"
            );
            CheckStopped
        })?;
        Manifest::parse(&text).map_err(|error| {
            say!(self.out, "*** FATAL AOF MANIFEST FILE ERROR ***");
            if let Some((number, line)) = &error.line {
                say!(self.out, "Reading the manifest file, at line {number}");
                say!(self.out, ">>> '{line}'");
            }
            say!(self.out, "{}", error.reason);
            CheckStopped
        })
    }

    /// Checks all files of a manifest. Only the last one may be truncated, apart from empty increments behind it: the
    /// server loads such files, too.
    fn check_manifest_files(&mut self, manifest_path: &Path) -> Result<(), CheckStopped> {
        say!(self.out, "Start checking Multi Part AOF");
        let manifest = self.read_manifest(manifest_path)?;
        let directory = match manifest_path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let path = |part: &ManifestEntry| -> PathBuf { directory.join(&part.name) };
        let is_empty = |part: &ManifestEntry| std::fs::metadata(path(part)).is_ok_and(|metadata| metadata.len() == 0);
        if let Some(base) = &manifest.base {
            let is_dump = self.is_dump(&path(base))?;
            let format = if is_dump { "RDB" } else { "RESP" };
            say!(self.out, "Start to check BASE AOF ({format} format).");
            let is_last = manifest.increments.iter().all(is_empty);
            let outcome = self.check_file(&base.name, &path(base), is_last, is_dump)?;
            self.print_outcome(outcome, &base.name, "BASE AOF");
        }
        if !manifest.increments.is_empty() {
            say!(self.out, "Start to check INCR files.");
            for (index, part) in manifest.increments.iter().enumerate() {
                let is_last = manifest.increments[index + 1..].iter().all(is_empty);
                let outcome = self.check_file(&part.name, &path(part), is_last, false)?;
                self.print_outcome(outcome, &part.name, "INCR AOF");
            }
        }
        say!(self.out, "All AOF files and manifest are valid");
        Ok(())
    }

    fn check_file(
        &mut self,
        name: &str,
        path: &Path,
        is_last: bool,
        is_dump: bool,
    ) -> Result<FileOutcome, CheckStopped> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let mut file = opened.map_err(|error| {
            let (path, reason) = (path.display(), error_text(&error));
            say!(self.out, "Cannot open file {path}: {reason}, aborting...");
            CheckStopped
        })?;
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        if size == 0 {
            return Ok(FileOutcome::Empty);
        }
        let start = if is_dump { self.check_preamble(path, &file)? } else { 0 };
        file.seek(SeekFrom::Start(start)).map_err(|error| {
            say!(self.out, "Failed to fseek in AOF {name}: {}", error_text(&error));
            CheckStopped
        })?;
        self.commands.open(&file, start);
        if let Some(at) = self.read_commands(name, path)? {
            return self.truncate_at_timestamp(&file, name, path, is_last, at);
        }
        let sound_bytes = self.commands.valid_bytes();
        self.finish_file(&file, name, is_last, size, sound_bytes)
    }

    /// Checks the RDB preamble. Returns the offset of its end.
    fn check_preamble(&mut self, path: &Path, file: &File) -> Result<u64, CheckStopped> {
        say!(self.out, "[offset 0] Checking RDB file {}", path.display());
        let mut check = dump::RdbCheck::new(file, false, self.out);
        let sound = check.run();
        check.print_result(sound);
        let end = check.offset();
        if !sound {
            say!(self.out, "RDB preamble of AOF file is not sane, aborting.");
            return Err(CheckStopped);
        }
        say!(self.out, "RDB preamble is OK, proceeding with AOF tail...");
        Ok(end)
    }

    /// Reads commands up to the end or the first error. Returns the offset of the first timestamp after the requested
    /// time, if there is one.
    fn read_commands(&mut self, name: &str, path: &Path) -> Result<Option<u64>, CheckStopped> {
        loop {
            match self.commands.next_item(&path.display().to_string()) {
                AofItem::More => {}
                AofItem::End => return Ok(None),
                AofItem::Unknown => {
                    say!(self.out, "AOF {name} format error");
                    return Ok(None);
                }
                AofItem::Unreadable => {
                    say!(self.out, "Failed to read from AOF {name}, aborting...");
                    return Err(CheckStopped);
                }
                AofItem::Timestamp { at, text } if self.wishes.until_s != 0 => {
                    let digits = text
                        .strip_suffix(b"\r\n")
                        .and_then(|digits| std::str::from_utf8(digits).ok());
                    let Some(time) = digits.and_then(|digits| digits.parse::<i64>().ok()) else {
                        say!(self.out, "Invalid timestamp annotation");
                        return Err(CheckStopped);
                    };
                    if time > self.wishes.until_s {
                        return Ok(Some(at));
                    }
                }
                AofItem::Timestamp { .. } => {}
            }
        }
    }

    fn truncate_at_timestamp(
        &mut self,
        file: &File,
        name: &str,
        path: &Path,
        is_last: bool,
        at: u64,
    ) -> Result<FileOutcome, CheckStopped> {
        let (until_s, path) = (self.wishes.until_s, path.display());
        if at == 0 {
            say!(
                self.out,
                "AOF {path} has nothing before timestamp {until_s}, aborting..."
            );
            return Err(CheckStopped);
        }
        if !is_last {
            say!(
                self.out,
                "Failed to truncate AOF {path} to timestamp {until_s} to offset {at} because it is not the last file."
            );
            say!(
                self.out,
                "If you insist, please delete all files after this file according to the manifest file and delete the \
                 corresponding records in manifest file manually. Then re-run valkey-check-aof."
            );
            return Err(CheckStopped);
        }
        if file.set_len(at).is_err() {
            say!(self.out, "Failed to truncate AOF {name} to timestamp {until_s}");
            return Err(CheckStopped);
        }
        Ok(FileOutcome::TruncatedAtTimestamp)
    }

    fn finish_file(
        &mut self,
        file: &File,
        name: &str,
        is_last: bool,
        size: u64,
        sound_bytes: u64,
    ) -> Result<FileOutcome, CheckStopped> {
        if let Some(what) = self.commands.error_text() {
            say!(self.out, "{what}");
        }
        let left = size.saturating_sub(sound_bytes);
        let until_s = self.wishes.until_s;
        if left == 0 && until_s != 0 {
            say!(self.out, "Truncate nothing in AOF {name} to timestamp {until_s}");
            return Ok(FileOutcome::Valid);
        }
        let line = self.commands.line();
        say!(
            self.out,
            "AOF analyzed: filename={name}, size={size}, ok_up_to={sound_bytes}, ok_up_to_line={line}, diff={left}"
        );
        if left == 0 {
            return Ok(FileOutcome::Valid);
        }
        if !self.wishes.fix {
            say!(
                self.out,
                "AOF {name} is not valid. Use the --fix option to try fixing it."
            );
            return Err(CheckStopped);
        }
        if !is_last {
            say!(
                self.out,
                "Failed to truncate AOF {name} because it is not the last file"
            );
            return Err(CheckStopped);
        }
        say!(
            self.out,
            "This will shrink the AOF {name} from {size} bytes, with {left} bytes, to {sound_bytes} bytes"
        );
        if !self.is_confirmed() {
            say!(self.out, "Aborting...");
            return Err(CheckStopped);
        }
        if file.set_len(sound_bytes).is_err() {
            say!(self.out, "Failed to truncate AOF {name}");
            return Err(CheckStopped);
        }
        Ok(FileOutcome::Truncated)
    }

    fn is_confirmed(&mut self) -> bool {
        let _ = write!(self.out, "Continue? [y/N]: ");
        let _ = self.out.flush();
        let mut answer = Vec::new();
        let read = self.input.read_until(b'\n', &mut answer);
        read.is_ok() && matches!(answer.first(), Some(b'y' | b'Y'))
    }
}
