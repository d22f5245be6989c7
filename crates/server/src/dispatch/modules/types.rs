//! Values of modules: access to them, and calls of the modules that encode and decode them.

use std::sync::Arc;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_config::id;
use weft_modules::session::idle::with_idle_turns;
use weft_modules::session::keys::SessionKey;
use weft_modules::session::pending_calls::run_pending_calls;
use weft_modules::session::types::{RdbFileError, TypesHost, TypesSession};
use weft_modules::session::with_session;
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::foreign::ForeignValue;

use super::home::{run_there, run_within_unit};
use super::{ModuleHost, ModuleSession};
use crate::commands::server::module_files;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Exclusive;
use crate::keyspace::access::ExpiryUpdate;
use crate::state::{HomeStandby, Server};

impl TypesSession for ModuleSession<'_, '_> {
    fn module_value(&mut self, key: SessionKey<'_>) -> Option<Arc<dyn ForeignValue>> {
        self.with_stored(key, |entry| match entry.value() {
            ValueRef::Object(Value::Module(value)) => Some(value.clone()),
            _ => None,
        })
        .flatten()
    }

    fn set_module_value(&mut self, key: SessionKey<'_>, value: Arc<dyn ForeignValue>) -> bool {
        self.edit_key(key, |write, _| {
            write.delete();
            write.set(NewValue::Object(Value::Module(value)), ExpiryUpdate::Remove);
        })
        .is_some()
    }

    fn load_rdb_file(&mut self, path: &[u8]) -> Result<(), RdbFileError> {
        let (server, thread_index) = (self.thread.server.clone(), self.thread.thread_index);
        let Some(all) = self.access.exclusive() else {
            return Err(RdbFileError::Failed);
        };
        let mut load = || module_files::load(&server, all, thread_index, path);
        match &mut self.idle {
            Some(idle) => with_idle_turns(&mut **idle, load),
            None => load(),
        }
    }

    fn save_rdb_file(&mut self, path: &[u8]) -> Result<(), RdbFileError> {
        let (server, thread_index) = (self.thread.server.clone(), self.thread.thread_index);
        match self.access.exclusive() {
            Some(all) => module_files::save(&server, all, thread_index, path),
            None => Err(RdbFileError::Failed),
        }
    }

    fn may_run_pending_calls(&self) -> bool {
        self.access.is_exclusive()
    }
}

impl TypesHost for ModuleHost {
    fn run_pending_calls_soon(&self) {
        // Beginning a session runs the queue; this is for the case that none begins.
        self.server
            .run_session_at_home(|session| with_session(session, run_pending_calls));
    }

    fn free_in_background(&self, free: Box<dyn FnOnce() + Send>) {
        self.server
            .background
            .lazyfree
            .free(1, 0, Box::new(FreedLater(Some(free))));
    }

    fn used_memory_ratio(&self) -> f32 {
        match self.server.config.integer(id::MAXMEMORY) {
            limit if limit > 0 => self.server.counted_memory() as f32 / limit as f32,
            _ => 0.0,
        }
    }

    fn compresses_strings(&self) -> bool {
        self.server.config.boolean(id::RDBCOMPRESSION)
    }
}

/// Frees a value when it is dropped.
struct FreedLater(Option<Box<dyn FnOnce() + Send>>);

impl Drop for FreedLater {
    fn drop(&mut self) {
        if let Some(free) = self.0.take() {
            free();
        }
    }
}

/// Calls `run` on the home worker, for a thread in exclusive mode. If the home worker was not summoned, the gate is
/// opened for moments until it is there; so it was, except while data are loaded and the gate may be opened anyway.
pub fn call_modules(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    run: &mut (dyn FnMut() + Send),
) {
    let mut thread = ThreadState::new(server.clone(), thread_index);
    thread.begin_batch(unix_ms());
    thread.begin_passage();
    thread.home_standby = home.take();
    let has_run = run_within_unit(&mut thread, all, |session| {
        run_there(session, |session| with_session(session, &mut *run)).is_some()
    });
    *home = thread.home_standby.take();
    if !has_run {
        // The home worker has ended, and with it all other code of modules.
        run();
    }
}
