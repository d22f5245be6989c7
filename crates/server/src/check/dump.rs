//! Checks an RDB file: reads it and decodes everything in it without keeping any of it.

use std::io::{Read, Write};

use weft_base::clock::unix_ms;

use super::statistics::{CountedKey, RdbStatistics};
use crate::persistence::rdb_file::{MAGIC_BYTES, RdbFault, RdbSource, is_empty_value, module_name, opcode, skip_value};
use weft_rdb::EncodingLimits;
use weft_rdb::dump_payload::{self, FOREIGN_VERSIONS, VERSION};
use weft_rdb::strings::RdbReader;

/// The first version with a checksum.
const FIRST_VERSION_WITH_CHECKSUM: u32 = 5;
/// The last type that exists in all foreign versions.
const LAST_FOREIGN_TYPE: u8 = 21;
/// The opcode of a number in module data.
const MODULE_NUMBER: usize = 2;
/// The type of a module value.
const TYPE_MODULE: u8 = 7;

/// The type names, by number.
const TYPES: [&str; 23] = [
    "string",
    "list-linked",
    "set-hashtable",
    "zset-v1",
    "hash-hashtable",
    "zset-v2",
    "module-pre-release",
    "module-value",
    "",
    "hash-zipmap",
    "list-ziplist",
    "set-intset",
    "zset-ziplist",
    "hash-ziplist",
    "quicklist",
    "stream",
    "hash-listpack",
    "zset-listpack",
    "quicklist-v2",
    "stream-v2",
    "set-listpack",
    "stream-v3",
    "hash-volatile-items",
];

/// The description of an error for the report.
struct DumpFault(String);

impl From<RdbFault> for DumpFault {
    fn from(fault: RdbFault) -> Self {
        DumpFault(match fault {
            RdbFault::UnknownType(kind) => {
                format!("Internal error in RDB reading -> Unknown RDB encoding type {kind}")
            }
            RdbFault::Damaged(what) => format!("Internal error in RDB reading -> {what}"),
            _ => "Unexpected EOF reading RDB file".to_owned(),
        })
    }
}

fn rdb_error<T>(what: impl Into<String>) -> Result<T, DumpFault> {
    Err(DumpFault(what.into()))
}

/// A check under way.
pub struct RdbCheck<'o, R> {
    source: RdbSource<R>,
    out: &'o mut dyn Write,
    /// The part being read, for error reports.
    current_step: &'static str,
    key: Option<Vec<u8>>,
    kind: Option<u8>,
    version: u32,
    limits: EncodingLimits,
    keys: u64,
    expires: u64,
    expired: u64,
    functions: u64,
    scripts: u64,
    statistics: Option<RdbStatistics>,
}

impl<'o, R: Read> RdbCheck<'o, R> {
    /// Creates a check of a file. `counts` is `true` if statistics are required.
    pub fn new(input: R, counts: bool, out: &'o mut dyn Write) -> Self {
        RdbCheck {
            source: RdbSource::new(input, true),
            out,
            current_step: "start",
            key: None,
            kind: None,
            version: 0,
            limits: EncodingLimits::default(),
            keys: 0,
            expires: 0,
            expired: 0,
            functions: 0,
            scripts: 0,
            statistics: counts.then(RdbStatistics::default),
        }
    }

    /// Reads the whole file and prints its findings. Returns `true` if the file is valid.
    pub fn run(&mut self) -> bool {
        match self.read() {
            Ok(()) => true,
            Err(DumpFault(what)) => {
                self.report(&what);
                false
            }
        }
    }

    /// Returns the statistics.
    pub fn statistics(&mut self) -> RdbStatistics {
        self.statistics.take().unwrap_or_default()
    }

    /// Returns the number of bytes read.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// Prints the result.
    pub fn print_result(&mut self, sound: bool) {
        let code = u8::from(!sound);
        self.print_with_offset(&format!("Check RDB returned error code {code} (0 means success)"));
        if sound {
            let needs_relaxed_check = self.is_foreign() || self.version > u32::from(VERSION);
            self.print_with_offset(match needs_relaxed_check {
                true => "\\o/ RDB looks OK, but loading requires config 'rdb-version-check relaxed'",
                false => "\\o/ RDB looks OK! \\o/",
            });
            self.print_counts();
        }
    }

