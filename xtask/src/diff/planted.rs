//! The planted differences of single replies: at least one for each leeway, just outside it.
//!
//! Both servers are Valkey. The last reply of one of them is altered before it is compared, as if that server had sent
//! it. Without the alteration the comparison must find nothing, and with it, it must find a difference.

use super::case;
use super::connection::Alteration;
use super::exceptions::{self, Exceptions};
use super::generate;
use super::leeway::AllowedDifference;
use super::pair::ComparedServers;
use super::reply::{Body, Reply};
use super::run;

/// A planted difference.
struct PlantedDifference {
    /// The leeway and the difference that it must not hide.
    name: &'static str,
    /// The commands, of which the last one's reply is altered.
    commands: PlantedCommands,
    /// Returns the altered reply.
    alter: fn(&Reply) -> Reply,
}

/// The commands of a planted difference.
enum PlantedCommands {
    /// Lines of a section of a case file, compared under the directives among them.
    Case(&'static str),
    /// Generated commands, each with its leeway.
    Generated(&'static [(&'static str, AllowedDifference)]),
}

use AllowedDifference::{
    Elements, EntryId, ExpiryMilliseconds, ExpirySeconds, IdleTime, LexicographicRange, Milliseconds, None as Strict,
    Order, Pairs, Payload, RandomDraw, Scan, Seconds, Sort, StreamTimes, Type, UnorderedScan,
};
use PlantedCommands::{Case, Generated};

const fn plant(name: &'static str, commands: PlantedCommands, alter: fn(&Reply) -> Reply) -> PlantedDifference {
    PlantedDifference { name, commands, alter }
}

const SMALL_SET: (&str, AllowedDifference) = ("SADD k1 a b c", Strict);
const SMALL_HASH: (&str, AllowedDifference) = ("HSET k1 a 1 b 2 c 3", Strict);
const SMALL_SORTED_SET: (&str, AllowedDifference) = ("ZADD k1 1 a 2 b 3 c", Strict);
const TABLE_MEMBER: &str =
    "SADD k1 a b c a-member-that-is-longer-than-the-sixty-four-bytes-of-a-small-encoding-0123456789";
const TABLE_FIELD: &str =
    "HSET k1 a 1 b 2 a-field-that-is-longer-than-the-sixty-four-bytes-of-a-small-encoding-0123456789 3";

/// The numbers below 100 in order, after `$before`: the most elements of which the order is compared.
macro_rules! hundred_numbers {
    ($before:literal) => {
        concat!(
            $before,
            "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 \
         37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 \
         70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99"
        )
    };
}

const HUNDRED_MEMBERS: (&str, AllowedDifference) = (hundred_numbers!("SADD k1 "), Strict);
const FIFTY_FIELDS: (&str, AllowedDifference) = (hundred_numbers!("HSET k1 "), Strict);

