//! FUNCTION: loading, listing, dumping and deleting libraries of functions.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, LogSequence, ThreadIndex};
use weft_resp::{Protocol, Reply, glob};

use super::preparing::{self, SourceLoad};
use super::script::{busy_error, is_asynchronous, kill_running, reset_engines};
use crate::commands::context::{
    BackgroundRun, BackgroundStep, Binding, CommandResult, Context, NextStep, build_reply, exclusive, leased,
};
use crate::commands::error::{CommandError, c_string_prefix};
use crate::keyspace::Seat;
use crate::net::library_loads::LibrarySource;
use crate::observability::metrics::Counter;
use crate::state::Server;
use weft_config::id;
use weft_modules::module::engines::Subsystem;
use weft_os::sync::Mutex;
use weft_rdb::functions;
use weft_scripting::{Library, LoadedFunction, RestorePolicy, ScriptFlags, ScriptKind, drop_interpreter};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("function|delete", exclusive(delete)),
    ("function|dump", leased(dump)),
    ("function|flush", exclusive(flush)),
    ("function|help", leased(help)),
    ("function|kill", leased(kill)),
    ("function|list", leased(list)),
    (
        "function|load",
        leased(load).with_undeclared_keys().with_scripting_engines(),
    ),
    (
        "function|restore",
        leased(restore).with_undeclared_keys().with_scripting_engines(),
    ),
    ("function|stats", leased(stats)),
];

/// The name of the engine that the server has itself.
const LUA: &str = "LUA";

fn wrong_argument_count(name: &[u8]) -> CommandError {
    CommandError::with_word(
        "ERR unknown subcommand or wrong number of arguments for '",
        name,
        "'. Try FUNCTION HELP.",
    )
}

fn engine_error(text: &[u8]) -> CommandError {
    CommandError::from_bytes([b"ERR ", text].concat())
}

/// Libraries change one after the other, and the log has the same order. DELETE and FLUSH, which are exclusive, wait
/// for the threads in the gate. A transaction with any of these commands runs in exclusive mode.
static LIBRARY_CHANGES: Mutex<()> = Mutex::new(());

/// Changes the libraries by a command that runs clients' code, on a background thread if the command is neither part of
/// a transaction nor repeated. `check` is called before the code runs, and `apply` adds the libraries and returns the
/// reply.
fn change_libraries(
    ctx: &mut Context<'_, '_>,
    source: LibrarySource,
    check: impl FnOnce(&Server, &LibrarySource) -> Result<(), CommandError> + Send + 'static,
    apply: impl FnOnce(&Server, Vec<Arc<Library>>) -> Result<Vec<u8>, CommandError> + Send + 'static,
) -> CommandResult {
    if ctx.may_block {
        let change = LibraryChange {
            words: ctx.args.iter().map(<[u8]>::to_vec).collect(),
            db: ctx.keys.db,
            protocol: ctx.client.protocol,
            apply: Box::new(apply),
        };
        ctx.prepare_in_background(Box::new(move |server, _| match check(server, &source) {
            Ok(()) => change.load(SourceLoad::new(server, &source), server),
            Err(error) => change.refuse(&error.0),
        }));
        return Ok(());
    }
    check(ctx.server, &source)?;
    let Some(loaded) = preparing::take_libraries(ctx, source) else {
        ctx.next_step = NextStep::Defer;
        return Ok(());
    };
    let libraries = loaded.map_err(CommandError::from_bytes)?;
    let reply = apply(ctx.server, libraries)?;
    ctx.reply.raw(&reply);
    ctx.keys.effects.dirty += 1;
    Ok(())
}

/// A change of the libraries by code that runs on a background thread.
struct LibraryChange {
    /// The words of the command.
    words: Vec<Vec<u8>>,
    /// The client's database.
    db: DbIndex,
    /// The client's protocol.
    protocol: Protocol,
    /// Changes the libraries. Returns the reply.
    apply: Box<LibraryChangeStep>,
}

/// Changes the libraries. Returns the reply.
type LibraryChangeStep = dyn FnOnce(&Server, Vec<Arc<Library>>) -> Result<Vec<u8>, CommandError> + Send;

