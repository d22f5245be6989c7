//! What comparisons of programs with Valkey (`cargo xtask diff --only modules`) have found.

use super::{raw_call, read_reply, start, start_with};
use crate::harness::client::Client;

/// Runs a program, which is given as one text, on the keys `a`, `b` and `c`.
fn run(client: &mut Client, program: &str) -> String {
    let words: Vec<&str> = ["program.run", "a", "b", "c"]
        .into_iter()
        .chain(program.split(' '))
        .collect();
    raw_call(client, &words)
}

#[test]
fn events_of_a_modules_accesses_reach_modules_at_once() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["interpreter", "events"]], &[]);
        let mut client = Client::connect(server.port);
        raw_call(&mut client, &["PING"]);
        // The commands come together, so that an event that is sent later comes too late.
        client.send(&["program.read", "a", "b", "c", "key.open", "3", "0", "0", "0"]);
        client.send(&["program.log"]);
        client.send(&[
            "program.run",
            "a",
            "b",
            "c",
            "key.open",
            "3",
            "0",
            "1",
            "1",
            "list.push",
            "3",
            "0",
            "head",
            "x",
        ]);
        client.send(&["program.log"]);
        let replies = [(); 4].map(|()| {
            let mut reply = Vec::new();
            read_reply(&mut client, &mut reply);
            String::from_utf8_lossy(&reply).replace("\r\n", " ")
        });
        assert!(replies[1].contains("event 2048 keymiss a in 0"), "{replies:?}");
        assert!(replies[3].contains("event 16384 new b in 0"), "{replies:?}");
    }
}

#[test]
fn events_of_accesses_precede_what_the_module_publishes() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["interpreter"]], &["--notify-keyspace-events", "KAm"]);
        let mut listener = Client::connect(server.port);
        raw_call(&mut listener, &["PSUBSCRIBE", "*"]);
        let mut client = Client::connect(server.port);
        for publishes in [
            "publish 2 channel x",
            "event.notify 3 8192 own 1",
            "call 5 0 E publish channel x",
        ] {
            run(&mut client, &format!("key.open 3 0 0 0 {publishes}"));
            let [first, second] = [(); 2].map(|()| {
                let mut message = Vec::new();
                read_reply(&mut listener, &mut message);
                String::from_utf8_lossy(&message).into_owned()
            });
            assert!(first.contains("keymiss"), "{publishes}: {first}");
            assert!(!second.contains("keymiss"), "{publishes}: {second}");
        }
    }
}

#[test]
fn an_event_may_have_several_classes() {
    let server = start_with(4, &[&["interpreter", "events"]], &["--notify-keyspace-events", "Eg"]);
    let mut listener = Client::connect(server.port);
    raw_call(&mut listener, &["PSUBSCRIBE", "*"]);
    let mut client = Client::connect(server.port);
    // Generic and list.
    run(&mut client, "event.notify 3 20 happened 0");
    assert!(raw_call(&mut client, &["program.log"]).contains("event 20 happened a in 0"));
    let mut message = Vec::new();
    read_reply(&mut listener, &mut message);
    assert!(String::from_utf8_lossy(&message).contains("__keyevent@0__:happened"));
}

#[test]
fn the_digest_of_a_value_is_that_of_valkey() {
    let server = start_with(4, &[&["interpreter"]], &["--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    run(&mut client, "key.open 3 0 0 1 value.set 2 0 3");
    let digest = raw_call(&mut client, &["DEBUG", "DIGEST-VALUE", "a"]);
    assert_eq!(digest, "*1 +b798e0e3714585a3211ae74ee3b31a42b5683194");
}

#[test]
fn a_call_for_no_user_has_none() {
    let server = start(4, "interpreter");
    let mut client = Client::connect(server.port);
    assert_eq!(run(&mut client, "nested 3 user.act 1 no"), "*1 *1 $-1");
    assert_eq!(
        run(&mut client, "call 4 0 E acl whoami call.show 2 0 reply"),
        "*2 :4 $-1"
    );
    // ENOTSUP
    assert_eq!(run(&mut client, "nested 6 call 4 0 C get a"), "*1 *1 *2 :-1 :95");
    assert!(run(&mut client, "nested 6 call 4 0 EC get a").contains("*1 *1 :1"));
    assert_eq!(run(&mut client, "call 4 0 C get a"), "*1 :4");
}

#[test]
fn a_call_cannot_reset_a_client() {
    let server = start(4, "interpreter");
    let mut client = Client::connect(server.port);
    let reply = run(&mut client, "call 3 0 E reset call.show 2 0 string");
    assert_eq!(reply, "*2 :1 $44 ERR can only reset normal client connections");
}

#[test]
fn keys_of_a_command_that_stores_end_with_the_target() {
    let server = start(4, "interpreter");
    let mut client = Client::connect(server.port);
    let reply = run(&mut client, "command.keys 5 zunionstore a 2 b c");
    assert_eq!(reply, "*1 *6 :3 :0 :4 :0 :1 :0");
}
