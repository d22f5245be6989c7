//! The model of the store: the definition against which replies are checked.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use crate::history::Event;
use crate::operation::{self, KEYS_PER_TYPE, Operation, VOLATILE_KEYS};
use crate::reply::SeenReply;

/// What may have had an effect on requests, besides the requests themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// The server has reloaded its data.
    pub may_reload: bool,
    /// The keys have moved between the nodes of a cluster.
    pub may_redirect: bool,
    /// Keys were evicted.
    pub may_evict: bool,
    /// The servers have exchanged their roles.
    pub may_fail_over: bool,
}

/// The state of a store, and what its connections watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    strings: [Option<Vec<u8>>; KEYS_PER_TYPE],
    /// Models of neighbouring places share most lists.
    lists: [Rc<VecDeque<Vec<u8>>>; KEYS_PER_TYPE],
    sets: [BTreeSet<u32>; KEYS_PER_TYPE],
    /// The strings that may have an expiry.
    volatile: [Option<VolatileString>; VOLATILE_KEYS],
    is_paused: bool,
    /// Set while the server is a replica.
    is_replica: bool,
    /// Set once the server has become a replica; the clients that were blocked then are told so.
    was_demoted: bool,
    /// Set if transactions may fail although no watched key was changed by a client: data is loaded anew meanwhile, or
    /// comes back to a node of a cluster.
    may_reload: bool,
    /// Set if a node may refuse what is for another one.
    may_redirect: bool,
    /// Set if keys are evicted: any key may vanish at any time.
    may_evict: bool,
    /// Set if servers exchange their roles: what a replica refuses has no effect, and the rest is for the primary.
    may_fail_over: bool,
    /// For each connection, the watched strings that have not changed since; `None` once one has.
    watches: Vec<Option<BTreeSet<usize>>>,
    /// For each connection, `true` if its next transaction may fail although no watched key has changed: a script was
    /// killed meanwhile. What it had written was undone, but watches stay marked.
    may_be_marked: Vec<bool>,
}

/// A string that may have an expiry. It has expired once a client saw that it has, which must not be too early or too
/// late. The server sets its expiry at an unknown time between request and reply, and rounds it to milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VolatileString {
    value: Vec<u8>,
    /// The simulated time before which it has not expired, in nanoseconds; `u64::MAX` if it does not expire.
    lives_until_ns: u64,
    /// The simulated time after which it has expired, in nanoseconds.
    ends_until_ns: u64,
}

impl VolatileString {
    fn new(value: u32, ttl_ms: Option<u32>, event: &Event) -> VolatileString {
        const MILLISECOND_NS: u64 = 1_000_000;
        let after = |from_ns: u64, ttl_ms: u32| from_ns.saturating_add(u64::from(ttl_ms) * MILLISECOND_NS);
        VolatileString {
            value: value.to_string().into_bytes(),
            lives_until_ns: ttl_ms.map_or(u64::MAX, |ttl_ms| {
                after(event.sent_ns, ttl_ms).saturating_sub(MILLISECOND_NS)
            }),
            ends_until_ns: ttl_ms.map_or(u64::MAX, |ttl_ms| after(event.answer_ns, ttl_ms + 1)),
        }
    }
}

/// The strings that a transaction has accessed.
#[derive(Debug, Default)]
struct Accessed {
    strings: [bool; KEYS_PER_TYPE],
}

/// The effect of an operation at some place in the order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// It takes effect, and replies this.
    Replies(Vec<SeenReply>),
    /// It takes effect, and any replies are right.
    AnyReply,
    /// It cannot take effect in this state.
    Impossible,
}

impl Model {
    /// An empty store with `connections` connections.
    pub fn new(connections: usize, circumstances: Circumstances) -> Model {
        Model {
            may_reload: circumstances.may_reload,
            may_redirect: circumstances.may_redirect,
            may_evict: circumstances.may_evict,
            may_fail_over: circumstances.may_fail_over,
            watches: vec![Some(BTreeSet::new()); connections],
            may_be_marked: vec![false; connections],
            ..Model::default()
        }
    }

    /// Returns a string.
    pub fn string(&self, key: usize) -> Option<&[u8]> {
        self.strings[key].as_deref()
    }

    /// Returns a list.
    pub fn list(&self, list: usize) -> &VecDeque<Vec<u8>> {
        &self.lists[list]
    }

