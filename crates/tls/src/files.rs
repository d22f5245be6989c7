//! Reads certificates and keys from files.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pkcs8::EncryptedPrivateKeyInfo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

use super::certificate;
use super::error::PemError;
use super::reissue::CertificateFiles;
use weft_config::{Config, ParameterId, id};

/// The parameters that name files.
const FILE_PARAMETERS: [ParameterId; 6] = [
    id::TLS_CERT_FILE,
    id::TLS_KEY_FILE,
    id::TLS_CLIENT_CERT_FILE,
    id::TLS_CLIENT_KEY_FILE,
    id::TLS_CA_CERT_FILE,
    id::TLS_DH_PARAMS_FILE,
];

/// Returns the path that a parameter names, or `None` if it is empty.
pub fn path(config: &Config, id: ParameterId) -> Option<PathBuf> {
    let text = config.text(id);
    (!text.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&text)))
}

fn read_pem_sections(path: &Path) -> Result<Vec<pem::Pem>, PemError> {
    Ok(pem::parse_many(fs::read(path)?)?)
}

fn is_certificate(section: &pem::Pem) -> bool {
    matches!(section.tag(), "CERTIFICATE" | "X509 CERTIFICATE")
}

/// Reads the certificates in a file; the server's own certificate comes first.
///
/// # Errors
/// The reason if the file cannot be read or contains no certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let certificates: Vec<CertificateDer<'static>> = read_pem_sections(path)?
        .into_iter()
        .filter(is_certificate)
        .map(|section| section.into_contents().into())
        .collect();
    match certificates.is_empty() {
        true => Err(PemError::NoCertificate),
        false => Ok(certificates),
    }
}

/// Reads the certificate that this server presents, and those of its issuers.
///
/// # Errors
/// Fails as [`read_certificates`] does, and if rustls would not use the certificate because of its version.
pub fn read_own_chain(files: CertificateFiles<'_>) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain = read_certificates(files.certificate)?;
    match chain.first() {
        Some(own) if certificate::is_version_one(own) => Err(PemError::VersionOne(files.version_three_commands(own))),
        _ => Ok(chain),
    }
}

/// Reads the certificates in all files of a directory. Files without a certificate are skipped.
///
/// # Errors
/// The reason if the directory cannot be read.
pub fn read_certificate_directory(directory: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        if path.is_file()
            && let Ok(certificates) = read_certificates(&path)
        {
            all.extend(certificates);
        }
    }
    Ok(all)
}

/// Reads the private key in a file, and decrypts it with `pass` if it is encrypted.
///
/// # Errors
/// The reason if the file cannot be read or decrypted, or contains no private key.
pub fn read_private_key(path: &Path, pass: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    for section in read_pem_sections(path)? {
        let is_encrypted = section
            .headers()
            .get("Proc-Type")
            .is_some_and(|kind| kind.contains("ENCRYPTED"));
        match section.tag() {
            "ENCRYPTED PRIVATE KEY" => return decrypt_key(section.contents(), pass),
            "PRIVATE KEY" => return Ok(PrivatePkcs8KeyDer::from(section.into_contents()).into()),
            "RSA PRIVATE KEY" | "EC PRIVATE KEY" if is_encrypted => {
                return Err(PemError::LegacyEncryption);
            }
            "RSA PRIVATE KEY" => return Ok(PrivatePkcs1KeyDer::from(section.into_contents()).into()),
            "EC PRIVATE KEY" => return Ok(PrivateSec1KeyDer::from(section.into_contents()).into()),
            _ => {}
        }
    }
    Err(PemError::NoPrivateKey)
}

fn decrypt_key(der: &[u8], pass: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    let key = EncryptedPrivateKeyInfo::try_from(der).map_err(PemError::EncryptedKey)?;
    let plain = key.decrypt(pass).map_err(|_| match pass.is_empty() {
        true => PemError::NoPassword,
        false => PemError::WrongPassword,
    })?;
    Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into())
}

/// Returns a hash that changes when one of the configured files changes.
pub fn fingerprint(config: &Config) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in FILE_PARAMETERS.into_iter().filter_map(|id| path(config, id)) {
        fs::read(path).ok().hash(&mut hasher);
    }
    let directory = path(config, id::TLS_CA_CERT_DIR).and_then(|directory| fs::read_dir(directory).ok());
    let mut inside: Vec<PathBuf> = directory
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    inside.sort();
    for path in inside {
        path.hash(&mut hasher);
        fs::read(path).ok().hash(&mut hasher);
    }
    hasher.finish()
}
