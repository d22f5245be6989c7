//! A writer that waits for a slot and then gives up must not leave a state that blocks readers.

use super::{Client, Server};

#[test]
fn a_write_that_gave_up_does_not_starve_readers_of_its_slot() {
    // A single active worker has the keyspace to itself, also if more workers are configured.
    for always in ["no", "yes"] {
        for workers in ["1", "2", "8"] {
            let threads = ["--io-threads", workers, "--io-threads-always-active", always];
            let server = Server::start(&[&threads[..], &["--busy-reply-threshold", "200"]].concat());
            let mut script = Client::connect(server.port);
            let mut writer = Client::connect(server.port);
            let mut reader = Client::connect(server.port);
            assert_eq!(writer.call(&["SET", "k", "v"]), "OK");
            script.send(&["EVAL", "while true do end", "1", "k"]);
            // The write succeeds until the script has started. Then it waits and gives up.
            let mut refused = writer.call(&["SET", "k", "v"]);
            while refused == "OK" {
                refused = writer.call(&["SET", "k", "v"]);
            }
            assert!(refused.starts_with("BUSY"), "{refused}");
            assert_eq!(writer.call(&["SCRIPT", "KILL"]), "OK");
            script.answer();
            for _ in 0..300 {
                assert_eq!(writer.call(&["GET", "other"]), "-");
            }
            assert_eq!(reader.call(&["GET", "k"]), "v", "{workers} workers, always {always}");
        }
    }
}
