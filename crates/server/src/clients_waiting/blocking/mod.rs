//! Clients that wait for keys: BLPOP and similar commands, and XREAD with BLOCK.
//!
//! A waiting client is represented by a [`Waiter`]. It is in one queue for each of its keys, and the queues are stored
//! in the slots of the keys. So the command that makes a key ready finds the waiters under the lease that it holds
//! anyway, and serves them before that lease ends. There is no lost wake-up, no second lookup, and no thread that hands
//! work to other threads.
//!
//! ```text
//!  slot of "jobs"                       Waiter (shared)                     worker of the client
//!  ┌────────────────────────────┐      ┌───────────────────────────┐       ┌───────────────────────┐
//!  │ table of database 0        │      │ claim: one winner         │       │ connection: parked    │
//!  │ extra ┬ further databases  │      │ operation, keys, protocol │       │   under the park id   │
//!  │       └ SlotWaiters        │  ┌──▶│ park id: order in queues  │◀──────┤ Waits: Blocked, timer │
//!  │   "jobs", database 0       │  │   │ worker: where replies go  │       └──────────▲────────────┘
//!  │     Lists      ─ 7, 9, 12 ─┼──┘   │ served: the reply         │                  │ mail: Served
//!  │     SortedSets ─ 8         │      └────────────▲──────────────┘                  │
//!  └────────────────────────────┘                   └── command that pushes to "jobs" ┘
//! ```
//!
//! # Life of a wait
//!
//! ```text
//!              handler finds nothing                   claimed by …
//!   (running) ───────────────────────▶ waiting ─┬─ command that made a key ready ──▶ served ──▶ mail ──▶ reply
//!                `blocked::wait`                ├─ its timer ─────────────▶ null
//!                                               ├─ CLIENT UNBLOCK ────────▶ null or error
//!                                               └─ its connection's end ──▶ nothing
//! ```
//!
//! 1. **Registered under the leases.** A handler that finds nothing puts its waiter into the queues while it holds the
//!    write leases under which it looked. So a key cannot become ready between the lookup and the wait. (A command that
//!    only reads, XREAD, is run again as a writer for that: `NextStep::RetryAsWriter`.)
//! 2. **One winner.** A wait is ended by the winner of [`Waiter::try_claim`]: service, timeout, CLIENT UNBLOCK, or the
//!    end of the connection. The serving thread claims first and changes data afterwards; a loser changes nothing.
//! 3. **Order.** Park ids are assigned under the leases, so they ascend in each queue, and a queue is served from its
//!    front. Queues of different kinds do not affect each other: a list is irrelevant to clients that wait for a sorted
//!    set.
//! 4. **Served under the lease.** `KeyWrite` records a changed key in `Effects::ready` if a client waits for its new
//!    state. Code that changes keys in another way (SWAPDB, FLUSHALL, expiry) calls
//!    `keyspace::ready_keys::add_ready_keys_of_slot`. After the handler and before the leases end, `dispatch::serve`
//!    takes the recorded keys one by one and serves each key's first waiter as long as the key has elements for it.
//!    Keys that this makes ready in turn (the destination of a BLMOVE) are appended to the same list, so chains of any
//!    length need no stack. The keys recorded by commands of a transaction or a script are served at its end. A waiter
//!    whose command would be refused now, because of its user's permissions or the state of the server, gets the error
//!    instead.
//! 5. **A second slot.** BLMOVE writes a key whose slot the running command may not hold. That slot is leased without
//!    waiting, as always. If another thread holds it, nothing is claimed and no later waiter in the queue is served.
//!    The key becomes one of the `UnservedKeys`, which the worker tries again in its next turns, each with all the
//!    slots it needs, all or none. Other keys that became ready are served meanwhile. The command that made the key
//!    ready gets its reply only then, so that its client sees the result. Meanwhile other commands may serve the same
//!    queue from its front, so order is kept, and later attempts find less to do. A pause of clients that begins
//!    meanwhile holds back the waiters whose operations it includes; a pause of writes does not hold back reads. If a
//!    transaction begins the pause, the keys of these waiters become `UnservedKeys`, too, and EXEC is answered at once.
//!    A waiter of keys in several slots is served under a [`Permit`](crate::state::permit::Permit), which one thread
//!    has until it has served its keys. Otherwise two threads could serve such waiters in opposite orders, and no order
//!    of their commands would explain both. A thread that does not get the permit puts its key off in the same way.
//! 6. **Mail after the leases.** The reply is stored in the waiter, and the waiter is mailed to the worker that has the
//!    connection after the leases, because waking a thread takes longer than a lease should. A worker that parks a
//!    connection checks if its waiter has its reply already, since the mail may have been faster.
//! 7. **Moving.** A blocked connection may move to another worker. That worker is mailed the connection first and then
//!    becomes the waiter's worker. Mail that arrives at the previous worker is forwarded to the waiter's worker, where
//!    it arrives after the connection.
//! 8. **No garbage.** The serving thread removes the waiter from the queue in which it was found. Its worker removes it
//!    from all other queues, or from all if it was not served, as soon as their slots are free, and from a bounded
//!    number of queues per turn. Until then, threads that meet a claimed waiter skip and remove it. A slot whose last
//!    waiter is gone keeps no memory for them.
//! 9. **Time.** A wait of n ms lasts through the n-th millisecond after the one in which it began. The client's worker
//!    never sleeps past its first timer.
//!
//! # Access rules
//!
//! | data | accessed by |
//! |---|---|
//! | queues ([`SlotWaiters`](queues::SlotWaiters)) | the holder of the slot's write lease, or of exclusive mode |
//! | claim, served reply, worker of a [`Waiter`] | any thread; atomics |
//! | the other fields of a [`Waiter`] | immutable |
//! | timers, the list of waits | the client's worker |
//! | [`WaitCounts`](queues::WaitCounts) | any thread; atomics, changed together with the queues |
//!
//! # Adding a command that waits
//!
//! Add a variant to [`BlockingOperation`](operation::BlockingOperation) with everything that the command needs (the
//! request is gone when it is served), its queue to `BlockingOperation::queue_kind`, and the service from one key to
//! `commands::blocked::{can_perform, perform}`. The handler checks its keys; if there is nothing and `ctx.may_block`,
//! it calls `commands::blocked::wait` and returns. All waiters of `WaitQueueKind::Stream` are checked, because reading
//! an entry does not consume it; of every other queue only the first, until it cannot be served.

mod operation;
mod queues;
mod timers;
mod waiter;

pub use operation::{BlockingOperation, GroupRead, ScoreEnd, WaitQueueKind, WaitedKind};
pub use queues::{SlotWaiters, WaitCounts};
pub use timers::TimerQueue;
pub use waiter::{HeldUpWaiters, ServeResult, WaitKey, Waiter, WaiterParameters, WaiterPermission, WaiterRefusal};
