//! Tests of transfers: what is saved is loaded, and faults are noticed.

use std::ptr::null_mut;

use super::*;
use crate::module::Module;
use crate::module::types::{TypeId, TypeMethods, create};

fn kind(name: &[u8]) -> &'static DataType {
    let module = Module::new("/tmp/io.so".to_owned());
    create(&module, TypeId::new(name, 3).expect("valid"), TypeMethods::default()).expect("the name is free")
}

#[test]
fn what_is_saved_is_loaded() {
    let kind = kind(b"io-round1");
    let mut saving = ModuleIo::for_saving(kind, null_mut(), -1, true);
    saving.save_unsigned(7);
    saving.save_unsigned(u64::MAX);
    saving.save_double(f64::NEG_INFINITY);
    saving.save_float(0.5);
    saving.save_string(b"12345");
    saving.save_string(&[b'x'; 1000]);
    let bytes = saving.into_output().expect("nothing failed");
    assert!(bytes.len() < 200, "the long string is compressed");
    let mut loading = ModuleIo::for_loading(kind, null_mut(), -1, &bytes);
    assert_eq!(loading.load_unsigned(), 7);
    assert_eq!(loading.load_unsigned(), u64::MAX);
    assert_eq!(loading.load_double(), f64::NEG_INFINITY);
    assert_eq!(loading.load_float(), 0.5);
    assert_eq!(loading.load_string().as_deref(), Some(&b"12345"[..]));
    assert_eq!(loading.load_string(), Some(vec![b'x'; 1000]));
    assert_eq!(loading.remaining_bytes(), 0);
    assert!(!loading.has_failed());
}

#[test]
fn elements_have_the_opcodes_of_the_format() {
    let kind = kind(b"io-opcode");
    let mut saving = ModuleIo::for_saving(kind, null_mut(), -1, false);
    saving.save_unsigned(1);
    saving.save_string(b"ab");
    assert_eq!(saving.into_output().expect("nothing failed"), [2, 1, 5, 2, b'a', b'b']);
}

#[test]
fn a_read_of_another_element_fails_and_so_do_later_reads() {
    // A module that is gone handles every error.
    let kind = kind(b"io-faults");
    let mut saving = ModuleIo::for_saving(kind, null_mut(), -1, false);
    saving.save_unsigned(1);
    saving.save_unsigned(2);
    let bytes = saving.into_output().expect("nothing failed");
    let mut loading = ModuleIo::for_loading(kind, null_mut(), -1, &bytes);
    assert_eq!(loading.load_unsigned(), 1);
    assert_eq!(loading.load_double(), 0.0);
    assert!(loading.has_failed());
    assert_eq!(loading.load_unsigned(), 0);
    assert_eq!(loading.load_string(), None);
}

#[test]
fn nothing_is_written_before_the_first_element() {
    let kind = kind(b"io-prolog");
    let saving = ModuleIo::for_saving_after(kind, null_mut(), -1, false, b"head".to_vec());
    assert!(saving.into_output().expect("nothing failed").is_empty());
    let mut saving = ModuleIo::for_saving_after(kind, null_mut(), -1, false, b"head".to_vec());
    saving.save_unsigned(1);
    saving.save_unsigned(2);
    assert_eq!(saving.into_output().expect("nothing failed"), b"head\x02\x01\x02\x02");
}

#[test]
fn commands_are_emitted_in_the_protocol() {
    let kind = kind(b"io-emit-1");
    let mut rewriting = ModuleIo::for_rewriting(kind, null_mut(), 0);
    rewriting.emit([&b"X.SET"[..], b"k"].into_iter());
    rewriting.save_unsigned(1);
    assert!(rewriting.has_failed());
    let mut rewriting = ModuleIo::for_rewriting(kind, null_mut(), 0);
    rewriting.emit([&b"X.SET"[..], b"k"].into_iter());
    let commands = rewriting.into_output().expect("nothing failed");
    assert_eq!(commands, b"*2\r\n$5\r\nX.SET\r\n$1\r\nk\r\n");
}
