//! Tests the table of keys, the prefixes, and the contents of invalidations.

use super::*;

fn ids(clients: &[u64]) -> BTreeSet<ClientId> {
    clients.iter().copied().map(ClientId::new).collect()
}

#[test]
fn a_key_is_removed_with_all_clients_that_read_it() {
    let table = TrackingTable::default();
    for (name, client) in [(b"a", 7), (b"a", 9), (b"a", 7), (b"b", 7)] {
        table.add_reader(name, ClientId::new(client));
    }
    assert_eq!((table.key_count(), table.pair_count()), (2, 3));
    assert_eq!(table.remove(b"a"), ids(&[7, 9]));
    assert_eq!(table.remove(b"a"), ids(&[]), "once");
    assert_eq!((table.key_count(), table.pair_count()), (1, 1));
    assert_eq!(table.remove_any().map(|(name, _)| name), Some(b"b".as_slice().into()));
    assert_eq!(table.remove_any(), None);
    assert_eq!((table.key_count(), table.pair_count()), (0, 0));
}

#[test]
fn the_table_is_idle_without_tracking_clients_and_keys() {
    let table = TrackingTable::default();
    let (tracking, mut first, mut idle) = (TrackingOptions::default(), 0, 0);
    table.enable(ClientId::new(1), None, &tracking, || first += 1);
    table.enable(ClientId::new(2), None, &tracking, || first += 1);
    table.add_reader(b"k", ClientId::new(1));
    table.disable(ClientId::new(1), &tracking, || idle += 1);
    table.disable(ClientId::new(2), &tracking, || idle += 1);
    assert_eq!((first, idle), (1, 0), "a key is still remembered");
    table.remove(b"k");
    table.check_idle(|| idle += 1);
    assert_eq!(idle, 1);
}

#[test]
fn only_a_client_that_tracks_keys_is_recorded_by_another_thread() {
    let table = TrackingTable::default();
    let tracking = TrackingOptions::default();
    table.enable(ClientId::new(1), None, &tracking, || {});
    table.add_reader_elsewhere(b"k", ClientId::new(1));
    table.add_reader_elsewhere(b"k", ClientId::new(2));
    assert_eq!(table.remove(b"k"), ids(&[1]));
    table.disable(ClientId::new(1), &tracking, || {});
    table.add_reader_elsewhere(b"k", ClientId::new(1));
    assert_eq!(table.key_count(), 0);
}

#[test]
fn broadcasts_go_to_clients_with_a_matching_prefix() {
    let table = TrackingTable::default();
    let with = |prefixes: &[&[u8]]| TrackingOptions {
        is_broadcast: true,
        prefixes: prefixes.iter().map(|prefix| (*prefix).into()).collect(),
        ..TrackingOptions::default()
    };
    let (one, two) = (with(&[b"user:", b"cart:"]), with(&[b""]));
    table.enable(ClientId::new(1), None, &one, || {});
    table.enable(ClientId::new(2), None, &two, || {});
    assert_eq!(table.prefix_count(), 3);
    let changed = BTreeMap::from([
        (b"user:1".as_slice().into(), Some(ClientId::new(5))),
        (b"user:2".as_slice().into(), None),
        (b"vase".as_slice().into(), Some(ClientId::new(5))),
    ]);
    let broadcasts = table.match_prefixes(&changed);
    let sizes: Vec<(usize, Vec<u64>)> = broadcasts
        .iter()
        .map(|(keys, who)| (keys.len(), who.iter().map(|client| client.get()).collect()))
        .collect();
    assert_eq!(sizes, [(3, vec![2]), (2, vec![1])]);
    table.disable(ClientId::new(1), &one, || {});
    assert_eq!(table.prefix_count(), 1);
}

#[test]
fn clients_that_track_the_same_prefix_share_its_name() {
    let table = TrackingTable::default();
    let with = |names: &[&[u8]]| TrackingOptions {
        is_broadcast: true,
        prefixes: names.iter().map(|name| table.shared_prefix(name)).collect(),
        ..TrackingOptions::default()
    };
    let one = with(&[b"a:", b"b:"]);
    table.enable(ClientId::new(1), None, &one, || {});
    let two = with(&[b"b:", b"c:"]);
    table.enable(ClientId::new(2), None, &two, || {});
    let name = |options: &TrackingOptions, name: &[u8]| options.prefixes.get(name).map(|name| name.as_ptr());
    assert!(name(&one, b"b:").is_some());
    assert_eq!(name(&one, b"b:"), name(&two, b"b:"));
    table.disable(ClientId::new(1), &one, || {});
    assert_eq!(
        name(&with(&[b"b:"]), b"b:"),
        name(&two, b"b:"),
        "the second client still tracks it"
    );
    assert_eq!(table.prefix_count(), 2);
}

#[test]
fn invalidations_contain_the_keys_for_each_client() {
    let changed = |name: &[u8], by| ChangedKey {
        name: name.into(),
        changed_by: Some(ClientId::new(by)),
    };
    let key = |by| InvalidKeys::Key(changed(b"k", by));
    let prefixed = InvalidKeys::Prefixed(Arc::new(vec![changed(b"a", 7), changed(b"b", 8)]));
    let plain = TrackingOptions::default();
    let no_loop = TrackingOptions {
        is_no_loop: true,
        ..TrackingOptions::default()
    };
    let broadcast = TrackingOptions {
        is_broadcast: true,
        ..TrackingOptions::default()
    };
    type Case<'a> = (InvalidKeys, &'a TrackingOptions, Option<&'a [&'a [u8]]>);
    let cases: [Case<'_>; 7] = [
        (key(7), &plain, Some(&[b"k"])),
        (key(7), &no_loop, Some(&[])),
        (key(8), &no_loop, Some(&[b"k"])),
        (key(8), &broadcast, Some(&[])),
        (prefixed.clone(), &broadcast, Some(&[b"a", b"b"])),
        (prefixed, &no_loop, Some(&[b"b"])),
        (InvalidKeys::Everything, &no_loop, None),
    ];
    for (invalid, tracking, wanted) in cases {
        assert_eq!(
            invalid.keys_for(ClientId::new(7), tracking.filter()).as_deref(),
            wanted,
            "{invalid:?} {tracking:?}"
        );
    }
}

#[test]
fn client_caching_selects_the_remembered_keys() {
    let cases = [
        // opt in, opt out, caching, remembered
        (false, false, false, true),
        (true, false, false, false),
        (true, false, true, true),
        (false, true, false, true),
        (false, true, true, false),
    ];
    for (opt_in, opt_out, caching, wanted) in cases {
        let tracking = TrackingOptions {
            is_opt_in: opt_in,
            is_opt_out: opt_out,
            caching_was_called: caching,
            ..TrackingOptions::default()
        };
        assert_eq!(tracking.should_track_next_command(), wanted, "{tracking:?}");
    }
}
