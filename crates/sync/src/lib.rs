//! Concurrency primitives of the parallel core: leases, the gate, mailboxes, striped counters.
