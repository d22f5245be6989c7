//! Concurrency primitives of the parallel core: leases, the gate, mailboxes, log rings, striped counters.
//!
//! # Overview
//!
//! ```text
//!            Arc<Domain<H, T>>
//!   ┌──────────────┬───────────────────────────────────────────────┐
//!   │ Gate         │ cells: [ word | index | header H | data T ] … │
//!   │ seat 0  word │          └─ lease word: who may access `data` │
//!   │ seat 1  word │                                               │
//!   └──────────────┴───────────────────────────────────────────────┘
//!        ▲                         ▲                    ▲
//!   ThreadSeat ┼─ enter ──► GatePassage ────────┼─ try_read ──► ReadLease ──► &T
//!        │                         └─ try_write ─► WriteLease ─► &mut T
//!        └─ exclusive ──► Exclusive ── cell_mut ──────────────► &mut T of any cell
//! ```
//!
//! A thread *joins* a domain once and owns a [`ThreadSeat`]. For each batch of work it enters the gate and holds a
//! [`GatePassage`]. Through the passage it takes leases: always by a try that may fail, and any number at once. A seat
//! may instead request [`Exclusive`] access, which exists only while no other seat has a passage.
//!
//! A cell's header holds atomics and may be read by every thread without a lease. A cell's data is reached only under a
//! lease or with exclusive access.
//!
//! # Ownership
//!
//! | thing | accessed by | guarded by |
//! |---|---|---|
//! | lease word | every thread | atomic; only `lease_word`'s operations change it |
//! | header | every thread, shared | `H: Sync` |
//! | data | holders of a lease or of exclusive access | rules 1–4 |
//! | seat word | the seat's owner (bits `IN`, `BIASED`), the closer (bit `CLOSED`) | atomic, one cache line per seat |
//! | mailbox queue, gate's wait state | every thread | a mutex |
//!
//! # Rules for `unsafe`
//!
//! Every `// SAFETY:` comment of this crate names the rules that justify it.
//!
//! 1. **Readers share.** A `ReadLease` exists only between a reader's acquisition of the `LeaseWord` and the matching
//!    `release_read`, or it is published (rule 8). In between, the word's reader count is above zero and its `WRITER`
//!    bit is clear, so no `WriteLease` of that cell exists. A `ReadLease` hands out `&T` only.
//! 2. **A writer excludes all other holders.** A `WriteLease` exists only between a writer's successful acquisition of
//!    the `LeaseWord`, after which it has found no published reader (rule 8), and `release_write`. In between, the
//!    word's `WRITER` bit is set. The bit is set only on a word without readers and without a writer, and it refuses
//!    both. A `WriteLease` hands out `&mut T` only through `&mut self`, and `&T` through `&self`.
//! 3. **Leases live inside a passage.** A lease borrows the `GatePassage` it came from. A `GatePassage` borrows its
//!    `ThreadSeat` mutably, and from its creation to its drop the seat word's `IN` bit is set. The bit is cleared
//!    nowhere else, except by the drop of the seat, which the borrow checker places after the passage.
//! 4. **Exclusive access excludes all passages.** An `Exclusive` borrows its `ThreadSeat` mutably, so that seat has no
//!    passage. It exists only between `Gate::close`, which returns when every seat word had `CLOSED` set and `IN`
//!    clear, and `Gate::open`. While `CLOSED` is set, no seat can set `IN`. Only one closer exists at a time, because
//!    the turn is handed on under the gate's mutex. By rule 3 no lease exists then, whatever the lease words contain.
//!    (They can be non-zero only if a lease was leaked with `mem::forget`.)
//! 5. **Writes are visible to later holders.** Acquiring a lease is an Acquire operation on the lease word, and every
//!    release is a Release operation. All changes of a lease word are read-modify-writes, so each release heads a
//!    release sequence that the next holder reads from. A writer also acquires the end of each publication. In the same
//!    way `enter` and `close` acquire the seat word, and `leave` and `open` release it. Only rule 8 needs more than
//!    single-location order.
//! 6. **Crossing threads.** `&Domain` on several threads yields `&T` on several threads (`T: Sync`), `&mut T` on a
//!    thread other than the one that created the value (`T: Send`), and `&H` everywhere (`H: Sync`). So `Domain` is
//!    `Sync` exactly under these bounds. Passages, leases and `Exclusive` are neither `Send` nor `Sync`, because they
//!    belong to the thread that entered.
//! 7. **A prefetch accesses nothing.** A prefetch instruction may be given any address: it neither faults nor changes
//!    observable state.
//! 8. **Published readers.** A reader publishes itself on its seat's line and is admitted only if it then reads a word
//!    with `HOT` set and with neither `WRITER` nor an announcement. A writer sets the word to `WRITER`; if `HOT` was
//!    set before, the writer is admitted only after it has found the cell on no line. These four operations are
//!    sequentially consistent: if the reader's check precedes the writer's change, the publication precedes the
//!    writer's search, which waits for the end of the publication. `HOT` is set only by a reader that is counted in the
//!    word at that time, so no writer is admitted then. A line is changed only by its seat's thread.
//! 9. **A ring's bytes are written once.** The bytes of a chunk at or above `filled` are reached only by the ring's
//!    writer (`&mut RingWriter`), those below it only by its reader. `filled` only grows, with Release stores after the
//!    bytes are written and Acquire loads before they are read.
//! 10. **Biased passages.** A passage is biased only while the `BIASED` bit of its seat's word is set and the seat had
//!     found the gate still biased towards it (module `gate`). From then until the bit is cleared no other seat is
//!     inside, so no other thread accesses a lease word, and plain loads and stores count the passage's leases as
//!     exactly as read-modify-writes would. These changes are released with the seat's word and acquired by every seat
//!     that enters later (rule 5).
//! 11. **Shared exclusive access.** A `SharedExclusive` borrows its `Exclusive` mutably, so only its passages reach the
//!     cells. A `SharedPassage` is counted from its creation to its drop, and the gate is open only while none is
//!     counted and none can be created. So rule 4 holds between the passages and every seat. Among each other the
//!     passages take leases, as in rule 2, and no reads are published. An `Exclusive` that is lent exists only while no
//!     passage is counted and none can be created; its lifetime ends with the function that it is lent to. A
//!     `WriteLease` that comes from such a passage borrows it, in place of a `GatePassage` (rule 3). The mutex that
//!     counts the passages orders their effects before those of the holder of exclusive access, and of the threads that
//!     enter during a pause.
//! 12. **Lent passages.** A `GatePassage` under a `PassageLoan` exists only while another seat of the same domain is
//!     inside, in a passage that is not biased: it is counted from its creation to its drop, it is created only while
//!     the loan is open, and `GatePassage::lend` returns only once the loan is closed and none is counted. The lender's
//!     `IN` bit thus stands for that of the seat (rule 3), so no `Exclusive` exists (rule 4) and no passage is biased
//!     (rule 10). The passage borrows its `ThreadSeat` mutably, so the seat neither enters nor closes meanwhile. The
//!     mutex that counts these passages orders their effects before the end of the lender's passage, and those of
//!     earlier exclusive access before them.
//!
//! # Freedom from deadlock and starvation
//!
//! * Leases are only tried. A thread that is refused releases its leases and retries later, so no cycle of waiting
//!   threads can form.
//! * A writer that keeps failing *announces* itself, and new readers are refused until a writer is admitted. The
//!   announcement is worth a fixed number of refusals and then lapses (module `lease_word`), so a writer that never
//!   returns blocks no reader. A reader that was refused many times may end the announcement earlier while the cell is
//!   free. A biased passage ignores announcements.
//! * The gate alternates: a thread that slept while the gate was closed enters before it is closed again, and closers
//!   take turns in order of arrival. A holder of exclusive access that pauses goes to the end of the queue.
//! * A seat that enters while the gate is biased towards another one waits for the end of that seat's passage, which
//!   waits for no other thread.
//! * A seat enters under a loan without waiting, whether the gate is being closed or not. The lender waits for the ends
//!   of these passages, so a thread in one of them must not wait for what may itself wait at the gate.
//! * A thread inside a `SharedPassage` waits for the lease of one cell only while it holds no other one. A pause waits
//!   for the ends of all passages, and new ones wait for the end of the pause, so the thread that pauses has none.
//!
//! # Testing
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weft-sync --release --lib` explores the interleavings of the small scenarios
//! in the `loom_tests` modules. The ordinary tests stress the same code with real threads.

mod claim;
mod counters;
mod current;
mod domain;
mod gate;
mod lease_word;
mod loom;
mod mailbox;
mod prefetch;
mod published;
mod ring;
mod unlogged;

pub use claim::Claim;
pub use counters::StripedCounters;
pub use current::Current;
pub use domain::{
    Domain, Exclusive, GatePassage, PassageLoan, ReadLease, SharedExclusive, SharedPassage, ThreadSeat, WriteLease,
};
pub use gate::{ClosingObservation, Gate, SeatObservation};
pub use mailbox::Mailbox;
pub use prefetch::{prefetch, prefetch_for_write, prefetch_read};
pub use ring::{RingGauge, RingReader, RingWriter, ring};
pub use unlogged::note_unlogged_changes;
