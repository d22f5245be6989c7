//! Commands that modules register: their metadata, their keys, rules about them, and their end.

use std::thread;

use super::{module, start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;

fn connect(server: &Server) -> Client {
    Client::connect(server.port)
}

#[test]
fn commands_show_their_metadata() {
    let server = start(1, "registry");
    let mut client = connect(&server);
    let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
    let key = "(notes the source flags (RO access) begin_search (type index spec (index 1)) find_keys (type range spec \
               (lastkey 0 keystep 1 limit 0)))";
    let target = "(flags (OW update) begin_search (type keyword spec (keyword TO startfrom 2)) find_keys (type range spec \
                  (lastkey -1 keystep 2 limit 0)))";
    let counted = "(flags (RM) begin_search (type keyword spec (keyword COUNT startfrom -1)) find_keys (type keynum spec \
                   (keynumidx 0 firstkey 1 keystep 1)))";
    let info = call("COMMAND INFO registry.copy");
    let flags = "write denyoom module fast movablekeys";
    let tips = "request_policy:all_shards nondeterministic_output";
    let expected = format!("((Registry.Copy -3 ({flags}) 1 1 1 (@read) ({tips}) ({key} {target} {counted}) ()))");
    assert_eq!(info, expected);
    assert!(call("COMMAND INFO registry.box|put").contains("(@write @shapes)"));
    assert!(call("COMMAND INFO registry.pairs").contains("(module no_mandatory_keys movablekeys)"));
    let docs = call("COMMAND DOCS registry.copy");
    for part in [
        "summary Copies between keys. since 1.2.3 group module",
        "module registry",
        "((1.3.0 Was changed.))",
        "display_text from",
    ] {
        assert!(docs.contains(part), "{part} is not in {docs}");
    }
    let box_docs = "subcommands (registry.box|put (group module module registry) registry.box|TAKE (group module module registry))";
    assert_eq!(
        call("COMMAND DOCS registry.box"),
        format!("(registry.box (group module module registry {box_docs}))")
    );
    assert_eq!(call("registry.late"), "OK");
    assert!(call("COMMAND DOCS registry.box").starts_with("(registry.box (summary Comes late. group"));
    assert_eq!(call("registry.late"), "EEXIST");
    assert_eq!(call("COMMAND LIST FILTERBY MODULE nosuch"), "()");
    assert_eq!(call("COMMAND LIST FILTERBY ACLCAT shapes"), "(registry.box|put)");
    assert_eq!(call("ACL CAT shapes"), "(registry.box|put)");
    let count = |text: String| text.split(' ').count();
    assert_eq!(count(call("COMMAND LIST FILTERBY MODULE registry")), 9);
    assert_eq!(count(call("COMMAND LIST FILTERBY PATTERN registry.*")), 9);
}

#[test]
fn commands_run_by_name_and_are_counted() {
    let server = start(2, "registry");
    let mut client = connect(&server);
    let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(call("REGISTRY.copy a b"), "Registry.Copy");
    assert_eq!(call("registry.box PUT k"), "registry.box|put");
    assert_eq!(call("registry.box take k"), "registry.box|TAKE");
    assert_eq!(
        call("registry.copy a"),
        "ERR wrong number of arguments for 'Registry.Copy' command"
    );
    assert_eq!(
        call("registry.box nosuch"),
        "ERR unknown subcommand 'nosuch'. Try REGISTRY.BOX HELP."
    );
    assert_eq!(
        call("registry.box"),
        "ERR wrong number of arguments for 'registry.box' command"
    );
    assert_eq!(
        call("registry.empty x"),
        "ERR wrong number of arguments for 'registry.empty' command"
    );
    let stats = call("INFO commandstats");
    assert!(stats.contains("cmdstat_Registry.Copy:calls=1,") && stats.contains("cmdstat_registry.box|TAKE:calls=1,"));
    assert!(call("LATENCY HISTOGRAM registry.box").contains("registry.box|put"));
    assert_eq!(call("CONFIG RESETSTAT"), "OK");
    assert!(!call("INFO commandstats").contains("registry"));
}

#[test]
fn keys_are_found_by_specs_or_by_the_module_on_its_thread() {
    for workers in [1, 4] {
        let server = start(workers, "registry");
        for _ in 0..4 {
            let mut client = connect(&server);
            let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
            assert_eq!(call("COMMAND GETKEYS registry.copy a TO b x c"), "(a b c)");
            assert_eq!(call("COMMAND GETKEYS registry.box put k"), "(k)");
            assert_eq!(call("COMMAND GETKEYS registry.pairs 1 a b c d"), "(a c)");
            let flags = "((a (OW update)) (c (OW update)))";
            assert_eq!(call("COMMAND GETKEYSANDFLAGS registry.pairs 1 a b c d"), flags);
            assert_eq!(call("COMMAND GETKEYS registry.pairs"), "()");
            assert_eq!(
                call("COMMAND GETKEYS registry.late"),
                "ERR The command has no key arguments"
            );
            assert_eq!(call("registry.keys registry.pairs 1 a b c d"), "(2 36 4 36)");
            assert_eq!(call("registry.keys registry.copy a TO b"), "(1 0)");
            assert_eq!(call("registry.keys set k v"), "(1 36)");
            assert_eq!(call("registry.keys mset a 1 b 2"), "(1 0 3 0)");
            assert_eq!(call("registry.keys get"), "-22");
            assert_eq!(call("registry.keys nosuch"), "-2");
            assert_eq!(call("registry.keys ping"), "0");
        }
    }
}

#[test]
fn rules_of_users_apply_to_commands_of_modules() {
    for workers in [1, 4] {
        let server = start_with(workers, &[], &["--enable-module-command", "yes"]);
        let mut client = connect(&server);
        let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(call("ACL SETUSER all on nopass +@all ~k* resetchannels &c*"), "OK");
        assert_eq!(call("ACL SETUSER reader on nopass -@all +@read +acl|whoami ~*"), "OK");
        assert_eq!(call(&format!("MODULE LOAD {}", module("registry"))), "OK");
        assert_eq!(call("ACL DRYRUN reader registry.copy a b"), "OK");
        let denied = "User reader has no permissions to run the 'registry.box|put' command";
        assert_eq!(call("ACL DRYRUN reader registry.box put k"), denied);
        assert_eq!(call("ACL SETUSER reader +@shapes"), "OK");
        assert_eq!(call("ACL DRYRUN reader registry.box put k"), "OK");
        assert_eq!(call("ACL DRYRUN all registry.pairs 1 k1 x k2 y"), "OK");
        let denied = "User all has no permissions to access the 'm2' key";
        assert_eq!(call("ACL DRYRUN all registry.pairs 1 k1 x m2 y"), denied);
        let denied = "User all has no permissions to access the 'd' channel";
        assert_eq!(call("ACL DRYRUN all registry.shout d"), denied);
        assert_eq!(
            call("ACL DRYRUN all registry.shout c1 d"),
            "OK",
            "to end a subscription is allowed"
        );
        for _ in 0..4 {
            let mut user = connect(&server);
            assert_eq!(user.call(&["AUTH", "all", "x"]), "OK");
            assert_eq!(user.call(&["registry.pairs", "1", "k1", "x"]), "OK");
            let denied = "NOPERM No permissions to access a key";
            assert_eq!(user.call(&["registry.pairs", "1", "k1", "x", "m2", "y"]), denied);
            assert_eq!(user.call(&["registry.shout", "c1"]), "OK");
            assert_eq!(
                user.call(&["registry.shout", "d"]),
                "NOPERM No permissions to access a channel"
            );
        }
    }
}

#[test]
fn a_module_is_not_unloaded_while_rules_name_its_commands() {
    let server = start_with(1, &[&["registry"]], &["--enable-module-command", "yes"]);
    let mut client = connect(&server);
    let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
    let refused = "ERR Error unloading module: one or more ACL users reference commands from this module. Remove those \
                   ACL rules before unloading";
    for rule in [
        "+registry.copy",
        "-registry.box",
        "+registry.box|take",
        "+registry.late|word",
    ] {
        assert_eq!(call(&format!("ACL SETUSER joe on {rule}")), "OK");
        assert_eq!(call("MODULE UNLOAD registry"), refused, "{rule}");
        assert_eq!(call("ACL DELUSER joe"), "1");
    }
    assert_eq!(client.call(&["ACL", "SETUSER", "joe", "(+registry.copy ~x)"]), "OK");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "registry"]), refused);
    assert_eq!(client.call(&["ACL", "DELUSER", "joe"]), "1");
    assert_eq!(client.call(&["ACL", "SETUSER", "joe", "+@shapes"]), "OK");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "registry"]), "OK");
    assert_eq!(client.call(&["ACL", "CAT", "shapes"]), "()", "the category stays");
    let unknown = client.call(&["registry.copy", "a", "b"]);
    assert!(unknown.starts_with("ERR unknown command 'registry.copy'"), "{unknown}");
    assert_eq!(client.call(&["COMMAND", "INFO", "registry.copy"]), "(-)");
    let path = module("registry");
    assert_eq!(
        client.call(&["MODULE", "LOAD", &path]),
        "OK",
        "its category is its own again"
    );
    assert_eq!(
        client.call(&["ACL", "DRYRUN", "joe", "registry.box", "put", "k"]),
        "User joe has no permissions to access the 'k' key"
    );
}

