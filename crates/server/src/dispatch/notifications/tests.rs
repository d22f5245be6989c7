//! Tests of broadcasts in the middle of a batch.

use super::*;
use crate::notify::tracking::TrackingOptions;
use crate::start::create_idle_server_with_workers;
use crate::state::Message;
use std::sync::Arc;
use weft_base::{ClientId, ThreadIndex};
use weft_config::Config;

/// The worker of the client that hears of the changes.
const OTHER: ThreadIndex = ThreadIndex::new(1);

/// Creates the state of the first of two workers. A client of the other one hears of all changes.
fn worker() -> (Arc<Server>, ThreadState) {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    let listener = server.clients.next_client_id();
    server.clients.directory.add(listener, OTHER);
    let options = TrackingOptions {
        is_broadcast: true,
        prefixes: [Arc::from(b"".as_slice())].into(),
        ..TrackingOptions::default()
    };
    server.clients.tracking.enable(listener, None, &options, || {});
    let thread = ThreadState::new(server.clone(), ThreadIndex::FIRST);
    (server, thread)
}

fn change_key(thread: &mut ThreadState, client: ClientId) {
    thread.effects.broadcast.insert((*b"key").into(), Some(client));
}

#[test]
fn an_early_broadcast_does_not_release_the_client_that_has_filled_a_mailbox() {
    let (server, mut thread) = worker();
    change_key(&mut thread, ClientId::new(7));
    thread.effects.full_mailbox = Some(ThreadIndex::FIRST);
    send_early_broadcasts(&mut thread);
    assert_eq!(server.worker(OTHER).mailbox.len(), 1);
    assert!(thread.effects.broadcast.is_empty());
    assert_eq!(thread.effects.full_mailbox, Some(ThreadIndex::FIRST));
    assert!(thread.early_broadcasters.is_empty(), "there was room for the broadcast");
}

#[test]
fn the_clients_whose_early_broadcasts_fill_a_mailbox_are_put_off() {
    let (server, mut thread) = worker();
    while !server.worker(OTHER).is_mailbox_full() {
        server.worker(OTHER).send(Message::LogAdvanced);
    }
    change_key(&mut thread, ClientId::new(7));
    send_early_broadcasts(&mut thread);
    assert_eq!(thread.effects.full_mailbox, Some(OTHER));
    assert_eq!(thread.early_broadcasters, [(ClientId::new(7), OTHER)]);
}
