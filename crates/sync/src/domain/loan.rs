//! Passages that a seat lends: while it is inside the gate, other seats are inside with it.
//!
//! ```text
//!   lender:  enter ── GatePassage ── lend( ─────────── run ─────────── ) ── leave     the gate sees this seat only
//!                                       └──▶ enter_lent ── leases ── end              the others never wait there
//! ```
//!
//! A seat that closes the gate waits for the lender, and the lender waits for the seats that are inside under its loan.
//! If these passed the gate themselves, one of them could sleep there until the closer is done, and none of the three
//! would ever continue.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{Domain, GatePassage, ThreadSeat};
use crate::loom::{Condvar, Mutex, lock, wait};

/// A place where a seat lends its passages to others, one passage at a time.
pub struct PassageLoan<H, T> {
    domain: Arc<Domain<H, T>>,
    state: Mutex<LoanState>,
    /// The last passage under the closed loan has ended.
    emptied: Condvar,
}

struct LoanState {
    /// `true` while a passage is lent.
    is_open: bool,
    /// The number of passages under the loan.
    inside: usize,
}

/// Ends a loan, also if the lender panics.
struct LoanEnd<'l, H, T>(&'l PassageLoan<H, T>);

impl<H: Sync, T: Send + Sync> PassageLoan<H, T> {
    /// Creates a place for loans among the seats of `domain`.
    #[must_use]
    pub fn new(domain: &Arc<Domain<H, T>>) -> Self {
        Self {
            domain: Arc::clone(domain),
            state: Mutex::new(LoanState {
                is_open: false,
                inside: 0,
            }),
            emptied: Condvar::new(),
        }
    }
}

impl<H, T> PassageLoan<H, T> {
    /// Ends a passage under the loan.
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.inside -= 1;
        if state.inside == 0 && !state.is_open {
            self.emptied.notify_one();
        }
    }
}

impl<H, T> Drop for LoanEnd<'_, H, T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_open = false;
        while state.inside > 0 {
            state = wait(&self.0.emptied, state);
        }
    }
}

impl<H: Sync, T: Send + Sync> GatePassage<'_, H, T> {
    /// Calls `run`. Other seats may be inside under the loan until it returns ([`ThreadSeat::enter_lent`]); then waits
    /// until they are out.
    ///
    /// # Panics
    /// If this passage is biased or lent itself, if a passage is lent to `loan` already, or if `loan` belongs to
    /// another domain.
    pub fn lend<R>(&self, loan: &PassageLoan<H, T>, run: impl FnOnce() -> R) -> R {
        assert!(
            std::ptr::eq(self.domain, &raw const *loan.domain),
            "a passage is lent to seats of its own domain"
        );
        assert!(
            !self.biased && self.loan.is_none(),
            "only a seat that is inside as usual lends its passage"
        );
        let mut state = lock(&loan.state);
        assert!(!state.is_open && state.inside == 0, "one passage is lent at a time");
        state.is_open = true;
        drop(state);
        let _end = LoanEnd(loan);
        run()
    }
}

impl<H: Sync, T: Send + Sync> ThreadSeat<H, T> {
    /// Enters under a loan, without passing the gate. Returns `None` if no passage is lent.
    ///
    /// # Panics
    /// If `loan` belongs to another domain.
    #[must_use]
    pub fn enter_lent<'a>(&'a mut self, loan: &'a PassageLoan<H, T>) -> Option<GatePassage<'a, H, T>> {
        assert!(
            Arc::ptr_eq(&self.domain, &loan.domain),
            "a passage is lent to seats of its own domain"
        );
        let mut state = lock(&loan.state);
        if !state.is_open {
            return None;
        }
        state.inside += 1;
        Some(GatePassage {
            domain: &self.domain,
            seat: self.index,
            biased: false,
            loan: Some(loan),
            stays: PhantomData,
        })
    }
}
