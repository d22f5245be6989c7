//! Functions for messages between the nodes of a cluster.

use std::ffi::{CStr, c_char, c_int};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::cluster_messages::{self, MessageReceiver, NODE_ID_BYTES, module_number};
use crate::objects::context::Context;
use crate::objects::string::buffer_bytes;
use crate::session;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RegisterClusterMessageReceiver", register_receiver),
    ("SendClusterMessage", send_message),
    ("SetClusterFlags", set_flags),
];

/// Registers the receiver of a type of messages; without a function, removes it. Outside of cluster mode this has no
/// effect.
unsafe extern "C" fn register_receiver(context: *mut Context, kind: u8, function: Option<MessageReceiver>) {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let is_clustered = session::host().is_some_and(|host| host.own_node_id().is_some());
    if let Some(context) = context.filter(|_| is_clustered) {
        cluster_messages::register(&context.module, kind, function);
    }
}

/// Sends a message to a node, or to all other nodes.
unsafe extern "C" fn send_message(
    context: *mut Context,
    target: *const c_char,
    kind: u8,
    message: *const c_char,
    length: u32,
) -> c_int {
    // SAFETY: rule 1.
    let (context, payload) = unsafe { (Context::from_pointer(context), buffer_bytes(message, length as usize)) };
    let (Some(context), Some(host)) = (context, session::host()) else {
        return ERR;
    };
    // SAFETY: rule 1: an id is null or a C string.
    let target = (!target.is_null()).then(|| unsafe { CStr::from_ptr(target) }.to_bytes());
    if target.is_some_and(|id| id.len() != NODE_ID_BYTES) {
        return ERR;
    }
    match host.send_cluster_message(target, module_number(&context.module), kind, payload) {
        true => OK,
        false => ERR,
    }
}

extern "C" fn set_flags(_: *mut Context, added: u64) {
    let all = cluster_messages::add_flags(added);
    if let Some(host) = session::host() {
        host.set_cluster_flags(all);
    }
}