    /// Returns `true` if a list is the same in both models.
    pub fn has_same_list(&self, other: &Model, list: usize) -> bool {
        self.lists[list] == other.lists[list]
    }

    /// Returns `true` if the models are the same, except for what one connection watches.
    pub fn is_same_for_others(&self, other: &Model, connection: usize) -> bool {
        if self == other {
            return true;
        }
        let mut same = self.clone();
        same.watches[connection].clone_from(&other.watches[connection]);
        same.may_be_marked[connection] = other.may_be_marked[connection];
        same == *other
    }

    /// Applies an operation of a connection. What the client saw decides between outcomes that are both right: a
    /// blocking command that waits or gives up.
    pub fn apply(&mut self, connection: usize, event: &Event) -> Effect {
        let operation = &event.operation;
        let observed = event.answer.as_ref().map(|(replies, _)| &**replies);
        // A replica aborts a transaction, too: one whose commands it has refused.
        let was_redirected = event.was_redirected() && (self.may_redirect || self.was_demoted);
        if was_redirected || (self.may_fail_over && event.was_refused_by_replica()) {
            self.end_watches(connection, operation);
            return Effect::AnyReply;
        }
        if self.may_evict
            && let Some(replies) = observed
        {
            // EXEC has the error, too, in its own: it checks the memory once more.
            let was_refused =
                |reply: &SeenReply| matches!(reply, SeenReply::Error(text) if text.contains("OOM command not allowed"));
            if replies.iter().any(was_refused) {
                self.end_watches(connection, operation);
                return Effect::AnyReply;
            }
            self.evict_as_seen(operation, replies);
        }
        // A client that waits for keys may give up during a pause.
        let gives_up = operation.is_blocking() && observed == Some(&[SeenReply::Null]);
        // A transaction whose watched key has changed queues nothing any more, so a pause does not hold back its EXEC.
        let may_fail = matches!(operation, Operation::Transaction(_)) && self.fails_watch(connection, observed);
        if self.is_paused && operation.is_write() && !gives_up && !may_fail {
            return Effect::Impossible;
        }
        // SCRIPT KILL ends only scripts that have not written, or whose writes can be undone.
        let was_killed = match observed {
            Some([SeenReply::Error(text)]) => operation.is_script() && text.contains("Script killed by user"),
            // An endless script has ended with its connection.
            observed => observed.is_none() && matches!(operation, Operation::ScriptEndless { .. }),
        };
        if was_killed {
            self.mark_watches();
            return Effect::AnyReply;
        }
        if let Some(effect) = self.refuse_on_replica(connection, operation, observed) {
            return effect;
        }
        match operation {
            Operation::Publish { .. } | Operation::KillOthers | Operation::Ignored(_) => Effect::AnyReply,
            Operation::Watch(keys) => {
                if let Some(watched) = &mut self.watches[connection] {
                    watched.extend(keys);
                }
                Effect::Replies(vec![SeenReply::ok()])
            }
            Operation::Transaction(operations) => {
                if self.fails_watch(connection, observed) {
                    self.watches[connection] = None;
                }
                Effect::Replies(self.execute(connection, operations))
            }
            Operation::BlockingPop { lists, .. } => self.blocking_pop(lists, observed),
            Operation::BlockingMove { from, to, .. } => self.blocking_move(*from, *to, observed),
            Operation::SetVolatile { .. } | Operation::GetVolatile(_) | Operation::DeleteVolatile(_) => {
                self.volatile_effect(event, observed)
            }
            simple => Effect::Replies(vec![self.reply_to(simple)]),
        }
    }

    /// Removes the keys that the client found missing. Whether a watched key has changed by that is not known: it may
    /// have been evicted before it was watched.
    fn evict_as_seen(&mut self, operation: &Operation, replies: &[SeenReply]) {
        let mut accessed = Accessed::default();
        match (operation, replies) {
            (Operation::Transaction(operations), [.., SeenReply::Array(replies)]) => {
                for (operation, reply) in operations.iter().zip(replies) {
                    self.evict_as_replied(operation, reply, &mut accessed);
                }
            }
            (operation, [reply]) => self.evict_as_replied(operation, reply, &mut accessed),
            _ => {}
        }
    }

