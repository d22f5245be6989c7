//! Tests the programs that check files, which are the server's binary under other names.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::append_only::server::{Server, TestDirectory, weft};

const SELECT: &str = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n";
const SET: &str = "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\nv\r\n";
const MULTI: &str = "*1\r\n$5\r\nMULTI\r\n";

/// Runs the program of this name in a directory. Returns its exit code and its output.
fn run(place: &TestDirectory, name: &str, arguments: &[&str], input: &str) -> (i32, String) {
    let program: PathBuf = place.0.join(name);
    if !program.exists() {
        std::os::unix::fs::symlink(weft(), &program).expect("makes a link");
    }
    let mut child = Command::new(Path::new(".").join(name))
        .args(arguments)
        .current_dir(&place.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut to = child.stdin.take().expect("is a pipe");
    // A program that asks no question may have ended already.
    let _ = to.write_all(input.as_bytes());
    drop(to);
    let output = child.wait_with_output().expect("ends");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().expect("ends by itself"),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn check_aof(place: &TestDirectory, arguments: &[&str], input: &str) -> (i32, String) {
    run(place, "valkey-check-aof", arguments, input)
}

fn check_dump(place: &TestDirectory, arguments: &[&str]) -> (i32, String) {
    run(place, "valkey-check-rdb", arguments, "")
}

/// A damaged file and the expected output between the first and the last line.
struct Case {
    name: &'static str,
    content: String,
    fault: &'static str,
    sound: usize,
    line: usize,
}

#[test]
fn damage_of_an_append_only_file_is_reported_with_its_offset() {
    let place = TestDirectory::new();
    let whole = format!("{SELECT}{SET}");
    let case = |name, content, fault, sound, line| Case {
        name,
        content,
        fault,
        sound,
        line,
    };
    let cases = [
        case("a whole file", whole.clone(), "", 50, 13),
        case(
            "a word that is cut off",
            format!("{whole}{}", &SET[..9]),
            "0x              3a: Expected to read 5 bytes, got 1 bytes\n",
            50,
            15,
        ),
        case(
            "a line that is cut off, with what is left of the line before it",
            format!("{whole}{}", &SET[..22]),
            "0x              46: Expected \\r\\n, got: 000a\n",
            50,
            18,
        ),
        case(
            "a command that is none",
            format!("{whole}hello\r\n"),
            "AOF file.aof format error\n",
            50,
            13,
        ),
        case(
            "a transaction without an end",
            format!("{SELECT}{MULTI}{SET}"),
            "0x              3e: Reached EOF before reading EXEC for MULTI\n",
            23,
            16,
        ),
        case(
            "a transaction in another",
            format!("{SELECT}{MULTI}{MULTI}"),
            "0x              2e: Unexpected MULTI in AOF file.aof\n",
            23,
            12,
        ),
        case(
            "a word with something behind it",
            format!("{SELECT}{}", SET.replace("v\r\n", "vXY")),
            "0x              2f: Expected \\r\\n, got: 5859\n",
            23,
            12,
        ),
        case(
            "a length with another mark",
            format!("{SELECT}{}", SET.replace("$1\r\nv", "%1\r\nv")),
            "0x              2b: Expected prefix '$', got: '%'\n",
            23,
            11,
        ),
        case(
            "a length below zero",
            format!("{SELECT}{}", SET.replace("$1\r\nv", "$-1\r\nv")),
            "0x              2b: Expected to read string of -1 bytes, which is not in the suitable range\n",
            23,
            12,
        ),
    ];
    for Case {
        name,
        content,
        fault,
        sound,
        line,
    } in cases
    {
        fs::write(place.0.join("file.aof"), &content).expect("writes");
        let (size, left) = (content.len(), content.len() - sound);
        let verdict = match left {
            0 => "AOF file.aof is valid",
            _ => "AOF file.aof is not valid. Use the --fix option to try fixing it.",
        };
        let expected = format!(
            "Start checking Old-Style AOF\n{fault}AOF analyzed: filename=file.aof, size={size}, ok_up_to={sound}, \
             ok_up_to_line={line}, diff={left}\n{verdict}\n"
        );
        let (code, text) = check_aof(&place, &["file.aof"], "");
        assert_eq!((code, text), (i32::from(left > 0), expected), "{name}");
    }
}

#[test]
fn a_file_is_truncated_to_its_valid_part_after_confirmation() {
    let place = TestDirectory::new();
    let path = place.0.join("file.aof");
    let content = format!("{SELECT}{SET}{MULTI}{SET}");
    fs::write(&path, &content).expect("writes");
    let (code, text) = check_aof(&place, &["--fix", "file.aof"], "n\n");
    assert_eq!(code, 1);
    assert!(text.ends_with("Continue? [y/N]: Aborting...\n"), "{text}");
    assert_eq!(fs::read(&path).expect("reads").len(), content.len());
    let (code, text) = check_aof(&place, &["--fix", "file.aof"], "y\n");
    assert_eq!(code, 0);
    assert!(
        text.ends_with("Continue? [y/N]: Successfully truncated AOF file.aof\n"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&path).expect("reads"), format!("{SELECT}{SET}"));
}

#[test]
fn a_file_is_truncated_to_a_timestamp() {
    let place = TestDirectory::new();
    let path = place.0.join("file.aof");
    let content = format!("#TS:100\r\n{SELECT}{SET}#TS:200\r\n{SET}#TS:300\r\n{SET}");
    for (time, kept, code, last) in [
        (
            "50",
            content.len(),
            1,
            "AOF file.aof has nothing before timestamp 50, aborting...\n",
        ),
        ("150", 59, 0, "Successfully truncated AOF file.aof to timestamp 150\n"),
        ("200", 95, 0, "Successfully truncated AOF file.aof to timestamp 200\n"),
        (
            "400",
            content.len(),
            0,
            "Truncate nothing in AOF file.aof to timestamp 400\nAOF file.aof is valid\n",
        ),
        ("x", content.len(), 1, "Invalid timestamp, aborting...\n"),
    ] {
        fs::write(&path, &content).expect("writes");
        let (found, text) = check_aof(&place, &["--truncate-to-timestamp", time, "file.aof"], "");
        assert_eq!(found, code, "{time}: {text}");
        assert!(text.ends_with(last), "{time}: {text}");
        assert_eq!(fs::read(&path).expect("reads").len(), kept, "{time}");
    }
}

#[test]
fn all_files_of_a_manifest_are_checked_and_only_the_last_is_truncated() {
    let place = TestDirectory::new();
    let write = |name: &str, content: &str| fs::write(place.0.join(name), content).expect("writes");
    write("base", &format!("{SELECT}{SET}"));
    write("good", SET);
    write("cut", &format!("{SET}{}", &SET[..9]));
    let manifest = |parts: &[&str]| {
        let lines = parts.iter().enumerate();
        let lines: String = lines
            .map(|(index, name)| format!("file {name} seq {} type i\n", index + 1))
            .collect();
        write("a.manifest", &format!("file base seq 1 type b\n{lines}"));
    };
    manifest(&["good"]);
    let (code, text) = check_aof(&place, &["a.manifest"], "");
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with("Start checking Multi Part AOF\nStart to check BASE AOF (RESP format).\n"),
        "{text}"
    );
    assert!(
        text.ends_with("ok_up_to_line=20, diff=0\nINCR AOF good is valid\nAll AOF files and manifest are valid\n"),
        "{text}"
    );
    manifest(&["cut", "good"]);
    let (code, text) = check_aof(&place, &["--fix", "a.manifest"], "y\n");
    assert_eq!(code, 1);
    assert!(
        text.ends_with("Failed to truncate AOF cut because it is not the last file\n"),
        "{text}"
    );
    manifest(&["good", "cut"]);
    let (code, text) = check_aof(&place, &["--fix", "a.manifest"], "y\n");
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_to_string(place.0.join("cut")).expect("reads"), SET);
    manifest(&["nosuch"]);
    let (code, text) = check_aof(&place, &["a.manifest"], "");
    assert_eq!(code, 1);
    assert!(
        text.ends_with("Cannot open file ./nosuch: No such file or directory, aborting...\n"),
        "{text}"
    );
}

