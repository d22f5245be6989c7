//! Scripting engines of modules: their scripts and functions run on the home worker, in exclusive mode, as commands of
//! modules do.
//!
//! A command that runs such a script is known before it runs, by the first line of the source, the cached script, or
//! the loaded library. On another worker it is put off, and its connection moves, as for a script in Lua that calls
//! commands of modules (`super::scripts`). The script is listed from its start. While it runs, its engine asks at
//! intervals whether it was killed, and other clients are served once it is overdue ([`EngineSession::check_script`]).

use std::sync::Arc;

use weft_modules::module::engine_debugger;
use weft_modules::module::engines::{CompiledCode, Engine, EngineCall, Subsystem};
use weft_modules::objects::context::Caller;
use weft_modules::objects::reply::FinishedReply;
use weft_modules::session::engines::{EngineConsole, EngineHost, EngineSession};
use weft_modules::session::{self, Session, with_session};
use weft_reactor::Output;
use weft_resp::Args;
use weft_scripting::{EngineFunction, RunParameters, Script, ScriptFlags, ScriptKind, ScriptRun, ScriptingEngine};

use super::{ModuleCall, ModuleHost, ModuleSession, SessionAccess, command, home, reborrow_idle};
use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::commands::scripting::script::{NO_SCRIPT, busy_error_of_run};
use crate::dispatch::accounting::write_error;
use crate::dispatch::engine_script::EngineScript;
use crate::dispatch::script::prepared::{check_flags, key_count, not_compiled, run_parameters};
use crate::dispatch::script_flags::{NamedScript, find_engine_script};
use crate::dispatch::thread::{IdleTurns, ThreadState};
use crate::keyspace::access::HeldLeases;
use crate::net::client::{Client, ClientFlags};
use crate::state::Server;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;

/// A script that is ready to run.
struct PreparedScript {
    code: Arc<CompiledCode>,
    name: Vec<u8>,
    flags: ScriptFlags,
    is_function: bool,
    key_count: usize,
}

/// Compiles a script if necessary, and checks that its flags allow the command to run it.
fn prepare(
    session: &mut ModuleSession<'_, '_>,
    command: &Command<Binding>,
    args: Args<'_>,
    script: NamedScript,
) -> Result<PreparedScript, CommandError> {
    let not_a_number = match script {
        NamedScript::Function(..) => CommandError::constant("ERR Bad number of keys provided"),
        NamedScript::Source(_) | NamedScript::Cached(_) => CommandError::NOT_AN_INTEGER,
    };
    let key_count = key_count(args, not_a_number)?;
    let (code, name, flags, is_function) = match script {
        NamedScript::Function(library, index) => {
            let function = &library.functions[index];
            (
                function.engine_code.clone(),
                function.name.clone(),
                Some(function.flags),
                true,
            )
        }
        NamedScript::Cached(script) => parts_of(&script),
        NamedScript::Source(engine) => {
            let server = session.server().clone();
            let source = args.argument(1);
            let compiled = home::run_there(session, |session| {
                with_session(session, || {
                    server.scripting.prepare_engine_script(&*engine, source, false)
                })
            });
            let script: Arc<Script> = compiled.ok_or(NO_SCRIPT)?.map_err(not_compiled)?;
            parts_of(&script)
        }
    };
    let is_primary = session.client.flags.contains(ClientFlags::PRIMARY);
    check_flags(session.thread, command, flags, is_primary)?;
    let code = code.and_then(|code| code.downcast::<CompiledCode>().ok());
    Ok(PreparedScript {
        code: code.ok_or(NO_SCRIPT)?,
        name,
        flags: flags.unwrap_or_default(),
        is_function,
        key_count,
    })
}

type ScriptParts = (
    Option<Arc<dyn std::any::Any + Send + Sync>>,
    Vec<u8>,
    Option<ScriptFlags>,
    bool,
);

fn parts_of(script: &Script) -> ScriptParts {
    let code = script.engine.as_ref().map(|engine| engine.code.clone());
    (code, script.digest.to_vec(), script.flags, false)
}

/// Runs a script of an engine, if the command names one. Returns `true` if it has replied with an error, and `None` if
/// the script is one in Lua.
pub fn run(
    thread: &mut ThreadState,
    command: &'static Command<Binding>,
    args: Args<'_>,
    held: &mut HeldLeases<'_, '_>,
    client: &mut Client,
    output: &mut Output,
    mut idle: Option<&mut dyn IdleTurns>,
) -> Option<bool> {
    let script = find_engine_script(&thread.server, command, args)?;
    let HeldLeases::Exclusive(all) = held else {
        // It has become one since the command was queued.
        let error = CommandError::constant("TRYAGAIN The scripting engine cannot be called here");
        write_error(thread, &error, &mut output.bytes);
        return Some(true);
    };
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let mut call = ModuleCall::default();
    let mut session = ModuleSession {
        thread,
        access: SessionAccess::Exclusive(all),
        pass: None,
        client,
        call: Some(&mut call),
        idle: reborrow_idle(&mut idle),
    };
    Some(run_in_session(&mut session, command, args, script, output))
}

