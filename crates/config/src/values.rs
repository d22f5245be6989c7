//! [`Config`]: the values of all parameters, shared by all threads, and CONFIG GET.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::glob;
use super::parameters::{self, COUNT, NamedParameter, ParameterFlags, ParameterId, ParameterKind, id};
use super::specials::{self, OomScoreAdjustments, OutputBufferLimits, PrimaryAddress, SavePoint};
use super::start_error::ConfigDirective;
use super::value::ParameterValue;

use weft_os::atomic::{AtomicI64, AtomicU64, Ordering};
use weft_os::sync::{ReentrantMutex, ReentrantMutexGuard, RwLock};

/// The values of all parameters.
///
/// Reading a number is one relaxed load. Values that belong together may briefly be seen half changed. A load publishes
/// nothing but the value itself, so no ordering is needed.
#[derive(Debug)]
pub struct Config {
    numbers: [AtomicI64; COUNT],
    /// The values that are not numbers, by index. The entry of a number is `None`.
    non_numbers: RwLock<Box<[Option<ParameterValue>]>>,
    generation: AtomicU64,
    /// Held while CONFIG SET changes values and applies them, and while the file is rewritten, so that these happen
    /// one after another. Its holder may wait for exclusive mode. So a thread within the gate must not wait for the
    /// lock; it uses [`Config::try_begin_change`].
    pub(super) change_lock: ReentrantMutex<()>,
    pub(super) origin: ConfigOrigin,
    /// The places of the lines that set the parameters, in words. A parameter that has changed since has none.
    locations: RwLock<BTreeMap<ParameterId, String>>,
}

/// Keeps other threads from changing the configuration.
pub struct ConfigChangeGuard<'c> {
    _guard: ReentrantMutexGuard<'c, ()>,
}

/// The contents of the file and the command line other than parameters.
#[derive(Debug, Default)]
pub(super) struct ConfigOrigin {
    pub(super) file: Option<PathBuf>,
    pub(super) users: Vec<ConfigDirective>,
    pub(super) renamed_commands: Vec<ConfigDirective>,
    pub(super) modules: Vec<ConfigDirective>,
    /// The names and values of the settings of modules, in the order of the lines.
    pub(super) module_settings: Vec<(Vec<u8>, Vec<u8>)>,
    /// The places of the last lines about parameters, in words.
    pub(super) locations: BTreeMap<ParameterId, String>,
}

impl Config {
    /// Creates a configuration with all default values.
    pub fn defaults() -> Config {
        let values: Vec<ParameterValue> = ParameterId::all().map(|id| id.parameter().default_value()).collect();
        Config::new(&values, ConfigOrigin::default())
    }

    /// Creates a configuration from one value per parameter, in the order of the table.
    ///
    /// # Panics
    /// If the number of values differs from the number of parameters.
    pub(super) fn new(values: &[ParameterValue], mut origin: ConfigOrigin) -> Config {
        assert_eq!(values.len(), COUNT, "one value per parameter");
        let locations = std::mem::take(&mut origin.locations);
        let config = Config {
            numbers: std::array::from_fn(|_| AtomicI64::new(0)),
            non_numbers: RwLock::new(vec![None; COUNT].into()),
            generation: AtomicU64::new(0),
            change_lock: ReentrantMutex::new(()),
            origin,
            locations: RwLock::default(),
        };
        for (id, value) in ParameterId::all().zip(values) {
            config.store(id, value.clone());
        }
        *config.locations.write() = locations;
        config
    }

    /// Returns a copy of the values that no longer changes, without a file.
    pub fn snapshot(&self) -> Config {
        let others = self.non_numbers.read().clone();
        Config {
            numbers: std::array::from_fn(|index| AtomicI64::new(self.numbers[index].load(Ordering::Relaxed))),
            non_numbers: RwLock::new(others),
            generation: AtomicU64::new(0),
            change_lock: ReentrantMutex::new(()),
            origin: ConfigOrigin::default(),
            locations: RwLock::default(),
        }
    }

    /// Returns the number of an integer (plain, memory, octal), an enumeration, a boolean or `notify-keyspace-events`.
    /// Percentages are negative.
    pub fn integer(&self, id: ParameterId) -> i64 {
        debug_assert!(is_number(id), "{} is no number", id.parameter().name);
        self.numbers[id.index()].load(Ordering::Relaxed)
    }