    /// Removes what the reply shows to be missing, unless the transaction itself has accessed it before: no key is
    /// evicted during a transaction.
    fn evict_as_replied(&mut self, operation: &Operation, reply: &SeenReply, accessed: &mut Accessed) {
        let is_null = *reply == SeenReply::Null;
        let is_integer = |number: usize| *reply == SeenReply::Integer(number as i64);
        let mut see_string = |key: usize, is_missing: bool| {
            if !std::mem::replace(&mut accessed.strings[key], true) && is_missing {
                self.strings[key] = None;
            }
        };
        match operation {
            Operation::Get(key) | Operation::SetGet(key, _) => see_string(*key, is_null),
            Operation::Append(key) => see_string(*key, is_integer(1)),
            Operation::Delete(key) => see_string(*key, is_integer(0)),
            Operation::Set(key, _) | Operation::SetRepeatedly(key, _) => see_string(*key, false),
            Operation::SetMany(keys, _) => keys.iter().for_each(|key| see_string(*key, false)),
            Operation::GetAll => {
                if let SeenReply::Array(items) = reply {
                    let missing = items.iter().map(|item| *item == SeenReply::Null).enumerate();
                    missing.for_each(|(key, is_missing)| see_string(key, is_missing));
                }
            }
            Operation::Push { list, .. } if is_integer(1) => self.lists[*list] = Rc::default(),
            Operation::PushMany { list, values } if is_integer(values.len()) => self.lists[*list] = Rc::default(),
            Operation::Range(list) if *reply == SeenReply::Array(Vec::new()) => self.lists[*list] = Rc::default(),
            Operation::BlockingPop { lists, .. } => {
                // The lists in front of the one with the element were empty.
                let served = |list: usize| {
                    let name = SeenReply::Bulk(operation::list(list).into_bytes());
                    matches!(reply, SeenReply::Array(items) if items.first() == Some(&name))
                };
                let missing = lists.iter().copied().take_while(|list| !served(*list));
                missing.for_each(|list| self.lists[list] = Rc::default());
            }
            _ => {}
        }
    }

    /// Applies what a replica refuses. Returns `None` if the operation takes its usual effect.
    fn refuse_on_replica(
        &mut self,
        connection: usize,
        operation: &Operation,
        observed: Option<&[SeenReply]>,
    ) -> Option<Effect> {
        let has_error = |code: &str| {
            let is_error = |reply: &SeenReply| matches!(reply, SeenReply::Error(text) if text.contains(code));
            observed.is_some_and(|replies| replies.iter().any(is_error))
        };
        if operation.blocks_client() && has_error("UNBLOCKED") {
            return Some(match self.was_demoted {
                true => Effect::AnyReply,
                false => Effect::Impossible,
            });
        }
        if !operation.is_write() {
            return None;
        }
        let was_refused = has_error("READONLY");
        let gave_up = operation.is_blocking() && observed == Some(&[SeenReply::Null]);
        let may_fail = matches!(operation, Operation::Transaction(_)) && self.fails_watch(connection, observed);
        match (self.is_replica, was_refused) {
            (false, false) => None,
            (true, false) if gave_up || may_fail => None,
            // The commands of a transaction are refused when they arrive, which may be long before EXEC.
            (false, true) if self.was_demoted && matches!(operation, Operation::Transaction(_)) => {
                self.end_watches(connection, operation);
                Some(Effect::AnyReply)
            }
            // The requests after a lost reply come next, whatever became of this one.
            (true, _) if was_refused || observed.is_none() => {
                self.end_watches(connection, operation);
                Some(Effect::AnyReply)
            }
            _ => Some(Effect::Impossible),
        }
    }

    /// Returns `true` if a transaction whose reply was lost may have failed, for a reason that the model does not know:
    /// its watches are marked, or a replica has refused its commands when they arrived.
    pub fn may_fail_unseen(&self, connection: usize) -> bool {
        let is_watching = self.watches[connection].as_ref().is_some_and(|keys| !keys.is_empty());
        self.may_be_marked[connection] || self.was_demoted || (self.may_reload && is_watching)
    }

    /// Applies an operation that has failed without a reply.
    pub fn fail_unseen(&mut self, connection: usize, operation: &Operation) {
        self.end_watches(connection, operation);
        if operation.is_script() {
            self.mark_watches();
        }
    }

    /// Marks all watches, as a script that was killed may do.
    fn mark_watches(&mut self) {
        for (may_be_marked, watched) in self.may_be_marked.iter_mut().zip(&self.watches) {
            *may_be_marked |= watched.as_ref().is_some_and(|watched| !watched.is_empty());
        }
    }

