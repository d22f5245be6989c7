//! Keys that modules have opened (`ValkeyModuleKey`).
//!
//! A key knows its place in the keyspace, and the type of its value as the module has seen it last: a value that
//! another call deletes meanwhile is found missing by the next function, not followed as a pointer.
//!
//! # Direct access to strings
//! `StringDMA` returns a pointer that the module reads, or writes, without a further call. A writer's pointer leads to
//! a copy here. Each later function of the API that reads or writes data of the thread's session first stores those
//! copies that the module has changed ([`store_direct_changes`]), and so do the end of the session and the closing of
//! the key.

mod cursor;
mod direct;

pub use cursor::{KeyCursor, SortedSetCursor, StreamCursor};
pub use direct::store_direct_changes;

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use crate::objects::automatic::AutomaticObject;
use crate::objects::context::Context;
use crate::objects::string::ModuleString;
use crate::session::keys::{KeyIdentity, KeyKind, KeySession, LookupOptions, SessionKey};
use crate::session::{self, Session};
use direct::DirectAccess;

bitflags::bitflags! {
    /// The mode in which a key is open (`VALKEYMODULE_READ`, `VALKEYMODULE_WRITE`, `VALKEYMODULE_OPEN_KEY_...`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyMode: c_int {
        /// The value may be read.
        const READ = 1;
        /// The value may be changed.
        const WRITE = 1 << 1;
        /// Opening is no use of the key.
        const NO_TOUCH = 1 << 16;
        /// Opening a missing key is no event.
        const NO_NOTIFY = 1 << 17;
        /// Opening is neither a hit nor a miss.
        const NO_STATISTICS = 1 << 18;
        /// Opening does not delete a key that has expired.
        const NO_EXPIRE = 1 << 19;
        /// All of the above.
        const NO_EFFECTS = 1 << 20;
    }
}

impl KeyMode {
    /// Returns the effects that opening a key in this mode does not have.
    pub fn lookup_options(self) -> LookupOptions {
        if self.difference(KeyMode::READ | KeyMode::WRITE).is_empty() {
            return LookupOptions::empty();
        }
        if self.contains(KeyMode::NO_EFFECTS) {
            return LookupOptions::all();
        }
        let pairs = [
            (KeyMode::NO_TOUCH, LookupOptions::NO_TOUCH),
            (KeyMode::NO_NOTIFY, LookupOptions::NO_EVENT),
            (KeyMode::NO_STATISTICS, LookupOptions::NO_STATISTICS),
            (KeyMode::NO_EXPIRE, LookupOptions::NO_EXPIRY),
        ];
        let chosen = pairs.into_iter().filter(|(mode, _)| self.contains(*mode));
        chosen.map(|(_, option)| option).collect()
    }
}

/// A key that a module has opened.
pub struct ModuleKey {
    /// The context with which it was opened; it owns the strings that functions return for the key.
    context: *mut Context,
    /// The name, of which the key is a holder.
    name: *mut ModuleString,
    identity: KeyIdentity,
    mode: KeyMode,
    kind: Cell<KeyKind>,
    /// `true` if closing the key informs clients that watch it, if it is open for writing.
    signals: bool,
    /// The iteration over its elements.
    pub cursor: RefCell<KeyCursor>,
    direct: RefCell<DirectAccess>,
}

impl ModuleKey {
    /// Creates an open key, which becomes a holder of its name.
    ///
    /// # Safety
    /// The context lives at least as long as the key, and the name is that of a string (rule 1).
    pub unsafe fn new(
        context: *mut Context,
        name: *mut ModuleString,
        identity: KeyIdentity,
        mode: KeyMode,
        kind: KeyKind,
    ) -> ModuleKey {
        // SAFETY: the caller promises both.
        unsafe {
            ModuleString::retain(name);
            let signals = Context::from_pointer(context).is_none_or(|context| context.module.signals_modified_keys());
            ModuleKey {
                context,
                name,
                identity,
                mode,
                kind: Cell::new(kind),
                signals,
                cursor: RefCell::default(),
                direct: RefCell::default(),
            }
        }
    }

