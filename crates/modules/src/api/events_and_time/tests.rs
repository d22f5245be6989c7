//! Tests of the functions for what happens later.

use super::*;
use crate::errno;

unsafe extern "C" fn ignore(_fd: c_int, _data: *mut c_void, _mask: c_int) {}

fn last_errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[test]
fn descriptors_and_masks_are_checked() {
    let none = std::ptr::null_mut();
    assert_eq!(
        (event_loop_add(-1, READABLE, Some(ignore), none), last_errno()),
        (ERR, Some(libc::ERANGE))
    );
    assert_eq!(
        (event_loop_add(0, 4, Some(ignore), none), last_errno()),
        (ERR, Some(libc::EINVAL))
    );
    assert_eq!(
        (event_loop_add(0, READABLE, None, none), last_errno()),
        (ERR, Some(libc::EINVAL))
    );
    assert_eq!((event_loop_del(0, 8), last_errno()), (ERR, Some(libc::EINVAL)));
    errno::set(libc::EIO);
    assert_eq!(
        (event_loop_del(0, WRITABLE), last_errno()),
        (OK, Some(0)),
        "it was not watched"
    );
    assert_eq!(
        (event_loop_add_one_shot(None, none), last_errno()),
        (ERR, Some(libc::EINVAL))
    );
}
