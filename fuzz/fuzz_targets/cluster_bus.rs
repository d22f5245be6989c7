//! Fuzzes the packets of the cluster bus, which a node receives one after the other. A message that was decoded must be
//! encoded and decoded as the same message. Afterwards the node must send only messages that can be decoded, know no
//! more nodes than it was told of, and write a cluster configuration file that it can read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_cluster::links::LinkAddresses;
use weft_cluster::message::{HEADER_BYTES, decode, encode, length};
use weft_cluster::nodes_conf::{nodes_file_text, parse};
use weft_cluster::settings::ClusterSettings;
use weft_cluster::state::{BusAction, ClusterState};

/// A primary with slots, another one, and its replica. The IDs are simple, so that the fuzzer finds them.
const NODES: &str = "\
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-8191\n\
bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 127.0.0.1:7001@17001 master - 0 0 2 connected 8192-16383\n\
cccccccccccccccccccccccccccccccccccccccc 127.0.0.1:7002@17002 slave bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 0 0 2 connected\n\
vars currentEpoch 2 lastVoteEpoch 0\n";

/// Performs what the node asks for, except what concerns its data.
fn perform_actions(state: &mut ClusterState, now_ms: u64) {
    for action in std::mem::take(&mut state.actions) {
        match action {
            BusAction::Send(_, bytes) => {
                assert_eq!(length(&bytes), Ok(Some(bytes.len())));
                assert!(decode(&bytes).is_ok(), "a node sends what cannot be decoded");
            }
            BusAction::Close(link) => state.on_link_lost(link),
            BusAction::Connect { node, .. } => {
                let link = 2 + state.links.keys().max().copied().unwrap_or(0);
                state.on_link_made(link, Some(node), now_ms);
            }
            _ => {}
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut now_ms = 1_000_000;
    let settings = ClusterSettings {
        node_timeout_ms: 1000,
        tcp_port: 7000,
        bus_port: 17000,
        ..ClusterSettings::default()
    };
    let Ok(mut state) = parse(NODES, settings.clone(), now_ms) else {
        panic!("the nodes are sound");
    };
    state.on_link_made(1, None, now_ms);
    let ends = LinkAddresses {
        peer: "127.0.0.1".to_owned(),
        local: "127.0.0.1".to_owned(),
    };
    let mut rest = input;
    while let Ok(Some(size)) = length(rest) {
        // A packet that says that it is longer is taken as long as it is, so that more of them are decoded.
        let mut packet = rest[..size.min(rest.len())].to_vec();
        rest = &rest[packet.len()..];
        let stated = (packet.len() as u32).to_be_bytes();
        packet[4..8].copy_from_slice(&stated);
        let Ok(message) = decode(&packet) else {
            continue;
        };
        assert_eq!(decode(&encode(&message)).as_ref(), Ok(&message));
        if !state.links.contains_key(&1) {
            state.on_link_made(1, None, now_ms);
        }
        state.receive(1, message, &ends, now_ms);
        perform_actions(&mut state, now_ms);
        now_ms += 100;
        state.run_round(now_ms);
        perform_actions(&mut state, now_ms);
    }
    assert!(
        state.nodes.len() <= 4 + input.len() / (HEADER_BYTES / 22),
        "{} nodes",
        state.nodes.len()
    );
    let written = nodes_file_text(&state);
    match parse(&written, settings, now_ms) {
        Ok(again) => assert_eq!(again.myself, state.myself),
        Err(line) => panic!("{line:?} was written:\n{written}"),
    }
});
