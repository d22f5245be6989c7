//! Sessions that one thread lends to another one, which uses them while the first one waits.
//!
//! - The thread "weft-modules" of the server lends its session to a thread of a module that has asked for the lock of a
//!   thread-safe context ([`Loan`]).
//! - A thread in exclusive mode that has to call a module lends its session to the home worker
//!   ([`run_on_other_thread`]).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::{Condvar, Mutex};

use super::{CURRENT, Session, pop_session, push_session};

/// A pointer to a session, on its way to another thread.
struct LentSession(NonNull<dyn Session>);

// SAFETY: the thread that has lent the session sleeps while another one uses it (rule 4), and one thread at a time has
// the pointer. What a session consists of belongs to no thread by itself: the owner's state, and exclusive mode.
unsafe impl Send for LentSession {}

/// Removes the lifetime of a session. The caller ensures that nothing uses the pointer after the borrow.
fn erase(session: &mut dyn Session) -> LentSession {
    // SAFETY: only the lifetime changes.
    LentSession(unsafe {
        std::mem::transmute::<NonNull<dyn Session + '_>, NonNull<dyn Session + 'static>>(NonNull::from(session))
    })
}

// ---- the lock of thread-safe contexts ------------------------------------------------------------------------------

/// The state of a request for the lock.
enum LoanState {
    Requested,
    Granted(LentSession),
    Held,
    Returned,
}

/// A request of a thread of a module for the lock.
pub struct Loan {
    state: Mutex<LoanState>,
    changed: Condvar,
}

/// The requests that the server has not taken yet.
struct Requests {
    waiting: Mutex<VecDeque<Arc<Loan>>>,
    added: Condvar,
}

static REQUESTS: Requests = Requests {
    waiting: Mutex::new(VecDeque::new()),
    added: Condvar::new(),
};

/// The number of threads of modules that have a session, or wait for one.
static LENT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The loans that this thread holds. More than one if it locks again what it has locked.
    static HELD: RefCell<Vec<Option<Arc<Loan>>>> = const { RefCell::new(Vec::new()) };
}

/// Waits until the server lends this thread a session. A thread that has one keeps it.
pub fn lock() {
    if CURRENT.get().is_some() {
        HELD.with_borrow_mut(|held| held.push(None));
        return;
    }
    LENT.fetch_add(1, Ordering::AcqRel);
    let loan = Arc::new(Loan {
        state: Mutex::new(LoanState::Requested),
        changed: Condvar::new(),
    });
    REQUESTS.waiting.lock().push_back(loan.clone());
    REQUESTS.added.notify_one();
    let session = {
        let mut state = loan.state.lock();
        loop {
            match std::mem::replace(&mut *state, LoanState::Held) {
                LoanState::Granted(session) => break session,
                other => *state = other,
            }
            loan.changed.wait(&mut state);
        }
    };
    push_session(Some(session.0));
    HELD.with_borrow_mut(|held| held.push(Some(loan)));
}

/// Returns the session that [`lock`] has got. Returns `false` if this thread has none.
pub fn unlock() -> bool {
    let Some(held) = HELD.with_borrow_mut(Vec::pop) else {
        return false;
    };
    if let Some(loan) = held {
        pop_session();
        *loan.state.lock() = LoanState::Returned;
        LENT.fetch_sub(1, Ordering::AcqRel);
        loan.changed.notify_one();
    }
    true
}

/// Returns `true` if [`unlock`] would return the session of this thread to the server.
pub fn is_last_lock() -> bool {
    HELD.with_borrow(|held| matches!(held.last(), Some(Some(_))))
}

/// Returns `true` if this thread holds the lock.
pub fn is_locked() -> bool {
    HELD.with_borrow(|held| !held.is_empty())
}

/// Returns `true` if some thread of a module has a session, or waits for one.
pub fn is_lent() -> bool {
    LENT.load(Ordering::Acquire) > 0
}