    /// Ends the watches of a connection if the operation is a transaction, as it does if it fails, too.
    fn end_watches(&mut self, connection: usize, operation: &Operation) {
        if matches!(operation, Operation::Transaction(_)) {
            self.may_be_marked[connection] = false;
            self.watches[connection] = Some(BTreeSet::new());
        }
    }

    /// Returns `true` if the transaction failed because of a watched key, as the model expects.
    fn fails_watch(&self, connection: usize, observed: Option<&[SeenReply]>) -> bool {
        let failed = observed.is_some_and(|replies| replies.last() == Some(&SeenReply::Null));
        failed && (self.may_reload || self.may_be_marked[connection] || self.watches[connection].is_none())
    }

    fn execute(&mut self, connection: usize, operations: &[Operation]) -> Vec<SeenReply> {
        let mut replies = vec![SeenReply::ok()];
        replies.extend(operations.iter().map(|_| SeenReply::Status("QUEUED".to_owned())));
        self.may_be_marked[connection] = false;
        let is_unchanged = self.watches[connection].replace(BTreeSet::new()).is_some();
        replies.push(match is_unchanged {
            true => SeenReply::Array(operations.iter().map(|operation| self.reply_to(operation)).collect()),
            false => SeenReply::Null,
        });
        replies
    }

    fn blocking_pop(&mut self, lists: &[usize], observed: Option<&[SeenReply]>) -> Effect {
        let ready = lists.iter().copied().find(|&list| !self.lists[list].is_empty());
        match (ready, observed) {
            (Some(list), _) => {
                let value = self.list_mut(list).pop_front();
                let name = operation::list(list).into_bytes();
                Effect::Replies(vec![SeenReply::Array(vec![
                    SeenReply::Bulk(name),
                    SeenReply::bulk(value.as_deref()),
                ])])
            }
            // It gives up when its time is over. If the connection ended meanwhile, its further requests come next.
            (None, Some([SeenReply::Null]) | None) => Effect::Replies(vec![SeenReply::Null]),
            (None, _) => Effect::Impossible,
        }
    }

    fn blocking_move(&mut self, from: usize, to: usize, observed: Option<&[SeenReply]>) -> Effect {
        match (self.list_mut(from).pop_front(), observed) {
            (Some(value), _) => {
                self.list_mut(to).push_back(value.clone());
                Effect::Replies(vec![SeenReply::Bulk(value)])
            }
            (None, Some([SeenReply::Null]) | None) => Effect::Replies(vec![SeenReply::Null]),
            (None, _) => Effect::Impossible,
        }
    }

    /// Applies an operation on a string that may have an expiry. It has expired if the client saw that, and then stays
    /// so.
    fn volatile_effect(&mut self, event: &Event, observed: Option<&[SeenReply]>) -> Effect {
        let (Operation::SetVolatile { key, .. } | Operation::GetVolatile(key) | Operation::DeleteVolatile(key)) =
            &event.operation
        else {
            return Effect::Impossible;
        };
        let string = &mut self.volatile[*key];
        let saw_none = matches!(observed, Some([SeenReply::Null | SeenReply::Integer(0)]));
        let may_have_expired = |string: &VolatileString| event.answer_ns >= string.lives_until_ns;
        let must_have_expired = |string: &VolatileString| event.sent_ns > string.ends_until_ns;
        if string.as_ref().is_some_and(must_have_expired)
            || (saw_none && (self.may_evict || string.as_ref().is_some_and(may_have_expired)))
        {
            *string = None;
        }
        let before = SeenReply::bulk(string.as_ref().map(|string| &*string.value));
        let was_there = string.is_some();
        Effect::Replies(vec![match &event.operation {
            Operation::SetVolatile { value, ttl_ms, .. } => {
                *string = Some(VolatileString::new(*value, *ttl_ms, event));
                before
            }
            Operation::DeleteVolatile(_) => {
                *string = None;
                SeenReply::Integer(was_there.into())
            }
            _ => before,
        }])
    }

    fn reply_to(&mut self, operation: &Operation) -> SeenReply {
        let operation = operation.effect();
        self.string_reply(operation)
            .or_else(|| self.collection_reply(operation))
            .or_else(|| self.script_reply(operation))
            .or_else(|| self.server_reply(operation))
            .unwrap_or(SeenReply::Null)
    }

