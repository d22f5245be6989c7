//! A domain: cells of data under leases, behind one gate.
//!
//! The crate's documentation has the drawing and the rules; this module turns them into types.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::gate::{ClosingObservation, Gate, SeatObservation};
use crate::lease_word::{LeaseWord, admits_published};
use crate::loom::{ReadAccess, UnsafeCell, WriteAccess};
use crate::prefetch::prefetch_for_write;
use crate::published::{Publications, ReadLeaseToken};
use crate::unlogged::assert_all_logged;

mod loan;
#[cfg(all(test, loom))]
mod loom_tests;
mod shared;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use loan::PassageLoan;
pub use shared::{SharedExclusive, SharedPassage};

/// A cell: the unit of leasing. The word comes first, so that a small header shares its cache line, which
/// [`Domain::prefetch`] fetches.
#[repr(C, align(64))]
struct Cell<H, T> {
    word: LeaseWord,
    /// The cell's own number, so that a lease needs only one pointer to know it.
    index: u32,
    header: H,
    data: UnsafeCell<T>,
}

#[cfg(not(loom))]
const _: () = {
    type Sample = Cell<[u64; 2], [u8; 40]>;
    assert!(align_of::<Sample>() == 64 && size_of::<Sample>() == 64);
    assert!(std::mem::offset_of!(Sample, word) == 0 && std::mem::offset_of!(Sample, header) == 8);
    assert!(size_of::<ReadLease<'_, (), u8>>() <= 2 * size_of::<usize>());
    assert!(size_of::<WriteLease<'_, (), u8>>() <= 2 * size_of::<usize>());
};

/// Makes the type that holds it neither `Send` nor `Sync`.
type StaysOnThread = PhantomData<*mut ()>;

/// Cells of data under leases, behind one gate.
///
/// `H` is a cell's header, readable without a lease (atomics). `T` is a cell's data, reachable only under a lease or by
/// the holder of the [`Exclusive`].
///
/// ```
/// use std::sync::Arc;
/// use weft_sync::Domain;
///
/// let domain = Arc::new(Domain::new(16, 2, |_| ((), 0_u64)));
/// let mut seat = domain.join().expect("a seat is free");
/// {
///     let pass = seat.enter();
///     *pass.try_write(3).expect("cell 3 is free") += 1;
///     assert_eq!(*pass.try_read(3).expect("no writer holds cell 3"), 1);
/// }
/// assert_eq!(seat.exclusive().iter_mut().map(|count| *count).sum::<u64>(), 1);
/// ```
///
/// A lease cannot outlive its pass:
///
/// ```compile_fail,E0505
/// # let domain = std::sync::Arc::new(weft_sync::Domain::new(16, 2, |_| ((), 0_u64)));
/// # let mut seat = domain.join().unwrap();
/// let pass = seat.enter();
/// let lease = pass.try_read(3);
/// drop(pass);
/// drop(lease);
/// ```
///
/// and a seat that is inside cannot request exclusive access:
///
/// ```compile_fail,E0499
/// # let domain = std::sync::Arc::new(weft_sync::Domain::new(16, 2, |_| ((), 0_u64)));
/// # let mut seat = domain.join().unwrap();
/// let pass = seat.enter();
/// let exclusive = seat.exclusive();
/// drop(pass);
/// ```
pub struct Domain<H, T> {
    cells: Box<[Cell<H, T>]>,
    gate: Gate,
    publications: Publications,
}

// SAFETY: rule 6: the data of a cell is reached only under rules 1 to 4; everything else in a domain is `Sync` itself.
unsafe impl<H: Sync, T: Send + Sync> Sync for Domain<H, T> {}

impl<H: Sync, T: Send + Sync> Domain<H, T> {
    /// Creates a domain of `cells` cells for at most `seats` seats at a time. `make` creates each cell from its number.
    pub fn new(cells: usize, seats: usize, mut make: impl FnMut(usize) -> (H, T)) -> Self {
        let count = u32::try_from(cells).expect("a domain has fewer than 2^32 cells");
        let cell = |index: u32| {
            let (header, data) = make(index as usize);
            Cell {
                word: LeaseWord::new(),
                index,
                header,
                data: UnsafeCell::new(data),
            }
        };
        Self {
            cells: (0..count).map(cell).collect(),
            gate: Gate::new(seats),
            publications: Publications::new(seats),
        }
    }

    /// Returns the number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns `true` if there are no cells.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns the number of seats, taken or not.
    #[must_use]
    pub fn seats(&self) -> usize {
        self.gate.seats()
    }

    /// Returns a cell's header; needs no lease. Panics if there is no such cell, like every function that takes a
    /// cell's number.
    #[inline]
    #[must_use]
    pub fn header(&self, cell: usize) -> &H {
        &self.cells[cell].header
    }

    /// Prefetches the cell's first line (lease word and start of the header) for writing. `cell` may be any number.
    #[inline]
    pub fn prefetch(&self, cell: usize) {
        prefetch_for_write(self.cells.as_ptr().wrapping_add(cell).cast());
    }

    /// Returns what an observer sees of a seat of the gate. Waits for nothing, and needs no seat.
    #[must_use]
    pub fn observe_seat(&self, seat: usize) -> SeatObservation {
        self.gate.observe_seat(seat)
    }

    /// Returns the seat that has exclusive access, or that waits for it with the gate closed already; `None` if there
    /// is none. Waits for nothing, and needs no seat.
    #[must_use]
    pub fn observe_closing(&self) -> Option<ClosingObservation> {
        self.gate.observe_closing()
    }

    /// Returns the number of times that a seat was given exclusive access, or waits for it with the gate closed
    /// already. Waits for nothing, and needs no seat.
    #[must_use]
    pub fn closings(&self) -> u64 {
        self.gate.closings()
    }

    /// Takes a seat; a thread that works on the cells needs one. Returns `None` if all are taken.
    ///
    /// A thread with two seats that is inside with one of them must not request exclusive access with the other: it
    /// would deadlock.
    #[must_use]
    pub fn join(self: &Arc<Self>) -> Option<ThreadSeat<H, T>> {
        let index = self.gate.take_seat()?;
        Some(ThreadSeat {
            domain: Arc::clone(self),
            index,
        })
    }
}

/// A thread's membership in a domain; dropping it returns the seat.
pub struct ThreadSeat<H, T> {
    domain: Arc<Domain<H, T>>,
    index: usize,
}

impl<H: Sync, T: Send + Sync> ThreadSeat<H, T> {
    /// Returns the seat's number, below [`Domain::seats`]; no two living seats share one.
    #[inline]
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the seat's domain.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        &self.domain
    }

    /// Enters the gate: while the passage lives, no seat has exclusive access. Sleeps while the gate is closed;
    /// otherwise costs one read-modify-write on the seat's own cache line.
    #[inline]
    #[must_use]
    pub fn enter(&mut self) -> GatePassage<'_, H, T> {
        self.domain.gate.enter(self.index);
        self.pass(false)
    }

    /// Enters like [`Self::enter`], for a seat that rarely shares the gate with another one. While no other seat is
    /// inside, the leases of this passage cost no locked instructions. A seat that enters meanwhile waits for the end
    /// of this passage.
    #[inline]
    #[must_use]
    pub fn enter_alone(&mut self) -> GatePassage<'_, H, T> {
        let biased = self.domain.gate.enter_biased(self.index);
        self.pass(biased)
    }

    /// Returns `true` if another seat waits for exclusive mode, or has it: [`Self::enter`] would wait for its end.
    /// Costs one relaxed load.
    #[inline]
    #[must_use]
    pub fn gate_is_closing(&self) -> bool {
        self.domain.gate.is_closing(self.index)
    }

    #[inline]
    fn pass(&self, biased: bool) -> GatePassage<'_, H, T> {
        GatePassage {
            domain: &self.domain,
            seat: self.index,
            biased,
            loan: None,
            stays: PhantomData,
        }
    }

    /// Closes the gate, sleeps until every other seat is out, and returns access to all cells. Several requesters take
    /// turns in order of arrival.
    #[must_use]
    pub fn exclusive(&mut self) -> Exclusive<'_, H, T> {
        self.domain.gate.close(self.index);
        Exclusive {
            domain: &self.domain,
            seat: self.index,
            is_lent: false,
            stays: PhantomData,
        }
    }
}

