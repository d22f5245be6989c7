//! The named loads, and the mixtures of them that a run sends.

use crate::content::ValuePool;
use crate::draw::{KeyOrder, RequestDraw};
use crate::error::{Error, Result};
use crate::expect::{ExpectedReply, MatchedReply, ReplyChecker};
use crate::reply::ReplyScanner;
use crate::scripts;
use crate::template::{Template, requests_per_cycle};

#[cfg(test)]
mod tests;

/// A load: a command, the reply it must have, and the command that creates its data.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The name on the command line and in tables.
    pub name: &'static str,
    /// The command; see [`crate::template::PLACEHOLDERS`].
    pub command: &'static str,
    /// The kind of the expected reply; see [`crate::expect::KINDS`].
    pub expect: &'static str,
    /// The command that creates one key of its data; empty if it needs none.
    pub fill: &'static str,
}

/// The command that fills the keyspace with strings.
pub const FILL_STRINGS: &str = "SET {key} {value} {expire}";

/// The command that fills hashes of 50 fields.
pub const FILL_HASHES: &str = "HSET hash:{id} {fields:50}";
/// The command that fills lists of 50 elements.
pub const FILL_LISTS: &str = "RPUSH list:{id} {values:50}";
/// The command that fills sets of 50 members.
pub const FILL_SETS: &str = "SADD set:{id} {names:50}";
/// The command that fills sorted sets of 50 members.
pub const FILL_SORTED_SETS: &str = "ZADD zset:{id} {scored:50}";
/// The command that fills hashes of 10 fields.
pub const FILL_SMALL_HASHES: &str = "HSET hash:{id} {fields:10}";
/// The command that fills lists of 10 elements.
pub const FILL_SMALL_LISTS: &str = "RPUSH list:{id} {values:10}";
/// The command that fills sets of 10 members.
pub const FILL_SMALL_SETS: &str = "SADD set:{id} {names:10}";
/// The command that fills sorted sets of 10 members.
pub const FILL_SMALL_SORTED_SETS: &str = "ZADD zset:{id} {scored:10}";
/// The command that fills one set.
pub const FILL_BIG_SET: &str = "SADD set {idname}";
/// The command that fills one sorted set.
pub const FILL_BIG_SORTED_SET: &str = "ZADD zset {scored-id}";
/// The command that fills lists of 1000 elements.
pub const FILL_QUEUES: &str = "RPUSH queue:{id} {names:1000}";
/// The command that fills lists of 300 elements that are not in order.
pub const FILL_UNSORTED_LISTS: &str = "RPUSH unsorted:{id} {shuffled:300}";
/// The command that fills sets of the shared elements 0 to 999.
pub const FILL_LOW_SETS: &str = "SADD low:{id} {shared:0-1000}";
/// The command that fills sets of the shared elements 500 to 1499.
pub const FILL_HIGH_SETS: &str = "SADD high:{id} {shared:500-1500}";
/// The command that fills counters.
pub const FILL_COUNTERS: &str = "SET counter:{id} {number:1000}";
/// The command that fills HyperLogLogs beyond the size of the sparse representation.
pub const FILL_HYPERLOGLOGS: &str = "PFADD hll:{id} {names:2000}";
/// The command with three commands in a script. It fills strings with a hash each, once the strings exist.
pub const GET_HSET_EXPIRE: &str = "EVALSHA {sha:get-hset-expire} 2 {key} hash:{same-id} 1000000";

const fn load(name: &'static str, command: &'static str, expect: &'static str, fill: &'static str) -> Load {
    Load {
        name,
        command,
        expect,
        fill,
    }
}

