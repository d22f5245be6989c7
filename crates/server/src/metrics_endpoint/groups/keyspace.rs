//! Metrics of keys: their numbers, hits and misses, expiry, eviction, how much the most used and the biggest ones take.
//! No metric contains the name of a key.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric, seconds};
use crate::observability::big_keys::TYPES;
use crate::observability::metrics::Counter;
use crate::state::Server;
use weft_base::DbIndex;
use weft_base::clock::unix_ms;

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
    HOT_KEY_SAMPLING = Metric::gauge("weft_hot_key_sampling", "1 while WEFT HOTKEYS samples the keys of commands, 0 otherwise.");
    HOT_KEY_SAMPLES = Metric::counter("weft_hot_key_samples_total", "Uses of keys that were sampled.");
    HOT_KEY_SHARE = Metric::gauge("weft_hot_key_share", "Share of the most used keys, of this number of keys, in the sampled uses of all keys, as far as it is certain. Missing without samples.")
        .labelled(&["keys"]);
    BIG_KEY_SCANS = Metric::counter("weft_big_key_scans_total", "Scans of WEFT BIGKEYS that have visited all keys.");
    BIGGEST_KEY = Metric::gauge("weft_biggest_key_bytes", "Bytes of the biggest key of the type in the last complete scan of WEFT BIGKEYS. Missing without one.")
        .labelled(&["type"]);
    BIGGEST_KEY_ELEMENTS = Metric::gauge("weft_biggest_key_elements", "Elements of that key; of a string, its length in bytes.")
        .labelled(&["type"]);
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
    write_hot_keys(out, server);
    write_big_keys(out, server);
}

/// The numbers of most used keys whose share is shown.
const HOT_KEY_COUNTS: [usize; 3] = [1, 10, 100];

fn write_hot_keys(out: &mut Exposition, server: &Server) {
    let now_ms = unix_ms();
    let hot_keys = &server.stats.hot_keys;
    out.single(&HOT_KEY_SAMPLING, hot_keys.is_active(now_ms));
    out.single(&HOT_KEY_SAMPLES, server.stats.metrics.sum(Counter::HotKeySamples));
    if !hot_keys.is_active(now_ms) {
        return;
    }
    let [.., most] = HOT_KEY_COUNTS;
    let report = hot_keys.report(most, now_ms);
    let mut family = out.family(&HOT_KEY_SHARE);
    for count in HOT_KEY_COUNTS.into_iter().filter(|_| report.samples > 0) {
        family.add(&[itoa::Buffer::new().format(count)], report.certain_share(count));
    }
}

fn write_big_keys(out: &mut Exposition, server: &Server) {
    let big_keys = &server.stats.big_keys;
    out.single(&BIG_KEY_SCANS, big_keys.completed_scans());
    let Some(biggest) = big_keys.last_complete() else {
        return;
    };
    for (metric, figures) in [(&BIGGEST_KEY, biggest.bytes), (&BIGGEST_KEY_ELEMENTS, biggest.elements)] {
        let mut family = out.family(metric);
        for (name, figure) in TYPES.into_iter().zip(figures) {
            family.add(&[name], figure);
        }
    }
}
