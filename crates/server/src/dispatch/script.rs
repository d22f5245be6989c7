//! Runs scripts and functions: under the leases of their declared keys, and of whatever else they turn out to need.
//!
//! ```text
//!   EVAL ─▶ prepare: find or compile ─▶ long?  ── yes ──▶ a thread of its own runs the same from the start
//!                                       │ no
//!                     leases of the declared keys, all or none
//!                                       │
//!   Lua ─▶ redis.call ─▶ admitted? ─▶ slots held? ── no ──▶ lease them too ─▶ the command's handler
//!                                       │
//!            waiting clients are served, the leases end, the token is given back
//! ```
//!
//! A script is atomic: it keeps every lease to its end. Nobody who holds leases waits for one, so what is refused must
//! give everything back and begin anew; but a script that has written cannot. Hence the *token*:
//!
//! 1. One script at a time has the token. Its holder alone may wait for a slot while it holds others. All others back
//!    off when they are refused, or end by themselves, so the holder gets what it waits for.
//! 2. A script takes the token before its first write, by try. If somebody else has it, nothing has happened: the
//!    script gives its leases back and begins anew later. So scripts that only read run beside all others, and those
//!    that write beside all commands and scripts that read, on other slots.
//! 3. Until it has the token a script that is refused a slot begins anew. After [`PATIENCE`] failures it takes the token
//!    and waits, so that it gets on.
//! 4. What a script has counted and told the log is kept until it is certain that it does not begin anew.
//! 5. A command that needs the whole keyspace gets the leases of all slots, under the token. Scripts never stand at the
//!    gate: who stands there could not be told that a script is to be killed. In turn nobody closes the gate while a
//!    script runs on a thread of its own (`Running::try_keep_out`).
//! 6. A script with loops leaves the worker until it has proved to be short; one that turns out long on a worker and has
//!    not written leaves it half-way. What has written stays where it is.
//! 7. In a transaction the token is taken first, so that no script in it begins anew.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weft_reactor::Output;
use weft_resp::number::parse_i64;
use weft_resp::{ArgRange, Args, Protocol, Reply};

use crate::acl::{Denial, Scene};
use crate::commands::context::{After, Binding, Mode};
use crate::commands::error::{CommandError, shown_name};
use crate::commands::keys;
use crate::commands::permission::{self, Wish};
use crate::commands::registry::{Command, Lookup};
use crate::commands::script::{NO_SCRIPT, busy_with};
use crate::commands::server::time;
use crate::commands::spec::Flags as CommandFlags;
use crate::config::id;
use crate::journal::Target;
use crate::keyspace::access::{GrowingLeases, Held, Lease, PlannedKey};
use crate::keyspace::effects::Hooks;
use crate::keyspace::hash::{KeyHasher, cluster_slot};
use crate::keyspace::{Exclusive, Pass, SLOTS};
use crate::messages::Post;
use crate::net::client::{Buffers, Client, Flags as ClientFlags};
use crate::net::connection::Connection;
use crate::observe::metrics::Counter;
use crate::repl::Standing;
use crate::script::{self, Answer, Beginning, Flags, Host, Outcome as Ended, Program, Run, Scripts, Stop};
use crate::state::{Question, Server};

use super::admit::NOT_SAVED;
use super::announce::{Caller, announce, line_of_whole};
use super::background::Detached;
use super::cluster;
use super::effects::release;
use super::execute::{Call, Outcome, PATIENCE, Request, Thread, lease, refuse_moving, settle_moving, write_error};
use super::record::{self, Ending, Thresholds};
use super::{logging, serve, transaction};

/// When a script that runs on a worker is too long for it.
const LEAVES_AFTER: Duration = Duration::from_micros(500);
/// Pause between two tries for a slot.
const WAIT: Duration = Duration::from_micros(20);
/// Memory that a script's commands leave is freed when there are so many pieces.
const GARBAGE_MAX: usize = 1024;
/// Expired keys that a script's commands found are remembered up to this number; they are found again.
const EXPIRED_MAX: usize = 1024;
/// Figures that are kept back until a script has written.
const TALLY_MAX: usize = 4096;

/// A script that can run, and what was asked of it.
struct Prepared {
    program: Program,
    /// How many of its arguments are keys.
    keys: usize,
    read_only: bool,
    allow_oom: bool,
    /// Whether, in a cluster, its keys must be of one slot.
    one_slot: bool,
}

/// The slot of a script's declared keys.
fn first_slot(prepared: &Prepared, args: Args<'_>) -> Option<u16> {
    (prepared.one_slot && prepared.keys > 0).then(|| cluster_slot(args.at(3)))
}

/// What a command that runs a script calls it by.
enum Named<'a> {
    Source(&'a [u8]),
    Digest(&'a [u8]),
    Function(&'a [u8]),
}

fn named<'a>(command: &Command<Binding>, args: Args<'a>) -> Named<'a> {
    match command.full_name {
        "eval" | "eval_ro" => Named::Source(args.at(1)),
        "evalsha" | "evalsha_ro" => Named::Digest(args.at(1)),
        _ => Named::Function(args.at(1)),
    }
}

