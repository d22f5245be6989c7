//! The parameters of listening, connections and the threads that serve them.

use super::ChangeAction::{LimitWorkers, Listen, RaiseOpenFileLimit, SetProcessTitle, WakeWorkers};
use super::{GIB, I32_MAX, MIB, SpecialKind, U32_MAX, boolean, integer, memory, octal, optional_text, special};

const DEFAULT_BIND: &[&str] = &["*", "-::*"];

super::table! {
    BIND "bind" = special(SpecialKind::Addresses(DEFAULT_BIND)).multi_arg().on_change(&[Listen, SetProcessTitle]),
        Active, "Addresses to listen on; a leading '-' forgives an address that is not available.";
    PORT "port" = integer(6379, 0, 65535).on_change(&[Listen, SetProcessTitle]),
        Active, "TCP port; 0 listens on no TCP port.";
    PROTECTED_MODE "protected-mode" = boolean(true),
        Active, "Refuse clients from other machines while the default user has no password.";
    UNIXSOCKET "unixsocket" = optional_text().immutable(),
        Active, "Path of a Unix socket to listen on as well.";
    UNIXSOCKETPERM "unixsocketperm" = octal(0, 0, 0o777).unsigned().immutable(),
        Active, "Permission bits of the Unix socket, in octal; 0 leaves them to the umask.";
    UNIXSOCKETGROUP "unixsocketgroup" = optional_text().immutable(),
        Active, "Group that owns the Unix socket.";
    TCP_BACKLOG "tcp-backlog" = integer(511, 0, I32_MAX).immutable(),
        Active, "Connections the kernel may queue before they are accepted.";
    TCP_KEEPALIVE "tcp-keepalive" = integer(300, 0, I32_MAX),
        Active, "Seconds between TCP keepalive probes; 0 sends none.";
    MPTCP "mptcp" = boolean(false).immutable(),
        Active, "Listen with Multipath TCP where the kernel offers it.";
    BIND_SOURCE_ADDR "bind-source-addr" = optional_text(),
        Active, "Source address of outgoing connections.";
    SOCKET_MARK_ID "socket-mark-id" = integer(0, 0, U32_MAX).unsigned().immutable(),
        Active, "Mark put on every socket, for firewall and routing rules; 0 marks none.";
    TIMEOUT "timeout" = integer(0, 0, I32_MAX),
        Active, "Seconds of silence after which a client is disconnected; 0 keeps idle clients.";
    MAXCLIENTS "maxclients" = integer(10_000, 1, U32_MAX).unsigned().on_change(&[RaiseOpenFileLimit]),
        Active, "Clients that may be connected at the same time.";
    MAX_NEW_CONNECTIONS_PER_CYCLE "max-new-connections-per-cycle" = integer(10, 1, 1000).unsigned(),
        Active, "Connections accepted in one turn of the accepting thread.";
    MAX_NEW_TLS_CONNECTIONS_PER_CYCLE "max-new-tls-connections-per-cycle" = integer(1, 1, 1000).unsigned(),
        Active, "TLS handshakes that one thread continues in a turn.";
    IO_THREADS "io-threads" = integer(0, 1, 256).zero_is_automatic().debug().on_change(&[LimitWorkers]),
        Active, "Threads that read, execute and reply to commands; 0 uses one for each CPU the process may use.";
    IO_THREADS_ALWAYS_ACTIVE "io-threads-always-active" = boolean(false).hidden(),
        Active, "Keep every I/O thread in use whatever the load.";
    CONNECTION_MOVE_INTERVAL "connection-move-interval" = integer(0, 0, I32_MAX).hidden().on_change(&[WakeWorkers]),
        Active, "For tests: milliseconds after which I/O threads hand random connections to each other; 0 means never.";
    PREFETCH_BATCH_MAX_SIZE "prefetch-batch-max-size" = integer(16, 0, 128),
        Active, "Commands whose keys are fetched into the cache together; 0 and 1 fetch none ahead.";
    MIN_IO_THREADS_AVOID_COPY_REPLY "min-io-threads-avoid-copy-reply" = integer(7, 0, I32_MAX).hidden(),
        NotImplemented, "Number of I/O threads from which large strings are sent without a copy.";
    MIN_STRING_SIZE_AVOID_COPY_REPLY "min-string-size-avoid-copy-reply" = integer(16_384, 0, I32_MAX).hidden(),
        Active, "Bytes from which a string of more than 16 KiB is sent without a copy; 0 copies every string.";
    MIN_STRING_SIZE_AVOID_COPY_REPLY_THREADED "min-string-size-avoid-copy-reply-threaded" = integer(65_536, 0, I32_MAX).hidden(),
        NotImplemented, "Bytes from which a string is sent without a copy when I/O threads are in use.";
    CLIENT_QUERY_BUFFER_LIMIT "client-query-buffer-limit" = memory(GIB, MIB, i64::MAX).unsigned().debug(),
        Active, "Bytes of unprocessed input after which a client is disconnected.";
    CLIENT_OUTPUT_BUFFER_LIMIT "client-output-buffer-limit" = special(SpecialKind::OutputBufferLimits).multi_arg(),
        Active, "Per class of client: hard limit, soft limit, and seconds above the soft limit before it is cut off.";
    PROTO_MAX_BULK_LEN "proto-max-bulk-len" = memory(512 * MIB, MIB, i64::MAX).debug(),
        Active, "Bytes a single argument of a request may have.";
    RDMA_BIND "rdma-bind" = special(SpecialKind::Addresses(&[])).multi_arg(),
        NotImplemented, "Addresses to listen on for RDMA.";
    RDMA_PORT "rdma-port" = integer(0, 0, 65535),
        NotImplemented, "RDMA port; 0 offers no RDMA.";
    RDMA_RX_SIZE "rdma-rx-size" = integer(1_048_576, 65_536, 16_777_216).immutable(),
        NotImplemented, "Bytes of the receive buffer of an RDMA connection.";
    RDMA_COMPLETION_VECTOR "rdma-completion-vector" = integer(-1, -1, 1024).immutable(),
        NotImplemented, "Completion vector of RDMA connections; -1 picks one at random.";
}
