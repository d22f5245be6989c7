//! A keyspace for tests of the functions of the API, with values as the standard library's collections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_base::{DbIndex, SlotIndex};
use weft_values::list::ListEnd;
use weft_values::sorted_set::{LexEnd, LexRange};
use weft_values::stream::{StreamId, TrimTarget};

use super::*;

/// An entry of a stream: its id, and its fields with their values.
pub type FakeEntry = (StreamId, Vec<(Vec<u8>, Vec<u8>)>);

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum FakeValue {
    /// A string.
    String(Vec<u8>),
    /// A list.
    List(VecDeque<Vec<u8>>),
    /// A hash.
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// A set.
    Set(BTreeSet<Vec<u8>>),
    /// A sorted set, in its order.
    SortedSet(Vec<(f64, Vec<u8>)>),
    /// A stream.
    Stream(Vec<FakeEntry>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub struct FakeKey {
    /// The value.
    pub value: FakeValue,
    /// The time at which it expires.
    pub expire_at_ms: Option<u64>,
    /// What eviction knows: seconds without use, or a frequency.
    pub usage: u64,
}

/// The keys of database 0 and what happened to them.
#[derive(Default)]
pub struct FakeKeyspace {
    /// The keys.
    pub keys: BTreeMap<Vec<u8>, FakeKey>,
    /// The names of keys that were signalled as modified.
    pub signaled: Vec<Vec<u8>>,
    /// The names of keys that the command may not access.
    pub undeclared: BTreeSet<Vec<u8>>,
    /// The options of the last lookup.
    pub options: LookupOptions,
    /// `true` if eviction counts uses.
    pub counts_uses: bool,
}

/// The session of tests.
#[derive(Default)]
pub struct FakeSession {
    /// The keys.
    pub keyspace: FakeKeyspace,
    /// The fields of hashes that were set to bytes of the module.
    pub provided_fields: BTreeSet<Vec<u8>>,
}

/// The time of all commands.
pub const NOW_MS: u64 = 1_000_000;

impl FakeKeyspace {
    fn value(&mut self, key: SessionKey<'_>) -> Option<&mut FakeValue> {
        self.keys.get_mut(key.name).map(|key| &mut key.value)
    }

    /// Returns the value, which is created as `empty` if the key is missing.
    fn value_or(&mut self, key: SessionKey<'_>, empty: FakeValue) -> &mut FakeValue {
        let new = FakeKey {
            value: empty,
            expire_at_ms: None,
            usage: 0,
        };
        &mut self.keys.entry(key.name.to_vec()).or_insert(new).value
    }

    /// Sets the value of a key.
    pub fn set(&mut self, name: &[u8], value: FakeValue) {
        let new = FakeKey {
            value,
            expire_at_ms: None,
            usage: 0,
        };
        self.keys.insert(name.to_vec(), new);
    }

    fn delete_if(&mut self, key: SessionKey<'_>, is_empty: impl FnOnce(&FakeValue) -> bool) {
        if self.keys.get(key.name).is_some_and(|key| is_empty(&key.value)) {
            self.keys.remove(key.name);
        }
    }
}

impl KeySession for FakeSession {
    fn locate_key(&mut self, db: u32, name: &[u8], _is_write: bool) -> Option<KeyIdentity> {
        (db == 0 && !self.keyspace.undeclared.contains(name)).then_some(KeyIdentity {
            db: DbIndex::FIRST,
            hash: 0,
            slot: SlotIndex::FIRST,
            lease: 0,
        })
    }

    fn open_for_reading(&mut self, key: SessionKey<'_>, options: LookupOptions) -> KeyKind {
        self.keyspace.options = options;
        self.stored_kind(key)
    }

    fn open_for_writing(&mut self, key: SessionKey<'_>, options: LookupOptions) -> KeyKind {
        self.open_for_reading(key, options)
    }

    fn stored_kind(&mut self, key: SessionKey<'_>) -> KeyKind {
        match self.keyspace.value(key) {
            None => KeyKind::Empty,
            Some(FakeValue::String(_)) => KeyKind::String,
            Some(FakeValue::List(_)) => KeyKind::List,
            Some(FakeValue::Hash(_)) => KeyKind::Hash,
            Some(FakeValue::Set(_)) => KeyKind::Set,
            Some(FakeValue::SortedSet(_)) => KeyKind::SortedSet,
            Some(FakeValue::Stream(_)) => KeyKind::Stream,
        }
    }

    fn value_length(&mut self, key: SessionKey<'_>) -> usize {
        match self.keyspace.value(key) {
            None => 0,
            Some(FakeValue::String(bytes)) => bytes.len(),
            Some(FakeValue::List(list)) => list.len(),
            Some(FakeValue::Hash(hash)) => hash.len(),
            Some(FakeValue::Set(set)) => set.len(),
            Some(FakeValue::SortedSet(set)) => set.len(),
            Some(FakeValue::Stream(stream)) => stream.len(),
        }
    }

    fn delete_key(&mut self, key: SessionKey<'_>, _is_lazy: bool) {
        self.keyspace.keys.remove(key.name);
    }

    fn signal_modified_key(&mut self, key: SessionKey<'_>) {
        self.keyspace.signaled.push(key.name.to_vec());
    }
}

impl StringSession for FakeSession {
    fn set_string(&mut self, key: SessionKey<'_>, value: &[u8]) {
        self.keyspace.set(key.name, FakeValue::String(value.to_vec()));
    }

    fn read_string(&mut self, key: SessionKey<'_>, memory: Vec<u8>) -> Option<(usize, StringBytes)> {
        match self.keyspace.value(key) {
            Some(FakeValue::String(bytes)) => Some((bytes.len(), StringBytes::copy(bytes, memory))),
            _ => None,
        }
    }

    fn overwrite_string(&mut self, key: SessionKey<'_>, value: &[u8]) {
        if let Some(FakeValue::String(bytes)) = self.keyspace.value(key) {
            *bytes = value.to_vec();
        }
    }

    fn truncate_string(&mut self, key: SessionKey<'_>, length: usize) -> bool {
        match self.keyspace.value_or(key, FakeValue::String(Vec::new())) {
            FakeValue::String(bytes) => {
                bytes.resize(length, 0);
                true
            }
            _ => false,
        }
    }
}

impl FakeSession {
    fn list(&mut self, key: SessionKey<'_>) -> Option<&mut VecDeque<Vec<u8>>> {
        match self.keyspace.value(key) {
            Some(FakeValue::List(list)) => Some(list),
            _ => None,
        }
    }

    fn sorted_set(&mut self, key: SessionKey<'_>) -> Option<&mut Vec<(f64, Vec<u8>)>> {
        match self.keyspace.value(key) {
            Some(FakeValue::SortedSet(set)) => Some(set),
            _ => None,
        }
    }
}

impl ListSession for FakeSession {
    fn push_element(&mut self, key: SessionKey<'_>, end: ListEnd, element: &[u8]) -> bool {
        match (self.keyspace.value_or(key, FakeValue::List(VecDeque::new())), end) {
            (FakeValue::List(list), ListEnd::Head) => list.push_front(element.to_vec()),
            (FakeValue::List(list), ListEnd::Tail) => list.push_back(element.to_vec()),
            _ => return false,
        }
        true
    }

    fn pop_element(&mut self, key: SessionKey<'_>, end: ListEnd, visit: &mut dyn FnMut(&[u8])) -> bool {
        let popped = match (self.list(key), end) {
            (Some(list), ListEnd::Head) => list.pop_front(),
            (Some(list), ListEnd::Tail) => list.pop_back(),
            (None, _) => None,
        };
        self.keyspace
            .delete_if(key, |value| *value == FakeValue::List(VecDeque::new()));
        popped.inspect(|element| visit(element)).is_some()
    }

    fn read_element(&mut self, key: SessionKey<'_>, index: usize, visit: &mut dyn FnMut(&[u8])) -> bool {
        let found = self.list(key).and_then(|list| list.get(index));
        found.inspect(|element| visit(element)).is_some()
    }

    fn replace_element(&mut self, key: SessionKey<'_>, index: usize, element: &[u8]) -> bool {
        let found = self.list(key).and_then(|list| list.get_mut(index));
        found.map(|found| *found = element.to_vec()).is_some()
    }

    fn insert_element(&mut self, key: SessionKey<'_>, index: usize, is_after: bool, element: &[u8]) -> bool {
        let Some(list) = self.list(key).filter(|list| index < list.len()) else {
            return false;
        };
        list.insert(index + usize::from(is_after), element.to_vec());
        true
    }

    fn remove_element(&mut self, key: SessionKey<'_>, index: usize) -> bool {
        let removed = self.list(key).and_then(|list| list.remove(index));
        self.keyspace
            .delete_if(key, |value| *value == FakeValue::List(VecDeque::new()));
        removed.is_some()
    }
}

impl HashSession for FakeSession {
    fn read_field(&mut self, key: SessionKey<'_>, field: &[u8], visit: &mut dyn FnMut(&[u8])) -> bool {
        match self.keyspace.value(key) {
            Some(FakeValue::Hash(hash)) => hash.get(field).inspect(|value| visit(value)).is_some(),
            _ => false,
        }
    }

    fn set_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8], _keeps_expiry: bool) -> Option<bool> {
        match self.keyspace.value_or(key, FakeValue::Hash(BTreeMap::new())) {
            FakeValue::Hash(hash) => Some(hash.insert(field.to_vec(), value.to_vec()).is_some()),
            _ => None,
        }
    }

    fn set_provided_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8]) -> bool {
        let exists = self.read_field(key, field, &mut |_| {});
        if exists {
            self.set_field(key, field, value, true);
            self.provided_fields.insert(field.to_vec());
        }
        exists
    }

    fn is_field_provided(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool {
        self.read_field(key, field, &mut |_| {}) && self.provided_fields.contains(field)
    }

    fn remove_field(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool {
        match self.keyspace.value(key) {
            Some(FakeValue::Hash(hash)) => hash.remove(field).is_some(),
            _ => false,
        }
    }

    fn delete_empty_hash(&mut self, key: SessionKey<'_>) {
        self.keyspace
            .delete_if(key, |value| *value == FakeValue::Hash(BTreeMap::new()));
    }
}

fn lex_end(end: &RangeEnd) -> LexEnd<'_> {
    match end {
        RangeEnd::Lowest => LexEnd::Lowest,
        RangeEnd::Highest => LexEnd::Highest,
        RangeEnd::Inclusive(member) => LexEnd::Inclusive(member),
        RangeEnd::Exclusive(member) => LexEnd::Exclusive(member),
    }
}

