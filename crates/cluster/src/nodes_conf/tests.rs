//! Tests that the file is read as it was written, and that damage is detected.

use super::*;

const VALKEY: &str = "\
1e8e4367da6fbfb1f3542a4697c51e54263d466b 10.0.0.1:1234@12345,foo.bar,availability-zone=zone1,client-tls-port=7778,client-tcp-port=7777,client-ipv4=1.2.3.4,tls-port=0,nodename=Nemo,shard-id=3045ebc0e2680cd6124029486f74c57d0350c6ed myself,master - 0 0 7 connected 0-15494 15496-16383 [3->-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 10.0.0.2:1@2,,tls-port=0,shard-id=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb master,fail? - 5 6 9 disconnected 15495
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
