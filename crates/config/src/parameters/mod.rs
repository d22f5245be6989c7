//! The table of configuration parameters: name, kind, range, default and flags of each, declared once.
//!
//! The rest of `config` is derived from this table: CONFIG GET and SET, the configuration file, the command line,
//! CONFIG REWRITE, `weft.conf` and the list of parameters without effect in `docs/compat.md`.
//!
//! Each topic is a file below `parameters/`. It declares its parameters in the order of `weft.conf`:
//!
//! ```text
//! PORT "port" = integer(6379, 0, 65535).on_change(&[Listen]),     constant, name, kind, flags, actions
//!     Active, "TCP port; 0 listens on no TCP port.";              effect, summary
//! ```
//!
//! [`table!`] turns a topic into a slice and into one [`ParameterId`] constant per parameter. The slices are joined at
//! compile time, so an id is an index and a misspelt name does not compile.

mod cluster;
mod encodings;
mod logging;
mod memory;
mod network;
mod observing;
mod persistence;
mod process;
mod replication;
mod retired;
mod security;
mod tls;

use std::net::{Ipv4Addr, Ipv6Addr};

/// The values of an enumeration: the name that a user writes and the number that represents it.
pub type Choices = &'static [(&'static str, i64)];

const I32_MAX: i64 = i32::MAX as i64;
const I32_MIN: i64 = i32::MIN as i64;
const U32_MAX: i64 = u32::MAX as i64;
/// The bits of `u64::MAX`. Bounds of unsigned parameters are compared as unsigned numbers.
const U64_MAX: i64 = -1;
const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;

/// A configuration parameter.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The name, in lower case.
    pub name: &'static str,
    /// An older name of the same parameter.
    pub alias: Option<&'static str>,
    /// The form of its values.
    pub kind: ParameterKind,
    /// The restrictions on reading and changing it.
    pub flags: ParameterFlags,
    /// The effect that it has on the server.
    pub effect: ParameterEffect,
    /// The actions of the server on a change of the value. The server reads all other values where they matter.
    pub on_change: &'static [ChangeAction],
    /// A one-sentence description.
    pub summary: &'static str,
}

/// The effect of a parameter on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterEffect {
    /// The server acts on the value.
    Active,
    /// The value is checked, kept and shown, but has no effect so far.
    NotImplemented,
    /// A parameter of older versions: the value is checked, kept and shown on request, and will never have an effect.
    Retired,
}

/// An action of the server on a change of a parameter. If several parameters change together, each of their actions is
/// performed once, in the order of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeAction {
    /// Applies the level and the format of the log.
    ConfigureLog,
    /// Switches crash reports on or off.
    SetCrashReports,
    /// Offers the insecure functions to scripts, or no longer does.
    SetScriptFunctions,
    /// Publishes other classes of keyspace events.
    SetKeyspaceEvents,
    /// Changes the order of strings in SORT ALPHA.
    SetCollation,
    /// Raises the limit of open files.
    RaiseOpenFileLimit,
    /// Adjusts the kernel's out-of-memory score.
    AdjustOomScore,
    /// Compares the number of up-to-date replicas with the required one.
    CountReplicas,
    /// Begins or ends the expiry of keys that clients of this replica have written.
    SetLocalExpiry,
    /// Trims the replication backlog.
    ResizeBacklog,
    /// Passes the parameters of the append-only file to the thread that writes it.
    ConfigureAof,
    /// Switches the append-only file on or off.
    SwitchAof,
    /// Logs a warning if memory usage is above the new limit.
    CheckMemoryLimit,
    /// Evicts keys until memory usage is below the new limit.
    Evict,
    /// Counts the memory of all clients again.
    RecountClients,
    /// Reads the TLS files again, if TLS is in use.
    ReloadTls,
    /// Reads the TLS files, if they were not read before.
    EnableTls,
    /// Listens on the new addresses and ports.
    Listen,
    /// Starts or stops the metrics endpoint, or moves it to other addresses.
    ListenForMetrics,
    /// Changes the title of the process.
    SetProcessTitle,
    /// Wakes the workers, which move connections at the new interval.
    WakeWorkers,
    /// Logs a notice if there are fewer workers than wanted. The self-tuning applies a lower number.
    LimitWorkers,
    /// Switches the import mode on or off.
    SetImportMode,
    /// Changes the password of the default user. This comes last: if another action fails, it is not performed, and the
    /// user has the rules that ACL SETUSER or the ACL file gave it.
    SetDefaultPassword,
}

