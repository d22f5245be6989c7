//! The TLS material: certificates, keys, authorities, versions and ciphers of one state of the configuration.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, server::NoClientAuth};

use super::certificate::{self, CertificateInfo};
use super::reissue::CertificateFiles;
use super::sessions::SessionCache;
use super::trust::{ClientVerifier, ServerVerifier, TrustedAuthorities};
use super::{ClientCertificates, ciphers, files};
use weft_base::files::error_text;
use weft_config::{Config, ParameterId, id};

/// The error that the TLS configuration is not usable; the reason has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the TLS configuration is not usable")]
pub struct UnusableTlsConfig;

/// The figures for INFO.
#[derive(Clone, Debug, Default)]
pub struct TlsFigures {
    /// The server's certificate.
    pub server: Option<CertificateInfo>,
    /// The certificate for outgoing connections, if a separate one is configured.
    pub client: Option<CertificateInfo>,
    /// The authority that expires first.
    pub authority: Option<CertificateInfo>,
}

/// The TLS material, ready for use.
pub struct TlsMaterial {
    without_client_cert: Arc<ServerConfig>,
    with_optional_cert: Arc<ServerConfig>,
    with_required_cert: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// The figures for INFO.
    pub figures: TlsFigures,
    /// The hash of the files, see [`files::fingerprint`].
    pub fingerprint: u64,
}

