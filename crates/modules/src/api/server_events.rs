//! Functions for events of the server.

use std::ffi::c_int;

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::server_events::{self, EventCallback, EventHeader, KINDS, kind_of_number};
use crate::objects::context::Context;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("SubscribeToServerEvent", subscribe_to_server_event),
    ("IsSubEventSupported", is_sub_event_supported),
];

/// The number of the kind whose events no server sends any more.
const RETIRED_KIND: u64 = 12;

/// Subscribes the module to a kind of events; without a function, ends its subscription.
unsafe extern "C" fn subscribe_to_server_event(
    context: *mut Context,
    event: EventHeader,
    callback: Option<EventCallback>,
) -> c_int {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return ERR;
    };
    if event.kind >= KINDS {
        return ERR;
    }
    let Some(kind) = kind_of_number(event.kind) else {
        return if event.kind == RETIRED_KIND { OK } else { ERR };
    };
    if event.version > kind.version() {
        return ERR;
    }
    server_events::subscribe(&context.module, kind, event.version, callback);
    OK
}

/// Returns 1 if there is such a sub-event. As in Valkey, a negative number is taken for one.
extern "C" fn is_sub_event_supported(event: EventHeader, sub_event: i64) -> c_int {
    kind_of_number(event.kind).map_or(0, |kind| c_int::from(kind.has_sub_event(sub_event)))
}
