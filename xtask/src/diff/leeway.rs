//! The allowed differences in the reply of a generated command, and the commands around it that are needed to judge
//! them.
//!
//! A reply is compared as strictly as the state allows. Where the order of a table is visible, it is the order of
//! insertion while the value is small (`listpack`, `intset`), and any order once the value is large or a hash table.
//! The encoding is therefore queried before. A random draw must have the right size and come from the value, so the
//! whole value is read before. The elements that a draw removes differ between the servers, so the key is deleted after
//! it.
//!
//! ```text
//! OBJECT ENCODING k1      before: its reply is compared, and decides how strictly the next one is compared
//! HGETALL k1              the command
//!
//! SMEMBERS k1             before: the elements from which the draw must come
//! SPOP k1 2               the command: the same number of elements, all of them from there, none twice
//! DEL k1                  after: the servers are equal again
//! ```

use super::connection::{Answer, words};
use super::normalise::Rule;
use super::pair::Both;
use super::reply::{Body, Reply};
use super::run::answers_agree;

/// The differences that the comparison of a generated command allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leeway {
    /// No difference.
    None,
    /// The time that passes between the two servers: a few seconds, in milliseconds.
    Clock,
    /// The time that passes between the two servers, in seconds.
    Seconds,
    /// The order of elements.
    Order,
    /// Everything but the type.
    Type,
    /// The order of elements, if a hash table holds them.
    Elements,
    /// The order of pairs, if a hash table holds them.
    Pairs,
    /// The order within a page of a cursor, if a table is iterated.
    Scan,
    /// The order within a page of a cursor, for any encoding.
    UnorderedScan,
    /// The choice of the elements that were drawn from the reply of this command.
    Drawn(&'static str),
    /// The order of elements that compare as equal.
    Sort,
    /// The id of an entry that the server chooses.
    EntryId,
    /// The time since consumers were last seen.
    StreamTimes,
    /// The time since an entry was delivered.
    Idle,
    /// The elements of a lexicographic range, unless all scores are equal: only then is the range defined.
    Words,
    /// The bytes of values whose order is not defined.
    Payload,
}

/// The time that may pass between the two servers, in milliseconds.
const LAG_MS: i64 = 5000;

/// The number of elements above which the order of a reply is not compared.
const LONG_REPLY: usize = 100;

/// A command with its answers and those of the command before it.
pub struct Evidence<'a> {
    /// The command.
    pub words: &'a [Vec<u8>],
    /// The servers' answers to the command of [`Leeway::before`].
    pub before: Option<&'a Both<Answer>>,
    /// The servers' answers to the command.
    pub answers: &'a Both<Answer>,
}

impl Leeway {
    /// Returns the leeway for sequences in which small sets may be copies of hash tables, so that even their order is
    /// not defined.
    pub fn without_order(self) -> Self {
        match self {
            Self::Elements => Self::Order,
            Self::Scan => Self::UnorderedScan,
            Self::Payload => Self::Type,
            other => other,
        }
    }

    /// Returns the command to send before `command`.
    pub fn before(self, command: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        let key = command.get(if is(command, 0, "ZRANGESTORE") { 2 } else { 1 })?.clone();
        let line = match self {
            Self::Words if is_between_words(command) => "ZRANGE",
            Self::Elements | Self::Pairs | Self::Scan | Self::UnorderedScan | Self::Sort | Self::Payload => {
                "OBJECT ENCODING"
            }
            Self::Drawn(reader) => reader,
            _ => return None,
        };
        let mut query = words(line);
        query.push(key);
        if line == "ZRANGE" {
            query.extend(words("0 -1 WITHSCORES"));
        }
        Some(query)
    }

    /// Returns the command to send after `command`, so that both servers hold the same data again.
    pub fn after(self, command: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        let key = match self {
            Self::Drawn("SMEMBERS") if is(command, 0, "SPOP") => command.get(1)?,
            Self::EntryId if has(command, "*") => command.get(1)?,
            Self::Words if is_between_words(command) && is_writing(command) => command.get(1)?,
            Self::Sort if is_sorted_by_words_elsewhere(command) => {
                let place = command.iter().rposition(|word| word.eq_ignore_ascii_case(b"STORE"))?;
                command.get(place + 1)?
            }
            _ => return None,
        };
        Some([words("DEL"), vec![key.clone()]].concat())
    }