impl LibraryChange {
    fn refuse(&self, error: &[u8]) -> BackgroundStep {
        BackgroundStep::reply(build_reply(self.protocol, |reply| reply.error_bytes(error)))
    }

    /// Runs the code of the next library. The change is made once the code of all has run. Until then CLIENT KILL ends
    /// the command without waiting for it.
    fn load(self, mut libraries: SourceLoad, server: &Server) -> BackgroundStep {
        match libraries.load_next(server) {
            Some(Ok(loaded)) => {
                BackgroundStep::TakeEffect(Box::new(move |server, seat| self.make(loaded, server, seat)))
            }
            Some(Err(error)) => self.refuse(&error),
            None => BackgroundStep::Continue(Box::new(move |server, _| self.load(libraries, server))),
        }
    }

    /// Makes the change, unless writes are paused: then it is made after the pause.
    fn make(self, libraries: Vec<Arc<Library>>, server: &Arc<Server>, seat: &mut Seat) -> BackgroundStep {
        let thread_index = ThreadIndex::new(seat.index());
        let resumptions = server.clients.pause.resumptions();
        let _order = LIBRARY_CHANGES.lock();
        // Pauses and role changes begin in exclusive mode, so neither changes within this passage.
        let _pass = seat.enter();
        if server.clients.pause.are_writes_paused(unix_ms()) {
            let make_later: BackgroundRun = Box::new(move |server, seat| self.make(libraries, server, seat));
            return BackgroundStep::AwaitResumption(resumptions, make_later);
        }
        let is_read_only = server.replication.is_replica() && server.config.boolean(id::REPLICA_READ_ONLY);
        let result = match is_read_only {
            true => Err(CommandError::constant(
                "READONLY You can't write against a read only replica.",
            )),
            false => (self.apply)(server, libraries),
        };
        // The worker withholds the reply until the log has the change.
        match result {
            Ok(bytes) => {
                server.stats.metrics.add(thread_index, Counter::Dirty, 1);
                BackgroundStep::Reply {
                    bytes,
                    first_write: propagate_change(server, self.db, &self.words),
                }
            }
            Err(error) => BackgroundStep::reply(build_reply(self.protocol, |reply| reply.error_bytes(&error.0))),
        }
    }
}

/// Propagates a command that changed libraries, within a passage of the gate. Returns its position in the log, or none.
fn propagate_change(server: &Server, db: DbIndex, words: &[Vec<u8>]) -> LogSequence {
    let target = server.keyspace.hooks.current().log_target();
    if target.is_empty() {
        return LogSequence::NONE;
    }
    let mut log_writer = server.propagation.log_writer();
    log_writer.end_call(target, db, true, words.iter().map(Vec::as_slice));
    log_writer.commit();
    log_writer.wake();
    log_writer.last_sequence()
}

fn load(ctx: &mut Context<'_, '_>) -> CommandResult {
    let last = ctx.argc() - 1;
    let mut replace = false;
    for option in ctx.args.iter().take(last).skip(2) {
        if !option.eq_ignore_ascii_case(b"replace") {
            return Err(CommandError::with_word("ERR Unknown option given: ", option, ""));
        }
        replace = true;
    }
    let source = LibrarySource::Code(ctx.arg(last).to_vec());
    let check = move |server: &Server, source: &LibrarySource| {
        let LibrarySource::Code(code) = source else {
            unreachable!("FUNCTION LOAD has the code of one library");
        };
        let name = weft_scripting::library_name(&server.scripting, code);
        let checked = name.and_then(|name| server.scripting.libraries.check_name(&name, replace));
        checked.map_err(|text| engine_error(&text))
    };
    change_libraries(ctx, source, check, move |server, libraries| {
        let [library] = &libraries[..] else {
            unreachable!("FUNCTION LOAD has the code of one library");
        };
        let added = server.scripting.libraries.add(library, replace);
        added.map_err(|text| engine_error(&text))?;
        Ok(build_reply(Protocol::Resp2, |reply| reply.bulk(&library.name)))
    })
}