/// Writes data of every type and many encodings, to an RDB file and to an append-only file.
fn fill(server: &Server) {
    let mut client = server.client();
    for line in [
        "SET number 1",
        "SET text hello",
        "SET later x PXAT 32503680000000",
        "RPUSH list a b c",
        "SADD integers 1 2 3",
        "SADD members a b 3",
        "ZADD scores 1 a 2.5 b 1e20 c -inf d",
        "HSET hash a b c d",
        "HSET expiring a b c d",
        "HPEXPIREAT expiring 32503680000000 FIELDS 1 a",
        "XADD stream 1-1 a b",
        "XADD stream 2-1 a b c d",
        "XADD stream 3-1 a b",
        "XDEL stream 3-1",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group alice COUNT 1 STREAMS stream >",
        "XGROUP CREATECONSUMER stream group bob",
        "XGROUP CREATE nothing group $ MKSTREAM",
        "DEBUG POPULATE 200 many 10",
        "SELECT 3",
        "SET other 1",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        client.call(&words);
    }
    let elements: Vec<String> = (0..150).map(|number| format!("element:{number}")).collect();
    for head in [&["RPUSH", "long"][..], &["SADD", "large"][..]] {
        let words: Vec<&str> = head
            .iter()
            .copied()
            .chain(elements.iter().map(String::as_str))
            .collect();
        client.call(&words);
    }
    client.call(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=lib\nserver.register_function('f', function() return 1 end)",
    ]);
}

