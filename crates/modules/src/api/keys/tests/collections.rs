//! Tests of the functions on lists, hashes, sorted sets and streams.

use std::ffi::{c_int, c_long, c_longlong};
use std::ptr::without_provenance_mut;

use super::*;

type Push = unsafe extern "C" fn(*mut ModuleKey, c_int, *mut ModuleString) -> c_int;
type Pop = unsafe extern "C" fn(*mut ModuleKey, c_int) -> *mut ModuleString;
type ListGet = unsafe extern "C" fn(*mut ModuleKey, c_long) -> *mut ModuleString;
type ListEdit = unsafe extern "C" fn(*mut ModuleKey, c_long, *mut ModuleString) -> c_int;
type ListDelete = unsafe extern "C" fn(*mut ModuleKey, c_long) -> c_int;

fn list(elements: &[&str]) -> FakeValue {
    FakeValue::List(elements.iter().map(|element| element.as_bytes().to_vec()).collect())
}

#[test]
fn elements_are_pushed_and_popped_at_both_ends() {
    let mut session = FakeSession::default();
    as_module(&mut session, |module| {
        let (push, pop) = (function!("ListPush" as Push), function!("ListPop" as Pop));
        let (a, b) = (Text::new("a"), Text::new("b"));
        // SAFETY: the keys are open, and the elements are strings.
        unsafe {
            module.with_key("k", WRITE, |key| {
                assert_eq!(push(key, 0, a.0), OK);
                assert_eq!(push(key, 1, b.0), OK);
                assert_eq!(push(key, 0, null_mut()), api::ERR);
                assert_eq!(errno(), libc::EINVAL);
            });
            module.with_key("k", READ, |key| {
                assert_eq!((push(key, 0, a.0), errno()), (api::ERR, libc::EBADF));
                assert_eq!((take(pop(key, 0)), errno()), (None, libc::EBADF));
            });
            module.with_key("k", READ | WRITE, |key| {
                assert_eq!(take(pop(key, 1)).as_deref(), Some("b"));
                assert_eq!(take(pop(key, 0)).as_deref(), Some("a"));
                assert_eq!(module.kind(key), 0);
                assert_eq!((take(pop(key, 0)), errno()), (None, libc::ENOTSUP));
            });
        }
    });
    assert!(session.keyspace.keys.is_empty());
}

#[test]
fn elements_are_read_by_index_from_both_ends() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", list(&["x", "y", "z"]));
    as_module(&mut session, |module| {
        let get = function!("ListGet" as ListGet);
        module.with_key("k", READ, |key| {
            for (index, expected) in [(0, "x"), (2, "z"), (-1, "z"), (-3, "x")] {
                // SAFETY: the key is open.
                assert_eq!(take(unsafe { get(key, index) }).as_deref(), Some(expected), "{index}");
            }
            for index in [3, -4, c_long::MIN, c_long::MAX] {
                // SAFETY: the key is open.
                let found = take(unsafe { get(key, index) });
                assert_eq!((found, errno()), (None, libc::EDOM), "{index}");
            }
        });
        module.with_key("k", WRITE, |key| {
            // SAFETY: the key is open.
            assert_eq!((take(unsafe { get(key, 0) }), errno()), (None, libc::EBADF));
        });
    });
}

#[test]
fn elements_are_inserted_before_or_after_an_index() {
    let cases = [
        (0, vec!["n", "x", "y"]),
        (1, vec!["x", "n", "y"]),
        (2, vec!["x", "y", "n"]),
        (-1, vec!["x", "y", "n"]),
        (-2, vec!["x", "n", "y"]),
        (-3, vec!["n", "x", "y"]),
    ];
    for (index, expected) in cases {
        let mut session = FakeSession::default();
        session.keyspace.set(b"k", list(&["x", "y"]));
        as_module(&mut session, |module| {
            let (insert, element) = (function!("ListInsert" as ListEdit), Text::new("n"));
            module.with_key("k", WRITE, |key| {
                // SAFETY: the key is open, and the element is a string.
                unsafe {
                    assert_eq!((insert(key, 3, element.0), errno()), (api::ERR, libc::EDOM));
                    assert_eq!((insert(key, -4, element.0), errno()), (api::ERR, libc::EDOM));
                    assert_eq!(insert(key, index, element.0), OK);
                }
            });
        });
        assert_eq!(session.keyspace.keys[&b"k"[..]].value, list(&expected), "{index}");
    }
}

