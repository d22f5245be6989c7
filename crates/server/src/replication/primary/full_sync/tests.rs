//! Tests of the file of a full synchronisation, and of what its replicas get.

use std::io::Read;

use super::*;
use crate::persistence::snapshot_state::SnapshotPurpose;
use weft_base::ThreadIndex;

fn server() -> Arc<Server> {
    crate::start::create_idle_server(weft_config::Config::defaults())
}

/// A dump for replicas, none of which is left, that is complete except for its name `path`.
fn complete_dump(server: &Arc<Server>, path: &std::path::Path) -> Box<FileDump> {
    let path = FixedPath::new(path);
    let temporary = path.with_extension("temporary");
    let mut file = RdbFile::create(temporary, RdbFilePurpose::Dump, false).expect("creates");
    file.write(b"of the snapshot").expect("writes");
    Box::new(FileDump {
        targets: DumpReceivers {
            server: server.clone(),
            list: Vec::new(),
            is_useful_without_replicas: true,
            served: Arc::default(),
        },
        file: Some(file),
        path,
        last_keepalive: Instant::now(),
        removes_file: false,
    })
}

#[test]
fn a_dump_file_gets_its_name_only_when_no_other_thread_needs_the_file_before() {
    let server = server();
    let path = std::env::temp_dir().join(format!("weft-full-sync-{}.rdb", std::process::id()));
    for is_cancelled in [false, true] {
        std::fs::write(&path, "of a reload").expect("writes");
        let running = &server.persistence.snapshot;
        running.claim(SnapshotPurpose::Replicas, 0).expect("there is no other");
        let dump = complete_dump(&server, &path);
        let held = running.hold_publication();
        let (ended, has_ended) = mpsc::sync_channel(1);
        std::thread::scope(|scope| {
            scope.spawn(|| ended.send(dump.finish(running).is_ok()));
            assert!(has_ended.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
            assert_eq!(std::fs::read(&path).expect("reads"), b"of a reload");
            if is_cancelled {
                running.cancel(&[SnapshotPurpose::Replicas]);
            }
            drop(held);
            assert_eq!(has_ended.recv().expect("it ends"), !is_cancelled);
        });
        let expected = if is_cancelled { "of a reload" } else { "of the snapshot" };
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), expected);
        assert!(!path.with_extension("temporary").exists());
        running.release();
    }
    let _ = std::fs::remove_file(&path);
}

/// The order to disconnect the replica may wait behind others.
#[test]
fn a_replica_whose_user_is_deleted_gets_nothing_more_of_a_dump() {
    let server = server();
    assert!(server.acl.set_user(b"joe", &["on", "nopass"], &server.config).is_ok());
    let mut client = Client::new(ClientId::new(1), 0, ThreadIndex::FIRST);
    client.login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    let (socket, mut peer) = UnixStream::pair().expect("a pair of sockets");
    let handle = DumpReceiver::clone_of(&Socket::Unix(socket)).expect("a handle");
    let receiver = DumpReceiver::new(&client, "replica".to_owned(), handle, None, OffsetAnnouncement::None);
    assert!(receiver.write_all(b"older", &server.config, None).is_ok());
    server.acl.delete_users([&b"joe"[..]].into_iter());
    assert!(receiver.write_all(b"secret", &server.config, None).is_err());
    drop(receiver);
    let mut received = String::new();
    peer.read_to_string(&mut received).expect("the connection is closed");
    assert_eq!(received, "older");
}
