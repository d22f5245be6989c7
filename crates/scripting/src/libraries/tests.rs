//! Tests which names of libraries and functions collide.

use std::sync::Arc;
use std::time::Duration;

use super::{Libraries, Library, LoadedFunction, RestorePolicy, ScriptFlags, ScriptProfile};

fn library(name: &str, functions: &[&str]) -> Arc<Library> {
    let functions = functions
        .iter()
        .map(|name| LoadedFunction {
            name: (*name).into(),
            description: None,
            flags: ScriptFlags::default(),
            profile: ScriptProfile::predict(b""),
            engine_code: None,
        })
        .collect();
    let code = format!("#!lua name={name}\n").into_bytes();
    Arc::new(Library::new(name.into(), code, functions, Duration::ZERO))
}

fn error(result: Result<(), Vec<u8>>) -> String {
    String::from_utf8(result.unwrap_err()).unwrap()
}

#[test]
fn names_are_taken_until_their_library_is_deleted() {
    let libraries = Libraries::default();
    libraries.add(&library("one", &["f"]), false).unwrap();
    assert_eq!(
        error(libraries.add(&library("one", &["g"]), false)),
        "Library 'one' already exists"
    );
    assert_eq!(
        error(libraries.add(&library("two", &["F"]), false)),
        "Function F already exists"
    );
    libraries.add(&library("one", &["g"]), true).unwrap();
    assert!(libraries.current().function(b"f").is_none());
    assert!(
        libraries.current().function(b"G").is_some(),
        "functions are found in any case"
    );
    libraries.add(&library("two", &["F"]), false).unwrap();
    assert!(libraries.delete(b"one"));
    assert!(!libraries.delete(b"ONE"), "libraries are not");
    libraries.flush();
    assert_eq!(libraries.current().function_count(), 0);
}

#[test]
fn restored_libraries_are_added_all_or_none() {
    let libraries = Libraries::default();
    libraries.add(&library("one", &["f"]), false).unwrap();
    let restored = [library("zero", &["z"]), library("one", &["g"])];
    assert_eq!(
        error(libraries.restore(&restored, RestorePolicy::Append)),
        "Library one already exists"
    );
    assert_eq!(libraries.codes().len(), 1);
    libraries.restore(&restored, RestorePolicy::Replace).unwrap();
    assert!(libraries.current().function(b"f").is_none());
    assert_eq!(libraries.current().function_count(), 2);
    let colliding = [library("three", &["z"])];
    assert_eq!(
        error(libraries.restore(&colliding, RestorePolicy::Replace)),
        "Function z already exists"
    );
    libraries.restore(&colliding, RestorePolicy::Flush).unwrap();
    assert_eq!(libraries.codes().len(), 1);
}

#[test]
fn a_change_copies_the_set_only_for_those_who_read_it() {
    let libraries = Libraries::default();
    libraries.add(&library("a", &["f"]), false).expect("the names are free");
    let address = |libraries: &Libraries| Arc::as_ptr(&libraries.current());
    let before = address(&libraries);
    libraries.add(&library("b", &["g"]), false).expect("the names are free");
    assert!(libraries.delete(b"b"));
    assert_eq!(address(&libraries), before, "nobody read the set");

    let read = libraries.current();
    libraries.add(&library("b", &["g"]), false).expect("the names are free");
    assert!(read.function(b"g").is_none(), "a set does not change while it is read");
    assert!(libraries.current().function(b"g").is_some());
}

#[test]
fn a_library_that_is_refused_changes_nothing() {
    let libraries = Libraries::default();
    libraries
        .add(&library("a", &["f", "g"]), false)
        .expect("the names are free");
    libraries.add(&library("b", &["h"]), false).expect("the names are free");
    let refused = libraries.add(&library("a", &["f", "H"]), true);
    assert_eq!(error(refused), "Function H already exists");
    assert_eq!(libraries.current().function_count(), 3);
    libraries.add(&library("a", &["G", "k"]), true).expect("g was its own");
    let current = libraries.current();
    assert!(current.function(b"f").is_none() && current.function(b"g").is_some());
}
