//! Tests the limits of waits for replicas.

use super::*;
use crate::replication::Endpoint;
use weft_base::ThreadIndex;
use weft_config::Config;

/// A wait without a timeout of its own, nearly.
const LONG: Duration = Duration::from_secs(1_000_000);

/// Returns the time that is left.
fn left(limits: &AcknowledgementLimits) -> Duration {
    limits.deadline.saturating_duration_since(Instant::now())
}

#[test]
fn a_wait_ends_some_time_after_its_client_has_gone() {
    let server = crate::start::create_idle_server(Config::defaults());
    let role_epoch = server.replication.role_epoch();
    let leave: [fn(&Server, ClientId); 2] = [
        |server, client| server.clients.directory.note_end_of_input(client),
        |server, client| server.clients.directory.remove(client),
    ];
    for leave in leave {
        let client = server.clients.next_client_id();
        server.clients.directory.add(client, ThreadIndex::FIRST);
        let mut limits = AcknowledgementLimits::new(LONG, Some((client, role_epoch)));
        assert!(!limits.is_over(&server) && left(&limits) > ABANDONED_WAIT);
        leave(&server, client);
        assert!(
            !limits.is_over(&server),
            "the replicas may still acknowledge the command"
        );
        assert!(left(&limits) <= ABANDONED_WAIT);
        limits.deadline = Instant::now();
        assert!(limits.is_over(&server));
    }
}

#[test]
fn a_wait_of_a_client_ends_with_the_role() {
    let server = crate::start::create_idle_server(Config::defaults());
    let client = server.clients.next_client_id();
    server.clients.directory.add(client, ThreadIndex::FIRST);
    let requester = Some((client, server.replication.role_epoch()));
    let mut limits = AcknowledgementLimits::new(LONG, requester);
    let mut of_node = AcknowledgementLimits::new(LONG, None);
    assert!(!limits.is_over(&server));
    let primary = Endpoint {
        host: "127.0.0.1".into(),
        port: 1,
    };
    server.replication.start_following(primary, false);
    assert!(limits.is_over(&server) && !of_node.is_over(&server));
}