impl<H, T> Drop for ThreadSeat<H, T> {
    fn drop(&mut self) {
        self.domain.gate.return_seat(self.index);
    }
}

/// The period in which a seat is inside the gate and may take leases, any number at once.
///
/// No method here waits longer than a bounded spin: a thread that is refused releases its leases and retries later.
pub struct GatePassage<'seat, H, T> {
    domain: &'seat Domain<H, T>,
    seat: usize,
    /// No other seat is inside, so leases need no locked instructions (rule 10).
    biased: bool,
    /// The loan under which the seat is inside. Another seat keeps the gate open then (rule 12).
    loan: Option<&'seat PassageLoan<H, T>>,
    stays: StaysOnThread,
}

impl<H: Sync, T: Send + Sync> GatePassage<'_, H, T> {
    /// Returns the domain.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        self.domain
    }

    /// Returns the number of the seat that is inside.
    #[inline]
    #[must_use]
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Leases a cell for reading, unless a writer holds it or has announced itself.
    #[inline]
    #[must_use]
    pub fn try_read(&self, cell: usize) -> Option<ReadLease<'_, H, T>> {
        let cell = &self.domain.cells[cell];
        let seen = cell.word.peek();
        if self.biased {
            return cell
                .word
                .try_read_biased(seen)
                .then(|| ReadLease::new(cell, ReadLeaseToken::BIASED));
        }
        if !admits_published(seen) && cell.word.try_read_at_once(seen) {
            // Not `then_some`: a lease that was not acquired must not be built, because its drop releases.
            return Some(ReadLease::new(cell, ReadLeaseToken::COUNTED));
        }
        self.try_read_slowly(cell)
    }

    /// Publishes the reader if the cell is hot, otherwise counts it in the word.
    fn try_read_slowly<'a>(&'a self, cell: &'a Cell<H, T>) -> Option<ReadLease<'a, H, T>> {
        if admits_published(cell.word.peek()) {
            let publications = &self.domain.publications;
            let published = publications.publish(self.seat, cell.index, || cell.word.admits_published());
            if let Some(publication) = published {
                return Some(ReadLease::new(cell, publication.into()));
            }
        }
        let (admitted, collided) = cell.word.try_read_slowly();
        if admitted && collided && self.domain.publications.record_collision(self.seat) {
            cell.word.mark_hot();
        }
        admitted.then(|| ReadLease::new(cell, ReadLeaseToken::COUNTED))
    }

    /// Leases a cell for writing, unless another lease of it exists.
    #[inline]
    #[must_use]
    pub fn try_write(&self, cell: usize) -> Option<WriteLease<'_, H, T>> {
        let cell = &self.domain.cells[cell];
        if self.biased {
            return cell.word.try_write_biased().then(|| WriteLease::new(cell, true));
        }
        let was_hot = cell.word.try_write_unpublished()?;
        if was_hot && !self.domain.publications.wait_until_unpublished(cell.index) {
            cell.word.give_up_write();
            return None;
        }
        Some(WriteLease::new(cell, false))
    }

    /// Calls [`try_read`](Self::try_read) after spinning for at most about 1 µs; a refused spin counts as one refusal.
    #[inline]
    #[must_use]
    pub fn read_spinning(&self, cell: usize) -> Option<ReadLease<'_, H, T>> {
        self.domain.cells[cell].word.spin_for_read();
        self.try_read(cell)
    }

    /// Calls [`try_write`](Self::try_write) after spinning for at most a few µs.
    #[inline]
    #[must_use]
    pub fn write_spinning(&self, cell: usize) -> Option<WriteLease<'_, H, T>> {
        self.domain.cells[cell].word.spin_for_write();
        self.try_write(cell)
    }

    /// Announces a writer that keeps being refused. New readers are refused until a writer is admitted, or until about
    /// a thousand of them were refused, so that an announcement whose writer never returns does no harm. The writer
    /// repeats it at each failed retry.
    pub fn announce_writer(&self, cell: usize) {
        self.domain.cells[cell].word.announce_writer();
    }

    /// Ends an announcement whose writer has not returned; for a reader that was refused many times. Does nothing while
    /// a reader or a writer holds the cell.
    pub fn end_announcement(&self, cell: usize) {
        self.domain.cells[cell].word.end_announcement();
    }

    /// Returns `true` if a thread waits for exclusive access; long work then ends early, leaves and enters again. Costs
    /// one relaxed load.
    #[inline]
    #[must_use]
    pub fn gate_is_closing(&self) -> bool {
        self.domain.gate.is_closing(self.seat)
    }
}

