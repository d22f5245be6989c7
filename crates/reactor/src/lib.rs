//! Readiness and completion of I/O: sockets, wake-ups, buffers in flight.
//!
//! A worker owns one [`Reactor`] and asks it four things: who has something to say
//! ([`Reactor::wait`]), what is it ([`Reactor::receive`]), tell them this
//! ([`Reactor::send`]), and let go of this one ([`Reactor::deregister`]).
//!
//! ```text
//!   kernel ──edge──▶ wait ──▶ ready queue ──▶ Event::Readable ──▶ receive ──▶ the caller's Vec
//!                     ▲ └── finishes what is in flight ──▶ Event::Writable
//!   other threads ── Waker::wake
//! ```
//!
//! The backend is epoll ([`Reactor`] lives in `epoll.rs`), but the interface is that of a
//! completion queue, so that io_uring can stand behind it:
//!
//! * [`Reactor::send`] takes the output away. What the kernel did not take at once is *in flight*:
//!   it belongs to the reactor, is never moved or appended to while the kernel may read it, and is
//!   freed by the reactor, whatever becomes of the caller's connection meanwhile.
//! * Events of different connections come in any order; events of one connection carry no data,
//!   so nothing is lost when the caller looks at them late.
//! * A token that was deregistered produces no event in a later turn, even if it is used again.
//!
//! # What a request costs
//!
//! With one request at a time per connection: its share of one `epoll_wait`, one `recv`, one
//! `send`. Interest is edge-triggered and set once, so pausing, resuming and re-reading need no
//! `epoll_ctl`; a `recv` that returned less than it was asked for has emptied the socket and is not
//! followed by a second one (`epoll.rs` has the argument); a wake-up is an eventfd that is written
//! and never read.
//!
//! # Rules for `unsafe`
//!
//! Everything a connection needs goes through rustix's safe calls. `unsafe` remains in
//! `signal_action.rs`, `crash.rs`, `signals.rs`, `clock.rs`, `affinity.rs`, `collation.rs`, `process_title.rs` and
//! `allocator_options.rs`, under these rules, which the `SAFETY` comments cite:
//!
//! 1. **Plain structs.** A C struct of integers and pointers may be zeroed; a call that fills one
//!    gets a pointer to a live, correctly sized local of exactly that type.
//! 2. **Handlers are async-signal-safe.** A function installed as a handler touches only atomics,
//!    its own stack, memory that was filled before installation and is never freed, and calls that
//!    POSIX lists as async-signal-safe. It preserves `errno` if it returns into the program. The one
//!    exception is the last part of a crash report, which runs when the process is already lost,
//!    after everything safe has been written, and under an alarm.
//! 3. **The kernel's arguments.** `siginfo_t` and `ucontext_t` pointers are valid for the duration
//!    of a handler installed with `SA_SIGINFO`, and are not kept.
//! 4. **Signal stacks outlive their use.** A stack given to `sigaltstack` is a private mapping that
//!    is taken out of service, by the thread that uses it, before it is unmapped.
//! 5. **The allocator's symbol.** `malloc_conf` is a pointer to a string that ends with a zero byte and
//!    lives as long as the program, as jemalloc declares it; nothing else exports that name.
//! 6. **Locales.** A locale is made for one owner, only read afterwards, by any thread, and freed by its owner.

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
mod waker;

pub use affinity::{allowed_cpus, parse_cpu_list, pin_to_cpus, step_back, thread_id};
pub use allocator_options::allocator_options;
pub use clock::{ProcessTimes, Usage, monotonic_us, thread_cpu_us, unix_ms, unix_us};
pub use collation::Collation;
pub use crash::{AlternateStack, install_crash_handler, set_crash_reports};
pub use emergency::set_emergency_log;
pub use epoll::{DetachedConnection, Event, MOST_EVENTS, Reactor, Received, Sent, Token};
pub use listener::{Listener, multipath_socket};
pub use output::{Output, OutputMark, SharedBytes, Splices};
pub use process_title::set_process_title;
pub use sending::Unsent;
pub use signals::{Signal, Signals};
pub use socket::Socket;
pub use waker::Waker;