/// All named loads.
#[rustfmt::skip]
pub const LOADS: &[Load] = &[
    load("ping", "PING", "pong", ""),
    load("get", "GET {key}", "value", FILL_STRINGS),
    load("get-or-nil", "GET {key}", "value-or-nil", FILL_STRINGS),
    load("set", "SET {key} {value} {expire}", "ok", FILL_STRINGS),
    load("mget100", "MGET {keys:100}", "values:100", FILL_STRINGS),
    load("mset100", "MSET {pairs:100}", "ok", FILL_STRINGS),
    load("incr", "INCR counter:{id}", "integer", FILL_COUNTERS),
    load("set-new", "SET {new-key} {value}", "ok", ""),
    load("set-sized", "SET {key} {value:16-1024}", "ok", FILL_STRINGS),
    load("get-sized", "GET {key}", "prefix:16-1024", FILL_STRINGS),
    load("append", "APPEND {key} {value}", "value-multiple", FILL_STRINGS),
    load("setex", "SETEX {key} 1000000 {value}", "ok", FILL_STRINGS),
    load("set-ex", "SET {key} {value} EX 1000000", "ok", FILL_STRINGS),
    load("del", "DEL {key}", "below:2", FILL_STRINGS),
    load("pfadd", "PFADD hll:{id} {name:1000000}", "below:2", FILL_HYPERLOGLOGS),
    load("hget", "HGET hash:{id} {field:50}", "item", FILL_HASHES),
    load("hgetall", "HGETALL hash:{id}", "fields:50", FILL_HASHES),
    load("hset", "HSET hash:{id} {field:50} {item}", "exactly:0", FILL_HASHES),
    load("lrange", "LRANGE list:{id} 0 -1", "items:50", FILL_LISTS),
    load("lindex", "LINDEX list:{id} {number:50}", "item", FILL_LISTS),
    load("lset", "LSET list:{id} {number:50} {item}", "ok", FILL_LISTS),
    load("sismember", "SISMEMBER set:{id} {name:50}", "exactly:1", FILL_SETS),
    load("smembers", "SMEMBERS set:{id}", "names:50", FILL_SETS),
    load("sadd", "SADD set:{id} {name:50}", "exactly:0", FILL_SETS),
    load("zrange", "ZRANGE zset:{id} 0 -1 WITHSCORES", "scored:50", FILL_SORTED_SETS),
    load("zrank", "ZRANK zset:{id} {name:50}", "number", FILL_SORTED_SETS),
    load("zrank-any", "ZRANK zset:{id} {name:50}", "below:50", FILL_SORTED_SETS),
    load("zadd", "ZADD zset:{id} {number:50} {name:50}", "exactly:0", FILL_SORTED_SETS),
    load("hget10", "HGET hash:{id} {field:10}", "item", FILL_SMALL_HASHES),
    load("hgetall10", "HGETALL hash:{id}", "fields:10", FILL_SMALL_HASHES),
    load("hset10", "HSET hash:{id} {field:10} {item}", "exactly:0", FILL_SMALL_HASHES),
    load("lrange10", "LRANGE list:{id} 0 -1", "items:10", FILL_SMALL_LISTS),
    load("sismember10", "SISMEMBER set:{id} {name:10}", "exactly:1", FILL_SMALL_SETS),
    load("smembers10", "SMEMBERS set:{id}", "names:10", FILL_SMALL_SETS),
    load("zrange10", "ZRANGE zset:{id} 0 -1 WITHSCORES", "scored:10", FILL_SMALL_SORTED_SETS),
    load("zadd10", "ZADD zset:{id} {number:10} {name:10}", "exactly:0", FILL_SMALL_SORTED_SETS),
    load("big-sadd", "SADD set {idname}", "exactly:0", FILL_BIG_SET),
    load("big-sismember", "SISMEMBER set {idname}", "exactly:1", FILL_BIG_SET),
    load("big-zadd", "ZADD zset {number:1000000} {idname}", "exactly:0", FILL_BIG_SORTED_SET),
    load("big-zrank", "ZRANK zset {idname}", "id", FILL_BIG_SORTED_SET),
    load("big-zrangebyscore", "ZRANGEBYSCORE zset {id} +inf LIMIT 0 10", "idnames:10", FILL_BIG_SORTED_SET),
    load("xadd", "XADD events:{id} * {field:50} {item}", "bulk", ""),
    load("lpush", "LPUSH queue:{id} {name:1000000}", "integer", FILL_QUEUES),
    load("rpop", "RPOP queue:{id}", "name", FILL_QUEUES),
    load("push-awaited", "LPUSH awaited {idname}", "integer", ""),
    load("publish-0", "PUBLISH news {idname}", "exactly:0", ""),
    load("publish-1", "PUBLISH news {idname}", "exactly:1", ""),
    load("publish-100", "PUBLISH news {idname}", "exactly:100", ""),
    load("evalsha-get", "EVALSHA {sha:get} 1 {key}", "value", FILL_STRINGS),
    load("evalsha-set", "EVALSHA {sha:set} 1 {key} {value}", "ok", FILL_STRINGS),
    load("evalsha-get-hset-expire", GET_HSET_EXPIRE, "value", FILL_STRINGS),
    load("evalsha-loop1000", "EVALSHA {sha:loop} 1 {key} 1000", "exactly:500500", ""),
    load("evalsha-set-loop1000", "EVALSHA {sha:set-loop} 1 {key} {value} 1000", "exactly:500500", FILL_STRINGS),
    load("eval-get", "EVAL {script:get} 1 {key}", "value", FILL_STRINGS),
    load("fcall-get-hset-expire", "FCALL get_hset_expire 2 {key} hash:{same-id} 1000000", "value", FILL_STRINGS),
    load("sort300", "SORT unsorted:{id} ALPHA LIMIT 0 10", "sorted-names:10", FILL_UNSORTED_LISTS),
    load("sunion1000", "SUNION low:{id} high:{id}", "shared:0-1500", FILL_LOW_SETS),
    load("sinter1000", "SINTER low:{id} high:{id}", "shared:500-1000", FILL_LOW_SETS),
    load("module-nop", "BENCH.NOP", "exactly:1", ""),
    load("module-get", "BENCH.GET {key}", "value", FILL_STRINGS),
    load("module-set", "BENCH.SET {key} {value}", "ok", FILL_STRINGS),
    load("module-call-get", "BENCH.CALL {key}", "value", FILL_STRINGS),
    load("slot-safe-get", "BENCH.SAFE.GET {key}", "value", FILL_STRINGS),
    load("slot-safe-set", "BENCH.SAFE.SET {key} {value}", "ok", FILL_STRINGS),
    load("slot-safe-call-get", "BENCH.SAFE.CALL {key}", "value", FILL_STRINGS),
    load("module-sum1000", "BENCH.SUM {key} 1000", "integer", FILL_STRINGS),
    load("slot-safe-sum1000", "BENCH.SAFE.SUM {key} 1000", "integer", FILL_STRINGS),
];