impl<H, T> Drop for GatePassage<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        match self.loan {
            None => self.domain.gate.leave(self.seat),
            Some(loan) => loan.leave(),
        }
    }
}

/// Shared access to one cell's data.
///
/// Two words, so that it is passed in registers: storing its parts right before a load of the whole would stall.
pub struct ReadLease<'pass, H, T> {
    cell: &'pass Cell<H, T>,
    /// How the lease was acquired, and so how it is released.
    token: ReadLeaseToken<'pass>,
    access: ReadAccess<T>,
    stays: StaysOnThread,
}

impl<'pass, H, T> ReadLease<'pass, H, T> {
    /// Builds the lease of a caller that has acquired the word for reading, or published itself.
    #[inline]
    fn new(cell: &'pass Cell<H, T>, token: ReadLeaseToken<'pass>) -> Self {
        Self {
            cell,
            token,
            access: cell.data.begin_read(),
            stays: PhantomData,
        }
    }

    /// Returns the cell's header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &H {
        &self.cell.header
    }

    /// Returns the cell's number.
    #[inline]
    #[must_use]
    pub fn cell(&self) -> usize {
        self.cell.index as usize
    }
}

impl<H, T> Deref for ReadLease<'_, H, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let data = self.access.pointer(&self.cell.data);
        // SAFETY: rules 1 and 3: no writer and no `Exclusive` exists while `self` lives; rule 5: their writes are
        // visible.
        unsafe { &*data }
    }
}

