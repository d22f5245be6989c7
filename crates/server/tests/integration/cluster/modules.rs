//! Tests values of modules in a cluster: slots that migrate, and failover.

use super::failover::{KEY, fail_over_to, weft_with};
use super::migration::{count_keys, job, migrate, move_slots};
use super::wait_until;
use crate::harness::client::Client;
use crate::modules::key_events::{LOGGED, logged};
use crate::modules::module;

fn key(number: usize) -> String {
    format!("{KEY}{number}")
}

#[test]
fn values_move_with_their_slots() {
    for workers in ["1", "4"] {
        let path = module("types");
        let load = ["--loadmodule", &path, "io-errors", "migrates", "--io-threads", workers];
        let mut nodes = weft_with(3, &load);
        for number in 0..200 {
            let value = number.to_string();
            assert_eq!(nodes[0].call(&["types.set", &key(number), &value]), "OK");
        }
        assert_eq!(nodes[0].call(&["PEXPIREAT", &key(7), "9000000000000"]), "1");
        for (from, to) in [(0, 1), (1, 0)] {
            move_slots(&mut nodes, from, to);
            wait_until("the old owner has no key", || count_keys(&mut nodes[from]) == "0");
            for number in (0..200).step_by(9) {
                assert_eq!(nodes[to].call(&["types.get", &key(number)]), number.to_string());
            }
            assert_eq!(nodes[to].call(&["PEXPIRETIME", &key(7)]), "9000000000000");
            assert!(nodes[from].call(&["types.get", &key(1)]).starts_with("MOVED 3300 "));
        }
    }
}

/// The keys of a slot that another node has taken are deleted here. Modules get the events of that, clients do not.
#[test]
fn modules_get_the_deletions_of_a_lost_slot() {
    for workers in ["1", "4"] {
        let path = module("key_events");
        let mut nodes = weft_with(3, &["--loadmodule", &path, "--io-threads", workers]);
        for number in 0..3 {
            assert_eq!(nodes[0].call(&["SET", &key(number), "1"]), "OK");
        }
        assert_eq!(nodes[0].call(&["key_events.counts"]), "(3 0 0)");
        let target = nodes[1].id.clone();
        assert!(nodes[1].call(&["CLUSTER", "BUMPEPOCH"]).starts_with("BUMPED "));
        assert_eq!(nodes[1].call(&["CLUSTER", "SETSLOT", "3300", "NODE", &target]), "OK");
        wait_until("the old owner has no key", || count_keys(&mut nodes[0]) == "0");
        wait_until("the module has had the events", || {
            nodes[0].call(&["key_events.counts"]) == "(6 0 0)"
        });
    }
}

/// Each of these deletions is a unit: the key, and what the module writes because of the event.
#[test]
fn deletions_of_a_lost_slot_are_units_with_their_events() {
    for workers in ["2", "8"] {
        let path = module("key_events");
        let arguments = [&["--loadmodule", &path, "--io-threads", workers], &LOGGED[..]].concat();
        let mut nodes = weft_with(3, &arguments);
        let mut slot_of = |name: &str| {
            let slot = nodes[0].call(&["CLUSTER", "KEYSLOT", name]);
            slot.parse::<u32>().expect("a slot")
        };
        // What the module writes is in another slot of the same node.
        let (name, slot) = (0..)
            .map(|number| format!("count:{number}"))
            .find_map(|name| {
                let (slot, other) = (slot_of(&name), slot_of(&format!("{name}:seen")));
                (slot < 5000 && other < 5000 && slot != other).then_some((name, slot))
            })
            .expect("one of them is");
        let added = format!("add:{{{name}}}");
        for name in [&name, &added] {
            assert_eq!(nodes[0].call(&["SET", name, "1"]), "OK");
        }
        let target = nodes[1].id.clone();
        assert!(nodes[1].call(&["CLUSTER", "BUMPEPOCH"]).starts_with("BUMPED "));
        let request = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &target];
        assert_eq!(nodes[1].call(&request), "OK");
        wait_until("the old owner has no key in the slot", || {
            nodes[0].call(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]) == "0"
        });
        let counted = format!("MULTI|UNLINK {name}|INCR {name}:seen|EXEC");
        let replicated = format!("MULTI|UNLINK {added}|INCR {added}:added|EXEC");
        wait_until("both units are in the file", || {
            let commands = logged(nodes[0].server());
            commands.ends_with(&format!("{counted}|{replicated}"))
                || commands.ends_with(&format!("{replicated}|{counted}"))
        });
    }
}

