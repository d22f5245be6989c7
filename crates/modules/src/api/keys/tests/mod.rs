//! Tests of the functions on keys, with a session that has values in collections of the standard library.

mod collections;
mod databases;
mod strings;

use std::ffi::c_int;
use std::ptr::null_mut;

use weft_resp::Protocol;

use crate::api::{self, OK};
use crate::module::Module;
use crate::objects::context::{Caller, Context};
use crate::objects::key::ModuleKey;
use crate::objects::string::ModuleString;
use crate::session::fake::FakeSession;
use crate::session::keys::fake::{FakeKey, FakeValue};
use crate::session::with_session;

const READ: c_int = 1;
const WRITE: c_int = 2;

/// Runs a test as code of a module.
fn as_module(session: &mut FakeSession, run: impl FnOnce(&TestModule)) {
    let module = TestModule {
        context: Context::new(
            Module::new("test.so".to_owned()),
            Caller {
                client_id: 1,
                db: 0,
                protocol: Protocol::Resp2,
            },
        ),
    };
    with_session(session, || run(&module));
}

/// What code of a module has.
struct TestModule {
    context: Context,
}

/// Returns a function of the API as a module gets it. The test names the type that the header has for the function.
fn function_of_type<F: Copy>(name: &str) -> F {
    let found = crate::api::find(name).expect("the function exists");
    assert_eq!(size_of::<F>(), size_of_val(&found.0));
    // SAFETY: the caller promises the type.
    unsafe { std::mem::transmute_copy::<*const std::ffi::c_void, F>(&found.0) }
}

/// Returns a function of the API by its name without a prefix, and its type.
macro_rules! function {
    ($name:literal as $kind:ty) => {
        $crate::api::keys::tests::function_of_type::<$kind>(concat!("ValkeyModule_", $name))
    };
}
use function;

type OpenKey = unsafe extern "C" fn(*mut Context, *mut ModuleString, c_int) -> *mut ModuleKey;
type KeyFunction = unsafe extern "C" fn(*mut ModuleKey) -> c_int;
type CloseKey = unsafe extern "C" fn(*mut ModuleKey);

/// A string of the module, which is freed with this guard.
struct Text(*mut ModuleString);

impl Text {
    fn new(bytes: &str) -> Text {
        Text(ModuleString::create(bytes.as_bytes()))
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the guard is a holder of the string.
        unsafe { ModuleString::release(self.0) };
    }
}

/// Takes a string that a function has returned; `None` for null.
fn take(string: *mut ModuleString) -> Option<String> {
    if string.is_null() {
        return None;
    }
    let owned = Text(string);
    // SAFETY: the string was returned to this test, which is its holder.
    let bytes = unsafe { ModuleString::bytes_of(owned.0) };
    Some(String::from_utf8_lossy(bytes).into_owned())
}

impl TestModule {
    fn open(&self, name: &str, mode: c_int) -> *mut ModuleKey {
        let name = Text::new(name);
        // SAFETY: the arguments are a context and a string.
        unsafe { function!("OpenKey" as OpenKey)(self.context.as_pointer(), name.0, mode) }
    }

    fn close(&self, key: *mut ModuleKey) {
        // SAFETY: the key is open.
        unsafe { function!("CloseKey" as CloseKey)(key) };
    }

    fn kind(&self, key: *mut ModuleKey) -> c_int {
        // SAFETY: the key is open.
        unsafe { function!("KeyType" as KeyFunction)(key) }
    }

    /// Opens a key, calls `run` with it, and closes it.
    fn with_key<R>(&self, name: &str, mode: c_int, run: impl FnOnce(*mut ModuleKey) -> R) -> R {
        let key = self.open(name, mode);
        let result = run(key);
        self.close(key);
        result
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn string(bytes: &str) -> FakeValue {
    FakeValue::String(bytes.as_bytes().to_vec())
}

#[test]
fn a_missing_key_opens_only_for_writing() {
    let mut session = FakeSession::default();
    as_module(&mut session, |module| {
        assert!(module.open("missing", READ).is_null());
        let key = module.open("missing", READ | WRITE);
        assert!(!key.is_null());
        assert_eq!(module.kind(key), 0);
        module.close(key);
        module.close(null_mut());
        assert_eq!(module.kind(null_mut()), 0);
    });
}

#[test]
fn an_undeclared_key_does_not_open() {
    let mut session = FakeSession::default();
    session.keyspace.undeclared.insert(b"other".to_vec());
    session.keyspace.set(b"other", string("value"));
    as_module(&mut session, |module| {
        assert!(module.open("other", READ).is_null());
        assert!(module.open("other", READ | WRITE).is_null());
    });
}

#[test]
fn closing_a_written_key_signals_it() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        module.with_key("k", READ, |_| {});
        module.with_key("k", WRITE, |_| {});
    });
    assert_eq!(session.keyspace.signaled, [b"k".to_vec()]);
}

#[test]
fn modes_select_the_effects_of_the_lookup() {
    use crate::session::keys::LookupOptions as Options;
    let cases = [
        (READ, Options::empty()),
        (READ | 1 << 16, Options::NO_TOUCH),
        (READ | 1 << 17, Options::NO_EVENT),
        (READ | 1 << 18, Options::NO_STATISTICS),
        (READ | 1 << 19, Options::NO_EXPIRY),
        (READ | 1 << 20, Options::all()),
    ];
    for (mode, expected) in cases {
        let mut session = FakeSession::default();
        session.keyspace.set(b"k", string("value"));
        as_module(&mut session, |module| module.with_key("k", mode, |_| {}));
        assert_eq!(session.keyspace.options, expected, "{mode}");
    }
    // SAFETY: the type is that of the header.
    let all = unsafe { function!("GetOpenKeyModesAll" as unsafe extern "C" fn() -> c_int)() };
    assert_eq!(all, READ | WRITE | 0x1f << 16);
}

