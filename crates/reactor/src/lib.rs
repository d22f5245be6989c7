//! Socket I/O: readiness events, receiving, wake-ups, and output buffers in flight.
//!
//! A worker owns one [`Reactor`] and uses four operations: it waits for events ([`Reactor::wait`]), receives input
//! ([`Reactor::receive`]), sends output ([`Reactor::send`]) and removes a connection ([`Reactor::deregister`]).
//!
//! ```text
//!   kernel ──edge──▶ wait ──▶ ready queue ──▶ Event::Readable ──▶ receive ──▶ the caller's Vec
//!                     ▲ └── finishes what is in flight ──▶ Event::Writable
//!   other threads ── Waker::wake
//! ```
//!
//! The backend is epoll ([`Reactor`] is implemented in `epoll.rs`). The interface is that of a completion queue, so
//! that io_uring can replace epoll:
//!
//! * [`Reactor::send`] takes ownership of the output. The part that the kernel does not accept at once is *in flight*.
//!   It belongs to the reactor and is neither moved nor appended to while the kernel may read it. The reactor frees it,
//!   even if the caller has closed the connection meanwhile.
//! * Events of different connections come in any order. Events of one connection carry no data, so nothing is lost when
//!   the caller handles them late.
//! * A token that was deregistered produces no event in a later turn, even if it is used again.
//!
//! # Cost of a request
//!
//! With one request at a time per connection, a request costs its share of one `epoll_wait`, one `recv` and one `send`.
//! Interest is edge-triggered and set once, so pausing, resuming and re-reading need no `epoll_ctl`. A `recv` that
//! returned less than was requested has emptied the socket, so no second `recv` follows (`epoll.rs` gives the
//! reasoning). A wake-up is an eventfd that is written and never read.
//!
//! # Rules for `unsafe`
//!
//! All operations on connections go through rustix's safe calls. `unsafe` remains in `signal_action.rs`, `crash.rs`,
//! `signals.rs`, `clock.rs`, `affinity.rs`, `collation.rs`, `process_title.rs`, `start_code.rs` and
//! `allocator_options.rs`, under these rules, which the `SAFETY` comments cite:
//!
//! 1. **Plain structs.** A C struct of integers and pointers may be zeroed. A call that fills one gets a pointer to a
//!    live, correctly sized local of exactly that type.
//! 2. **Handlers are async-signal-safe.** A function installed as a handler touches only atomics, its own stack, memory
//!    that was filled before installation and is never freed, and calls that POSIX lists as async-signal-safe. It
//!    preserves `errno` if it returns into the program. The one exception is the last part of a crash report. It runs
//!    when the process cannot continue anyway, after everything safe has been written, and under an alarm.
//! 3. **The kernel's arguments.** `siginfo_t` and `ucontext_t` pointers are valid for the duration of a handler
//!    installed with `SA_SIGINFO`, and are not kept.
//! 4. **Signal stacks outlive their use.** A stack given to `sigaltstack` is a private mapping. The thread that uses it
//!    takes it out of service before it is unmapped.
//! 5. **The allocator's symbol.** `malloc_conf` is a pointer to a string that ends with a zero byte and lives as long
//!    as the program, as jemalloc declares it. No other item exports that name.
//! 6. **Locales.** A locale is created for one owner, is only read afterwards (by any thread), and is freed by its
//!    owner.
//! 7. **Code and constants.** A private mapping of the program's file, or of a library's, that is not writable, and of
//!    which the process has no private copies of pages, has the contents of the file. Its pages may leave the page
//!    tables: the kernel maps them again. A mapping that existed before the program had threads is complete, and lasts
//!    as long as the program, because what is loaded at the start is never unloaded.

mod affinity;
mod allocator_options;
mod clock;
mod collation;
mod crash;
mod emergency;
mod epoll;
mod listener;
mod output;
mod process_title;
mod sending;
mod signal_action;
mod signals;
mod socket;
mod start_code;
mod waker;

pub use affinity::{allowed_cpus, lower_priority, parse_cpu_list, pin_to_cpus, thread_id};
pub use allocator_options::allocator_options;
pub use clock::{CpuUsage, ProcessCpuTimes, thread_cpu_us};
pub use collation::Collation;
pub use crash::{
    AlternateStack, install_crash_handler, report_module_assertion, set_crash_reports, set_module_info_of_crash,
    set_module_of_crash,
};
pub use emergency::set_emergency_log;
pub use epoll::{DetachedConnection, Event, MAX_EVENTS, Reactor, ReceiveOutcome, SendOutcome, Token};
pub use listener::{Listener, new_multipath_socket};
pub use output::{Output, OutputMark, SharedBytes, SharedValues};
pub use process_title::set_process_title;
pub use sending::SendQueue;
pub use signals::{ShutdownSignal, SignalReceiver};
pub use socket::Socket;
pub use start_code::{record_start_mappings, release_start_code};
pub use waker::Waker;
