//! Tests relations between the memory figures of INFO that hold whatever the allocator and the machine are.

use std::io::Write as _;

use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Runs `story` with two and eight active workers.
fn with_workers(story: impl Fn(&mut Client, &Server)) {
    for threads in ["2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        story(&mut Client::connect(server.port), &server);
    }
}

/// Returns these fields of one INFO reply.
fn figures<const COUNT: usize>(client: &mut Client, names: [&str; COUNT]) -> [u64; COUNT] {
    let text = client.call(&["INFO", "everything"]);
    names.map(|name| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.unwrap_or_else(|| panic!("INFO has no {name}")).trim();
        value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
    })
}

/// The maximum of the estimate that the overhead contains for each key, in bytes.
const MAX_KEY_OVERHEAD: u64 = 16;

/// Checks what holds at any time, and what holds while no other client has requests: the overhead is the sum of its
/// parts, of which none is counted that is not in use.
fn check_sums(client: &mut Client) {
    let keys: u64 = client.call(&["DBSIZE"]).parse().expect("a number");
    let [used, peak, startup, overhead, dataset, clients, scripts] = figures(
        client,
        [
            "used_memory",
            "used_memory_peak",
            "used_memory_startup",
            "used_memory_overhead",
            "used_memory_dataset",
            "mem_clients_normal",
            "used_memory_scripts",
        ],
    );
    assert_eq!(overhead + dataset, used);
    assert!(peak >= used && used >= startup, "{peak} {used} {startup}");
    let parts = startup + clients + scripts;
    assert!(
        (parts..=parts + keys * MAX_KEY_OVERHEAD).contains(&overhead),
        "{overhead} of {used} bytes are overhead: {startup} since the start, {clients} in clients, {scripts} in scripts"
    );
    let [eval, functions, total] = figures(
        client,
        [
            "used_memory_vm_eval",
            "used_memory_vm_functions",
            "used_memory_vm_total",
        ],
    );
    assert_eq!(eval + functions, total);
    let [eval, functions, total] = figures(
        client,
        [
            "used_memory_scripts_eval",
            "used_memory_functions",
            "used_memory_scripts",
        ],
    );
    assert_eq!(eval + functions, total);
}

#[test]
fn used_memory_follows_the_data() {
    const KEYS: usize = 64;
    const VALUE_BYTES: usize = 100_000;
    with_workers(|client, server| {
        let value = "v".repeat(VALUE_BYTES);
        let written = (KEYS * VALUE_BYTES) as u64;
        // Several clients, so that several workers allocate and free.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
        let [used, dataset] = figures(client, ["used_memory", "used_memory_dataset"]);
        for key in 0..KEYS {
            let reply = clients[key % 16].call(&["SET", &format!("key:{key}"), &value]);
            assert_eq!(reply, "OK");
        }
        check_sums(client);
        let [full, full_dataset] = figures(client, ["used_memory", "used_memory_dataset"]);
        assert!(full >= used + written, "{full} {used} {written}");
        assert!(full_dataset >= dataset + written, "{full_dataset} {dataset} {written}");
        assert_eq!(client.call(&["FLUSHALL", "SYNC"]), "OK");
        check_sums(client);
        let [empty, peak] = figures(client, ["used_memory", "used_memory_peak"]);
        assert!(empty + written <= full, "{empty} {written} {full}");
        assert!(peak >= full, "the peak stays");
    });
}

/// A client reserves space for an argument that it announces, and CLIENT LIST shows that. It is not in use yet.
#[test]
fn announced_arguments_are_no_overhead() {
    const ANNOUNCED_BYTES: u64 = 400_000_000;
    with_workers(|client, server| {
        let mut sender = Client::connect(server.port);
        let part = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${ANNOUNCED_BYTES}\r\nvalue");
        sender.0.get_mut().write_all(part.as_bytes()).expect("sends");
        wait_until("the argument is announced", || {
            figures(client, ["mem_clients_normal"])[0] >= ANNOUNCED_BYTES
        });
        let [used, overhead, dataset] = figures(client, ["used_memory", "used_memory_overhead", "used_memory_dataset"]);
        assert!(overhead < used && used < ANNOUNCED_BYTES, "{overhead} {used}");
        assert_eq!(overhead + dataset, used);
    });
}

