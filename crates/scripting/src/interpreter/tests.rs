//! Runs scripts and libraries in an interpreter, with a host that has one key.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_resp::{ArgRange, Args, Protocol, Reply};

use super::{
    CallResult, CurrentRun, FunctionError, Host, Library, Program, RunOutcome, ScriptWords, load_library,
    prepare_function, prepare_libraries, prepare_script, repeat_library_load, run,
};
use super::{ScriptKind, count_memory, drop_flushed_interpreters, drop_interpreter};
use crate::{RestorePolicy, RunParameters, ScriptRun, Scripts, StopReason};

/// A host that replies to ECHO, refuses BAD, and stops the script at STOP.
#[derive(Default)]
struct FakeHost {
    reply: Vec<u8>,
    calls: usize,
    run: Option<Arc<ScriptRun>>,
}

impl Host for FakeHost {
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> CallResult<'_> {
        self.calls += 1;
        let args = Args::new(request, ranges);
        match args.argument(0) {
            b"bad" => CallResult::Refused(b"ERR it is bad".to_vec()),
            b"stop" => {
                if let Some(run) = &self.run {
                    run.stop(StopReason::Contended);
                }
                CallResult::Stop
            }
            _ => {
                self.reply.clear();
                Reply::new(&mut self.reply, Protocol::Resp2).bulk(args.argument(1));
                CallResult::Reply(&self.reply)
            }
        }
    }

    fn set_protocol(&mut self, _: Protocol) {}

    fn set_replication(&mut self, _: u8) {}

    fn may_call(&mut self, _: &[u8], _: &[ArgRange]) -> Option<bool> {
        Some(true)
    }
}

const NOTHING: ArgRange = ArgRange { start: 0, len: 0 };

const WITHOUT_WORDS: ScriptWords<'_> = ScriptWords {
    command: Args::new(&[], &[NOTHING, NOTHING, NOTHING]),
    key_count: 0,
};

fn run_parameters() -> RunParameters<'static> {
    RunParameters::default()
}

fn unlisted(run: Arc<ScriptRun>) -> CurrentRun {
    CurrentRun { run, is_listed: false }
}

/// Runs a program. Returns its reply, or the reason why it was stopped.
fn run_program(program: &Program) -> Result<String, StopReason> {
    let this = Arc::new(ScriptRun::new(run_parameters()));
    let mut host = FakeHost {
        run: Some(this.clone()),
        ..FakeHost::default()
    };
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Protocol::Resp2);
    let words = ScriptWords {
        command: Args::new(b"k", &[NOTHING, NOTHING, NOTHING, ArgRange { start: 0, len: 1 }]),
        key_count: 1,
    };
    let ended = run(program, unlisted(this), words, &mut host, &mut reply);
    match ended {
        RunOutcome::Done { .. } => Ok(String::from_utf8_lossy(&out).into_owned()),
        RunOutcome::Stopped(stop) => Err(stop),
    }
}

fn evaluate(scripts: &Scripts, source: &str) -> Result<String, StopReason> {
    let program = prepare_script(scripts, Some(source.as_bytes()), b"", false).expect("it compiles");
    run_program(&program)
}

/// Prepares a function. If its library must be loaded, nothing stops that.
fn function(scripts: &Scripts, name: &[u8]) -> Result<Option<Rc<Program>>, FunctionError> {
    prepare_function(scripts, name, |_| unlisted(Arc::new(ScriptRun::new(run_parameters()))))
}

#[test]
fn a_script_calls_its_host() {
    let scripts = Scripts::default();
    assert_eq!(
        evaluate(&scripts, "return redis.call('echo', KEYS[1])"),
        Ok("$1\r\nk\r\n".to_owned())
    );
    let error = "-ERR it is bad script: on @user_script:2.\r\n";
    assert_eq!(evaluate(&scripts, "\nreturn redis.call('bad')"), Ok(error.to_owned()));
    assert_eq!(
        evaluate(&scripts, "return redis.pcall('bad').err"),
        Ok("$13\r\nERR it is bad\r\n".to_owned())
    );
}