#[test]
fn elements_are_replaced_and_deleted() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", list(&["x", "y"]));
    as_module(&mut session, |module| {
        let (set, delete) = (function!("ListSet" as ListEdit), function!("ListDelete" as ListDelete));
        let element = Text::new("n");
        module.with_key("k", WRITE, |key| {
            // SAFETY: the key is open, and the element is a string.
            unsafe {
                assert_eq!(set(key, -1, element.0), OK);
                assert_eq!((set(key, 2, element.0), errno()), (api::ERR, libc::EDOM));
                assert_eq!(delete(key, 0), OK);
                assert_eq!((delete(key, 1), errno()), (api::ERR, libc::EDOM));
                assert_eq!(delete(key, -1), OK);
                assert_eq!((delete(key, 0), errno()), (api::ERR, libc::ENOTSUP));
            }
        });
    });
    assert!(session.keyspace.keys.is_empty());
}

type HashFunction = unsafe extern "C" fn(*mut ModuleKey, c_int, ...) -> c_int;

#[test]
fn fields_are_set_read_and_removed() {
    let mut session = FakeSession::default();
    as_module(&mut session, |module| {
        let (set, get) = (
            function!("HashSet" as HashFunction),
            function!("HashGet" as HashFunction),
        );
        let (f, g, v) = (Text::new("f"), Text::new("g"), Text::new("v"));
        let (end, removal) = (null_mut::<ModuleString>(), without_provenance_mut::<ModuleString>(1));
        let (if_missing, if_present, c_names, exists, count_all) = (1, 2, 4, 8, 16);
        // SAFETY: the keys are open, and the arguments are pairs of strings that end with null.
        unsafe {
            module.with_key("k", WRITE, |key| {
                assert_eq!((set(key, 0, f.0, v.0, end), errno()), (0, libc::ENOENT));
                assert_eq!(set(key, count_all, f.0, v.0, g.0, v.0, end), 2);
                assert_eq!(set(key, if_missing | count_all, f.0, v.0, end), 0);
                assert_eq!(set(key, if_present, f.0, v.0, v.0, v.0, end), 1);
                assert_eq!(set(key, c_names, c"f".as_ptr(), v.0, end), 1);
                assert_eq!((set(key, exists, f.0, v.0, end), errno()), (0, libc::EINVAL));
                assert_eq!(set(key, 0, g.0, removal, end), 1);
            });
            module.with_key("k", READ, |key| {
                let (mut first, mut second) = (null_mut::<ModuleString>(), removal);
                let (first_place, second_place) = (&raw mut first, &raw mut second);
                assert_eq!(get(key, 0, f.0, first_place, g.0, second_place, end), OK);
                assert_eq!((take(first).as_deref(), take(second)), (Some("v"), None));
                let mut found: (c_int, c_int) = (-1, -1);
                let (first_place, second_place) = (&raw mut found.0, &raw mut found.1);
                assert_eq!(get(key, exists, f.0, first_place, g.0, second_place, end), OK);
                assert_eq!(found, (1, 0));
                assert_eq!((set(key, 0, f.0, v.0, end), errno()), (0, libc::EBADF));
            });
            module.with_key("k", WRITE, |key| {
                assert_eq!(set(key, 0, f.0, removal, end), 1);
                assert_eq!(module.kind(key), 0);
            });
        }
    });
    assert!(session.keyspace.keys.is_empty());
}

