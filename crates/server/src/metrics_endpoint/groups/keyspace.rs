//! Metrics of keys: their numbers, hits and misses, expiry, eviction.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric, seconds};
use crate::observability::metrics::Counter;
use crate::state::Server;
use weft_base::DbIndex;

metrics! {
    KEYS = Metric::gauge("weft_keys", "Keys of the database, including keys of slots that are being imported. Databases that were never used are left out.")
        .labelled(&["db"]);
    WITH_EXPIRY = Metric::gauge("weft_keys_with_expiry", "Keys of the database with an expiry.").labelled(&["db"]);
    VOLATILE = Metric::gauge("weft_keys_with_volatile_items", "Keys of the database of which parts expire, such as fields of hashes.")
        .labelled(&["db"]);
    HITS = Metric::counter("weft_keyspace_hits_total", "Lookups that found their key.");
    MISSES = Metric::counter("weft_keyspace_misses_total", "Lookups that did not find their key.");
    EXPIRED_KEYS = Metric::counter("weft_expired_keys_total", "Keys that have expired.");
    EXPIRED_FIELDS = Metric::counter("weft_expired_fields_total", "Fields of hashes that have expired.");
    EXPIRY_TIME = Metric::counter("weft_expiry_seconds_total", "Time spent on deleting expired keys.");
    EVICTED_KEYS = Metric::counter("weft_evicted_keys_total", "Keys that were evicted because of maxmemory.");
    EVICTION_EXCEEDED = Metric::counter("weft_eviction_exceeded_seconds_total", "Time in which used memory was above maxmemory although keys were evicted.");
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let counts = &server.keyspace.counts;
    let first = DbIndex::all(1);
    let others = DbIndex::all(counts.databases()).skip(1);
    let used = others.filter(|db| counts.was_used(*db) || counts.keys(*db) > 0);
    let databases: Vec<(DbIndex, String)> = first.chain(used).map(|db| (db, db.to_string())).collect();
    let families: [(&Metric, &dyn Fn(DbIndex) -> u64); 3] = [
        (&KEYS, &|db| counts.keys(db)),
        (&WITH_EXPIRY, &|db| counts.with_expiry(db)),
        (&VOLATILE, &|db| counts.volatile_values(db)),
    ];
    for (metric, count) in families {
        let mut family = out.family(metric);
        for (db, name) in &databases {
            family.add(&[name], count(*db));
        }
    }
    let metrics = &server.stats.metrics;
    for (metric, counter) in [
        (&HITS, Counter::KeyspaceHits),
        (&MISSES, Counter::KeyspaceMisses),
        (&EXPIRED_KEYS, Counter::ExpiredKeys),
        (&EXPIRED_FIELDS, Counter::ExpiredFields),
        (&EVICTED_KEYS, Counter::EvictedKeys),
    ] {
        out.single(metric, metrics.sum(counter));
    }
    out.single(&EXPIRY_TIME, seconds(metrics.sum(Counter::ExpiryNs)));
    let (exceeded_us, _) = server.memory.exceeded_us();
    out.single(&EVICTION_EXCEEDED, exceeded_us as f64 / 1e6);
}