#[test]
fn a_dump_is_checked_and_damage_is_found() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--appendonly", "no"]);
    fill(&server);
    assert_eq!(server.client().call(&["SAVE"]), "OK");
    server.kill();
    let whole = fs::read(place.0.join("dump.rdb")).expect("reads");
    let (code, text) = check_dump(&place, &["dump.rdb"]);
    assert_eq!(code, 0, "{text}");
    let size = whole.len();
    let end = format!(
        "[offset {size}] Checksum OK\n[offset {size}] Check RDB returned error code 0 (0 means success)\n[offset {size}] \
         \\o/ RDB looks OK! \\o/\n[info] 214 keys read\n[info] 1 expires\n[info] 0 already expired\n[info] 1 functions\n"
    );
    assert!(text.ends_with(&end), "{text}");
    let (code, text) = check_dump(&place, &["dump.rdb", "--stats", "--format", "csv"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("db.0.keys.total,203,1,2,1,2,0,2\n"), "{text}");
    assert!(text.contains("db.3.keys.total,1,1,1,0,0,0,0\n"), "{text}");
    // A sound file of a later version. The checksum would cover the version, so the file has none.
    let newer = [b"VALKEY987", &whole[9..size - 8], &[0; 8]].concat();
    fs::write(place.0.join("newer.rdb"), newer).expect("writes");
    let (code, text) = check_dump(&place, &["newer.rdb"]);
    assert_eq!(code, 0, "{text}");
    let verdict = "\\o/ RDB looks OK, but loading requires config 'rdb-version-check relaxed'\n";
    assert!(text.contains(verdict), "{text}");
    let short = &whole[..size / 2];
    let mut flipped = whole.clone();
    flipped[size - 1] ^= 1;
    let mut unknown = whole.clone();
    unknown[9] = 200;
    for (name, content, said) in [
        ("short", short, "Unexpected EOF reading RDB file\n"),
        (
            "flipped",
            &flipped[..],
            "RDB CRC error\n[additional info] While doing: check-sum\n",
        ),
        (
            "unknown",
            &unknown[..],
            "[offset 10] Invalid object type: 200\n[additional info] While doing: read-type\n",
        ),
        (
            "foreign",
            b"FOOBAR001\xff",
            "[offset 9] Wrong signature trying to load DB from file\n",
        ),
        (
            "old",
            b"VALKEY011\xff",
            "[offset 9] Can't handle RDB format version 11\n",
        ),
        (
            "twice",
            b"REDIS0011\x02\x01k\x02\x01a\x01a\xff",
            "[additional info] Reading type 2 (set-hashtable)\n",
        ),
        (
            "empty",
            b"REDIS0011\x02\x01k\x00\xff",
            "Unexpected EOF reading RDB file\n",
        ),
        (
            "packed",
            b"REDIS0011\x00\x01k\xc3\x03\x0aabc\xff",
            "[additional info] Reading key 'k'\n",
        ),
    ] {
        fs::write(place.0.join("damaged"), content).expect("writes");
        let (code, text) = check_dump(&place, &["damaged"]);
        assert_eq!(code, 1, "{name}: {text}");
        assert!(text.contains("--- RDB ERROR DETECTED ---\n"), "{name}: {text}");
        assert!(text.contains(said), "{name}: {text}");
    }
}

#[test]
fn a_base_of_commands_contains_the_same_data() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--aof-use-rdb-preamble", "no"]);
    fill(&server);
    let mut client = server.client();
    client.call(&["BGREWRITEAOF"]);
    crate::harness::wait_until("the rewrite ends", || {
        client.info("aof_rewrite_in_progress") == "0" && client.info("aof_base_size") != "0"
    });
    let groups = client.call(&["XINFO", "STREAM", "stream", "FULL"]);
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let base = fs::read_to_string(place.part("appendonly.aof.2.base.aof")).expect("there is a base of text");
    for command in [
        "*66\r\n$5\r\nRPUSH\r\n$4\r\nlong\r\n",
        "*24\r\n$5\r\nRPUSH\r\n$4\r\nlong\r\n",
        "*8\r\n$6\r\nHSETEX\r\n$8\r\nexpiring\r\n$4\r\nPXAT\r\n$14\r\n32503680000000\r\n$6\r\nFIELDS\r\n$1\r\n1\r\n",
        "*4\r\n$5\r\nHMSET\r\n$8\r\nexpiring\r\n$1\r\nc\r\n$1\r\nd\r\n",
        "*12\r\n$6\r\nXCLAIM\r\n$6\r\nstream\r\n$5\r\ngroup\r\n$5\r\nalice\r\n",
        "*5\r\n$6\r\nXGROUP\r\n$14\r\nCREATECONSUMER\r\n$6\r\nstream\r\n$5\r\ngroup\r\n$3\r\nbob\r\n",
        "*7\r\n$4\r\nXADD\r\n$7\r\nnothing\r\n$6\r\nMAXLEN\r\n$1\r\n0\r\n$3\r\n0-1\r\n$1\r\nx\r\n$1\r\ny\r\n",
        "*3\r\n$9\r\nPEXPIREAT\r\n$5\r\nlater\r\n$14\r\n32503680000000\r\n",
    ] {
        assert!(base.contains(command), "{command:?} is missing");
    }
    assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    let again = client.call(&["XINFO", "STREAM", "stream", "FULL"]);
    // Files do not contain the `seen-time` of consumers.
    let without_times = |text: &str| text.split(" seen-time ").next().map(str::to_owned);
    assert_eq!(without_times(&again), without_times(&groups));
    server.kill();
    let manifest = "appendonlydir/appendonly.aof.manifest";
    let (code, text) = check_aof(&place, &[manifest], "");
    assert_eq!(code, 0, "{text}");
}

