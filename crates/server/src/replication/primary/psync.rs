//! Adopts and closes the connections of replicas: a connection moves to this thread, resumes with a partial
//! synchronisation or waits for a dump, and is closed in the end.

use weft_base::ReplicationOffset;
use weft_base::clock::unix_ms;

use super::{PrimaryThread, Replica, full_sync};
use crate::net::client::{Client, ClientFlags, ReplicaHandshake};
use crate::net::connection::Connection;
use crate::observability::log;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::replication::{ReplicaChannel, ReplicaInfo, ReplicaSyncState};
use crate::state::SyncRequest;
use weft_config::id;
use weft_modules::module::server_events::{self, EventKind, ServerEvent};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

impl PrimaryThread {
    pub(crate) fn adopt_connection(&mut self, mut connection: Box<Connection>, request: &SyncRequest) {
        let Some(registered) = connection.in_transit.take() else {
            return self.forget_connection(&connection.client);
        };
        let replicas = &self.server.replication.replicas;
        if connection.client.login.account().is_deleted()
            || request.disconnection_count != replicas.disconnection_count()
        {
            // Its user was deleted, or all replicas disconnected, while the connection was on its way.
            return self.forget_connection(&connection.client);
        }
        let token = self.next_token;
        self.next_token += 1;
        connection.client.flags.set(ClientFlags::REPLICA, true);
        let handshake = connection.client.handshake.as_deref().cloned().unwrap_or_default();
        let name = handshake.name(connection.client.ip());
        if self.server.config.boolean(id::REPL_DISABLE_TCP_NODELAY) {
            // The option only affects performance.
            let _ = registered.socket.set_nodelay(false);
        }
        if let Err(error) = self.reactor.adopt(token, registered) {
            log::warning!("Cannot register the connection of a replica: {error}");
            return self.forget_connection(&connection.client);
        }
        if let Some(tls) = &connection.tls
            && tls.resume_on_reactor(&mut self.reactor, token).is_err()
        {
            log::warning!("Cannot continue to send to a replica");
        }
        log::notice!("Replica {name} asks for synchronization");
        let now = Instant::now();
        self.publish_replica(&connection.client, &handshake);
        let mut replica = Replica {
            connection,
            handshake,
            name,
            progress: ReplicaSyncState::WaitingForDump,
            is_psync: request.is_psync,
            awaits_ack: false,
            waiting_since: now,
            last_heard: now,
            over_soft_limit_since: None,
        };
        let resumes = self.try_partial_sync(&mut replica, request);
        let dump_client = replica.handshake.rdb_channel_client;
        let has_dump = resumes && dump_client.is_some_and(|dump| self.take_over_dump(dump, &replica.name));
        let mut output = std::mem::take(&mut replica.connection.output);
        let replaced = self.replicas.insert(token, replica);
        assert!(replaced.is_none(), "each replica has a token of its own");
        if self.send(token, &mut output) {
            match (resumes, has_dump) {
                (true, true) => self.start_stream_during_dump(token),
                (true, false) => self.mark_online(token, false),
                (false, _) => {
                    self.server
                        .replication
                        .replicas
                        .full_syncs
                        .fetch_add(1, Ordering::Relaxed);
                    self.log_dump_delay();
                    self.begin_dump_if_due();
                }
            }
        }
        self.publish_clients();
        // The worker may have received more than the request; no event tells of these bytes.
        self.process_input(token);
    }

    /// Removes a connection that is closed from those that other threads see.
    fn forget_connection(&self, client: &Client) {
        self.server.forget_link(client.id);
        let connections = self.server.clients.connections.fetch_sub(1, Ordering::Relaxed);
        assert!(connections > 0, "the connection of a replica was counted");
    }

    /// Adds a replica to those that commands and other threads see.
    fn publish_replica(&mut self, client: &Client, handshake: &ReplicaHandshake) {
        let replicas = &self.server.replication.replicas;
        let mut infos = replicas.infos();
        assert!(
            infos.iter().all(|known| known.id != client.id),
            "the client {} is adopted as a replica once",
            client.id
        );
        let replica = ReplicaInfo {
            id: client.id,
            host: handshake.host(client.ip()).to_owned(),
            port: handshake.port,
            node: handshake.cluster_node.clone(),
            progress: ReplicaSyncState::WaitingForDump,
            channel: match handshake.is_rdb_channel {
                true => ReplicaChannel::Dump,
                false => ReplicaChannel::Single,
            },
            acknowledged_offset: ReplicationOffset::ZERO,
            fsynced_offset: None,
            last_heard_s: unix_ms() / 1000,
            is_leaving: false,
        };
        replicas.publish(&mut infos, replica);
        drop(infos);
        self.no_replica_since = None;
        replicas.has_readers.store(true, Ordering::Relaxed);
    }

