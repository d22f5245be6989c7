//! The TLS material: certificates, keys, authorities, versions and ciphers of one state of the configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, server::NoClientAuth};

use super::certificate::{self, Label};
use super::sessions::Sessions;
use super::trust::{ClientVerifier, ServerVerifier, Trust};
use super::{ClientCertificates, ciphers, files};
use crate::config::{Config, ParameterId, error_text, id};
use crate::observability::log;

/// The error that the TLS configuration is not usable; the reason has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable;

/// The figures for INFO.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The server's certificate.
    pub server: Option<Label>,
    /// The certificate for outgoing connections, if a separate one is configured.
    pub client: Option<Label>,
    /// The authority that expires first.
    pub authority: Option<Label>,
}

/// The TLS material, ready for use.
pub struct Material {
    open: Arc<ServerConfig>,
    optional: Arc<ServerConfig>,
    strict: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// The figures for INFO.
    pub figures: Figures,
    /// The hash of the files, see [`files::fingerprint`].
    pub fingerprint: u64,
}

/// A certificate with its intermediate certificates, and its private key.
struct Pair {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The settings that both directions of connections share.
struct Common {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    trust: Arc<Trust>,
}

fn text(config: &Config, id: ParameterId) -> String {
    String::from_utf8_lossy(&config.text(id)).into_owned()
}

/// Returns a function for `map_err` that logs the error.
fn told(what: String) -> impl FnOnce(String) -> Unusable {
    move |reason| {
        log::warning!("{what}: {reason}");
        Unusable
    }
}

fn complain(line: &str) -> Unusable {
    log::warning!("{line}");
    Unusable
}

impl Material {
    /// Reads all configured files.
    ///
    /// # Errors
    /// If a file or setting is missing or invalid.
    pub fn read(config: &Config) -> Result<Material, Unusable> {
        let fingerprint = files::fingerprint(config);
        let file = |id| files::path(config, id);
        let certificate = file(id::TLS_CERT_FILE).ok_or_else(|| complain("No tls-cert-file configured!"))?;
        let key = file(id::TLS_KEY_FILE).ok_or_else(|| complain("No tls-key-file configured!"))?;
        let wants_authorities = ClientCertificates::of(config) != ClientCertificates::No
            || config.boolean(id::TLS_CLUSTER)
            || config.boolean(id::TLS_REPLICATION);
        let names_authorities = file(id::TLS_CA_CERT_FILE).is_some() || file(id::TLS_CA_CERT_DIR).is_some();
        if wants_authorities && !names_authorities {
            return Err(complain(
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, tls-replication or \
                 tls-auth-clients are enabled!",
            ));
        }
        let versions = ciphers::versions(&text(config, id::TLS_PROTOCOLS)).ok_or(Unusable)?;
        let pair = Pair::read(&certificate, &key, &config.text(id::TLS_KEY_FILE_PASS))?;
        let authorities = authorities(config)?;
        let provider = Arc::new(provider(config)?);
        if let Some(path) = file(id::TLS_DH_PARAMS_FILE) {
            std::fs::File::open(&path)
                .map_err(|error| error_text(&error))
                .map_err(told(format!("Failed to load {}", path.display())))?;
            log::notice!("tls-dh-params-file is not used: keys are exchanged over elliptic curves.");
        }
        let own_client = match (file(id::TLS_CLIENT_CERT_FILE), file(id::TLS_CLIENT_KEY_FILE)) {
            (Some(certificate), Some(key)) => {
                let pass = config.text(id::TLS_CLIENT_KEY_FILE_PASS);
                Some(Pair::read(&certificate, &key, &pass)?)
            }
            _ => None,
        };
        let label = |chain: &[CertificateDer<'_>]| chain.first().and_then(|der| certificate::label(der));
        let figures = Figures {
            server: label(&pair.chain),
            client: own_client.as_ref().and_then(|pair| label(&pair.chain)),
            authority: authorities
                .iter()
                .filter_map(|der| certificate::label(der))
                .min_by_key(|label| label.expires_s),
        };
        let common = Common {
            trust: Arc::new(Trust::new(authorities, &provider)),
            provider,
            versions,
        };
        let server = |asks| common.server(&pair, asks, config);
        Ok(Material {
            open: server(ClientCertificates::No)?,
            optional: server(ClientCertificates::Optional)?,
            strict: server(ClientCertificates::Yes)?,
            client: common.client(own_client.as_ref().unwrap_or(&pair))?,
            figures,
            fingerprint,
        })
    }

    /// Returns the configuration for incoming connections with this certificate policy.
    pub fn server(&self, asks: ClientCertificates) -> Arc<ServerConfig> {
        match asks {
            ClientCertificates::No => &self.open,
            ClientCertificates::Optional => &self.optional,
            ClientCertificates::Yes => &self.strict,
        }
        .clone()
    }

    /// Returns the configuration for outgoing connections.
    pub fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }
}

impl Pair {
    fn read(certificate: &Path, key: &Path, pass: &[u8]) -> Result<Pair, Unusable> {
        let chain = files::certificates(certificate)
            .map_err(told(format!("Failed to load certificate: {}", certificate.display())))?;
        let key =
            files::private_key(key, pass).map_err(told(format!("Failed to load private key: {}", key.display())))?;
        Ok(Pair { chain, key })
    }
}

fn authorities(config: &Config) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let what = || "Failed to configure CA certificate(s) file/directory".to_owned();
    let mut all = Vec::new();
    if let Some(file) = files::path(config, id::TLS_CA_CERT_FILE) {
        all.extend(files::certificates(&file).map_err(told(what()))?);
    }
    if let Some(directory) = files::path(config, id::TLS_CA_CERT_DIR) {
        all.extend(files::certificates_in(&directory).map_err(told(what()))?);
    }
    Ok(all)
}