/// While a slot migrates, its counters change in place. Each change that was acknowledged reaches the new owner.
#[test]
fn changes_during_a_migration_are_not_lost() {
    let path = module("types");
    let load = ["--loadmodule", &path, "io-errors", "migrates", "--io-threads", "4"];
    let mut nodes = weft_with(3, &load);
    for number in 0..100 {
        assert_eq!(nodes[0].call(&["types.set", &key(number), "0"]), "OK");
    }
    migrate(&mut nodes, 0, 1);
    let mut acknowledged = 0;
    while job(&mut nodes[0], "state") != "success" {
        let reply = nodes[0].call(&["types.incr", &key(acknowledged % 100)]);
        match reply.parse::<u64>() {
            Ok(_) => acknowledged += 1,
            Err(_) => assert!(reply.starts_with("MOVED "), "{reply}"),
        }
    }
    wait_until("the target owns the slot", || {
        !nodes[1].call(&["types.get", &key(0)]).starts_with("MOVED")
    });
    let sum: usize = (0..100)
        .map(|number| {
            let value = nodes[1].call(&["types.get", &key(number)]);
            value.parse::<usize>().expect("a number")
        })
        .sum();
    assert_eq!(sum, acknowledged);
}

#[test]
fn a_module_that_cannot_handle_migrations_prevents_them() {
    let path = module("types");
    let mut nodes = weft_with(3, &["--loadmodule", &path]);
    let target = nodes[1].id.clone();
    let request = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "3300", "3300", "NODE", &target];
    let reply = nodes[0].call(&request);
    assert!(
        reply.starts_with("ERR The module types does not support atomic slot migrations"),
        "{reply}"
    );
}

#[test]
fn clients_that_modules_have_blocked_follow_the_slots() {
    let path = module("blocking");
    let mut nodes = weft_with(3, &["--loadmodule", &path, "--io-threads", "4"]);
    let mut for_key = Client::connect(nodes[0].port);
    let mut for_module = Client::connect(nodes[0].port);
    for_key.send(&["blocking.pop", "0", &key(0)]);
    for_module.send(&["blocking.hold", "0"]);
    nodes[0].client.wait_for_info("blocked_clients", "2");
    let target = nodes[1].id.clone();
    for node in [1, 0] {
        assert_eq!(nodes[node].call(&["CLUSTER", "SETSLOT", "3300", "NODE", &target]), "OK");
    }
    assert_eq!(for_key.answer(), format!("MOVED 3300 127.0.0.1:{}", nodes[1].port));
    assert_eq!(nodes[0].client.info("total_blocking_keys"), "0");
    assert_eq!(nodes[0].call(&["blocking.release"]), "0");
    assert_eq!(for_module.answer(), "(blocking.hold 9)");
}

#[test]
fn values_survive_a_failover() {
    for workers in ["1", "4"] {
        let path = module("types");
        let mut nodes = weft_with(6, &["--loadmodule", &path, "--io-threads", workers]);
        for number in 0..100 {
            let value = number.to_string();
            assert_eq!(nodes[0].call(&["types.set", &key(number), &value]), "OK");
        }
        assert_eq!(nodes[0].call(&["types.incr", &key(5)]), "6");
        fail_over_to(&mut nodes[3]);
        for number in 0..100 {
            let expected = number + usize::from(number == 5);
            assert_eq!(nodes[3].call(&["types.get", &key(number)]), expected.to_string());
        }
        let port = nodes[3].port;
        wait_until("the old primary follows", || nodes[0].follows(port));
        assert_eq!(nodes[3].call(&["types.incr", &key(5), &key(6)]), "14");
        wait_until("a replica has the change", || {
            nodes[3]
                .call(&["WAIT", "1", "1000"])
                .parse::<u64>()
                .is_ok_and(|count| count > 0)
        });
        fail_over_to(&mut nodes[0]);
        assert_eq!(nodes[0].call(&["types.get", &key(5)]), "7");
    }
}
