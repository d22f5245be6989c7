//! Clients that wait for keys: BLPOP and its like, and XREAD with BLOCK.
//!
//! A client that waits is a [`Waiter`]. It stands in one queue for each of its keys, and the queues lie in the slots of
//! the keys. So whoever makes a key ready finds those who wait for it under the very lease that it holds anyway, and
//! serves them before that lease ends: no lost wake-up, no second look-up, no thread that hands work around.
//!
//! ```text
//!  slot of "jobs"                       Waiter (shared)                     worker of the client
//!  ┌────────────────────────────┐      ┌───────────────────────────┐       ┌───────────────────────┐
//!  │ table of database 0        │      │ claim: one winner         │       │ connection: parked    │
//!  │ extra ┬ further databases  │      │ operation, keys, protocol │       │   under the ticket    │
//!  │       └ Waiting            │  ┌──▶│ ticket: place in queues   │◀──────┤ Waits: Blocked, timer │
//!  │   "jobs", database 0       │  │   │ worker: where replies go  │       └──────────▲────────────┘
//!  │     Lists      ─ 7, 9, 12 ─┼──┘   │ served: the reply         │                  │ mail: Served
//!  │     SortedSets ─ 8         │      └────────────▲──────────────┘                  │
//!  └────────────────────────────┘                   └── whoever pushes to "jobs" ─────┘
//! ```
//!
//! # The life of a wait
//!
//! ```text
//!              handler finds nothing                   claimed by …
//!   (running) ───────────────────────▶ waiting ─┬─ who made a key ready ──▶ served ──▶ mail ──▶ reply
//!                `blocked::wait`                ├─ its timer ─────────────▶ null
//!                                               ├─ CLIENT UNBLOCK ────────▶ null or error
//!                                               └─ its connection's end ──▶ nothing
//! ```
//!
//! 1. **Registered under the leases.** A handler that finds nothing puts its waiter into the queues while it holds the
//!    write leases under which it looked. So a key cannot become ready between the look and the wait. (A command that
//!    only reads, XREAD, is run again as a writer for that: `After::AsWriter`.)
//! 2. **One winner.** A wait is ended by whoever wins [`Waiter::try_claim`]: by service, time, CLIENT UNBLOCK, or the
//!    end of the connection. Who serves claims first and changes data then; who loses touches nothing.
//! 3. **Order.** Tickets are drawn under the leases, so in each queue they ascend, and a queue is served from its front.
//!    Lines of different kinds do not see each other: a list is nothing to those who wait for a sorted set.
//! 4. **Served under the lease.** `KeyWrite` notes a changed key in `Effects::ready` if somebody waits for what it is
//!    now; who changes keys in another way (SWAPDB, FLUSHALL, expiry) calls `keyspace::ready::note_all`. After the
//!    handler and before the leases end, `dispatch::serve` takes the notes one by one and serves each key's front as
//!    long as the key has something for it. What that makes ready in turn (the destination of a BLMOVE) goes to the
//!    end of the same list: chains of any length need no stack. A part of something larger (a transaction, a script)
//!    leaves its notes to the whole.
//! 5. **A second slot.** BLMOVE writes a key that the command at work may not hold. Its slot is leased by try, as
//!    always. If somebody else has it, nothing is claimed and nothing behind it in the queue is served; the keys become
//!    `Unserved`, which the worker tries again in its next turns with all the slots they need, all or nothing. The
//!    command that made the key ready gets its reply only then, so that its client sees what it did. Meanwhile others
//!    may serve the same queue: from its front, so that no order is lost, and whoever comes later finds less to do.
//! 6. **Mail after the leases.** The reply is put into the waiter, and the waiter is mailed to the worker that has the
//!    connection, for waking a thread takes longer than a lease should. Whoever parks a connection looks whether its
//!    waiter has its reply already: the mail may have been faster.
//! 7. **Moving.** A blocked connection may move to another worker, which is mailed the connection first and made the
//!    waiter's worker then. Mail that arrives where the connection left is sent on to the waiter's worker, where it comes
//!    in behind the connection.
//! 8. **No garbage.** Who serves takes the waiter out of the queue it was found in. Its worker takes it out of all others,
//!    or all if it was not served, as soon as their slots are free; until then claimed waiters are passed over (and taken
//!    out) by whoever meets them. A slot whose last waiter has gone keeps nothing of them.
//! 9. **Time.** A wait of n ms lasts through the n-th millisecond after the one it began in. Its worker sleeps no longer
//!    than to the first of its timers.
//!
//! # Who may touch what
//!
//! | thing | touched by |
//! |---|---|
//! | queues ([`Waiting`]) | the holder of the slot's write lease, or of everything |
//! | claim, served reply, worker of a [`Waiter`] | anybody; atomics |
//! | the other fields of a [`Waiter`] | nobody changes them |
//! | timers, the list of waits | the client's worker |
//! | [`Counts`] | anybody; atomics, changed with the queues |
//!
//! # Adding a command that waits
//!
//! Give [`Operation`] a variant with all that the command needs (the request is gone when it is served), say in
//! [`Operation::line`] where it stands and in `commands::blocked::{can_perform, perform}` how it is served from one key.
//! The handler looks at its keys; when there is nothing and `ctx.may_block`, it calls `commands::blocked::wait` and
//! returns. Waiters of [`Line::Streams`] are all looked at, for an entry is not used up by its first reader;
//! of every other line only the first, until it cannot be served.

mod operation;
mod queues;
mod timers;
mod waiter;

pub use operation::{GroupRead, Kind, Line, Operation, ScoreEnd};
pub use queues::{Counts, Waiting};
pub use timers::Timers;
pub use waiter::{Permit, ServeResult, Wait, WaitKey, Waiter};
