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
use super::error::certificate_error_text;
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

/// The parameters that name a certificate and its private key.
struct PairParameters {
    certificate: ParameterId,
    key: ParameterId,
    pass: ParameterId,
}

const SERVER_PAIR: PairParameters = PairParameters {
    certificate: id::TLS_CERT_FILE,
    key: id::TLS_KEY_FILE,
    pass: id::TLS_KEY_FILE_PASS,
};
const CLIENT_PAIR: PairParameters = PairParameters {
    certificate: id::TLS_CLIENT_CERT_FILE,
    key: id::TLS_CLIENT_KEY_FILE,
    pass: id::TLS_CLIENT_KEY_FILE_PASS,
};

/// The parameters that make a server use TLS.
const USERS_OF_TLS: [ParameterId; 3] = [id::TLS_PORT, id::TLS_REPLICATION, id::TLS_CLUSTER];
const VALID_FILE: &str = "a file in PEM format that the user of the server may read";
const VALID_DIRECTORY: &str = "a directory with files in PEM format that the user of the server may read";

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

fn log_warning(line: &str, advice: &str) -> UnusableTlsConfig {
    log::warn!("{line}");
    log::warn!("{advice}");
    UnusableTlsConfig
}

/// Returns a function for `inspect_err` that logs which parameter names the file at fault, and what would be valid.
fn log_advice(config: &Config, id: ParameterId, valid: &str) -> impl FnOnce(&UnusableTlsConfig) {
    move |_| log::warn!("{}", config.advice(id, valid))
}

/// Returns a sentence about the parameters that belong together, and about those that require them.
fn advice_for_pair(config: &Config) -> String {
    let [certificate, key] = [id::TLS_CERT_FILE, id::TLS_KEY_FILE].map(|id| match config.setting_location(id) {
        Some(location) => format!("{} (set by {location})", id.parameter().name),
        None => id.parameter().name.into(),
    });
    let users = USERS_OF_TLS
        .into_iter()
        .filter(|id| config.integer(*id) != 0)
        .map(|id| match config.setting_location(id) {
            Some(location) => format!("{}, set by {location}", id.parameter().name),
            None => id.parameter().name.into(),
        });
    let users = users.collect::<Vec<String>>().join("; ");
    let needed = format!(
        "TLS needs both {certificate}, the certificate of the server, and {key}, its private key, each a file in PEM \
         format."
    );
    match users.is_empty() {
        true => needed,
        false => format!("{needed} TLS is required by {users}."),
    }
}

