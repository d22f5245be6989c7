//! Tests of the functions that modules offer to each other.

use weft_os::atomic::Ordering;

use super::{export_shared_api, shared_api};
use crate::api::{ERR, OK};
use crate::module::{Module, shared};
use crate::objects::context::{Caller, Context};

#[test]
fn a_shared_function_is_found_by_its_name() {
    let owner = Context::new(Module::new("owner.so".to_owned()), Caller::none());
    let user = Context::new(Module::new("user.so".to_owned()), Caller::none());
    owner.module.set_name("owner");
    user.module.set_name("user");
    let function = c"function".as_ptr().cast();
    // SAFETY: the contexts live, and the names are C strings.
    unsafe {
        assert!(shared_api(user.as_pointer(), c"f".as_ptr()).is_null());
        assert_eq!(export_shared_api(owner.as_pointer(), c"f".as_ptr(), function), OK);
        assert_eq!(export_shared_api(user.as_pointer(), c"f".as_ptr(), function), ERR);
        for _ in 0..2 {
            assert_eq!(shared_api(user.as_pointer(), c"f".as_ptr()), function);
        }
    }
    assert_eq!(owner.module.usage.users.load(Ordering::Relaxed), 1);
    assert_eq!(shared::users_of(&owner.module), [user.module.name()]);
    assert_eq!(shared::used_by(&user.module), [owner.module.name()]);
    assert!(shared::users_of(&user.module).is_empty());
}
