//! Tests of the directory of clients.

use std::sync::Arc;
use std::time::Duration;

use weft_base::{ClientId, ThreadIndex};

use super::ClientDirectory;
use crate::net::client::Client;

#[test]
fn a_client_that_ends_on_its_new_worker_leaves_no_entry() {
    let directory = Arc::new(ClientDirectory::default());
    directory.add(ClientId::new(1), ThreadIndex::new(0));
    let mut ending = None;
    directory.move_client(ClientId::new(1), ThreadIndex::new(2), || {
        // The new worker has the connection from here on, and may end it at once.
        let directory = directory.clone();
        ending = Some(std::thread::spawn(move || directory.remove(ClientId::new(1))));
        std::thread::sleep(Duration::from_millis(50));
    });
    ending.expect("has begun").join().expect("ends");
    assert_eq!(directory.worker_of(ClientId::new(1)), None);
}

#[test]
fn clients_that_were_killed_are_counted_until_they_are_removed() {
    let directory = ClientDirectory::default();
    directory.add(ClientId::new(1), ThreadIndex::new(0));
    directory.add(ClientId::new(2), ThreadIndex::new(3));
    assert!(!directory.has_killed_clients());
    assert_eq!(
        (
            directory.mark_killed(ClientId::new(1)),
            directory.mark_killed(ClientId::new(1))
        ),
        (Some(ThreadIndex::FIRST), Some(ThreadIndex::FIRST))
    );
    assert_eq!(directory.mark_killed(ClientId::new(9)), None);
    directory.move_client(ClientId::new(1), ThreadIndex::new(4), || ());
    assert!(
        directory.is_killed(ClientId::new(1))
            && !directory.is_killed(ClientId::new(2))
            && !directory.is_killed(ClientId::new(9))
    );
    directory.remove(ClientId::new(2));
    assert!(directory.has_killed_clients());
    directory.remove(ClientId::new(1));
    directory.remove(ClientId::new(1));
    assert!(!directory.has_killed_clients() && !directory.is_killed(ClientId::new(1)));
}

#[test]
fn a_detached_command_finds_its_client_killed_also_when_it_is_removed() {
    let directory = ClientDirectory::default();
    let mut clients = [1, 2].map(|id| Client::new(ClientId::new(id), 1_000, ThreadIndex::FIRST));
    clients
        .iter()
        .for_each(|client| directory.add(client.id, ThreadIndex::FIRST));
    // The transaction has a snapshot from before the command was detached.
    directory.mark_killed(ClientId::new(1));
    let views = clients.each_mut().map(Client::detached_view);
    assert_eq!(views.each_ref().map(|view| directory.was_killed(view)), [true, false]);
    clients.iter().for_each(|client| directory.remove_client(client));
    assert_eq!(views.each_ref().map(|view| directory.was_killed(view)), [true, false]);
    assert!(!directory.has_killed_clients());
}
