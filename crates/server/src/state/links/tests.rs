//! Tests of connections that belong to no worker, on a server none of whose threads runs.

use super::*;
use crate::net::client_snapshot::ClientSnapshot;
use crate::state::{ClientVisitorHost, Message, QueryRequester, SentQuery, WorkerQuery};
use weft_base::ThreadIndex;
use weft_config::Config;
use weft_os::sync::mpsc::sync_channel;

/// A worker without clients.
struct NoClients;

impl ClientVisitor for NoClients {
    fn visit_clients(&mut self, _: &mut dyn FnMut(&mut Client, BufferFigures)) {}

    fn unblock_client(&mut self, _: ClientId, _: bool) -> bool {
        false
    }
}

fn new_client(server: &Server, user: &[u8]) -> Client {
    let mut client = Client::new(server.clients.next_client_id(), 0, ThreadIndex::FIRST);
    client.login = server.acl.log_in(user, b"").expect("no password is needed");
    client
}

fn hand_over(server: &Server, client: Client) {
    server.hand_over(Box::new(Connection::new(client)), drop);
}

/// Returns the queries that a worker has received.
fn received_queries(server: &Server, worker: usize) -> Vec<Arc<SentQuery>> {
    let mut mail = Vec::new();
    server.workers[worker].mailbox.drain(&mut mail, 16);
    let queries = mail.into_iter().filter_map(|message| match message {
        Message::Query(query) => Some(query),
        _ => None,
    });
    queries.collect()
}

#[test]
fn a_query_finds_a_connection_that_leaves_its_worker_meanwhile() {
    let server = crate::start::create_idle_server_with_workers(Config::defaults(), 2);
    let (sender, answer) = sync_channel(1);
    let query = WorkerQuery {
        task: Box::new(|clients| {
            let mut ids = Vec::new();
            clients.visit_clients(&mut |client, _| ids.push(client.id.get() as u8));
            ids
        }),
        combine: Box::new(|parts| parts.concat()),
        awaits_killed_commands: false,
    };
    server.query_all_workers(query, QueryRequester::Thread(sender));
    let client = new_client(&server, b"default");
    let id = client.id.get() as u8;
    let mut connection = Some(client);
    for worker in 0..2 {
        let queries = received_queries(&server, worker);
        assert_eq!(queries.len(), 1);
        if worker == 1
            && let Some(client) = connection.take()
        {
            // Until now this worker has had the connection.
            hand_over(&server, client);
        }
        let part = queries[0].run_task(&mut NoClients);
        queries[0].add_answer(&server, part);
    }
    assert_eq!(answer.try_recv().ok(), Some(vec![id]));
}

#[test]
fn a_session_is_visited_until_it_ends_and_learns_that_its_client_is_killed() {
    let server = crate::start::create_idle_server(Config::defaults());
    let client = new_client(&server, b"default");
    let session = SessionRegistration::new(&server, &client);
    let mut visited = 0;
    server.visit_linked(&mut |_, _| visited += 1);
    assert_eq!(visited, 0, "replies about clients do not show it");
    server.visit_sessions(&mut |other| visited += usize::from(other.id == client.id));
    assert_eq!(visited, 1);
    assert!(!session.kill_mark().is_killed());
    server.visit_sessions(&mut Client::kill);
    assert!(session.kill_mark().is_killed());
    drop(session);
    server.visit_sessions(&mut |_| visited += 1);
    assert_eq!(visited, 1);
}

#[test]
fn links_and_sessions_of_deleted_users_are_closed() {
    let server = crate::start::create_idle_server(Config::defaults());
    for name in [&b"joe"[..], b"ann"] {
        let created = server.acl.set_user(name, &["on", "nopass"], &server.config);
        assert!(created.is_ok());
    }
    let (joe, ann) = (new_client(&server, b"joe"), new_client(&server, b"ann"));
    let sessions = [&joe, &ann].map(|client| SessionRegistration::new(&server, client));
    let joes_id = joe.id;
    hand_over(&server, joe);
    hand_over(&server, ann);
    server.close_links_of_deleted_users();
    assert!(sessions.iter().all(|session| !session.kill_mark().is_killed()));
    server.acl.delete_users([&b"joe"[..]].into_iter());
    server.close_links_of_deleted_users();
    assert!(sessions[0].kill_mark().is_killed() && !sessions[1].kill_mark().is_killed());
    server.visit_linked(&mut |client, _| {
        let is_closing = client.flags.contains(ClientFlags::CLOSE_ASAP);
        assert_eq!(is_closing, client.id == joes_id);
    });
}

#[test]
fn a_transaction_visits_a_connection_that_has_left_its_worker_once() {
    let server = crate::start::create_idle_server(Config::defaults());
    let clients = [(); 3].map(|()| new_client(&server, b"default"));
    let snapshot_of = |client: &Client| ClientSnapshot {
        client: client.client_snapshot(),
        buffers: BufferFigures::default(),
        wait_state: None,
    };
    let mut client_snapshots: Vec<ClientSnapshot> = clients.iter().map(snapshot_of).collect();
    let [link, debugged, other] = clients;
    let mut requesting_client = new_client(&server, b"default");
    let expected = [link.id, other.id, requesting_client.id];
    // These leave after the snapshots.
    let _session = SessionRegistration::new(&server, &debugged);
    hand_over(&server, link);
    let mut visitor = ClientVisitorHost {
        server: &server,
        client_snapshots: &mut client_snapshots,
        requesting_client: &mut requesting_client,
        requesting_client_buffers: BufferFigures::default(),
    };
    let mut visited = Vec::new();
    visitor.visit_clients(&mut |client, _| visited.push(client.id));
    visited.sort_unstable();
    assert_eq!(visited, expected, "replies about clients do not show the session");
}

#[test]
fn a_link_that_is_about_to_be_closed_is_published_as_such() {
    let server = crate::start::create_idle_server(Config::defaults());
    let client = new_client(&server, b"default");
    let (id, view) = (client.id, client.link_snapshot());
    hand_over(&server, client);
    server.close_link(id);
    // The thread that has the connection has not read the order yet.
    server.publish_links(std::iter::once((view, BufferFigures::default())));
    let mut is_closing = Vec::new();
    server.visit_linked(&mut |client, _| is_closing.push(client.flags.contains(ClientFlags::CLOSE_ASAP)));
    assert_eq!(is_closing, [true]);
}