/// A large value is sent from its own memory, however many clients read it.
#[test]
fn values_that_are_being_sent_are_data_only() {
    const VALUE_BYTES: u64 = 16 << 20;
    // More than sockets hold.
    const READS: u64 = 6;
    with_workers(|client, server| {
        assert_eq!(client.call(&["SET", "key", &"v".repeat(VALUE_BYTES as usize)]), "OK");
        let mut reader = Client::connect(server.port);
        (0..READS).for_each(|_| reader.send(&["GET", "key"]));
        wait_until("the replies are being sent", || {
            figures(client, ["mem_clients_normal"])[0] >= (READS - 2) * VALUE_BYTES
        });
        let [used, overhead, dataset] = figures(client, ["used_memory", "used_memory_overhead", "used_memory_dataset"]);
        assert!(dataset >= VALUE_BYTES && overhead < VALUE_BYTES, "{overhead} {dataset}");
        assert_eq!(overhead + dataset, used);
    });
}

/// A cluster node loads its data before it does anything else.
#[test]
fn loaded_data_is_no_memory_of_the_start() {
    const KEYS: u64 = 64;
    const VALUE_BYTES: u64 = 100_000;
    let mut server = Server::start_node(&[]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    let value = "v".repeat(VALUE_BYTES as usize);
    wait_until("the node serves", || client.call(&["SET", "key:0", &value]) == "OK");
    for key in 1..KEYS {
        assert_eq!(client.call(&["SET", &format!("key:{key}"), &value]), "OK");
    }
    assert_eq!(client.call(&["SAVE"]), "OK");
    server.kill();
    server.start_again();
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DBSIZE"]), KEYS.to_string());
    let [used, startup, dataset] = figures(
        &mut client,
        ["used_memory", "used_memory_startup", "used_memory_dataset"],
    );
    let loaded = KEYS * VALUE_BYTES;
    assert!(
        used >= startup + loaded && dataset >= loaded,
        "{used} bytes, {startup} at the start, {dataset} of data"
    );
}

#[test]
fn scripts_and_libraries_are_counted_until_they_are_flushed() {
    const SCRIPT_COUNT: u64 = 10;
    with_workers(|client, _| {
        let names = [
            "number_of_cached_scripts",
            "used_memory_scripts_eval",
            "number_of_libraries",
            "number_of_functions",
            "used_memory_functions",
        ];
        let before = figures(client, names);
        assert_eq!([before[0], before[2], before[3]], [0; 3]);
        let padding = "-".repeat(10_000);
        for number in 0..SCRIPT_COUNT {
            client.call(&["SCRIPT", "LOAD", &format!("return {number} --{padding}")]);
        }
        check_sums(client);
        let with_scripts = figures(client, names);
        assert_eq!(with_scripts[0], SCRIPT_COUNT);
        assert!(with_scripts[1] >= before[1] + SCRIPT_COUNT * 10_000);
        assert_eq!(with_scripts[2..], before[2..]);
        for library in ["a", "b"] {
            let code = format!(
                "#!lua name={library}\nredis.register_function('{library}1', function() return 1 end)
                redis.register_function('{library}2', function() return 2 end) --{padding}"
            );
            assert_eq!(client.call(&["FUNCTION", "LOAD", &code]), library);
        }
        check_sums(client);
        let with_libraries = figures(client, names);
        assert_eq!([with_libraries[2], with_libraries[3]], [2, 4]);
        assert!(with_libraries[4] >= before[4] + 20_000);
        assert_eq!(with_libraries[..2], with_scripts[..2]);
        assert_eq!(client.call(&["FUNCTION", "DELETE", "a"]), "OK");
        let with_one = figures(client, names);
        assert_eq!([with_one[2], with_one[3]], [1, 2]);
        assert!(with_one[4] + 10_000 <= with_libraries[4]);
        assert_eq!(client.call(&["FUNCTION", "FLUSH", "SYNC"]), "OK");
        assert_eq!(client.call(&["SCRIPT", "FLUSH", "SYNC"]), "OK");
        check_sums(client);
        assert_eq!(figures(client, names), before);
    });
}

/// Threads that run no more scripts free their interpreters, too.
#[test]
fn a_flush_frees_the_interpreters_of_all_threads() {
    const CLIENTS: usize = 16;
    with_workers(|admin, server| {
        let code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
        assert_eq!(admin.call(&["FUNCTION", "LOAD", code]), "lib");
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(server.port)).collect();
        for client in &mut clients {
            assert_eq!(client.call(&["EVAL", "return 1", "0"]), "1");
            assert_eq!(client.call(&["EVAL", "for _ = 1, 10 do end return 2", "0"]), "2");
            assert_eq!(client.call(&["FCALL", "f", "0"]), "1");
        }
        let [used, in_use] = figures(admin, ["used_memory", "used_memory_vm_total"]);
        assert_eq!(admin.call(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(admin.call(&["FUNCTION", "FLUSH"]), "OK");
        let names = ["used_memory_vm_eval", "used_memory_vm_functions"];
        assert_eq!(figures(admin, names), [0, 0]);
        wait_until("most interpreters are freed", || {
            figures(admin, ["used_memory"])[0] + in_use * 3 / 4 <= used
        });
        assert_eq!(clients[0].call(&["EVAL", "return 3", "0"]), "3");
    });
}

/// What a script leaves on the stack of its interpreter is removed, and freed.
#[test]
fn scripts_leave_nothing_in_their_interpreter() {
    const BATCH: u64 = 1000;
    with_workers(|client, _| {
        let run = |client: &mut Client, batches: u64| {
            for _ in 0..batches {
                let mut reply = String::new();
                (0..BATCH).for_each(|_| client.send(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "key"]));
                (0..BATCH).for_each(|_| reply = client.answer());
                assert!(reply.parse::<u64>().is_ok(), "{reply}");
            }
            let [bytes] = figures(client, ["used_memory_lua"]);
            bytes
        };
        let before = run(client, 1);
        // More runs than the stack of an interpreter has places. Garbage is freed now and then.
        let after = run(client, 9);
        assert!(after < before + 500_000, "{before} bytes have become {after}");
        assert_eq!(client.call(&["GET", "key"]), (10 * BATCH).to_string());
    });
}

#[test]
fn tracked_prefixes_are_memory_of_their_client() {
    const PREFIXES: u64 = 2000;
    with_workers(|admin, server| {
        let mut client = Client::connect(server.port);
        let id = client.call(&["CLIENT", "ID"]);
        let mut total = |client: &mut Client| {
            // The memory is counted after each request.
            assert_eq!(client.call(&["ECHO", "x"]), "x");
            let line = admin.call(&["CLIENT", "LIST", "ID", &id]);
            let total = line.split(" tot-mem=").nth(1).and_then(|rest| rest.split(' ').next());
            total.and_then(|bytes| bytes.parse::<u64>().ok()).expect("a number")
        };
        let before = total(&mut client);
        let names: Vec<String> = (0..PREFIXES).map(|number| format!("prefix-{number:05}")).collect();
        let mut request = vec!["CLIENT", "TRACKING", "on", "BCAST"];
        request.extend(names.iter().flat_map(|name| ["PREFIX", name.as_str()]));
        assert_eq!(client.call(&request), "OK");
        let tracking = total(&mut client);
        assert!(
            (PREFIXES * 24..PREFIXES * 29).contains(&(tracking - before)),
            "{before} bytes have become {tracking}"
        );
        assert_eq!(client.call(&["CLIENT", "TRACKING", "off"]), "OK");
        let after = total(&mut client);
        assert!(
            (PREFIXES * 24..PREFIXES * 29).contains(&(tracking - after)),
            "{tracking} bytes have become {after}"
        );
    });
}
