//! Values of modules where something fails: the disk is full, a payload is hostile.

use super::{raw_call, read_reply, start};
use crate::harness::client::Client;
use weft_rdb::dump_payload::append_footer;

fn set(client: &mut Client, key: &str, number: u64) {
    assert_eq!(client.call(&["types.set", key, &number.to_string()]), "OK");
}

/// Returns the payload of a key.
fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    client.send(&["DUMP", key]);
    let mut reply = Vec::new();
    read_reply(client, &mut reply);
    let start = reply.iter().position(|byte| *byte == b'\n').expect("a bulk string") + 1;
    reply[start..reply.len() - 2].to_vec()
}

/// The version and the checksum at the end of a payload, in bytes.
const FOOTER_BYTES: usize = 10;

/// Gives a payload the checksum of its bytes.
fn sign(payload: &mut Vec<u8>) {
    let body = payload.len() - FOOTER_BYTES;
    let version = u16::from_le_bytes([payload[body], payload[body + 1]]);
    payload.truncate(body);
    append_footer(payload, version);
}

#[test]
fn a_full_disk_leaves_the_old_dump_and_the_values() {
    for workers in [1, 4] {
        let server = start(workers, "types");
        let mut client = Client::connect(server.port);
        for number in 0..300 {
            set(&mut client, &format!("k{number}"), number);
        }
        assert_eq!(client.call(&["types.aux", "first", "last"]), "OK");
        assert_eq!(client.call(&["SAVE"]), "OK");
        let dump_file = server.directory.join("dump.rdb");
        let old = std::fs::read(&dump_file).expect("there is a dump");
        set(&mut client, "k0", 1000);
        // The next dump goes to a device that is always full.
        let temporary = server.directory.join(format!("temp-{}.rdb", client.info("process_id")));
        std::os::unix::fs::symlink("/dev/full", &temporary).expect("makes a link");
        assert_eq!(client.call(&["SAVE"]), "ERR");
        assert!(std::fs::read(&dump_file).expect("there is a dump") == old);
        assert_eq!(client.call(&["types.get", "k0"]), "1000");
        assert_eq!(client.call(&["SAVE"]), "OK");
        assert_eq!(client.call(&["types.incr", "k0", "k1"]), "1003");
    }
}

/// Changes every byte of a payload, and cuts it off everywhere. The module handles failed reads, and the server what
/// the module never gets.
#[test]
fn hostile_payloads_are_errors_or_values() {
    for workers in [1, 4] {
        let server = start(workers, "types");
        let mut client = Client::connect(server.port);
        set(&mut client, "k", 0x1234_5678);
        let valid = dump(&mut client, "k");
        let body = valid.len() - FOOTER_BYTES;
        let mut payloads: Vec<Vec<u8>> = Vec::new();
        for index in 0..body {
            for change in [0x01, 0x02, 0x40, 0x80, 0xff] {
                let mut payload = valid.clone();
                payload[index] ^= change;
                payloads.push(payload);
            }
            // Without the rest of the value, and with a byte twice.
            payloads.push([&valid[..index], &valid[body..]].concat());
            payloads.push([&valid[..=index], &valid[index..]].concat());
        }
        // A string that claims to be longer than all memory.
        let claim = [0x05, 0x81, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        for index in 9..body {
            payloads.push([&valid[..index], &claim, &valid[index..]].concat());
        }
        let mut accepted = 0;
        for payload in &mut payloads {
            sign(payload);
            client.send(&[b"RESTORE".as_slice(), b"r", b"0", payload, b"REPLACE"]);
            let reply = client.answer();
            match reply.as_str() {
                "OK" => accepted += 1,
                _ => assert_eq!(reply, "ERR Bad data format", "{payload:02x?}"),
            }
        }
        assert!(
            accepted < payloads.len() / 4,
            "{accepted} of {} were values",
            payloads.len()
        );
        let mut other = valid.clone();
        let last = other.len() - 1;
        other[last] ^= 1;
        client.send(&[b"RESTORE".as_slice(), b"r", b"0", &other, b"REPLACE"]);
        assert_eq!(client.answer(), "ERR DUMP payload version or checksum are wrong");
        assert_eq!(client.call(&["types.get", "k"]), 0x1234_5678.to_string());
        // What was accepted can be read and dumped, and freed.
        raw_call(&mut client, &["types.get", "r"]);
        client.call(&["FLUSHALL"]);
        assert_eq!(client.call(&["DBSIZE"]), "0");
    }
}