#[test]
fn a_stop_error_cannot_be_caught() {
    let scripts = Scripts::default();
    for source in [
        "redis.call('stop')",
        "redis.pcall('stop') return 1",
        "pcall(redis.call, 'stop') return 1",
        "pcall(pcall, redis.call, 'stop') return 1",
        "xpcall(function() redis.call('stop') end, function() return 1 end) return 1",
        "coroutine.resume(coroutine.create(function() redis.call('stop') end)) return 1",
        "return load(function() redis.call('stop') end)",
    ] {
        assert_eq!(evaluate(&scripts, source), Err(StopReason::Contended), "{source}");
    }
    assert_eq!(
        evaluate(&scripts, "return 1"),
        Ok(":1\r\n".to_owned()),
        "the next one runs"
    );
}

#[test]
fn an_endless_script_is_moved_or_killed() {
    check_endless_script_ends("while true do pcall(function() while true do end end) end");
}

/// Where no further call from C is possible, the handler of xpcall gets an error of Lua instead of the one that stops
/// the script.
#[test]
fn an_endless_script_at_the_limit_of_the_stack_is_moved_or_killed() {
    for body in [
        "for i = 1, 1e7 do end",
        "for i = 1, 1e4 do cjson.encode(values) end",
        "local function deep() return 1 + deep() end deep()",
    ] {
        let source = format!(
            "local values = {{}}
            for i = 1, 100 do values[i] = i end
            local function nothing() end
            local function spin() {body} end
            local function dive()
                local called, failed = pcall(pcall, nothing)
                if called and not failed then
                    while true do xpcall(spin, nothing) end
                end
                pcall(dive)
                while true do xpcall(spin, nothing) end
            end
            dive()"
        );
        check_endless_script_ends(&source.replace('\n', " "));
    }
}

/// Checks that a script ends that is moved to a script thread, and one that is killed.
fn check_endless_script_ends(source: &str) {
    let scripts = Scripts::default();
    let program = prepare_script(&scripts, Some(source.as_bytes()), b"", false).expect("it compiles");
    let mut out = Vec::new();
    let leaving = Arc::new(ScriptRun::new(RunParameters {
        leaves_after: Some(std::time::Duration::ZERO),
        ..run_parameters()
    }));
    let mut reply = Reply::new(&mut out, Protocol::Resp2);
    let ended = run(
        &program,
        unlisted(leaving),
        WITHOUT_WORDS,
        &mut FakeHost::default(),
        &mut reply,
    );
    assert!(matches!(ended, RunOutcome::Stopped(StopReason::TooLong)));
    let killed = Arc::new(ScriptRun::new(run_parameters()));
    killed.stop(StopReason::Killed);
    let ended = run(
        &program,
        unlisted(killed),
        WITHOUT_WORDS,
        &mut FakeHost::default(),
        &mut reply,
    );
    assert!(matches!(ended, RunOutcome::Done { is_error: true, .. }));
    assert!(out.starts_with(b"-ERR Script killed by user with SCRIPT KILL. script: on @user_script:1."));
}

#[test]
fn a_flushed_script_is_compiled_again() {
    let scripts = Scripts::default();
    assert_eq!(evaluate(&scripts, "return 1"), Ok(":1\r\n".to_owned()));
    scripts.cache.flush();
    let digest = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert!(prepare_script(&scripts, None, digest, false).is_err());
    assert_eq!(evaluate(&scripts, "return 1"), Ok(":1\r\n".to_owned()));
    assert!(prepare_script(&scripts, None, digest, false).is_ok());
}

#[test]
fn functions_are_loaded_where_they_are_called() {
    let scripts = Arc::new(Scripts::default());
    let code =
        b"#!lua name=lib\nlocal n = 0\nredis.register_function('f', function(keys) n = n + 1 return {keys[1], n} end)";
    let library = load_library(&scripts, code).expect("it loads");
    scripts.libraries.add(&library, false).expect("the name is free");
    let call = |scripts: &Scripts| {
        let program = function(scripts, b"F").expect("it loads").expect("it is there");
        run_program(&program)
    };
    assert_eq!(call(&scripts), Ok("*2\r\n$1\r\nk\r\n:1\r\n".to_owned()));
    assert_eq!(call(&scripts), Ok("*2\r\n$1\r\nk\r\n:2\r\n".to_owned()));
    let elsewhere = scripts.clone();
    let there = std::thread::spawn(move || call(&elsewhere)).join().expect("it runs");
    assert_eq!(
        there,
        Ok("*2\r\n$1\r\nk\r\n:1\r\n".to_owned()),
        "each thread has variables of its own"
    );
    scripts.libraries.flush();
    assert!(function(&scripts, b"f").expect("no error").is_none());
}

