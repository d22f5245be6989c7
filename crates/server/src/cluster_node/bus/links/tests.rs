//! Tests of the ids of links, and of the length of messages, over real sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::*;
use weft_cluster::message::encode;

fn no_links() -> BusLinks {
    BusLinks {
        listeners: 1,
        links: Vec::new(),
        last_generation: 0,
    }
}

fn connected() -> (Socket, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let peer = TcpStream::connect(listener.local_addr().expect("is bound")).expect("connects");
    let (served, _) = listener.accept().expect("accepts");
    (served.into(), peer)
}

#[test]
fn what_is_queued_for_a_link_that_is_gone_does_not_reach_a_later_one() {
    let (mut reactor, mut links) = (Reactor::new().expect("makes a reactor"), no_links());
    let (socket, _peer) = connected();
    let first = links.add(&mut reactor, socket, None).expect("adds a link");
    links.remove(&mut reactor, first);
    let (socket, mut peer) = connected();
    let second = links.add(&mut reactor, socket, None).expect("adds a link");
    assert_eq!(first as u32, second as u32, "the index is used again");
    assert_ne!(first, second);
    assert!(links.send(&mut reactor, first, b"late".to_vec()));
    links.remove(&mut reactor, first);
    assert!(links.send(&mut reactor, second, b"new".to_vec()));
    let mut received = [0; 3];
    peer.read_exact(&mut received).expect("receives");
    assert_eq!(&received, b"new");
    assert!(links.link(second).is_some(), "the later link stays");
}

#[test]
fn a_link_is_closed_if_its_next_message_is_too_long() {
    let published = encode(&BusMessage::Publish {
        header: None,
        is_sharded: false,
        channel: b"channel".to_vec(),
        payload: b"payload".to_vec(),
    });
    let mut long = published[..16].to_vec();
    long[4..8].copy_from_slice(&(1u32 << 30).to_be_bytes());
    let behind_another = [published, long.clone()].concat();
    let (mut reactor, mut links) = (Reactor::new().expect("makes a reactor"), no_links());
    for (bytes, max_bytes, is_closed) in [
        (&long, 1 << 29, true),
        (&long, 1 << 30, false),
        // The message before it may make the node known.
        (&behind_another, 1 << 29, false),
    ] {
        let (socket, mut peer) = connected();
        let link = links.add(&mut reactor, socket, None).expect("adds a link");
        peer.write_all(bytes).expect("sends");
        let taken = loop {
            let taken = links.receive(&mut reactor, link, max_bytes);
            if taken.bytes > 0 {
                break taken;
            }
        };
        assert_eq!(taken.is_closed, is_closed, "a limit of {max_bytes} bytes");
    }
}
