//! Readiness and completion of I/O: sockets, wake-ups, buffers in flight.
