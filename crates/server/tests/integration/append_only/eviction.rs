//! Tests that evicted keys do not return when the file is loaded.

use super::server::{Server, TestDirectory, weft};
use crate::harness::wait_until;

#[test]
fn evicted_keys_do_not_return_after_a_reload() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--io-threads", "4", "--appendfsync", "everysec"]);
    let mut client = server.client();
    client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let limit = client.info("used_memory").parse::<u64>().expect("a number") + (3 << 20);
    client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
    let value = "v".repeat(1000);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (server, value) = (&server, &value);
            scope.spawn(move || {
                let mut client = server.client();
                for number in 0..2000 {
                    let key = format!("key:{writer}:{number}");
                    assert_eq!(client.call(&["SET", &key, value]), "OK");
                    client.call(&["RPUSH", &format!("list:{writer}:{}", number % 50), &key]);
                }
            });
        }
    });
    let evicted: u64 = client.info("evicted_keys").parse().expect("a number");
    assert!(evicted > 1000, "{evicted}");
    // No key is evicted any more, including while the file is loaded.
    client.call(&["CONFIG", "SET", "maxmemory", "0"]);
    let (size, digest) = (client.call(&["DBSIZE"]), client.call(&["DEBUG", "DIGEST"]));
    assert_eq!(client.call(&["SET", "last", "one"]), "OK");
    assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "(1 0)");
    assert_eq!(client.call(&["DEL", "last"]), "1");
    assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "(1 0)");
    server.kill();
    let server = Server::start(&weft(), &place, &[]);
    let mut client = server.client();
    assert_eq!(client.call(&["DBSIZE"]), size);
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
}

/// The buffers on the way to the file do not keep the size of the largest write.
#[test]
fn the_memory_of_a_large_write_is_freed_after_it_is_logged() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &[]);
    let mut client = server.client();
    let before: u64 = client.info("used_memory").parse().expect("a number");
    let value = "v".repeat(64 << 20);
    assert_eq!(client.call(&["SET", "large", &value]), "OK");
    assert_eq!(client.call(&["DEL", "large"]), "1");
    drop(value);
    wait_until("its memory is free", || {
        let used: u64 = client.info("used_memory").parse().expect("a number");
        used < before + (16 << 20)
    });
}