#[test]
fn commands_during_a_load_get_a_loading_error() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--appendonly", "no"]);
    server.client().call(&["DEBUG", "POPULATE", "3000", "key", "100"]);
    assert_eq!(server.client().call(&["SAVE"]), "OK");
    server.kill();
    let slow = [
        "--appendonly",
        "no",
        "--key-load-delay",
        "100000",
        "--rdbcompression",
        "no",
    ];
    let server = Server::spawn(
        &weft(),
        &place,
        &[&slow[..], &["--loading-process-events-interval-bytes", "1024"]].concat(),
    );
    crate::harness::wait_until("it listens", || {
        std::net::TcpStream::connect(("127.0.0.1", server.port)).is_ok()
    });
    let mut client = server.client();
    let loading = "LOADING Valkey is loading the dataset in memory";
    assert_eq!(client.call(&["PING"]), loading);
    assert_eq!(client.call(&["GET", "key:1"]), loading);
    assert_eq!(client.call(&["SELECT", "1"]), "OK");
    assert_eq!(client.info("loading"), "1");
    let total: u64 = client.info("loading_total_bytes").parse().expect("a number");
    assert_eq!(total, fs::metadata(place.0.join("dump.rdb")).expect("is there").len());
    let first: u64 = client.info("loading_loaded_bytes").parse().expect("a number");
    crate::harness::wait_until("more is loaded", || {
        client.info("loading_loaded_bytes").parse::<u64>().expect("a number") > first
    });
    // Data that is being loaded can be neither replaced nor overwritten.
    for again in [
        &["DEBUG", "RELOAD"][..],
        &["DEBUG", "RELOAD", "NOSAVE"],
        &["DEBUG", "LOADAOF"],
    ] {
        assert_eq!(client.call(again), loading, "{again:?}");
    }
    assert_eq!(client.info("loading"), "1");
    assert_eq!(client.call(&["CONFIG", "SET", "key-load-delay", "0"]), "OK");
    crate::harness::wait_until("it is loaded", || client.call(&["PING"]) == "PONG");
    assert_eq!(client.info("loading"), "0");
    client.call(&["SELECT", "0"]);
    assert_eq!(client.call(&["DBSIZE"]), "3000");
}

#[test]
fn commands_while_a_script_of_a_file_runs_get_a_busy_error() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--busy-reply-threshold", "1"]);
    let script = "redis.call('set', KEYS[1], 'y'); for i = 1, 1000000 do redis.call('ping') end";
    let length = script.len();
    let request = format!("{SELECT}*4\r\n$4\r\neval\r\n${length}\r\n{script}\r\n$1\r\n1\r\n$1\r\nx\r\n");
    fs::OpenOptions::new()
        .append(true)
        .open(place.increment())
        .and_then(|mut file| file.write_all(request.as_bytes()))
        .expect("writes");
    let (mut loads, mut asks) = (server.client(), server.client());
    let loading = "LOADING Valkey is loading the dataset in memory";
    // On a busy machine the script may end before another client sends a command.
    let is_told = (0..20).any(|_| {
        loads.send(&["DEBUG", "LOADAOF"]);
        let mut is_told = false;
        while !is_told && loads.is_waiting() {
            is_told = asks.call(&["PING"]) == loading;
        }
        assert_eq!(loads.answer(), "OK");
        is_told
    });
    assert!(is_told, "nobody is told");
    assert_eq!(asks.call(&["GET", "x"]), "y");
    assert_eq!(asks.info("loading"), "0");
    assert!(place.log().contains("Slow script detected"));
}
