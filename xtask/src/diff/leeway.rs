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

use super::connection::{ServerAnswer, split_words};
use super::exceptions::Exceptions;
use super::normalise::{ComparisonRule, stream_time_rules};
use super::pair::ServerPair;
use super::reply::{Body, Reply};
use super::run::answers_agree;

/// The differences that the comparison of a generated command allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedDifference {
    /// No difference.
    None,
    /// The time that passes between the two servers, in a time to live in milliseconds.
    Milliseconds,
    /// The time that passes between the two servers, in a time to live in seconds.
    Seconds,
    /// The time that passes between the two servers, in an absolute time in milliseconds that a time to live has set.
    ExpiryMilliseconds,
    /// The time that passes between the two servers, in an absolute time in seconds that a time to live has set.
    ExpirySeconds,
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
    RandomDraw(&'static str),
    /// The order of elements that compare as equal.
    Sort,
    /// The id of an entry that the server chooses.
    EntryId,
    /// The time since consumers were last seen.
    StreamTimes,
    /// The time since an entry was delivered.
    IdleTime,
    /// The elements of a lexicographic range, unless all scores are equal: only then is the range defined.
    LexicographicRange,
    /// The bytes of values whose order is not defined.
    Payload,
}

/// The time that may pass between the two servers, in milliseconds.
const MAX_LAG_MS: i64 = 5000;

/// The number of elements above which the order of a reply is not compared.
const MAX_ORDERED_ELEMENTS: usize = 100;

/// A command with its answers and those of the command before it.
pub struct ObservedAnswers<'a> {
    /// The command.
    pub words: &'a [Vec<u8>],
    /// The servers' answers to the command of [`AllowedDifference::before`].
    pub before: Option<&'a ServerPair<ServerAnswer>>,
    /// The servers' answers to the command.
    pub answers: &'a ServerPair<ServerAnswer>,
    /// The accepted differences.
    pub exceptions: &'a Exceptions,
}

impl AllowedDifference {
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
    pub fn command_before(self, command: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        if self == Self::RandomDraw("KEYS") {
            return Some(split_words("KEYS *"));
        }
        let key = command
            .get(if is_word_at(command, 0, "ZRANGESTORE") { 2 } else { 1 })?
            .clone();
        let line = match self {
            Self::LexicographicRange if is_lexicographic_range(command) => "ZRANGE",
            Self::Elements | Self::Pairs | Self::Scan | Self::UnorderedScan | Self::Sort | Self::Payload => {
                "OBJECT ENCODING"
            }
            Self::RandomDraw(reader) => reader,
            _ => return None,
        };
        let mut query = split_words(line);
        query.push(key);
        if line == "ZRANGE" {
            query.extend(split_words("0 -1 WITHSCORES"));
        }
        Some(query)
    }

    /// Returns the command to send after `command`, so that both servers hold the same data again.
    pub fn command_after(self, command: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        let key = match self {
            Self::RandomDraw("SMEMBERS") if is_word_at(command, 0, "SPOP") => command.get(1)?,
            Self::EntryId if contains_word(command, "*") => command.get(1)?,
            Self::LexicographicRange if is_lexicographic_range(command) && stores_or_removes_range(command) => {
                command.get(1)?
            }
            Self::Sort if is_sorted_by_external_text(command) => {
                let place = command.iter().rposition(|word| word.eq_ignore_ascii_case(b"STORE"))?;
                command.get(place + 1)?
            }
            _ => return None,
        };
        Some([split_words("DEL"), vec![key.clone()]].concat())
    }