#[test]
fn more_fields_than_fit_on_the_stack_are_set() {
    let mut session = FakeSession::default();
    as_module(&mut session, |module| {
        let set = function!("HashSet" as HashFunction);
        let names: Vec<Text> = (0..18).map(|number| Text::new(&number.to_string())).collect();
        let name = |index: usize| names[index].0;
        let end = null_mut::<ModuleString>();
        module.with_key("k", WRITE, |key| {
            // SAFETY: the key is open, and the arguments are pairs of strings that end with null.
            let counted = unsafe {
                set(
                    key,
                    16,
                    name(0),
                    name(0),
                    name(1),
                    name(1),
                    name(2),
                    name(2),
                    name(3),
                    name(3),
                    name(4),
                    name(4),
                    name(5),
                    name(5),
                    name(6),
                    name(6),
                    name(7),
                    name(7),
                    name(8),
                    name(8),
                    name(9),
                    name(9),
                    name(10),
                    name(10),
                    name(11),
                    name(11),
                    name(12),
                    name(12),
                    name(13),
                    name(13),
                    name(14),
                    name(14),
                    name(15),
                    name(15),
                    name(16),
                    name(16),
                    name(17),
                    name(17),
                    end,
                )
            };
            assert_eq!(counted, 18);
        });
    });
    match &session.keyspace.keys[&b"k"[..]].value {
        FakeValue::Hash(hash) => assert!(hash.len() == 18 && hash.iter().all(|(name, value)| name == value)),
        other => panic!("{other:?}"),
    }
}

type ZsetAdd = unsafe extern "C" fn(*mut ModuleKey, f64, *mut ModuleString, *mut c_int) -> c_int;
type ZsetIncrby = unsafe extern "C" fn(*mut ModuleKey, f64, *mut ModuleString, *mut c_int, *mut f64) -> c_int;
type ZsetRem = unsafe extern "C" fn(*mut ModuleKey, *mut ModuleString, *mut c_int) -> c_int;
type ScoreRangeFunction = unsafe extern "C" fn(*mut ModuleKey, f64, f64, c_int, c_int) -> c_int;
type LexRangeFunction = unsafe extern "C" fn(*mut ModuleKey, *mut ModuleString, *mut ModuleString) -> c_int;
type CurrentElement = unsafe extern "C" fn(*mut ModuleKey, *mut f64) -> *mut ModuleString;

#[test]
fn scores_are_set_under_conditions() {
    let mut session = FakeSession::default();
    as_module(&mut session, |module| {
        let add = function!("ZsetAdd" as ZsetAdd);
        let member = Text::new("m");
        let (if_present, if_missing, added, updated, nothing) = (1, 2, 4, 8, 16);
        // SAFETY: the keys are open, the member is a string, and the flags are a place for a number.
        unsafe {
            module.with_key("k", WRITE, |key| {
                let cases = [
                    (if_present, 1.0, nothing),
                    (0, 1.0, added),
                    (if_missing, 2.0, nothing),
                    (0, 1.0, 0),
                    (if_present, 2.0, updated),
                ];
                for (mut flags, score, expected) in cases {
                    assert_eq!(add(key, score, member.0, &raw mut flags), OK);
                    assert_eq!(flags, expected, "{score}");
                }
                let mut flags = if_present;
                assert_eq!(add(key, f64::NAN, member.0, &raw mut flags), api::ERR);
                assert_eq!(flags, 0);
                let mut score = 0.0;
                let increment = function!("ZsetIncrby" as ZsetIncrby);
                assert_eq!(increment(key, 1.5, member.0, null_mut(), &raw mut score), OK);
                assert_eq!(score, 3.5);
            });
            module.with_key("k", READ, |key| {
                assert_eq!(add(key, 1.0, member.0, null_mut()), api::ERR)
            });
            let mut deleted = -1;
            let remove = function!("ZsetRem" as ZsetRem);
            module.with_key("k", WRITE, |key| {
                assert_eq!(remove(key, member.0, &raw mut deleted), OK);
                assert_eq!((deleted, module.kind(key)), (1, 0));
                assert_eq!(remove(key, member.0, &raw mut deleted), OK);
                assert_eq!(deleted, 0);
            });
        }
    });
    assert!(session.keyspace.keys.is_empty());
}