#[test]
fn a_function_that_was_called_is_found_in_the_current_libraries() {
    let scripts = Scripts::default();
    let load = |number: u32| {
        let code = format!("#!lua name=lib\nredis.register_function('f', function() return {number} end)");
        let library = load_library(&scripts, code.as_bytes()).expect("it loads");
        scripts.libraries.add(&library, true).expect("it is replaced");
    };
    let call = || {
        let program = function(&scripts, b"f").expect("no error")?;
        Some(run_program(&program).expect("it runs"))
    };
    for number in [1, 2] {
        load(number);
        assert_eq!(call(), Some(format!(":{number}\r\n")));
        assert_eq!(call(), Some(format!(":{number}\r\n")));
    }
    assert!(scripts.libraries.delete(b"lib"));
    assert_eq!(call(), None, "it is deleted");
    load(3);
    assert_eq!(call(), Some(":3\r\n".to_owned()));
    let others = load_library(
        &scripts,
        b"#!lua name=other\nredis.register_function('f', function() return 4 end)",
    );
    let others = [others.expect("it loads")];
    scripts
        .libraries
        .restore(&others, RestorePolicy::Flush)
        .expect("all others are deleted");
    assert_eq!(call(), Some(":4\r\n".to_owned()));
}

#[test]
fn a_library_that_takes_too_long_is_not_loaded() {
    let scripts = Scripts::default();
    let text = |code: &[u8]| String::from_utf8(load_library(&scripts, code).unwrap_err()).unwrap();
    assert_eq!(
        text(b"#!lua name=lib\nwhile true do end"),
        "Error registering functions: ERR FUNCTION LOAD timeout"
    );
    assert_eq!(text(b"#!lua name=lib\nreturn 1"), "No functions registered");
    let unknown = b"#!lua name=lib\nredis.register_function{function_name='f', callback=function() end, flags={'x'}}";
    assert_eq!(text(unknown), "Error registering functions: ERR unknown flag given");
}

/// Returns a library whose code takes longer than FUNCTION LOAD permits on this machine.
fn too_slow_library(scripts: &Scripts) -> String {
    let code = |rounds: u64| {
        format!("#!lua name=slow\nfor i = 1, {rounds} do end\nredis.register_function('slow', function() end)")
    };
    let mut rounds = 1 << 22;
    while load_library(scripts, code(rounds).as_bytes()).is_ok() {
        rounds *= 2;
    }
    code(rounds)
}

/// Otherwise a replica would lack a library that its primary has, only because its machine is slower.
#[test]
fn a_library_that_another_server_has_loaded_may_take_any_time() {
    let scripts = Scripts::default();
    let code = too_slow_library(&scripts);
    let library = repeat_library_load(&scripts, code.as_bytes(), || false);
    let library = library.expect("nothing stops it").expect("it loads");
    assert_eq!(library.name, b"slow");
}

#[test]
fn the_end_of_the_process_stops_a_library_that_another_server_has_loaded() {
    let scripts = Scripts::default();
    scripts.running.stop_all();
    assert!(repeat_library_load(&scripts, ENDLESS, || false).is_none());
}

/// A library whose code never ends.
const ENDLESS: &[u8] = b"#!lua name=lib\nwhile true do end";