    /// Returns the leeway as rules of the comparison.
    pub fn rules(self, evidence: &ObservedAnswers) -> Vec<ComparisonRule> {
        let words = evidence.words;
        let in_table = || encoding(evidence) == b"hashtable";
        match self {
            Self::None => Vec::new(),
            Self::Milliseconds => vec![ComparisonRule::Approx(MAX_LAG_MS)],
            Self::Seconds => vec![ComparisonRule::Approx(MAX_LAG_MS / 1000)],
            Self::ExpiryMilliseconds => vec![ComparisonRule::NearExpiry(true)],
            Self::ExpirySeconds => vec![ComparisonRule::NearExpiry(false)],
            Self::Order => vec![ComparisonRule::Unordered],
            Self::Type => vec![ComparisonRule::Type],
            // The text of an error is always defined.
            _ if is_error(&evidence.answers.valkey) => Vec::new(),
            Self::Elements if in_table() || is_long(evidence) => vec![ComparisonRule::Unordered],
            Self::Pairs if in_table() || is_long(evidence) => vec![ComparisonRule::UnorderedPairs],
            Self::Elements | Self::Pairs => Vec::new(),
            Self::Scan => page_rules(words, encoding(evidence), true),
            Self::UnorderedScan => page_rules(words, encoding(evidence), false),
            Self::RandomDraw(_) => vec![ComparisonRule::Shape],
            Self::Sort if is_sorted_by_external_text(words) => vec![ComparisonRule::Length],
            // Texts are compared up to their first NUL byte. Texts that differ only after it are equal and may be in
            // any order.
            Self::Sort
                if contains_word(words, "ALPHA") && !contains_word(words, "BY") && !contains_word(words, "STORE") =>
            {
                vec![ComparisonRule::AfterNul]
            }
            // BY may leave the elements unsorted. The part that LIMIT selects then also depends on the order.
            Self::Sort if in_table() && contains_word(words, "BY") && contains_word(words, "LIMIT") => {
                vec![ComparisonRule::Length]
            }
            Self::Sort if in_table() && contains_word(words, "BY") => vec![ComparisonRule::Unordered],
            Self::EntryId if contains_word(words, "*") => vec![ComparisonRule::Type],
            Self::LexicographicRange if is_lexicographic_range(words) && !has_one_score(evidence) => {
                vec![ComparisonRule::Type]
            }
            Self::Sort | Self::EntryId | Self::LexicographicRange => Vec::new(),
            Self::StreamTimes => {
                let mut rules = stream_time_rules();
                if evidence.exceptions.accepts_generated("nodes of the index of a stream") {
                    let own = ["radix-tree-keys", "radix-tree-nodes"].map(String::from);
                    rules.push(ComparisonRule::Mask(own.to_vec()));
                }
                rules
            }
            Self::IdleTime => vec![ComparisonRule::NearColumn(2, MAX_LAG_MS)],
            Self::Payload if matches!(encoding(evidence), b"hashtable" | b"quicklist" | b"stream") => {
                vec![ComparisonRule::Type]
            }
            Self::Payload => Vec::new(),
        }
    }

    /// Returns `true` if the servers agree.
    pub fn accepts(self, evidence: &ObservedAnswers) -> bool {
        if !answers_agree(&self.rules(evidence), evidence.answers) {
            return false;
        }
        match (self, evidence.before) {
            (Self::RandomDraw(reader), Some(before)) if !is_error(&evidence.answers.valkey) => {
                let fair = |answer, whole| is_fair_draw(reader, evidence.words, answer, whole);
                fair(&evidence.answers.weft, &before.weft) && fair(&evidence.answers.valkey, &before.valkey)
            }
            _ => true,
        }
    }

    /// Returns the rules for comparing the answers to the command of [`AllowedDifference::before`].
    pub fn rules_before(self) -> Vec<ComparisonRule> {
        match self {
            Self::RandomDraw("HGETALL") => vec![ComparisonRule::UnorderedPairs],
            Self::RandomDraw("SMEMBERS" | "KEYS") => vec![ComparisonRule::Unordered],
            _ => Vec::new(),
        }
    }
}

fn is_word_at(command: &[Vec<u8>], place: usize, word: &str) -> bool {
    let found = command.get(place);
    found.is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
}

fn contains_word(command: &[Vec<u8>], word: &str) -> bool {
    (2..command.len()).any(|place| is_word_at(command, place, word))
}

/// Returns `true` for SORT with BY and ALPHA, which leaves the order of elements with equal weights undefined.
fn is_sorted_by_external_text(command: &[Vec<u8>]) -> bool {
    contains_word(command, "BY") && contains_word(command, "ALPHA")
}

/// Returns `true` if the command uses a lexicographic range of a sorted set.
fn is_lexicographic_range(command: &[Vec<u8>]) -> bool {
    let name = command
        .first()
        .map(|name| name.to_ascii_uppercase())
        .unwrap_or_default();
    contains_word(command, "BYLEX") || name.ends_with(b"BYLEX") || name == b"ZLEXCOUNT"
}