impl TlsMaterial {
    /// Reads all configured files.
    ///
    /// # Errors
    /// If a file or setting is missing or invalid.
    pub fn read(config: &Config) -> Result<TlsMaterial, UnusableTlsConfig> {
        let fingerprint = files::fingerprint(config);
        let file = |id| files::path(config, id);
        let missing = |line: &str| log_warning(line, &advice_for_pair(config));
        file(id::TLS_CERT_FILE).ok_or_else(|| missing("No tls-cert-file configured!"))?;
        file(id::TLS_KEY_FILE).ok_or_else(|| missing("No tls-key-file configured!"))?;
        let wants_authorities = ClientCertificates::from_config(config) != ClientCertificates::NotRequested
            || config.boolean(id::TLS_CLUSTER)
            || config.boolean(id::TLS_REPLICATION);
        let names_authorities = file(id::TLS_CA_CERT_FILE).is_some() || file(id::TLS_CA_CERT_DIR).is_some();
        if wants_authorities && !names_authorities {
            return Err(log_warning(
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, tls-replication or \
                 tls-auth-clients are enabled!",
                &advice_for_authorities(config),
            ));
        }
        let versions = ciphers::parse_versions(&text_parameter(config, id::TLS_PROTOCOLS))
            .ok_or(UnusableTlsConfig)
            .inspect_err(log_advice(config, id::TLS_PROTOCOLS, "TLSv1.2, TLSv1.3 or both"))?;
        let pair = CertificateAndKey::read(config, &SERVER_PAIR)?.ok_or(UnusableTlsConfig)?;
        let authorities = read_authorities(config)?;
        let provider = Arc::new(crypto_provider(config)?);
        if let Some(path) = file(id::TLS_DH_PARAMS_FILE) {
            std::fs::File::open(&path)
                .map_err(|error| error_text(&error))
                .map_err(log_error(format!("Failed to load {}", path.display())))
                .inspect_err(log_advice(config, id::TLS_DH_PARAMS_FILE, VALID_FILE))?;
            log::info!("tls-dh-params-file is ignored: only elliptic-curve key exchange is supported.");
        }
        let own_client = CertificateAndKey::read(config, &CLIENT_PAIR)?;
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
    /// Reads the files that the parameters name and checks that they belong together. Returns `None` if a parameter is
    /// empty; as in Valkey, a single one has no effect.
    fn read(config: &Config, names: &PairParameters) -> Result<Option<Self>, UnusableTlsConfig> {
        match (files::path(config, names.certificate), files::path(config, names.key)) {
            (Some(certificate), Some(key)) => Self::read_files(config, names, &certificate, &key).map(Some),
            (None, None) => Ok(None),
            (Some(_), None) => Ok(log_unused(config, names.certificate, names.key)),
            (None, Some(_)) => Ok(log_unused(config, names.key, names.certificate)),
        }
    }

    fn read_files(
        config: &Config,
        names: &PairParameters,
        certificate: &Path,
        key: &Path,
    ) -> Result<Self, UnusableTlsConfig> {
        let of_certificate = || format!("Failed to load certificate: {}", certificate.display());
        let of_key = || format!("Failed to load private key: {}", key.display());
        let authorities = files::path(config, id::TLS_CA_CERT_FILE);
        let chain = files::read_own_chain(CertificateFiles {
            certificate,
            key,
            authorities: authorities.as_deref(),
        });
        let chain = chain.map_err(log_error(of_certificate())).inspect_err(log_advice(
            config,
            names.certificate,
            VALID_FILE,
        ))?;
        let private = files::read_private_key(key, &config.text(names.pass))
            .map_err(log_error(of_key()))
            .inspect_err(log_advice(config, names.key, VALID_FILE))?;
        match CertifiedKey::from_der(chain.clone(), private.clone_key(), &ring::default_provider()) {
            Ok(_) => Ok(CertificateAndKey { chain, key: private }),
            Err(rustls::Error::InconsistentKeys(_)) => {
                let owner = certificate.display();
                let reason = format!("it does not belong to the certificate in {owner}");
                let valid = format!(
                    "the private key of the certificate in {}",
                    names.certificate.parameter().name
                );
                Err(log_error(of_key())(reason)).inspect_err(log_advice(config, names.key, &valid))
            }
            Err(rustls::Error::InvalidCertificate(reason)) => {
                Err(log_error(of_certificate())(certificate_error_text(&reason)))
            }
            Err(_) => Err(log_error(of_key())(
                "it is none of the supported keys, which are RSA with at least 2048 bits, P-256, P-384 and Ed25519",
            )),
        }
    }
}

/// Logs that a parameter has no effect without another one.
fn log_unused(config: &Config, set: ParameterId, missing: ParameterId) -> Option<CertificateAndKey> {
    let missing = missing.parameter().name;
    let valid = format!("it has no effect without {missing}, and connections to other servers use tls-cert-file");
    log::warn!("{}", config.advice(set, &valid));
    None
}

/// Returns a sentence about the parameters that require authorities.
fn advice_for_authorities(config: &Config) -> String {
    let users = [id::TLS_AUTH_CLIENTS, id::TLS_REPLICATION, id::TLS_CLUSTER].into_iter();
    let users = users.filter(|id| config.integer(*id) != 0).map(|id| {
        let name = id.parameter().name;
        let value = String::from_utf8_lossy(&config.printed(id)).into_owned();
        match config.setting_location(id) {
            Some(location) => format!("{name} is '{value}', set by {location}"),
            None => format!("{name} is '{value}'"),
        }
    });
    let users = users.collect::<Vec<String>>().join("; ");
    format!(
        "{users}. tls-ca-cert-file is a file, and tls-ca-cert-dir a directory, with the certificates of the \
         authorities that issue those of clients and servers; without them, tls-auth-clients, tls-replication and \
         tls-cluster must be no."
    )
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
        all.extend(
            files::read_certificates(&file)
                .map_err(log_error(what(&file)))
                .inspect_err(log_advice(config, id::TLS_CA_CERT_FILE, VALID_FILE))?,
        );
    }
    if let Some(directory) = files::path(config, id::TLS_CA_CERT_DIR) {
        let inside = files::read_certificate_directory(&directory)
            .map_err(log_error(what(&directory)))
            .inspect_err(log_advice(config, id::TLS_CA_CERT_DIR, VALID_DIRECTORY))?;
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
        let valid = "names of cipher suites of TLS 1.3, such as TLS_AES_256_GCM_SHA384, separated by colons";
        return Err(log_warning(
            &format!("Failed to configure ciphersuites: {list13}"),
            &config.advice(id::TLS_CIPHERSUITES, valid),
        ));
    }
    let ciphers = ciphers::select_ciphers(&list);
    if ciphers.is_empty() {
        let valid = "names of ciphers of TLS 1.2, such as ECDHE-RSA-AES256-GCM-SHA384, separated by colons";
        return Err(log_warning(
            &format!("Failed to configure ciphers: {list}"),
            &config.advice(id::TLS_CIPHERS, valid),
        ));
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
