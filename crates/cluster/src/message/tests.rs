//! Tests that messages are decoded as they were encoded, and that damage is detected.

use weft_base::SlotIndex;

use super::*;

fn header() -> Header {
    let mut slots = SlotSet::default();
    slots.set(SlotIndex::from_index(7), true);
    Header {
        sender: NodeId::random(),
        current_epoch: 5,
        config_epoch: 3,
        offset: 9,
        slots,
        primary: Some(NodeId::random()),
        ip: "10.0.0.1".into(),
        port: 6379,
        other_port: 6380,
        bus_port: 16379,
        flags: NodeFlags::PRIMARY,
        is_down: true,
        switches: switch::EXTENSIONS,
    }
}

fn messages() -> Vec<BusMessage> {
    let gossip = GossipEntry {
        id: NodeId::random(),
        ping_sent_s: 1,
        pong_received_s: 2,
        ip: "::1".into(),
        port: 1,
        other_port: 2,
        bus_port: 3,
        flags: NodeFlags::REPLICA,
    };
    let extensions = Extensions {
        announced: AnnouncedAddress {
            hostname: "host".into(),
            human_name: "seven77".into(),
            client_ipv4: "1.2.3.4".into(),
            client_ipv6: "::2".into(),
            availability_zone: "zone".into(),
            client_port: 77,
            client_tls_port: 78,
        },
        shard: Some(NodeId::random()),
        forgotten: vec![(NodeId::random(), 60)],
    };
    let publish = |header| BusMessage::Publish {
        header,
        is_sharded: true,
        channel: b"channel".to_vec(),
        payload: b"payload".to_vec(),
    };
    vec![
        BusMessage::Ping {
            kind: MessageType::Meet,
            header: header(),
            gossip: vec![gossip.clone(), gossip],
            extensions,
        },
        BusMessage::Fail(header(), NodeId::random()),
        publish(None),
        publish(Some(header())),
        BusMessage::VoteRequest(header()),
        BusMessage::Vote(header()),
        BusMessage::ManualFailover(header()),
        BusMessage::Update {
            header: header(),
            id: NodeId::random(),
            config_epoch: 8,
            slots: SlotSet::default(),
        },
    ]
}

/// Returns all messages of [`messages`], and those of modules.
fn all_messages() -> Vec<BusMessage> {
    let of_module = |header| BusMessage::Module {
        header,
        module: 0x0102_0304_0506_0708,
        kind: 200,
        payload: b"payload".to_vec(),
    };
    let of_modules = [of_module(None), of_module(Some(header()))];
    messages().into_iter().chain(of_modules).collect()
}

#[test]
fn messages_are_decoded_as_encoded() {
    for message in all_messages() {
        let bytes = encode(&message);
        assert_eq!(length(&bytes), Ok(Some(bytes.len())));
        assert_eq!(decode(&bytes), Ok(message));
    }
}

#[test]
fn every_truncation_is_detected() {
    for message in all_messages() {
        let bytes = encode(&message);
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{end} of {}", bytes.len());
        }
    }
}

#[test]
fn damage_is_an_error_or_another_message() {
    let all: Vec<Vec<u8>> = all_messages().iter().map(encode).collect();
    for _ in 0..20_000 {
        let mut bytes = all[fastrand::usize(..all.len())].clone();
        for _ in 0..fastrand::usize(1..8) {
            // Damage to lengths, counts and types is the most dangerous.
            let place = match fastrand::bool() {
                true => fastrand::usize(..16),
                false => fastrand::usize(..bytes.len()),
            };
            bytes[place] = fastrand::u8(..);
        }
        bytes.truncate(fastrand::usize(..=bytes.len()));
        let _ = (length(&bytes), kind(&bytes));
        if let Ok(message) = decode(&bytes) {
            assert_eq!(decode(&encode(&message)), Ok(message));
        }
    }
}

