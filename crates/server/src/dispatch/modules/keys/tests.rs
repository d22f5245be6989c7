//! Tests of the access of modules to keys, on a server none of whose threads runs.

use weft_base::ThreadIndex;
use weft_config::Config;
use weft_modules::session::keys::{
    HashSession, LifetimeSession, ListSession, MemberPosition, MemberRemoval, RangeEnd, ScanSession, ScoreChange,
    ScoreConditions, ScoreUpdate, SortedSetRange, SortedSetSession, StreamAddError, StreamSession, StringSession,
    ValueScan,
};
use weft_values::list::ListEnd;
use weft_values::sorted_set::ScoreRange;
use weft_values::stream::{StreamId, TrimTarget};

use super::*;
use crate::dispatch::modules::client_without_connection;
use crate::dispatch::thread::ThreadState;
use crate::start::create_idle_server;

/// The time of all commands, in milliseconds since the Unix epoch.
const NOW_MS: u64 = 1_000_000_000;

/// Runs a test with a session in exclusive mode.
fn with_session(test: impl FnOnce(&mut ModuleSession<'_, '_>)) {
    let server = create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut thread = ThreadState::new(server, ThreadIndex::FIRST);
    thread.begin_batch(NOW_MS);
    let mut client = client_without_connection(ThreadIndex::FIRST, NOW_MS);
    let mut all = seat.exclusive();
    test(&mut ModuleSession::exclusive(&mut thread, &mut all, &mut client));
}

/// Locates a key of database 0, with what is stored as its value.
fn locate<'k>(session: &mut ModuleSession<'_, '_>, name: &'k str) -> SessionKey<'k> {
    let identity = session
        .locate_key(0, name.as_bytes(), true)
        .expect("the database exists");
    let mut key = SessionKey {
        name: name.as_bytes(),
        // Each test locates a few.
        identity: Box::leak(Box::new(identity)),
        has_value: true,
    };
    key.has_value = session.stored_kind(key) != KeyKind::Empty;
    key
}

fn read(session: &mut ModuleSession<'_, '_>, name: &str) -> Option<Vec<u8>> {
    let key = locate(session, name);
    let (length, bytes) = session.read_string(key, Vec::new())?;
    Some(bytes.as_ref()[..length].to_vec())
}

fn elements(session: &mut ModuleSession<'_, '_>, key: SessionKey<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let mut index = 0;
    while session.read_element(key, index, &mut |element| {
        found.push(String::from_utf8_lossy(element).into_owned());
    }) {
        index += 1;
    }
    found
}

fn keys(session: &ModuleSession<'_, '_>) -> u64 {
    session.thread.server.keyspace.counts.keys(DbIndex::FIRST)
}

#[test]
fn a_database_that_does_not_exist_has_no_keys() {
    with_session(|session| {
        assert!(session.locate_key(16, b"k", false).is_none());
        assert_eq!(session.database_size(16), 0);
    });
}

#[test]
fn strings_are_set_read_and_cut() {
    with_session(|session| {
        let key = locate(session, "k");
        session.set_string(key, b"12345");
        assert_eq!(read(session, "k").as_deref(), Some(&b"12345"[..]));
        let key = locate(session, "k");
        session.overwrite_string(key, b"abcde");
        assert!(session.truncate_string(key, 3));
        assert_eq!(read(session, "k").as_deref(), Some(&b"abc"[..]));
        assert!(session.truncate_string(key, 100_000));
        session.overwrite_string(key, &vec![b'x'; 100_000]);
        assert_eq!(read(session, "k"), Some(vec![b'x'; 100_000]));
        assert_eq!((keys(session), session.value_length(key)), (1, 100_000));
        session.delete_key(key, true);
        assert_eq!((keys(session), session.stored_kind(key)), (0, KeyKind::Empty));
        assert_eq!(session.thread.effects.dirty, 0);
    });
}

#[test]
fn setting_a_string_removes_the_expiry() {
    with_session(|session| {
        let key = locate(session, "k");
        session.set_string(key, b"value");
        let key = locate(session, "k");
        session.set_expiry_ms(key, Some(NOW_MS + 1000));
        session.overwrite_string(key, b"other");
        assert_eq!(session.expiry_ms(key), Some(NOW_MS + 1000));
        session.set_string(key, b"value");
        assert_eq!(session.expiry_ms(key), None);
    });
}

