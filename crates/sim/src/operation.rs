//! The operations of clients that the model understands, and their requests.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::modules::ModuleWay;
use crate::reply::SeenReply;

/// The numbers of keys of each type: few, so that clients meet.
pub const KEYS_PER_TYPE: usize = 4;
/// The number of keys with an expiry.
pub const VOLATILE_KEYS: usize = 2;
/// The number of scripts that do the same as one of another text. A script that the server has not seen yet runs on
/// another thread than one that has proved to be short.
const SCRIPT_VARIANTS: u32 = 16;
/// The number of keys above which a command leaves its worker, and one more.
const MANY_KEYS: usize = 21;

/// A loop without an end in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndlessLoop {
    /// It calls nothing.
    Computing,
    /// It reads a declared key.
    Reading,
    /// It reads a key that is not declared.
    ReadingUndeclared,
    /// It stands before a write.
    BeforeWrite,
}

/// One operation. Keys are named by their type and number: strings `s0`, lists `l0`, sets `t0`, strings
/// with an expiry `e0`; in a cluster with a tag before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// GET.
    Get(usize),
    /// SET.
    Set(usize, u32),
    /// SET that returns the old value.
    SetGet(usize, u32),
    /// APPEND of one byte.
    Append(usize),
    /// DEL of a string.
    Delete(usize),
    /// MSET.
    SetMany(Vec<usize>, u32),
    /// MSET of one string, repeated so often that the command leaves its worker.
    SetRepeatedly(usize, u32),
    /// MGET of all strings.
    GetAll,
    /// LPUSH or RPUSH.
    Push { list: usize, value: u32, is_left: bool },
    /// RPUSH of several elements.
    PushMany { list: usize, values: Vec<u32> },
    /// LPOP or RPOP.
    Pop { list: usize, is_left: bool },
    /// BLPOP with a timeout in milliseconds.
    BlockingPop { lists: Vec<usize>, timeout_ms: u32 },
    /// BLMOVE between lists, from left to right, with a timeout in milliseconds.
    BlockingMove { from: usize, to: usize, timeout_ms: u32 },
    /// LMOVE between lists, from left to right.
    Move(usize, usize),
    /// LRANGE of the whole list.
    Range(usize),
    /// SADD.
    AddMember(usize, u32),
    /// SCARD.
    Count(usize),
    /// SUNIONSTORE.
    UnionStore(usize, Vec<usize>),
    /// A script that sets two strings and returns their old values.
    ScriptSwap(usize, usize, u32),
    /// A script that reads, computes for a while, and appends to what it read.
    ScriptSlowAppend(usize, usize),
    /// A read-only script that reads two strings, the first of them often.
    ScriptRead(usize, usize),
    /// A script that finds its keys by itself: it declares none.
    ScriptUndeclared(usize, usize, u32),
    /// A script that finds its keys by itself, and appends a byte to each of two strings. What it does twice shows.
    ScriptAppendUndeclared(usize, usize),
    /// A script that pushes an element to the right of a list.
    ScriptPush(usize, u32),
    /// A script that reads a list often before it pushes an element to the right of it.
    ScriptSlowPush(usize, u32),
    /// A script that reads often before and between two writes of each of two strings. Returns their old values.
    ScriptSlowSwap(usize, usize, u32),
    /// A script without an end. It may write a string; nothing of that stays when it is killed.
    ScriptEndless { key: usize, value: u32, kind: EndlessLoop },
    /// SET with GET of a key that expires after a number of milliseconds, or never.
    SetVolatile {
        key: usize,
        value: u32,
        ttl_ms: Option<u32>,
    },
    /// GET of such a key.
    GetVolatile(usize),
    /// DEL of such a key.
    DeleteVolatile(usize),
    /// PUBLISH of a number by a client. The replies of all clients are checked against what the subscriber received.
    Publish { client: u64, number: u64 },
    /// WATCH.
    Watch(Vec<usize>),
    /// MULTI, operations, EXEC.
    Transaction(Vec<Operation>),
    /// A module's command with the effect and the reply of another operation: one that
    /// [`modules::has_command`](crate::modules::has_command) knows.
    OfModule(ModuleWay, Box<Operation>),
    /// FLUSHALL.
    FlushAll,
    /// CLIENT PAUSE for writes.
    Pause,
    /// CLIENT UNPAUSE.
    Unpause,
    /// REPLICAOF a server that does not exist: writes are refused.
    Demote,
    /// REPLICAOF NO ONE.
    Promote,
    /// CLIENT KILL of all other clients.
    KillOthers,
    /// BGSAVE. The reply is what a server loads from the dump: all strings, each list, each set.
    Save,
    /// A request whose reply the model ignores, such as INFO.
    Ignored(Vec<&'static str>),
}

use Operation::*;

