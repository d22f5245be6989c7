//! The parameters that limit the size of compact encodings.

use super::{I32_MAX, I32_MIN, KIB, integer, memory};

super::table! {
    HASH_MAX_LISTPACK_ENTRIES "hash-max-listpack-entries" = integer(512, 0, i64::MAX).unsigned().alias("hash-max-ziplist-entries"),
        Active, "Fields up to which a hash is stored compactly.";
    HASH_MAX_LISTPACK_VALUE "hash-max-listpack-value" = memory(64, 0, i64::MAX).unsigned().alias("hash-max-ziplist-value"),
        Active, "Bytes a field or value may have in a compact hash.";
    LIST_MAX_LISTPACK_SIZE "list-max-listpack-size" = integer(-2, I32_MIN, I32_MAX).alias("list-max-ziplist-size"),
        Active, "Size of a list's nodes: elements if positive, -1 to -5 for 4 KB to 64 KB.";
    LIST_COMPRESS_DEPTH "list-compress-depth" = integer(0, 0, I32_MAX).debug(),
        Active, "Nodes at both ends of a list that stay uncompressed; 0 compresses none.";
    SET_MAX_INTSET_ENTRIES "set-max-intset-entries" = integer(512, 0, i64::MAX).unsigned(),
        Active, "Members up to which a set of integers is stored compactly.";
    SET_MAX_LISTPACK_ENTRIES "set-max-listpack-entries" = integer(128, 0, i64::MAX).unsigned(),
        Active, "Members up to which any other set is stored compactly.";
    SET_MAX_LISTPACK_VALUE "set-max-listpack-value" = integer(64, 0, i64::MAX).unsigned(),
        Active, "Bytes a member may have in a compact set.";
    ZSET_MAX_LISTPACK_ENTRIES "zset-max-listpack-entries" = integer(128, 0, i64::MAX).unsigned().alias("zset-max-ziplist-entries"),
        Active, "Members up to which a sorted set is stored compactly.";
    ZSET_MAX_LISTPACK_VALUE "zset-max-listpack-value" = memory(64, 0, i64::MAX).unsigned().alias("zset-max-ziplist-value"),
        Active, "Bytes a member may have in a compact sorted set.";
    HLL_SPARSE_MAX_BYTES "hll-sparse-max-bytes" = memory(3000, 0, i64::MAX).unsigned(),
        Active, "Bytes up to which a HyperLogLog stays sparse.";
    STREAM_NODE_MAX_BYTES "stream-node-max-bytes" = memory(4 * KIB, 0, i64::MAX).unsigned(),
        Active, "Bytes of a stream's node; 0 sets no limit.";
    STREAM_NODE_MAX_ENTRIES "stream-node-max-entries" = integer(100, 0, i64::MAX),
        Active, "Entries of a stream's node; 0 sets no limit.";
}
