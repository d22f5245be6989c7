//! Builds one plan per request: its command, arguments, keys, hashes and slots, computed once.
//!
//! The plans of a batch share three flat arrays. Planning therefore allocates nothing in the steady state, and the
//! prefetch stages walk over memory in order.

use std::ops::Range;

use weft_resp::{ArgRange, Args, ParseOutcome, Parser, ProtocolError, RequestLimits};

use crate::commands::context::{ALL_MEMBERS, Binding, HEAD_ELEMENTS, HandlerMode, REGISTER, TAIL_ELEMENTS, module};
use crate::keyspace::Keyspace;
use crate::keyspace::access::PREFETCH_WINDOW_KEYS;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::connection::Connection;
use weft_command_table::registry::{Command, Lookup};

use super::prefetch::{PrefetchMember, PrefetchProbe};
use weft_command_table::keys;
use weft_command_table::spec::CommandFlags;
use weft_modules::module::{authentication, engines};

/// The maximum number of requests of one connection per turn, so that a deep pipeline does not starve the other
/// connections.
pub const MAX_REQUESTS_PER_TURN: usize = 64;

/// The least part of the input in which inline requests with quotes are rewritten together, in bytes.
const MIN_REWRITTEN_BYTES: usize = 16 * 1024;
/// The divisor of the length of a longer input that gives this part.
const REWRITTEN_PARTS: usize = 8;

/// The kind of a request.
#[derive(Clone, Copy)]
pub enum RequestKind {
    /// A command that exists, with an acceptable number of arguments.
    Command(&'static Command<Binding>, Binding),
    /// Any other well-formed request. Its error is produced when its turn comes.
    Unknown,
    /// Bytes that are not a request.
    Malformed(ProtocolError),
}

/// One request, ready to be executed.
pub struct CommandPlan {
    /// The index of the connection.
    pub token: usize,
    /// The start of the request in the connection's input.
    pub start: usize,
    /// The start of the next request.
    pub end: usize,
    /// The range of the request's arguments in [`Plans::ranges`].
    pub args: Range<u32>,
    /// The range of the request's keys in [`Plans::keys`].
    pub keys: Range<u32>,
    /// The length of [`Plans::probes`] after this plan was added.
    pub probes_end: u32,
    /// The kind of the request.
    pub kind: RequestKind,
}

impl CommandPlan {
    /// Returns the argument ranges of the request, out of those of all plans.
    #[inline]
    pub fn ranges_of<'r>(&self, ranges: &'r [ArgRange]) -> &'r [ArgRange] {
        &ranges[self.args.start as usize..self.args.end as usize]
    }

    /// Returns the arguments, which lie in the connection's input. `ranges` are the argument ranges of all plans.
    #[inline]
    pub fn args_of<'r>(&self, ranges: &'r [ArgRange], input: &'r [u8]) -> Args<'r> {
        Args::new(&input[self.start..self.end], self.ranges_of(ranges))
    }

    /// Returns the positions of the request's keys in [`Plans::keys`].
    #[inline]
    pub fn key_range(&self) -> Range<usize> {
        self.keys.start as usize..self.keys.end as usize
    }

    /// Returns `true` if the request is ASKING.
    pub fn is_asking(&self) -> bool {
        matches!(self.kind, RequestKind::Command(command, _) if command.full_name == "asking")
    }
}

/// Plans that will run together.
#[derive(Default)]
pub struct Plans {
    /// The plans, in order of arrival.
    pub plans: Vec<CommandPlan>,
    /// The argument ranges of all plans.
    pub ranges: Vec<ArgRange>,
    /// The keys of all plans.
    pub keys: Vec<PlannedKey>,
    /// The keys to prefetch.
    pub probes: Vec<PrefetchProbe>,
    /// The connections that have plans.
    pub tokens: Vec<usize>,
    /// `true` if a command needs exclusive mode, unless a transaction queues it.
    pub may_need_exclusive_mode: bool,
    /// `true` if there are commands of modules.
    pub has_module_commands: bool,
}

impl Plans {
    /// Removes all plans and keeps the memory.
    pub fn clear(&mut self) {
        self.plans.clear();
        self.ranges.clear();
        self.keys.clear();
        self.probes.clear();
        self.tokens.clear();
        self.may_need_exclusive_mode = false;
        self.has_module_commands = false;
    }

    /// Adds the plan of input that is no request. Nothing behind it is planned.
    fn add_malformed(&mut self, token: usize, input: Range<usize>, error: ProtocolError) {
        self.plans.push(CommandPlan {
            token,
            start: input.start,
            end: input.end,
            args: 0..0,
            keys: 0..0,
            probes_end: self.probes.len() as u32,
            kind: RequestKind::Malformed(error),
        });
    }
}

/// The state of a connection's input after planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRest {
    /// Nothing: all received requests are planned.
    Nothing,
    /// Part of a request. At least this many bytes are missing (0: unknown).
    Partial(usize),
    /// Requests beyond the maximum per turn.
    More,
}