/// `true` if all keys have the tag that puts them into one slot of a cluster.
static HAVE_TAG: AtomicBool = AtomicBool::new(false);
/// The slot of the tag.
pub const TAG_SLOT: u16 = 15495;

/// Gives all keys a tag, so that they are in one slot of a cluster.
pub fn use_one_cluster_slot() {
    HAVE_TAG.store(true, Ordering::SeqCst);
}

fn name(kind: char, key: usize) -> String {
    let tag = if HAVE_TAG.load(Ordering::SeqCst) { "{a}" } else { "" };
    format!("{tag}{kind}{key}")
}

/// The name of a string.
pub fn string(key: usize) -> String {
    name('s', key)
}

/// The name of a list.
pub fn list(key: usize) -> String {
    name('l', key)
}

/// The name of a set.
pub fn set(key: usize) -> String {
    name('t', key)
}

fn volatile(key: usize) -> String {
    name('e', key)
}

const SWAP: &str = "local r={redis.call('GET',KEYS[1]),redis.call('GET',KEYS[2])} \
                    redis.call('SET',KEYS[1],ARGV[1]) redis.call('SET',KEYS[2],ARGV[1]) return r";
const SLOW_APPEND: &str = "local v=redis.call('GET',KEYS[1]) or '' local n=0 for i=1,2000 do n=n+i%7 end \
                           redis.call('SET',KEYS[2],v..'x') return redis.call('GET',KEYS[1])";
const READ: &str = "local a=redis.call('GET',KEYS[1]) for i=1,10 do redis.call('GET',KEYS[1]) end \
                    return {a,redis.call('GET',KEYS[2])}";
const SLOW_SWAP: &str = "local function work() for i=1,25 do redis.call('GET',KEYS[1]) end end \
                         local r={redis.call('GET',KEYS[1]),redis.call('GET',KEYS[2])} work() \
                         redis.call('SET',KEYS[1],'-') work() redis.call('SET',KEYS[2],'-') work() \
                         redis.call('SET',KEYS[1],ARGV[1]) work() redis.call('SET',KEYS[2],ARGV[1]) return r";
const PUSH: &str = "return redis.call('RPUSH',KEYS[1],ARGV[1])";
const SLOW_PUSH: &str = "for i=1,120 do redis.call('LLEN',KEYS[1]) end return redis.call('RPUSH',KEYS[1],ARGV[1])";
const UNDECLARED: &str = "redis.call('SET',ARGV[1],ARGV[3]) local n=0 for i=1,500 do n=n+i%7 end \
                          redis.call('SET',ARGV[2],ARGV[3]) return redis.call('GET',ARGV[1])";
const APPEND_UNDECLARED: &str = "redis.call('APPEND',ARGV[1],'b') local n=0 for i=1,500 do n=n+i%7 end \
                                 redis.call('APPEND',ARGV[2],'c') return redis.call('GET',ARGV[1])";

impl EndlessLoop {
    fn script(self) -> &'static str {
        match self {
            EndlessLoop::Computing => "while true do end",
            EndlessLoop::Reading => "while true do redis.call('GET',KEYS[1]) end",
            EndlessLoop::ReadingUndeclared => "while true do redis.call('GET','s'..ARGV[2]) end",
            EndlessLoop::BeforeWrite => {
                "local n=0 repeat redis.call('GET',KEYS[1]) until n>0 redis.call('SET',KEYS[1],ARGV[1])"
            }
        }
    }
}

impl Operation {
    /// The commands, as words. A transaction has several.
    pub fn commands(&self) -> Vec<Vec<String>> {
        if let Transaction(operations) = self {
            let mut all = vec![words(&["MULTI"])];
            all.extend(operations.iter().flat_map(Operation::commands));
            all.push(words(&["EXEC"]));
            return all;
        }
        vec![self.command()]
    }

