//! The hash table of one slot and database: buckets, entries, expiry index, interleaved probes.