#[test]
fn a_deleted_key_is_empty_and_stays_open() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        let delete = function!("DeleteKey" as KeyFunction);
        let reader = module.open("k", READ);
        // SAFETY: the keys are open.
        unsafe {
            assert_eq!(delete(reader), api::ERR);
            module.close(reader);
            let key = module.open("k", WRITE);
            assert_eq!(delete(key), OK);
            assert_eq!(module.kind(key), 0);
            assert_eq!(function!("UnlinkKey" as KeyFunction)(key), OK);
            module.close(key);
        }
    });
    assert!(session.keyspace.keys.is_empty());
}

#[test]
fn functions_fail_without_a_session() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    let module = TestModule {
        context: Context::new(
            Module::new("test.so".to_owned()),
            Caller {
                client_id: 0,
                db: 0,
                protocol: Protocol::Resp2,
            },
        ),
    };
    assert!(module.open("k", READ).is_null());
    let name = Text::new("k");
    let exists = function!("KeyExists" as unsafe extern "C" fn(*mut Context, *mut ModuleString) -> c_int);
    // SAFETY: the arguments are a context and a string.
    unsafe { assert_eq!(exists(module.context.as_pointer(), name.0), 0) };
    with_session(&mut session, || {
        // SAFETY: as above.
        unsafe { assert_eq!(exists(module.context.as_pointer(), name.0), 1) };
    });
}

#[test]
fn the_name_and_the_database_of_a_key_are_known() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        module.with_key("k", READ, |key| {
            let name =
                function!("GetKeyNameFromModuleKey" as unsafe extern "C" fn(*mut ModuleKey) -> *const ModuleString);
            // SAFETY: the key is open.
            unsafe {
                assert_eq!(ModuleString::bytes_of(name(key)), b"k");
                assert_eq!(function!("GetDbIdFromModuleKey" as KeyFunction)(key), 0);
                assert_eq!(function!("GetDbIdFromModuleKey" as KeyFunction)(null_mut()), -1);
            }
        });
    });
}

#[test]
fn expiry_is_set_relative_to_the_command_and_as_a_time() {
    use crate::session::keys::fake::NOW_MS;
    type Get = unsafe extern "C" fn(*mut ModuleKey) -> i64;
    type Set = unsafe extern "C" fn(*mut ModuleKey, i64) -> c_int;
    let mut session = FakeSession::default();
    session.keyspace.keys.insert(
        b"k".to_vec(),
        FakeKey {
            value: string("value"),
            expire_at_ms: None,
            usage: 0,
        },
    );
    as_module(&mut session, |module| {
        let (get, get_absolute) = (function!("GetExpire" as Get), function!("GetAbsExpire" as Get));
        let (set, set_absolute) = (function!("SetExpire" as Set), function!("SetAbsExpire" as Set));
        module.with_key("k", READ | WRITE, |key| {
            // SAFETY: the key is open.
            unsafe {
                assert_eq!((get(key), get_absolute(key)), (-1, -1));
                assert_eq!(set(key, 500), OK);
                assert_eq!((get(key), get_absolute(key)), (500, NOW_MS as i64 + 500));
                assert_eq!(set_absolute(key, 7), OK);
                assert_eq!((get(key), get_absolute(key)), (0, 7));
                assert_eq!(set(key, -2), api::ERR);
                assert_eq!(set(key, -1), OK);
                assert_eq!(get(key), -1);
            }
        });
        module.with_key("missing", WRITE, |key| {
            // SAFETY: the key is open.
            unsafe { assert_eq!(set(key, 500), api::ERR) };
        });
        module.with_key("k", READ, |key| {
            // SAFETY: the key is open.
            unsafe { assert_eq!(set(key, 500), api::ERR) };
        });
    });
}

#[test]
fn usage_is_known_by_what_eviction_goes_by() {
    type Get = unsafe extern "C" fn(*mut ModuleKey, *mut i64) -> c_int;
    type Set = unsafe extern "C" fn(*mut ModuleKey, i64) -> c_int;
    for counts_uses in [false, true] {
        let mut session = FakeSession::default();
        session.keyspace.counts_uses = counts_uses;
        session.keyspace.set(b"k", string("value"));
        as_module(&mut session, |module| {
            module.with_key("k", READ, |key| {
                let mut found = (0, 0);
                // SAFETY: the key is open, and the pointers are places for numbers.
                unsafe {
                    assert_eq!(function!("SetLRU" as Set)(key, 100_000) == OK, !counts_uses);
                    assert_eq!(function!("SetLFU" as Set)(key, 200) == OK, counts_uses);
                    assert_eq!(function!("SetLFU" as Set)(key, 256), api::ERR);
                    assert_eq!(function!("GetLRU" as Get)(key, &raw mut found.0), OK);
                    assert_eq!(function!("GetLFU" as Get)(key, &raw mut found.1), OK);
                    assert_eq!(function!("GetLFU" as Get)(null_mut(), &raw mut found.1), api::ERR);
                }
                assert_eq!(found.0, if counts_uses { -1 } else { 100_000 });
                assert_eq!(found.1, -1);
            });
        });
    }
}