#[test]
fn a_command_that_was_queued_fails_when_its_module_is_gone() {
    let server = start_with(2, &[&["registry"]], &["--enable-module-command", "yes"]);
    let (mut client, mut admin) = (connect(&server), connect(&server));
    assert_eq!(client.call(&["MULTI"]), "OK");
    assert_eq!(client.call(&["registry.box", "put", "k"]), "QUEUED");
    assert_eq!(client.call(&["SET", "k", "1"]), "QUEUED");
    assert_eq!(admin.call(&["MODULE", "UNLOAD", "registry"]), "OK");
    assert_eq!(client.call(&["EXEC"]), "(ERR unknown command 'registry.box' OK)");
    assert_eq!(client.call(&["MULTI"]), "OK");
    assert_eq!(client.call(&["SET", "k", "2"]), "QUEUED");
    assert_eq!(admin.call(&["MODULE", "LOAD", &module("registry")]), "OK");
    assert_eq!(client.call(&["registry.box", "put", "k"]), "QUEUED");
    assert_eq!(client.call(&["EXEC"]), "(OK registry.box|put)");
}

#[test]
fn modules_come_and_go_while_clients_use_commands() {
    let server = start_with(4, &[], &["--enable-module-command", "yes"]);
    let port = server.port;
    let clients = (0..3).map(|number| {
        thread::spawn(move || {
            let mut client = Client::connect(port);
            for round in 0..400 {
                let reply = client.call(&["registry.copy", "a", "b"]);
                assert!(
                    reply == "Registry.Copy" || reply.starts_with("ERR unknown command"),
                    "{reply}"
                );
                assert_eq!(client.call(&["SET", &format!("k{number}"), &round.to_string()]), "OK");
                let reply = client.call(&["COMMAND", "GETKEYS", "registry.pairs", "1", "a", "b"]);
                assert!(
                    reply == "(a)" || reply == "ERR Invalid command specified" || reply == "()",
                    "{reply}"
                );
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut admin = connect(&server);
    let path = module("registry");
    for _ in 0..15 {
        assert_eq!(admin.call(&["MODULE", "LOAD", &path]), "OK");
        assert_eq!(admin.call(&["MODULE", "UNLOAD", "registry"]), "OK");
    }
    clients
        .into_iter()
        .for_each(|client| client.join().expect("a client succeeds"));
}

#[test]
fn there_are_as_many_categories_as_in_valkey() {
    let server = start_with(1, &[&["registry", "categories"]], &[]);
    let mut client = connect(&server);
    assert_eq!(client.call(&["ACL", "CAT"]).split(' ').count(), 64);
}
