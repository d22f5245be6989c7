//! Tests of values, with a type whose callbacks are here: its values are boxed numbers.

use weft_os::atomic::AtomicU64;

use super::*;
use crate::module::Module;
use crate::module::types::{TypeMethods, create};

static FREED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn save(io: *mut ModuleIo<'_>, value: *mut c_void) {
    // SAFETY: the value is one of this type.
    unsafe { (*io).save_unsigned(*value.cast::<u64>()) };
}

unsafe extern "C" fn load(io: *mut ModuleIo<'_>, version: c_int) -> *mut c_void {
    // SAFETY: the transfer is going on.
    let io = unsafe { &mut *io };
    let number = io.load_unsigned();
    match io.has_failed() || version != 5 {
        true => null_mut(),
        false => Box::into_raw(Box::new(number)).cast(),
    }
}

unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: the value is one of this type.
    let number = unsafe { Box::from_raw(value.cast::<u64>()) };
    FREED.fetch_add(*number, Ordering::Relaxed);
}

unsafe extern "C" fn rewrite(io: *mut ModuleIo<'_>, key: *mut ModuleString, value: *mut c_void) {
    // SAFETY: all of them are what they are declared to be.
    unsafe {
        let number = (*value.cast::<u64>()).to_string();
        (*io).emit([b"NUM.SET", ModuleString::bytes_of(key), number.as_bytes()].into_iter());
    }
}

unsafe extern "C" fn digest(digest: *mut ModuleDigest, value: *mut c_void) {
    // SAFETY: both are what they are declared to be.
    unsafe {
        (*digest).add((*value.cast::<u64>()).to_string().as_bytes());
        (*digest).end_sequence();
    }
}

unsafe extern "C" fn copy(options: *mut KeyOptions, value: *const c_void) -> *mut c_void {
    // SAFETY: both are what they are declared to be.
    let (options, number) = unsafe { (&*options, *value.cast::<u64>()) };
    assert_eq!((options.from_db, options.to_db), (1, 2));
    Box::into_raw(Box::new(number)).cast()
}

unsafe extern "C" fn aux_save(io: *mut ModuleIo<'_>, when: c_int) {
    // SAFETY: the transfer is going on.
    unsafe { (*io).save_unsigned(when as u64 + 10) };
}