#[test]
fn an_expired_key_opens_as_a_missing_one() {
    with_session(|session| {
        for (options, stays) in [(LookupOptions::empty(), false), (LookupOptions::NO_EXPIRY, true)] {
            let key = locate(session, "k");
            session.set_string(key, b"value");
            let key = locate(session, "k");
            session.set_expiry_ms(key, Some(NOW_MS - 1));
            // What the module holds open stays.
            assert_eq!(session.value_length(key), 5);
            assert_eq!(session.open_for_reading(key, options), KeyKind::Empty);
            assert_eq!(session.stored_kind(key) != KeyKind::Empty, stays);
        }
        // A function that creates a value does not change the one that has expired.
        let key = SessionKey {
            has_value: false,
            ..locate(session, "k")
        };
        assert!(session.push_element(key, ListEnd::Head, b"x"));
        assert_eq!(session.stored_kind(key), KeyKind::List);
        assert_eq!(session.thread.effects.expired_keys, 2);
    });
}

#[test]
fn lookups_count_as_the_mode_says() {
    with_session(|session| {
        let key = locate(session, "k");
        assert_eq!(session.open_for_reading(key, LookupOptions::empty()), KeyKind::Empty);
        session.open_for_reading(key, LookupOptions::NO_STATISTICS);
        session.open_for_writing(key, LookupOptions::empty());
        assert_eq!((session.thread.effects.hits, session.thread.effects.misses), (0, 1));
        session.set_string(key, b"value");
        assert_eq!(session.open_for_reading(key, LookupOptions::empty()), KeyKind::String);
        session.open_for_reading(key, LookupOptions::all());
        session.open_for_writing(key, LookupOptions::empty());
        assert_eq!((session.thread.effects.hits, session.thread.effects.misses), (1, 1));
    });
}

#[test]
fn lookups_are_uses_unless_the_mode_forbids_it() {
    with_session(|session| {
        let key = locate(session, "k");
        session.set_string(key, b"value");
        session.set_idle_seconds(key, 500);
        session.open_for_reading(key, LookupOptions::NO_TOUCH);
        session.open_for_writing(key, LookupOptions::NO_TOUCH);
        assert_eq!(session.idle_seconds(key), 500);
        session.open_for_reading(key, LookupOptions::empty());
        assert_eq!(session.idle_seconds(key), 0);
    });
}

#[test]
fn lists_grow_and_shrink() {
    with_session(|session| {
        let key = locate(session, "k");
        for number in 0..2000 {
            assert!(session.push_element(key, ListEnd::Tail, number.to_string().as_bytes()));
        }
        let key = locate(session, "k");
        assert!(session.push_element(key, ListEnd::Head, &[b'x'; 9000]));
        assert!(session.replace_element(key, 1, b"one"));
        assert!(session.insert_element(key, 1, true, b"two"));
        assert!(!session.insert_element(key, 5000, true, b"two"));
        assert_eq!(session.value_length(key), 2002);
        assert!(session.remove_element(key, 0));
        assert_eq!(elements(session, key)[..3], ["one", "two", "1"]);
        let mut popped = Vec::new();
        while session.pop_element(key, ListEnd::Tail, &mut |element| popped.push(element.to_vec())) {}
        assert_eq!((popped.len(), popped[0].as_slice()), (2001, &b"1999"[..]));
        assert_eq!((keys(session), session.stored_kind(key)), (0, KeyKind::Empty));
    });
}

#[test]
fn fields_are_set_and_removed() {
    with_session(|session| {
        let key = locate(session, "k");
        for number in 0..1000 {
            let name = number.to_string();
            assert_eq!(session.set_field(key, name.as_bytes(), b"value", false), Some(false));
        }
        let key = locate(session, "k");
        assert_eq!(session.set_field(key, b"1", b"other", false), Some(true));
        let mut value = Vec::new();
        assert!(session.read_field(key, b"1", &mut |bytes| value = bytes.to_vec()));
        assert_eq!((value.as_slice(), session.value_length(key)), (&b"other"[..], 1000));
        for number in 0..1000 {
            assert!(session.remove_field(key, number.to_string().as_bytes()));
        }
        assert!(!session.remove_field(key, b"1"));
        assert_eq!(session.stored_kind(key), KeyKind::Hash);
        session.delete_empty_hash(key);
        assert_eq!((keys(session), session.stored_kind(key)), (0, KeyKind::Empty));
    });
}

