//! Tests relations between the memory figures of INFO that hold whatever the allocator and the machine are.

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

/// Checks what holds at any time.
fn check_sums(client: &mut Client) {
    let [used, peak, startup, overhead, dataset] = figures(
        client,
        [
            "used_memory",
            "used_memory_peak",
            "used_memory_startup",
            "used_memory_overhead",
            "used_memory_dataset",
        ],
    );
    assert_eq!(overhead + dataset, used);
    assert!(peak >= used && used >= startup, "{peak} {used} {startup}");
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
