//! Tests relations between the memory figures of INFO that hold whatever the allocator and the machine are.

use crate::harness::client::Client;
use crate::harness::server::Server;

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
