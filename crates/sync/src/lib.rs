//! Concurrency primitives of the parallel core: leases, the gate, mailboxes, log rings, striped counters.
//!
//! # How the pieces fit
//!
//! ```text
//!            Arc<Domain<H, T>>
//!   ┌──────────────┬───────────────────────────────────────────────┐
//!   │ Gate         │ cells: [ word | index | header H | data T ] … │
//!   │ seat 0  word │          └─ lease word: who may touch `data`  │
//!   │ seat 1  word │                                               │
//!   └──────────────┴───────────────────────────────────────────────┘
//!        ▲                         ▲                    ▲
//!   ThreadSeat ┼─ enter ──► GatePassage ────────┼─ try_read ──► ReadLease ──► &T
//!        │                         └─ try_write ─► WriteLease ─► &mut T
//!        └─ exclusive ──► Exclusive ── cell_mut ──────────────► &mut T of any cell
//! ```
//!
//! A thread *joins* a domain once and owns a [`ThreadSeat`]. Per batch of work it passes the gate and holds a
//! [`GatePassage`]; with the pass it takes leases, by try, any number at once. A seat may instead ask for an
//! [`Exclusive`], which exists only while no pass of any other seat exists.
//!
//! A cell's header is for atomics: everybody may read it without a lease. A cell's data is reached only under a lease
//! or under the exclusive.
//!
//! # Who may touch what
//!
//! | thing | touched by | guarded by |
//! |---|---|---|
//! | lease word | every thread | atomic; only `lease_word`'s operations change it |
//! | header | every thread, shared | `H: Sync` |
//! | data | holders of a lease, or the exclusive | rules 1–4 |
//! | seat word | the seat's owner (bits `IN`, `ALONE`), the closer (bit `CLOSED`) | atomic, one cache line per seat |
//! | mailbox queue, gate's waiting room | every thread | a mutex |
//!
//! # The rules that `unsafe` leans on
//!
//! Every `// SAFETY:` comment of this crate names the rules that discharge it.
//!
//! 1. **Readers share.** A `ReadLease` exists only between a reader's taking of the `LeaseWord` and the matching
//!    `release_read`, or it is published (rule 8). In between the word's reader count is above zero and its `WRITER`
//!    bit is clear, hence no `WriteLease` of that cell exists. A `ReadLease` hands out `&T` only.
//! 2. **A writer is alone.** A `WriteLease` exists only between a writer's successful taking of the `LeaseWord`, after
//!    which it has seen nobody published (rule 8), and `release_write`. In between the word's `WRITER` bit is set,
//!    which only happens on a word with no readers and no writer, and which refuses both. A `WriteLease` hands out
//!    `&mut T` only through `&mut self`, and `&T` through `&self`.
//! 3. **Leases live inside a pass.** A lease borrows the `GatePassage` it came from; a `GatePassage` borrows its
//!    `ThreadSeat` mutably, and from its creation to its drop the seat word's `IN` bit is set. The bit is cleared
//!    nowhere else (except by the seat's own drop, which the borrow checker places after the pass).
//! 4. **The exclusive is alone.** An `Exclusive` borrows its `ThreadSeat` mutably, so that seat has no pass. It exists
//!    only between `Gate::close`, which returns when every seat word had `CLOSED` set and `IN` clear, and `Gate::open`.
//!    While `CLOSED` is set no seat can set `IN`. One closer exists at a time: the turn is handed on under the gate's
//!    mutex. By rule 3 no lease exists then, whatever the lease words say (they may say something only if a lease was
//!    leaked with `mem::forget`).
//! 5. **What was written is seen.** Taking a lease is an Acquire operation on the lease word and every release a
//!    Release operation; all changes of a lease word are read-modify-writes, so each release heads a release sequence
//!    that the next holder reads from; a writer also acquires the end of each publication. In the same way `enter` and
//!    `close` acquire, and `leave` and `open` release, the seat word. Only rule 8 needs more than single-location
//!    order.
//! 6. **Crossing threads.** `&Domain` on several threads yields `&T` on several threads (`T: Sync`) and `&mut T` on a
//!    thread other than the one that made the value (`T: Send`), and `&H` everywhere (`H: Sync`). So `Domain` is `Sync`
//!    exactly under these bounds. Passes, leases and exclusives are neither `Send` nor `Sync`: a thread is inside or
//!    outside by itself.
//! 7. **A prefetch touches nothing.** A prefetch instruction may be given any address: it neither faults nor changes
//!    what a program can observe.
//! 8. **Published readers.** A reader publishes itself on its seat's line and is in only if it then reads `SHARED`, and
//!    neither `WRITER` nor an announcement, in the word; a writer makes the word `WRITER` and, if `SHARED` was set
//!    before, is in only after it has then found the cell on no line. These four operations are sequentially
//!    consistent: if the reader's look comes before the writer's change, the publication comes before the writer's
//!    look, which waits for its end. `SHARED` is set only by a reader that is counted in the word at that time, so no
//!    writer is in then. A line is changed by its seat's thread only.
//! 9. **A ring's bytes are written once.** A chunk's bytes at or above `filled` are reached by the ring's only writer
//!    (`&mut RingWriter`), those below it by its only reader, and `filled` only grows, with Release stores behind the
//!    bytes and Acquire loads before they are read.
//! 10. **Alone.** A pass is alone only while the `ALONE` bit of its seat's word is set and the seat had found its claim
//!     to be the sole one (module `gate`): from then until the bit is cleared no other seat is inside, so no other
//!     thread touches a lease word, and plain loads and stores count the pass's leases as exactly as read-modify-writes
//!     would. What happens meanwhile is released with the seat's word and acquired by every seat that enters after it
//!     (rule 5).
//!
//! # Why nobody waits for ever
//!
//! * Leases are only tried. Who fails goes away and comes back, so a cycle of waiting cannot form.
//! * A writer that keeps failing *announces* itself; new readers are refused until a writer got in. The announcement is
//!   worth a fixed number of refusals and then lapses (module `lease_word`), so a writer that never comes back locks
//!   nobody out. A reader that was refused often may end it earlier while the cell is free, and for a pass that is
//!   alone it means nothing.
//! * The gate alternates: whoever slept while it was closed enters before it is closed again, and closers take turns in
//!   order of arrival; an exclusive that pauses arrives anew.
//! * Whoever enters beside a seat that is alone waits for the end of that seat's pass, which waits for nobody.
//!
//! # Testing
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weft-sync --release --lib` explores the interleavings of the small scenarios
//! in the `loom_tests` modules; the ordinary tests stress the same code with real threads.

mod claim;
mod counters;
mod domain;
mod gate;
mod lease_word;
mod loom;
mod mailbox;
mod prefetch;
mod published;
mod ring;

pub use claim::Claim;
pub use counters::StripedCounters;
pub use domain::{Domain, Exclusive, GatePassage, ReadLease, ThreadSeat, WriteLease};
pub use gate::Gate;
pub use mailbox::Mailbox;
pub use prefetch::{prefetch, prefetch_for_write, prefetch_read};
pub use ring::{RingGauge, RingReader, RingWriter, ring};