fn is_in_range(range: &SortedSetRange, score: f64, member: &[u8]) -> bool {
    match range {
        SortedSetRange::Scores(range) => !range.is_before_start(score) && range.is_before_end(score),
        SortedSetRange::Members { min, max } => {
            let (min, max) = (lex_end(min), lex_end(max));
            let range = LexRange { min, max };
            !range.is_before_start(member) && range.is_before_end(member)
        }
    }
}

impl SortedSetSession for FakeSession {
    fn change_score(&mut self, key: SessionKey<'_>, member: &[u8], change: ScoreChange) -> ScoreUpdate {
        if change.score.is_nan() {
            return ScoreUpdate::NotANumber;
        }
        let FakeValue::SortedSet(set) = self.keyspace.value_or(key, FakeValue::SortedSet(Vec::new())) else {
            return ScoreUpdate::WrongType;
        };
        let found = set.iter().position(|(_, other)| other == member);
        let update = match found {
            Some(_) if change.conditions.if_missing => ScoreUpdate::Forbidden,
            None if change.conditions.if_present => ScoreUpdate::Forbidden,
            Some(index) => {
                let before = set[index].0;
                let score = if change.is_increment {
                    before + change.score
                } else {
                    change.score
                };
                set[index].0 = score;
                match score == before {
                    true => ScoreUpdate::Same(score),
                    false => ScoreUpdate::Changed(score),
                }
            }
            None => {
                set.push((change.score, member.to_vec()));
                ScoreUpdate::Added(change.score)
            }
        };
        set.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        self.keyspace
            .delete_if(key, |value| *value == FakeValue::SortedSet(Vec::new()));
        update
    }