fn delete(ctx: &mut Context<'_, '_>) -> CommandResult {
    if !ctx.server.scripting.libraries.delete(ctx.arg(2)) {
        return Err(CommandError::constant("ERR Library not found"));
    }
    ctx.keys.effects.dirty += 1;
    ctx.reply.ok();
    Ok(())
}

fn flush(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() > 3 {
        return Err(wrong_argument_count(ctx.arg(1)));
    }
    let asynchronous = is_asynchronous(ctx, "ERR FUNCTION FLUSH only supports SYNC|ASYNC option")?;
    let scripts = &ctx.server.scripting;
    scripts.set_insecure_functions(
        ScriptKind::Function,
        ctx.server.config.boolean(id::LUA_ENABLE_INSECURE_API),
    );
    scripts.libraries.flush();
    reset_engines(ctx.server, Subsystem::Function, asynchronous);
    if !asynchronous {
        drop_interpreter(&ctx.server.scripting, ScriptKind::Function);
    }
    ctx.keys.effects.dirty += 1;
    ctx.reply.ok();
    Ok(())
}

fn dump(ctx: &mut Context<'_, '_>) -> CommandResult {
    let codes = ctx.server.scripting.libraries.codes();
    let compress = ctx.server.config.boolean(id::RDBCOMPRESSION);
    ctx.reply.bulk(&functions::dump(&codes, compress));
    Ok(())
}

fn restore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let policy = match (ctx.argc(), ctx.arg(3)) {
        (3, _) => RestorePolicy::Append,
        (4, policy) if policy.eq_ignore_ascii_case(b"append") => RestorePolicy::Append,
        (4, policy) if policy.eq_ignore_ascii_case(b"replace") => RestorePolicy::Replace,
        (4, policy) if policy.eq_ignore_ascii_case(b"flush") => RestorePolicy::Flush,
        (4, _) => {
            return Err(CommandError::constant(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
        _ => return Err(wrong_argument_count(ctx.arg(1))),
    };
    // The payload is decoded with its code: a small one may have very long libraries.
    let source = LibrarySource::Payload(ctx.arg(2).to_vec());
    let check = |_: &Server, _: &LibrarySource| Ok(());
    change_libraries(ctx, source, check, move |server, libraries| {
        let restored = server.scripting.libraries.restore(&libraries, policy);
        restored.map_err(|text| engine_error(&text))?;
        Ok(b"+OK\r\n".to_vec())
    })
}

fn kill(ctx: &mut Context<'_, '_>) -> CommandResult {
    kill_running(ctx.server, true)?;
    ctx.reply.ok();
    Ok(())
}

fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (mut with_code, mut pattern) = (false, None);
    let mut index = 2;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        if !with_code && option.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if pattern.is_none() && option.eq_ignore_ascii_case(b"libraryname") {
            index += 1;
            if index >= ctx.argc() {
                return Err(CommandError::constant("ERR library name argument was not given"));
            }
            pattern = Some(ctx.arg(index));
        } else {
            return Err(CommandError::with_word("ERR Unknown argument ", option, ""));
        }
        index += 1;
    }
    let set = ctx.server.scripting.libraries.current();
    let wanted = |library: &&Arc<Library>| pattern.is_none_or(|pattern| glob::matches(pattern, &library.name, true));
    let libraries: Vec<&Arc<Library>> = set.libraries().filter(wanted).collect();
    ctx.reply.array(libraries.len());
    for library in libraries {
        write_library(&mut ctx.reply, library, with_code);
    }
    Ok(())
}

fn write_library(reply: &mut Reply<'_>, library: &Library, with_code: bool) {
    reply.map(3 + usize::from(with_code));
    reply.bulk(b"library_name");
    reply.bulk(&library.name);
    reply.bulk(b"engine");
    reply.bulk(library.engine.as_deref().unwrap_or(LUA).as_bytes());
    reply.bulk(b"functions");
    reply.array(library.functions.len());
    for function in &library.functions {
        write_function(reply, function);
    }
    if with_code {
        reply.bulk(b"library_code");
        reply.bulk(&library.code);
    }
}

