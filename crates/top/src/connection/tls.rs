//! The client's side of TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::certificate::{AnyCertificate, TrustedCertificate, is_version_one};
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
    let verifier: Arc<dyn ServerCertVerifier> = if options.insecure {
        Arc::new(AnyCertificate::new(&provider))
    } else {
        let roots = Arc::new(authorities(options)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        Arc::new(TrustedCertificate(
            verifier.map_err(|error| TopError::Tls(error.to_string()))?,
        ))
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
            let chain = read_certificates(certificate)?;
            if chain.first().is_some_and(is_version_one) {
                return Err(TopError::Tls(format!(
                    "{}: the certificate has X.509 version 1, but version 3 is required: issue it with an extension \
                     (-extfile of openssl x509)",
                    certificate.display()
                )));
            }
            builder.with_client_auth_cert(chain, key).map_err(refused)?
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