fn provider(config: &Config) -> Result<CryptoProvider, Unusable> {
    let (list, list13) = (text(config, id::TLS_CIPHERS), text(config, id::TLS_CIPHERSUITES));
    let mut suites = ciphers::suites(&list13);
    if suites.is_empty() {
        return Err(complain(&format!("Failed to configure ciphersuites: {list13}")));
    }
    let ciphers = ciphers::ciphers(&list);
    if ciphers.is_empty() {
        return Err(complain(&format!("Failed to configure ciphers: {list}")));
    }
    suites.extend(ciphers);
    Ok(CryptoProvider {
        cipher_suites: suites,
        ..ring::default_provider()
    })
}

impl Common {
    fn server(&self, pair: &Pair, asks: ClientCertificates, config: &Config) -> Result<Arc<ServerConfig>, Unusable> {
        let verifier: Arc<dyn ClientCertVerifier> = match asks {
            ClientCertificates::No => Arc::new(NoClientAuth),
            ClientCertificates::Optional | ClientCertificates::Yes => Arc::new(ClientVerifier {
                trust: self.trust.clone(),
                mandatory: asks == ClientCertificates::Yes,
            }),
        };
        let mut server = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.versions)
            .and_then(|builder| {
                builder
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(pair.chain.clone(), pair.key.clone_key())
            })
            .map_err(|error| error.to_string())
            .map_err(told("Failed to configure TLS".to_owned()))?;
        server.ignore_client_order = config.boolean(id::TLS_PREFER_SERVER_CIPHERS);
        // Each policy has its own session cache: a session that began without a certificate must not be resumed where
        // one is required.
        if config.boolean(id::TLS_SESSION_CACHING) {
            let most = config.unsigned(id::TLS_SESSION_CACHE_SIZE) as usize;
            let lifetime = Duration::from_secs(config.unsigned(id::TLS_SESSION_CACHE_TIMEOUT));
            server.session_storage = Arc::new(Sessions::new(most, lifetime));
        } else {
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
        }
        Ok(Arc::new(server))
    }

    fn client(&self, pair: &Pair) -> Result<Arc<ClientConfig>, Unusable> {
        ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.versions)
            .and_then(|builder| {
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(ServerVerifier(self.trust.clone())))
                    .with_client_auth_cert(pair.chain.clone(), pair.key.clone_key())
            })
            .map(Arc::new)
            .map_err(|error| error.to_string())
            .map_err(told("Failed to configure TLS".to_owned()))
    }
}
