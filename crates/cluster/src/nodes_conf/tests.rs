//! Tests that the file is read as it was written, and that damage is detected.

use super::*;

const VALKEY: &str = "\
1e8e4367da6fbfb1f3542a4697c51e54263d466b 10.0.0.1:1234@12345,foo.bar,availability-zone=zone1,client-tls-port=7778,client-tcp-port=7777,client-ipv4=1.2.3.4,tls-port=0,nodename=Nemo,shard-id=3045ebc0e2680cd6124029486f74c57d0350c6ed myself,master - 0 0 7 connected 0-15494 15496-16383 [3->-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 10.0.0.2:1@2,,client-ipv6=cafe::0,tls-port=0,shard-id=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb master,fail? - 5 6 9 disconnected 15495
vars currentEpoch 8 lastVoteEpoch 3
";

#[test]
fn a_file_of_valkey_is_read_and_written_identically() {
    let settings = ClusterSettings {
        announced_ip: Some("10.0.0.1".into()),
        tcp_port: 1234,
        bus_port: 12345,
        announced: crate::node::AnnouncedAddress {
            hostname: "foo.bar".into(),
            human_name: "Nemo".into(),
            client_ipv4: "1.2.3.4".into(),
            availability_zone: "zone1".into(),
            client_port: 7777,
            client_tls_port: 7778,
            ..Default::default()
        },
        ..ClusterSettings::default()
    };
    let state = parse(VALKEY, settings, 1).expect("it makes sense");
    assert_eq!((state.nodes.len(), state.me().slots.len()), (2, 16383));
    assert_eq!((state.current_epoch, state.last_vote_epoch), (9, 3));
    let written = nodes_file_text(&state);
    let expected = VALKEY
        .replace("currentEpoch 8", "currentEpoch 9")
        .replace(" 5 6 9 ", " 1 1 9 ");
    assert_eq!(written, expected);
}

#[test]
fn a_damaged_file_is_an_error_and_never_a_panic() {
    let bytes = VALKEY.as_bytes();
    for _ in 0..5000 {
        let mut damaged = bytes.to_vec();
        for _ in 0..fastrand::usize(1..6) {
            let place = fastrand::usize(..damaged.len());
            match fastrand::u8(..3) {
                0 => damaged[place] = fastrand::u8(..),
                1 if damaged.len() > 1 => drop(damaged.remove(place)),
                _ => damaged.truncate(place.max(1)),
            }
        }
        // The result does not matter, as long as there is no panic.
        let _ = parse(&String::from_utf8_lossy(&damaged), ClusterSettings::default(), 1);
    }
    for line in ["x", "vars a", "a b c d e f g h", &VALKEY[..200]] {
        assert!(parse(line, ClusterSettings::default(), 1).is_err(), "{line}");
    }
}

/// The fuzz target `cluster_bus` found this: a file that a node wrote kept it from starting again.
#[test]
fn replicas_move_to_the_shard_that_their_primary_announces() {
    let ids = ["a", "b", "c"].map(|letter| letter.repeat(40));
    let text = format!(
        "{0} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-8191\n\
         {1} 127.0.0.1:7001@17001 master - 0 0 2 connected 8192-16383\n\
         {2} 127.0.0.1:7002@17002 slave {1} 0 0 2 connected\n",
        ids[0], ids[1], ids[2]
    );
    let mut state = parse(&text, ClusterSettings::default(), 1).expect("it is sound");
    let [_, primary, replica] = ids.map(|id| NodeId::parse(id.as_bytes()).expect("an ID"));
    let announced = crate::message::Extensions {
        shard: Some(NodeId::random()),
        ..crate::message::Extensions::default()
    };
    state.apply_extensions(primary, &announced, 1);
    assert_eq!(state.nodes[&replica].shard, state.nodes[&primary].shard);
    assert!(parse(&nodes_file_text(&state), ClusterSettings::default(), 1).is_ok());
}

fn ids() -> [String; 3] {
    ["a", "b", "c"].map(|letter| letter.repeat(40))
}

fn read(text: &str) -> Result<ClusterState, CorruptedLine> {
    parse(text, ClusterSettings::default(), 1)
}

/// Reads a file, and returns what is written of it. Reading and writing that must change nothing.
fn rewritten(text: &str) -> String {
    let written = nodes_file_text(&read(text).unwrap_or_else(|line| panic!("{line:?} of {text}")));
    let again = read(&written).unwrap_or_else(|line| panic!("{line:?} of {written}"));
    assert_eq!(nodes_file_text(&again), written, "of {text}");
    written
}