/// The parts of the server that a planner uses.
pub struct Planner<'a> {
    /// The keyspace that keys are hashed for.
    pub keyspace: &'a Keyspace,
    /// The maximum length of a bulk string, in bytes.
    pub max_bulk_len: u64,
    /// `true` if the client may only authenticate or quit. Its arrays have to be short.
    pub must_authenticate: bool,
    /// `true` if keys are prefetched.
    pub is_prefetch_enabled: bool,
    /// The command table.
    pub commands: &'static weft_command_table::registry::Registry<Binding>,
}

impl Planner<'_> {
    /// Plans the complete requests in a connection's input.
    pub fn plan(&self, token: usize, connection: &mut Connection, plans: &mut Plans) -> InputRest {
        // The hasher is chosen once per turn, because the mapping of keys to slots does not change.
        match self.keyspace.hasher.is_clustered() {
            false => self.plan_requests::<false>(token, connection, plans),
            true => self.plan_requests::<true>(token, connection, plans),
        }
    }

    #[inline]
    fn plan_requests<const CLUSTERED: bool>(
        &self,
        token: usize,
        connection: &mut Connection,
        plans: &mut Plans,
    ) -> InputRest {
        let limits = RequestLimits {
            max_bulk_len: self.max_bulk_len,
            is_authenticated: !self.must_authenticate,
        };
        // The permissions after AUTH must be known before the next request is parsed.
        let share = if self.must_authenticate {
            1
        } else {
            MAX_REQUESTS_PER_TURN
        };
        connection.restore_quoted_line();
        let mut position = connection.consumed;
        let mut planned = 0;
        let rest = loop {
            if position == connection.input.len() {
                break InputRest::Nothing;
            }
            if planned == share {
                break InputRest::More;
            }
            let first_range = plans.ranges.len();
            let parsed = connection
                .parser
                .parse(&connection.input[position..], &mut plans.ranges, &limits);
            match parsed {
                ParseOutcome::Incomplete { missing_bytes: wanted } => break InputRest::Partial(wanted),
                ParseOutcome::Request { consumed, argc: 0 } => {
                    position += consumed;
                    match plans.plans.last_mut() {
                        Some(last) if planned > 0 => last.end = position,
                        _ => connection.consumed = position,
                    }
                }
                ParseOutcome::Request { consumed, .. } => {
                    let end = position + consumed;
                    self.add_plan::<CLUSTERED>(token, connection, plans, first_range, position, end);
                    position = end;
                    planned += 1;
                }
                ParseOutcome::Inline { consumed, args } if self.must_authenticate => {
                    // As an array, it might exceed the limits of a client that has not authenticated. They do not apply
                    // to inline requests.
                    debug_assert_eq!(position, connection.consumed, "one request is planned at a time");
                    connection.unquote_line(consumed, &args, &mut plans.ranges);
                    let end = position + consumed;
                    self.add_plan::<CLUSTERED>(token, connection, plans, first_range, position, end);
                    position = end;
                    planned += 1;
                }
                ParseOutcome::Inline { .. } => {
                    rewrite_quoted_requests(&mut connection.input, position, self.max_bulk_len);
                }
                ParseOutcome::Error(error) => {
                    plans.add_malformed(token, position..connection.input.len(), error);
                    planned += 1;
                    break InputRest::Nothing;
                }
            }
        };
        debug_assert!(
            connection.consumed <= position && position <= connection.input.len(),
            "what is planned lies in the input"
        );
        connection.planned_to = position;
        if planned > 0 {
            plans.tokens.push(token);
            connection.is_in_batch = true;
        }
        rest
    }

    /// Finds the command of a request. In a pipeline it is often the command of the request before.
    #[inline]
    fn lookup_command(&self, token: usize, input: &[u8], plans: &Plans, args: &Args<'_>) -> Lookup<Binding> {
        if let Some(before) = plans.plans.last().filter(|plan| plan.token == token)
            && let RequestKind::Command(command, _) = before.kind
            && command.is_named_by_one_word()
            && let Some(name) = plans.ranges.get(before.args.start as usize)
            && name.of(&input[before.start..before.end]) == args.argument(0)
        {
            return Lookup::Found(command);
        }
        self.commands.lookup(args)
    }

    /// Plans the request in `start..end` of the input. Its argument ranges begin with number `first_range`.
    fn add_plan<const CLUSTERED: bool>(
        &self,
        token: usize,
        connection: &Connection,
        plans: &mut Plans,
        first_range: usize,
        start: usize,
        end: usize,
    ) {
        debug_assert!(
            plans
                .plans
                .last()
                .is_none_or(|last| last.token != token || last.end == start),
            "the plans of a connection cover its input without a gap"
        );
        let args = Args::new(&connection.input[start..end], &plans.ranges[first_range..]);
        let first_key = plans.keys.len();
        let kind = match self.lookup_command(token, &connection.input, plans, &args) {
            Lookup::Found(
                command @ Command {
                    handler: Some(binding), ..
                },
            ) if command.spec.accepts_arg_count(args.len()) => {
                let mut binding = *binding;
                if command.spec.flags.contains(CommandFlags::NO_AUTH) && are_modules_asked_for_login(command) {
                    binding = module(None);
                }
                plans.has_module_commands |= binding.mode == HandlerMode::Module;
                plans.may_need_exclusive_mode |= binding.runs_at_home()
                    || matches!(binding.mode, HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep);
                // The script may be one of a module's engine.
                plans.may_need_exclusive_mode |= binding.mode == HandlerMode::Script && engines::any_exist();
                keys::walk_keys(command.spec, &args, &mut |position: keys::KeyPosition| {
                    let hash = self.keyspace.hasher.hash_in::<CLUSTERED>(args.argument(position.index));
                    let write = binding.writes_all_keys || !position.flags.is_read_only();
                    plans.keys.push(PlannedKey::from_argument(position.index, hash, write));
                });
                RequestKind::Command(command, binding)
            }
            _ => RequestKind::Unknown,
        };
        let new_keys = plans.keys.len() - first_key;
        if self.is_prefetch_enabled && new_keys <= PREFETCH_WINDOW_KEYS {
            let member = member_to_prefetch(&kind, &args);
            for key in &plans.keys[first_key..] {
                self.keyspace.slots.prefetch(key.slot.index());
                plans.probes.push(PrefetchProbe {
                    hash: key.hash,
                    slot: key.slot,
                    db: connection.client.db.get() as u32,
                    member,
                });
            }
        }
        plans.plans.push(CommandPlan {
            token,
            start,
            end,
            args: first_range as u32..plans.ranges.len() as u32,
            keys: first_key as u32..plans.keys.len() as u32,
            probes_end: plans.probes.len() as u32,
            kind,
        });
    }
}