/// The flags of the script that a command would run, if it has some.
fn flags_of(scripts: &Scripts, command: &Command<Binding>, args: Args<'_>) -> Option<Flags> {
    match named(command, args) {
        Named::Source(source) => script::flags_of_source(source),
        Named::Digest(digest) => scripts.cache.find(digest)?.flags,
        Named::Function(name) => {
            let (library, index) = scripts.libraries.current().function(name)?;
            Some(library.functions[index].flags)
        }
    }
}

/// Whether a script must not run because memory is short: its flags say that it may need some.
#[cold]
pub fn lacks_memory(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    let may_run = Flags::ALLOW_OOM;
    flags_of(&server.scripts, command, args).is_some_and(|flags| !flags.has(may_run) && !flags.has(Flags::NO_WRITES))
}

/// Whether a script says what it does, and does not promise to write nothing.
pub fn may_write(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    flags_of(&server.scripts, command, args).is_some_and(|flags| !flags.has(Flags::NO_WRITES))
}

/// Whether a script has promised to write nothing.
#[cold]
pub fn only_reads(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    flags_of(&server.scripts, command, args).is_some_and(|flags| flags.has(Flags::NO_WRITES))
}

fn key_count(args: Args<'_>, not_a_number: CommandError) -> Result<usize, CommandError> {
    let count = parse_i64(args.at(2)).ok_or(not_a_number)?;
    let arguments = args.len() as i64 - 3;
    if count > arguments {
        return Err(CommandError::constant(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    usize::try_from(count).map_err(|_| CommandError::constant("ERR Number of keys can't be negative"))
}

/// Finds or compiles what is to run.
fn prepare(
    thread: &Thread,
    command: &Command<Binding>,
    args: Args<'_>,
    is_primary: bool,
) -> Result<Prepared, CommandError> {
    let scripts = &thread.server.scripts;
    let not_compiled = |text: Vec<u8>| CommandError::bytes([b"ERR ", &text[..]].concat());
    let (program, keys) = match named(command, args) {
        Named::Source(source) => {
            let keys = key_count(args, CommandError::NOT_AN_INTEGER)?;
            (
                script::prepare_script(scripts, Some(source), b"", false).map_err(not_compiled)?,
                keys,
            )
        }
        Named::Digest(digest) => {
            if digest.len() != 40 {
                return Err(NO_SCRIPT);
            }
            let keys = key_count(args, CommandError::NOT_AN_INTEGER)?;
            let found = script::prepare_script(scripts, None, digest, false).map_err(|text| match text.is_empty() {
                true => NO_SCRIPT,
                false => not_compiled(text),
            });
            (found?, keys)
        }
        Named::Function(name) => {
            let found = script::prepare_function(scripts, name).map_err(not_compiled)?;
            let program = found.ok_or(CommandError::constant("ERR Function not found"))?;
            let bad_count = CommandError::constant("ERR Bad number of keys provided");
            (program, key_count(args, bad_count)?)
        }
    };
    let must_read = command.spec.flags.contains(CommandFlags::READONLY);
    let flags = program.flags();
    let promises = |flag: Flags| flags.is_some_and(|flags| flags.has(flag));
    if thread.view.is_some() && promises(Flags::NO_CLUSTER) {
        return Err(CommandError::constant(
            "ERR Can not run script on cluster, 'no-cluster' flag is set.",
        ));
    }
    if !thread.standing.is_plain() && !is_primary {
        check_standing(thread, flags)?;
    }
    if flags.is_some() && must_read && !promises(Flags::NO_WRITES) {
        return Err(CommandError::constant(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    if flags.is_some() && !promises(Flags::ALLOW_OOM) && !promises(Flags::NO_WRITES) && is_out_of_memory(thread) {
        return Err(CommandError::constant(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        ));
    }
    Ok(Prepared {
        keys,
        read_only: must_read || promises(Flags::NO_WRITES),
        allow_oom: promises(Flags::ALLOW_OOM),
        one_slot: thread.view.is_some() && flags.is_some() && !promises(Flags::ALLOW_CROSS_SLOT_KEYS),
        program,
    })
}

/// Whether this server's role in replication lets a script with these flags run; none are those of a script that
/// declares nothing.
#[cold]
fn check_standing(thread: &Thread, flags: Option<Flags>) -> Result<(), CommandError> {
    let promises = |flag: Flags| flags.is_some_and(|flags| flags.has(flag));
    if flags.is_some() && !promises(Flags::NO_WRITES) && is_read_only(thread) {
        return Err(CommandError::constant(
            "READONLY You can't write against a read only replica.",
        ));
    }
    if is_stale(thread) && !promises(Flags::ALLOW_STALE) {
        return Err(CommandError::constant(
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ));
    }
    if flags.is_some() && !promises(Flags::NO_WRITES) && lacks_replicas(thread) {
        return Err(CommandError::constant("NOREPLICAS Not enough good replicas to write."));
    }
    Ok(())
}

fn is_stale(thread: &Thread) -> bool {
    let stale = Standing::FOLLOWS.with(Standing::CUT_OFF);
    thread.standing.has(stale) && !thread.server.config.boolean(id::REPLICA_SERVE_STALE_DATA)
}

fn lacks_replicas(thread: &Thread) -> bool {
    thread.standing.has(Standing::LACKS_REPLICAS) && !thread.standing.has(Standing::FOLLOWS)
}

fn is_read_only(thread: &Thread) -> bool {
    thread.standing.has(Standing::FOLLOWS) && thread.server.config.boolean(id::REPLICA_READ_ONLY)
}

fn is_out_of_memory(thread: &Thread) -> bool {
    let limit = thread.tunables.max_memory;
    limit != 0 && thread.server.used_memory.load(std::sync::atomic::Ordering::Relaxed) > limit
}

// ---- one command ---------------------------------------------------------------------------------------------------

/// Runs a plan that runs a script.
pub fn run_leased<'p>(
    thread: &mut Thread,
    pass: &'p Pass<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let args = request.args(&connection.input);
    let prepared = match prepare(
        thread,
        request.command,
        args,
        connection.client.flags.has(ClientFlags::PRIMARY),
    ) {
        Ok(prepared) => prepared,
        Err(error) => return fail(thread, request, connection, &error),
    };
    if thread.may_leave && prepared.program.habits().is_long() {
        return leave(thread, request, keys, connection);
    }
    for key in keys.iter_mut() {
        key.write = !prepared.read_only;
    }
    if lease(pass, keys, &mut thread.order, many, connection.lease_failures).is_none() {
        return Outcome::Contended;
    }
    if thread.moving.is_some() {
        let settled = settle_moving(thread, request, keys, &Held::Many(many), connection);
        if let Err(error) = settled {
            many.clear();
            return refuse_moving(thread, request, connection, error);
        }
    }
    let impatient = connection.lease_failures >= PATIENCE;
    let wants_token = impatient || (!prepared.read_only && prepared.program.habits().writes());
    if wants_token && !thread.server.scripts.try_take_token() {
        many.clear();
        return Outcome::Contended;
    }
    let mut leases = GrowingLeases::new(std::mem::take(many));
    let held = Slots::Leased(&mut leases);
    run_alone(thread, pass, request, prepared, (held, wants_token), connection)
}

/// Runs a script under the leases of its keys, and ends them.
fn run_alone<'p>(
    thread: &mut Thread,
    pass: &'p Pass<'p>,
    request: &Request<'_>,
    prepared: Prepared,
    (held, has_token): (Slots<'_, 'p>, bool),
    connection: &mut Connection,
) -> Outcome {
    let (start, lookups) = (thread.ticks, (thread.effects.hits, thread.effects.misses));
    let Connection {
        client, input, output, ..
    } = connection;
    let args = request.args(input);
    client.last_command = request.command.full_name;
    let before = output.mark();
    let length_before = output.len();
    let server = thread.server.clone();
    let (may_leave, may_block) = (thread.may_leave, thread.may_block);
    (thread.may_leave, thread.may_block) = (false, false);
    let mut runner = Runner::new(thread, Some(pass), held, client, &prepared, (may_leave, args));
    runner.has_token = has_token;
    let listed = runner.list();
    let ended = runner.run(
        &prepared,
        args,
        &mut Reply::new(&mut output.bytes, client.protocol),
        listed,
    );
    let Runner {
        mut held,
        has_token,
        run,
        commands,
        ..
    } = runner;
    client.commands += commands;
    if listed || run.is_overdue() {
        server.scripts.running.unlist(&run);
    }
    let unserved = transaction::serve_ready(thread, Some(pass), held.as_held(), client);
    held.end();
    if has_token {
        server.scripts.give_token_back();
    }
    (thread.may_leave, thread.may_block) = (may_leave, may_block);
    release(&mut thread.effects, &thread.server);
    serve::mail(thread);
    let failed = match ended {
        Finished::Done { failed } => failed,
        Finished::Stopped(stop) => {
            output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            return match stop {
                Stop::Leave => {
                    prepared.program.habits().note_long();
                    let keys = planned_anew(&server, request, connection);
                    leave(thread, request, &keys, connection)
                }
                _ => Outcome::Contended,
            };
        }
    };
    prepared.program.habits().note_duration(run.elapsed());
    thread.ticks = start;
    finish(thread, request, connection, (before, length_before), failed);
    match unserved {
        None => {
            connection.settle_reply(before);
            Outcome::Done
        }
        Some(unserved) => {
            let reply = connection.output.split_off(before);
            Outcome::After(After::Serve(Box::new((*unserved, reply))))
        }
    }
}

/// The keys of a request once more, for a copy of it.
fn planned_anew(server: &Server, request: &Request<'_>, connection: &Connection) -> Vec<PlannedKey> {
    let mut planned = Vec::new();
    plan_keys(server, request.command, request.args(&connection.input), &mut planned);
    planned
}

/// Answers with an error instead of running anything.
fn fail(thread: &mut Thread, request: &Request<'_>, connection: &mut Connection, error: &CommandError) -> Outcome {
    let before = connection.output.mark();
    let length_before = connection.output.len();
    connection.client.last_command = request.command.full_name;
    write_error(thread, error, &mut connection.output.bytes);
    if thread.server.keyspace.hooks.now().has(Hooks::MONITOR) {
        let line = line_of_whole(
            &thread.server,
            &connection.client,
            request.args(&connection.input).iter(),
        );
        Post::new(&thread.server, &mut thread.effects, thread.seat).show(line);
    }
    finish(thread, request, connection, (before, length_before), true);
    connection.settle_reply(before);
    Outcome::Done
}

/// Books a command that ran a script.
fn finish(
    thread: &mut Thread,
    request: &Request<'_>,
    connection: &mut Connection,
    (_, length_before): (weft_reactor::Mark, usize),
    failed: bool,
) {
    let ending = Ending {
        nanoseconds: super::execute::finish_command(thread, request.command, failed),
        request_bytes: request.plan.end - request.plan.start,
        reply_bytes: connection.output.len() - length_before,
    };
    let thresholds = Thresholds::of(&thread.tunables);
    let args = request.args(&connection.input);
    record::remember(&thread.server, request.command, thresholds, &ending, || {
        record::subject_of(request.command, args, &connection.client)
    });
}

/// Has a thread for scripts run it from the start.
#[cold]
fn leave(thread: &mut Thread, request: &Request<'_>, keys: &[PlannedKey], connection: &mut Connection) -> Outcome {
    let running = &thread.server.scripts.running;
    if running.any_overdue()
        && running.on_own_threads() >= script::THREADS
        && let Some(error) = busy(&thread.server, std::iter::empty(), true)
    {
        // It would wait for scripts that may never end.
        return fail(thread, request, connection, &error);
    }
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let command = Detached::new(request, keys, None, connection);
    Outcome::After(After::Script(Box::new(|asker| command.into_script_job(asker))))
}

/// The error for who was refused a slot, if a script that should have ended by now holds it: one of these slots, or
/// any if `all`.
#[cold]
pub fn busy(server: &Server, slots: impl Iterator<Item = u16>, all: bool) -> Option<CommandError> {
    let running = &server.scripts.running;
    let any = || running.overdue_holder(None);
    let holder = match all {
        true => any(),
        false => slots.into_iter().find_map(|slot| running.overdue_holder(Some(slot))),
    };
    holder.map(|run| busy_with(&run))
}

// ---- as a part of a transaction ------------------------------------------------------------------------------------

/// Runs a command of a transaction that runs a script; returns whether it failed.
pub fn run_inside<'p>(
    thread: &mut Thread,
    pass: Option<&'p Pass<'p>>,
    command: &'static Command<Binding>,
    args: Args<'_>,
    held: Held<'_, 'p>,
    client: &mut Client,
    output: &mut Output,
) -> bool {
    let before = output.mark();
    let held = match held {
        Held::Growing(leases) => Slots::Leased(leases),
        Held::Everything(all) => Slots::Everything(all),
        Held::Nothing | Held::One(_) | Held::Many(_) | Held::Private(_) => {
            unreachable!("a transaction with scripts can take further leases")
        }
    };
    let prepared = match prepare(thread, command, args, client.flags.has(ClientFlags::PRIMARY)) {
        Ok(prepared) => prepared,
        Err(error) => {
            write_error(thread, &error, &mut output.bytes);
            return true;
        }
    };
    let start = thread.ticks;
    let mut runner = Runner::new(thread, pass, held, client, &prepared, (false, args));
    // The transaction has it, and nobody else.
    runner.has_token = true;
    let ended = runner.run(
        &prepared,
        args,
        &mut Reply::new(&mut output.bytes, client.protocol),
        false,
    );
    let run = runner.run;
    if run.is_overdue() {
        thread.server.scripts.running.unlist(&run);
    }
    thread.ticks = start;
    prepared.program.habits().note_duration(run.elapsed());
    match ended {
        Finished::Done { failed } => failed,
        Finished::Stopped(_) => {
            output.truncate(before);
            let error = CommandError::constant("ERR The server is about to end");
            write_error(thread, &error, &mut output.bytes);
            true
        }
    }
}

// ---- commands of scripts -------------------------------------------------------------------------------------------

/// What a script holds.
enum Slots<'r, 'p> {
    Leased(&'r mut GrowingLeases<'p>),
    Everything(&'r mut Exclusive<'p>),
}

impl<'p> Slots<'_, 'p> {
    fn as_held(&mut self) -> Held<'_, 'p> {
        match self {
            Slots::Leased(leases) => Held::Growing(leases),
            Slots::Everything(all) => Held::Everything(all),
        }
    }

    /// Ends the leases.
    fn end(self) {
        if let Slots::Leased(leases) = self {
            *leases = GrowingLeases::default();
        }
    }
}

/// How a run ended, its errors counted.
enum Finished {
    Done { failed: bool },
    Stopped(Stop),
}

/// How a command of a script ended.
enum CallEnd {
    Done(u64),
    Failed(u64, Vec<u8>),
    Rejected(Vec<u8>),
}

/// What a run works with: the host of its script.
struct Runner<'r, 'h, 'p> {
    thread: &'r mut Thread,
    pass: Option<&'p Pass<'p>>,
    held: Slots<'h, 'p>,
    /// The script's own client: SELECT does not reach the caller.
    client: Client,
    output: Output,
    planned: Vec<PlannedKey>,
    run: Arc<Run>,
    program: Program,
    read_only: bool,
    may_lack_memory: bool,
    has_token: bool,
    /// Whether its keys must be of one slot of a cluster.
    one_slot: bool,
    /// That slot, once it is known.
    slot: Cell<Option<u16>>,
    /// For whom its commands are logged.
    logged_for: Target,
    /// When it began, since the epoch: for it, time stands still.
    began: Duration,
    /// The line that monitors are shown before those of the script's commands.
    line: Option<Vec<u8>>,
    /// Commands that it has run.
    commands: u64,
    /// Figures of commands, until it is certain that they count.
    tally: Vec<(Option<&'static Command<Binding>>, CallEnd)>,
}

impl<'r, 'h, 'p> Runner<'r, 'h, 'p> {
    fn new(
        thread: &'r mut Thread,
        pass: Option<&'p Pass<'p>>,
        held: Slots<'h, 'p>,
        caller: &Client,
        prepared: &Prepared,
        (may_leave, args): (bool, Args<'_>),
    ) -> Self {
        let mut client = caller.view();
        client.protocol = Protocol::Resp2;
        client.flags.put(ClientFlags::MULTI, false);
        client.flags.put(ClientFlags::SCRIPT, true);
        let threshold_ms = thread.server.config.unsigned(id::BUSY_REPLY_THRESHOLD);
        let command = match thread.for_script {
            true => args.iter().map(<[u8]>::to_vec).collect(),
            false => Vec::new(),
        };
        let program = prepared.program.clone();
        let run = Run::new(Beginning {
            name: program.name().to_vec(),
            is_function: program.kind == script::Kind::Function,
            command,
            leaves_after: may_leave.then_some(LEAVES_AFTER),
            overdue_after: (threshold_ms > 0).then(|| Duration::from_millis(threshold_ms)),
        });
        Runner {
            pass,
            held,
            client,
            output: Output::new(),
            planned: Vec::new(),
            run: Arc::new(run),
            program,
            read_only: prepared.read_only,
            may_lack_memory: prepared.allow_oom || !is_out_of_memory(thread),
            has_token: false,
            one_slot: prepared.one_slot,
            slot: Cell::new(first_slot(prepared, args)),
            logged_for: Target::ALL,
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            line: None,
            commands: 0,
            tally: Vec::new(),
            thread,
        }
    }

    /// Lets others know of a run on a thread of its own.
    fn list(&mut self) -> bool {
        match &self.held {
            Slots::Leased(leases) => self.run.holds(leases.slots()),
            Slots::Everything(_) => self.run.holds_everything(),
        }
        if self.thread.for_script {
            self.thread.server.scripts.running.list(&self.run);
        }
        self.thread.for_script
    }

    fn run(&mut self, prepared: &Prepared, args: Args<'_>, reply: &mut Reply<'_>, listed: bool) -> Finished {
        if self.thread.server.keyspace.hooks.now().has(Hooks::MONITOR) {
            self.line = Some(line_of_whole(&self.thread.server, &self.client, args.iter()));
        }
        let words: Vec<&[u8]> = args.iter().skip(3).collect();
        let (keys, arguments) = words.split_at(prepared.keys);
        let server = self.thread.server.clone();
        let run = self.run.clone();
        let ended = script::run(
            &server.scripts,
            &prepared.program,
            (&run, listed),
            (keys, arguments),
            self,
            reply,
        );
        if let Some(script) = prepared.program.script() {
            server.scripts.cache.touch(script);
        }
        if !matches!(ended, Ok(Ended::Stopped(_))) {
            self.show_line();
        }
        match ended {
            Ok(Ended::Stopped(stop)) if stop != Stop::Shutdown => {
                debug_assert!(!run.wrote(), "a script that has written does not begin anew");
                self.tally.clear();
                Finished::Stopped(stop)
            }
            Ok(Ended::Stopped(stop)) => Finished::Stopped(stop),
            Ok(Ended::Done {
                errors,
                invented,
                failed,
            }) => {
                self.settle_tally();
                for code in errors {
                    self.count_error(&code, invented);
                }
                Finished::Done { failed }
            }
            Err(text) => {
                self.settle_tally();
                reply.error_bytes(&text);
                self.count_error(b"ERR", false);
                Finished::Done { failed: true }
            }
        }
    }

    /// Shows monitors the script before its first command, or at its end.
    fn show_line(&mut self) {
        if let Some(line) = self.line.take() {
            let thread = &mut *self.thread;
            Post::new(&thread.server, &mut thread.effects, thread.seat).show(line);
        }
    }

    fn count_error(&self, code: &[u8], invented: bool) {
        let server = &self.thread.server;
        server.metrics.add(self.thread.seat, Counter::ErrorReplies, 1);
        match invented {
            true => server.errors.count_invented(code),
            false => server.errors.count(code),
        }
    }

    /// Books what was kept back.
    fn settle_tally(&mut self) {
        for (command, end) in std::mem::take(&mut self.tally) {
            let Thread {
                server, seat, tunables, ..
            } = &*self.thread;
            let metrics = &server.metrics;
            match (command, &end) {
                (Some(command), CallEnd::Done(nanoseconds) | CallEnd::Failed(nanoseconds, _)) => {
                    let failed = matches!(end, CallEnd::Failed(..));
                    metrics.executed(*seat, command.id as usize, *nanoseconds, failed);
                    if tunables.latency_tracking {
                        metrics.latency(*seat, command.id as usize, *nanoseconds);
                    }
                }
                (Some(command), CallEnd::Rejected(_)) => metrics.rejected(*seat, command.id as usize),
                (None, _) => {}
            }
            if let CallEnd::Failed(_, code) | CallEnd::Rejected(code) = end {
                self.count_error(&code, false);
            }
        }
    }

    fn tally(&mut self, command: Option<&'static Command<Binding>>, end: CallEnd) {
        self.tally.push((command, end));
        if self.run.wrote() || self.tally.len() >= TALLY_MAX {
            self.settle_tally();
        }
    }

    /// Every refusal, in order.
    fn admit(&mut self, args: Args<'_>) -> Result<(&'static Command<Binding>, Binding), Vec<u8>> {
        let commands = crate::commands::registry();
        let refuse = |text: &'static str| text.as_bytes().to_vec();
        let (command, text) = match commands.lookup(&args) {
            Lookup::UnknownCommand => (None, refuse("ERR Unknown command called from script")),
            Lookup::UnknownSubcommand { parent } => {
                let name = parent.full_name.to_uppercase();
                let text = [
                    b"ERR unknown subcommand '",
                    shown_name(args.at(1)),
                    b"'. Try ",
                    name.as_bytes(),
                    b" HELP.",
                ]
                .concat();
                (Some(parent), text)
            }
            Lookup::Found(command) => match self.refusal(command, args) {
                Some(text) => (Some(command), text.into_owned()),
                None => match command.handler {
                    Some(binding) => return Ok((command, binding)),
                    None => (
                        Some(command),
                        refuse("ERR Wrong number of args calling command from script"),
                    ),
                },
            },
        };
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default().to_vec();
        self.tally(command, CallEnd::Rejected(code));
        Err(text)
    }

    fn refusal(&self, command: &'static Command<Binding>, args: Args<'_>) -> Option<Cow<'static, [u8]>> {
        let refuse = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        let flags = command.spec.flags;
        if !command.spec.accepts_arg_count(args.len()) {
            return refuse("ERR Wrong number of args calling command from script");
        }
        let runs_script = command.handler.is_some_and(|binding| binding.mode == Mode::Script);
        let permitted = self.thread.server.scripts.permits_all() && !runs_script;
        if flags.contains(CommandFlags::NOSCRIPT) && !permitted {
            return refuse("ERR This Valkey command is not allowed from script");
        }
        if let Err(denial) = self.permits(command, args) {
            let (thread, client) = (&*self.thread, &self.client);
            let refusal = permission::refusal(client, Scene::Script, (command, &args), denial);
            let line = client.describe(thread.now_ms, Buffers::default());
            permission::note((&thread.server, thread.seat, thread.now_ms), refusal, line);
            let text = permission::refused_in_script(denial.reason, client.login.name(), command);
            return Some(Cow::Owned(text));
        }
        if let Some(view) = &self.thread.view {
            let mut slot = self.slot.get();
            let bound = self.one_slot.then_some(&mut slot);
            let (server, client) = (&self.thread.server, &self.client);
            let refusal = cluster::refusal_in_script(view, server, client, command, args, bound);
            self.slot.set(slot);
            if let Some(refusal) = refusal {
                return Some(Cow::Owned(format!("ERR {refusal}").into_bytes()));
            }
        }
        if self.read_only && flags.intersects(super::admit::CHANGES) {
            return refuse("ERR Write commands are not allowed from read-only scripts.");
        }
        if !self.thread.standing.is_plain() && !self.client.flags.has(ClientFlags::PRIMARY) {
            if flags.contains(CommandFlags::WRITE) && is_read_only(self.thread) {
                return refuse("READONLY You can't write against a read only replica.");
            }
            if flags.contains(CommandFlags::WRITE) && lacks_replicas(self.thread) && !self.run.wrote() {
                return refuse("NOREPLICAS Not enough good replicas to write.");
            }
            if !flags.contains(CommandFlags::STALE) && is_stale(self.thread) {
                return refuse("ERR Can not execute the command on a stale replica");
            }
        }
        if self.thread.tunables.refuses_writes && flags.contains(CommandFlags::WRITE) && !self.run.wrote() {
            return refuse(NOT_SAVED);
        }
        if !self.may_lack_memory && flags.contains(CommandFlags::DENYOOM) && !self.run.wrote() {
            return refuse("OOM command not allowed when used memory > 'maxmemory'.");
        }
        None
    }

    /// Whether the caller may run a command.
    fn permits(&self, command: &'static Command<Binding>, args: Args<'_>) -> Result<(), Denial> {
        let (server, login) = (&self.thread.server, &self.client.login);
        if login.is_free(server.acl.version()) {
            return Ok(());
        }
        let wish = Wish {
            command,
            args: &args,
            db: self.client.db,
            databases: permission::databases(server),
        };
        permission::check(login.user(), &wish)
    }

    // ---- leases ----------------------------------------------------------------------------------------------------

    /// Makes sure that everything a command needs is held; `None` if the script has to stop.
    fn hold(&mut self, command: &'static Command<Binding>, binding: Binding, args: Args<'_>) -> Option<()> {
        self.planned.clear();
        plan_keys(&self.thread.server, command, args, &mut self.planned);
        if command.spec.flags.intersects(super::admit::CHANGES) && !self.run.wrote() {
            self.take_token()?;
            if !self.run.try_note_write() {
                return None;
            }
            self.program.habits().note_write();
            self.settle_tally();
        }
        if needs_everything(command, binding, args) {
            self.hold_everything()?;
        }
        let mut planned = std::mem::take(&mut self.planned);
        let held = planned.iter_mut().try_for_each(|key| {
            key.lease = self.hold_slot(key.slot)?;
            Some(())
        });
        self.planned = planned;
        held
    }

    fn take_token(&mut self) -> Option<()> {
        if !self.has_token && !matches!(self.held, Slots::Everything(_)) {
            self.has_token = self.thread.server.scripts.try_take_token();
            if !self.has_token {
                self.run.stop(Stop::Contended);
                return None;
            }
        }
        Some(())
    }

    /// The index of a slot's lease, which is taken if it is not held yet.
    fn hold_slot(&mut self, slot: u16) -> Option<u32> {
        let Slots::Leased(leases) = &mut self.held else {
            return Some(0);
        };
        if let Some(index) = leases.index_of(slot) {
            return Some(index);
        }
        let taken = self.wait_for(slot)?;
        let Slots::Leased(leases) = &mut self.held else {
            return None;
        };
        self.run.holds_also(slot);
        Some(leases.add(taken))
    }

    /// Leases one slot more. Only with the token it waits.
    fn wait_for(&mut self, slot: u16) -> Option<Lease<'p>> {
        let pass = self.pass?;
        loop {
            let number = usize::from(slot);
            let taken = match self.read_only {
                true => pass.read_spinning(number).map(Lease::Read),
                false => pass.write_spinning(number).map(Lease::Write),
            };
            if taken.is_some() {
                return taken;
            }
            if !self.has_token {
                self.run.stop(Stop::Contended);
            } else if self.thread.server.scripts.running.is_ending() {
                self.run.stop(Stop::Shutdown);
            }
            if self.run.stopped().is_some() {
                return None;
            }
            if !self.read_only {
                pass.announce_writer(number);
            }
            std::thread::sleep(WAIT);
        }
    }

    fn hold_everything(&mut self) -> Option<()> {
        if let Slots::Leased(leases) = &self.held
            && leases.is_everything()
        {
            return Some(());
        }
        self.take_token()?;
        for slot in 0..SLOTS as u16 {
            self.hold_slot(slot)?;
        }
        Some(())
    }

    // ---- execution -------------------------------------------------------------------------------------------------

    fn execute(&mut self, command: &'static Command<Binding>, binding: Binding, args: Args<'_>) -> Option<()> {
        self.thread.ticks = self.thread.timer.raw();
        self.show_line();
        self.commands += 1;
        let (error, after) = self.handle(command, binding, args);
        if matches!(after, After::Defer) {
            // What it looks at on the way is held by somebody else: with everything it does not look in vain.
            self.hold_everything()?;
            let (error, after) = self.handle(command, binding, args);
            self.end_call(command, args, error, after);
        } else {
            self.end_call(command, args, error, after);
        }
        Some(())
    }

    fn handle(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: Args<'_>,
    ) -> (Option<CommandError>, After) {
        self.output.clear();
        if command.full_name == "time" {
            time::write(
                &mut Reply::new(&mut self.output.bytes, self.client.protocol),
                self.began,
            );
            return (None, After::Nothing);
        }
        self.thread.effects.hooks = self.thread.server.keyspace.hooks.now();
        let dirty = self.thread.effects.dirty;
        let call = Call {
            command,
            args,
            planned: &self.planned,
            held: self.held.as_held(),
            pass: self.pass,
        };
        let mut context = self.thread.split().0.context(call, &mut self.client, &mut self.output);
        let result = (binding.run)(&mut context);
        let after = std::mem::take(&mut context.after);
        if context.keys.effects.logs() {
            logging::end_call_for(&mut context.keys, &after, dirty, self.logged_for);
        }
        if context.keys.effects.hooks.has(Hooks::TELLS) {
            announce(&mut context, &after, Caller::Script);
        }
        (result.err(), after)
    }

    /// Books a command, and completes its reply.
    fn end_call(
        &mut self,
        command: &'static Command<Binding>,
        args: Args<'_>,
        error: Option<CommandError>,
        after: After,
    ) {
        let error = error.or_else(|| self.complete(after));
        let now = self.thread.timer.raw();
        let nanoseconds = self.thread.timer.delta_as_nanos(self.thread.ticks, now);
        self.thread.ticks = now;
        self.output.flatten();
        let end = match &error {
            None => CallEnd::Done(nanoseconds),
            Some(error) => CallEnd::Failed(nanoseconds, error.code().to_vec()),
        };
        if let Some(error) = &error {
            self.output.clear();
            error.write(&mut self.output.bytes);
        }
        let ending = Ending {
            nanoseconds,
            request_bytes: args.request_len(),
            reply_bytes: self.output.len(),
        };
        let thresholds = Thresholds::of(&self.thread.tunables);
        record::remember(&self.thread.server, command, thresholds, &ending, || {
            record::subject_of(command, args, &self.client)
        });
        self.tally(Some(command), end);
        let effects = &mut self.thread.effects;
        if effects.garbage.len() + effects.removed.len() > GARBAGE_MAX {
            release(effects, &self.thread.server);
        }
        self.thread.effects.expired.truncate(EXPIRED_MAX);
    }

    /// Completes a reply that others were to give, as far as that can be done here.
    fn complete(&mut self, after: After) -> Option<CommandError> {
        match after {
            After::Nothing => None,
            After::Ask(make) => {
                let question = make((0, self.client.id, 0));
                self.output.clear();
                self.output.bytes = match self.thread.for_script {
                    true => self.ask(question),
                    // A worker cannot wait for itself: nothing is known of clients.
                    false => (question.combine)(Vec::new()),
                };
                None
            }
            After::ReplyAt(reply) => {
                self.output.clear();
                self.output.bytes = reply.1;
                None
            }
            _ => Some(CommandError::constant("ERR This command cannot be run by a script")),
        }
    }
}

/// How often a script that waits for workers looks whether it has been told to stop.
const ASKING: Duration = Duration::from_millis(5);

impl Runner<'_, '_, '_> {
    /// Asks all workers and waits: nobody waits at the gate for a script on a thread of its own, so they answer.
    fn ask(&mut self, mut question: Question) -> Vec<u8> {
        let server = self.thread.server.clone();
        let (sender, answer) = sync_channel(1);
        question.waits = Some(sender);
        server.ask_all(question);
        loop {
            match answer.recv_timeout(ASKING) {
                Ok(reply) => return reply,
                Err(RecvTimeoutError::Timeout) if !server.scripts.running.look_at(&self.run, true, || None) => {}
                Err(_) => return b"-ERR The script is about to end\r\n".to_vec(),
            }
        }
    }
}

