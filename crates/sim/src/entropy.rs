//! Random bytes of the operating system, replaced by those of a seed.
//!
//! The standard library and the crate `getrandom` call the C library's `getrandom`, for the keys of hash tables among
//! others. The order of a hash table must not differ between two runs of one seed, so this program defines the
//! function.
//!
//! Rule 1: the caller passes a buffer of at least `length` bytes, as the C library's function requires.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::random_state::{RandomSource, set_random_source};

static STATE: AtomicU64 = AtomicU64::new(0);

/// The seeds of the hash tables of the crate `ahash`. Its own ones are addresses, which differ from run to run.
struct HasherSeeds;

impl RandomSource for HasherSeeds {
    fn gen_hasher_seed(&self) -> usize {
        next_random().usize(..)
    }
}

/// Sets the seed. Call it before anything draws random bytes.
///
/// # Panics
/// If there is a hash table of the crate `ahash` already.
pub fn seed(seed: u64) {
    STATE.store(seed, Ordering::SeqCst);
    let is_first = set_random_source(HasherSeeds).is_ok();
    assert!(is_first, "a hash table has a seed already");
}

fn next_random() -> fastrand::Rng {
    fastrand::Rng::with_seed(STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst))
}

/// Replaces the C library's function of the same name.
// SAFETY: the signature is that of the C library, and no other object of this program defines the symbol.
#[unsafe(no_mangle)]
pub extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    let mut random = next_random();
    for at in 0..length {
        // SAFETY: rule 1.
        unsafe { buffer.cast::<u8>().add(at).write(random.u8(..)) };
    }
    length as isize
}