    fn command(&self) -> Vec<String> {
        match self {
            Get(key) => words(&["GET", &string(*key)]),
            Set(key, value) => words(&["SET", &string(*key), &value.to_string()]),
            SetGet(key, value) => words(&["SET", &string(*key), &value.to_string(), "GET"]),
            Append(key) => words(&["APPEND", &string(*key), "a"]),
            Delete(key) => words(&["DEL", &string(*key)]),
            SetMany(keys, value) => {
                let mut request = words(&["MSET"]);
                for key in keys {
                    request.extend([string(*key), value.to_string()]);
                }
                request
            }
            SetRepeatedly(key, value) => {
                let mut request = words(&["MSET"]);
                for _ in 0..MANY_KEYS {
                    request.extend([string(*key), value.to_string()]);
                }
                request
            }
            GetAll => {
                let mut request = words(&["MGET"]);
                request.extend((0..KEYS_PER_TYPE).map(string));
                request
            }
            Push {
                list: key,
                value,
                is_left,
            } => {
                let verb = if *is_left { "LPUSH" } else { "RPUSH" };
                words(&[verb, &list(*key), &value.to_string()])
            }
            PushMany { list: key, values } => {
                let mut request = words(&["RPUSH", &list(*key)]);
                request.extend(values.iter().map(u32::to_string));
                request
            }
            Pop { list: key, is_left } => words(&[if *is_left { "LPOP" } else { "RPOP" }, &list(*key)]),
            BlockingPop { lists, timeout_ms } => {
                let mut request = words(&["BLPOP"]);
                request.extend(lists.iter().map(|key| list(*key)));
                request.push(format!("0.{timeout_ms:03}"));
                request
            }
            BlockingMove { from, to, timeout_ms } => words(&[
                "BLMOVE",
                &list(*from),
                &list(*to),
                "LEFT",
                "RIGHT",
                &format!("0.{timeout_ms:03}"),
            ]),
            Move(from, to) => words(&["LMOVE", &list(*from), &list(*to), "LEFT", "RIGHT"]),
            Range(key) => words(&["LRANGE", &list(*key), "0", "-1"]),
            AddMember(key, member) => words(&["SADD", &set(*key), &member.to_string()]),
            Count(key) => words(&["SCARD", &set(*key)]),
            UnionStore(into, from) => {
                let mut request = words(&["SUNIONSTORE", &set(*into)]);
                request.extend(from.iter().map(|key| set(*key)));
                request
            }
            _ => self.further_command(),
        }
    }