#[test]
fn a_primary_and_its_replicas_have_one_shard() {
    let [a, b, c] = ids();
    let [one, two] = ["1", "2"].map(|digit| digit.repeat(40));
    // The shards of three nodes in the file, the primaries of the last two, and the shard that all get.
    let cases: [([&str; 3], [&str; 2], Option<&str>); 10] = [
        (["", "", ""], [&a, &a], None),
        ([&one, "", ""], [&a, &a], Some(&one)),
        (["", &one, ""], [&a, &a], Some(&one)),
        (["", "", &one], [&a, &a], Some(&one)),
        (["", &one, &two], [&a, &a], Some(&one)),
        ([&two, &one, ""], [&a, &a], Some(&two)),
        ([&one, &two, &two], [&a, &b], Some(&one)),
        (["", "", &two], [&a, &b], Some(&two)),
        (["", "", &two], [&c, &a], Some(&two)),
        ([&one, "", ""], [&c, &a], Some(&one)),
    ];
    for (shards, primaries, expected) in cases {
        let [of_a, of_b, of_c] = shards.map(|shard| match shard {
            "" => String::new(),
            shard => format!(",,tls-port=0,shard-id={shard}"),
        });
        let text = format!(
            "{a} 127.0.0.1:7000@17000{of_a} myself,master - 0 0 1 connected 0-8191\n\
             {b} 127.0.0.1:7001@17001{of_b} slave {} 0 0 1 connected\n\
             {c} 127.0.0.1:7002@17002{of_c} slave {} 0 0 1 connected\n",
            primaries[0], primaries[1],
        );
        let state = read(&text).unwrap_or_else(|line| panic!("{line:?}"));
        let found: Vec<NodeId> = state.nodes.values().map(|node| node.shard).collect();
        assert!(found.iter().all(|shard| *shard == found[0]), "{found:?} of {text}");
        if let Some(expected) = expected {
            assert_eq!(found[0].as_str(), expected, "of {text}");
        }
        rewritten(&text);
    }
}

#[test]
fn nodes_that_replicate_each_other_have_one_shard() {
    let [a, b, c] = ids();
    let shard = "2".repeat(40);
    let text = format!(
        "{a} 127.0.0.1:7000@17000 myself,slave {b} 0 0 1 connected\n\
         {b} 127.0.0.1:7001@17001 slave {c} 0 0 1 connected\n\
         {c} 127.0.0.1:7002@17002,,tls-port=0,shard-id={shard} slave {b} 0 0 1 connected\n"
    );
    let state = read(&text).expect("it is sound");
    assert!(state.nodes.values().all(|node| node.shard.as_str() == shard));
    rewritten(&text);
}

#[test]
fn a_node_in_handshake_neither_owns_slots_nor_is_this_node() {
    let [a, b, _] = ids();
    let me = format!("{a} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5\n");
    let other = |flags: &str, slots: &str| format!("{b} 127.0.0.1:7001@17001 {flags} - 0 0 2 connected{slots}\n");
    for bad in [
        other("master,handshake", " 7"),
        other("handshake", " 7-9"),
        other("handshake", " [3->-x] 8"),
    ] {
        let line = bad.trim_end().to_owned();
        assert_eq!(read(&format!("{me}{bad}")).err(), Some(CorruptedLine(line)));
    }
    assert!(read(&me.replace("myself", "myself,handshake")).is_err());
    assert!(read(&format!("{me}{me}")).is_err(), "two lines of a node");
    let written = rewritten(&format!("{me}{}", other("handshake", "")));
    assert!(!written.contains(&b), "{written}");
}

#[test]
fn unclaimed_slots_and_those_with_kept_keys_are_in_the_file() {
    let [a, b, _] = ids();
    let text = |lists: &str| {
        format!(
            "{a} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5\n\
             {b} 127.0.0.1:7001@17001 master - 0 0 2 connected 6-20\n\
             vars currentEpoch 2 lastVoteEpoch 0{lists}\n"
        )
    };
    let written = rewritten(&text(" unclaimedSlots 5,7,9-10 keptSlots 5,9,30"));
    assert!(
        written.ends_with(" lastVoteEpoch 0 unclaimedSlots 7,9-10 keptSlots 9,30\n"),
        "{written}"
    );
    assert!(rewritten(&text("")).ends_with(" lastVoteEpoch 0\n"));
    for bad in [" keptSlots x", " unclaimedSlots 16384", " keptSlots 5,"] {
        assert!(read(&text(bad)).is_err(), "{bad}");
    }
}

#[test]
fn a_long_address_in_the_file_is_truncated() {
    let [a, b, _] = ids();
    let long = "1".repeat(80);
    let text = format!(
        "{a} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected\n\
         {b} {long}:7001@17001 master - 0 0 2 connected\n"
    );
    assert!(rewritten(&text).contains(&format!("{b} {}:7001@17001", &long[..45])));
}

#[test]
fn a_node_without_an_address_has_failed() {
    let [a, b, _] = ids();
    let text = format!(
        "{a} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5\n\
         {b} :0@0 master,noaddr - 0 0 2 connected 6-20\n"
    );
    let state = read(&text).expect("it is sound");
    let node = &state.nodes[&NodeId::parse(b.as_bytes()).expect("an ID")];
    assert!(node.flags.contains(NodeFlags::NO_ADDRESS | NodeFlags::FAIL));
    assert_eq!(node.failed_ms, 1, "since the file was read");
    rewritten(&text);
}
