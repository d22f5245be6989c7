//! A worker's handling of TLS: handshakes, authentication by certificate, encryption and decryption.

use std::io;

use weft_reactor::{Reactor, ReceiveOutcome, SendOutcome};

use super::Worker;
use crate::commands::permission;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::thread::ThreadState;
use crate::net::client::{BufferFigures, Client, ClientFlags};
use crate::net::connection::Connection;
use crate::net::listeners::AcceptedConnection;
use crate::observability::log;
use weft_acl::{DenialContext, DenialReason, DeniedAccess};
use weft_config::id;
use weft_tls::{TlsLayer, certificate};

/// The error of a connection that needs a TLS layer while none can be created; the reason was logged.
pub(crate) struct NoTlsLayer;

impl Worker {
    /// Creates the layer of a new connection, if it was made to the TLS port.
    pub(crate) fn create_tls_layer(&self, arrival: &AcceptedConnection) -> Result<Option<TlsLayer>, NoTlsLayer> {
        if !arrival.is_tls {
            return Ok(None);
        }
        let server = self.server();
        let tls = server.tls.create_client_layer(&server.config).map_err(|reason| {
            log::warning!("Error accepting a client connection: {reason}");
            NoTlsLayer
        })?;
        if let Some(text) = arrival.refusal {
            tls.refuse(text);
        }
        Ok(Some(tls))
    }

    /// Starts the handshake of a connection that has arrived at this worker.
    pub(crate) fn start_tls_handshake(&mut self, token: usize) {
        if let Some(connection) = self.clients.connection(token)
            && let Some(tls) = &connection.tls
            && tls.resume_on_reactor(&mut self.reactor, token).is_err()
        {
            self.close(token);
        }
    }

    /// Returns the number of bytes in flight to a client, encrypted or not.
    pub(crate) fn in_flight_bytes(&mut self, token: usize) -> usize {
        let waiting = self
            .clients
            .connection(token)
            .map_or(0, |connection| connection.unencrypted_bytes());
        self.reactor.in_flight(token) + waiting
    }

    /// Returns the buffer figures of a connection; `None` if there is none with this token.
    pub(crate) fn buffer_figures(&mut self, token: usize) -> Option<BufferFigures> {
        let (in_flight, copied) = (self.in_flight_bytes(token), self.reactor.in_flight_memory(token));
        let connection = self.clients.connection(token)?;
        let unencrypted = connection.tls.as_ref().map_or(0, TlsLayer::unencrypted_memory);
        Some(BufferFigures {
            allocated: connection.allocated_bytes(copied + unencrypted),
            ..connection.buffers(in_flight)
        })
    }

    /// Handles the completion of a write: encrypts and sends more. Returns `true` if nothing is left.
    pub(crate) fn continue_encrypting(&mut self, token: usize) -> bool {
        let Some(connection) = self.clients.connection(token) else {
            return true;
        };
        let Some(tls) = &connection.tls else {
            return true;
        };
        match tls.continue_sending(&mut self.reactor, token) {
            Ok(SendOutcome::Done) => true,
            Ok(SendOutcome::InFlight(_)) => {
                self.count_client(token);
                false
            }
            Err(_) => {
                self.handle_broken_connection(token);
                false
            }
        }
    }
}

/// Receives like the reactor's `receive`, for a connection with a TLS layer.
#[inline(never)]
pub(crate) fn receive_decrypted(
    tls: &TlsLayer,
    connection: &mut Connection,
    reactor: &mut Reactor,
    token: usize,
    thread: &ThreadState,
    handshakes: &mut u64,
    max_bytes: usize,
) -> io::Result<ReceiveOutcome> {
    let handshaking = tls.is_handshaking();
    if handshaking {
        if *handshakes >= thread.server.config.unsigned(id::MAX_NEW_TLS_CONNECTIONS_PER_CYCLE) {
            // The connection stays readable, and is handled in a later turn.
            return Ok(ReceiveOutcome::WouldBlock);
        }
        *handshakes += 1;
    }
    let received = tls.receive(reactor, token, &mut connection.input, max_bytes);
    match &received {
        Ok(ReceiveOutcome::Closed) if handshaking => {
            log_handshake_failure(&connection.client, "unexpected end of the connection")
        }
        Err(error) if handshaking => log_handshake_failure(&connection.client, &error.to_string()),
        Err(error) => log::verbose!("Reading from client: {error}"),
        Ok(_) if handshaking && !tls.is_handshaking() => {
            if let Some(text) = tls.refusal() {
                connection.input.clear();
                connection.output.bytes.extend_from_slice(text.as_bytes());
                connection.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
                return Ok(ReceiveOutcome::WouldBlock);
            }
            authenticate_by_certificate(tls, &mut connection.client, thread);
        }
        Ok(_) => {}
    }
    match received {
        Ok(ReceiveOutcome::Bytes { count: 0, .. }) => Ok(ReceiveOutcome::WouldBlock),
        other => other,
    }
}

fn log_handshake_failure(client: &Client, reason: &str) {
    log::warning!(
        "Error accepting a client connection: {reason} (addr={} laddr={})",
        client.address,
        client.local_address
    );
}

/// Keeps the certificate of the client, and authenticates the client as the user named there, if that is configured.
fn authenticate_by_certificate(tls: &TlsLayer, client: &mut Client, thread: &ThreadState) {
    let server = &thread.server;
    if let Some(der) = tls.peer_certificate() {
        server.clients.directory.note_certificate(client.id, der);
    }
    let names = match (server.config.choice(id::TLS_AUTH_CLIENTS_USER), tls.peer_certificate()) {
        ("CN", Some(der)) => certificate::common_name(&der).into_iter().collect(),
        ("URI", Some(der)) => certificate::uris(&der),
        _ => return,
    };
    let known = |name: &String| server.acl.log_in_without_password(name.as_bytes());
    match (names.iter().find_map(known), names.into_iter().next()) {
        (Some(login), _) => {
            client.login = login;
            client.flags.set(ClientFlags::HAS_AUTHENTICATED, true);
            let name = match server.config.boolean(id::HIDE_USER_DATA_FROM_LOG) {
                true => "*redacted*".into(),
                false => String::from_utf8_lossy(client.login.name()),
            };
            log::verbose!("TLS: Auto-authenticated client as {name}");
        }
        (None, Some(name)) => {
            let refusal = DeniedAccess {
                reason: DenialReason::Certificate,
                context: DenialContext::TopLevel,
                object: Vec::new(),
                user: name.into_bytes(),
            };
            let line = client.list_line(thread.now_ms, BufferFigures::default());
            permission::log_denial(server, thread.thread_index, thread.now_ms, refusal, line);
        }
        (None, None) => {}
    }
}
