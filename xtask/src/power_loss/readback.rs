//! Reads the keys of all writers from a server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::model::{Entry, KEYS, State, Value};
use super::operations::{DATABASES, Operations};
use super::server::Server;
use crate::stress::client::{StressClient, StressReply};

/// The contents of a server.
pub struct Contents {
    /// The keys of each writer.
    pub states: Vec<State>,
    /// The journal of each database.
    pub journals: Vec<Vec<String>>,
}

/// Reads the keys of `writers` writers.
///
/// # Errors
/// Fails if a reply is missing, an error or not of the expected type, or if there are other keys.
pub fn read_contents(server: &Server, writers: usize) -> Result<Contents, String> {
    let mut client = server.connect()?;
    let mut contents = Contents {
        states: vec![State::new(); writers],
        journals: Vec::new(),
    };
    for database in 0..DATABASES {
        client.execute(&format!("SELECT {database}"))?;
        let own: Vec<usize> = (database..writers).step_by(DATABASES).collect();
        for writer in &own {
            contents.states[*writer] = read_state(&mut client, &Operations::prefix(*writer))?;
        }
        let journal = client.execute("LRANGE journal 0 -1")?;
        contents
            .journals
            .push(journal.items().iter().map(StressReply::text).collect());
        let mut known: BTreeSet<String> = BTreeSet::from(["journal".to_owned()]);
        for writer in own {
            known.extend(KEYS.iter().map(|key| format!("{}{key}", Operations::prefix(writer))));
        }
        let keys = client.execute("KEYS *")?;
        if let Some(other) = keys
            .items()
            .iter()
            .map(StressReply::text)
            .find(|key| !known.contains(key))
        {
            return Err(format!("database {database} contains the unknown key {other}"));
        }
    }
    Ok(contents)
}

fn read_state(client: &mut StressClient, prefix: &str) -> Result<State, String> {
    let mut commands: Vec<Vec<String>> = Vec::new();
    let words = |line: String| line.split(' ').map(str::to_owned).collect();
    for key in KEYS {
        let name = format!("{prefix}{key}");
        commands.push(words(format!("PEXPIRETIME {name}")));
        commands.push(words(match key.as_bytes().first() {
            Some(b'l') => format!("LRANGE {name} 0 -1"),
            Some(b'h') => format!("HGETALL {name}"),
            Some(b't') => format!("SMEMBERS {name}"),
            Some(b'z') => format!("ZRANGE {name} 0 -1 WITHSCORES"),
            Some(b'x') => format!("XRANGE {name} - +"),
            _ => format!("GET {name}"),
        }));
        if key.starts_with('h') {
            commands.push(words(format!("HPEXPIRETIME {name} FIELDS 6 f0 f1 f2 f3 f4 f5")));
        }
    }
    let mut replies = client.pipeline(&commands)?.into_iter();
    let mut state = State::new();
    for key in KEYS {
        let mut next = || replies.next().ok_or("a reply is missing");
        let (expiry, reply) = (next()?, next()?);
        let times = if key.starts_with('h') { Some(next()?) } else { None };
        if let StressReply::Error(error) = &reply {
            return Err(format!("{prefix}{key}: {error}"));
        }
        let expires_ms = match expiry {
            StressReply::Integer(-2) => continue,
            StressReply::Integer(at) => u64::try_from(at).ok(),
            other => return Err(format!("{prefix}{key}: PEXPIRETIME returned {other:?}")),
        };
        let value = value_of(key, &reply, times.as_ref());
        state.insert(key, Entry { value, expires_ms });
    }
    Ok(state)
}

fn value_of(key: &str, reply: &StressReply, times: Option<&StressReply>) -> Value {
    let texts = || reply.items().iter().map(StressReply::text);
    let pairs = || -> Vec<(String, String)> {
        let texts: Vec<String> = texts().collect();
        texts
            .chunks_exact(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    };
    match key.as_bytes().first() {
        Some(b'l') => Value::List(texts().map(Into::into).collect()),
        Some(b't') => Value::Set(texts().collect()),
        Some(b'z') => {
            let scores = pairs()
                .into_iter()
                .map(|(member, score)| (member, score.parse().unwrap_or(i64::MIN)));
            Value::SortedSet(scores.collect())
        }
        Some(b'h') => {
            let times: Vec<String> =
                times.map_or_else(Vec::new, |times| times.items().iter().map(StressReply::text).collect());
            let time_of = |field: &str| {
                let index: usize = field.strip_prefix('f')?.parse().ok()?;
                times.get(index)?.parse().ok()
            };
            let fields = pairs().into_iter().map(|(field, value)| {
                let at = time_of(&field);
                (field, (value, at))
            });
            Value::Hash(fields.collect::<BTreeMap<_, _>>())
        }
        Some(b'x') => Value::Stream(reply.items().iter().map(stream_entry).collect::<VecDeque<_>>()),
        _ => Value::Text(reply.text().into()),
    }
}

fn stream_entry(entry: &StressReply) -> (u64, String) {
    let (id, fields) = match entry.items() {
        [id, fields] => (id.text(), fields.items()),
        _ => (String::new(), &[][..]),
    };
    let id = id.strip_suffix("-1").and_then(|id| id.parse().ok()).unwrap_or(0);
    (id, fields.get(1).map_or_else(String::new, StressReply::text))
}