#[test]
fn a_library_is_stopped_once_it_is_obsolete() {
    let scripts = Scripts::default();
    let code = b"#!lua name=long\nredis.register_function('f', function() for i = 1, 1e6 do end return 1 end)";
    let library = load_library(&scripts, code).expect("it loads");
    scripts.libraries.add(&library, false).expect("the name is free");
    let checks = Cell::new(0);
    let is_obsolete = move || {
        checks.set(checks.get() + 1);
        checks.get() > 3
    };
    assert!(repeat_library_load(&scripts, ENDLESS, is_obsolete).is_none());
    // Later runs of the interpreter are not stopped.
    let program = function(&scripts, b"f").expect("no error").expect("it is there");
    assert_eq!(run_program(&program), Ok(":1\r\n".to_owned()));
}

/// A library whose code runs for some milliseconds.
const LONG_LIBRARY: &[u8] = b"#!lua name=long\nfor i = 1, 1e6 do end\n\
    redis.register_function('long', function(keys) return redis.call('echo', keys[1]) end)";

/// Loads a library and [`LONG_LIBRARY`]. Returns the latter. The interpreter of the thread keeps only the former.
fn load_long_library(scripts: &Scripts) -> Arc<Library> {
    let library = load_library(scripts, LONG_LIBRARY).expect("it loads");
    scripts.libraries.add(&library, false).expect("the name is free");
    drop_interpreter(scripts, ScriptKind::Function);
    let code =
        b"#!lua name=short\nredis.register_function('short', function(keys) return redis.call('echo', keys[1]) end)";
    let short = load_library(scripts, code).expect("it loads");
    scripts.libraries.add(&short, false).expect("the name is free");
    library
}

/// Calls a function that returns its key.
fn call_with_key(scripts: &Scripts, name: &[u8]) {
    let program = function(scripts, name).expect("it loads").expect("it is there");
    assert_eq!(run_program(&program), Ok("$1\r\nk\r\n".to_owned()));
}

#[test]
fn a_worker_leaves_a_library_that_takes_long_to_a_script_thread() {
    let scripts = Scripts::default();
    let library = load_long_library(&scripts);
    assert!(!library.load_time().is_zero());
    let prepare_on_worker = || {
        let limited = RunParameters {
            leaves_after: Some(Duration::ZERO),
            ..run_parameters()
        };
        let prepared = prepare_function(&scripts, b"long", |_| unlisted(Arc::new(ScriptRun::new(limited))));
        prepared.map(|program| program.is_some())
    };
    let is_left = |prepared| matches!(prepared, Err(FunctionError::Stopped(StopReason::TooLong)));
    assert!(is_left(prepare_on_worker()), "its time is known");
    // As if the code had ended at once when it was loaded.
    library.note_load_time(Duration::ZERO);
    assert!(is_left(prepare_on_worker()), "it is stopped");
    call_with_key(&scripts, b"short");
    call_with_key(&scripts, b"long");
    assert!(matches!(prepare_on_worker(), Ok(true)), "it is loaded");
}

/// A transaction loads its libraries one after the other, and may call functions in between.
#[test]
fn functions_of_prepared_libraries_are_called_without_running_their_code_again() {
    let scripts = Scripts::default();
    let libraries = ["a", "b"].map(|name| {
        let code = format!("#!lua name={name}\nredis.register_function('{name}', function() return 1 end)");
        load_library(&scripts, code.as_bytes()).expect("it loads")
    });
    // As if another thread had loaded them.
    drop_interpreter(&scripts, ScriptKind::Function);
    let mut names = Vec::new();
    let prepared = prepare_libraries(&scripts, &libraries, |name| {
        names.push(name.to_vec());
        unlisted(Arc::new(ScriptRun::new(run_parameters())))
    });
    prepared.expect("nothing stops their code");
    assert_eq!(names, [b"a", b"b"]);
    for library in &libraries {
        scripts.libraries.add(library, false).expect("the name is free");
        let found = prepare_function(&scripts, &library.name, |_| panic!("its code runs again"));
        assert!(matches!(found, Ok(Some(_))));
    }
}

