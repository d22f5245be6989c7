//! Handshakes with a server whose certificate has X.509 version 1.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, SupportedProtocolVersion, version};

use super::plain_error;
use crate::connection::tls::client_config;
use crate::options::TlsOptions;

const CERTIFICATE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/src/connection/certificate/tests/version_one.crt"
);
const KEY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/src/connection/certificate/tests/version_one.key"
);

/// Presents the certificate, which rustls does not load in the usual way.
#[derive(Debug)]
struct VersionOneServer(Arc<CertifiedKey>);

impl ResolvesServerCert for VersionOneServer {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn server(version: &'static SupportedProtocolVersion, certificate_file: &str) -> ServerConnection {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_file(certificate_file).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(KEY).expect("a key");
    let key = provider.key_provider.load_private_key(key).expect("a usable key");
    let resolver = VersionOneServer(Arc::new(CertifiedKey::new(vec![certificate], key)));
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    ServerConnection::new(Arc::new(config)).expect("a server")
}

/// Performs a handshake in memory. Returns the error of the client as text.
fn handshake(config: &Arc<ClientConfig>, mut server: ServerConnection) -> Result<(), String> {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = ClientConnection::new(config.clone(), name).expect("a client");
    while client.is_handshaking() {
        let mut sent = Vec::new();
        client.write_tls(&mut sent).expect("memory");
        server.read_tls(&mut sent.as_slice()).expect("memory");
        server.process_new_packets().map_err(|error| error.to_string())?;
        let mut answer = Vec::new();
        server.write_tls(&mut answer).expect("memory");
        client.read_tls(&mut answer.as_slice()).expect("memory");
        client.process_new_packets().map_err(|error| {
            // A stream passes the error on like this.
            plain_error(std::io::Error::new(std::io::ErrorKind::InvalidData, error)).to_string()
        })?;
    }
    Ok(())
}

fn config(insecure: bool) -> Arc<ClientConfig> {
    let options = TlsOptions {
        authorities: Some(CERTIFICATE.into()),
        insecure,
        ..TlsOptions::default()
    };
    client_config(&options).expect("a configuration")
}

#[test]
fn a_certificate_of_version_one_is_accepted_if_all_are() {
    for version in [&version::TLS12, &version::TLS13] {
        let done = handshake(&config(true), server(version, CERTIFICATE));
        assert_eq!(done, Ok(()), "{version:?}");
    }
}

#[test]
fn the_signature_of_a_certificate_of_version_one_is_checked() {
    // The certificate of another key.
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../tls/src/tests/version_one.crt");
    for version in [&version::TLS12, &version::TLS13] {
        let error = handshake(&config(true), server(version, other)).expect_err("the key does not fit");
        assert!(error.contains("BadSignature") || error.contains("algorithm"), "{error}");
    }
}

#[test]
fn a_certificate_of_version_one_is_refused_with_a_plain_reason() {
    for version in [&version::TLS12, &version::TLS13] {
        let error = handshake(&config(false), server(version, CERTIFICATE)).expect_err("rustls does not read it");
        assert!(
            error.starts_with("the certificate of the server has X.509 version 1, but version 3 is required"),
            "{error}"
        );
        assert!(error.contains("-extfile") && error.contains("--insecure"), "{error}");
        assert!(!error.contains("OtherError"), "{error}");
    }
}

#[test]
fn a_certificate_of_version_one_of_this_client_is_refused_with_a_plain_reason() {
    let options = TlsOptions {
        certificate: Some(CERTIFICATE.into()),
        key: Some(KEY.into()),
        insecure: true,
        ..TlsOptions::default()
    };
    let error = client_config(&options)
        .expect_err("rustls does not read it")
        .to_string();
    assert!(
        error.contains("version_one.crt: the certificate has X.509 version 1, but version 3 is required"),
        "{error}"
    );
}