/// Returns the next request for the lock; `None` after this time.
pub fn next_request(timeout: Duration) -> Option<Arc<Loan>> {
    let mut waiting = REQUESTS.waiting.lock();
    if waiting.is_empty() {
        REQUESTS.added.wait_for(&mut waiting, timeout);
    }
    waiting.pop_front()
}

impl Loan {
    /// Lends a session to the thread that has made this request, and waits until it returns it.
    pub fn lend(&self, session: &mut dyn Session) {
        let mut state = self.state.lock();
        *state = LoanState::Granted(erase(session));
        self.changed.notify_one();
        while !matches!(*state, LoanState::Returned) {
            self.changed.wait(&mut state);
        }
    }
}

// ---- the home worker -----------------------------------------------------------------------------------------------

/// The state of work for another thread.
enum OfferState {
    /// The other thread may begin.
    Offered(LentSession),
    /// The owner uses its session for a moment.
    Paused,
    /// The other thread has begun, or the owner has given up.
    Taken,
    /// The other thread has ended.
    Done,
}

struct Offer {
    state: Mutex<OfferState>,
    changed: Condvar,
}

/// The interval at which the owner of an offered session uses it while no thread has begun.
const OFFER_INTERVAL: Duration = Duration::from_millis(1);

/// A job for another thread.
pub type LentJob = Box<dyn FnOnce() + Send>;

/// Ends an offer, also if the work panics.
struct EndedOffer<'o>(&'o Offer);

impl Drop for EndedOffer<'_> {
    fn drop(&mut self) {
        *self.0.state.lock() = OfferState::Done;
        self.0.changed.notify_all();
    }
}

/// Runs `run` with this session on another thread, to which `send` passes the job, and waits for its result. As long as
/// that thread has not begun, `wait` is called at intervals: it lets others through the gate, one of which may be the
/// other thread, and returns `false` to give up. Returns `None` then.
pub fn run_on_other_thread<R: Send>(
    session: &mut dyn Session,
    run: impl FnOnce(&mut dyn Session) -> R + Send,
    send: impl FnOnce(LentJob),
    mut wait: impl FnMut(&mut dyn Session) -> bool,
) -> Option<R> {
    let offer = Arc::new(Offer {
        state: Mutex::new(OfferState::Offered(erase(session))),
        changed: Condvar::new(),
    });
    let mut result = None;
    let target = &mut result;
    let taken = offer.clone();
    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
        let mut session = {
            let mut state = taken.state.lock();
            loop {
                match std::mem::replace(&mut *state, OfferState::Taken) {
                    OfferState::Offered(session) => break session,
                    OfferState::Paused => {
                        *state = OfferState::Paused;
                        taken.changed.wait(&mut state);
                    }
                    OfferState::Taken | OfferState::Done => return,
                }
            }
        };
        let _ended = EndedOffer(&taken);
        // SAFETY: the owner waits until the offer has ended, and does not use its session (rule 4).
        let session = unsafe { session.0.as_mut() };
        *target = Some(run(session));
    });
    // SAFETY: only the lifetime changes. What the job borrows is used only after the offer was taken, and this function
    // does not return before that has ended; a job that runs later finds the offer taken and uses nothing.
    send(unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, LentJob>(job) });
    loop {
        let mut state = offer.state.lock();
        match &*state {
            OfferState::Done => break,
            OfferState::Offered(_) => {
                offer.changed.wait_for(&mut state, OFFER_INTERVAL);
                if !matches!(*state, OfferState::Offered(_)) {
                    continue;
                }
                *state = OfferState::Paused;
                drop(state);
                let goes_on = wait(session);
                let mut state = offer.state.lock();
                *state = match goes_on {
                    true => OfferState::Offered(erase(session)),
                    false => OfferState::Taken,
                };
                offer.changed.notify_all();
                if !goes_on {
                    return None;
                }
            }
            OfferState::Paused | OfferState::Taken => offer.changed.wait(&mut state),
        }
    }
    result
}

#[cfg(test)]
mod tests;
