//! A domain: cells of shared data under leases, behind one gate.
//!
//! The crate's essay has the drawing and the rules; this file turns them into types.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::gate::Gate;
use crate::lease_word::{LeaseWord, admits_published};
use crate::loom::{ReadAccess, UnsafeCell, WriteAccess};
use crate::prefetch::prefetch_for_write;
use crate::published::{Publications, ReadLeaseToken};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;

/// One lease's worth of data. The word comes first, so that a small header shares its cache line, which
/// [`Domain::prefetch`] fetches.
#[repr(C, align(64))]
struct Cell<H, T> {
    word: LeaseWord,
    /// The cell's own number, so that a lease is one pointer and still knows it.
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

/// Cells of shared data under leases, behind one gate.
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
///     *pass.try_write(3).expect("nobody holds cell 3") += 1;
///     assert_eq!(*pass.try_read(3).expect("nobody writes cell 3"), 1);
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
/// and a seat that is inside cannot ask to be alone:
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

// SAFETY: rule 6; the data of a cell is reached only under rules 1 to 4, everything else in a domain is `Sync` itself.
unsafe impl<H: Sync, T: Send + Sync> Sync for Domain<H, T> {}

impl<H: Sync, T: Send + Sync> Domain<H, T> {
    /// A domain of `cells` cells, made by `make` from their numbers, for at most `seats` seats at a time.
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

    /// How many cells there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are no cells at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// How many seats there are, taken or not.
    #[must_use]
    pub fn seats(&self) -> usize {
        self.gate.seats()
    }

    /// A cell's header; needs no lease. Panics if there is no such cell, like everything that takes a cell's number.
    #[inline]
    #[must_use]
    pub fn header(&self, cell: usize) -> &H {
        &self.cells[cell].header
    }

    /// Fetches the cell's first line (lease word and the begin of the header) for writing. Any number will do.
    #[inline]
    pub fn prefetch(&self, cell: usize) {
        prefetch_for_write(self.cells.as_ptr().wrapping_add(cell).cast());
    }

    /// Takes a seat: one per thread that works on the cells. `None` if all are taken.
    ///
    /// A thread with two seats that is inside with one must not ask for the exclusive with the other: it would wait for
    /// itself.
    #[must_use]
    pub fn join(self: &Arc<Self>) -> Option<ThreadSeat<H, T>> {
        let index = self.gate.take_seat()?;
        Some(ThreadSeat {
            domain: Arc::clone(self),
            index,
        })
    }
}

/// A thread's place in a domain; dropping it gives the place back.
pub struct ThreadSeat<H, T> {
    domain: Arc<Domain<H, T>>,
    index: usize,
}

impl<H: Sync, T: Send + Sync> ThreadSeat<H, T> {
    /// The seat's number, below [`Domain::seats`]; no two living seats share one.
    #[inline]
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The domain it belongs to.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        &self.domain
    }

    /// Passes the gate: while the pass lives nobody has the exclusive. Sleeps while the gate is closed, otherwise costs
    /// one read-modify-write on the seat's own cache line.
    #[inline]
    #[must_use]
    pub fn enter(&mut self) -> GatePassage<'_, H, T> {
        self.domain.gate.enter(self.index);
        self.pass(false)
    }

    /// The same for a seat that hardly ever has company: while no other seat is inside, its leases cost no locked
    /// instructions. A seat that enters meanwhile waits for the end of this pass.
    #[inline]
    #[must_use]
    pub fn enter_alone(&mut self) -> GatePassage<'_, H, T> {
        let alone = self.domain.gate.enter_alone(self.index);
        self.pass(alone)
    }

    #[inline]
    fn pass(&self, alone: bool) -> GatePassage<'_, H, T> {
        GatePassage {
            domain: &self.domain,
            seat: self.index,
            alone,
            stays: PhantomData,
        }
    }

    /// Closes the gate, waits asleep until every other seat is out, and owns everything. Several requesters take turns
    /// in order of arrival.
    #[must_use]
    pub fn exclusive(&mut self) -> Exclusive<'_, H, T> {
        self.domain.gate.close(self.index);
        Exclusive {
            domain: &self.domain,
            seat: self.index,
            stays: PhantomData,
        }
    }
}

impl<H, T> Drop for ThreadSeat<H, T> {
    fn drop(&mut self) {
        self.domain.gate.return_seat(self.index);
    }
}

/// A seat that is inside: the time in which leases may be taken, any number at once.
///
/// Nothing here waits longer than a bounded spin: who is refused releases what it has and comes back later.
pub struct GatePassage<'seat, H, T> {
    domain: &'seat Domain<H, T>,
    seat: usize,
    /// No other seat is inside (rule 10).
    alone: bool,
    stays: StaysOnThread,
}