    /// Tries a partial synchronisation. Returns `true` if the backlog has what the replica misses.
    fn try_partial_sync(&self, replica: &mut Replica, request: &SyncRequest) -> bool {
        let Some(resume) = &request.resume else {
            return false;
        };
        let repl = &self.server.replication;
        let begun = match repl.begin_partial_sync(resume, replica.id()) {
            Ok(begun) => begun,
            Err(refusal) => {
                refusal.log(&replica.name, &repl.replicas);
                return false;
            }
        };
        let answer = match replica.handshake.supports_psync2 {
            true => format!("+CONTINUE {}\r\n", begun.id),
            false => "+CONTINUE\r\n".to_owned(),
        };
        replica.connection.output.bytes.extend_from_slice(answer.as_bytes());
        log::notice!(
            "Partial resynchronization request from {} accepted. Sending {} bytes of backlog starting from offset {}.",
            replica.name,
            begun.missing_bytes,
            resume.next_byte
        );
        repl.replicas.partial_syncs.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(crate) fn mark_online(&mut self, token: usize, awaits_ack: bool) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        assert_ne!(
            replica.progress,
            ReplicaSyncState::Online,
            "a replica comes online once"
        );
        replica.progress = ReplicaSyncState::Online;
        replica.awaits_ack = awaits_ack;
        replica.last_heard = Instant::now();
        self.update_info(token, |known| {
            known.progress = ReplicaSyncState::Online;
            // Its dump may have taken long.
            known.last_heard_s = unix_ms() / 1000;
        });
        self.server.replication.update_too_few_replicas(&self.server.config);
        server_events::send(EventKind::ReplicaChange, || ServerEvent::ReplicaChanged {
            is_online: true,
        });
        self.send_backlog(token);
    }

    pub(crate) fn close_replica(&mut self, token: usize) {
        let Some(replica) = self.replicas.remove(&token) else {
            return;
        };
        match replica.handshake.is_rdb_channel {
            true => log::notice!(
                "Dual channel replication: Replica {} rdb channel disconnected.",
                replica.name
            ),
            false => log::notice!("Connection with replica {} lost.", replica.name),
        }
        if replica.progress == ReplicaSyncState::Online {
            server_events::send(EventKind::ReplicaChange, || ServerEvent::ReplicaChanged {
                is_online: false,
            });
        }
        if let Some(tls) = &replica.connection.tls
            && replica.progress != ReplicaSyncState::ReceivingDump
        {
            tls.send_close_notify(&mut self.reactor, token);
        }
        if let Some(registered) = self.reactor.deregister(token) {
            // A thread that writes a dump to the socket has its own handle of it.
            let _ = registered.socket.shutdown_both();
        }
        let id = replica.id();
        let server = self.server.clone();
        let replicas = &server.replication.replicas;
        if replicas.awaited_dumps().contains(&id) {
            self.start_grace_period(id, &replica.name, replica.description(&server.config));
        } else {
            replicas.backlog().unpin(id);
        }
        {
            let mut infos = replicas.infos();
            let before = infos.len();
            infos.retain(|known| known.id != id);
            assert_eq!(infos.len() + 1, before, "each replica is published once");
        }
        self.forget_connection(&replica.connection.client);
        server.clients.directory.remove(id);
        if self.replicas.is_empty() {
            self.no_replica_since = Some(Instant::now());
            replicas.has_readers.store(false, Ordering::Relaxed);
        }
        if let Some(dump) = &self.dump
            && !full_sync::is_useful_without_replicas(&server, dump.is_streamed)
            && !self
                .replicas
                .values()
                .any(|replica| dump.replicas.contains(&replica.id()))
            && server.persistence.snapshot.cancel(&[SnapshotPurpose::Replicas])
            && !replica.handshake.is_rdb_channel
        {
            match dump.is_streamed {
                true => log::notice!("Diskless rdb transfer, last replica dropped, killing fork child."),
                false => {
                    log::notice!("Background saving, persistence disabled, last replica dropped, killing fork child.")
                }
            }
        }
        self.server.replication.update_too_few_replicas(&self.server.config);
    }
}