/// Walks over the range that was begun, and returns its members.
fn members(key: *mut ModuleKey, is_backward: bool) -> Vec<(String, f64)> {
    let current = function!("ZsetRangeCurrentElement" as CurrentElement);
    let step = match is_backward {
        true => function!("ZsetRangePrev" as KeyFunction),
        false => function!("ZsetRangeNext" as KeyFunction),
    };
    let ended = function!("ZsetRangeEndReached" as KeyFunction);
    let mut found = Vec::new();
    // SAFETY: the key is open, and the score is a place for a number.
    unsafe {
        while ended(key) == 0 {
            let mut score = 0.0;
            found.push((take(current(key, &raw mut score)).unwrap_or_default(), score));
            step(key);
        }
        function!("ZsetRangeStop" as CloseKey)(key);
        assert_eq!(ended(key), 1);
        assert!(current(key, null_mut()).is_null());
    }
    found
}

#[test]
fn ranges_of_scores_and_members_are_walked_both_ways() {
    let mut session = FakeSession::default();
    let set = |scores: [f64; 3]| {
        let members = scores.into_iter().zip(["a", "b", "c"]);
        FakeValue::SortedSet(
            members
                .map(|(score, member)| (score, member.as_bytes().to_vec()))
                .collect(),
        )
    };
    session.keyspace.set(b"scores", set([1.0, 2.0, 3.0]));
    session.keyspace.set(b"members", set([0.0, 0.0, 0.0]));
    as_module(&mut session, |module| {
        let first_score = function!("ZsetFirstInScoreRange" as ScoreRangeFunction);
        let last_score = function!("ZsetLastInScoreRange" as ScoreRangeFunction);
        let first_member = function!("ZsetFirstInLexRange" as LexRangeFunction);
        let last_member = function!("ZsetLastInLexRange" as LexRangeFunction);
        let of = |pairs: &[(&str, f64)]| -> Vec<(String, f64)> {
            pairs
                .iter()
                .map(|(member, score)| ((*member).to_owned(), *score))
                .collect()
        };
        // SAFETY: the keys are open, and the ends are strings.
        unsafe {
            module.with_key("scores", READ, |key| {
                assert_eq!(function!("ZsetRangeEndReached" as KeyFunction)(key), 1);
                assert_eq!(first_score(key, 1.0, 3.0, 1, 0), OK);
                assert_eq!(members(key, false), of(&[("b", 2.0), ("c", 3.0)]));
                assert_eq!(last_score(key, f64::NEG_INFINITY, 2.0, 0, 0), OK);
                assert_eq!(members(key, true), of(&[("b", 2.0), ("a", 1.0)]));
                assert_eq!(first_score(key, 4.0, 5.0, 0, 0), OK);
                assert_eq!(members(key, false), of(&[]));
            });
            module.with_key("members", READ, |key| {
                let (low, high, wrong) = (Text::new("(a"), Text::new("+"), Text::new("a"));
                assert_eq!(first_member(key, low.0, high.0), OK);
                assert_eq!(members(key, false), of(&[("b", 0.0), ("c", 0.0)]));
                assert_eq!(last_member(key, low.0, high.0), OK);
                assert_eq!(members(key, true), of(&[("c", 0.0), ("b", 0.0)]));
                assert_eq!(first_member(key, low.0, wrong.0), api::ERR);
            });
        }
    });
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Id {
    ms: u64,
    seq: u64,
}

type StreamAdd = unsafe extern "C" fn(*mut ModuleKey, c_int, *mut Id, *const *mut ModuleString, c_long) -> c_int;
type StreamDelete = unsafe extern "C" fn(*mut ModuleKey, *const Id) -> c_int;
type IteratorStart = unsafe extern "C" fn(*mut ModuleKey, c_int, *const Id, *const Id) -> c_int;
type NextId = unsafe extern "C" fn(*mut ModuleKey, *mut Id, *mut c_long) -> c_int;
type NextField = unsafe extern "C" fn(*mut ModuleKey, *mut *mut ModuleString, *mut *mut ModuleString) -> c_int;
type TrimByLength = unsafe extern "C" fn(*mut ModuleKey, c_int, c_longlong) -> c_longlong;

fn add_entry(key: *mut ModuleKey, ms: u64) -> c_int {
    let (name, value) = (Text::new("f"), Text::new("v"));
    let mut id = Id { ms, seq: 0 };
    // SAFETY: the key is open, and the words are two strings.
    unsafe { function!("StreamAdd" as StreamAdd)(key, 0, &raw mut id, [name.0, value.0].as_ptr(), 1) }
}

#[test]
fn entries_are_added_walked_and_deleted() {
    let mut session = FakeSession::default();
    as_module(&mut session, |module| {
        let key = module.open("k", READ | WRITE);
        assert_eq!((add_entry(key, 0), errno()), (api::ERR, libc::EDOM));
        assert_eq!((add_entry(key, 1), add_entry(key, 2), add_entry(key, 3)), (OK, OK, OK));
        assert_eq!((add_entry(key, 3), errno()), (api::ERR, libc::EDOM));
        let (start, next) = (
            function!("StreamIteratorStart" as IteratorStart),
            function!("StreamIteratorNextID" as NextId),
        );
        let field = function!("StreamIteratorNextField" as NextField);
        let (delete_current, stop) = (
            function!("StreamIteratorDelete" as KeyFunction),
            function!("StreamIteratorStop" as KeyFunction),
        );
        let delete = function!("StreamDelete" as StreamDelete);
        let (mut id, mut count) = (Id { ms: 0, seq: 0 }, 0);
        let (mut name, mut value) = (null_mut(), null_mut());
        let (reverse, exclusive) = (2, 1);
        // SAFETY: the key is open, and the pointers lead to places.
        unsafe {
            assert_eq!((stop(key), errno()), (api::ERR, libc::EBADF));
            assert_eq!(start(key, reverse, null_mut(), null_mut()), OK);
            assert_eq!(
                (start(key, 0, null_mut(), null_mut()), errno()),
                (api::ERR, libc::EBADF)
            );
            assert_eq!((delete_current(key), errno()), (api::ERR, libc::ENOENT));
            assert_eq!(next(key, &raw mut id, &raw mut count), OK);
            assert_eq!((id, count), (Id { ms: 3, seq: 0 }, 1));
            assert_eq!(field(key, &raw mut name, &raw mut value), OK);
            assert_eq!((take(name).as_deref(), take(value).as_deref()), (Some("f"), Some("v")));
            assert_eq!((field(key, null_mut(), null_mut()), errno()), (api::ERR, libc::ENOENT));
            assert_eq!((delete(key, &raw const id), errno()), (api::ERR, libc::EBADF));
            assert_eq!(delete_current(key), OK);
            assert_eq!((delete_current(key), errno()), (api::ERR, libc::ENOENT));
            assert_eq!(next(key, &raw mut id, null_mut()), OK);
            assert_eq!(next(key, &raw mut id, null_mut()), OK);
            assert_eq!((next(key, &raw mut id, null_mut()), errno()), (api::ERR, libc::ENOENT));
            assert_eq!(stop(key), OK);
            let ends = (Id { ms: 1, seq: 0 }, Id { ms: 3, seq: 0 });
            assert_eq!(start(key, exclusive, &raw const ends.0, &raw const ends.1), OK);
            assert_eq!(next(key, &raw mut id, null_mut()), OK);
            assert_eq!(id, Id { ms: 2, seq: 0 });
            assert_eq!(next(key, &raw mut id, null_mut()), api::ERR);
            assert_eq!(stop(key), OK);
            let lowest = Id { ms: 0, seq: 0 };
            assert_eq!(
                (start(key, exclusive, null_mut(), &raw const lowest), errno()),
                (api::ERR, libc::EDOM)
            );
            assert_eq!(delete(key, &raw const id), OK);
            assert_eq!((delete(key, &raw const id), errno()), (api::ERR, libc::ENOENT));
            let trim = function!("StreamTrimByLength" as TrimByLength);
            assert_eq!((trim(key, 0, -1), errno()), (-1, libc::EINVAL));
            assert_eq!(trim(key, 0, 0), 1);
        }
        module.close(key);
    });
    assert_eq!(session.keyspace.keys[&b"k"[..]].value, FakeValue::Stream(Vec::new()));
}
