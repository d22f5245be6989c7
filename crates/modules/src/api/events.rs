//! Functions for keyspace events, messages, and the nodes of the cluster.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use weft_base::slots::{SLOTS, cluster_slot};
use weft_os::sync::{Mutex, OnceLock};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::keyspace_events::{self, EventFunction, classes};
use crate::objects::context::Context;
use crate::objects::string::ModuleString;
use crate::session;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("SubscribeToKeyspaceEvents", subscribe_to_keyspace_events),
    ("NotifyKeyspaceEvent", notify_keyspace_event),
    ("GetNotifyKeyspaceEvents", published_keyspace_events),
    ("GetKeyspaceNotificationFlagsAll", all_keyspace_events),
    ("PublishMessage", publish_message),
    ("PublishMessageShard", publish_message_to_shard),
    ("GetMyClusterID", own_node_id),
    ("GetClusterSize", cluster_size),
    ("GetClusterNodesList", cluster_nodes),
    ("FreeClusterNodesList", free_cluster_nodes),
    ("GetClusterNodeInfo", cluster_node),
    ("GetClusterNodeInfoForClient", cluster_node_for_client),
    ("ClusterKeySlot", key_slot),
    ("ClusterKeySlotC", key_slot_of_bytes),
    ("ClusterCanonicalKeyNameInSlot", key_name_in_slot),
];

/// The length of the text of an address, with the zero byte.
const ADDRESS_BYTES: usize = 46;
/// The length of a node's id.
const NODE_ID_BYTES: usize = 40;

/// A node's id with the zero byte behind it.
type NodeIdText = [u8; NODE_ID_BYTES + 1];

fn terminated(id: [u8; NODE_ID_BYTES]) -> NodeIdText {
    let mut text = [0; NODE_ID_BYTES + 1];
    text[..NODE_ID_BYTES].copy_from_slice(&id);
    text
}

// ---- keyspace events -----------------------------------------------------------------------------------------------

unsafe extern "C" fn subscribe_to_keyspace_events(
    context: *mut Context,
    wanted: c_int,
    function: Option<EventFunction>,
) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let Some((context, function)) = context.zip(function) else {
        return ERR;
    };
    // Commands that run meanwhile would not know where to run.
    if session::current(|session| session.is_exclusive()) != Some(true) {
        return ERR;
    }
    keyspace_events::subscribe(&context.module, wanted, function);
    OK
}

unsafe extern "C" fn notify_keyspace_event(
    context: *mut Context,
    class: c_int,
    name: *const c_char,
    key: *mut ModuleString,
) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let Some(context) = context.filter(|_| !name.is_null() && !key.is_null()) else {
        return ERR;
    };
    let db = context.caller.borrow().db;
    // SAFETY: rule 1; both were checked.
    let (name, key) = unsafe { (CStr::from_ptr(name).to_bytes(), ModuleString::bytes_of(key)) };
    match session::current(|session| session.notify_key_event(class, name, db, key)) {
        Some(()) => OK,
        None => ERR,
    }
}

extern "C" fn published_keyspace_events() -> c_int {
    session::host().map_or(0, |host| host.published_event_classes())
}

extern "C" fn all_keyspace_events() -> c_int {
    classes::ALL_BITS
}

// ---- messages ------------------------------------------------------------------------------------------------------