    /// Returns the leeway as rules of the comparison.
    pub fn rules(self, evidence: &Evidence) -> Vec<Rule> {
        let words = evidence.words;
        let in_table = || encoding(evidence) == b"hashtable";
        match self {
            Self::None => Vec::new(),
            Self::Clock => vec![Rule::Approx(LAG_MS)],
            Self::Seconds => vec![Rule::Approx(LAG_MS / 1000)],
            Self::Order => vec![Rule::Unordered],
            Self::Type => vec![Rule::Type],
            // The text of an error is always defined.
            _ if is_error(&evidence.answers.valkey) => Vec::new(),
            Self::Elements if in_table() || is_long(evidence) => vec![Rule::Unordered],
            Self::Pairs if in_table() || is_long(evidence) => vec![Rule::UnorderedPairs],
            Self::Elements | Self::Pairs => Vec::new(),
            Self::Scan => page_rules(words, encoding(evidence), true),
            Self::UnorderedScan => page_rules(words, encoding(evidence), false),
            Self::Drawn(_) => vec![Rule::Shape],
            Self::Sort if is_sorted_by_words_elsewhere(words) => vec![Rule::Length],
            // Texts are compared up to their first NUL byte. Texts that differ only after it are equal and may be in
            // any order.
            Self::Sort if has(words, "ALPHA") && !has(words, "BY") && !has(words, "STORE") => vec![Rule::BehindNul],
            // BY may leave the elements unsorted. The part that LIMIT selects then also depends on the order.
            Self::Sort if in_table() && has(words, "BY") && has(words, "LIMIT") => vec![Rule::Length],
            Self::Sort if in_table() && has(words, "BY") => vec![Rule::Unordered],
            Self::EntryId if has(words, "*") => vec![Rule::Type],
            Self::Words if is_between_words(words) && !has_one_score(evidence) => vec![Rule::Type],
            Self::Sort | Self::EntryId | Self::Words => Vec::new(),
            Self::StreamTimes => {
                let near = ["idle", "inactive", "seen-time", "active-time"].map(String::from);
                // The number of nodes of its index is specific to each server.
                let own = ["radix-tree-keys", "radix-tree-nodes"].map(String::from);
                vec![
                    Rule::Mask(own.to_vec()),
                    Rule::NearNames(near.to_vec(), LAG_MS),
                    Rule::NearMoments(LAG_MS),
                ]
            }
            Self::Idle => vec![Rule::NearColumn(2, LAG_MS)],
            Self::Payload if matches!(encoding(evidence), b"hashtable" | b"quicklist" | b"stream") => vec![Rule::Type],
            Self::Payload => Vec::new(),
        }
    }

    /// Returns `true` if the servers agree.
    pub fn accepts(self, evidence: &Evidence) -> bool {
        if !answers_agree(&self.rules(evidence), evidence.answers) {
            return false;
        }
        match (self, evidence.before) {
            (Self::Drawn(reader), Some(before)) if !is_error(&evidence.answers.valkey) => {
                let fair = |answer, whole| is_fair_draw(reader, evidence.words, answer, whole);
                fair(&evidence.answers.weft, &before.weft) && fair(&evidence.answers.valkey, &before.valkey)
            }
            _ => true,
        }
    }

    /// Returns the rules for comparing the answers to the command of [`Leeway::before`].
    pub fn rules_before(self) -> Vec<Rule> {
        match self {
            Self::Drawn("HGETALL") => vec![Rule::UnorderedPairs],
            Self::Drawn("SMEMBERS") => vec![Rule::Unordered],
            _ => Vec::new(),
        }
    }
}

fn is(command: &[Vec<u8>], place: usize, word: &str) -> bool {
    let found = command.get(place);
    found.is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
}

fn has(command: &[Vec<u8>], word: &str) -> bool {
    (2..command.len()).any(|place| is(command, place, word))
}

