//! Parameters of modules: their values, CONFIG, the configuration file, and LOADEX.

use std::fs;
use std::process::Command;
use std::thread;

use super::{module, start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;

fn connect(server: &Server) -> Client {
    Client::connect(server.port)
}

#[test]
fn values_are_read_and_set_at_home() {
    for workers in [1, 4] {
        let server = start(workers, "parameters");
        let mut client = connect(&server);
        let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
        let shown = "(parameters.Bits both parameters.choice one parameters.fixed yes parameters.flag yes parameters.large \
                     18446744073709551615 parameters.memory 1024 parameters.number 5 parameters.protected yes \
                     parameters.text )";
        let shown = shown.replace("Bits both", "Bits one two");
        assert_eq!(call("CONFIG GET parameters.*"), shown);
        assert_eq!(call("CONFIG GET PARAMETERS.Hidden"), "(PARAMETERS.Hidden yes)");
        assert_eq!(
            call("CONFIG GET parameters.number maxclients"),
            "(maxclients 10000 parameters.number 5)"
        );
        assert_eq!(call("CONFIG SET Parameters.FLAG no parameters.memory 2kb"), "OK");
        assert_eq!(
            call("CONFIG GET parameters.flag parameters.memory"),
            "(parameters.flag no parameters.memory 2048)"
        );
        assert_eq!(call("parameters.register"), "OK");
        assert_eq!(call("parameters.errors"), "(114 22 22 22 22 22)");
        assert_eq!(call("parameters.get parameters.number"), "(parameters.number 5)");
        assert_eq!(call("parameters.set parameters.number 6"), "OK");
        assert_eq!(call("parameters.get parameters.number"), "(parameters.number 6)");
        let in_transaction: &[&[&str]] = &[
            &["CONFIG", "SET", "parameters.number", "7"],
            &["CONFIG", "GET", "parameters.number"],
        ];
        assert_eq!(client.transact(in_transaction), "(OK (parameters.number 7))");
    }
}

#[test]
fn values_are_refused_with_reasons() {
    let server = start(4, "parameters");
    let mut client = connect(&server);
    let mut refused = |line: &str, reason: &str| {
        let words: Vec<&str> = line.split('/').collect();
        let name = words[0];
        let reply = client.call(&[&["CONFIG", "SET"], &words[..]].concat());
        let related = format!("ERR CONFIG SET failed (possibly related to argument '{name}')");
        let expected = if reason.is_empty() {
            related
        } else {
            format!("{related} - {reason}")
        };
        assert_eq!(reply, expected);
    };
    refused("parameters.flag/maybe", "argument must be 'yes' or 'no'");
    refused("parameters.number/1kb", "argument couldn't be parsed into an integer");
    refused(
        "parameters.number/-11",
        "argument must be between -10 and 1000000 inclusive",
    );
    refused("parameters.number/13", "13 is unlucky");
    refused("parameters.number/14", "");
    refused("parameters.memory/-1", "argument must be a memory value");
    refused(
        "parameters.large/-1",
        "argument couldn't be parsed as an unsigned number",
    );
    refused(
        "parameters.large/0",
        "argument must be between 1 and 18446744073709551615 inclusive",
    );
    let words = "argument(s) must be one of the following: none, one, two, both";
    refused("parameters.choice/one two", words);
    refused("parameters.fixed/no", "can't set immutable config");
    refused("parameters.protected/no", "can't set protected config");
    let duplicate = ["CONFIG", "SET", "parameters.flag", "no", "parameters.FLAG", "yes"];
    let text = "ERR CONFIG SET failed (possibly related to argument 'parameters.FLAG') - duplicate parameter";
    assert_eq!(client.call(&duplicate), text);
    let unknown = ["CONFIG", "SET", "parameters.flag", "no", "parameters.other", "1"];
    let text = "ERR Unknown option or number of arguments for CONFIG SET - 'parameters.other'";
    assert_eq!(client.call(&unknown), text);
    assert_eq!(
        client.call(&["CONFIG", "GET", "parameters.flag"]),
        "(parameters.flag yes)"
    );
}

#[test]
fn several_parameters_are_set_together_or_not_at_all() {
    for workers in [1, 4] {
        let server = start(workers, "parameters");
        let mut client = connect(&server);
        let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
        let before = call("CONFIG GET parameters.* maxclients timeout");
        let counts = call("parameters.counts");
        // Both are applied by one call, which refuses them; the parameter of the server is set back as well.
        let reply = call("CONFIG SET timeout 7 parameters.number 9 parameters.memory 9");
        let text = "ERR CONFIG SET failed (possibly related to argument 'number') - the numbers are equal";
        assert_eq!(reply, text);
        assert_eq!(call("CONFIG GET parameters.* maxclients timeout"), before);
        assert_eq!(call("parameters.counts"), next_counts(&counts, 4, 2));
        // A value of the server is refused after those of the module were set.
        let reply = call("CONFIG SET parameters.number 9 timeout x");
        let text = "ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed into an \
                    integer";
        assert_eq!(reply, text);
        assert_eq!(call("CONFIG GET parameters.* maxclients timeout"), before);
        // A value that is the current one is neither set nor applied.
        let counts = call("parameters.counts");
        assert_eq!(call("CONFIG SET parameters.number 5 parameters.flag yes"), "OK");
        assert_eq!(call("parameters.counts"), counts);
        assert_eq!(
            call("CONFIG SET timeout 7 parameters.number 9 parameters.memory 10"),
            "OK"
        );
        assert_eq!(call("parameters.counts"), next_counts(&counts, 2, 1));
        assert_eq!(
            call("CONFIG GET timeout parameters.number parameters.memory"),
            "(parameters.memory 10 parameters.number 9 timeout 7)"
        );
        assert_eq!(call("GET parameters:applied"), "3");
    }
}

/// Returns the counts of set and apply functions after some more calls.
fn next_counts(counts: &str, sets: u32, applies: u32) -> String {
    let numbers: Vec<u32> = counts
        .trim_matches(['(', ')'])
        .split(' ')
        .map(|number| number.parse().expect("a number"))
        .collect();
    format!("({} {})", numbers[0] + sets, numbers[1] + applies)
}

#[test]
fn clients_set_values_at_the_same_time() {
    let server = start(4, "parameters");
    let port = server.port;
    let threads = (0..4).map(|index| {
        thread::spawn(move || {
            let mut client = Client::connect(port);
            for round in 0..100 {
                let number = (100 + 4 * round + index).to_string();
                let set = ["CONFIG", "SET", "parameters.number", &number, "timeout", &number];
                let reply = client.call(&set);
                let is_expected = reply == "OK" || reply.starts_with("TRYAGAIN");
                assert!(is_expected, "{reply}");
                assert!(
                    client
                        .call(&["CONFIG", "GET", "parameters.n*"])
                        .starts_with("(parameters.number ")
                );
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
    let mut client = connect(&server);
    let number = client.call(&["CONFIG", "GET", "parameters.number"]);
    let timeout = client.call(&["CONFIG", "GET", "timeout"]);
    assert_eq!(
        number.replace("parameters.number", ""),
        timeout.replace("timeout", ""),
        "set together"
    );
}

#[test]
fn the_file_keeps_values_and_a_start_reads_them() {
    let path = module("parameters");
    let directory = std::env::temp_dir().join(format!("weft-parameters-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("makes a directory");
    let file = directory.join("weft.conf");
    let lines = format!("enable-module-command yes\nio-threads 4\nparameters.text \"a b\"\nloadmodule {path}\n");
    fs::write(&file, lines).expect("writes");
    {
        let server = Server::start_from(file.to_str(), &[]);
        let mut client = connect(&server);
        let mut call = |line: &str| client.call(&line.split('/').collect::<Vec<_>>());
        assert_eq!(call("CONFIG/GET/parameters.text"), "(parameters.text a b)");
        assert_eq!(
            call("CONFIG/SET/parameters.text/x \"y/parameters.Bits/two/parameters.memory/3mb"),
            "OK"
        );
        assert_eq!(call("CONFIG/REWRITE"), "OK");
    }
    let text = fs::read_to_string(&file).expect("reads");
    for line in [
        "parameters.text \"x \\\"y\"",
        "parameters.Bits two",
        "parameters.memory 3mb",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{text}");
    }
    assert!(!text.contains("parameters.number"), "it has its default: {text}");
    // The directory of the first server is gone.
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("dir ")).collect();
    fs::write(&file, kept.join("\n") + "\n").expect("writes");
    {
        let server = Server::start_from(file.to_str(), &[]);
        let mut client = connect(&server);
        let shown = "(parameters.Bits two parameters.memory 3145728 parameters.text x \"y)";
        let names = ["parameters.Bits", "parameters.memory", "parameters.text"];
        assert_eq!(client.call(&[&["CONFIG", "GET"], &names[..]].concat()), shown);
        assert_eq!(client.call(&["MODULE", "UNLOAD", "parameters"]), "OK");
        assert_eq!(client.call(&["CONFIG", "GET", "parameters.*"]), "()");
        assert_eq!(client.call(&["CONFIG", "REWRITE"]), "OK");
    }
    let text = fs::read_to_string(&file).expect("reads");
    assert!(!text.lines().any(|line| line.starts_with("parameters.")), "{text}");
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn loadex_sets_values() {
    let server = start_with(4, &[], &["--enable-module-command", "yes"]);
    let path = module("parameters");
    let mut client = connect(&server);
    let mut load = |words: &[&str]| client.call(&[&["MODULE", "LOADEX", &path], words].concat());
    let error = "ERR Error loading the extension. Please check the server logs.";
    assert_eq!(load(&["CONFIG", "parameters.number", "13"]), error);
    assert_eq!(load(&["CONFIG", "parameters.number", "1000001", "ARGS"]), error);
    assert_eq!(
        load(&["CONFIG", "parameters.other", "1"]),
        error,
        "it has no such parameter"
    );
    assert_eq!(load(&["CONFIG", "maxclients", "1"]), error);
    assert_eq!(load(&["ARGS", "noload"]), error, "it does not call LoadConfigs");
    let fixed = ["CONFIG", "parameters.fixed", "yes", "CONFIG", "parameters.number", "1"];
    assert_eq!(
        load(&[&fixed[..], &["CONFIG", "Parameters.Number", "8"]].concat()),
        "OK",
        "the last one counts"
    );
    assert_eq!(
        client.call(&["CONFIG", "GET", "parameters.number"]),
        "(parameters.number 8)"
    );
    assert_eq!(client.call(&["MODULE", "UNLOAD", "parameters"]), "OK");
    assert_eq!(
        client
            .call(&["CONFIG", "SET", "parameters.number", "1"])
            .split(' ')
            .next(),
        Some("ERR")
    );
    assert_eq!(client.call(&["MODULE", "LOAD", &path]), "OK");
    assert_eq!(
        client.call(&["CONFIG", "GET", "parameters.number"]),
        "(parameters.number 5)"
    );
}

#[test]
fn sensitive_values_are_not_logged() {
    let server = start(2, "parameters");
    let mut client = connect(&server);
    assert_eq!(client.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "parameters.text", "secret"]), "OK");
    let log = client.call(&["SLOWLOG", "GET"]);
    assert!(
        log.contains("parameters.text (redacted)") && !log.contains("secret"),
        "{log}"
    );
}

#[test]
fn a_setting_without_a_module_stops_the_start() {
    let path = module("parameters");
    let text = "Module Configuration detected without loadmodule directive or no ApplyConfig call: aborting";
    for arguments in [
        &["--parameters.number", "1"][..],
        &["--loadmodule", &path, "--parameters.other", "1"],
    ] {
        let output = Command::new(crate::harness::server::binary())
            .args(["--port", "0", "--unixsocket"])
            .arg(std::env::temp_dir().join(format!("weft-parameters-{}.sock", std::process::id())))
            .args(arguments)
            .output()
            .expect("runs the server");
        let shown = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && shown.contains(text), "{shown}");
    }
}