/// A certificate with its intermediate certificates, and its private key.
struct CertificateAndKey {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The settings that both directions of connections share.
struct SharedTlsConfig {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    trust: Arc<TrustedAuthorities>,
}

fn text_parameter(config: &Config, id: ParameterId) -> String {
    String::from_utf8_lossy(&config.text(id)).into_owned()
}

/// Returns a function for `map_err` that logs the error.
fn log_error<Reason: Display>(what: String) -> impl FnOnce(Reason) -> UnusableTlsConfig {
    move |reason| {
        log::warn!("{what}: {reason}");
        UnusableTlsConfig
    }
}

fn log_warning(line: &str) -> UnusableTlsConfig {
    log::warn!("{line}");
    UnusableTlsConfig
}

impl TlsMaterial {
    /// Reads all configured files.
    ///
    /// # Errors
    /// If a file or setting is missing or invalid.
    pub fn read(config: &Config) -> Result<TlsMaterial, UnusableTlsConfig> {
        let fingerprint = files::fingerprint(config);
        let file = |id| files::path(config, id);
        let certificate = file(id::TLS_CERT_FILE).ok_or_else(|| log_warning("No tls-cert-file configured!"))?;
        let key = file(id::TLS_KEY_FILE).ok_or_else(|| log_warning("No tls-key-file configured!"))?;
        let wants_authorities = ClientCertificates::from_config(config) != ClientCertificates::NotRequested
            || config.boolean(id::TLS_CLUSTER)
            || config.boolean(id::TLS_REPLICATION);
        let names_authorities = file(id::TLS_CA_CERT_FILE).is_some() || file(id::TLS_CA_CERT_DIR).is_some();
        if wants_authorities && !names_authorities {
            return Err(log_warning(
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, tls-replication or \
                 tls-auth-clients are enabled!",
            ));
        }
        let versions = ciphers::parse_versions(&text_parameter(config, id::TLS_PROTOCOLS)).ok_or(UnusableTlsConfig)?;
        let pair = CertificateAndKey::read(config, &certificate, &key, &config.text(id::TLS_KEY_FILE_PASS))?;
        let authorities = read_authorities(config)?;
        let provider = Arc::new(crypto_provider(config)?);
        if let Some(path) = file(id::TLS_DH_PARAMS_FILE) {
            std::fs::File::open(&path)
                .map_err(|error| error_text(&error))
                .map_err(log_error(format!("Failed to load {}", path.display())))?;
            log::info!("tls-dh-params-file is ignored: only elliptic-curve key exchange is supported.");
        }
        let own_client = match (file(id::TLS_CLIENT_CERT_FILE), file(id::TLS_CLIENT_KEY_FILE)) {
            (Some(certificate), Some(key)) => {
                let pass = config.text(id::TLS_CLIENT_KEY_FILE_PASS);
                Some(CertificateAndKey::read(config, &certificate, &key, &pass)?)
            }
            _ => None,
        };
        let label = |chain: &[CertificateDer<'_>]| chain.first().and_then(|der| certificate::read_info(der));
        let figures = TlsFigures {
            server: label(&pair.chain),
            client: own_client.as_ref().and_then(|pair| label(&pair.chain)),
            authority: authorities
                .iter()
                .filter_map(|der| certificate::read_info(der))
                .min_by_key(|label| label.expires_s),
        };
        let common = SharedTlsConfig {
            trust: Arc::new(TrustedAuthorities::new(authorities, &provider)),
            provider,
            versions,
        };
        let server = |asks| common.build_server_config(&pair, asks, config);
        Ok(TlsMaterial {
            without_client_cert: server(ClientCertificates::NotRequested)?,
            with_optional_cert: server(ClientCertificates::Optional)?,
            with_required_cert: server(ClientCertificates::Required)?,
            client: common.build_client_config(own_client.as_ref().unwrap_or(&pair))?,
            figures,
            fingerprint,
        })
    }

    /// Returns the configuration for incoming connections with this certificate policy.
    pub fn server_config(&self, policy: ClientCertificates) -> Arc<ServerConfig> {
        match policy {
            ClientCertificates::NotRequested => &self.without_client_cert,
            ClientCertificates::Optional => &self.with_optional_cert,
            ClientCertificates::Required => &self.with_required_cert,
        }
        .clone()
    }

    /// Returns the configuration for outgoing connections.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }
}

impl CertificateAndKey {
    /// Reads the files and checks that they belong together.
    fn read(config: &Config, certificate: &Path, key: &Path, pass: &[u8]) -> Result<Self, UnusableTlsConfig> {
        let of_certificate = || format!("Failed to load certificate: {}", certificate.display());
        let of_key = || format!("Failed to load private key: {}", key.display());
        let authorities = files::path(config, id::TLS_CA_CERT_FILE);
        let chain = files::read_own_chain(CertificateFiles {
            certificate,
            key,
            authorities: authorities.as_deref(),
        });
        let chain = chain.map_err(log_error(of_certificate()))?;
        let private = files::read_private_key(key, pass).map_err(log_error(of_key()))?;
        match CertifiedKey::from_der(chain.clone(), private.clone_key(), &ring::default_provider()) {
            Ok(_) => Ok(CertificateAndKey { chain, key: private }),
            Err(rustls::Error::InconsistentKeys(_)) => {
                let owner = certificate.display();
                Err(log_error(of_key())(format!(
                    "it does not belong to the certificate in {owner}"
                )))
            }
            Err(rustls::Error::InvalidCertificate(reason)) => Err(log_error(of_certificate())(reason)),
            Err(_) => Err(log_error(of_key())(
                "it is none of the supported keys, which are RSA with at least 2048 bits, P-256, P-384 and Ed25519",
            )),
        }
    }
}

fn read_authorities(config: &Config) -> Result<Vec<CertificateDer<'static>>, UnusableTlsConfig> {
    let what = |path: &Path| {
        format!(
            "Failed to configure CA certificate(s) file/directory: {}",
            path.display()
        )
    };
    let mut all = Vec::new();
    if let Some(file) = files::path(config, id::TLS_CA_CERT_FILE) {
        all.extend(files::read_certificates(&file).map_err(log_error(what(&file)))?);
    }
    if let Some(directory) = files::path(config, id::TLS_CA_CERT_DIR) {
        let inside = files::read_certificate_directory(&directory).map_err(log_error(what(&directory)))?;
        if inside.is_empty() {
            log::warn!(
                "No file of the directory in tls-ca-cert-dir contains a certificate: {}",
                directory.display()
            );
        }
        all.extend(inside);
    }
    Ok(all)
}

fn crypto_provider(config: &Config) -> Result<CryptoProvider, UnusableTlsConfig> {
    let (list, list13) = (
        text_parameter(config, id::TLS_CIPHERS),
        text_parameter(config, id::TLS_CIPHERSUITES),
    );
    let mut suites = ciphers::select_suites(&list13);
    if suites.is_empty() {
        return Err(log_warning(&format!("Failed to configure ciphersuites: {list13}")));
    }
    let ciphers = ciphers::select_ciphers(&list);
    if ciphers.is_empty() {
        return Err(log_warning(&format!("Failed to configure ciphers: {list}")));
    }
    suites.extend(ciphers);
    Ok(CryptoProvider {
        cipher_suites: suites,
        ..ring::default_provider()
    })
}

impl SharedTlsConfig {
    fn build_server_config(
        &self,
        pair: &CertificateAndKey,
        policy: ClientCertificates,
        config: &Config,
    ) -> Result<Arc<ServerConfig>, UnusableTlsConfig> {
        let verifier: Arc<dyn ClientCertVerifier> = match policy {
            ClientCertificates::NotRequested => Arc::new(NoClientAuth),
            ClientCertificates::Optional | ClientCertificates::Required => Arc::new(ClientVerifier {
                trust: self.trust.clone(),
                is_mandatory: policy == ClientCertificates::Required,
            }),
        };
        let mut server = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.versions)
            .and_then(|builder| {
                builder
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(pair.chain.clone(), pair.key.clone_key())
            })
            .map_err(log_error("Failed to configure TLS".to_owned()))?;
        server.ignore_client_order = config.boolean(id::TLS_PREFER_SERVER_CIPHERS);
        // Each policy has its own session cache: a session that began without a certificate must not be resumed where
        // one is required.
        if config.boolean(id::TLS_SESSION_CACHING) {
            let most = config.unsigned(id::TLS_SESSION_CACHE_SIZE) as usize;
            let lifetime = Duration::from_secs(config.unsigned(id::TLS_SESSION_CACHE_TIMEOUT));
            server.session_storage = Arc::new(SessionCache::new(most, lifetime));
        } else {
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
        }
        Ok(Arc::new(server))
    }

    fn build_client_config(&self, pair: &CertificateAndKey) -> Result<Arc<ClientConfig>, UnusableTlsConfig> {
        ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.versions)
            .and_then(|builder| {
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(ServerVerifier(self.trust.clone())))
                    .with_client_auth_cert(pair.chain.clone(), pair.key.clone_key())
            })
            .map(Arc::new)
            .map_err(log_error("Failed to configure TLS".to_owned()))
    }
}
