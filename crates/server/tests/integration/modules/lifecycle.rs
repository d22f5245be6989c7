//! Loading and unloading, at the start and by commands.

use super::{module, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;

const LOAD_ERROR: &str = "ERR Error loading the extension. Please check the server logs.";

fn start(workers: u8) -> Server {
    start_with(workers, &[], &["--enable-module-command", "yes"])
}

#[test]
fn a_module_is_loaded_listed_and_unloaded() {
    for workers in [1, 4] {
        let server = start(workers);
        let path = module("home");
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["MODULE", "LOAD", &path, "a", "b c"]), "OK");
        let list = client.call(&["MODULE", "LIST"]);
        let entry = format!("(name home ver 7 path {path} args (a b c))");
        assert!(list.contains(&entry), "{list} lacks {entry}");
        let info = client.call(&["INFO", "modules"]);
        let line = "module:name=home,ver=7,api=1,filters=0,usedby=[],using=[],options=[]";
        assert!(info.contains(line), "{info}");
        assert_eq!(client.call(&["HOME.CHECK"]), "OK");
        assert_eq!(client.call(&["MODULE", "LOAD", &path]), LOAD_ERROR, "the name is taken");
        assert_eq!(client.call(&["home.check"]), "OK");

        assert_eq!(client.call(&["MODULE", "UNLOAD", "home"]), "OK");
        assert_eq!(
            client.call(&["home.check"]),
            "ERR unknown command 'home.check', with args beginning with:"
        );
        assert!(!client.call(&["MODULE", "LIST"]).contains("home"));
        assert_eq!(client.call(&["MODULE", "LOAD", &path]), "OK", "it can be loaded again");
        assert_eq!(client.call(&["home.check"]), "OK");
    }
}

#[test]
fn a_failed_load_leaves_nothing_behind() {
    let server = start(2);
    let path = module("home");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["MODULE", "LOAD", &path, "fail"]), LOAD_ERROR);
    assert_eq!(client.call(&["MODULE", "LOAD", "/nonexistent.so"]), LOAD_ERROR);
    assert_eq!(client.call(&["MODULE", "LOADEX", &path, "CONFIG", "x"]), LOAD_ERROR);
    assert_eq!(client.call(&["MODULE", "LOADEX", &path, "NONSENSE"]), LOAD_ERROR);
    assert!(!client.call(&["MODULE", "LIST"]).contains("home"));
    assert!(client.call(&["home.check"]).starts_with("ERR unknown command"));
    assert_eq!(client.call(&["COMMAND", "INFO", "home.check"]), "(-)");
    assert_eq!(client.call(&["MODULE", "LOADEX", &path, "ARGS", "a"]), "OK");
    assert_eq!(client.call(&["home.check"]), "OK");
}

#[test]
fn loading_and_unloading_again_takes_little_memory() {
    let server = start(1);
    let path = module("home");
    let mut client = Client::connect(server.port);
    let mut used_after = |rounds: usize| {
        for _ in 0..rounds {
            assert_eq!(client.call(&["MODULE", "LOAD", &path]), "OK");
            assert_eq!(client.call(&["MODULE", "UNLOAD", "home"]), "OK");
        }
        let info = client.call(&["INFO", "memory"]);
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.expect("the figure").trim().parse::<i64>().expect("a number")
    };
    let before = used_after(2);
    let growth = used_after(20) - before;
    assert!(growth < 20 * 40_000, "{growth} bytes in 20 rounds");
}

#[test]
fn a_module_may_refuse_to_be_unloaded() {
    let server = start(2);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["MODULE", "LOAD", &module("home"), "stay"]), "OK");
    assert_eq!(
        client.call(&["MODULE", "UNLOAD", "home"]),
        "ERR Error unloading module: operation not possible."
    );
    assert_eq!(client.call(&["home.check"]), "OK");
    assert_eq!(
        client.call(&["MODULE", "UNLOAD", "other"]),
        "ERR Error unloading module: no such module with that name"
    );
}

#[test]
fn commands_of_an_unloaded_module_that_are_queued_fail() {
    for workers in [1, 4] {
        let server = start(workers);
        let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
        assert_eq!(client.call(&["MODULE", "LOAD", &module("home")]), "OK");
        client.call(&["MULTI"]);
        assert_eq!(client.call(&["home.add", "k"]), "QUEUED");
        assert_eq!(other.call(&["MODULE", "UNLOAD", "home"]), "OK");
        let reply = client.call(&["EXEC"]);
        assert!(reply.contains("unknown command"), "{reply}");
        assert_eq!(client.call(&["EXISTS", "k"]), "0");
    }
}

#[test]
fn the_command_is_protected() {
    let server = start_with(2, &[&["home"]], &[]);
    let mut client = Client::connect(server.port);
    let reply = client.call(&["MODULE", "LOAD", "/nonexistent.so"]);
    assert!(reply.starts_with("ERR MODULE command not allowed."), "{reply}");
    assert_eq!(client.call(&["home.check"]), "OK", "the module of the configuration");
}

#[test]
fn users_of_the_configuration_may_name_commands_of_modules() {
    let user = ["--user", "alice", "on", "nopass", "+home.check", "~*"];
    let server = start_with(2, &[&["home"]], &user);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["AUTH", "alice", ""]), "OK");
    assert_eq!(client.call(&["home.check"]), "OK");
    let reply = client.call(&["home.add", "k"]);
    assert!(reply.starts_with("NOPERM"), "{reply}");
}