/// The planted differences of generated commands.
#[rustfmt::skip]
const GENERATED: &[PlantedDifference] = &[
    plant("no leeway: another number", Generated(&[("APPEND k1 abc", Strict)]), |reply| scaled(reply, 1, 1, 1)),
    plant("time to live in ms: in seconds", Generated(&[("PSETEX k1 3000 v", Strict), ("PTTL k1", Milliseconds)]), |reply| scaled(reply, 1, 1000, 0)),
    plant("time to live in ms: longer than the lag", Generated(&[("PSETEX k1 100000 v", Strict), ("PTTL k1", Milliseconds)]), |reply| scaled(reply, 1, 1, 5500)),
    plant("time to live in s: in milliseconds", Generated(&[("SETEX k1 100 v", Strict), ("TTL k1", Seconds)]), |reply| scaled(reply, 1000, 1, 0)),
    plant("time to live in s: none", Generated(&[("SETEX k1 100 v", Strict), ("TTL k1", Seconds)]), |reply| scaled(reply, 0, 1, -1)),
    plant("time to live of a field: in seconds", Generated(&[SMALL_HASH, ("HPEXPIRE k1 3000 FIELDS 1 a", Strict), ("HPTTL k1 FIELDS 1 a", Milliseconds)]), |reply| scaled(reply, 1, 1000, 0)),
    plant("absolute time in ms: one more", Generated(&[("SET k1 v PXAT 4000000000123", Strict), ("PEXPIRETIME k1", ExpiryMilliseconds)]), |reply| scaled(reply, 1, 1, 1)),
    plant("absolute time in ms: from a time to live, beyond the lag", Generated(&[("PSETEX k1 100000 v", Strict), ("PEXPIRETIME k1", ExpiryMilliseconds)]), |reply| scaled(reply, 1, 1, 5500)),
    plant("absolute time in s: one more", Generated(&[("SET k1 v EXAT 4000000000", Strict), ("EXPIRETIME k1", ExpirySeconds)]), |reply| scaled(reply, 1, 1, 1)),
    plant("absolute time in s: in milliseconds", Generated(&[("SETEX k1 100 v", Strict), ("EXPIRETIME k1", ExpirySeconds)]), |reply| scaled(reply, 1000, 1, 0)),
    plant("absolute time of a field in ms: one more", Generated(&[SMALL_HASH, ("HPEXPIREAT k1 4000000000123 FIELDS 1 a", Strict), ("HPEXPIRETIME k1 FIELDS 1 a", ExpiryMilliseconds)]), |reply| scaled(reply, 1, 1, 1)),
    plant("absolute time of a field in s: one more", Generated(&[SMALL_HASH, ("HEXPIREAT k1 4000000000 FIELDS 1 a", Strict), ("HEXPIRETIME k1 FIELDS 1 a", ExpirySeconds)]), |reply| scaled(reply, 1, 1, 1)),
    plant("order: another element", Generated(&[SMALL_SET, ("SUNION k1 k2", Order)]), last_replaced),
    plant("type: another type", Generated(&[("SET k1 v", Strict), ("OBJECT REFCOUNT k1", Type)]), as_text),
    plant("elements of a small set: order", Generated(&[SMALL_SET, ("SMEMBERS k1", Elements)]), first_exchanged),
    plant("elements of a table: another element", Generated(&[(TABLE_MEMBER, Strict), ("SMEMBERS k1", Elements)]), last_replaced),
    plant("elements of a table: one is missing", Generated(&[(TABLE_MEMBER, Strict), ("SMEMBERS k1", Elements)]), last_removed),
    plant("pairs of a small hash: order", Generated(&[SMALL_HASH, ("HGETALL k1", Pairs)]), pairs_exchanged),
    plant("pairs of a table: values exchanged", Generated(&[(TABLE_FIELD, Strict), ("HGETALL k1", Pairs)]), values_exchanged),
    plant("page of a small set: order", Generated(&[SMALL_SET, ("SSCAN k1 0", Scan)]), |reply| in_page(reply, first_exchanged)),
    plant("page of a table: another element", Generated(&[(TABLE_MEMBER, Strict), ("SSCAN k1 0 COUNT 100000", Scan)]), |reply| in_page(reply, last_replaced)),
    plant("page in any order: values exchanged", Generated(&[SMALL_HASH, ("HSCAN k1 0", UnorderedScan)]), |reply| in_page(reply, values_exchanged)),
    plant("page in any order: another cursor", Generated(&[SMALL_HASH, ("HSCAN k1 0", UnorderedScan)]), cursor_replaced),
    plant("page of a part of a table: another type", Generated(&[(TABLE_MEMBER, Strict), ("SSCAN k1 0 COUNT 1", Scan)]), as_text),
    plant("draw of members: from elsewhere", Generated(&[SMALL_SET, ("SRANDMEMBER k1 2", RandomDraw("SMEMBERS"))]), last_replaced),
    plant("draw of members: one twice", Generated(&[SMALL_SET, ("SRANDMEMBER k1 2", RandomDraw("SMEMBERS"))]), last_repeats_first),
    plant("draw of members: too few", Generated(&[SMALL_SET, ("SPOP k1 2", RandomDraw("SMEMBERS"))]), last_removed),
    plant("draw of fields: values exchanged", Generated(&[SMALL_HASH, ("HRANDFIELD k1 3 WITHVALUES", RandomDraw("HGETALL"))]), values_exchanged),
    plant("draw of fields: a value as field", Generated(&[SMALL_HASH, ("HRANDFIELD k1", RandomDraw("HGETALL"))]), |reply| with_text(reply, "1")),
    plant("draw of scored members: scores exchanged", Generated(&[SMALL_SORTED_SET, ("ZRANDMEMBER k1 3 WITHSCORES", RandomDraw("ZRANGE"))]), values_exchanged),
    plant("draw of keys: one that does not exist", Generated(&[("SET k1 v", Strict), ("RANDOMKEY", RandomDraw("KEYS"))]), |reply| with_text(reply, "k2")),
    plant("sort: order of a list", Generated(&[("RPUSH k1 3 1 2", Strict), ("SORT k1", Sort)]), first_exchanged),
    plant("sort by equal weights: too few", Generated(&[("RPUSH k1 3 1 2", Strict), ("SORT k1 BY w_* ALPHA", Sort)]), last_removed),
    plant("sort of a table without order: another element", Generated(&[(TABLE_MEMBER, Strict), ("SORT k1 BY nosort", Sort)]), last_replaced),
    plant("sort of texts: before a NUL", Generated(&[("RPUSH k1 b a", Strict), ("SORT k1 ALPHA", Sort)]), first_exchanged),
    plant("entry id: another type", Generated(&[("XADD k1 * f v", EntryId)]), as_number),
    plant("entry id of the client: another", Generated(&[("XADD k1 1-1 f v", EntryId)]), |reply| with_text(reply, "1-2")),
    plant("times of a consumer: beyond the lag", Generated(STREAM_CONSUMER), |reply| named_changed(reply, b"idle")),
    plant("times of a consumer: number of entries", Generated(STREAM_CONSUMER), |reply| named_changed(reply, b"pending")),
    plant("idle time of an entry: beyond the lag", Generated(PENDING_ENTRY), |reply| column_changed(reply, 2)),
    plant("idle time of an entry: number of deliveries", Generated(PENDING_ENTRY), |reply| column_changed(reply, 3)),
    plant("lexicographic range of equal scores: another element", Generated(&[("ZADD k1 0 a 0 b", Strict), ("ZRANGEBYLEX k1 - +", LexicographicRange)]), last_replaced),
    plant("lexicographic range of mixed scores: another type", Generated(&[SMALL_SORTED_SET, ("ZRANGEBYLEX k1 - +", LexicographicRange)]), as_text),
    plant("payload: another byte", Generated(&[("SET k1 v", Strict), ("DUMP k1", Payload)]), |reply| with_text(reply, "x")),
    plant("payload of a table: another type", Generated(&[(TABLE_MEMBER, Strict), ("DUMP k1", Payload)]), as_number),
    plant("order of more than 100 elements: of 100 members", Generated(&[HUNDRED_MEMBERS, ("SMEMBERS k1", Elements)]), first_exchanged),
    plant("order of more than 100 elements: another member", Generated(&[HUNDRED_MEMBERS, ("SADD k1 100", Strict), ("SMEMBERS k1", Elements)]), last_replaced),
    plant("order of more than 100 elements: of 50 fields", Generated(&[FIFTY_FIELDS, ("HGETALL k1", Pairs)]), pairs_exchanged),
    plant("order of more than 100 elements: values exchanged", Generated(&[FIFTY_FIELDS, ("HSET k1 100 101", Strict), ("HGETALL k1", Pairs)]), values_exchanged),
    plant("nodes of the index of a stream: number of entries", Generated(&[("XADD k1 1-1 f v", Strict), ("XINFO STREAM k1", StreamTimes)]), |reply| value_changed(reply, b"length")),
    plant("nodes of the index of a stream: another name", Generated(&[("XADD k1 1-1 f v", Strict), ("XINFO STREAM k1", StreamTimes)]), |reply| name_changed(reply, b"radix-tree-nodes")),
    plant("index beyond 32 bits: the largest within", Generated(&[("RPUSH k1 a b", Strict), ("LSET k1 2147483647 c", Strict)]), as_text),
    plant("index beyond 32 bits: the smallest within", Generated(&[("RPUSH k1 a b", Strict), ("LSET k1 -2147483648 c", Strict)]), as_text),
    plant("index beyond 32 bits: of another command", Generated(&[("RPUSH k1 a b", Strict), ("LINDEX k1 4294967295", Strict)]), as_text),
    plant("key called FIELDS: in another command", Generated(&[("HSET FIELDS a 1", Strict)]), |reply| scaled(reply, 1, 1, 1)),
    plant("key called FIELDS: another key", Generated(&[SMALL_HASH, ("HPERSIST k1 FIELDS 1 a", Strict)]), |reply| scaled(reply, 1, 1, 1)),
    plant("sort converts a sorted set: without SORT", Generated(&[SMALL_SORTED_SET, ("ZSCORE k1 a", Strict)]), |reply| with_text(reply, "2")),
    plant("sort converts a sorted set: another value", Generated(&[("RPUSH k1 3 1 2", Strict), ("SORT k1", Sort), ("LRANGE k1 0 -1", Strict)]), first_exchanged),
];

