//! `Config`: the values of all parameters, shared by all threads, and CONFIG GET.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::file::Directive;
use super::glob;
use super::parameters::{self, COUNT, Flags, Kind, NamedParameter, ParameterId, id};
use super::specials::{self, OomScoreAdjustments, OutputBufferLimits, Primary, SavePoint};
use super::value::Value;

/// The values of all parameters.
///
/// Reading a number is one relaxed load. Values that belong together may be seen half changed for a moment; nothing
/// but the value itself is published by a load, so no ordering is needed.
#[derive(Debug)]
pub struct Config {
    numbers: [AtomicI64; COUNT],
    /// What is no number; a number's place holds nothing.
    others: RwLock<Box<[Option<Value>]>>,
    generation: AtomicU64,
    /// Held while values change or the file is rewritten, so that these happen one after the other.
    pub(super) changing: Mutex<()>,
    pub(super) origin: Origin,
}

/// What the file and the command line said beyond parameters.
#[derive(Debug, Default)]
pub(super) struct Origin {
    pub(super) file: Option<PathBuf>,
    pub(super) users: Vec<Directive>,
    pub(super) renamed_commands: Vec<Directive>,
}

impl Config {
    /// Every parameter at its default.
    pub fn defaults() -> Config {
        let values: Vec<Value> = ParameterId::all().map(|id| id.parameter().default_value()).collect();
        Config::new(&values, Origin::default())
    }

    /// # Panics
    /// Unless there is one value per parameter, in the order of the table.
    pub(super) fn new(values: &[Value], origin: Origin) -> Config {
        assert_eq!(values.len(), COUNT, "one value per parameter");
        let config = Config {
            numbers: std::array::from_fn(|_| AtomicI64::new(0)),
            others: RwLock::new(vec![None; COUNT].into()),
            generation: AtomicU64::new(0),
            changing: Mutex::new(()),
            origin,
        };
        for (id, value) in ParameterId::all().zip(values) {
            config.store(id, value.clone());
        }
        config
    }

    /// The same values, which nobody changes any more, and no file.
    pub fn frozen(&self) -> Config {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        Config {
            numbers: std::array::from_fn(|index| AtomicI64::new(self.numbers[index].load(Ordering::Relaxed))),
            others: RwLock::new(others),
            generation: AtomicU64::new(0),
            changing: Mutex::new(()),
            origin: Origin::default(),
        }
    }

    /// The number of an integer (plain, memory, octal), an enumeration, a boolean or `notify-keyspace-events`.
    /// Percentages are negative.
    pub fn integer(&self, id: ParameterId) -> i64 {
        debug_assert!(is_number(id), "{} is no number", id.parameter().name);
        self.numbers[id.index()].load(Ordering::Relaxed)
    }

    /// How many databases there are: that depends on the mode.
    pub fn databases(&self) -> usize {
        let databases = match self.boolean(super::id::CLUSTER_ENABLED) {
            true => super::id::CLUSTER_DATABASES,
            false => super::id::DATABASES,
        };
        self.integer(databases).max(1) as usize
    }

    /// The port for clients: that without TLS if there is one.
    pub fn port(&self) -> i64 {
        match self.integer(super::id::PORT) {
            0 => self.integer(super::id::TLS_PORT),
            port => port,
        }
    }

    /// The number of an unsigned parameter, such as `maxmemory`, or of any whose range is positive.
    pub fn unsigned(&self, id: ParameterId) -> u64 {
        self.integer(id) as u64
    }

    /// Whether a boolean is `yes`.
    pub fn boolean(&self, id: ParameterId) -> bool {
        self.integer(id) != 0
    }

