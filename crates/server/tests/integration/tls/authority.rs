//! Creates certificates for a test, signed by its own authority, in its own directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    /// The directory of the files.
    pub directory: PathBuf,
}

/// A certificate and its key.
pub struct Identity {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// The certificate and the key, in PEM.
    pub pem: (String, String),
    /// The key.
    pub key: Vec<u8>,
}

/// The TLS settings of a client.
#[derive(Clone, Copy, Default)]
pub struct ClientTlsOptions<'a> {
    /// The certificate that the client presents.
    pub identity: Option<&'a Identity>,
    /// The protocol versions of the client; empty for all.
    pub versions: &'a [&'static SupportedProtocolVersion],
    /// The ciphers of the client, by prefixes of their names; empty for all.
    pub ciphers: &'a [&'a str],
}

impl Authority {
    /// Creates an authority.
    pub fn new() -> Authority {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("weft-tls-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("makes a directory");
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters
            .distinguished_name
            .push(DnType::CommonName, format!("authority {number}"));
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let made = parameters.self_signed(&key).expect("a certificate");
        std::fs::write(directory.join("ca.crt"), made.pem()).expect("writes");
        Authority {
            root: made.der().clone(),
            issuer: Issuer::new(parameters, key),
            directory,
        }
    }

    /// Issues a certificate with this common name and these URIs.
    pub fn identity(&self, name: &str, uris: &[&str]) -> Identity {
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        parameters.distinguished_name.push(DnType::CommonName, name);
        for uri in uris {
            let uri = SanType::URI((*uri).try_into().expect("a URI"));
            parameters.subject_alt_names.push(uri);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let made = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        Identity {
            certificate: made.der().clone(),
            pem: (made.pem(), key.serialize_pem()),
            key: key.serialize_der(),
        }
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> String {
        self.directory.join(name).to_string_lossy().into_owned()
    }

    /// Writes a certificate and its key to `name.crt` and `name.key`.
    pub fn write(&self, name: &str, identity: &Identity) {
        std::fs::write(self.directory.join(format!("{name}.crt")), &identity.pem.0).expect("writes");
        std::fs::write(self.directory.join(format!("{name}.key")), &identity.pem.1).expect("writes");
    }

    /// Returns the arguments for a server with its own certificate.
    pub fn arguments(&self, name: &str) -> Vec<String> {
        self.write(name, &self.identity(name, &[]));
        let words = [
            "--tls-cert-file",
            &self.file(&format!("{name}.crt")),
            "--tls-key-file",
            &self.file(&format!("{name}.key")),
            "--tls-ca-cert-file",
            &self.file("ca.crt"),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Returns the configuration of a client that trusts this authority.
    pub fn client(&self, manner: ClientTlsOptions<'_>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a root");
        let mut provider = rustls::crypto::ring::default_provider();
        if !manner.ciphers.is_empty() {
            provider.cipher_suites.retain(|suite| {
                let name = format!("{:?}", suite.suite());
                manner.ciphers.iter().any(|wanted| name.starts_with(wanted))
            });
        }
        let versions = match manner.versions {
            [] => rustls::ALL_VERSIONS,
            versions => versions,
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        Arc::new(match manner.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.key.clone()));
                let chain = vec![identity.certificate.clone()];
                builder.with_client_auth_cert(chain, key).expect("a certificate")
            }
        })
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
