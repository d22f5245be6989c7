//! Tests of memory for modules.

use std::ffi::CStr;
use std::hint::black_box;

use super::{alloc, calloc_or_abort, free_memory, realloc_or_abort, strdup, try_alloc, try_calloc, try_realloc};

#[test]
fn memory_is_that_of_the_allocator() {
    let memory = alloc(0);
    assert!(!memory.is_null());
    let zeros = calloc_or_abort(10, 3).cast::<u8>();
    // SAFETY: all pointers are from the functions under test, and of the sizes that are used.
    unsafe {
        assert!((0..30).all(|index| zeros.add(index).read() == 0));
        let longer = realloc_or_abort(memory, 100).cast::<u8>();
        longer.write_bytes(7, 100);
        let longest = try_realloc(longer.cast(), 1000).cast::<u8>();
        assert!((0..100).all(|index| longest.add(index).read() == 7));
        assert!(realloc_or_abort(longest.cast(), 0).is_null());
        let from_null = realloc_or_abort(std::ptr::null_mut(), 0);
        assert!(!from_null.is_null());
        free_memory(from_null);
        free_memory(zeros.cast());
        free_memory(std::ptr::null_mut());
        let text = strdup(c"text".as_ptr());
        assert_eq!(CStr::from_ptr(text), c"text");
        free_memory(text.cast());
    }
}

#[test]
fn too_much_memory_is_refused() {
    let too_much = usize::MAX / 2;
    // The optimiser may assume that memory which nothing uses is there.
    assert!(black_box(try_alloc(too_much)).is_null());
    assert!(black_box(try_calloc(too_much, 4)).is_null());
    let memory = try_calloc(0, 4);
    assert!(!memory.is_null());
    // SAFETY: the memory is from the function under test.
    unsafe {
        assert!(black_box(try_realloc(memory, too_much)).is_null());
        free_memory(memory);
    }
}
