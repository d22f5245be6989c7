//! Frees the memory that commands left, after their leases have ended.
//!
//! Most memory is freed immediately by the same thread. Memory that takes long to free is passed to the lazyfree
//! thread, unless a configuration parameter makes the causing thread free it. By then no lease is held, so only the
//! clients of that thread wait. Two things take long: many allocations, measured by Valkey's count of objects, and many
//! bytes, whose pages are returned to the operating system. Only the former count as `lazyfreed_objects`, as in Valkey.

use weft_values::Value;

use crate::keyspace::effects::{Effects, RemovalCause};
use crate::state::Server;
use weft_config::id;

/// The size in bytes above which values take long to free.
const LAZYFREE_BYTES: usize = 1 << 20;
/// The number of elements above which values take long to free. They count as objects freed in the background.
const LAZYFREE_EFFORT: usize = 64;

/// Frees the memory that a command released. The caller's leases have ended.
#[inline]
pub fn free_removed_values(effects: &mut Effects, server: &Server) {
    if effects.garbage.is_empty() && effects.removed.is_empty() && effects.removed_keys.is_empty() {
        return;
    }
    if !effects.removed_keys.is_empty() && !effects.delivers_removed_keys {
        let keys = std::mem::take(&mut effects.removed_keys);
        server.run_at_home(Box::new(|home| home.deliver_removed_keys(keys)));
    }
    for garbage in effects.garbage.drain(..) {
        if let Some((objects, bytes)) = lazyfree_cost(garbage.bytes(), garbage.object())
            && is_lazyfree_enabled(RemovalCause::Command, server)
        {
            server.background.lazyfree.free(objects, bytes, Box::new(garbage));
        }
    }
    for (removed, cause) in effects.removed.drain(..) {
        let object = match removed.value() {
            weft_table::ValueRef::Object(object) => Some(object),
            _ => None,
        };
        if let Some((objects, bytes)) = lazyfree_cost(removed.allocated_bytes(), object)
            && is_lazyfree_enabled(cause, server)
        {
            server.background.lazyfree.free(objects, bytes, Box::new(removed));
        }
    }
}

/// Returns the number of objects to count and the number of bytes if freeing this takes long, otherwise `None`.
#[inline]
fn lazyfree_cost(bytes: usize, object: Option<&Value>) -> Option<(u64, usize)> {
    let Some(object) = object else {
        return (bytes > LAZYFREE_BYTES).then_some((0, bytes));
    };
    let bytes = bytes + object.allocated_bytes();
    if object.free_effort() > LAZYFREE_EFFORT {
        Some((1, bytes))
    } else {
        (bytes > LAZYFREE_BYTES).then_some((0, bytes))
    }
}

/// Returns `true` if long work of this cause goes to the lazyfree thread.
fn is_lazyfree_enabled(cause: RemovalCause, server: &Server) -> bool {
    let parameter = match cause {
        RemovalCause::Unlink => return true,
        RemovalCause::Del => id::LAZYFREE_LAZY_USER_DEL,
        RemovalCause::Command => id::LAZYFREE_LAZY_SERVER_DEL,
        RemovalCause::Expiry => id::LAZYFREE_LAZY_EXPIRE,
        RemovalCause::Eviction => id::LAZYFREE_LAZY_EVICTION,
    };
    server.config.boolean(parameter)
}