    /// The word an enumeration is set to.
    pub fn choice(&self, id: ParameterId) -> &'static str {
        let number = self.integer(id);
        match id.parameter().kind {
            Kind::Enum { choices, .. } => choices
                .iter()
                .find(|(_, choice)| *choice == number)
                .map_or("", |(name, _)| *name),
            _ => "",
        }
    }

    /// A string; empty if it is not set.
    pub fn text(&self, id: ParameterId) -> Arc<[u8]> {
        match self.value(id) {
            Value::Text(text) => text,
            value => id.parameter().print(&value).into(),
        }
    }

    /// `save`.
    pub fn save_points(&self) -> Arc<[SavePoint]> {
        match self.value(id::SAVE) {
            Value::SavePoints(points) => points,
            _ => specials::DEFAULT_SAVE_POINTS.into(),
        }
    }

    /// `client-output-buffer-limit`, by [`super::ClientClass`].
    pub fn output_buffer_limits(&self) -> OutputBufferLimits {
        match self.value(id::CLIENT_OUTPUT_BUFFER_LIMIT) {
            Value::OutputBufferLimits(limits) => limits,
            _ => specials::DEFAULT_OUTPUT_BUFFER_LIMITS,
        }
    }

    /// `oom-score-adj-values`.
    pub fn oom_score_adjustments(&self) -> OomScoreAdjustments {
        match self.value(id::OOM_SCORE_ADJ_VALUES) {
            Value::OomScoreAdjustments(values) => values,
            _ => specials::DEFAULT_OOM_SCORE_ADJUSTMENTS,
        }
    }

    /// `bind` or `rdma-bind`.
    pub fn addresses(&self, id: ParameterId) -> Arc<[Arc<str>]> {
        match self.value(id) {
            Value::Addresses(addresses) => addresses,
            _ => Arc::new([]),
        }
    }

    /// `replicaof`.
    pub fn primary(&self) -> Option<Primary> {
        match self.value(id::REPLICAOF) {
            Value::Primary(primary) => primary,
            _ => None,
        }
    }

    /// Says which primary this server follows from now on, for CONFIG GET and REWRITE: REPLICAOF and failovers change
    /// it, not CONFIG SET.
    pub fn follow(&self, primary: Option<Primary>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.store(id::REPLICAOF, Value::Primary(primary));
        self.bump();
    }

    /// Lowers `maxclients` to what the system allows.
    pub fn lower_maxclients(&self, clients: u64) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.store(id::MAXCLIENTS, Value::Number(clients as i64));
        self.bump();
    }

    /// `latency-tracking-info-percentiles`.
    pub fn percentiles(&self) -> Arc<[f64]> {
        match self.value(id::LATENCY_TRACKING_INFO_PERCENTILES) {
            Value::Percentiles(percentiles) => percentiles,
            _ => specials::DEFAULT_PERCENTILES.into(),
        }
    }

    /// Grows with each change; equal numbers mean equal values.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The configuration file, as an absolute path, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.origin.file.as_deref()
    }

    /// The `user` lines of the file: arguments are the name and its rules.
    pub fn users(&self) -> &[Directive] {
        &self.origin.users
    }

    /// The `rename-command` lines of the file: arguments are the old name and the new one, empty to remove the command.
    pub fn renamed_commands(&self) -> &[Directive] {
        &self.origin.renamed_commands
    }

    /// Names and printed values of the parameters that match one of the patterns, each name once, for CONFIG GET.
    ///
    /// A pattern without wildcards is a name: it finds hidden parameters too, and comes back the way it was written.
    /// Aliases are names of their own.
    pub fn matching(&self, patterns: &[&[u8]]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut matches: Vec<(Vec<u8>, NamedParameter)> = Vec::new();
        for pattern in patterns {
            let mut add = |name: &[u8], named: NamedParameter| {
                if !matches.iter().any(|(_, known)| known.name == named.name) {
                    matches.push((name.to_vec(), named));
                }
            };
            if glob::is_pattern(pattern) {
                parameters::names()
                    .filter(|named| shown_under(pattern, named))
                    .for_each(|named| {
                        add(named.name.as_bytes(), named);
                    });
            } else if let Some(named) = parameters::find(pattern) {
                add(pattern, named);
            }
        }
        matches
            .into_iter()
            .map(|(name, named)| (name, self.printed(named.id)))
            .collect()
    }

    /// The value as CONFIG GET shows it.
    pub fn printed(&self, id: ParameterId) -> Vec<u8> {
        id.parameter().print(&self.value(id))
    }

    /// The value of any parameter.
    pub(super) fn value(&self, id: ParameterId) -> Value {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        match &others[id.index()] {
            Some(value) => value.clone(),
            None => Value::Number(self.numbers[id.index()].load(Ordering::Relaxed)),
        }
    }

    pub(super) fn store(&self, id: ParameterId, value: Value) {
        match value {
            Value::Number(number) => self.numbers[id.index()].store(number, Ordering::Relaxed),
            other => {
                let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
                others[id.index()] = Some(other);
            }
        }
    }

    /// Tells caches of parameters that something else changed which they take in, such as whether writes are refused.
    pub fn touch(&self) {
        self.bump();
    }

    /// Tells caches that values changed; comes after the stores.
    pub(super) fn bump(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

fn is_number(id: ParameterId) -> bool {
    matches!(id.parameter().default_value(), Value::Number(_))
}

fn shown_under(pattern: &[u8], named: &NamedParameter) -> bool {
    let hidden = named.id.parameter().flags.contains(Flags::HIDDEN);
    !hidden && weft_resp::glob::matches(pattern, named.name.as_bytes(), true)
}