#[test]
fn a_value_of_another_type_is_not_changed() {
    with_session(|session| {
        let key = locate(session, "k");
        session.set_string(key, b"value");
        let key = locate(session, "k");
        assert!(!session.push_element(key, ListEnd::Head, b"x"));
        assert!(!session.read_element(key, 0, &mut |_| {}));
        assert_eq!(session.set_field(key, b"f", b"v", false), None);
        assert!(!session.remove_field(key, b"f"));
        let change = ScoreChange {
            score: 1.0,
            is_increment: false,
            conditions: ScoreConditions::default(),
        };
        assert_eq!(session.change_score(key, b"m", change), ScoreUpdate::WrongType);
        assert_eq!(session.remove_member(key, b"m"), MemberRemoval::Missing);
        assert_eq!(session.add_entry(key, None, &[]), Err(StreamAddError::WrongType));
        assert_eq!(session.scan_value(key, 0, &mut |_, _| {}), ValueScan::WrongType);
        assert_eq!(read(session, "k").as_deref(), Some(&b"value"[..]));
    });
}

fn set_score(session: &mut ModuleSession<'_, '_>, key: SessionKey<'_>, member: &str, score: f64) -> ScoreUpdate {
    let change = ScoreChange {
        score,
        is_increment: false,
        conditions: ScoreConditions::default(),
    };
    session.change_score(key, member.as_bytes(), change)
}

#[test]
fn scores_change_under_conditions() {
    with_session(|session| {
        let key = locate(session, "k");
        let change = |score, is_increment, conditions| ScoreChange {
            score,
            is_increment,
            conditions,
        };
        let if_present = ScoreConditions {
            if_present: true,
            ..ScoreConditions::default()
        };
        let if_greater = ScoreConditions {
            if_greater: true,
            ..ScoreConditions::default()
        };
        let any = ScoreConditions::default();
        let cases = [
            (change(1.0, false, if_present), ScoreUpdate::Forbidden),
            (change(f64::NAN, false, any), ScoreUpdate::NotANumber),
            (change(1.0, false, any), ScoreUpdate::Added(1.0)),
            (change(1.0, false, any), ScoreUpdate::Same(1.0)),
            (change(0.5, false, if_greater), ScoreUpdate::Forbidden),
            (change(2.5, true, if_greater), ScoreUpdate::Changed(3.5)),
            (change(f64::INFINITY, false, any), ScoreUpdate::Changed(f64::INFINITY)),
            (change(f64::NEG_INFINITY, true, any), ScoreUpdate::NotANumber),
        ];
        for (change, expected) in cases {
            assert_eq!(session.change_score(key, b"m", change), expected);
        }
        assert_eq!(session.read_score(key, b"m"), Some(f64::INFINITY));
        assert_eq!(session.remove_member(key, b"other"), MemberRemoval::Missing);
        assert_eq!(session.remove_member(key, b"m"), MemberRemoval::Emptied);
        assert_eq!(keys(session), 0);
    });
}

/// Walks over a range, and calls `between` after each member.
fn walk_range(
    session: &mut ModuleSession<'_, '_>,
    key: SessionKey<'_>,
    range: &SortedSetRange,
    is_backward: bool,
    mut between: impl FnMut(&mut ModuleSession<'_, '_>, &MemberPosition),
) -> Vec<String> {
    let mut found = Vec::new();
    let mut position = session.member_in_range(key, range, is_backward);
    while let Some(current) = position {
        found.push(String::from_utf8_lossy(&current.member).into_owned());
        between(session, &current);
        position = session.neighbor_in_range(key, range, &current, is_backward);
    }
    found
}

#[test]
fn ranges_are_walked_while_members_are_removed() {
    with_session(|session| {
        for (members, is_backward) in [(10, false), (10, true), (500, false), (500, true)] {
            let key = locate(session, "k");
            for number in 0..members {
                set_score(session, key, &format!("m{number:03}"), f64::from(number / 3));
            }
            let key = locate(session, "k");
            let range = SortedSetRange::Scores(ScoreRange {
                min: 1.0,
                min_exclusive: false,
                max: f64::INFINITY,
                max_exclusive: false,
            });
            let found = walk_range(session, key, &range, is_backward, |session, current| {
                session.remove_member(key, &current.member);
                // This moves the members behind it, but not those that the walk has to show.
                session.remove_member(key, b"m000");
            });
            let mut expected: Vec<String> = (3..members).map(|number| format!("m{number:03}")).collect();
            if is_backward {
                expected.reverse();
            }
            assert_eq!(found, expected, "{members} {is_backward}");
            session.delete_key(key, false);
        }
    });
}

#[test]
fn ranges_of_members_are_walked_both_ways() {
    with_session(|session| {
        let key = locate(session, "k");
        for member in ["a", "b", "c", "d"] {
            set_score(session, key, member, 0.0);
        }
        let range = SortedSetRange::Members {
            min: RangeEnd::Exclusive(b"a".to_vec()),
            max: RangeEnd::Inclusive(b"c".to_vec()),
        };
        assert_eq!(walk_range(session, key, &range, false, |_, _| {}), ["b", "c"]);
        assert_eq!(walk_range(session, key, &range, true, |_, _| {}), ["c", "b"]);
    });
}