impl<H: Sync, T: Send + Sync> GatePassage<'_, H, T> {
    /// The domain it is inside of.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        self.domain
    }

    /// The number of the seat that is inside.
    #[inline]
    #[must_use]
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Leases a cell for reading, unless a writer is in or announced.
    #[inline]
    #[must_use]
    pub fn try_read(&self, cell: usize) -> Option<ReadLease<'_, H, T>> {
        let cell = &self.domain.cells[cell];
        let seen = cell.word.peek();
        if self.alone {
            return cell
                .word
                .try_read_alone(seen)
                .then(|| ReadLease::of_taken(cell, ReadLeaseToken::ALONE));
        }
        if !admits_published(seen) && cell.word.try_read_at_once(seen) {
            // Not `then_some`: a lease that was not taken must not be built, for its drop releases.
            return Some(ReadLease::of_taken(cell, ReadLeaseToken::COUNTED));
        }
        self.try_read_slowly(cell)
    }

    /// Publishes the reader if the cell is hot, or counts it in the word.
    fn try_read_slowly<'a>(&'a self, cell: &'a Cell<H, T>) -> Option<ReadLease<'a, H, T>> {
        if admits_published(cell.word.peek()) {
            let publications = &self.domain.publications;
            let published = publications.publish(self.seat, cell.index, || cell.word.admits_published());
            if let Some(publication) = published {
                return Some(ReadLease::of_taken(cell, publication.into()));
            }
        }
        let (admitted, collided) = cell.word.try_read_slowly();
        if admitted && collided && self.domain.publications.collided(self.seat) {
            cell.word.share();
        }
        admitted.then(|| ReadLease::of_taken(cell, ReadLeaseToken::COUNTED))
    }

    /// Leases a cell for writing, unless anybody is in.
    #[inline]
    #[must_use]
    pub fn try_write(&self, cell: usize) -> Option<WriteLease<'_, H, T>> {
        let cell = &self.domain.cells[cell];
        if self.alone {
            return cell.word.try_write_alone().then(|| WriteLease::of_taken(cell, true));
        }
        let shared = cell.word.try_write_unpublished()?;
        if shared && !self.domain.publications.are_gone(cell.index) {
            cell.word.give_up_write();
            return None;
        }
        Some(WriteLease::of_taken(cell, false))
    }

    /// [`try_read`](Self::try_read), spinning for at most about 1 µs; a refused spin counts as one refusal.
    #[inline]
    #[must_use]
    pub fn read_spinning(&self, cell: usize) -> Option<ReadLease<'_, H, T>> {
        self.domain.cells[cell].word.spin_for_read();
        self.try_read(cell)
    }

    /// [`try_write`](Self::try_write), spinning for at most a few µs.
    #[inline]
    #[must_use]
    pub fn write_spinning(&self, cell: usize) -> Option<WriteLease<'_, H, T>> {
        self.domain.cells[cell].word.spin_for_write();
        self.try_write(cell)
    }

    /// Says that a writer keeps being refused: new readers are refused until a writer got in, or until about a thousand
    /// of them were refused, so that an announcement nobody follows up does no harm. Repeat it at each failed retry.
    pub fn announce_writer(&self, cell: usize) {
        self.domain.cells[cell].word.announce_writer();
    }

    /// Ends an announcement that no writer has followed up: for a reader that was refused many times. Does nothing
    /// while a reader or a writer is in.
    pub fn end_announcement(&self, cell: usize) {
        self.domain.cells[cell].word.end_announcement();
    }

    /// Whether somebody waits to be alone: long work ends early then, leaves and enters again. One relaxed load.
    #[inline]
    #[must_use]
    pub fn gate_is_closing(&self) -> bool {
        self.domain.gate.is_closing(self.seat)
    }
}

impl<H, T> Drop for GatePassage<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        self.domain.gate.leave(self.seat);
    }
}

/// Shared access to one cell's data.
///
/// Two words, so that it travels in registers: stores of its parts right before a load of the whole would stall.
pub struct ReadLease<'pass, H, T> {
    cell: &'pass Cell<H, T>,
    /// How its end is told.
    taken: ReadLeaseToken<'pass>,
    access: ReadAccess<T>,
    stays: StaysOnThread,
}

impl<'pass, H, T> ReadLease<'pass, H, T> {
    /// The caller has taken the word for reading, or published itself, and gives that to the lease.
    #[inline]
    fn of_taken(cell: &'pass Cell<H, T>, taken: ReadLeaseToken<'pass>) -> Self {
        Self {
            cell,
            taken,
            access: cell.data.begin_read(),
            stays: PhantomData,
        }
    }

    /// The cell's header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &H {
        &self.cell.header
    }

    /// The cell's number.
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
        // SAFETY: rules 1 and 3: no writer and no exclusive while `self` lives; rule 5: their writes are visible.
        unsafe { &*data }
    }
}