fn write_function(reply: &mut Reply<'_>, function: &LoadedFunction) {
    reply.map(3);
    reply.bulk(b"name");
    reply.bulk(&function.name);
    reply.bulk(b"description");
    match &function.description {
        Some(text) => reply.bulk(c_string_prefix(text)),
        None => reply.null(),
    }
    reply.bulk(b"flags");
    let flags: Vec<&str> = ScriptFlags::NAMED
        .iter()
        .filter(|(flag, _)| function.flags.contains(*flag))
        .map(|(_, name)| *name)
        .collect();
    reply.set(flags.len());
    for flag in flags {
        reply.simple(flag);
    }
}

fn stats(ctx: &mut Context<'_, '_>) -> CommandResult {
    let run = ctx.server.scripting.running.longest_run();
    if run.as_ref().is_some_and(|run| run.is_overdue() && !run.is_function) {
        return Err(busy_error(&ctx.server.config, false));
    }
    let set = ctx.server.scripting.libraries.current();
    let reply = &mut ctx.reply;
    reply.map(2);
    reply.bulk(b"running_script");
    match run.filter(|run| run.is_function) {
        None => reply.null(),
        Some(run) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(&run.name);
            reply.bulk(b"command");
            reply.array(run.command.len());
            for word in &run.command {
                reply.bulk(word);
            }
            reply.bulk(b"duration_ms");
            reply.integer(run.elapsed().as_millis() as i64);
        }
    }
    reply.bulk(b"engines");
    let engines = ctx.server.scripting.engines.names();
    reply.map(1 + engines.len());
    for name in std::iter::once(LUA).chain(engines.iter().map(|name| &**name)) {
        let of_engine = |library: &&Arc<Library>| library.engine.as_deref().unwrap_or(LUA) == name;
        let functions: usize = set
            .libraries()
            .filter(of_engine)
            .map(|library| library.functions.len())
            .sum();
        reply.bulk(name.as_bytes());
        reply.map(2);
        reply.bulk(b"libraries_count");
        reply.integer(set.libraries().filter(of_engine).count() as i64);
        reply.bulk(b"functions_count");
        reply.integer(functions as i64);
    }
    Ok(())
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(HELP)
}

/// Lines that clients and their authors compare and parse.
const HELP: &[&str] = &[
    "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "LOAD [REPLACE] <FUNCTION CODE>",
    "    Create a new library with the given library name and code.",
    "DELETE <LIBRARY NAME>",
    "    Delete the given library.",
    "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
    "    Return general information on all the libraries:",
    "    * Library name",
    "    * The engine used to run the Library",
    "    * Functions list",
    "    * Library code (if WITHCODE is given)",
    "    It also possible to get only function that matches a pattern using LIBRARYNAME argument.",
    "STATS",
    "    Return information about the current function running:",
    "    * Function name",
    "    * Command used to run the function",
    "    * Duration in MS that the function is running",
    "    If no function is running, return nil",
    "    In addition, returns a list of available engines.",
    "KILL",
    "    Kill the current running function.",
    "FLUSH [ASYNC|SYNC]",
    "    Delete all the libraries.",
    "    When called without the optional mode argument, the behavior is determined by the",
    "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
    "    * ASYNC: Asynchronously flush the libraries.",
    "    * SYNC: Synchronously flush the libraries.",
    "DUMP",
    "    Return a serialized payload representing the current libraries, can be restored using FUNCTION RESTORE command",
    "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
    "    Restore the libraries represented by the given payload, it is possible to give a restore policy to",
    "    control how to handle existing libraries (default APPEND):",
    "    * FLUSH: delete all existing libraries.",
    "    * APPEND: appends the restored libraries to the existing libraries. On collision, abort.",
    "    * REPLACE: appends the restored libraries to the existing libraries, On collision, replace the old",
    "      libraries with the new libraries (notice that even on this option there is a chance of failure",
    "      in case of functions name collision with another library).",
    "HELP",
    "    Print this help.",
];