/// Words of a parameter that exclude each other.
#[derive(Clone, Copy, Debug)]
pub struct ConflictingChoices {
    /// The bits of these words.
    pub bits: i64,
    /// The reason, as the error reply states it.
    pub reason: &'static str,
}

/// The form of a parameter's values.
#[derive(Clone, Copy, Debug)]
pub enum ParameterKind {
    /// `yes` or `no`.
    Bool {
        /// The default value.
        default: bool,
    },
    /// One of a few words. With [`ParameterFlags::MULTI_ARG`], several words whose numbers are combined with a bitwise
    /// OR.
    Enum {
        /// The words.
        choices: Choices,
        /// The number of the default value.
        default: i64,
        /// A combination of words that is refused.
        conflict: Option<ConflictingChoices>,
    },
    /// A number.
    Integer {
        /// The default value.
        default: i64,
        /// The minimum value.
        min: i64,
        /// The maximum value.
        max: i64,
        /// The notation of the number.
        unit: NumberNotation,
        /// `true` to compare the value and the bounds as unsigned 64-bit numbers.
        unsigned: bool,
        /// The adjustment of an accepted value before it is stored.
        adjust: Adjustment,
    },
    /// A string.
    Text {
        /// The default value.
        default: &'static str,
        /// `true` if an empty string means "not set". Such a parameter is left out of a rewritten file.
        optional: bool,
        /// `true` if the value may contain zero bytes. Other values end at the first one.
        binary: bool,
        /// The check of the string.
        check: TextCheck,
    },
    /// A value with its own structure.
    Special(SpecialKind),
}

/// The notation of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberNotation {
    /// Decimal digits.
    Plain,
    /// Bytes, with an optional unit (`k` 1000, `kb` 1024, ...).
    Memory,
    /// Bytes as above, or a negative number.
    SignedMemory,
    /// Bytes as above, or `n%`, which is stored as `-n`.
    MemoryOrPercent,
    /// Octal digits.
    Octal,
}

/// The adjustment of an accepted number before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// None.
    None,
    /// Clamped to this range.
    Clamp(i64, i64),
    /// Zero is accepted although it is below the range. It becomes the number of CPUs that this process may use.
    ZeroIsAutomatic,
}

/// The check of a string parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCheck {
    /// All strings are accepted.
    Any,
    /// The string must not be empty.
    NotEmpty,
    /// A file name without a directory.
    FileName,
    /// A directory name without a parent.
    DirectoryName,
    /// An IPv4 address or an empty string.
    Ipv4,
    /// An IPv6 address or an empty string.
    Ipv6,
    /// A hostname of letters, digits, hyphens and dots, shorter than 256 bytes.
    HostName,
    /// A name that may appear in the cluster configuration file.
    NodeName,
    /// An address that may appear in the cluster configuration file.
    AnnouncedAddress,
    /// A template for the process title.
    TitleTemplate,
    /// At most 256 bytes.
    HashSeed,
}

/// The kinds of values that only one or two parameters have.
#[derive(Clone, Copy, Debug)]
pub enum SpecialKind {
    /// `dir`: the working directory of the process.
    Directory,
    /// `save`: pairs of seconds and changes.
    SavePoints,
    /// `client-output-buffer-limit`: the limits per client class.
    OutputBufferLimits,
    /// `oom-score-adj-values`: three numbers.
    OomScoreAdjustments,
    /// `notify-keyspace-events`: letters, stored as a number.
    KeyspaceEvents,
    /// `bind` and `rdma-bind`: addresses, with their defaults.
    Addresses(&'static [&'static str]),
    /// `replicaof`: the host and port of the primary.
    Primary,
    /// `latency-tracking-info-percentiles`: numbers between 0 and 100.
    Percentiles,
}

