//! Messages between modules of the same name on the nodes of a cluster, and what modules switch off there.

use std::sync::Arc;

use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::Mutex;

use super::Module;
use super::types::TypeId;
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::session::Session;

/// The length of a node's id.
pub const NODE_ID_BYTES: usize = 40;

/// A function that gets messages (`ValkeyModuleClusterMessageReceiver`).
pub type MessageReceiver = unsafe extern "C" fn(*mut Context, *const std::ffi::c_char, u8, *const u8, u32);

/// What modules switch off (`VALKEYMODULE_CLUSTER_FLAG_*`).
pub mod flags {
    /// Replicas do not take the place of their primary by themselves.
    pub const NO_FAILOVER: u64 = 1 << 1;
    /// This node serves all slots.
    pub const NO_REDIRECTION: u64 = 1 << 2;
}

/// A receiver of messages of one type. A module has at most one for each type.
#[derive(Clone)]
struct Receiver {
    module: Arc<Module>,
    kind: u8,
    function: MessageReceiver,
}

static RECEIVERS: Mutex<Vec<Receiver>> = Mutex::new(Vec::new());
static FLAGS: AtomicU64 = AtomicU64::new(0);

/// Returns the number by which nodes know a module: that of a data type with its name. It is 0 for a name that no type
/// can have, so such modules get each other's messages.
pub fn module_number(module: &Module) -> u64 {
    TypeId::new(module.name().as_bytes(), 0).map_or(0, |id| id.0)
}

/// Registers the receiver of a type of messages, or replaces it. Without a function, it is removed.
pub fn register(module: &Arc<Module>, kind: u8, function: Option<MessageReceiver>) {
    let mut receivers = RECEIVERS.lock();
    let is_first = !receivers.iter().any(|known| Arc::ptr_eq(&known.module, module));
    receivers.retain(|known| known.kind != kind || !Arc::ptr_eq(&known.module, module));
    let Some(function) = function else {
        return;
    };
    receivers.push(Receiver {
        module: module.clone(),
        kind,
        function,
    });
    drop(receivers);
    if is_first {
        let owner = module.clone();
        module.add_cleanup(move || {
            RECEIVERS.lock().retain(|known| !Arc::ptr_eq(&known.module, &owner));
        });
    }
}

/// A message of another node.
pub struct ClusterMessage {
    /// The id of the node.
    pub sender: [u8; NODE_ID_BYTES],
    /// The number of the module, see [`module_number`].
    pub module: u64,
    /// Its type.
    pub kind: u8,
    /// Its contents.
    pub payload: Vec<u8>,
}

/// Calls the receiver of a message, if there is one: the one that was registered last.
pub fn deliver(session: &mut dyn Session, message: &ClusterMessage) {
    let found = RECEIVERS
        .lock()
        .iter()
        .rev()
        .find(|known| known.kind == message.kind && module_number(&known.module) == message.module)
        .cloned();
    let Some(receiver) = found.filter(|receiver| !receiver.module.is_unloaded()) else {
        return;
    };
    let mut sender = [0; NODE_ID_BYTES + 1];
    sender[..NODE_ID_BYTES].copy_from_slice(&message.sender);
    invoke::call_into(&receiver.module, session, || {
        let context = Context::new(receiver.module.clone(), Caller::none());
        context.reply_state.discard();
        let (payload, length) = (message.payload.as_ptr(), message.payload.len() as u32);
        // SAFETY: the context, the id and the contents live until the function has returned.
        unsafe {
            (receiver.function)(
                context.as_pointer(),
                sender.as_ptr().cast(),
                message.kind,
                payload,
                length,
            )
        };
    });
}

/// Switches off what these flags name, in addition to what is off already. Returns all flags.
pub fn add_flags(added: u64) -> u64 {
    let known = added & (flags::NO_FAILOVER | flags::NO_REDIRECTION);
    FLAGS.fetch_or(known, Ordering::AcqRel) | known
}

/// Returns `true` if this node serves all slots, because a module wants that.
#[inline]
pub fn is_redirection_off() -> bool {
    FLAGS.load(Ordering::Relaxed) & flags::NO_REDIRECTION != 0
}