    /// Returns all strings, each list and each set, as a client reads them.
    fn contents(&self) -> Vec<SeenReply> {
        let bulk = |element: &Vec<u8>| SeenReply::bulk(Some(element));
        let member = |member: &u32| SeenReply::bulk(Some(member.to_string().as_bytes()));
        let strings = self.strings.iter().map(|value| SeenReply::bulk(value.as_deref()));
        let mut parts = vec![SeenReply::Array(strings.collect())];
        let lists = self.lists.iter();
        parts.extend(lists.map(|list| SeenReply::Array(list.iter().map(bulk).collect())));
        let sets = self.sets.iter();
        parts.extend(sets.map(|set| SeenReply::Array(set.iter().map(member).collect())));
        parts
    }

    /// Applies an operation on strings.
    fn string_reply(&mut self, operation: &Operation) -> Option<SeenReply> {
        Some(match operation {
            Operation::Get(key) => SeenReply::bulk(self.strings[*key].as_deref()),
            Operation::GetAll => SeenReply::Array(
                self.strings
                    .iter()
                    .map(|value| SeenReply::bulk(value.as_deref()))
                    .collect(),
            ),
            Operation::Save => SeenReply::Array(self.contents()),
            Operation::Set(key, value) => {
                self.set(*key, value.to_string().into_bytes());
                SeenReply::ok()
            }
            Operation::SetGet(key, value) => {
                let old = self.strings[*key].clone();
                self.set(*key, value.to_string().into_bytes());
                SeenReply::bulk(old.as_deref())
            }
            Operation::Append(key) => {
                let mut value = self.strings[*key].clone().unwrap_or_default();
                value.push(b'a');
                let length = value.len() as i64;
                self.set(*key, value);
                SeenReply::Integer(length)
            }
            Operation::Delete(key) => {
                let was_there = self.strings[*key].take().is_some();
                if was_there {
                    self.touch(*key);
                }
                SeenReply::Integer(was_there.into())
            }
            Operation::SetRepeatedly(key, value) => {
                self.set(*key, value.to_string().into_bytes());
                SeenReply::ok()
            }
            Operation::SetMany(keys, value) => {
                for key in keys {
                    self.set(*key, value.to_string().into_bytes());
                }
                SeenReply::ok()
            }
            _ => return None,
        })
    }

    /// Applies an operation on lists or sets.
    fn collection_reply(&mut self, operation: &Operation) -> Option<SeenReply> {
        Some(match operation {
            Operation::Push { list, value, is_left } => {
                let value = value.to_string().into_bytes();
                match is_left {
                    true => self.list_mut(*list).push_front(value),
                    false => self.list_mut(*list).push_back(value),
                }
                SeenReply::Integer(self.lists[*list].len() as i64)
            }
            Operation::PushMany { list, values } => {
                let values = values.iter().map(|value| value.to_string().into_bytes());
                self.list_mut(*list).extend(values);
                SeenReply::Integer(self.lists[*list].len() as i64)
            }
            Operation::Pop { list, is_left } => {
                let list = self.list_mut(*list);
                let value = if *is_left { list.pop_front() } else { list.pop_back() };
                SeenReply::bulk(value.as_deref())
            }
            Operation::Move(from, to) => {
                let value = self.list_mut(*from).pop_front();
                self.list_mut(*to).extend(value.clone());
                SeenReply::bulk(value.as_deref())
            }
            Operation::Range(list) => SeenReply::Array(
                self.lists[*list]
                    .iter()
                    .map(|value| SeenReply::Bulk(value.clone()))
                    .collect(),
            ),
            Operation::AddMember(set, member) => SeenReply::Integer(self.sets[*set].insert(*member).into()),
            Operation::Count(set) => SeenReply::Integer(self.sets[*set].len() as i64),
            Operation::UnionStore(into, from) => {
                let union: BTreeSet<u32> = from.iter().flat_map(|set| self.sets[*set].iter().copied()).collect();
                self.sets[*into] = union;
                SeenReply::Integer(self.sets[*into].len() as i64)
            }
            _ => return None,
        })
    }