const STREAM_CONSUMER: &[(&str, AllowedDifference)] = &[
    ("XADD k1 1-1 f v", Strict),
    ("XGROUP CREATE k1 g 0", Strict),
    ("XREADGROUP GROUP g c STREAMS k1 >", Strict),
    ("XINFO CONSUMERS k1 g", StreamTimes),
];

const PENDING_ENTRY: &[(&str, AllowedDifference)] = &[
    ("XADD k1 1-1 f v", Strict),
    ("XGROUP CREATE k1 g 0", Strict),
    ("XREADGROUP GROUP g c STREAMS k1 >", Strict),
    ("XPENDING k1 g - + 10", IdleTime),
];

/// The planted differences of case files.
#[rustfmt::skip]
const CASES: &[PlantedDifference] = &[
    plant("@ignore: another type", Case("SET k v\n@ignore\nGET k"), as_number),
    plant("@ignore: null", Case("SET k v\n@ignore\nGET k"), |reply| Reply { body: Body::Null, ..*reply }),
    plant("@shape: too few", Case("RPUSH k a b\n@shape\nLRANGE k 0 -1"), last_removed),
    plant("@both-error: no error", Case("@both-error\nGET"), as_text),
    plant("@error-code: another code", Case("@error-code\nGET"), |reply| with_text(reply, "WRONGTYPE x")),
    plant("@approx: beyond it", Case("SET k v EX 100\n@approx 2\nTTL k"), |reply| scaled(reply, 1, 1, -5)),
    plant("@approx: another unit", Case("SET k v PX 1500\n@approx 2000\nPTTL k"), |reply| scaled(reply, 1, 1000, 0)),
    plant("@column: another column", Case("XADD s 1-1 f v\nXGROUP CREATE s g 0\nXREADGROUP GROUP g c STREAMS s >\n@column 2 5000\nXPENDING s g - + 10"), |reply| column_changed(reply, 3)),
    plant("@stream-times: number of entries", Case("XADD s 1-1 f v\nXGROUP CREATE s g 0\nXREADGROUP GROUP g c STREAMS s >\n@stream-times\nXINFO CONSUMERS s g"), |reply| named_changed(reply, b"pending")),
    plant("@expiry: an absolute time, one more", Case("SET k v PXAT 4000000000123\n@expiry ms\nPEXPIRETIME k"), |reply| scaled(reply, 1, 1, 1)),
    plant("@unordered: another element", Case("RPUSH k a b\n@unordered\nLRANGE k 0 -1"), last_replaced),
    plant("@unordered-pairs: values exchanged", Case("HSET k a 1 b 2\n@unordered-pairs\nHGETALL k"), values_exchanged),
    plant("@unordered-tables: order of a list in a list", Case("@unordered-tables\nEVAL \"return {{1,2},{3}}\" 0"), |reply| in_first(reply, first_exchanged)),
    plant("@lines: another line", Case("@lines\nINFO nosuch"), |reply| with_text(reply, "a:1")),
    plant("@fields: another name", Case("@fields\nCLIENT INFO"), |reply| replaced(reply, " age=", " old=")),
    plant("@keys: another name", Case("@keys\nCONFIG GET port"), |reply| in_first(reply, |name| with_text(name, "other"))),
    plant("@mask: the value of another name", Case("SET k v\n@mask avg_ttl\nINFO keyspace"), |reply| replaced(reply, "keys=1", "keys=2")),
    plant("@scan: another element", Case("SADD k a b\n@scan SSCAN k CURSOR"), |reply| in_page(reply, last_replaced)),
    plant("@info: another name", Case("@info\nINFO everything"), |reply| replaced(reply, "used_memory_lua:", "used_memory_lu:")),
    plant("@info: a field is missing", Case("@info\nINFO everything"), |reply| replaced(reply, "tcp_port:", "weft_tcp_port:")),
    plant("@info: another field of a thread", Case("@info\nINFO everything"), |reply| replaced(reply, "used_active_time_main_thread:", "used_active_time_io_thread:")),
    plant("@info: another value", Case("@info\nINFO everything"), |reply| replaced(reply, "server_mode:standalone", "server_mode:cluster")),
    plant("@info: a section is missing", Case("@info\nINFO everything"), |reply| replaced(reply, "# CPU\r\n", "")),
    plant("@info: another number of calls", Case("CONFIG RESETSTAT\nGET k\n@info\nINFO commandstats"), |reply| replaced(reply, "cmdstat_get:calls=1", "cmdstat_get:calls=2")),
    plant("@info: no leeway for an error", Case("@info\nINFO a b c"), as_error),
];

