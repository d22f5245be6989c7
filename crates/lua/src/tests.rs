//! Tests of what a debugger reads of a state's variables, and of what scripts can access.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{HookTriggers, LuaOptions, StdLib, VmState};

use super::new_state_with_locals;

#[test]
fn reads_variables_of_the_running_function_and_its_callers() {
    let (lua, locals) = new_state_with_locals(StdLib::NONE, LuaOptions::new()).expect("a state");
    let seen: Rc<RefCell<Vec<String>>> = Rc::default();
    let told = seen.clone();
    let triggers = HookTriggers::new().every_line();
    lua.set_global_hook(triggers, move |_, frame| {
        if frame.current_line() == Some(3) {
            for level in 0..2 {
                for index in 1.. {
                    let Some((name, value)) = locals.get(level, index) else {
                        break;
                    };
                    let name = String::from_utf8_lossy(&name).into_owned();
                    told.borrow_mut()
                        .push(format!("{level} {name} {}", value.to_string().expect("a text")));
                }
            }
        }
        Ok(VmState::Continue)
    })
    .expect("a hook");
    lua.load("local a = 1\nlocal function f(x) local y = x + a\n return y end\nlocal b = f(4)\nreturn b")
        .exec()
        .expect("runs");
    let seen = seen.borrow();
    for wanted in ["0 x 4", "0 y 5", "1 a 1"] {
        assert!(seen.iter().any(|line| line == wanted), "{wanted} is not among {seen:?}");
    }
}

#[test]
fn scripts_cannot_access_the_debug_library() {
    let (lua, _) = new_state_with_locals(StdLib::ALL_SAFE, LuaOptions::new()).expect("a state");
    let found: bool = lua.load("return debug ~= nil or package ~= nil").eval().expect("runs");
    assert!(!found);
}

/// A debug build of Lua checks every push against the stack that was asked for.
#[test]
fn calls_with_many_results_have_room_for_their_status() {
    let (lua, _) = new_state_with_locals(StdLib::ALL_SAFE, LuaOptions::new()).expect("a state");
    for count in [1, 15, 20, 21, 45, 100, 1000, 7000] {
        for call in [
            "pcall(many)",
            "xpcall(many, function() end)",
            "coroutine.resume(coroutine.create(many))",
            "coroutine.resume(coroutine.create(function() coroutine.yield(many()) end))",
        ] {
            let source = format!(
                "local t = {{}} for i = 1, {count} do t[i] = i end \
                 local function many() return unpack(t, 1, {count}) end return select('#', {call})"
            );
            let results: i64 = lua.load(&source).eval().expect("runs");
            assert_eq!(results, count + 1, "{call}");
        }
    }
    let nested: bool = lua
        .load("local function f() return pcall(f) end return (f())")
        .eval()
        .expect("runs");
    assert!(nested);
}
