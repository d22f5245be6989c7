//! Tests what clients notice of hash fields that expire without a command.

use super::{Client, Server};
use crate::harness::wait_until;

#[test]
fn a_field_that_expires_is_a_change_of_its_watched_hash() {
    for workers in ["2", "8"] {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
        for classes in ["", "KEA"] {
            assert_eq!(client.call(&["CONFIG", "SET", "notify-keyspace-events", classes]), "OK");
            // The watch must begin before the field expires, which takes a busy machine longer.
            let is_watched_in_time = |life_ms: &str| {
                client.call(&["DEL", "hash"]);
                assert_eq!(client.call(&["HSET", "hash", "field", "1", "other", "2"]), "2");
                assert_eq!(
                    client.call(&["HPEXPIRE", "hash", life_ms, "FIELDS", "1", "field"]),
                    "(1)"
                );
                assert_eq!(client.call(&["WATCH", "hash"]), "OK");
                let is_in_time = other.call(&["HLEN", "hash"]) == "2";
                if !is_in_time {
                    assert_eq!(client.call(&["UNWATCH"]), "OK");
                }
                is_in_time
            };
            assert!(
                ["100", "1000", "10000"].into_iter().any(is_watched_in_time),
                "the hash is never watched in time"
            );
            wait_until("the field is deleted", || other.call(&["HLEN", "hash"]) == "1");
            let reply = client.transact(&[&["PING"]]);
            assert_eq!(reply, "-", "{workers} workers, events '{classes}'");
        }
    }
}

#[test]
fn the_event_of_fields_that_expire_without_a_command_has_the_class_of_expired_keys() {
    const CHANNEL: &str = "__keyevent@0__:hexpired";
    for (classes, first) in [("Ex", "hash"), ("Eh", "marker")] {
        let server = Server::start(&[]);
        let (mut client, mut listener) = (Client::connect(server.port), Client::connect(server.port));
        assert_eq!(client.call(&["CONFIG", "SET", "notify-keyspace-events", classes]), "OK");
        assert_eq!(
            listener.call(&["SUBSCRIBE", CHANNEL]),
            format!("(subscribe {CHANNEL} 1)")
        );
        assert_eq!(client.call(&["HSET", "hash", "field", "1", "other", "2"]), "2");
        assert_eq!(client.call(&["HPEXPIRE", "hash", "1", "FIELDS", "1", "field"]), "(1)");
        wait_until("the field is deleted", || client.call(&["HLEN", "hash"]) == "1");
        assert_eq!(client.call(&["PUBLISH", CHANNEL, "marker"]), "1");
        let message = listener.answer();
        assert_eq!(message, format!("(message {CHANNEL} {first})"), "classes {classes}");
    }
}
