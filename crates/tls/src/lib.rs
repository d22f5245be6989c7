//! TLS: a layer between the socket and the parser, and between replies and the socket.
//!
//! ```text
//!   reactor ──▶ records ──▶ Tls::receive ──▶ Connection::input ──▶ parser         (as without TLS from here on)
//!   reactor ◀── records ◀── Tls::send    ◀── Connection::output ◀── replies
//!                              └─ waiting: output beyond one turn's share, with large values by reference
//! ```
//!
//! 1. A connection without TLS pays one branch for each receive and each send.
//! 2. Received records are decrypted at once and completely, so no byte that the parser could use waits in the layer.
//!    Incomplete records wait in rustls.
//! 3. Output is encrypted as the socket accepts it, at most `SHARE_BYTES` per turn. So a large value needs no second
//!    copy, and its encryption does not delay other clients. Large output is not encrypted while other output is in
//!    flight.
//! 4. The layer moves with its connection, to other workers and to the thread that serves replicas. Another thread
//!    writes the RDB to a replica's socket, hence the lock, which is otherwise uncontended.
//! 5. A handshake advances when bytes arrive. A worker advances only a few handshakes per turn
//!    (`max-new-tls-connections-per-cycle`), since each costs a signature. A client that is silent during its handshake
//!    counts as idle (`timeout`).
//! 6. Certificates, versions and ciphers are fixed when a connection begins. A change of the configuration reads the
//!    files and installs a new [`TlsMaterial`], or changes nothing. Files that have changed are read again on a thread
//!    of its own, since a disk may not answer. What was read is installed if the configuration is still the same.
//!    Otherwise they are read again: at once a few times, and then after a short while.
//!
//! Names of nodes and primaries are not verified. As in Valkey, the certificate of a server must come from a trusted
//! authority, whatever name it contains.
#![forbid(unsafe_code)]

pub mod certificate;
mod ciphers;
mod error;
mod files;
mod layer;
mod material;
mod reissue;
mod sessions;
mod trust;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use weft_config::{Config, id};
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::RwLock;

pub use error::{PemError, TlsError};
pub use layer::{SocketlessSession, TlsLayer};
pub use material::{TlsMaterial, UnusableTlsConfig};
pub use wire::BlockingConnection;

/// The number of times that changed files are read while CONFIG SET changes parameters meanwhile. Then the reload is
/// put off.
const MAX_RELOAD_ATTEMPTS: u32 = 3;
/// The time after the beginning of a reload that was put off at which the files are checked again. It is Valkey's
/// period of such checks.
const RELOAD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The policy for certificates of peers that connect to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Certificates are not requested.
    NotRequested,
    /// Certificates are optional, and verified if present.
    Optional,
    /// Certificates are required.
    Required,
}

impl ClientCertificates {
    fn from_config(config: &Config) -> ClientCertificates {
        match config.choice(id::TLS_AUTH_CLIENTS) {
            "no" => ClientCertificates::NotRequested,
            "optional" => ClientCertificates::Optional,
            _ => ClientCertificates::Required,
        }
    }
}

/// The TLS material of the process; none while TLS is not in use.
#[derive(Default)]
pub struct TlsState {
    current: RwLock<Option<Arc<TlsMaterial>>>,
    /// Set while a thread reads changed files.
    is_reloading: AtomicBool,
    /// `true` if the last reload was put off, because CONFIG SET changed parameters whenever it had read the files.
    is_reload_put_off: AtomicBool,
}

impl TlsState {
    /// Returns `true` if the configuration uses TLS for clients, replication or the cluster.
    pub fn is_tls_configured(config: &Config) -> bool {
        config.integer(id::TLS_PORT) != 0 || config.boolean(id::TLS_REPLICATION) || config.boolean(id::TLS_CLUSTER)
    }

    /// Returns the current material.
    pub fn current(&self) -> Option<Arc<TlsMaterial>> {
        self.current.read().clone()
    }

    /// Installs new material, for connections that begin from now on.
    pub fn install(&self, material: TlsMaterial) {
        *self.current.write() = Some(Arc::new(material));
    }

    /// Reads the configured files and installs them.
    ///
    /// # Errors
    /// If a file or setting is missing or invalid. The reason has been logged, and nothing has changed.
    pub fn configure(&self, config: &Config) -> Result<(), UnusableTlsConfig> {
        self.install(TlsMaterial::read(config)?);
        Ok(())
    }

