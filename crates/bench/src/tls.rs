//! TLS of loads: a certificate for the servers, made when a comparison starts, and the client's side of a connection.
//!
//! The certificate is self-signed and is the only one that the client trusts. All connections use TLS 1.3 with
//! AES-256-GCM, so that both servers encrypt alike.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::{Error, ErrorContext, Result};
use crate::progress::log_line;

#[cfg(test)]
mod tests;

/// The name in the certificate.
const SERVER_NAME: &str = "localhost";

/// The files of a certificate and its key, which are removed when this value is dropped.
#[derive(Debug)]
pub struct TlsIdentity {
    folder: PathBuf,
    /// The certificate as PEM. It is its own certificate authority.
    pub certificate: PathBuf,
    /// The private key as PEM.
    pub key: PathBuf,
}

impl TlsIdentity {
    /// Creates a P-256 key and a self-signed certificate with the program `openssl`.
    ///
    /// # Errors
    /// Fails if the program is missing or fails.
    pub fn create() -> Result<TlsIdentity> {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weft-bench-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).context(format!("creating {}", folder.display()))?;
        let identity = TlsIdentity {
            certificate: folder.join("certificate.pem"),
            key: folder.join("key.pem"),
            folder,
        };
        let output = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ])
            .args(["-nodes", "-days", "30", "-subj", "/CN=localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-addext", "subjectAltName=DNS:localhost", "-keyout"])
            .arg(&identity.key)
            .arg("-out")
            .arg(&identity.certificate)
            .output()
            .context("running openssl")?;
        if output.status.success() {
            return Ok(identity);
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Error::Server(format!("openssl made no certificate: {text}")))
    }

    /// Returns the configuration of a client that trusts this certificate only.
    ///
    /// # Errors
    /// Fails if the certificate cannot be read.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>> {
        let broken = |text: String| Error::Server(format!("{}: {text}", self.certificate.display()));
        let certificate =
            CertificateDer::from_pem_file(&self.certificate).map_err(|error| broken(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate).map_err(|error| broken(error.to_string()))?;
        let provider = CryptoProvider {
            cipher_suites: vec![ring::cipher_suite::TLS13_AES_256_GCM_SHA384],
            ..ring::default_provider()
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| broken(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl Drop for TlsIdentity {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            log_line(format_args!(
                "weft-bench: cannot remove {}: {error}",
                self.folder.display()
            ));
        }
    }
}

/// A connection with TLS.
#[derive(Debug)]
pub struct TlsStream {
    session: ClientConnection,
    /// The connection below.
    pub socket: TcpStream,
}

impl TlsStream {
    /// Performs the handshake on a blocking connection.
    ///
    /// # Errors
    /// Fails if the handshake fails.
    pub fn connect(mut socket: TcpStream, config: &Arc<ClientConfig>) -> Result<TlsStream> {
        let refused = |error: rustls::Error| Error::Server(format!("TLS: {error}"));
        let name = ServerName::try_from(SERVER_NAME).map_err(|error| Error::Server(error.to_string()))?;
        let mut session = ClientConnection::new(Arc::clone(config), name).map_err(refused)?;
        session.set_buffer_limit(None);
        while session.is_handshaking() {
            session.complete_io(&mut socket).context("the handshake of TLS")?;
        }
        Ok(TlsStream { session, socket })
    }

    /// Reads as much as is available, up to the size of `buffer`.
    ///
    /// The library keeps bytes that it has read from the socket, for which `epoll` reports no event. Therefore this
    /// reads until the socket is empty or the buffer is full.
    ///
    /// # Errors
    /// Fails with `WouldBlock` if nothing is available, and if the connection breaks.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.session.reader().read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => {
                    filled += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.session.read_tls(&mut self.socket) {
                Ok(0) => break,
                Ok(_) => {
                    let processed = self.session.process_new_packets();
                    processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Encrypts all of `bytes`. [`TlsStream::flush`] sends them.
    ///
    /// # Errors
    /// Fails if the session has ended.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session.writer().write(bytes)
    }

    /// Sends encrypted bytes. Returns `true` if none are left.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn flush(&mut self) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