fn stores_or_removes_range(command: &[Vec<u8>]) -> bool {
    is_word_at(command, 0, "ZRANGESTORE") || is_word_at(command, 0, "ZREMRANGEBYLEX")
}

/// Returns `true` if all elements of the sorted set that was read before have the same score.
fn has_one_score(evidence: &ObservedAnswers) -> bool {
    let mut scores = Vec::new();
    if let Some(reply) = evidence.before.and_then(|before| reply_of(&before.valkey)) {
        collect_texts(reply, &mut scores);
    }
    let mut scores = scores.into_iter().skip(1).step_by(2);
    let first = scores.next();
    scores.all(|score| Some(score) == first)
}

fn is_error(answer: &ServerAnswer) -> bool {
    matches!(answer, ServerAnswer::Reply(received) if received.reply.is_error())
}

/// Returns `true` if the value is so large that its order is specific to each server, for any encoding. The order is
/// not part of the documented behaviour, and Weft keeps a field's position when it is set again only in hashes of up to
/// 2 KiB.
fn is_long(evidence: &ObservedAnswers) -> bool {
    reply_of(&evidence.answers.valkey).is_some_and(|reply| reply.items().len() > MAX_ORDERED_ELEMENTS)
        && evidence.exceptions.accepts_generated("order of more than 100 elements")
}

fn reply_of(answer: &ServerAnswer) -> Option<&Reply> {
    match answer {
        ServerAnswer::Reply(received) => Some(&received.reply),
        _ => None,
    }
}

/// The name of the encoding in Valkey.
fn encoding<'a>(evidence: &'a ObservedAnswers) -> &'a [u8] {
    let reply = evidence.before.and_then(|before| reply_of(&before.valkey));
    reply.map_or(b"", Reply::text)
}

/// Returns the rules for a page of a cursor. A page of a small value is the whole value, in order. A page of a table is
/// the whole table if the requested count is large enough.
fn page_rules(command: &[Vec<u8>], encoding: &[u8], ordered: bool) -> Vec<ComparisonRule> {
    let in_table = matches!(encoding, b"hashtable" | b"skiplist");
    if !in_table && ordered {
        return Vec::new();
    }
    if in_table && !(contains_word(command, "100000") && is_word_at(command, 2, "0")) {
        return vec![ComparisonRule::Type];
    }
    let pairs =
        !is_word_at(command, 0, "SSCAN") && !contains_word(command, "NOVALUES") && !contains_word(command, "NOSCORES");
    vec![ComparisonRule::UnorderedPage { pairs }]
}

/// Returns `true` if all drawn elements come from the whole value, each with its own value or score, and none occurs
/// twice unless the command allows it.
fn is_fair_draw(reader: &str, command: &[Vec<u8>], drawn: &ServerAnswer, whole: &ServerAnswer) -> bool {
    let (Some(drawn), Some(whole)) = (reply_of(drawn), reply_of(whole)) else {
        return false;
    };
    let has_pairs = matches!(reader, "HGETALL" | "ZRANGE");
    let draws_pairs = has_pairs && command.len() > 3;
    let known = elements_of(whole, has_pairs);
    let mut found = elements_of(drawn, draws_pairs);
    let width = if draws_pairs { 2 } else { 1 };
    let is_known = |element: &Vec<&[u8]>| known.iter().any(|known| known.get(..width) == Some(element.as_slice()));
    if !found.iter().all(is_known) {
        return false;
    }
    let all = found.len();
    found.sort_unstable();
    found.dedup();
    let repeats = command.get(2).is_some_and(|count| count.starts_with(b"-"));
    repeats || found.len() == all
}

/// Returns the elements of a reply, each with its value or score if the reply has `pairs`.
fn elements_of(reply: &Reply, pairs: bool) -> Vec<Vec<&[u8]>> {
    let mut texts = Vec::new();
    collect_texts(reply, &mut texts);
    texts.chunks(if pairs { 2 } else { 1 }).map(<[&[u8]]>::to_vec).collect()
}

fn collect_texts<'a>(reply: &'a Reply, out: &mut Vec<&'a [u8]>) {
    match &reply.body {
        Body::Text(text) if reply.kind != b'_' => out.push(text),
        Body::Null | Body::Text(_) => {}
        Body::Items(items) => items.iter().for_each(|item| collect_texts(item, out)),
    }
}

#[cfg(test)]
mod tests;