/// Checks all planted differences. Returns the name of each.
///
/// # Errors
/// Fails for the first one that is not found, if the servers differ without it, or if a leeway has none.
pub fn check_all(servers: &mut ComparedServers, exceptions: &Exceptions) -> Result<Vec<String>, String> {
    let all = all_planted();
    check_completeness(&all)?;
    let mut names = Vec::new();
    for planted in all {
        let name = planted.name;
        let detects = |servers: &mut ComparedServers, alter| match planted.commands {
            Generated(commands) => generate::detects(servers, commands, alter, exceptions),
            Case(lines) => detects_in_case(servers, lines, alter, exceptions),
        };
        if detects(servers, None).map_err(|why| format!("{name}: {why}"))? {
            return Err(format!("{name}: Valkey differs from itself"));
        }
        if !detects(servers, Some(planted.alter)).map_err(|why| format!("{name}: {why}"))? {
            return Err(format!("the planted difference is not found: {name}"));
        }
        names.push(name.to_string());
    }
    names.push(check_exception_texts()?);
    Ok(names)
}

fn all_planted() -> Vec<&'static PlantedDifference> {
    GENERATED.iter().chain(CASES).collect()
}

/// Checks that there is a planted difference for every leeway of generated commands, for every exception that the code
/// recognises, and for every directive that weakens a comparison.
///
/// # Errors
/// Fails for the first one without a planted difference.
fn check_completeness(planted: &[&PlantedDifference]) -> Result<(), String> {
    let is_planted = |leeway: &AllowedDifference| {
        planted.iter().any(|planted| match planted.commands {
            Generated(commands) => commands.last().is_some_and(|(_, last)| last == leeway),
            Case(_) => false,
        })
    };
    if let Some(leeway) = generate::used_leeways().iter().find(|leeway| !is_planted(leeway)) {
        return Err(format!("no difference is planted for the leeway {leeway:?}"));
    }
    let directives = case::COMPARISON_DIRECTIVES.iter().map(|name| format!("@{name}"));
    let mut subjects = exceptions::GENERATED.iter().map(ToString::to_string).chain(directives);
    let has_none = |subject: &String| {
        let start = format!("{subject}: ");
        !planted.iter().any(|planted| planted.name.starts_with(&start))
    };
    match subjects.find(has_none) {
        Some(subject) => Err(format!("no difference is planted for '{subject}'")),
        None => Ok(()),
    }
}