impl<H, T> Drop for ReadLease<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        self.access.end();
        match self.taken.publication() {
            Some(publication) => publication.end(),
            None if self.taken.is_alone() => self.cell.word.release_read_alone(),
            None => self.cell.word.release_read(),
        }
    }
}

/// Sole access to one cell's data.
///
/// A panic while it is held releases it like any other end; the data is then what the panic left.
pub struct WriteLease<'pass, H, T> {
    cell: &'pass Cell<H, T>,
    /// Whether the pass is alone.
    alone: bool,
    access: WriteAccess<T>,
    stays: StaysOnThread,
}

impl<'pass, H, T> WriteLease<'pass, H, T> {
    /// The caller has taken the word for writing and gives the taking to the lease.
    #[inline]
    fn of_taken(cell: &'pass Cell<H, T>, alone: bool) -> Self {
        Self {
            cell,
            alone,
            access: cell.data.begin_write(),
            stays: PhantomData,
        }
    }

    /// The cell's header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &H {
        &self.cell.header
    }

    /// The cell's number.
    #[inline]
    #[must_use]
    pub fn cell(&self) -> usize {
        self.cell.index as usize
    }
}

impl<H, T> WriteLease<'_, H, T> {
    /// Header and data apart, for a writer that keeps the header up to date while it changes the data.
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
        // SAFETY: rules 2 and 3: nobody else reaches the data while `self` lives; rule 5: their writes are visible.
        unsafe { &*data }
    }
}

impl<H, T> DerefMut for WriteLease<'_, H, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        let data = self.access.pointer(&self.cell.data);
        // SAFETY: as in `deref`, and `&mut self` keeps this lease's own references apart.
        unsafe { &mut *data }
    }
}

impl<H, T> Drop for WriteLease<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        self.access.end();
        if self.alone {
            self.cell.word.release_write_alone();
        } else {
            self.cell.word.release_write();
        }
    }
}

/// Sole access to the data of every cell. Dropping it opens the gate.
pub struct Exclusive<'seat, H, T> {
    domain: &'seat Domain<H, T>,
    seat: usize,
    stays: StaysOnThread,
}

impl<H: Sync, T: Send + Sync> Exclusive<'_, H, T> {
    /// Lets everybody through the gate who waits there, and is alone again when they are out. Nothing that was borrowed
    /// from `self` before lasts: anything may have changed.
    pub fn pause(&mut self) {
        self.domain.gate.open();
        // Whoever slept at the gate goes in before it is closed again.
        self.domain.gate.close(self.seat);
    }

    /// The domain it owns.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        self.domain
    }

    /// A cell's header.
    #[inline]
    #[must_use]
    pub fn header(&self, cell: usize) -> &H {
        self.domain.header(cell)
    }

    /// A cell's data.
    #[inline]
    #[must_use]
    pub fn cell(&self, cell: usize) -> &T {
        let cell = &self.domain.cells[cell];
        let mut access = cell.data.begin_read();
        let data = access.pointer(&cell.data);
        access.end();
        // SAFETY: rule 4: only `self` reaches the data, here shared; rule 5: earlier writes are visible.
        unsafe { &*data }
    }

    /// A cell's data, to change.
    #[inline]
    #[must_use]
    pub fn cell_mut(&mut self, cell: usize) -> &mut T {
        let data = sole_pointer(&self.domain.cells[cell]);
        // SAFETY: rule 4: only `self` reaches the data, and it is borrowed mutably; rule 5: earlier writes are visible.
        unsafe { &mut *data }
    }

    /// A cell's header and its data, to change.
    #[inline]
    #[must_use]
    pub fn parts_mut(&mut self, cell: usize) -> (&H, &mut T) {
        let cell = &self.domain.cells[cell];
        let data = sole_pointer(cell);
        // SAFETY: as in `cell_mut`; the header is another field.
        (&cell.header, unsafe { &mut *data })
    }

    /// The data of all cells in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.domain.len()).map(|cell| self.cell(cell))
    }

    /// The data of all cells in order, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.domain.cells.iter().map(|cell| {
            let data = sole_pointer(cell);
            // SAFETY: rule 4: only `self` reaches the data, and it is borrowed mutably for as long as the iterator's
            // items live; each cell comes up once, so that the items do not overlap. Rule 5: earlier writes are
            // visible.
            unsafe { &mut *data }
        })
    }
}

/// The pointer to a cell's data for the holder of the exclusive; in a model the access is checked at this moment.
#[inline]
fn sole_pointer<H, T>(cell: &Cell<H, T>) -> *mut T {
    let mut access = cell.data.begin_write();
    let data = access.pointer(&cell.data);
    access.end();
    data
}

impl<H, T> Drop for Exclusive<'_, H, T> {
    fn drop(&mut self) {
        self.domain.gate.open();
    }
}
