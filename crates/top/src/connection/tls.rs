//! The client's side of TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::{Result, TopError};
use crate::options::TlsOptions;

/// Where distributions of Linux keep the certificates of the public authorities.
const SYSTEM_AUTHORITIES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Builds the configuration for the options of the command line.
///
/// # Errors
/// Fails if a file cannot be read or used.
pub fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>> {
    let refused = |error: rustls::Error| TopError::Tls(error.to_string());
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(refused)?;
    let builder = if options.insecure {
        let verifier = Arc::new(AnyCertificate(provider));
        builder.dangerous().with_custom_certificate_verifier(verifier)
    } else {
        builder.with_root_certificates(authorities(options)?)
    };
    let config = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
            builder
                .with_client_auth_cert(read_certificates(certificate)?, key)
                .map_err(refused)?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(TopError::Usage("--cert and --key need each other".to_owned())),
    };
    Ok(Arc::new(config))
}

/// Reads the trusted authorities: the given file, or those of the system.
fn authorities(options: &TlsOptions) -> Result<RootCertStore> {
    let path = match &options.authorities {
        Some(path) => path.clone(),
        None => {
            let named = std::env::var_os("SSL_CERT_FILE").map(Into::into);
            let known = || {
                SYSTEM_AUTHORITIES
                    .iter()
                    .map(Into::into)
                    .find(|path: &std::path::PathBuf| path.exists())
            };
            named
                .or_else(known)
                .ok_or_else(|| TopError::Tls("no certificates of authorities are installed; use --cacert".to_owned()))?
        }
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(read_certificates(&path)?);
    match added {
        0 => Err(TopError::Tls(format!("{} has no usable certificate", path.display()))),
        _ => Ok(roots),
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let sections = CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, error))?;
    sections
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, error: rustls::pki_types::pem::Error) -> TopError {
    TopError::Tls(format!("{}: {error}", path.display()))
}

/// Accepts every certificate (`--insecure`). The signatures of the handshake are still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