/// The mixture for the load name `mixed`.
pub const MIXED: &str = "get:80,set:20";

/// The name of the load in which every connection reads a stream as a consumer does. It reads ten entries at a time
/// through its own group, acknowledges each batch, and starts again at the end. It is not a mixture: the number of a
/// request determines the request.
pub const GROUP_READ: &str = "group-read";

/// The requests of [`GROUP_READ`]: the first begins a cycle, the other two alternate.
const GROUP_READ_STEPS: &[(&str, &str)] = &[
    ("XGROUP SETID stream group:{id} 0", "ok"),
    (
        "XREADGROUP GROUP group:{id} consumer COUNT 10 STREAMS stream >",
        "entries:10",
    ),
    ("XACK stream group:{id} {entries:10}", "exactly:10"),
];

/// The number of entries per turn of [`GROUP_READ`].
const GROUP_READ_ENTRIES: u64 = 10;

/// Finds a load by name.
///
/// # Errors
/// Fails if the name is unknown.
pub fn load_by_name(name: &str) -> Result<&'static Load> {
    LOADS
        .iter()
        .find(|load| load.name == name)
        .ok_or_else(|| Error::Usage(format!("unknown load {name:?}; run `weft-bench loads` for the list")))
}

/// The properties that all requests of a run share.
#[derive(Debug, Clone)]
pub struct LoadParameters {
    /// The order in which keys are named.
    pub order: KeyOrder,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// The seconds with which `{expire}` is replaced.
    pub expire_s: Option<u64>,
    /// The content of every n-th reply is compared in full (1: of every reply).
    pub verify_every: u64,
}

/// One kind of request in a workload.
#[derive(Debug)]
struct WorkloadPart {
    template: Template,
    checker: ReplyChecker,
    /// `true` if a reply's content can be compared.
    has_content: bool,
    /// The sum of the weights of this part and of those before it.
    weight_end: u64,
}

/// A mixture of requests with their expected replies: everything a connection sends.
#[derive(Debug)]
pub struct Workload {
    parts: Vec<WorkloadPart>,
    total_weight: u64,
    /// The number of requests in a cycle in which the number of a request determines its part; 0 for a mixture.
    cycle_requests: u64,
    /// `true` if a request needs the scripts or functions of [`crate::scripts`].
    uses_scripts: bool,
    order: KeyOrder,
    values: ValuePool,
    verify_every: u64,
}

impl Workload {
    /// Creates a workload of one command with a declared kind of reply.
    ///
    /// # Errors
    /// Fails if the command or the kind is invalid, or if the reply refers to more keys than the command names.
    pub fn from_command(command: &str, expect: &str, subject: &LoadParameters) -> Result<Workload> {
        Workload::weighted(&[(command, expect, 1)], subject)
    }