    /// The command of a script, of a key with an expiry, or on the whole server.
    fn further_command(&self) -> Vec<String> {
        match self {
            ScriptSwap(a, b, value) => words(&["EVAL", SWAP, "2", &string(*a), &string(*b), &value.to_string()]),
            ScriptSlowSwap(a, b, value) => {
                let script = format!("{SLOW_SWAP} --{}", value % SCRIPT_VARIANTS);
                words(&["EVAL", &script, "2", &string(*a), &string(*b), &value.to_string()])
            }
            ScriptSlowAppend(a, b) => words(&["EVAL", SLOW_APPEND, "2", &string(*a), &string(*b)]),
            ScriptRead(a, b) => words(&["EVAL_RO", READ, "2", &string(*a), &string(*b)]),
            ScriptUndeclared(a, b, value) => {
                words(&["EVAL", UNDECLARED, "0", &string(*a), &string(*b), &value.to_string()])
            }
            ScriptSlowPush(key, value) => {
                let script = format!("{SLOW_PUSH} --{}", value % SCRIPT_VARIANTS);
                words(&["EVAL", &script, "1", &list(*key), &value.to_string()])
            }
            ScriptAppendUndeclared(a, b) => words(&["EVAL", APPEND_UNDECLARED, "0", &string(*a), &string(*b)]),
            ScriptPush(key, value) => words(&["EVAL", PUSH, "1", &list(*key), &value.to_string()]),
            ScriptEndless { key, value, kind } => {
                let mut request = words(&["EVAL", kind.script()]);
                request.push(u32::from(*kind != EndlessLoop::ReadingUndeclared).to_string());
                if *kind != EndlessLoop::ReadingUndeclared {
                    request.push(string(*key));
                }
                request.extend([value.to_string(), key.to_string()]);
                request
            }
            SetVolatile { key, value, ttl_ms } => {
                let mut request = words(&["SET", &volatile(*key), &value.to_string(), "GET"]);
                if let Some(ttl_ms) = ttl_ms {
                    request.extend(words(&["PX", &ttl_ms.to_string()]));
                }
                request
            }
            GetVolatile(key) => words(&["GET", &volatile(*key)]),
            DeleteVolatile(key) => words(&["DEL", &volatile(*key)]),
            Publish { client, number } => words(&["PUBLISH", "channel", &format!("{client} {number}")]),
            Watch(keys) => {
                let mut request = words(&["WATCH"]);
                request.extend(keys.iter().map(|key| string(*key)));
                request
            }
            FlushAll => words(&["FLUSHALL"]),
            Pause => words(&["CLIENT", "PAUSE", "100000", "WRITE"]),
            Unpause => words(&["CLIENT", "UNPAUSE"]),
            Demote => words(&["REPLICAOF", "127.0.0.1", "1"]),
            Promote => words(&["REPLICAOF", "NO", "ONE"]),
            Save => words(&["BGSAVE"]),
            KillOthers => words(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]),
            Ignored(request) => words(request),
            OfModule(way, operation) => way.command(operation),
            _ => words(&["PING"]),
        }
    }

    /// The bytes of the requests.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for command in self.commands() {
            bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
        }
        bytes
    }

    /// The number of replies.
    pub fn reply_count(&self) -> usize {
        match self {
            Transaction(operations) => operations.len() + 2,
            _ => 1,
        }
    }

    /// Returns `true` if the operation may change data, so that a pause holds it back.
    pub fn is_write(&self) -> bool {
        match self {
            Transaction(operations) => operations.iter().any(Operation::is_write),
            OfModule(_, operation) => operation.is_write(),
            Get(_) | GetAll | Range(_) | Count(_) | ScriptRead(..) | GetVolatile(_) | Watch(_) => false,
            Pause | Unpause | Demote | Promote | Publish { .. } | KillOthers | Save | Ignored(_) => false,
            _ => true,
        }
    }

    /// Returns `true` if the operation changes neither data nor the state of its connection or of the server.
    pub fn only_reads(&self) -> bool {
        matches!(
            self.effect(),
            Get(_)
                | GetAll
                | Range(_)
                | Count(_)
                | ScriptRead(..)
                | GetVolatile(_)
                | Publish { .. }
                | Save
                | Ignored(_)
        )
    }

    /// Returns `true` if the reply shows that the operation has found nothing to change.
    pub fn is_in_vain(&self, reply: &SeenReply) -> bool {
        match self {
            Pop { .. } | Move(..) | BlockingPop { .. } | BlockingMove { .. } => *reply == SeenReply::Null,
            Delete(_) | DeleteVolatile(_) | AddMember(..) => *reply == SeenReply::Integer(0),
            _ => false,
        }
    }

    /// Returns the operations of a transaction, or the operation itself.
    pub fn single_operations(&self) -> &[Operation] {
        match self {
            Transaction(operations) => operations,
            other => std::slice::from_ref(other),
        }
    }

    /// Returns the operation that has the same effect without a module.
    pub fn effect(&self) -> &Operation {
        match self {
            OfModule(_, operation) => operation,
            other => other,
        }
    }

    /// Returns the number that the operation writes to strings.
    pub fn written_number(&self) -> Option<u32> {
        match self.effect() {
            Set(_, value) | SetGet(_, value) | SetMany(_, value) | SetRepeatedly(_, value) => Some(*value),
            ScriptSwap(_, _, value) | ScriptSlowSwap(_, _, value) | ScriptUndeclared(_, _, value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the elements that the operation pushes to lists, without those that it moves.
    pub fn pushed_elements(&self) -> &[u32] {
        match self {
            PushMany { values, .. } => values,
            Push { value, .. } | ScriptPush(_, value) | ScriptSlowPush(_, value) => std::slice::from_ref(value),
            _ => &[],
        }
    }

    /// Returns `true` if the operation may change or read this list.
    pub fn uses_list(&self, list: usize) -> bool {
        match self {
            Push { list: used, .. } | PushMany { list: used, .. } | Pop { list: used, .. } => *used == list,
            Range(used) | ScriptPush(used, _) | ScriptSlowPush(used, _) => *used == list,
            Move(from, to) | BlockingMove { from, to, .. } => *from == list || *to == list,
            BlockingPop { lists, .. } => lists.contains(&list),
            FlushAll | Save => true,
            Transaction(operations) => operations.iter().any(|operation| operation.uses_list(list)),
            _ => false,
        }
    }

    /// Returns `true` if the operation is a script.
    pub fn is_script(&self) -> bool {
        matches!(
            self,
            ScriptSwap(..)
                | ScriptSlowSwap(..)
                | ScriptSlowAppend(..)
                | ScriptRead(..)
                | ScriptUndeclared(..)
                | ScriptAppendUndeclared(..)
                | ScriptPush(..)
                | ScriptSlowPush(..)
                | ScriptEndless { .. }
        )
    }

    /// Returns `true` if the operation kills all other clients.
    pub fn kills_others(&self) -> bool {
        match self {
            Transaction(operations) => operations.iter().any(Operation::kills_others),
            other => *other == KillOthers,
        }
    }

    /// Returns `true` if the operation pauses writes.
    pub fn pauses_writes(&self) -> bool {
        match self {
            Transaction(operations) => operations.iter().any(Operation::pauses_writes),
            other => *other == Pause,
        }
    }

    /// Returns the time after which the operation gives up, in milliseconds, if it waits for another client.
    pub fn timeout_ms(&self) -> Option<u32> {
        match self {
            BlockingPop { timeout_ms, .. } | BlockingMove { timeout_ms, .. } => Some(*timeout_ms),
            _ => None,
        }
    }

    /// Returns `true` if the client may be blocked: until another client has done something, or a thread of the module.
    pub fn blocks_client(&self) -> bool {
        self.is_blocking() || matches!(self, OfModule(ModuleWay::Thread, _))
    }

    /// Returns `true` if the operation waits for another client.
    pub fn is_blocking(&self) -> bool {
        matches!(self, BlockingPop { .. } | BlockingMove { .. })
    }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}