#[test]
fn a_pong_of_valkey_is_decoded() {
    // The end of a PONG from Valkey 9.1.2: hostname, client port, and an unknown extension type.
    let mut bytes = encode(&BusMessage::Ping {
        kind: MessageType::Pong,
        header: header(),
        gossip: Vec::new(),
        extensions: Extensions::default(),
    });
    bytes.extend_from_slice(b"\0\0\0\x10\0\0\0\0foo.bar\0");
    bytes.extend_from_slice(b"\0\0\0\x10\0\x06\0\0\x03\x09\0\0\0\0\0\0");
    bytes.extend_from_slice(b"\0\0\0\x10\0\x63\0\0whatever");
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_be_bytes());
    bytes[2214..2216].copy_from_slice(&3u16.to_be_bytes());
    let Ok(BusMessage::Ping { extensions, .. }) = decode(&bytes) else {
        panic!("it is a greeting");
    };
    assert_eq!(extensions.announced.hostname, "foo.bar");
    assert_eq!(extensions.announced.client_port, 777);
}

/// Returns the address of the header and that of the gossip after `bytes` were decoded.
fn decoded_addresses(bytes: &[u8]) -> [String; 2] {
    match decode(bytes) {
        Ok(BusMessage::Ping { header, gossip, .. }) => [header.ip, gossip[0].ip.clone()],
        other => panic!("{other:?}"),
    }
}

#[test]
fn addresses_of_every_length_are_passed_on_unchanged() {
    let [ping, ..] = <[BusMessage; 8]>::try_from(messages()).expect("all kinds");
    let (in_header, in_gossip) = (2168, HEADER_BYTES + NODE_ID_BYTES + 8);
    for length in 0..=ADDRESS_BYTES {
        let sent = "0123456789abcdef:".repeat(3)[..length].to_owned();
        let mut bytes = encode(&ping);
        for start in [in_header, in_gossip] {
            let field = &mut bytes[start..start + ADDRESS_BYTES];
            field.fill(0);
            field[..length].copy_from_slice(sent.as_bytes());
        }
        let received = decoded_addresses(&bytes);
        let kept = &sent[..length.min(ADDRESS_LENGTH_MAX)];
        assert_eq!(received, [kept, kept]);
        let passed_on = decode(&bytes).map(|message| encode(&message)).expect("it is sound");
        assert_eq!(decoded_addresses(&passed_on), received);
    }
}

#[test]
fn an_address_that_is_too_long_is_truncated() {
    let long = "1".repeat(ADDRESS_BYTES + 20);
    let message = BusMessage::Vote(Header {
        ip: long.clone(),
        ..header()
    });
    match decode(&encode(&message)) {
        Ok(BusMessage::Vote(header)) => assert_eq!(header.ip, long[..ADDRESS_LENGTH_MAX]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn announced_ip_addresses_stay_as_they_are_or_are_missing() {
    for (sent, received) in [("::0:1", "::0:1"), ("1::0", "1::0"), ("host", ""), ("1.2.3.4", "")] {
        let mut ping = messages().swap_remove(0);
        if let BusMessage::Ping { extensions, .. } = &mut ping {
            extensions.announced.client_ipv6 = sent.to_owned();
            extensions.announced.client_ipv4 = sent.to_owned();
        }
        match decode(&encode(&ping)) {
            Ok(BusMessage::Ping { extensions, .. }) => {
                assert_eq!(extensions.announced.client_ipv6, received);
                let is_ipv4 = sent == "1.2.3.4";
                assert_eq!(extensions.announced.client_ipv4, if is_ipv4 { sent } else { "" });
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn names_may_contain_letters_of_any_script_but_no_separators() {
    for (name, is_kept) in [
        ("K\u{f6}ln", true),
        ("a b", false),
        ("a\u{2003}b", false),
        ("a,b", false),
        ("zone=\"1\"", false),
    ] {
        let mut ping = messages().swap_remove(0);
        if let BusMessage::Ping { extensions, .. } = &mut ping {
            extensions.announced.human_name = name.to_owned();
            extensions.announced.availability_zone = name.to_owned();
            extensions.announced.hostname = "host.example".to_owned();
        }
        let Ok(BusMessage::Ping { extensions, .. }) = decode(&encode(&ping)) else {
            unreachable!("the message counts: {name}");
        };
        let kept = if is_kept { name } else { "" };
        let announced = extensions.announced;
        assert_eq!((&*announced.human_name, &*announced.availability_zone), (kept, kept));
        assert_eq!(announced.hostname, "host.example");
    }
}