#[test]
fn prepared_libraries_stay_usable_if_all_libraries_are_deleted_first() {
    let scripts = Scripts::default();
    let library = |name: &str| {
        let code = format!("#!lua name={name}\nredis.register_function('{name}', function() return 1 end)");
        load_library(&scripts, code.as_bytes()).expect("it loads")
    };
    let libraries = [library("a"), library("b")];
    drop_interpreter(&scripts, ScriptKind::Function);
    let prepared = prepare_libraries(&scripts, &libraries, |_| {
        unlisted(Arc::new(ScriptRun::new(run_parameters())))
    });
    prepared.expect("nothing stops their code");
    for library in &libraries {
        // FUNCTION FLUSH SYNC.
        scripts.libraries.flush();
        drop_interpreter(&scripts, ScriptKind::Function);
        scripts.libraries.add(library, false).expect("the name is free");
        let found = prepare_function(&scripts, &library.name, |_| panic!("its code runs again"));
        assert!(matches!(found, Ok(Some(_))));
        assert!(scripts.interpreter_bytes(ScriptKind::Function) > 0);
    }
    // The end of the transaction.
    drop_flushed_interpreters(&scripts);
    assert!(scripts.interpreter_bytes(ScriptKind::Function) > 0);
    let found = prepare_function(&scripts, b"b", |_| panic!("its code runs again"));
    assert!(matches!(found, Ok(Some(_))));
    scripts.libraries.flush();
    scripts.libraries.add(&libraries[1], false).expect("the name is free");
    let mut runs = 0;
    let found = prepare_function(&scripts, b"b", |_| {
        runs += 1;
        unlisted(Arc::new(ScriptRun::new(run_parameters())))
    });
    assert!(matches!(found, Ok(Some(_))));
    assert_eq!(runs, 1, "later flushes count as usual");
}

/// What the code has changed outside of the sandbox must not outlast a flush.
#[test]
fn prepared_libraries_are_loaded_again_after_a_flush_if_they_can_leave_the_sandbox() {
    for insecure in [[true, true], [true, false], [false, true]] {
        let scripts = Scripts::default();
        // This thread may have an interpreter from the turn before.
        drop_flushed_interpreters(&scripts);
        drop_interpreter(&scripts, ScriptKind::Function);
        scripts.set_insecure_functions(ScriptKind::Function, insecure[0]);
        let code = b"#!lua name=l\nredis.register_function('f', function() return 1 end)";
        let libraries = [load_library(&scripts, code).expect("it loads")];
        let runs = Cell::new(0);
        let mut begin = |_: &[u8]| {
            runs.set(runs.get() + 1);
            unlisted(Arc::new(ScriptRun::new(run_parameters())))
        };
        prepare_libraries(&scripts, &libraries, &mut begin).expect("nothing stops it");
        let runs_before = runs.get();
        scripts.set_insecure_functions(ScriptKind::Function, insecure[1]);
        scripts.libraries.flush();
        scripts.libraries.add(&libraries[0], false).expect("the name is free");
        assert!(matches!(prepare_function(&scripts, b"f", begin), Ok(Some(_))));
        assert_eq!(runs.get(), runs_before + 1, "{insecure:?}");
    }
}

#[test]
fn loading_a_library_for_a_call_can_be_killed() {
    let scripts = Scripts::default();
    load_long_library(&scripts);
    let run = Arc::new(ScriptRun::new(run_parameters()));
    run.stop(StopReason::Killed);
    let listed = CurrentRun {
        run: run.clone(),
        is_listed: true,
    };
    let killed = prepare_function(&scripts, b"LONG", |name| {
        assert_eq!(name, b"long");
        listed
    });
    let Err(FunctionError::Failed(text)) = killed else {
        panic!("the call is killed");
    };
    let text = String::from_utf8_lossy(&text);
    assert!(
        text.starts_with("Script killed by user with FUNCTION KILL. script: on @user_function:"),
        "{text}"
    );
    assert!(scripts.running.longest_run().is_none(), "it is listed while it runs");
    call_with_key(&scripts, b"short");
    call_with_key(&scripts, b"long");
}