    /// Begins a reload. Returns `false` if one is under way: the disk may not answer. Otherwise the caller lets a
    /// thread call [`Self::reload_if_changed`] and then [`Self::end_reload`].
    pub fn try_begin_reload(&self) -> bool {
        !self.is_reloading.swap(true, Ordering::AcqRel)
    }

    /// Records the end of a reload.
    pub fn end_reload(&self) {
        self.is_reloading.store(false, Ordering::Release);
    }

    /// Returns the time from the beginning of the last reload to the next one, if it is usually `interval`. It is short
    /// if the last one was put off.
    pub fn reload_interval(&self, interval: Duration) -> Duration {
        match self.is_reload_put_off.load(Ordering::Acquire) {
            true => interval.min(RELOAD_RETRY_INTERVAL),
            false => interval,
        }
    }

    /// Reads the files again if one of them has changed. The configuration may be changed while this waits for the
    /// disk. If it is changed again and again, the reload is put off ([`Self::reload_interval`]).
    pub fn reload_if_changed(&self, config: &Config) {
        self.reload_with(config, TlsMaterial::read);
    }

    /// Does the same, and reads the files with `read`.
    fn reload_with(&self, config: &Config, read: impl Fn(&Config) -> Result<TlsMaterial, UnusableTlsConfig>) {
        let is_done = (0..MAX_RELOAD_ATTEMPTS).any(|_| self.try_reload(config, &read));
        let was_put_off = self.is_reload_put_off.swap(!is_done, Ordering::AcqRel);
        if !is_done && !was_put_off {
            log::info!("TLS reload postponed: the configuration was changed while the materials were read");
        }
    }

    /// Makes one attempt of a reload. Returns `false` if the configuration was changed meanwhile.
    fn try_reload(&self, config: &Config, read: impl Fn(&Config) -> Result<TlsMaterial, UnusableTlsConfig>) -> bool {
        let generation = config.generation();
        if self.is_up_to_date(config) {
            return true;
        }
        let material = read(config);
        let _change = config.begin_change();
        if config.generation() != generation {
            // CONFIG SET may have changed the names of the files, or the directory to which they are relative, or have
            // installed other material.
            return false;
        }
        match material {
            Ok(material) => {
                self.install(material);
                log::info!("Reloaded changed TLS certificates and keys");
            }
            Err(UnusableTlsConfig) => {
                log::warn!("Failed to reload changed TLS certificates and keys; the previous ones stay in use");
            }
        }
        true
    }

    /// Returns `true` if TLS is not in use, or if the current material is that of the present files.
    fn is_up_to_date(&self, config: &Config) -> bool {
        let current = self.current();
        current.is_none_or(|current| current.fingerprint == files::fingerprint(config))
    }

    /// Creates the layer of a client that has connected.
    ///
    /// # Errors
    /// If TLS is not configured, or rustls refuses the settings.
    pub fn create_client_layer(&self, config: &Config) -> Result<TlsLayer, TlsError> {
        self.create_server_layer(ClientCertificates::from_config(config))
    }

    /// Creates the layer of a cluster node that has connected.
    ///
    /// # Errors
    /// If TLS is not configured, or rustls refuses the settings.
    pub fn create_node_layer(&self) -> Result<TlsLayer, TlsError> {
        self.create_server_layer(ClientCertificates::Required)
    }

    fn create_server_layer(&self, policy: ClientCertificates) -> Result<TlsLayer, TlsError> {
        let material = self.current().ok_or(TlsError::NotConfigured)?;
        let session = ServerConnection::new(material.server_config(policy))?;
        Ok(TlsLayer::new(session.into()))
    }

    /// Creates a session with `host`, to which this server connects.
    ///
    /// # Errors
    /// If TLS is not configured, or rustls refuses the settings.
    pub fn create_client_session(&self, host: &str) -> Result<ClientConnection, TlsError> {
        let material = self.current().ok_or(TlsError::NotConfigured)?;
        // A name that is not a valid host name is not sent to the peer; names are not verified here.
        let nameless = || ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into());
        let name = ServerName::try_from(host.to_owned()).unwrap_or_else(|_| nameless());
        Ok(ClientConnection::new(material.client_config(), name)?)
    }

    /// Creates the layer of a connection from this server to `host`.
    ///
    /// # Errors
    /// If TLS is not configured, or rustls refuses the settings.
    pub fn create_outgoing_layer(&self, host: &str) -> Result<TlsLayer, TlsError> {
        self.create_client_session(host)
            .map(|session| TlsLayer::new(session.into()))
    }
}

#[cfg(test)]
mod tests;