bitflags::bitflags! {
    /// The restrictions on reading and changing a parameter, as a set of bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ParameterFlags: u16 {
        /// Only the file and the command line can set it.
        const IMMUTABLE = 1;
        /// A secret, whose value must not be logged.
        const SENSITIVE = 1 << 1;
        /// Shown in crash reports.
        const SHOW_IN_CRASH_REPORT = 1 << 2;
        /// Takes several arguments.
        const MULTI_ARG = 1 << 3;
        /// CONFIG GET shows it only under its exact name.
        const HIDDEN = 1 << 4;
        /// CONFIG SET requires `enable-protected-configs`.
        const PROTECTED = 1 << 5;
        /// CONFIG SET is refused while data is being loaded.
        const DENY_LOADING = 1 << 6;
        /// Refers to something outside, such as a file. Setting the same value again counts as a change.
        const ALWAYS_CHANGED = 1 << 7;
        /// `weft.conf` shows it although it is hidden: a parameter for administrators that Valkey does not have.
        const DOCUMENTED = 1 << 8;
    }
}

/// The id of a parameter: its index in [`PARAMETERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(u16);

impl ParameterId {
    /// Returns the index in [`PARAMETERS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the table entry of this parameter.
    pub fn parameter(self) -> &'static Parameter {
        &PARAMETERS[self.index()]
    }

    /// Returns `true` if only older versions had this parameter, so that it has no effect.
    pub fn is_retired(self) -> bool {
        self.parameter().effect == ParameterEffect::Retired
    }

    /// Returns all parameters in the order of the table.
    pub fn all() -> impl Iterator<Item = ParameterId> {
        (0..PARAMETERS.len() as u16).map(ParameterId)
    }

    /// Returns the parameter with this exact name. Evaluated at compile time.
    const fn by_name(name: &str) -> ParameterId {
        let (mut place, mut topic) = (0, 0);
        while topic < TOPICS.len() {
            let parameters = TOPICS[topic].parameters;
            let mut index = 0;
            while index < parameters.len() {
                if same_text(parameters[index].name, name) {
                    return ParameterId(place);
                }
                place += 1;
                index += 1;
            }
            topic += 1;
        }
        panic!("no topic declares this parameter")
    }
}

/// A parameter under one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedParameter {
    /// The parameter.
    pub id: ParameterId,
    /// The name or alias, in lower case.
    pub name: &'static str,
}