    /// Applies a script.
    fn script_reply(&mut self, operation: &Operation) -> Option<SeenReply> {
        Some(match operation {
            Operation::ScriptSwap(a, b, value) | Operation::ScriptSlowSwap(a, b, value) => {
                let old = vec![
                    SeenReply::bulk(self.strings[*a].as_deref()),
                    SeenReply::bulk(self.strings[*b].as_deref()),
                ];
                self.set(*a, value.to_string().into_bytes());
                self.set(*b, value.to_string().into_bytes());
                SeenReply::Array(old)
            }
            Operation::ScriptSlowAppend(a, b) => {
                let mut value = self.strings[*a].clone().unwrap_or_default();
                value.push(b'x');
                self.set(*b, value);
                SeenReply::bulk(self.strings[*a].as_deref())
            }
            Operation::ScriptRead(a, b) => SeenReply::Array(vec![
                SeenReply::bulk(self.strings[*a].as_deref()),
                SeenReply::bulk(self.strings[*b].as_deref()),
            ]),
            Operation::ScriptPush(key, value) | Operation::ScriptSlowPush(key, value) => {
                self.list_mut(*key).push_back(value.to_string().into_bytes());
                SeenReply::Integer(self.lists[*key].len() as i64)
            }
            Operation::ScriptUndeclared(a, b, value) => {
                self.set(*a, value.to_string().into_bytes());
                self.set(*b, value.to_string().into_bytes());
                SeenReply::bulk(self.strings[*a].as_deref())
            }
            Operation::ScriptAppendUndeclared(a, b) => {
                for (key, byte) in [(*a, b'b'), (*b, b'c')] {
                    let mut value = self.strings[key].clone().unwrap_or_default();
                    value.push(byte);
                    self.set(key, value);
                }
                SeenReply::bulk(self.strings[*a].as_deref())
            }
            _ => return None,
        })
    }

    /// Applies an operation on the whole server.
    fn server_reply(&mut self, operation: &Operation) -> Option<SeenReply> {
        Some(match operation {
            Operation::FlushAll => {
                for key in 0..KEYS_PER_TYPE {
                    if self.strings[key].take().is_some() {
                        self.touch(key);
                    }
                }
                self.lists = Default::default();
                self.sets = Default::default();
                self.volatile = Default::default();
                SeenReply::ok()
            }
            Operation::Demote => {
                (self.is_replica, self.was_demoted) = (true, true);
                SeenReply::ok()
            }
            Operation::Promote => {
                self.is_replica = false;
                SeenReply::ok()
            }
            Operation::Pause => {
                self.is_paused = true;
                SeenReply::ok()
            }
            Operation::Unpause => {
                self.is_paused = false;
                SeenReply::ok()
            }
            Operation::KillOthers | Operation::Publish { .. } | Operation::Ignored(_) => SeenReply::Unknown,
            _ => return None,
        })
    }

    fn list_mut(&mut self, list: usize) -> &mut VecDeque<Vec<u8>> {
        Rc::make_mut(&mut self.lists[list])
    }

    fn set(&mut self, key: usize, value: Vec<u8>) {
        self.strings[key] = Some(value);
        self.touch(key);
    }

    /// Ends the watches of a string that changed.
    fn touch(&mut self, key: usize) {
        for watch in &mut self.watches {
            if watch.as_ref().is_some_and(|watched| watched.contains(&key)) {
                *watch = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(operation: Operation, replies: Vec<SeenReply>) -> Event {
        Event {
            operation,
            sent_step: 0,
            sent_ns: 0,
            sent_idle_ns: 0,
            answer_ns: 0,
            answer_idle_ns: 0,
            answer: Some((replies, 0)),
        }
    }

    #[test]
    fn a_transaction_may_fail_when_a_script_was_killed_since_its_watch() {
        let watch = || event(Operation::Watch(vec![1]), vec![SeenReply::ok()]);
        let failed = || {
            event(
                Operation::Transaction(Vec::new()),
                vec![SeenReply::ok(), SeenReply::Null],
            )
        };
        let error = SeenReply::Error("ERR Script killed by user with SCRIPT KILL.".to_owned());
        let killed = || event(Operation::ScriptSlowSwap(2, 1, 7), vec![error.clone()]);
        let is_expected = |events: &[(usize, Event)]| {
            let mut model = Model::new(2, Circumstances::default());
            let effects: Vec<Effect> = events
                .iter()
                .map(|(connection, event)| model.apply(*connection, event))
                .collect();
            effects.last() == Some(&Effect::Replies(vec![SeenReply::ok(), SeenReply::Null]))
        };
        assert!(is_expected(&[(0, watch()), (1, killed()), (0, failed())]));
        assert!(!is_expected(&[(0, watch()), (0, failed())]));
        assert!(!is_expected(&[(1, killed()), (0, watch()), (0, failed())]));
        let second = [(0, watch()), (1, killed()), (0, failed()), (0, watch()), (0, failed())];
        assert!(!is_expected(&second), "the first transaction has ended the watch");
    }
}
