//! Acts upon what commands did: counters at the end of each batch, memory after the leases.

use crate::keyspace::effects::Effects;
use crate::observe::metrics::Counter;
use crate::state::Server;

/// Values above this size are freed in the background.
const BACKGROUND_BYTES: usize = 1 << 20;

/// Frees what a command left, now that its leases have ended.
#[inline]
pub fn release(effects: &mut Effects, server: &Server) {
    if effects.garbage.is_empty() && effects.removed.is_empty() {
        return;
    }
    for garbage in effects.garbage.drain(..) {
        if garbage.bytes() > BACKGROUND_BYTES {
            server.lazyfree.free(1, Box::new(garbage));
        }
    }
    for removed in effects.removed.drain(..) {
        if removed.allocated_bytes() > BACKGROUND_BYTES {
            server.lazyfree.free(1, Box::new(removed));
        }
    }
}

/// Adds a batch's figures to the counters.
pub fn count(effects: &mut Effects, server: &Server, seat: usize) {
    let metrics = &server.metrics;
    metrics.add(seat, Counter::KeyspaceHits, std::mem::take(&mut effects.hits));
    metrics.add(seat, Counter::KeyspaceMisses, std::mem::take(&mut effects.misses));
    metrics.add(seat, Counter::ExpiredKeys, std::mem::take(&mut effects.expired_keys));
    metrics.add(
        seat,
        Counter::ExpiredFields,
        std::mem::take(&mut effects.expired_fields),
    );
    metrics.add(seat, Counter::Dirty, std::mem::take(&mut effects.dirty));
}
