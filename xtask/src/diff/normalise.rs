//! Decides if two replies agree, given the differences that are allowed between two servers.

use super::reply::{Body, Reply};

/// A difference that a comparison ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparisonRule {
    /// Everything but the type of the reply.
    Type,
    /// Everything but the types and the number of elements, at every depth.
    Shape,
    /// Everything but the type and the number of elements.
    Length,
    /// The text, if both are errors.
    BothError,
    /// Everything of an error after its code.
    ErrorCode,
    /// Differences between numbers of up to this amount. It is at most half of the larger number, unless it is a few
    /// units: a time in another unit is therefore always a difference.
    Approx(i64),
    /// The time between the two servers in an absolute time in seconds (`false`) or milliseconds (`true`) that a time
    /// to live has set. Times far in the future were set as such; they must be equal.
    NearExpiry(bool),
    /// The order of the elements; a map's values stay with their keys.
    Unordered,
    /// The order of pairs, in a map or in an array in which names and values alternate.
    UnorderedPairs,
    /// The order within the second element, which is a cursor command's page: the order of pairs or of single elements.
    UnorderedPage {
        /// `true` if names and values alternate in it.
        pairs: bool,
    },
    /// The order of maps, sets and arrays of aggregates, at every depth.
    UnorderedTables,
    /// The part of an array's texts from the first NUL byte.
    AfterNul,
    /// The order of the lines of a text.
    UnorderedLines,
    /// The values in `name:value` and `name=value` lines, and the order of the lines.
    Fields,
    /// The part of a reply of INFO that `info.rs` leaves out.
    Info,
    /// The values of a map, and its order.
    Keys,
    /// Differences of up to this amount between the numbers that belong to these names, at every depth.
    NearNames(Vec<String>, i64),
    /// Differences of up to this amount between Unix times in milliseconds.
    NearUnixTimes(i64),
    /// Differences of up to this amount between the numbers in this column of the rows of an array.
    NearColumn(usize, i64),
    /// The values of these names in `name=value` and `name:value` texts, and in maps.
    Mask(Vec<String>),
}

/// Returns `true` if the two replies are equal under `rules`.
pub fn replies_agree(rules: &[ComparisonRule], a: &Reply, b: &Reply) -> bool {
    if rules.contains(&ComparisonRule::BothError) && a.is_error() && b.is_error() {
        return true;
    }
    let tolerance = rules.iter().find_map(|rule| match rule {
        ComparisonRule::Approx(tolerance) => Some(Tolerance::Number(*tolerance)),
        ComparisonRule::NearExpiry(in_ms) => Some(Tolerance::Expiry { in_ms: *in_ms }),
        _ => None,
    });
    let b = rules.iter().fold(b.clone(), |b, rule| align_near_numbers(rule, a, b));
    are_close(
        &apply_rules(rules, a),
        &apply_rules(rules, &b),
        tolerance.unwrap_or(Tolerance::Number(0)),
    )
}

/// Returns `reply` with everything that `rules` ignore replaced or sorted.
pub fn apply_rules(rules: &[ComparisonRule], reply: &Reply) -> Reply {
    rules.iter().fold(reply.clone(), |reply, rule| apply_rule(rule, reply))
}

fn apply_rule(rule: &ComparisonRule, reply: Reply) -> Reply {
    match rule {
        ComparisonRule::Type => Reply {
            body: match reply.body {
                Body::Null => Body::Null,
                _ => text(""),
            },
            ..reply
        },
        ComparisonRule::Shape => shape(&reply),
        ComparisonRule::Length => length(&reply),
        ComparisonRule::ErrorCode if reply.is_error() => {
            let code = reply.text().split(|byte| *byte == b' ').next();
            let body = Body::Text(code.unwrap_or_default().to_vec());
            Reply { body, ..reply }
        }
        ComparisonRule::Unordered => unordered(&reply),
        ComparisonRule::UnorderedTables => unordered_tables(&reply),
        ComparisonRule::AfterNul => cut_at_nul(&reply),
        ComparisonRule::UnorderedLines => map_lines(&reply, |line| line.to_string(), true),
        ComparisonRule::Fields => map_lines(&reply, field_names, true),
        ComparisonRule::Keys => keys(&reply),
        ComparisonRule::Mask(names) => mask(&reply, names),
        ComparisonRule::UnorderedPairs => unordered_pairs(&reply),
        ComparisonRule::UnorderedPage { pairs } => unordered_page(&reply, *pairs),
        ComparisonRule::ErrorCode
        | ComparisonRule::BothError
        | ComparisonRule::Approx(_)
        | ComparisonRule::NearExpiry(_)
        | ComparisonRule::Info
        | ComparisonRule::NearNames(..)
        | ComparisonRule::NearUnixTimes(_)
        | ComparisonRule::NearColumn(..) => reply,
    }
}

fn text(content: &str) -> Body {
    Body::Text(content.as_bytes().to_vec())
}

fn shape(reply: &Reply) -> Reply {
    let body = match &reply.body {
        Body::Null => Body::Null,
        Body::Text(_) => text(""),
        Body::Items(items) => Body::Items(items.iter().map(shape).collect()),
    };
    Reply { kind: reply.kind, body }
}