    fn read_score(&mut self, key: SessionKey<'_>, member: &[u8]) -> Option<f64> {
        let found = self.sorted_set(key)?.iter().find(|(_, other)| other == member);
        found.map(|(score, _)| *score)
    }

    fn remove_member(&mut self, key: SessionKey<'_>, member: &[u8]) -> MemberRemoval {
        let Some(set) = self.sorted_set(key) else {
            return MemberRemoval::Missing;
        };
        let before = set.len();
        set.retain(|(_, other)| other != member);
        match (set.len(), before) {
            (after, before) if after == before => MemberRemoval::Missing,
            (0, _) => {
                self.keyspace.keys.remove(key.name);
                MemberRemoval::Emptied
            }
            _ => MemberRemoval::Removed,
        }
    }

    fn member_in_range(
        &mut self,
        key: SessionKey<'_>,
        range: &SortedSetRange,
        is_last: bool,
    ) -> Option<MemberPosition> {
        let set = self.sorted_set(key)?.iter().enumerate();
        let mut inside = set.filter(|(_, (score, member))| is_in_range(range, *score, member));
        let (rank, (score, member)) = if is_last { inside.next_back() } else { inside.next() }?;
        Some(MemberPosition {
            rank,
            score: *score,
            member: member.clone(),
        })
    }

    fn neighbor_in_range(
        &mut self,
        key: SessionKey<'_>,
        range: &SortedSetRange,
        from: &MemberPosition,
        is_backward: bool,
    ) -> Option<MemberPosition> {
        let rank = match is_backward {
            true => from.rank.checked_sub(1)?,
            false => from.rank + 1,
        };
        let (score, member) = self.sorted_set(key)?.get(rank)?;
        is_in_range(range, *score, member).then(|| MemberPosition {
            rank,
            score: *score,
            member: member.clone(),
        })
    }
}

