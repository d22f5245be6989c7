//! Tests the table of keys, the prefixes, and the contents of invalidations.

use super::*;

fn ids(clients: &[u64]) -> BTreeSet<u64> {
    clients.iter().copied().collect()
}

#[test]
fn a_key_is_taken_out_with_all_who_read_it() {
    let table = Table::default();
    for (name, client) in [(b"a", 7), (b"a", 9), (b"a", 7), (b"b", 7)] {
        table.remember(name, client);
    }
    assert_eq!((table.keys(), table.items()), (2, 3));
    assert_eq!(table.take(b"a"), ids(&[7, 9]));
    assert_eq!(table.take(b"a"), ids(&[]), "once");
    assert_eq!((table.keys(), table.items()), (1, 1));
    assert_eq!(table.take_any().map(|(name, _)| name), Some(b"b".as_slice().into()));
    assert_eq!(table.take_any(), None);
    assert_eq!((table.keys(), table.items()), (0, 0));
}

#[test]
fn the_table_is_idle_once_nobody_tracks_and_nothing_is_remembered() {
    let table = Table::default();
    let (tracking, mut first, mut idle) = (Tracking::default(), 0, 0);
    table.enable(1, None, &tracking, || first += 1);
    table.enable(2, None, &tracking, || first += 1);
    table.remember(b"k", 1);
    table.disable(1, &tracking, || idle += 1);
    table.disable(2, &tracking, || idle += 1);
    assert_eq!((first, idle), (1, 0), "a key is still remembered");
    table.take(b"k");
    table.settle(|| idle += 1);
    assert_eq!(idle, 1);
}

#[test]
fn broadcasts_go_to_those_whose_prefix_fits() {
    let table = Table::default();
    let with = |prefixes: &[&[u8]]| Tracking {
        broadcast: true,
        prefixes: prefixes.iter().map(|prefix| (*prefix).into()).collect(),
        ..Tracking::default()
    };
    let (one, two) = (with(&[b"user:", b"cart:"]), with(&[b""]));
    table.enable(1, None, &one, || {});
    table.enable(2, None, &two, || {});
    assert_eq!(table.prefixes(), 3);
    let changed = BTreeMap::from([
        (b"user:1".as_slice().into(), 5),
        (b"user:2".as_slice().into(), 0),
        (b"vase".as_slice().into(), 5),
    ]);
    let broadcasts = table.broadcasts(&changed);
    let sizes: Vec<(usize, &[u64])> = broadcasts
        .iter()
        .map(|(keys, who)| (keys.len(), who.as_slice()))
        .collect();
    assert_eq!(sizes, [(3, &[2][..]), (2, &[1][..])]);
    table.disable(1, &one, || {});
    assert_eq!(table.prefixes(), 1);
}

#[test]
fn what_a_client_is_told() {
    let key = |by| Invalid::Key((b"k".as_slice().into(), by));
    let prefixed = Invalid::Prefixed(Arc::new(vec![(b"a".as_slice().into(), 7), (b"b".as_slice().into(), 8)]));
    let plain = Tracking::default();
    let no_loop = Tracking {
        no_loop: true,
        ..Tracking::default()
    };
    let broadcast = Tracking {
        broadcast: true,
        ..Tracking::default()
    };
    type Case<'a> = (Invalid, &'a Tracking, Option<&'a [&'a [u8]]>);
    let cases: [Case<'_>; 7] = [
        (key(7), &plain, Some(&[b"k"])),
        (key(7), &no_loop, Some(&[])),
        (key(8), &no_loop, Some(&[b"k"])),
        (key(8), &broadcast, Some(&[])),
        (prefixed.clone(), &broadcast, Some(&[b"a", b"b"])),
        (prefixed, &no_loop, Some(&[b"b"])),
        (Invalid::Everything, &no_loop, None),
    ];
    for (invalid, tracking, wanted) in cases {
        assert_eq!(
            invalid.keys_for(7, tracking).as_deref(),
            wanted,
            "{invalid:?} {tracking:?}"
        );
    }
}

#[test]
fn caching_chooses_what_is_remembered() {
    let cases = [
        // opt in, opt out, caching, remembered
        (false, false, false, true),
        (true, false, false, false),
        (true, false, true, true),
        (false, true, false, true),
        (false, true, true, false),
    ];
    for (opt_in, opt_out, caching, wanted) in cases {
        let tracking = Tracking {
            opt_in,
            opt_out,
            caching,
            ..Tracking::default()
        };
        assert_eq!(tracking.remembers(), wanted, "{tracking:?}");
    }
}
