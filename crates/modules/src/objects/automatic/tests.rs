//! Tests of automatic memory.

use std::cell::Cell;

use super::{AutomaticMemory, AutomaticObject};

thread_local! {
    static FREED: Cell<usize> = const { Cell::new(0) };
}

/// An object with an address of its own.
struct Object {
    _byte: u8,
}

impl AutomaticObject for Object {
    unsafe fn free(pointer: *mut Self) {
        // SAFETY: the tests create all objects as boxes.
        drop(unsafe { Box::from_raw(pointer) });
        FREED.set(FREED.get() + 1);
    }
}

#[test]
fn owns_objects_only_once_enabled() {
    let memory = AutomaticMemory::default();
    let early = Box::into_raw(Box::new(Object { _byte: 0 }));
    memory.own(early);
    assert!(!memory.disown(early));
    memory.enable();
    let objects: Vec<*mut Object> = (0..5).map(|_| Box::into_raw(Box::new(Object { _byte: 0 }))).collect();
    objects.iter().for_each(|object| memory.own(*object));
    memory.own(std::ptr::null_mut::<Object>());
    assert!(memory.disown(objects[1]));
    assert!(!memory.disown(objects[1]));
    memory.free_all();
    assert_eq!(FREED.get(), 4);
    memory.own(early);
    memory.own(objects[1]);
    drop(memory);
    assert_eq!(FREED.get(), 6);
}
