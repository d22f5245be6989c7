//! Tests of filters.

use weft_resp::ArgRange;

use super::*;
use crate::session::fake::FakeSession;

unsafe extern "C" fn change(command: *mut FilteredCommand) {
    // SAFETY: the caller passes a command.
    let command = unsafe { &*command };
    assert_eq!(command.client_id, 7);
    assert!(command.insert(command.count(), ModuleString::create(b"last")));
    let refused = ModuleString::create(b"refused");
    assert!(!command.insert(command.count() + 1, refused) && !command.replace(command.count(), refused));
    // SAFETY: the refused word still belongs to this function.
    unsafe { ModuleString::release(refused) };
    assert!(command.replace(0, ModuleString::create(b"first")));
    assert!(command.delete(1) && !command.delete(command.count()));
    assert_eq!(command.word(command.count()), None);
}

unsafe extern "C" fn keep(_: *mut FilteredCommand) {}

fn filtered(words: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let (bytes, mut ranges, mut start) = (words.concat(), Vec::new(), 0);
    for word in words {
        let len = word.len() as u32;
        ranges.push(ArgRange { start, len });
        start += len;
    }
    let changed = apply(&mut FakeSession::default(), 7, Args::new(&bytes, &ranges));
    changed.map(|words| words.args().iter().map(<[u8]>::to_vec).collect())
}

#[test]
fn filters_change_commands_until_they_are_removed() {
    let (module, other) = (Module::new(String::new()), Module::new(String::new()));
    let kept = register(&module, keep, 0);
    assert_eq!(filtered(&[b"set", b"k", b"v"]), None, "nothing was changed");
    assert!(home_commands::are_required_for(HomeReason::CommandFilters));
    let filter = register(&module, change, NO_SELF);
    let expected: Vec<Vec<u8>> = vec![b"first".to_vec(), b"v".to_vec(), b"last".to_vec()];
    assert_eq!(filtered(&[b"set", b"k", b"v"]), Some(expected));
    module.calls_under_way.fetch_add(1, Ordering::Relaxed);
    assert_eq!(
        filtered(&[b"set", b"k", b"v"]),
        None,
        "the module calls the command itself"
    );
    module.calls_under_way.fetch_sub(1, Ordering::Relaxed);
    assert_eq!(count_of(&module), 2);
    assert!(!unregister(&other, filter), "the filter is that of another module");
    assert!(unregister(&module, filter) && !unregister(&module, filter));
    assert!(unregister(&module, kept));
    assert!(!home_commands::are_required_for(HomeReason::CommandFilters));
}