#[test]
fn memory_counts_as_soon_as_code_is_loaded() {
    let scripts = Scripts::default();
    let code = |number: usize| {
        format!("#!lua name=l{number}\nredis.register_function('f{number}', function() return {number} end)")
            .into_bytes()
    };
    let mut before = 0;
    for number in 0..40 {
        load_library(&scripts, &code(number)).expect("the library is right");
        let script = format!("return {number}");
        prepare_script(&scripts, Some(script.as_bytes()), b"", true).expect("the script is right");
        let bytes = scripts.interpreter_bytes(ScriptKind::Function) + scripts.interpreter_bytes(ScriptKind::Eval);
        assert!(bytes > before, "{bytes} after {before}");
        before = bytes;
    }
    drop_interpreter(&scripts, ScriptKind::Function);
    drop_interpreter(&scripts, ScriptKind::Eval);
    assert_eq!(scripts.interpreter_bytes(ScriptKind::Function), 0);
    assert_eq!(scripts.interpreter_bytes(ScriptKind::Eval), 0);
}

#[test]
fn interpreters_do_not_count_after_a_flush() {
    let scripts = Scripts::default();
    let counted = || [ScriptKind::Eval, ScriptKind::Function].map(|kind| scripts.interpreter_bytes(kind));
    let prepare = || {
        let code = b"#!lua name=l\nredis.register_function('f', function() return 1 end)";
        load_library(&scripts, code).expect("the library is right");
        prepare_script(&scripts, Some(b"return 1"), b"", true).expect("the script is right");
    };
    let on_thread =
        |work: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(work).join().expect("the thread"));
    prepare();
    let one = counted();
    on_thread(&|| {
        prepare();
        let two = counted();
        assert!(two[0] > one[0] && two[1] > one[1], "{two:?} after {one:?}");
        scripts.cache.flush();
        assert_eq!(counted(), [0, two[1]]);
        scripts.libraries.flush();
        assert_eq!(counted(), [0, 0]);
        on_thread(&prepare);
        let new = counted();
        assert!(new[0] > 0 && new[1] > 0, "{new:?}");
        // Neither a count of an obsolete interpreter nor its end changes what is counted.
        count_memory(&scripts, ScriptKind::Eval);
        drop_flushed_interpreters(&scripts);
        assert_eq!(counted(), new);
    });
    let new = counted();
    drop_flushed_interpreters(&scripts);
    assert_eq!(counted(), new);
    prepare();
    let both = counted();
    assert!(both[0] > new[0] && both[1] > new[1], "{both:?} after {new:?}");
    drop_flushed_interpreters(&scripts);
    assert_eq!(counted(), both, "what is not obsolete stays");
    drop_interpreter(&scripts, ScriptKind::Function);
    assert!(counted()[1] < both[1]);
}

/// Begins a script with a table `t` of 4^10 elements, which consists of few tables.
const SHARED_TABLES: &str = "local t = {0, 0, 0, 0} for _ = 1, 9 do t = {t, t, t, t} end ";

/// The native code that visits every element of a value.
const WALKS: &[&str] = &[
    "return t",
    "return {map = {a = t}}",
    "pcall(cjson.encode, t) return 1",
    "pcall(cmsgpack.pack, t) return 1",
    "pcall(cjson.decode, '[' .. string.rep('0,', 2000) .. '0]') return 1",
    "pcall(cmsgpack.unpack, string.rep('a', 5000)) return 1",
];

#[test]
fn native_code_that_visits_many_values_is_moved_or_killed() {
    let scripts = Scripts::default();
    for walk in WALKS {
        let source = format!("{SHARED_TABLES}{walk}");
        let program = prepare_script(&scripts, Some(source.as_bytes()), b"", false).expect("it compiles");
        let run_with = |this: ScriptRun| {
            let mut out = Vec::new();
            let mut reply = Reply::new(&mut out, Protocol::Resp2);
            let mut host = FakeHost::default();
            let ended = run(&program, unlisted(Arc::new(this)), WITHOUT_WORDS, &mut host, &mut reply);
            (ended, out)
        };
        let moved = run_with(ScriptRun::new(RunParameters {
            leaves_after: Some(std::time::Duration::ZERO),
            ..run_parameters()
        }));
        assert!(matches!(moved.0, RunOutcome::Stopped(StopReason::TooLong)), "{walk}");
        assert!(moved.1.is_empty(), "{walk}");
        let killed = ScriptRun::new(run_parameters());
        killed.stop(StopReason::Killed);
        let (ended, out) = run_with(killed);
        assert!(matches!(ended, RunOutcome::Done { is_killed: true, .. }), "{walk}");
        assert!(
            out.starts_with(b"-ERR Script killed by user with SCRIPT KILL."),
            "{walk}"
        );
        let ending = ScriptRun::new(run_parameters());
        assert!(ending.try_note_write() && ending.stop(StopReason::Shutdown));
        assert!(
            matches!(run_with(ending).0, RunOutcome::Stopped(StopReason::Shutdown)),
            "{walk}"
        );
    }
}