    /// Returns the key behind a module's pointer; `None` for null.
    ///
    /// # Safety
    /// The pointer is null, or that of an open key that stays open for `'a` (rule 1).
    pub unsafe fn from_pointer<'a>(pointer: *mut ModuleKey) -> Option<&'a ModuleKey> {
        // SAFETY: the caller promises it.
        unsafe { pointer.as_ref() }
    }

    /// The context with which the key was opened.
    pub fn context(&self) -> Option<&Context> {
        // SAFETY: the context lives as long as the key, as the caller of `new` has promised.
        unsafe { Context::from_pointer(self.context) }
    }

    /// The name.
    pub fn name(&self) -> *mut ModuleString {
        self.name
    }

    /// The place in the keyspace.
    pub fn identity(&self) -> KeyIdentity {
        self.identity
    }

    /// Returns `true` if the value may be changed.
    pub fn is_writable(&self) -> bool {
        self.mode.contains(KeyMode::WRITE)
    }

    /// Returns `true` if the key is open in a mode.
    pub fn is_open_for(&self, mode: KeyMode) -> bool {
        self.mode.intersects(mode)
    }

    /// The type of the value.
    pub fn kind(&self) -> KeyKind {
        self.kind.get()
    }

    /// Notes the type of the value after a change. A change ends all iterations if there is no value any more.
    pub fn set_kind(&self, kind: KeyKind) {
        self.kind.set(kind);
        if kind == KeyKind::Empty {
            self.cursor.replace(KeyCursor::None);
        }
    }

    /// Asks the session for the type of what is stored, after a change that may have created or deleted the value.
    pub fn refresh_kind(&self) {
        let kind = self.with_keys(|session, key| session.stored_kind(key));
        self.set_kind(kind.unwrap_or_default());
    }

    /// Returns the key for a call of a session.
    pub fn session_key(&self) -> SessionKey<'_> {
        SessionKey {
            // SAFETY: the key is a holder of its name, which nobody may append to therefore.
            name: unsafe { ModuleString::bytes_of(self.name) },
            identity: &self.identity,
            has_value: self.kind.get() != KeyKind::Empty,
        }
    }

    /// Calls `run` with the access of the thread's session to keys, and the key. Returns `None` if it has no session.
    pub fn with_keys<R>(&self, run: impl FnOnce(&mut dyn KeySession, SessionKey<'_>) -> R) -> Option<R> {
        store_direct_changes();
        session::current(|session| run(session, self.session_key()))
    }

    /// Calls `run` with the thread's session and the key. Returns `None` if the thread has none.
    pub fn with_session<R>(&self, run: impl FnOnce(&mut dyn Session, SessionKey<'_>) -> R) -> Option<R> {
        store_direct_changes();
        session::current(|session| run(session, self.session_key()))
    }

    /// Returns a new string for the module, which the context of the key owns if it has automatic memory.
    pub fn create_string(&self, bytes: &[u8]) -> *mut ModuleString {
        let string = ModuleString::create(bytes);
        if let Some(context) = self.context() {
            context.own(string);
        }
        string
    }

    /// Ends the use of the key.
    fn close(&self) {
        self.end_direct_access();
        if self.is_writable() && self.signals {
            self.with_keys(|session, key| session.signal_modified_key(key));
        }
    }
}

impl Drop for ModuleKey {
    fn drop(&mut self) {
        self.close();
        // SAFETY: the key is a holder of its name.
        unsafe { ModuleString::release(self.name) };
    }
}

impl AutomaticObject for ModuleKey {
    unsafe fn free(pointer: *mut Self) {
        // SAFETY: the caller promises that the key is not used any more, and keys are allocated as boxes (rule 3).
        drop(unsafe { Box::from_raw(pointer) });
    }
}