    // Failed writes are ignored, as in any program whose reader has exited.
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }

    fn print_with_offset(&mut self, text: &str) {
        let offset = self.source.offset();
        self.line(&format!("[offset {offset}] {text}"));
    }

    fn report(&mut self, what: &str) {
        self.line("--- RDB ERROR DETECTED ---");
        self.print_with_offset(what);
        self.line(&format!("[additional info] While doing: {}", self.current_step));
        if let Some(key) = &self.key {
            let key = String::from_utf8_lossy(key).into_owned();
            self.line(&format!("[additional info] Reading key '{key}'"));
        }
        if let Some(kind) = self.kind {
            let name = TYPES.get(usize::from(kind)).copied().unwrap_or("unknown");
            self.line(&format!("[additional info] Reading type {kind} ({name})"));
        }
        self.print_counts();
    }

    fn print_counts(&mut self) {
        let (keys, expires, expired, functions) = (self.keys, self.expires, self.expired, self.functions);
        self.line(&format!("[info] {keys} keys read"));
        self.line(&format!("[info] {expires} expires"));
        self.line(&format!("[info] {expired} already expired"));
        self.line(&format!("[info] {functions} functions"));
        if self.scripts > 0 {
            self.line(&format!("[info] {} lua scripts read", self.scripts));
        }
    }

    fn read(&mut self) -> Result<(), DumpFault> {
        self.read_version()?;
        let now_ms = unix_ms() as i64;
        let (mut db, mut expire_at_ms) = (0, None);
        loop {
            self.source.begin_record();
            self.current_step = "read-type";
            match self.source.byte()? {
                opcode::EXPIRY_S => {
                    self.current_step = "read-expire";
                    let seconds = i32::from_le_bytes(self.source.array()?);
                    expire_at_ms = Some(i64::from(seconds) * 1000);
                }
                opcode::EXPIRY_MS => {
                    self.current_step = "read-expire";
                    expire_at_ms = Some(i64::from_le_bytes(self.source.array()?));
                }
                opcode::FREQUENCY => drop(self.source.byte()?),
                opcode::IDLE_TIME => drop(self.source.length()?),
                opcode::END => break,
                opcode::DATABASE => {
                    self.current_step = "read-len";
                    db = self.source.length()?;
                    self.print_with_offset(&format!("Selecting DB ID {db}"));
                }
                opcode::DATABASE_SIZE => self.skip_lengths("read-len", 2)?,
                opcode::SLOT_INFO => self.skip_lengths("read-len", 3)?,
                opcode::SLOT_IMPORT => self.skip_slot_import()?,
                opcode::AUX => self.read_aux_field()?,
                opcode::MODULE => self.read_module_aux()?,
                opcode::FUNCTION_BEFORE_RELEASE => {
                    let version = self.version;
                    return rdb_error(format!("Pre-release function format not supported {version}"));
                }
                opcode::FUNCTION => {
                    self.current_step = "read-functions";
                    self.source.string()?;
                    self.functions += 1;
                }
                kind => {
                    self.read_key(kind, db, expire_at_ms.take(), now_ms)?;
                }
            }
        }
        self.check_sum()
    }

    fn skip_lengths(&mut self, doing: &'static str, count: usize) -> Result<(), DumpFault> {
        self.current_step = doing;
        for _ in 0..count {
            self.source.length()?;
        }
        Ok(())
    }

    /// Skips a slot import: the job name and its slot ranges.
    fn skip_slot_import(&mut self) -> Result<(), DumpFault> {
        const NAME_BYTES: usize = 40;
        if self.source.string()?.len() != NAME_BYTES {
            return rdb_error("Invalid slot import job name length in RDB");
        }
        let ranges = self.source.length()?;
        for _ in 0..ranges {
            self.skip_lengths("read-type", 2)?;
        }
        Ok(())
    }

    fn read_version(&mut self) -> Result<(), DumpFault> {
        let magic: [u8; MAGIC_BYTES] = self.source.array()?;
        let (digits, shared) = match &magic {
            [b'R', b'E', b'D', b'I', b'S', digits @ ..] => (&digits[..], true),
            [b'V', b'A', b'L', b'K', b'E', b'Y', digits @ ..] => (&digits[..], false),
            _ => return rdb_error("Wrong signature trying to load DB from file"),
        };
        let digits = digits.iter().take_while(|digit| digit.is_ascii_digit());
        self.version = digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        let version = self.version;
        let last_foreign = u32::from(*FOREIGN_VERSIONS.end());
        if version == 0 || shared != (version <= last_foreign) {
            return rdb_error(format!("Can't handle RDB format version {version}"));
        }
        if version > u32::from(VERSION) {
            self.print_with_offset(&format!("Future RDB version {version} detected"));
        } else if self.is_foreign() {
            self.print_with_offset(&format!("Foreign RDB version {version} detected"));
        }
        Ok(())
    }

    fn is_foreign(&self) -> bool {
        let range = u32::from(*FOREIGN_VERSIONS.start())..=u32::from(*FOREIGN_VERSIONS.end());
        range.contains(&self.version)
    }

    fn read_aux_field(&mut self) -> Result<(), DumpFault> {
        self.current_step = "read-aux";
        let (name, text) = (self.source.string()?, self.source.string()?);
        self.scripts += u64::from(name.eq_ignore_ascii_case(b"lua"));
        let (name, text) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&text));
        self.print_with_offset(&format!("AUX FIELD {name} = '{text}'"));
        Ok(())
    }

    fn read_module_aux(&mut self) -> Result<(), DumpFault> {
        self.current_step = "read-module-aux";
        let module = self.source.length()?;
        let mark = self.source.length()?;
        self.source.length()?;
        if mark != MODULE_NUMBER {
            return rdb_error("bad when_opcode");
        }
        let name = module_name(module as u64);
        self.print_with_offset(&format!("MODULE AUX for: {name}"));
        self.skip_module_data()
    }

    /// Skips module data: a sequence of opcodes with their values, up to a zero.
    fn skip_module_data(&mut self) -> Result<(), DumpFault> {
        loop {
            match self.source.length()? {
                0 => return Ok(()),
                1 | MODULE_NUMBER => drop(self.source.length()?),
                3 => drop(self.source.take(4)?),
                4 => drop(self.source.take(8)?),
                5 => {
                    self.source.skip_string()?;
                }
                _ => {}
            }
        }
    }

    fn read_key(&mut self, kind: u8, db: usize, expire_at_ms: Option<i64>, now_ms: i64) -> Result<(), DumpFault> {
        self.check_type(kind)?;
        self.kind = Some(kind);
        self.current_step = "read-key";
        let name = self.source.string()?;
        let name_bytes = name.len();
        self.key = Some(name);
        self.keys += 1;
        self.current_step = "read-object-value";
        let expired = expire_at_ms.is_some_and(|at_ms| at_ms < now_ms);
        let found = |content| CountedKey {
            db,
            name_bytes,
            content,
            has_expiry: expire_at_ms.is_some(),
            is_expired: expired,
        };
        if kind == TYPE_MODULE {
            self.source.length()?;
            self.skip_module_data()?;
            if let Some(statistics) = &mut self.statistics {
                statistics.add(&found(None));
            }
        } else {
            let from = self.source.position();
            skip_value(&mut self.source, kind)?;
            let body = self.source.record_bytes(from..self.source.position());
            match dump_payload::parse_value(kind, &mut RdbReader::new(body), &self.limits) {
                Some(value) => {
                    if let Some(statistics) = &mut self.statistics {
                        statistics.add(&found(Some(value.content())));
                    }
                }
                None if is_empty_value(kind, body) => return Err(RdbFault::Truncated.into()),
                None => return Err(RdbFault::damaged(format!("{} integrity check failed.", type_name(kind))).into()),
            }
        }
        self.expired += u64::from(expired);
        self.expires += u64::from(expire_at_ms.is_some());
        (self.key, self.kind) = (None, None);
        Ok(())
    }

    fn check_type(&self, kind: u8) -> Result<(), DumpFault> {
        let version = self.version;
        let known = usize::from(kind) < TYPES.len() && kind != 8;
        match () {
            () if self.is_foreign() && kind > LAST_FOREIGN_TYPE => rdb_error(format!(
                "Unknown object type {kind} in RDB file with foreign version {version}"
            )),
            () if known => Ok(()),
            () if version > u32::from(VERSION) => rdb_error(format!(
                "Unknown object type {kind} in RDB file with future version {version}"
            )),
            () => rdb_error(format!("Invalid object type: {kind}")),
        }
    }

    fn check_sum(&mut self) -> Result<(), DumpFault> {
        if self.version < FIRST_VERSION_WITH_CHECKSUM {
            return Ok(());
        }
        self.current_step = "check-sum";
        let expected = self.source.checksum();
        match u64::from_le_bytes(self.source.array()?) {
            0 => self.print_with_offset("RDB file was saved with checksum disabled: no check performed."),
            found if found == expected => self.print_with_offset("Checksum OK"),
            _ => return rdb_error("RDB CRC error"),
        }
        Ok(())
    }
}

fn type_name(kind: u8) -> &'static str {
    TYPES.get(usize::from(kind)).copied().unwrap_or("unknown")
}