/// Publishes a message. Returns the number of receivers.
///
/// # Safety
/// Both pointers are null, or those of strings (rule 1).
unsafe fn publish(channel: *mut ModuleString, message: *mut ModuleString, is_sharded: bool) -> c_int {
    // SAFETY: the caller promises it.
    let (channel, message) = unsafe { (ModuleString::bytes_of(channel), ModuleString::bytes_of(message)) };
    let receivers = session::current(|session| session.publish(channel, message, is_sharded)).unwrap_or(0);
    c_int::try_from(receivers).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn publish_message(_: *mut Context, channel: *mut ModuleString, message: *mut ModuleString) -> c_int {
    // SAFETY: rule 1.
    unsafe { publish(channel, message, false) }
}

unsafe extern "C" fn publish_message_to_shard(
    _: *mut Context,
    channel: *mut ModuleString,
    message: *mut ModuleString,
) -> c_int {
    // SAFETY: rule 1.
    unsafe { publish(channel, message, true) }
}

// ---- the cluster ---------------------------------------------------------------------------------------------------

/// Returns the id of this node, which is the same as long as the process runs; null outside of cluster mode.
extern "C" fn own_node_id() -> *const c_char {
    static OWN_ID: Mutex<Option<&'static NodeIdText>> = Mutex::new(None);
    let Some(id) = session::host().and_then(|host| host.own_node_id()) else {
        return std::ptr::null();
    };
    let mut known = OWN_ID.lock();
    let text = terminated(id);
    match *known {
        Some(same) if *same == text => same.as_ptr().cast(),
        // CLUSTER RESET HARD gives the node another id. A module may still hold the one before.
        _ => known.insert(Box::leak(Box::new(text))).as_ptr().cast(),
    }
}

extern "C" fn cluster_size() -> usize {
    session::host().map_or(0, |host| host.node_ids().len())
}

/// Returns an array of the ids of all nodes, with null behind the last one; null outside of cluster mode. Each id has
/// [`NODE_ID_BYTES`] bytes, as in Valkey without a zero byte.
unsafe extern "C" fn cluster_nodes(_: *mut Context, count: *mut usize) -> *mut *mut c_char {
    let ids = match session::host() {
        Some(host) if host.own_node_id().is_some() => host.node_ids(),
        _ => return std::ptr::null_mut(),
    };
    if !count.is_null() {
        // SAFETY: it is a place for a number.
        unsafe { count.write(ids.len()) };
    }
    let allocate = |id: [u8; NODE_ID_BYTES]| Box::into_raw(Box::new(terminated(id))).cast::<c_char>();
    let mut list: Vec<*mut c_char> = ids.into_iter().map(allocate).collect();
    list.push(std::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

unsafe extern "C" fn free_cluster_nodes(list: *mut *mut c_char) {
    if list.is_null() {
        return;
    }
    let mut count = 0;
    // SAFETY: the list is one of `cluster_nodes`: an array of boxes that ends with null (rule 1).
    unsafe {
        while !(*list.add(count)).is_null() {
            drop(Box::from_raw((*list.add(count)).cast::<NodeIdText>()));
            count += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, count + 1)));
    }
}

unsafe extern "C" fn cluster_node(
    _: *mut Context,
    id: *const c_char,
    ip: *mut c_char,
    primary: *mut c_char,
    port: *mut c_int,
    flags: *mut c_int,
) -> c_int {
    if id.is_null() {
        return ERR;
    }
    // SAFETY: an id has this many bytes (rule 1).
    let id = unsafe { std::slice::from_raw_parts(id.cast::<u8>(), NODE_ID_BYTES) };
    let Some(node) = session::host().and_then(|host| host.node(id)) else {
        return ERR;
    };
    // SAFETY: each is null or a place of the size that the header names.
    unsafe {
        if !ip.is_null() {
            let bytes = &node.ip.as_bytes()[..node.ip.len().min(ADDRESS_BYTES - 1)];
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), ip.cast(), bytes.len());
            ip.add(bytes.len()).write(0);
        }
        if !primary.is_null() {
            let bytes = node.primary.unwrap_or([0; NODE_ID_BYTES]);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), primary.cast(), NODE_ID_BYTES);
        }
        if !port.is_null() {
            port.write(c_int::from(node.port));
        }
        if !flags.is_null() {
            flags.write(node.flags);
        }
    }
    OK
}

/// Returns the same as [`cluster_node`]. Addresses do not depend on the client.
unsafe extern "C" fn cluster_node_for_client(
    context: *mut Context,
    _client: u64,
    id: *const c_char,
    ip: *mut c_char,
    primary: *mut c_char,
    port: *mut c_int,
    flags: *mut c_int,
) -> c_int {
    // SAFETY: rule 1.
    unsafe { cluster_node(context, id, ip, primary, port, flags) }
}

unsafe extern "C" fn key_slot(key: *mut ModuleString) -> c_uint {
    // SAFETY: rule 1.
    c_uint::from(cluster_slot(unsafe { ModuleString::bytes_of(key) }).get())
}

unsafe extern "C" fn key_slot_of_bytes(key: *const c_char, length: usize) -> c_uint {
    if key.is_null() {
        return 0;
    }
    // SAFETY: rule 1.
    c_uint::from(cluster_slot(unsafe { std::slice::from_raw_parts(key.cast(), length) }).get())
}

/// Returns a name of a key that lies in a slot, which can also be used as a tag; null if there is no such slot.
extern "C" fn key_name_in_slot(slot: c_uint) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let Some(host) = session::host() else {
        return std::ptr::null();
    };
    let names = NAMES.get_or_init(|| {
        let name_of = |slot| CString::new(host.slot_tag(slot)).unwrap_or_default();
        (0..SLOTS).map(name_of).collect()
    });
    names.get(slot as usize).map_or(std::ptr::null(), |name| name.as_ptr())
}
