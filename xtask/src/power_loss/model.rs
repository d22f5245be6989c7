//! A model of the contents of a writer's keys after each of its operations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The number of entries that a stream keeps.
const STREAM_ENTRIES: usize = 10;

/// The contents of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(Arc<str>),
    List(VecDeque<Arc<str>>),
    /// Fields with their values and times of expiry in ms since the Unix epoch.
    Hash(BTreeMap<String, (String, Option<u64>)>),
    Set(BTreeSet<String>),
    SortedSet(BTreeMap<String, i64>),
    /// The first parts of entry IDs, with the value of the only field.
    Stream(VecDeque<(u64, String)>),
}

/// A key's contents and time of expiry in ms since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: Value,
    pub expires_ms: Option<u64>,
}

/// All keys of a writer.
pub type State = BTreeMap<&'static str, Entry>;

/// The keys of a writer, without the prefix that names the writer. The first letter says the type.
pub const KEYS: [&str; 20] = [
    "s0", "s1", "s2", "e0", "e1", "n0", "n1", "b0", "b1", "l0", "l1", "h0", "h1", "t0", "t1", "t2", "z0", "z1", "x0",
    "x1",
];

/// A command, as it changes the state.
#[derive(Clone, Debug)]
pub enum Step {
    /// SET, with PXAT if there is a time of expiry.
    Set(&'static str, Arc<str>, Option<u64>),
    /// INCRBY.
    Add(&'static str, i64),
    /// APPEND.
    Append(&'static str, String),
    /// LPUSH or RPUSH.
    Push {
        key: &'static str,
        left: bool,
        items: Vec<Arc<str>>,
    },
    /// LPOP or RPOP.
    Pop { key: &'static str, left: bool },
    /// LTRIM to the first elements.
    Trim(&'static str, usize),
    /// LMOVE from the left of one list to the right of the other.
    Move(&'static str, &'static str),
    /// HSET.
    HashSet(&'static str, Vec<(String, String)>),
    /// HDEL.
    HashDelete(&'static str, String),
    /// HPEXPIREAT of a field that exists.
    HashExpire(&'static str, String, u64),
    /// SADD.
    SetAdd(&'static str, Vec<String>),
    /// SREM.
    SetRemove(&'static str, String),
    /// SUNIONSTORE.
    Union(&'static str, [&'static str; 2]),
    /// ZINCRBY.
    Score(&'static str, String, i64),
    /// XADD with MAXLEN.
    StreamAdd(&'static str, u64, String),
    /// DEL.
    Delete(&'static str),
    /// RENAME of a key that exists.
    Rename(&'static str, &'static str),
    /// COPY with REPLACE.
    Copy(&'static str, &'static str),
    /// PEXPIREAT.
    Expire(&'static str, u64),
    /// PERSIST.
    Persist(&'static str),
    /// RPUSH to the list that all writers of a database share. It is no part of the state.
    Journal(String),
}

impl Step {
    /// The words of the command, for keys with this prefix.
    pub fn words(&self, prefix: &str) -> Vec<String> {
        let name = |key: &str| format!("{prefix}{key}");
        let mut words: Vec<String> = Vec::new();
        let mut add = |parts: &[&str]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        match self {
            Step::Set(key, text, None) => add(&["SET", &name(key), text]),
            Step::Set(key, text, Some(at)) => add(&["SET", &name(key), text, "PXAT", &at.to_string()]),
            Step::Add(key, by) => add(&["INCRBY", &name(key), &by.to_string()]),
            Step::Append(key, text) => add(&["APPEND", &name(key), text]),
            Step::Push { key, left, items } => {
                add(&[if *left { "LPUSH" } else { "RPUSH" }, &name(key)]);
                items.iter().for_each(|item| add(&[item]));
            }
            Step::Pop { key, left } => add(&[if *left { "LPOP" } else { "RPOP" }, &name(key)]),
            Step::Trim(key, keep) => add(&["LTRIM", &name(key), "0", &(keep - 1).to_string()]),
            Step::Move(from, to) => add(&["LMOVE", &name(from), &name(to), "LEFT", "RIGHT"]),
            Step::HashSet(key, fields) => {
                add(&["HSET", &name(key)]);
                fields.iter().for_each(|(field, value)| add(&[field, value]));
            }
            Step::HashDelete(key, field) => add(&["HDEL", &name(key), field]),
            Step::HashExpire(key, field, at) => {
                add(&["HPEXPIREAT", &name(key), &at.to_string(), "FIELDS", "1", field]);
            }
            Step::SetAdd(key, members) => {
                add(&["SADD", &name(key)]);
                members.iter().for_each(|member| add(&[member]));
            }
            Step::SetRemove(key, member) => add(&["SREM", &name(key), member]),
            Step::Union(to, from) => add(&["SUNIONSTORE", &name(to), &name(from[0]), &name(from[1])]),
            Step::Score(key, member, by) => add(&["ZINCRBY", &name(key), &by.to_string(), member]),
            Step::StreamAdd(key, id, value) => {
                let (limit, id) = (STREAM_ENTRIES.to_string(), format!("{id}-1"));
                add(&["XADD", &name(key), "MAXLEN", "=", &limit, &id, "f", value]);
            }
            Step::Delete(key) => add(&["DEL", &name(key)]),
            Step::Rename(from, to) => add(&["RENAME", &name(from), &name(to)]),
            Step::Copy(from, to) => add(&["COPY", &name(from), &name(to), "REPLACE"]),
            Step::Expire(key, at) => add(&["PEXPIREAT", &name(key), &at.to_string()]),
            Step::Persist(key) => add(&["PERSIST", &name(key)]),
            Step::Journal(text) => add(&["RPUSH", "journal", text]),
        }
        words
    }

    /// Changes the state as the command does.
    pub fn apply(&self, state: &mut State) {
        match self {
            Step::Set(key, text, expires_ms) => {
                let value = Value::Text(text.clone());
                let expires_ms = *expires_ms;
                state.insert(key, Entry { value, expires_ms });
            }
            Step::Add(key, by) => with_text(state, key, |text| (text.parse().unwrap_or(0) + by).to_string()),
            Step::Append(key, more) => with_text(state, key, |text| format!("{text}{more}")),
            Step::Push { key, left, items } => with_list(state, key, |list| {
                for item in items {
                    match left {
                        true => list.push_front(item.clone()),
                        false => list.push_back(item.clone()),
                    }
                }
            }),
            Step::Pop { key, left } => with_list(state, key, |list| {
                let _ = if *left { list.pop_front() } else { list.pop_back() };
            }),
            Step::Trim(key, keep) => with_list(state, key, |list| list.truncate(*keep)),
            Step::Move(from, to) => {
                let mut moved = None;
                with_list(state, from, |list| moved = list.pop_front());
                if let Some(moved) = moved {
                    with_list(state, to, |list| list.push_back(moved));
                }
            }
            Step::HashSet(key, fields) => with_hash(state, key, |hash| {
                for (field, value) in fields {
                    hash.insert(field.clone(), (value.clone(), None));
                }
            }),
            Step::HashDelete(key, field) => with_hash(state, key, |hash| drop(hash.remove(field))),
            Step::HashExpire(key, field, at) => with_hash(state, key, |hash| {
                if let Some(value) = hash.get_mut(field) {
                    value.1 = Some(*at);
                }
            }),
            Step::SetAdd(key, members) => with_set(state, key, |set| set.extend(members.iter().cloned())),
            Step::SetRemove(key, member) => with_set(state, key, |set| {
                set.remove(member);
            }),
            Step::Union(to, from) => {
                let mut union = BTreeSet::new();
                for key in from {
                    if let Some(Value::Set(set)) = state.get(key).map(|entry| &entry.value) {
                        union.extend(set.iter().cloned());
                    }
                }
                state.remove(to);
                with_set(state, to, |set| *set = union);
            }
            Step::Score(key, member, by) => {
                let empty = || Value::SortedSet(BTreeMap::new());
                if let Value::SortedSet(scores) = &mut entry(state, key, empty).value {
                    *scores.entry(member.clone()).or_default() += by;
                }
            }
            Step::StreamAdd(key, id, value) => {
                let empty = || Value::Stream(VecDeque::new());
                if let Value::Stream(entries) = &mut entry(state, key, empty).value {
                    entries.push_back((*id, value.clone()));
                    while entries.len() > STREAM_ENTRIES {
                        entries.pop_front();
                    }
                }
            }
            _ => self.apply_to_key(state),
        }
    }

    /// Changes the state as a command for any type does.
    fn apply_to_key(&self, state: &mut State) {
        match self {
            Step::Delete(key) => drop(state.remove(key)),
            Step::Rename(from, to) => {
                if let Some(moved) = state.remove(from) {
                    state.insert(to, moved);
                }
            }
            Step::Copy(from, to) => {
                if let Some(copied) = state.get(from).cloned() {
                    state.insert(to, copied);
                }
            }
            Step::Expire(key, at) => {
                if let Some(entry) = state.get_mut(key) {
                    entry.expires_ms = Some(*at);
                }
            }
            Step::Persist(key) => {
                if let Some(entry) = state.get_mut(key) {
                    entry.expires_ms = None;
                }
            }
            _ => {}
        }
    }
}

fn entry<'s>(state: &'s mut State, key: &'static str, empty: impl FnOnce() -> Value) -> &'s mut Entry {
    state.entry(key).or_insert_with(|| Entry {
        value: empty(),
        expires_ms: None,
    })
}

fn with_text(state: &mut State, key: &'static str, change: impl FnOnce(&str) -> String) {
    if let Value::Text(text) = &mut entry(state, key, || Value::Text("".into())).value {
        *text = change(text).into();
    }
}

fn with_list(state: &mut State, key: &'static str, change: impl FnOnce(&mut VecDeque<Arc<str>>)) {
    if let Value::List(list) = &mut entry(state, key, || Value::List(VecDeque::new())).value {
        change(list);
        if list.is_empty() {
            state.remove(key);
        }
    }
}

fn with_hash(state: &mut State, key: &'static str, change: impl FnOnce(&mut BTreeMap<String, (String, Option<u64>)>)) {
    if let Value::Hash(hash) = &mut entry(state, key, || Value::Hash(BTreeMap::new())).value {
        change(hash);
        if hash.is_empty() {
            state.remove(key);
        }
    }
}

fn with_set(state: &mut State, key: &'static str, change: impl FnOnce(&mut BTreeSet<String>)) {
    if let Value::Set(set) = &mut entry(state, key, || Value::Set(BTreeSet::new())).value {
        change(set);
        if set.is_empty() {
            state.remove(key);
        }
    }
}

/// Removes keys that have expired.
pub fn drop_expired(state: &mut State, now_ms: u64) {
    state.retain(|_, entry| entry.expires_ms.is_none_or(|at| at > now_ms));
}

/// Returns the first key in which two states differ, with both contents.
pub fn difference(expected: &State, found: &State) -> Option<String> {
    KEYS.iter().find_map(|key| {
        let (left, right) = (expected.get(key), found.get(key));
        (left != right).then(|| {
            let mut text = format!("{key}: expected ");
            describe(left, &mut text);
            text.push_str(", found ");
            describe(right, &mut text);
            text
        })
    })
}

fn describe(entry: Option<&Entry>, text: &mut String) {
    let full = match entry {
        None => "nothing".to_owned(),
        Some(entry) => format!("{:?} until {:?}", entry.value, entry.expires_ms),
    };
    text.extend(full.chars().take(300));
    if full.len() > 300 {
        text.push_str(&format!("... ({} bytes)", full.len()));
    }
}