fn length(reply: &Reply) -> Reply {
    let nothing = Reply {
        kind: b'_',
        body: Body::Null,
    };
    let body = match &reply.body {
        Body::Items(items) => Body::Items(vec![nothing; items.len()]),
        other => other.clone(),
    };
    Reply { kind: reply.kind, body }
}

fn unordered(reply: &Reply) -> Reply {
    let body = match &reply.body {
        Body::Items(items) if reply.kind == b'%' => {
            let mut pairs: Vec<&[Reply]> = items.chunks(2).collect();
            pairs.sort();
            Body::Items(pairs.concat())
        }
        Body::Items(items) => {
            let mut items = items.clone();
            items.sort();
            Body::Items(items)
        }
        other => other.clone(),
    };
    Reply { kind: reply.kind, body }
}

fn unordered_pairs(reply: &Reply) -> Reply {
    let Body::Items(items) = &reply.body else {
        return reply.clone();
    };
    let mut pairs: Vec<&[Reply]> = items.chunks(2).collect();
    pairs.sort();
    Reply {
        kind: reply.kind,
        body: Body::Items(pairs.concat()),
    }
}

fn unordered_page(reply: &Reply, pairs: bool) -> Reply {
    let Body::Items(items) = &reply.body else {
        return reply.clone();
    };
    let sort = if pairs { unordered_pairs } else { unordered };
    let page = |(place, item): (usize, &Reply)| if place == 1 { sort(item) } else { item.clone() };
    Reply {
        kind: reply.kind,
        body: Body::Items(items.iter().enumerate().map(page).collect()),
    }
}

/// The smallest number that counts as a Unix time, in milliseconds. A smaller number is a count or a duration.
const MIN_UNIX_TIME_MS: i128 = 1_000_000_000_000;

/// Returns `b` with those numbers replaced by the numbers of `a` that `rule` considers equal.
fn align_near_numbers(rule: &ComparisonRule, a: &Reply, b: Reply) -> Reply {
    let (Body::Items(theirs), Body::Items(ours)) = (&a.body, &b.body) else {
        let is_near = match rule {
            ComparisonRule::NearUnixTimes(tolerance) => {
                number(a.text()).is_some_and(|moment| moment > MIN_UNIX_TIME_MS) && are_near(a, &b, *tolerance)
            }
            _ => false,
        };
        return if is_near { a.clone() } else { b };
    };
    let mut items = ours.clone();
    for (place, (item, counterpart)) in items.iter_mut().zip(theirs).enumerate() {
        let nearby = match rule {
            ComparisonRule::NearNames(names, tolerance) => {
                let name = place.checked_sub(1).map(|before| theirs[before].text());
                let named = name.is_some_and(|name| names.iter().any(|known| known.as_bytes() == name));
                named && are_near(counterpart, item, *tolerance)
            }
            ComparisonRule::NearColumn(column, tolerance) => {
                if let (Body::Items(row), Some(cell)) = (&mut item.body, counterpart.items().get(*column))
                    && let Some(own) = row.get_mut(*column)
                    && are_near(cell, own, *tolerance)
                {
                    *own = cell.clone();
                }
                continue;
            }
            ComparisonRule::NearUnixTimes(_) => false,
            _ => continue,
        };
        *item = if nearby {
            counterpart.clone()
        } else {
            align_near_numbers(rule, counterpart, item.clone())
        };
    }
    Reply {
        kind: b.kind,
        body: Body::Items(items),
    }
}

/// Returns `true` if both are numbers that differ by at most `tolerance`. A negative number is not a time, so it must
/// be equal.
fn are_near(a: &Reply, b: &Reply, tolerance: i64) -> bool {
    match (number(a.text()), number(b.text())) {
        (Some(a), Some(b)) => a == b || (a >= 0 && b >= 0 && (a - b).abs() <= i128::from(tolerance)),
        _ => false,
    }
}

fn unordered_tables(reply: &Reply) -> Reply {
    let Body::Items(items) = &reply.body else {
        return reply.clone();
    };
    let items: Vec<Reply> = items.iter().map(unordered_tables).collect();
    let aggregates = items.iter().all(|item| matches!(item.body, Body::Items(_)));
    let sorted = aggregates || matches!(reply.kind, b'%' | b'~');
    let reply = Reply {
        kind: reply.kind,
        body: Body::Items(items),
    };
    if sorted { unordered(&reply) } else { reply }
}

/// Returns the keys of a map, or of an array in which keys and values alternate, in sorted order.
fn keys(reply: &Reply) -> Reply {
    let Body::Items(items) = &reply.body else {
        return reply.clone();
    };
    let mut keys: Vec<Reply> = items.iter().step_by(2).cloned().collect();
    keys.sort();
    Reply {
        kind: reply.kind,
        body: Body::Items(keys),
    }
}

