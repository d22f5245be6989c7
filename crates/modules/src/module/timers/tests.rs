//! Tests of timers. All tests of a process share the timers, so they run in one function.

use super::*;
use crate::session::fake::FakeSession;
use weft_os::atomic::AtomicUsize;

static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count(_context: *mut Context, data: *mut c_void) {
    CALLS.fetch_add(data as usize, Ordering::Relaxed);
}

#[test]
fn timers_are_called_once_they_are_due() {
    let (module, other) = (Module::new(String::new()), Module::new(String::new()));
    let data = std::ptr::without_provenance_mut(3);
    let (first, is_first) = create(&module, 0, 1000, count, data);
    assert!(is_first && next_due_us() == Some(first));
    let (second, is_first) = create(&module, 0, 500, count, data);
    assert!(is_first && second < first);
    assert!(find(&other, second).is_none() && stop(&other, second).is_none());
    let (remaining_ms, found) = find(&module, first).expect("it waits");
    assert!(remaining_ms <= 1000 && found == data);
    assert!(pop_due(clock::unix_us()).is_none(), "none is due");
    pop_due(second).expect("it is due").run(&mut FakeSession::default());
    assert_eq!(CALLS.load(Ordering::Relaxed), 3);
    assert!(stop(&module, second).is_none(), "it has been called");
    assert_eq!(module.usage.timers.load(Ordering::Relaxed), 1);
    assert_eq!(stop(&module, first), Some(data));
    assert_eq!((module.usage.timers.load(Ordering::Relaxed), next_due_us()), (0, None));
}