/// Finds a parameter by its name or alias, ignoring case.
pub fn find(name: &[u8]) -> Option<NamedParameter> {
    names().find(|named| named.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns all names: each parameter's own name, then its alias.
pub fn names() -> impl Iterator<Item = NamedParameter> {
    ParameterId::all().flat_map(|id| {
        let parameter = id.parameter();
        std::iter::once(parameter.name)
            .chain(parameter.alias)
            .map(move |name| NamedParameter { id, name })
    })
}

/// A group of parameters under a heading.
#[derive(Clone, Copy, Debug)]
pub struct ParameterGroup {
    /// The heading.
    pub title: &'static str,
    /// The parameters.
    pub parameters: &'static [Parameter],
}

/// All topics, in the order of `weft.conf`.
pub const TOPICS: &[ParameterGroup] = &[
    ParameterGroup {
        title: "Listening and connections",
        parameters: network::TABLE,
    },
    ParameterGroup {
        title: "The process",
        parameters: process::TABLE,
    },
    ParameterGroup {
        title: "Log",
        parameters: logging::TABLE,
    },
    ParameterGroup {
        title: "Access control",
        parameters: security::TABLE,
    },
    ParameterGroup {
        title: "Memory",
        parameters: memory::TABLE,
    },
    ParameterGroup {
        title: "Compact encodings",
        parameters: encodings::TABLE,
    },
    ParameterGroup {
        title: "Dumps and append-only file",
        parameters: persistence::TABLE,
    },
    ParameterGroup {
        title: "Replication",
        parameters: replication::TABLE,
    },
    ParameterGroup {
        title: "Cluster",
        parameters: cluster::TABLE,
    },
    ParameterGroup {
        title: "Monitoring",
        parameters: observing::TABLE,
    },
    ParameterGroup {
        title: "TLS",
        parameters: tls::TABLE,
    },
    ParameterGroup {
        title: "Retired",
        parameters: retired::TABLE,
    },
];

/// The number of parameters.
pub const COUNT: usize = count();

const fn count() -> usize {
    let mut count = 0;
    let mut topic = 0;
    while topic < TOPICS.len() {
        count += TOPICS[topic].parameters.len();
        topic += 1;
    }
    count
}

const fn join_topics() -> [Parameter; COUNT] {
    let mut joined = [TOPICS[0].parameters[0]; COUNT];
    let (mut place, mut topic) = (0, 0);
    while topic < TOPICS.len() {
        let parameters = TOPICS[topic].parameters;
        let mut index = 0;
        while index < parameters.len() {
            joined[place] = parameters[index];
            place += 1;
            index += 1;
        }
        topic += 1;
    }
    joined
}

/// All parameters, topic by topic. A [`ParameterId`] is an index into this table.
pub static PARAMETERS: [Parameter; COUNT] = join_topics();

/// One constant per parameter: `id::TIMEOUT` is `timeout`.
pub mod id {
    pub use super::cluster::id::*;
    pub use super::encodings::id::{HASH_MAX_LISTPACK_ENTRIES, HASH_MAX_LISTPACK_VALUE, HLL_SPARSE_MAX_BYTES};
    pub use super::encodings::id::{LIST_COMPRESS_DEPTH, LIST_MAX_LISTPACK_SIZE};
    pub use super::encodings::id::{SET_MAX_INTSET_ENTRIES, SET_MAX_LISTPACK_ENTRIES, SET_MAX_LISTPACK_VALUE};
    pub use super::encodings::id::{STREAM_NODE_MAX_BYTES, STREAM_NODE_MAX_ENTRIES};
    pub use super::encodings::id::{ZSET_MAX_LISTPACK_ENTRIES, ZSET_MAX_LISTPACK_VALUE};
    pub use super::logging::id::*;
    pub use super::memory::id::*;
    pub use super::network::id::*;
    pub use super::observing::id::*;
    pub use super::persistence::id::*;
    pub use super::process::id::*;
    pub use super::replication::id::*;
    pub use super::security::id::*;
    pub use super::tls::id::*;
}

/// Turns the declarations of a topic into `TABLE` and the module `id`.
macro_rules! table {
    ($($constant:ident $name:literal = $declaration:expr, $effect:ident, $summary:literal;)+) => {
        /// The parameters of this topic.
        pub(super) const TABLE: &[super::Parameter] = &[
            $($declaration.with_name($name, super::ParameterEffect::$effect, $summary),)+
        ];

        // Uses every id, so a topic that is missing in [`TOPICS`] does not compile.
        const _: () = assert!($(id::$constant.index() < super::COUNT)&&+);

        /// The ids of these parameters.
        pub mod id {
            use crate::parameters::ParameterId;
            $(
                #[doc = concat!("`", $name, "`: ", $summary)]
                pub const $constant: ParameterId = ParameterId::by_name($name);
            )+
        }
    };
}
use table;

/// A parameter without its name, as built by the declarations of the topics.
#[derive(Clone, Copy)]
struct Declaration {
    kind: ParameterKind,
    flags: ParameterFlags,
    alias: Option<&'static str>,
    on_change: &'static [ChangeAction],
}

impl Declaration {
    const fn new(kind: ParameterKind) -> Declaration {
        Declaration {
            kind,
            flags: ParameterFlags::empty(),
            alias: None,
            on_change: &[],
        }
    }

    const fn with_name(self, name: &'static str, effect: ParameterEffect, summary: &'static str) -> Parameter {
        Parameter {
            name,
            alias: self.alias,
            kind: self.kind,
            flags: self.flags,
            effect,
            on_change: self.on_change,
            summary,
        }
    }

    const fn on_change(mut self, actions: &'static [ChangeAction]) -> Declaration {
        self.on_change = actions;
        self
    }

    const fn alias(mut self, alias: &'static str) -> Declaration {
        self.alias = Some(alias);
        self
    }

    const fn flagged(mut self, flag: ParameterFlags) -> Declaration {
        self.flags = self.flags.union(flag);
        self
    }

    const fn immutable(self) -> Declaration {
        self.flagged(ParameterFlags::IMMUTABLE)
    }

    const fn sensitive(self) -> Declaration {
        self.flagged(ParameterFlags::SENSITIVE)
    }

    const fn debug(self) -> Declaration {
        self.flagged(ParameterFlags::SHOW_IN_CRASH_REPORT)
    }

    const fn multi_arg(self) -> Declaration {
        self.flagged(ParameterFlags::MULTI_ARG)
    }

    const fn hidden(self) -> Declaration {
        self.flagged(ParameterFlags::HIDDEN)
    }

    const fn documented(self) -> Declaration {
        self.flagged(ParameterFlags::DOCUMENTED)
    }

    const fn protected(self) -> Declaration {
        self.flagged(ParameterFlags::PROTECTED)
    }

    const fn deny_loading(self) -> Declaration {
        self.flagged(ParameterFlags::DENY_LOADING)
    }

    const fn volatile(self) -> Declaration {
        self.flagged(ParameterFlags::ALWAYS_CHANGED)
    }

    const fn unsigned(mut self) -> Declaration {
        if let ParameterKind::Integer { unsigned, .. } = &mut self.kind {
            *unsigned = true;
        }
        self
    }

    const fn adjusted(mut self, how: Adjustment) -> Declaration {
        if let ParameterKind::Integer { adjust, .. } = &mut self.kind {
            *adjust = how;
        }
        self
    }

    const fn clamped(self, min: i64, max: i64) -> Declaration {
        self.adjusted(Adjustment::Clamp(min, max))
    }

    const fn zero_is_automatic(self) -> Declaration {
        self.adjusted(Adjustment::ZeroIsAutomatic)
    }

    const fn conflicting(mut self, choices: ConflictingChoices) -> Declaration {
        if let ParameterKind::Enum { conflict, .. } = &mut self.kind {
            *conflict = Some(choices);
        }
        self
    }

    const fn checked(mut self, with: TextCheck) -> Declaration {
        if let ParameterKind::Text { check, .. } = &mut self.kind {
            *check = with;
        }
        self
    }
}

const fn boolean(default: bool) -> Declaration {
    Declaration::new(ParameterKind::Bool { default })
}

const fn choice(choices: Choices, default: &str) -> Declaration {
    let mut index = 0;
    while index < choices.len() {
        if same_text(choices[index].0, default) {
            return Declaration::new(ParameterKind::Enum {
                choices,
                default: choices[index].1,
                conflict: None,
            });
        }
        index += 1;
    }
    panic!("the default is none of the choices")
}

const fn number(default: i64, min: i64, max: i64, unit: NumberNotation) -> Declaration {
    Declaration::new(ParameterKind::Integer {
        default,
        min,
        max,
        unit,
        unsigned: false,
        adjust: Adjustment::None,
    })
}

const fn integer(default: i64, min: i64, max: i64) -> Declaration {
    number(default, min, max, NumberNotation::Plain)
}

const fn memory(default: i64, min: i64, max: i64) -> Declaration {
    number(default, min, max, NumberNotation::Memory)
}

const fn signed_memory(default: i64, min: i64, max: i64) -> Declaration {
    number(default, min, max, NumberNotation::SignedMemory)
}

const fn memory_or_percent(default: i64, min: i64, max: i64) -> Declaration {
    number(default, min, max, NumberNotation::MemoryOrPercent)
}

const fn octal(default: i64, min: i64, max: i64) -> Declaration {
    number(default, min, max, NumberNotation::Octal)
}

const fn string(default: &'static str, optional: bool, binary: bool) -> Declaration {
    Declaration::new(ParameterKind::Text {
        default,
        optional,
        binary,
        check: TextCheck::Any,
    })
}

const fn text(default: &'static str) -> Declaration {
    string(default, false, false)
}

const fn optional_text() -> Declaration {
    string("", true, false)
}

const fn bytes(default: &'static str) -> Declaration {
    string(default, false, true)
}

const fn optional_bytes() -> Declaration {
    string("", true, true)
}

const fn special(special: SpecialKind) -> Declaration {
    Declaration::new(ParameterKind::Special(special))
}

const fn same_text(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

impl TextCheck {
    /// Returns the reason for which `value` is invalid for the parameter `name`, or `None` if it is valid.
    pub fn validation_error(self, name: &str, value: &[u8]) -> Option<String> {
        match self {
            TextCheck::Any => None,
            TextCheck::NotEmpty => empty_refusal(name, value),
            TextCheck::FileName => empty_refusal(name, value).or_else(|| path_refusal(name, value, "filename")),
            TextCheck::DirectoryName => empty_refusal(name, value).or_else(|| path_refusal(name, value, "dirname")),
            TextCheck::Ipv4 => address_refusal::<Ipv4Addr>(value, "Invalid IPv4 address"),
            TextCheck::Ipv6 => address_refusal::<Ipv6Addr>(value, "Invalid IPv6 address"),
            TextCheck::HostName => host_name_refusal(value),
            TextCheck::NodeName => (!value.iter().all(|&byte| fits_nodes_file(byte)))
                .then(|| "Announced human node name contained invalid character".into()),
            TextCheck::AnnouncedAddress => announced_address_refusal(name, value),
            TextCheck::TitleTemplate => (!super::title::is_valid(value))
                .then(|| "template format is invalid or contains unknown variables".into()),
            TextCheck::HashSeed => {
                (value.len() > 256).then(|| "hash-seed must be less than or equal to 256 characters".into())
            }
        }
    }
}

fn empty_refusal(name: &str, value: &[u8]) -> Option<String> {
    value.is_empty().then(|| format!("{name} can't be empty"))
}

fn path_refusal(name: &str, value: &[u8], what: &str) -> Option<String> {
    value
        .iter()
        .any(|byte| matches!(byte, b'/' | b'\\'))
        .then(|| format!("{name} can't be a path, just a {what}"))
}

fn address_refusal<Address: std::str::FromStr>(value: &[u8], reason: &str) -> Option<String> {
    let parses = str::from_utf8(value).is_ok_and(|text| text.parse::<Address>().is_ok());
    (!value.is_empty() && !parses).then(|| reason.into())
}

fn host_name_refusal(value: &[u8]) -> Option<String> {
    if value.len() >= 256 {
        return Some("Hostnames must be less than 256 characters".into());
    }
    (!value
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')))
    .then(|| "Hostnames may only contain alphanumeric characters, hyphens or dots".into())
}

/// The maximum length of a textual IPv6 address in bytes.
const MAX_ADDRESS_BYTES: usize = 45;

fn announced_address_refusal(name: &str, value: &[u8]) -> Option<String> {
    if value.len() > MAX_ADDRESS_BYTES {
        return Some(format!("{name} is too long"));
    }
    (!value.iter().all(|&byte| fits_nodes_file(byte))).then(|| format!("{name} contains invalid character"))
}

/// Returns `true` if a byte may appear in a field of the cluster configuration file, whose separators are punctuation.
fn fits_nodes_file(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii() || matches!(byte, b'-' | b'.' | b'/' | b':' | b'_' | b'`')
}