fn map_lines(reply: &Reply, change: impl Fn(&str) -> String, sort: bool) -> Reply {
    let Body::Text(content) = &reply.body else {
        return reply.clone();
    };
    if reply.is_error() {
        return reply.clone();
    }
    let content = String::from_utf8_lossy(content);
    // A verbatim string begins with its format, which is not a name of its first line.
    let (format, content) = match content.split_at_checked(4) {
        Some(("txt:", rest)) if reply.kind == b'=' => ("txt:", rest),
        _ => ("", &*content),
    };
    let mut lines: Vec<String> = content.lines().map(change).collect();
    if sort {
        lines.sort();
    }
    Reply {
        kind: reply.kind,
        body: text(&format!("{format}{}", lines.join("\n"))),
    }
}

/// Removes values: `a=1 b=2` → `a= b=`; `name:whatever` → `name:`; other lines stay.
fn field_names(line: &str) -> String {
    let equals = line.find('=').unwrap_or(usize::MAX);
    let colon = line.find(':').unwrap_or(usize::MAX);
    if colon < equals {
        return line.split(':').next().unwrap_or_default().to_string() + ":";
    }
    if equals == usize::MAX {
        return line.to_string();
    }
    let names: Vec<&str> = line
        .split(' ')
        .map(|word| word.split('=').next().unwrap_or_default())
        .collect();
    names.join("= ") + "="
}

fn cut_at_nul(reply: &Reply) -> Reply {
    let body = match &reply.body {
        Body::Items(items) => Body::Items(items.iter().map(cut_at_nul).collect()),
        Body::Text(text) => {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            Body::Text(text[..end].to_vec())
        }
        other => other.clone(),
    };
    Reply { kind: reply.kind, body }
}

fn mask(reply: &Reply, names: &[String]) -> Reply {
    let body = match &reply.body {
        Body::Text(_) if !reply.is_error() => {
            return map_lines(reply, |line| mask_line(line, names), false);
        }
        Body::Items(items) => {
            let mut masked: Vec<Reply> = items.iter().map(|item| mask(item, names)).collect();
            for index in (0..masked.len().saturating_sub(1)).step_by(2) {
                let name = String::from_utf8_lossy(items[index].text()).into_owned();
                if names.contains(&name) {
                    masked[index + 1].body = text("masked");
                }
            }
            Body::Items(masked)
        }
        other => other.clone(),
    };
    Reply { kind: reply.kind, body }
}

fn mask_line(line: &str, names: &[String]) -> String {
    let words: Vec<String> = line
        .split(' ')
        .map(|word| match word.find(['=', ':']) {
            Some(end) if names.iter().any(|name| *name == word[..end]) => {
                format!("{}masked", &word[..=end])
            }
            _ => word.to_string(),
        })
        .collect();
    words.join(" ")
}

/// Returns the rules for replies of XINFO: the times of streams, groups and consumers follow the clock of each server.
pub fn stream_time_rules() -> Vec<ComparisonRule> {
    let near = ["idle", "inactive", "seen-time", "active-time"].map(String::from);
    let lag_ms = MAX_LAG_SECONDS * 1000;
    vec![
        ComparisonRule::NearNames(near.to_vec(), lag_ms),
        ComparisonRule::NearUnixTimes(lag_ms),
    ]
}

/// The smallest tolerance that is limited by the size of the numbers.
const MIN_LIMITED_TOLERANCE: i64 = 10;

/// The first Unix time, in seconds, that the tests set only as an absolute time. Times to live from now on stay below.
const FIRST_ABSOLUTE_SECONDS: i128 = 4_000_000_000;

/// The time that may pass between the two servers, in seconds.
const MAX_LAG_SECONDS: i64 = 5;

/// The numbers that count as equal.
#[derive(Clone, Copy)]
enum Tolerance {
    Number(i64),
    Expiry { in_ms: bool },
}

impl Tolerance {
    fn accepts(self, a: &Reply, b: &Reply) -> bool {
        let (Some(first), Some(second)) = (number(a.text()), number(b.text())) else {
            return false;
        };
        let larger = first.max(second);
        match self {
            Self::Number(0) => false,
            Self::Number(amount) if amount < MIN_LIMITED_TOLERANCE => are_near(a, b, amount),
            Self::Number(amount) => {
                let half = i64::try_from(larger / 2).unwrap_or(i64::MAX);
                are_near(a, b, amount.min(half))
            }
            Self::Expiry { in_ms } => {
                let unit = if in_ms { 1000 } else { 1 };
                larger < FIRST_ABSOLUTE_SECONDS * i128::from(unit) && are_near(a, b, MAX_LAG_SECONDS * unit)
            }
        }
    }
}

/// Returns `true` if the replies are equal, except for numbers that `tolerance` accepts.
fn are_close(a: &Reply, b: &Reply, tolerance: Tolerance) -> bool {
    if a == b {
        return true;
    }
    if a.kind != b.kind {
        return false;
    }
    match (&a.body, &b.body) {
        (Body::Text(_), Body::Text(_)) => tolerance.accepts(a, b),
        (Body::Items(a), Body::Items(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_close(a, b, tolerance))
        }
        _ => false,
    }
}

fn number(text: &[u8]) -> Option<i128> {
    std::str::from_utf8(text).ok()?.parse::<i64>().ok().map(i128::from)
}

#[cfg(test)]
mod tests;
