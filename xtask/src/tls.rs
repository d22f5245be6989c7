//! TLS of servers under test: an authority that issues certificates, and the client's side of a connection.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

#[cfg(test)]
mod tests;

/// The name in each certificate.
const SERVER_NAME: &str = "localhost";

/// A certificate authority with a directory for its certificates, which is removed when it is dropped.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    directory: PathBuf,
}

/// A certificate, and the files that contain it and its key.
pub struct IssuedCertificate {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// The file with the certificate as PEM.
    pub certificate_file: PathBuf,
    /// The file with the private key as PEM.
    pub key_file: PathBuf,
    key: Vec<u8>,
}

impl CertificateAuthority {
    /// Creates an authority in a new directory below the one for temporary files.
    ///
    /// # Errors
    /// Fails if the certificate or its file cannot be made.
    pub fn create() -> Result<Self, String> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("weft-xtask-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let mut parameters = CertificateParams::new(Vec::new()).map_err(text)?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters
            .distinguished_name
            .push(DnType::CommonName, "authority of the test");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(text)?;
        let root = parameters.self_signed(&key).map_err(text)?;
        let authority = Self {
            root: root.der().clone(),
            issuer: Issuer::new(parameters, key),
            directory,
        };
        write_file(&authority.root_file(), &root.pem())?;
        Ok(authority)
    }

    /// The file with the authority's own certificate.
    pub fn root_file(&self) -> PathBuf {
        self.directory.join("authority.crt")
    }

    /// Issues a certificate with this common name, which is also the name of its files.
    ///
    /// # Errors
    /// Fails if the certificate or its files cannot be made.
    pub fn issue(&self, name: &str) -> Result<IssuedCertificate, String> {
        let mut parameters = CertificateParams::new(vec![SERVER_NAME.to_owned()]).map_err(text)?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(text)?;
        let signed = parameters.signed_by(&key, &self.issuer).map_err(text)?;
        let issued = IssuedCertificate {
            certificate: signed.der().clone(),
            certificate_file: self.directory.join(format!("{name}.crt")),
            key_file: self.directory.join(format!("{name}.key")),
            key: key.serialize_der(),
        };
        write_file(&issued.certificate_file, &signed.pem())?;
        write_file(&issued.key_file, &key.serialize_pem())?;
        Ok(issued)
    }

    /// Returns the configuration of a client that trusts this authority and presents a certificate of it. Each of its
    /// connections begins with a whole handshake, in which it sees the certificate that the server has now.
    ///
    /// # Errors
    /// Fails if a certificate cannot be made.
    pub fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let own = self.issue("client")?;
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).map_err(text)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.key));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(text)?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own.certificate], key)
            .map_err(text)?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl Drop for CertificateAuthority {
    fn drop(&mut self) {
        // The files are temporary ones.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn write_file(path: &Path, content: &str) -> Result<(), String> {
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

/// The client's side of a connection with TLS. Handles of the same connection share its session, so only one thread may
/// read and write.
pub struct TlsConnection {
    session: Arc<Mutex<StreamOwned<ClientConnection, TcpStream>>>,
    /// The connection below, which another thread can shut down while this one reads.
    socket: TcpStream,
}

impl TlsConnection {
    /// Connects, and performs the handshake. Each step of it, and each read and write later, may take `patience`.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection, or if the handshake fails.
    pub fn connect(address: SocketAddr, patience: Duration, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, patience)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut session = StreamOwned::new(session, socket.try_clone()?);
        while session.conn.is_handshaking() {
            session.conn.complete_io(&mut session.sock)?;
        }
        Ok(Self {
            session: Arc::new(Mutex::new(session)),
            socket,
        })
    }

    /// Returns another handle of the connection.
    ///
    /// # Errors
    /// Fails if the process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            session: Arc::clone(&self.session),
            socket: self.socket.try_clone()?,
        })
    }

    /// Shuts down one direction of the connection below, or both. The peer gets no `close_notify`.
    ///
    /// # Errors
    /// Fails if the connection has ended.
    pub fn shutdown(&self, direction: Shutdown) -> io::Result<()> {
        self.socket.shutdown(direction)
    }

    /// Returns the certificate that the server has presented.
    pub fn server_certificate(&self) -> Option<CertificateDer<'static>> {
        self.session().conn.peer_certificates()?.first().cloned()
    }

    fn session(&self) -> MutexGuard<'_, StreamOwned<ClientConnection, TcpStream>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for TlsConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.session().read(into)
    }
}

impl Write for TlsConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.session().flush()
    }
}
