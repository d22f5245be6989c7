//! Tests of identifiers and of reading callbacks.

use super::*;

#[test]
fn an_identifier_holds_the_name_and_the_version() {
    let id = TypeId::new(b"test__-09", 1023).expect("a valid name");
    assert_eq!(id.name(), "test__-09");
    assert_eq!(id.encoding_version(), 1023);
    assert_eq!(TypeId::new(b"AAAAAAAAB", 0), Some(TypeId(1 << 10)));
}

#[test]
fn invalid_names_and_versions_have_no_identifier() {
    assert_eq!(TypeId::new(b"eightlet", 0), None);
    assert_eq!(TypeId::new(b"tenletters", 0), None);
    assert_eq!(TypeId::new(b"has space", 0), None);
    assert_eq!(TypeId::new(b"test__-09", 1024), None);
    assert_eq!(TypeId::new(b"test__-09", -1), None);
    // Zero means in the API that there is no identifier.
    assert_eq!(TypeId::new(b"AAAAAAAAA", 0), None);
}

#[test]
fn only_the_fields_of_the_version_are_read() {
    unsafe extern "C" fn free(_: *mut c_void) {}
    unsafe extern "C" fn aux_save(_: *mut ModuleIo, _: c_int) {}
    let mut methods = TypeMethods {
        version: 1,
        free: Some(free),
        aux_save: Some(aux_save),
        aux_save_triggers: AUX_AFTER_KEYS,
        aux_save2: Some(aux_save),
        ..TypeMethods::default()
    };
    // SAFETY: the structure has all fields.
    let mut read = |version| unsafe {
        methods.version = version;
        TypeMethods::read(&raw const methods)
    };
    assert!(read(0).is_none());
    let first = read(1).expect("version 1");
    assert!(first.free.is_some() && first.aux_save.is_none() && first.aux_save_triggers == 0);
    let second = read(2).expect("version 2");
    assert!(second.aux_save.is_some() && second.aux_save_triggers == AUX_AFTER_KEYS && second.aux_save2.is_none());
    assert!(read(5).expect("version 5").aux_save2.is_some());
    assert!(read(6).expect("a newer version").aux_save2.is_some());
}

#[test]
fn a_name_belongs_to_one_type() {
    let module = Module::new("/tmp/types.so".to_owned());
    let (first, other) = (TypeId::new(b"once-only", 1), TypeId::new(b"once-only", 2));
    let created = create(&module, first.expect("valid"), TypeMethods::default()).expect("the name is free");
    assert!(create(&module, other.expect("valid"), TypeMethods::default()).is_none());
    assert!(find(other.expect("valid")).is_some_and(|found| std::ptr::eq(found, created)));
    assert!(find_by_name(b"ONCE-only", true).is_some() && find_by_name(b"ONCE-only", false).is_none());
    assert_eq!(count_of(&module), 1);
    remove_types_of(&Arc::downgrade(&module));
    assert!(find(first.expect("valid")).is_none());
    assert_eq!(count_of(&module), 0);
}
