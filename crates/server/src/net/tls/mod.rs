//! TLS: a layer between what a socket gives and what the parser sees, and between replies and what is sent.
//!
//! ```text
//!   reactor ──▶ records ──▶ Tls::receive ──▶ Connection::input ──▶ parser         (as without TLS from here on)
//!   reactor ◀── records ◀── Tls::send    ◀── Connection::output ◀── replies
//!                              └─ waiting: what one turn shall not seal, large values where they lie
//! ```
//!
//! 1. A connection without TLS pays one branch for each receive and each send.
//! 2. What came in is unsealed at once and whole, so nothing that the parser could see waits in the layer. Records of which
//!    a part is missing wait in rustls.
//! 3. What goes out is sealed as the socket takes it, at most `SHARE_BYTES` a turn: a value of any size costs no second
//!    copy of it and nobody waits for its encryption. Behind something in flight nothing large is sealed.
//! 4. The layer travels with its connection, to other workers and to the thread that serves replicas. A dump is written to
//!    a replica's socket by a further thread, hence the lock, which nobody contends for otherwise.
//! 5. A handshake advances when something comes in; a worker advances a few of them a turn
//!    (`max-new-tls-connections-per-cycle`), for each costs a signature. A client that is silent in it is an idle one
//!    (`timeout`).
//! 6. Which certificates, versions and ciphers are in use is settled when a connection begins. A change of the
//!    configuration reads the files and puts a new [`Material`] into place, or changes nothing.
//!
//! Nodes and primaries are not known by names: as in Valkey, a server's certificate has to come from an authority that is
//! trusted, whatever name it has.

pub mod certificate;
mod ciphers;
mod files;
mod layer;
mod material;
mod sessions;
mod trust;
mod wire;

use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use crate::config::{Config, id};
use crate::observability::log;

pub use layer::Tls;
pub use material::{Material, Unusable};
pub use wire::Wire;

/// Who has to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Nobody.
    No,
    /// Nobody, but who does is looked at.
    Optional,
    /// Everybody.
    Yes,
}

impl ClientCertificates {
    fn of(config: &Config) -> ClientCertificates {
        match config.choice(id::TLS_AUTH_CLIENTS) {
            "no" => ClientCertificates::No,
            "optional" => ClientCertificates::Optional,
            _ => ClientCertificates::Yes,
        }
    }
}

/// What the process has for TLS; nothing as long as it is not in use.
#[derive(Default)]
pub struct Contexts {
    current: RwLock<Option<Arc<Material>>>,
}

impl Contexts {
    /// Whether the configuration asks for TLS anywhere.
    pub fn are_needed(config: &Config) -> bool {
        config.integer(id::TLS_PORT) != 0 || config.boolean(id::TLS_REPLICATION) || config.boolean(id::TLS_CLUSTER)
    }

    /// What is in use.
    pub fn current(&self) -> Option<Arc<Material>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other material into place, for connections that begin from now on.
    pub fn put(&self, material: Material) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(material));
    }

    /// Reads what the configuration names and puts it into place.
    ///
    /// # Errors
    /// When something is missing or wrong; the log has told, and nothing has changed.
    pub fn configure(&self, config: &Config) -> Result<(), Unusable> {
        self.put(Material::read(config)?);
        Ok(())
    }

    /// Reads the files again if one of them has changed since.
    pub fn reload_if_changed(&self, config: &Config) {
        let Some(current) = self.current() else {
            return;
        };
        if current.fingerprint == files::fingerprint(config) {
            return;
        }
        match self.configure(config) {
            Ok(()) => log::notice!("TLS certificates and keys have changed and were loaded again"),
            Err(Unusable) => {
                log::warning!("TLS certificates and keys have changed and cannot be used; the old ones stay")
            }
        }
    }

    /// The layer of a client that has connected.
    ///
    /// # Errors
    /// The reason, for the log.
    pub fn accept(&self, config: &Config) -> Result<Tls, String> {
        self.serve(ClientCertificates::of(config))
    }

    /// The layer of a node of the cluster that has connected.
    ///
    /// # Errors
    /// The reason, for the log.
    pub fn accept_node(&self) -> Result<Tls, String> {
        self.serve(ClientCertificates::Yes)
    }

    fn serve(&self, asks: ClientCertificates) -> Result<Tls, String> {
        let material = self.current().ok_or("TLS is not configured")?;
        let session = ServerConnection::new(material.server(asks)).map_err(|error| error.to_string())?;
        Ok(Tls::new(session.into()))
    }

    /// A session with `host`, to which this server connects.
    ///
    /// # Errors
    /// The reason, for the log.
    pub fn call(&self, host: &str) -> Result<ClientConnection, String> {
        let material = self.current().ok_or("TLS is not configured")?;
        // What is no name of a host is not told to the other side, and nobody looks at it here.
        let nameless = || ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into());
        let name = ServerName::try_from(host.to_owned()).unwrap_or_else(|_| nameless());
        ClientConnection::new(material.client(), name).map_err(|error| error.to_string())
    }

    /// The layer of a connection that this server makes.
    ///
    /// # Errors
    /// The reason, for the log.
    pub fn connect(&self, host: &str) -> Result<Tls, String> {
        self.call(host).map(|session| Tls::new(session.into()))
    }
}

#[cfg(test)]
mod tests;