    /// Creates a workload from a load name, `mixed`, `group-read`, or a mixture such as `get:80,set:20`.
    ///
    /// # Errors
    /// Fails if a name is unknown or a weight is invalid.
    pub fn from_name(text: &str, subject: &LoadParameters) -> Result<Workload> {
        if text == GROUP_READ {
            let steps: Vec<(&str, &str, u64)> = GROUP_READ_STEPS.iter().map(|step| (step.0, step.1, 1)).collect();
            return Ok(Workload {
                cycle_requests: requests_per_cycle(GROUP_READ_ENTRIES),
                order: KeyOrder::OwnKey,
                ..Workload::weighted(&steps, subject)?
            });
        }
        let mixture = if text == "mixed" { MIXED } else { text };
        let mut parts = Vec::new();
        for item in mixture.split(',') {
            let (name, weight) = item.split_once(':').unwrap_or((item, "1"));
            let load = load_by_name(name)?;
            let weight = weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight));
            let weight = weight.ok_or_else(|| Error::Usage(format!("{item}: the weight must be from 1 to 1000000")))?;
            parts.push((load.command, load.expect, weight));
        }
        Workload::weighted(&parts, subject)
    }

    fn weighted(commands: &[(&str, &str, u64)], subject: &LoadParameters) -> Result<Workload> {
        let values = ValuePool::new(subject.value_size);
        let mut parts = Vec::new();
        let mut total_weight = 0;
        for (command, expect, weight) in commands {
            let template = Template::parse(command, &values, subject.expire_s)?;
            let expect = ExpectedReply::parse(expect)?;
            total_weight += weight;
            let has_content = expect.has_content();
            let needed = expect.keys_needed();
            if needed > template.keys() {
                return Err(Error::Usage(format!("{command}: the reply needs {needed} keys")));
            }
            let checker = ReplyChecker::new(expect, subject.value_size);
            parts.push(WorkloadPart {
                template,
                checker,
                has_content,
                weight_end: total_weight,
            });
        }
        let verify_every = subject.verify_every.max(1);
        Ok(Workload {
            parts,
            total_weight,
            cycle_requests: 0,
            uses_scripts: commands.iter().any(|(command, _, _)| scripts::is_used_by(command)),
            order: subject.order.clone(),
            values,
            verify_every,
        })
    }

    /// The maximum number of keys that one request names.
    pub fn keys_per_request(&self) -> usize {
        self.parts.iter().map(|part| part.template.keys()).max().unwrap_or(0)
    }

    /// Appends request `index` of the connection with `seed`.
    #[inline]
    pub fn append_request(&self, seed: u64, index: u64, out: &mut Vec<u8>) {
        let mut draw = RequestDraw::new(&self.order, seed, index);
        let part = self.choose_part(&mut draw);
        part.template.append(&mut draw, &self.values, out);
    }

    /// Checks the reply to request `index` at the start of `bytes`; `None` if it is incomplete.
    ///
    /// # Errors
    /// Fails if the reply is malformed, of the wrong kind, or differs from the stored data.
    #[inline]
    pub fn check_reply(
        &self,
        seed: u64,
        index: u64,
        bytes: &[u8],
        scanner: &mut ReplyScanner,
    ) -> Result<Option<MatchedReply>> {
        let mut draw = RequestDraw::new(&self.order, seed, index);
        let part = self.choose_part(&mut draw);
        let Some(found) = part.checker.check_header(bytes, scanner)? else {
            return Ok(None);
        };
        if part.has_content && !found.is_miss && index.is_multiple_of(self.verify_every) {
            let drawn = part.template.replay_draws(&mut draw);
            let reply = bytes.get(..found.length).unwrap_or(bytes);
            part.checker.compare(reply, &drawn, self.keys(), &self.values)?;
        }
        Ok(Some(found))
    }

    /// Returns `true` if each connection has a key of its own, with the connection's seed as its number.
    pub fn has_own_keys(&self) -> bool {
        matches!(self.order, KeyOrder::OwnKey)
    }

    /// Returns `true` if a request names keys that no other request names. The seed of each connection is then the
    /// first of its new keys.
    pub fn has_new_keys(&self) -> bool {
        self.parts.iter().any(|part| part.template.has_new_keys())
    }

    /// Returns `true` if every request names a key that no other request names.
    pub fn creates_key_per_request(&self) -> bool {
        self.parts.iter().all(|part| part.template.has_new_keys())
    }

    /// Returns `true` if a request needs the scripts or functions of [`crate::scripts`] on the server.
    pub fn uses_scripts(&self) -> bool {
        self.uses_scripts
    }

    /// The number of keys in the keyspace.
    fn keys(&self) -> u64 {
        match &self.order {
            KeyOrder::Uniform { keys } => *keys,
            KeyOrder::Zipf(zipf) => zipf.keys(),
            KeyOrder::Sequential | KeyOrder::OwnKey => u64::MAX,
        }
    }

    /// Chooses the kind of a request. In a mixture it is the first draw, unless there is only one kind.
    #[inline]
    fn choose_part(&self, draw: &mut RequestDraw<'_>) -> &WorkloadPart {
        if self.parts.len() == 1 {
            return &self.parts[0];
        }
        if self.cycle_requests > 0 {
            return match draw.index() % self.cycle_requests {
                0 => &self.parts[0],
                place => &self.parts[2 - (place % 2) as usize],
            };
        }
        let point = draw.below(self.total_weight);
        let index = self.parts.partition_point(|part| part.weight_end <= point);
        &self.parts[index]
    }
}