impl<H, T> Drop for ReadLease<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        assert_all_logged();
        self.access.end();
        match self.token.publication() {
            Some(publication) => publication.end(),
            None if self.token.is_biased() => self.cell.word.release_read_biased(),
            None => self.cell.word.release_read(),
        }
    }
}

/// Sole access to one cell's data.
///
/// A panic releases it like any other drop; the data then is as the panic left it.
pub struct WriteLease<'pass, H, T> {
    cell: &'pass Cell<H, T>,
    /// The passage is biased.
    biased: bool,
    access: WriteAccess<T>,
    stays: StaysOnThread,
}

impl<'pass, H, T> WriteLease<'pass, H, T> {
    /// Builds the lease of a caller that has acquired the word for writing.
    #[inline]
    fn new(cell: &'pass Cell<H, T>, biased: bool) -> Self {
        Self {
            cell,
            biased,
            access: cell.data.begin_write(),
            stays: PhantomData,
        }
    }

    /// Returns the cell's header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &H {
        &self.cell.header
    }

    /// Returns the cell's number.
    #[inline]
    #[must_use]
    pub fn cell(&self) -> usize {
        self.cell.index as usize
    }
}

impl<H, T> WriteLease<'_, H, T> {
    /// Returns the header and the data separately, for a writer that updates the header while it changes the data.
    #[inline]
    #[must_use]
    pub fn parts_mut(&mut self) -> (&H, &mut T) {
        let header = &self.cell.header;
        let data = self.access.pointer(&self.cell.data);
        // SAFETY: as in `deref_mut`; the header is another field.
        (header, unsafe { &mut *data })
    }
}

impl<H, T> Deref for WriteLease<'_, H, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let data = self.access.pointer(&self.cell.data);
        // SAFETY: rules 2 and 3: no other thread reaches the data while `self` lives; rule 5: earlier writes are
        // visible.
        unsafe { &*data }
    }
}