/// Runs the lines as a section and alters the last reply.
fn detects_in_case(
    servers: &mut ComparedServers,
    lines: &str,
    alter: Option<fn(&Reply) -> Reply>,
    exceptions: &Exceptions,
) -> Result<bool, String> {
    let file = case::parse("planted.case", &format!("== planted\n{lines}\n"))?;
    let section = file.sections.first().ok_or("no section")?;
    servers.plant(alter.map(|alter| Alteration {
        after: section.steps.len() - 1,
        alter,
    }));
    let report = run::run_section(servers, section, 2, false, exceptions)?;
    servers.plant(None);
    Ok(!report.differences.is_empty())
}

/// Checks that an exception accepts its own two texts only.
fn check_exception_texts() -> Result<String, String> {
    let text = "== reply a.case | one | GET k\nreason: planted\nweft: \"1\"\nvalkey: \"2\"\n";
    let exceptions = Exceptions::parse(text)?;
    let place = ["a.case", "one", "GET k"];
    if exceptions.accepts_reply(place, "\"1\"", "\"3\"") || exceptions.accepts_reply(place, "\"0\"", "\"2\"") {
        return Err("an exception accepts another difference".to_string());
    }
    Ok("exceptions: another text".to_string())
}

/// Applies `alter` to every number: `number * times / by + plus`.
fn scaled(reply: &Reply, times: i64, by: i64, plus: i64) -> Reply {
    let body = match &reply.body {
        Body::Text(text) => {
            let number: i64 = std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or_default();
            Body::Text((number * times / by + plus).to_string().into_bytes())
        }
        Body::Items(items) => Body::Items(items.iter().map(|item| scaled(item, times, by, plus)).collect()),
        Body::Null => Body::Null,
    };
    Reply { body, ..*reply }
}