/// Returns the member of the key's value that a command looks for.
#[inline]
fn member_to_prefetch(kind: &RequestKind, args: &Args<'_>) -> PrefetchMember {
    match kind {
        RequestKind::Command(_, binding) => match binding.member_argument {
            0 => PrefetchMember::NONE,
            ALL_MEMBERS => PrefetchMember::ALL,
            HEAD_ELEMENTS => PrefetchMember::HEAD,
            TAIL_ELEMENTS => PrefetchMember::TAIL,
            REGISTER if args.len() > 2 => PrefetchMember::register_of(args.argument(2)),
            REGISTER => PrefetchMember::NONE,
            index => PrefetchMember::from_name(args.argument(usize::from(index))),
        },
        RequestKind::Unknown | RequestKind::Malformed(_) => PrefetchMember::NONE,
    }
}

/// Replaces the inline request at `position`, whose quoting changed its bytes, by the same request as a RESP array.
/// Does the same to such requests that follow.
///
/// All bytes behind what is rewritten have to move. So a part of the input that grows with its length is rewritten at
/// once: the bytes that a pipeline of such requests moves are proportional to its length.
#[cold]
fn rewrite_quoted_requests(input: &mut Vec<u8>, position: usize, max_bulk_len: u64) {
    let rest = &input[position..];
    let rewritten_bytes = MIN_REWRITTEN_BYTES.max(rest.len() / REWRITTEN_PARTS);
    // The client has authenticated, or need not.
    let limits = RequestLimits {
        max_bulk_len,
        is_authenticated: true,
    };
    let (mut parser, mut ranges) = (Parser::default(), Vec::new());
    let mut rewritten = Vec::with_capacity(rest.len() + MIN_REWRITTEN_BYTES);
    let (mut at, mut copied_to) = (0, 0);
    while at < rewritten_bytes {
        ranges.clear();
        match parser.parse(&rest[at..], &mut ranges, &limits) {
            ParseOutcome::Request { consumed, .. } => at += consumed,
            ParseOutcome::Inline { consumed, args } => {
                rewritten.extend_from_slice(&rest[copied_to..at]);
                append_as_array(&mut rewritten, &args);
                at += consumed;
                copied_to = at;
            }
            ParseOutcome::Incomplete { .. } | ParseOutcome::Error(_) => break,
        }
    }
    rewritten.extend_from_slice(&rest[copied_to..]);
    input.truncate(position);
    input.extend_from_slice(&rewritten);
}

/// Appends a request in the form of a RESP array.
fn append_as_array(form: &mut Vec<u8>, args: &[Vec<u8>]) {
    form.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        form.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        form.extend_from_slice(arg);
        form.extend_from_slice(b"\r\n");
    }
}

/// Adds the keys of a command that is not part of a batch. All of them are planned as written.
pub fn plan_write_keys(
    keyspace: &Keyspace,
    command: &Command<Binding>,
    args: &Args<'_>,
    planned: &mut Vec<PlannedKey>,
) {
    keys::walk_keys(command.spec, args, &mut |position: keys::KeyPosition| {
        let hash = keyspace.hasher.hash(args.argument(position.index));
        planned.push(PlannedKey::from_argument(position.index, hash, true));
    });
}

/// Returns `true` if modules authenticate clients, and this command is one by which clients authenticate themselves.
#[cold]
pub fn are_modules_asked_for_login(command: &Command<Binding>) -> bool {
    matches!(command.full_name, "auth" | "hello") && authentication::has_callbacks()
}

#[cfg(test)]
mod tests;