#[test]
fn entries_get_ids_by_the_time_of_the_command() {
    with_session(|session| {
        let key = locate(session, "k");
        let fields: &[(&[u8], &[u8])] = &[(b"f", b"v")];
        assert_eq!(session.add_entry(key, None, fields), Ok(StreamId::new(NOW_MS, 0)));
        assert_eq!(session.add_entry(key, None, fields), Ok(StreamId::new(NOW_MS, 1)));
        let low = StreamId::new(1, 1);
        assert_eq!(
            session.add_entry(key, Some(low), fields),
            Err(StreamAddError::IdTooSmall)
        );
        assert_eq!(session.add_entry(key, Some(StreamId::MAX), fields), Ok(StreamId::MAX));
        assert_eq!(session.add_entry(key, None, fields), Err(StreamAddError::NoFurtherId));
        let mut found = Vec::new();
        let range = (StreamId::MIN, StreamId::MAX);
        let first = session.read_entry(key, range, false, &mut |name, value| {
            found.push((name.to_vec(), value.to_vec()));
        });
        assert_eq!(first, Some(StreamId::new(NOW_MS, 0)));
        assert_eq!(found, [(b"f".to_vec(), b"v".to_vec())]);
        assert_eq!(
            session.read_entry(key, range, true, &mut |_, _| {}),
            Some(StreamId::MAX)
        );
        assert!(session.remove_entry(key, StreamId::MAX));
        assert!(!session.remove_entry(key, StreamId::MAX));
        assert_eq!(session.trim_stream(key, TrimTarget::MaxLength(1), false), 1);
        assert_eq!(session.trim_stream(key, TrimTarget::MinId(StreamId::MAX), false), 1);
        assert_eq!((session.value_length(key), keys(session)), (0, 1));
    });
}

#[test]
fn an_entry_that_is_not_added_creates_no_stream() {
    with_session(|session| {
        let key = locate(session, "k");
        let refused = session.add_entry(key, Some(StreamId::MIN), &[]);
        assert_eq!(refused, Err(StreamAddError::IdTooSmall));
        assert_eq!(keys(session), 0);
    });
}

#[test]
fn walks_show_all_keys_and_elements() {
    with_session(|session| {
        for number in 0..300 {
            let name = format!("key:{number}");
            let key = locate(session, &name);
            session.set_string(key, b"value");
        }
        let (mut found, mut cursor) = (std::collections::BTreeSet::new(), 0);
        loop {
            let next = session.scan_database(0, cursor, &mut |name| assert!(found.insert(name.to_vec())));
            cursor = next.expect("the session is exclusive");
            if cursor == 0 {
                break;
            }
        }
        assert_eq!((found.len(), session.database_size(0)), (300, 300));
        assert!(session.random_key(0, &mut |name| assert!(found.contains(name))));
        assert!(!session.random_key(1, &mut |_| {}));
    });
}

#[test]
fn elements_are_shown_at_once_or_in_steps() {
    with_session(|session| {
        for fields in [5, 1000] {
            let key = locate(session, "hash");
            for number in 0..fields {
                session.set_field(key, number.to_string().as_bytes(), b"7", false);
            }
            let key = locate(session, "hash");
            let (mut found, mut cursor, mut steps) = (0, 0, 0);
            loop {
                let end = session.scan_value(key, cursor, &mut |_, value| {
                    assert_eq!(value, Some(&b"7"[..]));
                    found += 1;
                });
                steps += 1;
                match end {
                    ValueScan::Next(next) if next != 0 => cursor = next,
                    ValueScan::Next(_) | ValueScan::Whole => break,
                    ValueScan::WrongType => panic!("a hash has fields"),
                }
            }
            assert!(found >= fields && (steps == 1) == (fields == 5), "{found} in {steps}");
        }
        let key = locate(session, "scores");
        set_score(session, key, "m", 0.1);
        let mut shown = Vec::new();
        session.scan_value(key, 0, &mut |member, score| {
            shown.push((member.to_vec(), score.map(<[u8]>::to_vec)));
        });
        assert_eq!(shown, [(b"m".to_vec(), Some(b"0.1".to_vec()))]);
    });
}

#[test]
fn a_reset_deletes_all_keys() {
    with_session(|session| {
        for name in ["a", "b"] {
            let key = locate(session, name);
            session.set_string(key, b"value");
        }
        session.reset_dataset(false, false);
        assert_eq!((keys(session), session.database_size(0)), (0, 0));
    });
}