unsafe extern "C" fn aux_save_nothing(_: *mut ModuleIo<'_>, _: c_int) {}

unsafe extern "C" fn aux_load(io: *mut ModuleIo<'_>, version: c_int, when: c_int) -> c_int {
    // SAFETY: the transfer is going on.
    let number = unsafe { (*io).load_unsigned() };
    c_int::from(number != when as u64 + 10 || version != 5)
}

fn numbers(name: &[u8], change: impl FnOnce(&mut TypeMethods)) -> (Arc<Module>, &'static DataType) {
    let module = Module::new("/tmp/numbers.so".to_owned());
    module.set_name("numbers");
    let mut methods = TypeMethods {
        version: 5,
        rdb_save: Some(save),
        rdb_load: Some(load),
        free: Some(free),
        aof_rewrite: Some(rewrite),
        digest: Some(digest),
        copy2: Some(copy),
        ..TypeMethods::default()
    };
    change(&mut methods);
    let kind = create(&module, TypeId::new(name, 5).expect("a valid name"), methods).expect("the name is free");
    (module, kind)
}

fn number(kind: &'static DataType, number: u64) -> Arc<ModuleValue> {
    ModuleValue::new(kind, Box::into_raw(Box::new(number)).cast())
}

fn number_in(value: &ModuleValue) -> u64 {
    // SAFETY: the values of this type are numbers.
    unsafe { *value.address().cast::<u64>() }
}

#[test]
fn a_value_survives_a_data_file_and_is_freed_once() {
    let (_module, kind) = numbers(b"value-rdb", |_| {});
    let value = number(kind, 7000);
    let mut bytes = Vec::new();
    assert!(value.append_rdb(&mut bytes, b"key", 0, true));
    assert_eq!(bytes.last(), Some(&opcode::END));
    bytes.extend(b"what follows");
    let loaded = ModuleValue::decode(&bytes, b"key", 0).expect("the value is intact");
    assert_eq!(number_in(&loaded), 7000);
    let before = FREED.load(Ordering::Relaxed);
    drop((value, loaded));
    assert!(FREED.load(Ordering::Relaxed) >= before + 14000);
}

#[test]
fn damaged_values_are_refused() {
    let (module, kind) = numbers(b"value-bad", |_| {});
    let mut bytes = Vec::new();
    assert!(number(kind, 1).append_rdb(&mut bytes, b"key", 0, true));
    let end = bytes.len() - 1;
    bytes[end] = opcode::STRING;
    assert_eq!(
        ModuleValue::decode(&bytes, b"key", 0).err(),
        Some(DecodeError::NoEnd("numbers".to_owned()))
    );
    assert_eq!(ModuleValue::decode(&[], b"key", 0).err(), Some(DecodeError::Truncated));
    let mut other = Vec::new();
    write_length(&mut other, TypeId::new(b"value-bad", 4).expect("valid").0 as usize);
    other.extend([opcode::UNSIGNED, 1, opcode::END]);
    assert_eq!(
        ModuleValue::decode(&other, b"key", 0).err(),
        Some(DecodeError::Refused("numbers".to_owned()))
    );
    crate::module::types::remove_types_of(&Arc::downgrade(&module));
    assert_eq!(
        ModuleValue::decode(&bytes, b"key", 0).err(),
        Some(DecodeError::UnknownType("value-bad".to_owned()))
    );
}

#[test]
fn callbacks_get_the_key_and_the_value() {
    let (_module, kind) = numbers(b"value-api", |_| {});
    let value = number(kind, 42);
    let commands = value.rewrite(b"the-key", 0).expect("the type has the callback");
    assert_eq!(commands, b"*3\r\n$7\r\nNUM.SET\r\n$7\r\nthe-key\r\n$2\r\n42\r\n");
    assert_eq!(value.digest(b"a", 0), number(kind, 42).digest(b"b", 1));
    assert_ne!(value.digest(b"a", 0), number(kind, 43).digest(b"a", 0));
    let copied = value.copy((b"a", 1), (b"b", 2)).expect("the type has the callback");
    assert_eq!(number_in(&copied), 42);
    assert_ne!(copied.address(), value.address());
    assert_eq!(value.memory_usage(b"a", 0, 5), 0, "the type does not say it");
}

#[test]
fn a_type_without_a_callback_refuses_to_copy() {
    let (_module, kind) = numbers(b"value-nop", |methods| methods.copy2 = None);
    let refused = number(kind, 1).copy((b"a", 1), (b"b", 2)).err();
    assert_eq!(refused, Some("ERR not supported for this module key"));
}

#[test]
fn data_besides_the_keys_is_saved_and_loaded() {
    let (_module, _) = numbers(b"value-aux", |methods| {
        methods.aux_save_triggers = AUX_AFTER_KEYS;
        methods.aux_save = Some(aux_save);
        methods.aux_load = Some(aux_load);
    });
    let (_other, _) = numbers(b"value-au2", |methods| {
        methods.aux_save_triggers = AUX_AFTER_KEYS;
        methods.aux_save2 = Some(aux_save_nothing);
    });
    assert_eq!(save_aux(AUX_BEFORE_KEYS, true).as_deref(), Some(&[][..]));
    let saved = save_aux(AUX_AFTER_KEYS, true).expect("no module fails");
    assert_eq!(saved[0], RDB_OPCODE_AUX);
    let mut reader = RdbReader::new(&saved[1..]);
    let id = TypeId(reader.length().expect("an identifier") as u64);
    assert_eq!(reader.length(), Some(opcode::UNSIGNED.into()));
    let when = reader.length().expect("the time") as c_int;
    assert_eq!((id.name().as_str(), when), ("value-aux", AUX_AFTER_KEYS));
    let contents = &saved[saved.len() - reader.remaining_bytes()..];
    assert_eq!(load_aux(id, when, contents), Ok(()));
    assert_eq!(
        load_aux(id, AUX_BEFORE_KEYS, contents),
        Err(AuxError::Refused("value-aux".to_owned()))
    );
    assert_eq!(
        check_aux(TypeId::new(b"value-au2", 0).expect("valid")),
        Err(AuxError::NotSupported("value-au2".to_owned()))
    );
    assert_eq!(
        check_aux(TypeId::new(b"value-au3", 0).expect("valid")),
        Err(AuxError::UnknownType("value-au3".to_owned()))
    );
}
