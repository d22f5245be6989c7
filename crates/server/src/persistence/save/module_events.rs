//! The events by which modules know that data are loaded or dropped.

use std::sync::Arc;

use weft_base::ThreadIndex;
use weft_modules::module::server_events::{EventKind, LoadingStep, ServerEvent};

use crate::keyspace::Exclusive;
use crate::state::{HomeStandby, Server};

/// Lets modules look at all data before they are dropped, or after that.
pub fn deliver_flush(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    has_ended: bool,
) {
    server.deliver_module_event_with(all, thread_index, home, EventKind::FlushDb, || ServerEvent::Flush {
        has_ended,
        is_sync: true,
        db: None,
    });
}

/// Lets modules know that data are loaded, or are loaded now.
pub fn deliver_loading(server: &Arc<Server>, all: &mut Exclusive<'_>, thread_index: ThreadIndex, step: LoadingStep) {
    server.deliver_module_event(all, thread_index, EventKind::Loading, || ServerEvent::Loading(step));
}

/// Returns the step that ends loading.
pub fn loading_ended(is_loaded: bool) -> LoadingStep {
    match is_loaded {
        true => LoadingStep::Ended,
        false => LoadingStep::Failed,
    }
}