impl<H, T> DerefMut for WriteLease<'_, H, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        let data = self.access.pointer(&self.cell.data);
        // SAFETY: as in `deref`, and `&mut self` rules out other references from this lease.
        unsafe { &mut *data }
    }
}

impl<H, T> Drop for WriteLease<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        assert_all_logged();
        self.access.end();
        if self.biased {
            self.cell.word.release_write_biased();
        } else {
            self.cell.word.release_write();
        }
    }
}

/// Sole access to the data of every cell. Dropping it opens the gate.
pub struct Exclusive<'seat, H, T> {
    domain: &'seat Domain<H, T>,
    seat: usize,
    /// Lent by a [`SharedExclusive`]: dropping it leaves the gate closed.
    is_lent: bool,
    stays: StaysOnThread,
}

impl<H: Sync, T: Send + Sync> Exclusive<'_, H, T> {
    /// Opens the gate, lets all waiting threads through and closes it again. References borrowed from `self` before end
    /// here, since any data may have changed.
    pub fn pause(&mut self) {
        self.domain.gate.open();
        // The threads that slept at the gate enter before it is closed again.
        self.domain.gate.close(self.seat);
    }

    /// Opens the gate, calls `run`, and closes the gate again. `run` may enter the gate, or close it, with other seats,
    /// also on this thread. References borrowed from `self` before end here, since any data may have changed.
    pub fn open_for<R>(&mut self, run: impl FnOnce() -> R) -> R {
        self.domain.gate.open();
        let result = run();
        self.domain.gate.close(self.seat);
        result
    }

    /// Returns the domain.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        self.domain
    }

    /// Returns a cell's header.
    #[inline]
    #[must_use]
    pub fn header(&self, cell: usize) -> &H {
        self.domain.header(cell)
    }

    /// Returns a cell's data.
    #[inline]
    #[must_use]
    pub fn cell(&self, cell: usize) -> &T {
        let cell = &self.domain.cells[cell];
        let mut access = cell.data.begin_read();
        let data = access.pointer(&cell.data);
        access.end();
        // SAFETY: rule 4: only `self` reaches the data, here for reading; rule 5: earlier writes are visible.
        unsafe { &*data }
    }

    /// Returns a cell's data for changing.
    #[inline]
    #[must_use]
    pub fn cell_mut(&mut self, cell: usize) -> &mut T {
        let data = sole_pointer(&self.domain.cells[cell]);
        // SAFETY: rule 4: only `self` reaches the data, and it is borrowed mutably; rule 5: earlier writes are visible.
        unsafe { &mut *data }
    }

    /// Returns a cell's header and its data for changing.
    #[inline]
    #[must_use]
    pub fn parts_mut(&mut self, cell: usize) -> (&H, &mut T) {
        let cell = &self.domain.cells[cell];
        let data = sole_pointer(cell);
        // SAFETY: as in `cell_mut`; the header is another field.
        (&cell.header, unsafe { &mut *data })
    }

    /// Iterates over the data of all cells in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.domain.len()).map(|cell| self.cell(cell))
    }

    /// Iterates over the data of all cells in order, for changing.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.domain.cells.iter().map(|cell| {
            let data = sole_pointer(cell);
            // SAFETY: rule 4: only `self` reaches the data, and it is borrowed mutably for as long as the iterator's
            // items live; each cell is yielded once, so the items do not overlap. Rule 5: earlier writes are visible.
            unsafe { &mut *data }
        })
    }
}

/// Returns the pointer to a cell's data for the holder of exclusive access; a model checks the access here.
#[inline]
fn sole_pointer<H, T>(cell: &Cell<H, T>) -> *mut T {
    let mut access = cell.data.begin_write();
    let data = access.pointer(&cell.data);
    access.end();
    data
}

impl<H, T> Drop for Exclusive<'_, H, T> {
    fn drop(&mut self) {
        assert_all_logged();
        if !self.is_lent {
            self.domain.gate.open();
        }
    }
}
