//! Tests of coordinated failovers whose state changes while a thread waits for exclusive mode.

use super::*;

fn server() -> Arc<Server> {
    crate::start::create_idle_server(weft_config::Config::defaults())
}

/// Begins a failover, and hands over to the replica at this port.
fn hand_over(server: &Arc<Server>, port: u16) {
    begin_failover(
        server,
        CoordinatedFailover {
            state: CoordinatedFailoverState::WaitForSync,
            ..CoordinatedFailover::default()
        },
    );
    let host = "127.0.0.1".into();
    fail_over_to(server, Endpoint { host, port }, true);
}

/// What the thread of the link does once it holds exclusive mode.
type OnReply = fn(&Arc<Server>, RoleEpoch);
const REPLIES: [OnReply; 2] = [
    |server, role_epoch| complete_failover(server, role_epoch),
    end_refused_failover,
];

#[test]
fn the_reply_of_a_replica_has_no_effect_after_its_failover_was_aborted() {
    for on_reply in REPLIES {
        let server = server();
        let state = || server.replication.failover().state;
        hand_over(&server, 1);
        let first = server.replication.role_epoch();
        assert!(abort_failover(&server, "Failover manually aborted"));
        on_reply(&server, first);
        assert_eq!(server.replication.demotions(), 0, "blocked clients of a primary wait");
        assert!(!server.replication.is_replica());
        // Neither does it end another failover.
        hand_over(&server, 2);
        on_reply(&server, first);
        assert_eq!(state(), CoordinatedFailoverState::InProgress);
        assert!(server.replication.is_failing_over() && server.replication.is_replica());
        assert_eq!(server.replication.demotions(), 0);
        assert!(server.clients.pause.are_writes_paused(unix_ms()));
        on_reply(&server, server.replication.role_epoch());
        assert_eq!(state(), CoordinatedFailoverState::None);
        assert!(!server.replication.is_failing_over());
    }
}