pub(super) fn plan_keys(server: &Server, command: &Command<Binding>, args: Args<'_>, planned: &mut Vec<PlannedKey>) {
    keys::walk(command.spec, &args, &mut |position: keys::KeyPosition| {
        let hash = server.keyspace.hasher.hash(args.at(position.index));
        planned.push(PlannedKey {
            hash,
            argument: position.index as u32,
            slot: KeyHasher::slot(hash) as u16,
            write: true,
            lease: 0,
        });
    });
}

/// Whether a command reaches keys that nobody can name beforehand, or counts them.
fn needs_everything(command: &Command<Binding>, binding: Binding, args: Args<'_>) -> bool {
    match command.full_name {
        // Its patterns name further keys.
        "sort" | "sort_ro" => args
            .iter()
            .skip(2)
            .any(|word| word.eq_ignore_ascii_case(b"by") || word.eq_ignore_ascii_case(b"get")),
        "dbsize" => true,
        _ => binding.mode == Mode::Exclusive || binding.reaches_further,
    }
}

impl Host for Runner<'_, '_, '_> {
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Answer<'_> {
        if self.run.stopped().is_some() {
            return Answer::Stop;
        }
        let args = Args::new(request, ranges);
        let (command, binding) = match self.admit(args) {
            Ok(found) => found,
            Err(text) => return Answer::Refused(text),
        };
        let done = match self.hold(command, binding, args) {
            Some(()) => self.execute(command, binding, args),
            None => None,
        };
        match done {
            Some(()) => Answer::Reply(&self.output.bytes),
            None => Answer::Stop,
        }
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        self.client.protocol = protocol;
    }

    fn set_replication(&mut self, parts: u8) {
        self.logged_for = Target::of_bits(parts);
    }

    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool> {
        let args = Args::new(request, ranges);
        match crate::commands::registry().lookup(&args) {
            Lookup::Found(command) => Some(self.permits(command, args).is_ok()),
            Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => None,
        }
    }
}