impl StreamSession for FakeSession {
    fn add_entry(
        &mut self,
        key: SessionKey<'_>,
        id: Option<StreamId>,
        fields: &[(&[u8], &[u8])],
    ) -> Result<StreamId, StreamAddError> {
        let FakeValue::Stream(stream) = self.keyspace.value_or(key, FakeValue::Stream(Vec::new())) else {
            return Err(StreamAddError::WrongType);
        };
        let last = stream.last().map_or(StreamId::MIN, |(id, _)| *id);
        let id = id.unwrap_or(StreamId::new(last.ms.max(NOW_MS), last.seq + 1));
        if id <= last {
            return Err(StreamAddError::IdTooSmall);
        }
        let fields = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
        stream.push((id, fields.collect()));
        Ok(id)
    }

    fn remove_entry(&mut self, key: SessionKey<'_>, id: StreamId) -> bool {
        let Some(FakeValue::Stream(stream)) = self.keyspace.value(key) else {
            return false;
        };
        let before = stream.len();
        stream.retain(|(other, _)| *other != id);
        stream.len() < before
    }

    fn read_entry(
        &mut self,
        key: SessionKey<'_>,
        (start, end): (StreamId, StreamId),
        is_last: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<StreamId> {
        let Some(FakeValue::Stream(stream)) = self.keyspace.value(key) else {
            return None;
        };
        let mut inside = stream.iter().filter(|(id, _)| (start..=end).contains(id));
        let (id, fields) = if is_last { inside.next_back() } else { inside.next() }?;
        fields.iter().for_each(|(name, value)| visit(name, value));
        Some(*id)
    }

    fn trim_stream(&mut self, key: SessionKey<'_>, target: TrimTarget, _is_approximate: bool) -> u64 {
        let Some(FakeValue::Stream(stream)) = self.keyspace.value(key) else {
            return 0;
        };
        let before = stream.len();
        match target {
            TrimTarget::MaxLength(length) => drop(stream.drain(..before.saturating_sub(length as usize))),
            TrimTarget::MinId(first) => stream.retain(|(id, _)| *id >= first),
        }
        (before - stream.len()) as u64
    }
}

impl LifetimeSession for FakeSession {
    fn command_time_ms(&self) -> u64 {
        NOW_MS
    }

    fn expiry_ms(&mut self, key: SessionKey<'_>) -> Option<u64> {
        self.keyspace.keys.get(key.name)?.expire_at_ms
    }

    fn set_expiry_ms(&mut self, key: SessionKey<'_>, expire_at_ms: Option<u64>) {
        if let Some(found) = self.keyspace.keys.get_mut(key.name) {
            found.expire_at_ms = expire_at_ms;
        }
    }

    fn counts_uses(&self) -> bool {
        self.keyspace.counts_uses
    }

    fn idle_seconds(&mut self, key: SessionKey<'_>) -> u64 {
        self.keyspace.keys.get(key.name).map_or(0, |key| key.usage)
    }

    fn set_idle_seconds(&mut self, key: SessionKey<'_>, seconds: u64) {
        if let Some(found) = self.keyspace.keys.get_mut(key.name) {
            found.usage = seconds;
        }
    }

    fn frequency(&mut self, key: SessionKey<'_>) -> u8 {
        self.idle_seconds(key) as u8
    }

    fn set_frequency(&mut self, key: SessionKey<'_>, frequency: u8) {
        self.set_idle_seconds(key, u64::from(frequency));
    }
}

impl ScanSession for FakeSession {
    fn database_size(&mut self, db: u32) -> u64 {
        if db == 0 { self.keyspace.keys.len() as u64 } else { 0 }
    }

    fn random_key(&mut self, db: u32, visit: &mut dyn FnMut(&[u8])) -> bool {
        let first = self.keyspace.keys.keys().next().filter(|_| db == 0);
        first.inspect(|name| visit(name)).is_some()
    }

    /// Shows one key in each step.
    fn scan_database(&mut self, _db: u32, cursor: u64, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        let mut rest = self.keyspace.keys.keys().skip(cursor as usize);
        rest.next().inspect(|name| visit(name));
        Some(rest.next().map_or(0, |_| cursor + 1))
    }

    /// Shows a hash at once, and one member of a set in each step.
    fn scan_value(&mut self, key: SessionKey<'_>, cursor: u64, visit: ElementVisitor<'_>) -> ValueScan {
        match self.keyspace.value(key) {
            Some(FakeValue::Hash(hash)) => {
                hash.iter().for_each(|(name, value)| visit(name, Some(value)));
                ValueScan::Whole
            }
            Some(FakeValue::Set(set)) => {
                let mut rest = set.iter().skip(cursor as usize);
                rest.next().inspect(|member| visit(member, None));
                ValueScan::Next(rest.next().map_or(0, |_| cursor + 1))
            }
            _ => ValueScan::WrongType,
        }
    }

    fn reset_dataset(&mut self, _restarts_log: bool, _is_lazy: bool) {
        self.keyspace.keys.clear();
    }
}