fn with_text(reply: &Reply, text: &str) -> Reply {
    Reply {
        body: Body::Text(text.as_bytes().to_vec()),
        ..*reply
    }
}

/// Returns a simple string in place of the reply.
fn as_text(_: &Reply) -> Reply {
    Reply {
        kind: b'+',
        body: Body::Text(b"x".to_vec()),
    }
}

/// Returns a number in place of the reply.
fn as_number(_: &Reply) -> Reply {
    Reply {
        kind: b':',
        body: Body::Text(b"1".to_vec()),
    }
}

/// Returns an error in place of the reply.
fn as_error(_: &Reply) -> Reply {
    Reply {
        kind: b'-',
        body: Body::Text(b"ERR x".to_vec()),
    }
}

fn replaced(reply: &Reply, from: &str, to: &str) -> Reply {
    let text = String::from_utf8_lossy(reply.text()).replace(from, to);
    with_text(reply, &text)
}

fn with_items(reply: &Reply, change: impl FnOnce(&mut Vec<Reply>)) -> Reply {
    let mut items = reply.items().to_vec();
    change(&mut items);
    Reply {
        body: Body::Items(items),
        ..*reply
    }
}

fn in_place(reply: &Reply, place: usize, alter: fn(&Reply) -> Reply) -> Reply {
    with_items(reply, |items| {
        if let Some(item) = items.get_mut(place) {
            *item = alter(item);
        }
    })
}

fn in_first(reply: &Reply, alter: fn(&Reply) -> Reply) -> Reply {
    in_place(reply, 0, alter)
}

/// Alters the elements of a cursor's page.
fn in_page(reply: &Reply, alter: fn(&Reply) -> Reply) -> Reply {
    in_place(reply, 1, alter)
}

fn cursor_replaced(reply: &Reply) -> Reply {
    in_first(reply, |cursor| with_text(cursor, "7"))
}

fn first_exchanged(reply: &Reply) -> Reply {
    with_items(reply, |items| items.swap(0, 1))
}

fn pairs_exchanged(reply: &Reply) -> Reply {
    with_items(reply, |items| {
        items.swap(0, 2);
        items.swap(1, 3);
    })
}

fn values_exchanged(reply: &Reply) -> Reply {
    with_items(reply, |items| items.swap(1, 3))
}

fn last_removed(reply: &Reply) -> Reply {
    with_items(reply, |items| {
        items.pop();
    })
}

fn last_replaced(reply: &Reply) -> Reply {
    with_items(reply, |items| {
        if let Some(last) = items.last_mut() {
            *last = with_text(last, "planted");
        }
    })
}

fn last_repeats_first(reply: &Reply) -> Reply {
    with_items(reply, |items| {
        if let (Some(first), Some(last)) = (items.first().cloned(), items.last_mut()) {
            *last = first;
        }
    })
}

/// Adds an hour to the number after `name`, in the first row.
fn named_changed(reply: &Reply, name: &[u8]) -> Reply {
    with_items(reply, |rows| {
        if let Some(row) = rows.first_mut() {
            *row = with_items(row, |items| {
                if let Some(place) = items.iter().position(|item| item.text() == name) {
                    items[place + 1] = scaled(&items[place + 1], 1, 1, 3_600_000);
                }
            });
        }
    })
}

/// Changes the number after `name`.
fn value_changed(reply: &Reply, name: &[u8]) -> Reply {
    with_items(reply, |items| {
        if let Some(place) = items.iter().position(|item| item.text() == name) {
            items[place + 1] = scaled(&items[place + 1], 1, 1, 1);
        }
    })
}

/// Changes the element `name`.
fn name_changed(reply: &Reply, name: &[u8]) -> Reply {
    with_items(reply, |items| {
        if let Some(item) = items.iter_mut().find(|item| item.text() == name) {
            *item = with_text(item, "planted");
        }
    })
}

/// Adds an hour to the number in a column of the first row.
fn column_changed(reply: &Reply, column: usize) -> Reply {
    with_items(reply, |rows| {
        if let Some(row) = rows.first_mut() {
            *row = with_items(row, |items| items[column] = scaled(&items[column], 1, 1, 3_600_000));
        }
    })
}

#[cfg(test)]
mod tests;