#[test]
fn what_a_library_encodes_has_a_maximum_length() {
    let scripts = Scripts::default();
    for endless in [
        "local t = {0, 0} for _ = 1, 100 do t = {t, t} end cjson.encode(t)",
        "local t = string.rep('\\1', 500000) cjson.encode({t})",
        "local t = {[2^50] = 1} cjson.encode_sparse_array(true, 0) cjson.encode(t)",
        "local t = {0, 0, 0, 0} for _ = 1, 14 do t = {t, t, t, t} end cmsgpack.pack(t)",
        "local t = string.rep('x', 500000) cmsgpack.pack(t, t, t)",
    ] {
        let source = format!("local _, e = pcall(function() {endless} end) return string.gsub(e, '^.*: m', 'm')");
        let reply = evaluate(&scripts, &source);
        assert_eq!(
            reply.as_deref().map(|text| text.ends_with("block too big\r\n")),
            Ok(true),
            "{endless}: {reply:?}"
        );
    }
    let most = "local t = string.rep('x', 500000) return {#cjson.encode({t, t}), #cmsgpack.pack(t, t)}";
    assert_eq!(
        evaluate(&scripts, most),
        Ok("*2\r\n:1000007\r\n:1000010\r\n".to_owned())
    );
}

#[test]
fn options_of_cjson_hold_for_one_run() {
    let scripts = Scripts::default();
    let all = "return {cjson.encode_max_depth(), cjson.decode_max_depth(), cjson.encode_number_precision(), \
               tostring(cjson.encode_keep_buffer()), tostring(cjson.encode_invalid_numbers()), \
               tostring(cjson.decode_invalid_numbers()), tostring(cjson.encode_sparse_array())}";
    let defaults = evaluate(&scripts, all);
    let set = "cjson.encode_max_depth(1) cjson.decode_max_depth(2) cjson.encode_number_precision(3) \
               cjson.encode_keep_buffer(false) cjson.encode_invalid_numbers(true) \
               cjson.decode_invalid_numbers(false) cjson.encode_sparse_array(true, 1, 1) ";
    assert_ne!(evaluate(&scripts, &format!("{set}{all}")), defaults);
    assert_eq!(evaluate(&scripts, all), defaults);
    let code = format!(
        "#!lua name=lib\nredis.register_function('set', function() {set}{all} end)\n\
         redis.register_function('all', function() {all} end)"
    );
    let library = load_library(&scripts, code.as_bytes()).expect("it loads");
    scripts.libraries.add(&library, false).expect("the name is free");
    let call = |name: &[u8]| {
        let program = function(&scripts, name).expect("it loads");
        run_program(&program.expect("it is there"))
    };
    assert_ne!(call(b"set"), defaults);
    assert_eq!(call(b"all"), defaults);
}

#[test]
fn a_script_changes_the_garbage_collector_only_for_itself() {
    let garbage = "for i = 1, 100 do local t = {i, i, i} end return math.floor(collectgarbage('count'))";
    for change in [
        "collectgarbage('stop')",
        "collectgarbage('setpause', -1) collectgarbage()",
        "collectgarbage('setpause', 1000000) collectgarbage()",
        "collectgarbage('stop') error('failed')",
    ] {
        let scripts = Scripts::default();
        drop(evaluate(&scripts, change));
        for _ in 0..3000 {
            let reply = evaluate(&scripts, garbage).expect("it is not stopped");
            let kilobytes: u64 = reply[1..].trim_end().parse().expect("an integer");
            assert!(kilobytes < 4096, "{kilobytes} KB after {change}");
        }
    }
}