/// Returns `true` for SORT with BY and ALPHA, which leaves the order of elements with equal weights undefined.
fn is_sorted_by_words_elsewhere(command: &[Vec<u8>]) -> bool {
    has(command, "BY") && has(command, "ALPHA")
}

/// Returns `true` if the command uses a lexicographic range of a sorted set.
fn is_between_words(command: &[Vec<u8>]) -> bool {
    let name = command
        .first()
        .map(|name| name.to_ascii_uppercase())
        .unwrap_or_default();
    has(command, "BYLEX") || name.ends_with(b"BYLEX") || name == b"ZLEXCOUNT"
}

fn is_writing(command: &[Vec<u8>]) -> bool {
    is(command, 0, "ZRANGESTORE") || is(command, 0, "ZREMRANGEBYLEX")
}

/// Returns `true` if all elements of the sorted set that was read before have the same score.
fn has_one_score(evidence: &Evidence) -> bool {
    let mut scores = Vec::new();
    if let Some(reply) = evidence.before.and_then(|before| reply(&before.valkey)) {
        leaves(reply, &mut scores);
    }
    let mut scores = scores.into_iter().skip(1).step_by(2);
    let first = scores.next();
    scores.all(|score| Some(score) == first)
}

fn is_error(answer: &Answer) -> bool {
    matches!(answer, Answer::Reply(received) if received.reply.is_error())
}

/// Returns `true` if the value is so large that its order is specific to each server, for any encoding. The order is
/// not part of the documented behaviour, and Weft keeps a field's position when it is set again only in hashes of up to
/// 2 KiB.
fn is_long(evidence: &Evidence) -> bool {
    reply(&evidence.answers.valkey).is_some_and(|reply| reply.items().len() > LONG_REPLY)
}

fn reply(answer: &Answer) -> Option<&Reply> {
    match answer {
        Answer::Reply(received) => Some(&received.reply),
        _ => None,
    }
}

/// The name of the encoding in Valkey.
fn encoding<'a>(evidence: &'a Evidence) -> &'a [u8] {
    let reply = evidence.before.and_then(|before| reply(&before.valkey));
    reply.map_or(b"", Reply::text)
}

/// Returns the rules for a page of a cursor. A page of a small value is the whole value, in order. A page of a table is
/// the whole table if the requested count is large enough.
fn page_rules(command: &[Vec<u8>], encoding: &[u8], ordered: bool) -> Vec<Rule> {
    let in_table = matches!(encoding, b"hashtable" | b"skiplist");
    if !in_table && ordered {
        return Vec::new();
    }
    if in_table && !(has(command, "100000") && is(command, 2, "0")) {
        return vec![Rule::Type];
    }
    let pairs = !is(command, 0, "SSCAN") && !has(command, "NOVALUES") && !has(command, "NOSCORES");
    vec![Rule::UnorderedPage { pairs }]
}

/// Returns `true` if all drawn elements come from the whole value, and none occurs twice unless the command allows it.
fn is_fair_draw(reader: &str, command: &[Vec<u8>], drawn: &Answer, whole: &Answer) -> bool {
    let (Some(drawn), Some(whole)) = (reply(drawn), reply(whole)) else {
        return false;
    };
    let mut known = Vec::new();
    leaves(whole, &mut known);
    let mut found = Vec::new();
    leaves(drawn, &mut found);
    if found.iter().any(|leaf| !known.contains(leaf)) {
        return false;
    }
    let with_more = command.len() > 3 && reader != "SMEMBERS";
    let width = if with_more { 2 } else { 1 };
    let mut elements: Vec<&[u8]> = found.into_iter().step_by(width).collect();
    let all = elements.len();
    elements.sort_unstable();
    elements.dedup();
    let repeats = command.get(2).is_some_and(|count| count.starts_with(b"-"));
    repeats || elements.len() == all
}

fn leaves<'a>(reply: &'a Reply, out: &mut Vec<&'a [u8]>) {
    match &reply.body {
        Body::Text(text) if reply.kind != b'_' => out.push(text),
        Body::Null | Body::Text(_) => {}
        Body::Items(items) => items.iter().for_each(|item| leaves(item, out)),
    }
}

#[cfg(test)]
mod tests;