    /// Returns the number of databases, which depends on the mode.
    pub fn databases(&self) -> usize {
        let databases = match self.boolean(super::id::CLUSTER_ENABLED) {
            true => super::id::CLUSTER_DATABASES,
            false => super::id::DATABASES,
        };
        self.integer(databases).max(1) as usize
    }

    /// Returns the name of the server in error texts: `Redis` with `extended-redis-compatibility`, or else `Valkey`.
    pub fn product_name(&self) -> &'static str {
        match self.boolean(super::id::EXTENDED_REDIS_COMPATIBILITY) {
            true => "Redis",
            false => "Valkey",
        }
    }

    /// Returns the client port: the TCP port if there is one, the TLS port otherwise.
    pub fn port(&self) -> i64 {
        match self.integer(super::id::PORT) {
            0 => self.integer(super::id::TLS_PORT),
            port => port,
        }
    }

    /// Returns the number of an unsigned parameter, such as `maxmemory`, or of one whose range is positive.
    pub fn unsigned(&self, id: ParameterId) -> u64 {
        self.integer(id) as u64
    }

    /// Returns `true` if a boolean is `yes`.
    pub fn boolean(&self, id: ParameterId) -> bool {
        self.integer(id) != 0
    }

    /// Returns the word of an enumeration.
    pub fn choice(&self, id: ParameterId) -> &'static str {
        let number = self.integer(id);
        match id.parameter().kind {
            ParameterKind::Enum { choices, .. } => choices
                .iter()
                .find(|(_, choice)| *choice == number)
                .map_or("", |(name, _)| *name),
            _ => "",
        }
    }

    /// Returns a string, which is empty if it is not set.
    pub fn text(&self, id: ParameterId) -> Arc<[u8]> {
        match self.value(id) {
            ParameterValue::Text(text) => text,
            value => id.parameter().print(&value).into(),
        }
    }

    /// Returns `save`.
    pub fn save_points(&self) -> Arc<[SavePoint]> {
        match self.value(id::SAVE) {
            ParameterValue::SavePoints(points) => points,
            _ => specials::DEFAULT_SAVE_POINTS.into(),
        }
    }

    /// Returns `client-output-buffer-limit`, by [`super::ClientClass`].
    pub fn output_buffer_limits(&self) -> OutputBufferLimits {
        match self.value(id::CLIENT_OUTPUT_BUFFER_LIMIT) {
            ParameterValue::OutputBufferLimits(limits) => limits,
            _ => specials::DEFAULT_OUTPUT_BUFFER_LIMITS,
        }
    }

    /// Returns `oom-score-adj-values`.
    pub fn oom_score_adjustments(&self) -> OomScoreAdjustments {
        match self.value(id::OOM_SCORE_ADJ_VALUES) {
            ParameterValue::OomScoreAdjustments(values) => values,
            _ => specials::DEFAULT_OOM_SCORE_ADJUSTMENTS,
        }
    }

    /// Returns `bind` or `rdma-bind`.
    pub fn addresses(&self, id: ParameterId) -> Arc<[Arc<str>]> {
        match self.value(id) {
            ParameterValue::Addresses(addresses) => addresses,
            _ => Arc::new([]),
        }
    }

    /// Keeps other threads from changing the configuration until the guard is dropped. [`Config::set`] and
    /// [`Config::rewrite`] work on the thread that has the guard. Returns `None` if a change is under way.
    pub fn try_begin_change(&self) -> Option<ConfigChangeGuard<'_>> {
        self.change_lock
            .try_lock()
            .map(|guard| ConfigChangeGuard { _guard: guard })
    }

    /// Does the same as [`Config::try_begin_change`], but waits for the change under way. For threads outside the gate.
    pub fn begin_change(&self) -> ConfigChangeGuard<'_> {
        ConfigChangeGuard {
            _guard: self.change_lock.lock(),
        }
    }

    /// Returns `replicaof`.
    pub fn primary(&self) -> Option<PrimaryAddress> {
        match self.value(id::REPLICAOF) {
            ParameterValue::Primary(primary) => primary,
            _ => None,
        }
    }

    /// Sets the primary that this server follows, for CONFIG GET and REWRITE. REPLICAOF and failovers change it, CONFIG
    /// SET does not, so this needs no lock: the role changes in exclusive mode, for which the lock's holder may wait.
    pub fn set_primary(&self, primary: Option<PrimaryAddress>) {
        self.store(id::REPLICAOF, ParameterValue::Primary(primary));
        self.increment_generation();
    }

    /// Lowers `maxclients` to what the system allows.
    pub fn lower_maxclients(&self, clients: u64) {
        let _changing = self.change_lock.lock();
        self.store(id::MAXCLIENTS, ParameterValue::Number(clients as i64));
        self.increment_generation();
    }

    /// Returns `latency-tracking-info-percentiles`.
    pub fn percentiles(&self) -> Arc<[f64]> {
        match self.value(id::LATENCY_TRACKING_INFO_PERCENTILES) {
            ParameterValue::Percentiles(percentiles) => percentiles,
            _ => specials::DEFAULT_PERCENTILES.into(),
        }
    }

    /// Returns the generation, which increases with each change. Equal generations mean equal values.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the absolute path of the configuration file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.origin.file.as_deref()
    }

    /// Returns the place of the line or the option that gave a parameter its present value, in words. Returns `None`
    /// for a default, for a value that has been set since, and once the file has been rewritten.
    pub fn setting_location(&self, id: ParameterId) -> Option<String> {
        self.locations.read().get(&id).cloned()
    }

    /// Forgets the places of lines: the file has others now.
    pub(super) fn forget_locations(&self) {
        self.locations.write().clear();
    }

    /// Returns the `user` lines of the file. Their arguments are the name and its rules.
    pub fn users(&self) -> &[ConfigDirective] {
        &self.origin.users
    }

    /// Returns the `rename-command` lines of the file. Their arguments are the old name and the new one, which is empty
    /// to remove the command.
    pub fn renamed_commands(&self) -> &[ConfigDirective] {
        &self.origin.renamed_commands
    }

    /// Returns the `loadmodule` lines of the file. Their arguments are the path and the arguments of the module.
    pub fn modules(&self) -> &[ConfigDirective] {
        &self.origin.modules
    }

    /// Returns the names and values of the settings of modules, in the order of their lines.
    pub fn module_settings(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.origin.module_settings
    }

    /// Returns the names and printed values of the parameters that match one of the patterns, each name once, sorted by
    /// name, for CONFIG GET.
    ///
    /// A pattern without wildcards is a name: it finds hidden parameters too, and is returned as it was written.
    /// Aliases are separate names.
    pub fn matching_parameters(&self, patterns: &[&[u8]]) -> Vec<(Vec<u8>, Vec<u8>)> {
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
        matches.sort_by(|(one, _), (other, _)| one.cmp(other));
        matches
            .into_iter()
            .map(|(name, named)| (name, self.printed(named.id)))
            .collect()
    }

    /// Returns the value as CONFIG GET shows it.
    pub fn printed(&self, id: ParameterId) -> Vec<u8> {
        id.parameter().print(&self.value(id))
    }

    /// Returns the value of any parameter.
    pub(super) fn value(&self, id: ParameterId) -> ParameterValue {
        let others = self.non_numbers.read();
        match &others[id.index()] {
            Some(value) => value.clone(),
            None => ParameterValue::Number(self.numbers[id.index()].load(Ordering::Relaxed)),
        }
    }

    pub(super) fn store(&self, id: ParameterId, value: ParameterValue) {
        self.locations.write().remove(&id);
        match value {
            ParameterValue::Number(number) => self.numbers[id.index()].store(number, Ordering::Relaxed),
            other => {
                let mut others = self.non_numbers.write();
                others[id.index()] = Some(other);
            }
        }
    }

    /// Invalidates caches of parameters after a change of another state that they contain, such as the refusal of
    /// writes.
    pub fn invalidate_caches(&self) {
        self.increment_generation();
    }

    /// Invalidates caches after values have been stored.
    pub(super) fn increment_generation(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

fn is_number(id: ParameterId) -> bool {
    matches!(id.parameter().default_value(), ParameterValue::Number(_))
}

fn shown_under(pattern: &[u8], named: &NamedParameter) -> bool {
    let hidden = named.id.parameter().flags.contains(ParameterFlags::HIDDEN);
    !hidden && weft_resp::glob::matches(pattern, named.name.as_bytes(), true)
}
