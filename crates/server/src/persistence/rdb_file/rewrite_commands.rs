//! Conversion of an RDB file to commands that create the same data.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use weft_base::clock::unix_ms;

use super::error::RdbFault;
use super::reader::read_import;
use super::source::RdbSource;
use super::value_length::{skip_module_elements, skip_value};
use super::{MAGIC_BYTES, UnfinishedImport, opcode};
use crate::keyspace::encoding_limits::EncodingParameters;
use weft_config::{Config, id};
use weft_rdb::dump_payload;
use weft_rdb::rewrite_commands::write_key;
use weft_rdb::strings::RdbReader;
use weft_resp::command::write_command;

/// Writes the data of an RDB file, which this server has just written, as commands to another file, and syncs that
/// file.
///
/// # Errors
/// If reading or writing one of the files fails.
pub fn rewrite_to_commands(dump: &Path, target: &Path, config: &Config) -> io::Result<()> {
    let mut source = RdbSource::new(File::open(dump)?, false);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(target)?);
    if config.boolean(id::AOF_TIMESTAMP_ENABLED) {
        let now_s = unix_ms() / 1000;
        write!(out, "#TS:{now_s}\r\n")?;
    }
    write_commands(&mut source, &mut out, config).map_err(|error| match error {
        RdbConversionError::Read(fault) => io::Error::other(format!("{fault:?}")),
        RdbConversionError::Write(error) => error,
    })?;
    weft_os::disk::sync_all(&out.into_inner().map_err(io::IntoInnerError::into_error)?)
}

enum RdbConversionError {
    Read(RdbFault),
    Write(io::Error),
}

impl From<RdbFault> for RdbConversionError {
    fn from(fault: RdbFault) -> Self {
        RdbConversionError::Read(fault)
    }
}

impl From<io::Error> for RdbConversionError {
    fn from(error: io::Error) -> Self {
        RdbConversionError::Write(error)
    }
}

fn write_commands<R: Read>(
    source: &mut RdbSource<R>,
    out: &mut impl Write,
    config: &Config,
) -> Result<(), RdbConversionError> {
    source.take(MAGIC_BYTES)?;
    let mut command = Vec::new();
    while convert_key(source, &mut command, config)? {
        out.write_all(&command)?;
        command.clear();
    }
    Ok(())
}

/// Converts the parts of an RDB stream to commands. Each part consists of whole keys.
#[derive(Default)]
pub struct RdbToCommands {
    has_begun: bool,
}

impl RdbToCommands {
    /// Appends the commands for the next part to `out`.
    ///
    /// # Errors
    /// If the part is not what this server writes.
    pub fn convert(&mut self, part: &[u8], out: &mut Vec<u8>, config: &Config) -> io::Result<()> {
        let mut source = RdbSource::new(part, false);
        let mut convert = || -> Result<(), RdbConversionError> {
            if !std::mem::replace(&mut self.has_begun, true) {
                source.take(MAGIC_BYTES)?;
            }
            while source.offset() < part.len() as u64 && convert_key(&mut source, out, config)? {}
            Ok(())
        };
        convert().map_err(|error| match error {
            RdbConversionError::Read(fault) => io::Error::other(format!("{fault:?}")),
            RdbConversionError::Write(error) => error,
        })
    }
}

/// Appends the command with which an import begins in the append-only file. So the keys that follow are hidden, and are
/// deleted if the import does not succeed.
fn write_import(import: &UnfinishedImport, command: &mut Vec<u8>) {
    let slots = import.ranges.iter().flat_map(|(first, last)| [first, last]);
    let numbers: Vec<String> = slots.map(ToString::to_string).collect();
    let fixed: [&[u8]; 6] = [
        b"CLUSTER",
        b"SYNCSLOTS",
        b"ESTABLISH",
        b"NAME",
        &import.name,
        b"SLOTSRANGE",
    ];
    let words: Vec<&[u8]> = fixed.into_iter().chain(numbers.iter().map(String::as_bytes)).collect();
    write_command(words.into_iter(), command);
}

/// Appends the commands for the next record to `command`. A key and its attributes are one record. Returns `false` at
/// the end of the file.
fn convert_key<R: Read>(
    source: &mut RdbSource<R>,
    command: &mut Vec<u8>,
    config: &Config,
) -> Result<bool, RdbConversionError> {
    let mut expire_at_ms = 0;
    loop {
        source.begin_record();
        match source.byte()? {
            opcode::EXPIRY_MS => expire_at_ms = i64::from_le_bytes(source.array()?),
            opcode::FREQUENCY => drop(source.byte()?),
            opcode::IDLE_TIME => drop(source.length()?),
            opcode::DATABASE => {
                let db = source.length()?.to_string();
                write_command([&b"SELECT"[..], db.as_bytes()].into_iter(), command);
                return Ok(true);
            }
            opcode::DATABASE_SIZE => {
                source.length()?;
                source.length()?;
                return Ok(true);
            }
            opcode::AUX => {
                source.skip_string()?;
                source.skip_string()?;
                return Ok(true);
            }
            opcode::FUNCTION => {
                let code = source.string()?;
                write_command([&b"FUNCTION"[..], b"LOAD", &code].into_iter(), command);
                return Ok(true);
            }
            opcode::SLOT_IMPORT => {
                write_import(&read_import(source)?, command);
                return Ok(true);
            }
            opcode::COMMANDS => {
                command.extend(source.string()?);
                return Ok(true);
            }
            opcode::MODULE => {
                // Its data besides the keys has no form as commands.
                source.length()?;
                skip_module_elements(source)?;
                return Ok(true);
            }
            opcode::END => return Ok(false),
            kind => {
                let name = source.skip_string()?;
                let from = source.position();
                skip_value(source, kind)?;
                let name = source.decode_string(name)?;
                let body = source.record_bytes(from..source.position());
                let Some(value) = dump_payload::parse_value(kind, &mut RdbReader::new(body), &config.encoding_limits())
                else {
                    return Err(RdbFault::damaged(format!(
                        "a value of type {kind} in the temporary RDB file is invalid"
                    ))
                    .into());
                };
                let before = command.len();
                write_key(&name, &value, expire_at_ms, command);
                assert!(command.len() > before, "a key is created by at least one command");
                return Ok(true);
            }
        }
    }
}