fn run_in_session(
    session: &mut ModuleSession<'_, '_>,
    command: &'static Command<Binding>,
    args: Args<'_>,
    script: NamedScript,
    output: &mut Output,
) -> bool {
    let prepared = match prepare(session, command, args, script) {
        Ok(prepared) => prepared,
        Err(error) => {
            write_error(session.thread, &error, &mut output.bytes);
            command::finish_call(session, command, args, &[]);
            return true;
        }
    };
    let promises = |flag| prepared.flags.contains(flag);
    let run = Arc::new(ScriptRun::new(RunParameters {
        command: args.iter().map(<[u8]>::to_vec).collect(),
        ..run_parameters(session.thread, &prepared.name, prepared.is_function, false, args)
    }));
    run.note_all_slots_held();
    let running = session.server().scripting.running.clone();
    running.list(&run);
    let before = session.thread.engine_script.replace(Box::new(EngineScript {
        run: run.clone(),
        is_read_only: command.spec.flags.contains(CommandFlags::READONLY) || promises(ScriptFlags::NO_WRITES),
        allows_oom: promises(ScriptFlags::ALLOW_OOM),
    }));
    let words: Vec<&[u8]> = args.iter().skip(3).collect();
    let (keys, arguments) = words.split_at(prepared.key_count.min(words.len()));
    let call = EngineCall {
        subsystem: match prepared.is_function {
            true => Subsystem::Function,
            false => Subsystem::Eval,
        },
        caller: Caller {
            client_id: session.client.id.get(),
            db: session.client.db.get() as u32,
            protocol: session.client.protocol,
        },
        keys: keys.to_vec(),
        args: arguments.to_vec(),
    };
    let code = &*prepared.code;
    let source = session.thread.engine_debugger.is_some().then(|| args.argument(1));
    let reply = home::run_there(session, |session| call_engine(session, code, call, source)).unwrap_or_default();
    session.thread.engine_script = before;
    running.end_run(&run, true);
    session.run_post_notification_jobs();
    command::finish_call(session, command, args, &[]);
    command::append_reply(session.thread, reply, output)
}

/// Calls the code of a script, between the start and the end of debugging if that has the source.
fn call_engine(
    session: &mut dyn Session,
    code: &CompiledCode,
    call: EngineCall<'_>,
    debugged_source: Option<&[u8]>,
) -> FinishedReply {
    let engine = &code.engine;
    let source = debugged_source.filter(|_| engine_debugger::is_enabled(engine));
    if let Some(source) = source {
        with_session(session, || engine.start_debugging(source));
    }
    let reply = engine.call(session, code, call);
    if source.is_some() {
        with_session(session, || engine.end_debugging());
    }
    reply
}

impl EngineSession for ModuleSession<'_, '_> {
    fn console(&mut self) -> Option<&mut dyn EngineConsole> {
        let debugger = self.thread.engine_debugger.as_deref_mut()?;
        Some(debugger)
    }

    fn check_script(&mut self) -> bool {
        let Some(script) = &self.thread.engine_script else {
            return false;
        };
        let (run, server) = (script.run.clone(), self.thread.server.clone());
        server.scripting.running.update_run(&run, true);
        if run.stop_reason().is_none() && run.is_overdue() {
            let error = busy_error_of_run(&server.config, &run);
            let text = String::from_utf8_lossy(&error.0).into_owned();
            self.serve_while_busy(Some(text.strip_prefix("BUSY ").unwrap_or(&text).to_owned()));
            server.scripting.running.update_run(&run, true);
        }
        run.stop_reason().is_some()
    }
}

/// An engine, as the scripts of the server see it.
struct ModuleEngine {
    engine: Arc<Engine>,
    server: Arc<Server>,
}

impl ScriptingEngine for ModuleEngine {
    fn name(&self) -> Arc<str> {
        self.engine.name.clone()
    }

    fn compile(&self, kind: ScriptKind, code: &[u8]) -> Result<Vec<EngineFunction>, Vec<u8>> {
        let subsystem = match kind {
            ScriptKind::Eval => Subsystem::Eval,
            ScriptKind::Function => Subsystem::Function,
        };
        let engine = self.engine.clone();
        let compiled = if session::is_present() {
            engine.compile(subsystem, code)
        } else {
            // A background thread, which is outside of the gate.
            let code = code.to_vec();
            let at_home = move |session: &mut dyn Session| with_session(session, || engine.compile(subsystem, &code));
            let compiled = self.server.run_session_at_home_and_wait(at_home);
            compiled.unwrap_or_else(|| Err(b"The server is about to end".to_vec()))
        };
        let function = |compiled: weft_modules::module::engines::Compiled| EngineFunction {
            name: compiled.name,
            description: compiled.description,
            flags: flags_from_bits(compiled.flags),
            code: compiled.code,
        };
        Ok(compiled?.into_iter().map(function).collect())
    }
}

/// Returns the flags of a function (`VMSE_SCRIPT_FLAG_…`).
fn flags_from_bits(bits: u64) -> ScriptFlags {
    const BITS: [(u64, ScriptFlags); 5] = [
        (1, ScriptFlags::NO_WRITES),
        (1 << 1, ScriptFlags::ALLOW_OOM),
        (1 << 2, ScriptFlags::ALLOW_STALE),
        (1 << 3, ScriptFlags::NO_CLUSTER),
        (1 << 5, ScriptFlags::ALLOW_CROSS_SLOT_KEYS),
    ];
    let set = BITS.iter().filter(|(bit, _)| bits & bit != 0);
    set.fold(ScriptFlags::default(), |flags, (_, flag)| flags.union(*flag))
}

impl EngineHost for ModuleHost {
    fn add_engine(&self, engine: &Arc<Engine>) -> bool {
        self.server.scripting.engines.add(Arc::new(ModuleEngine {
            engine: engine.clone(),
            server: self.server.clone(),
        }))
    }

    fn remove_engine(&self, engine: &Engine) {
        self.server.scripting.remove_engine(&engine.name);
    }
}
