//! The reasons for which certificates and keys cannot be read, and connections cannot begin. They are for the log.

use std::io;

use rustls::{CertificateError, OtherError};
use weft_base::files::error_text;

/// The reason for which a TLS session cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The configuration names no certificate.
    #[error("TLS is not configured")]
    NotConfigured,
    /// The settings do not fit together.
    #[error(transparent)]
    Settings(#[from] SessionError),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        TlsError::Settings(error.into())
    }
}

/// An error of rustls. It displays the errors of this crate within it as text; rustls shows their `Debug` form, in
/// `Other(OtherError(...))`.
#[derive(Debug, thiserror::Error)]
#[error("{}", session_error_text(.0))]
pub struct SessionError(#[from] rustls::Error);

impl From<SessionError> for io::Error {
    fn from(error: SessionError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl SessionError {
    /// Returns an error of a stream with the text of this type, if rustls is its origin.
    pub fn within(error: io::Error) -> io::Error {
        match error.downcast::<rustls::Error>() {
            Ok(error) => SessionError(error).into(),
            Err(other) => other,
        }
    }
}

fn session_error_text(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(reason) => {
            format!("invalid peer certificate: {}", certificate_error_text(reason))
        }
        other => other.to_string(),
    }
}

/// Returns the text of an error about a certificate, without the names of the types around it.
pub fn certificate_error_text(error: &CertificateError) -> String {
    match error {
        CertificateError::Other(OtherError(inner)) => inner.to_string(),
        other => other.to_string(),
    }
}

/// The reason for which the certificate of a peer is refused if it has version 1.
#[derive(Debug, thiserror::Error)]
#[error("it has X.509 version 1, but version 3 is required: issue it with an extension (-extfile of openssl x509)")]
pub struct VersionOneOfPeer;

/// The reason for which a file or directory with certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It cannot be read.
    #[error("{}", error_text(.0))]
    Read(#[from] io::Error),
    /// It is not in PEM format.
    #[error(transparent)]
    Format(#[from] pem::PemError),
    /// It has no section with a certificate.
    #[error("it contains no certificate")]
    NoCertificate,
    /// Its certificate has no extensions, as in X.509 version 1, which rustls does not support. Contains the commands
    /// that issue it again.
    #[error("its certificate has X.509 version 1, but version 3 is required. This issues it again: {0}")]
    VersionOne(String),
    /// It has no section with a private key.
    #[error("it contains no private key")]
    NoPrivateKey,
    /// The key is encrypted in the format that OpenSSL used before PKCS#8.
    #[error("this legacy key encryption is not supported; convert the key to PKCS#8")]
    LegacyEncryption,
    /// The encrypted key is malformed.
    #[error("{0}")]
    EncryptedKey(pkcs8::Error),
    /// The key is encrypted.
    #[error("it is encrypted and no password is configured")]
    NoPassword,
    /// The key is encrypted with another password.
    #[error("it cannot be decrypted with this password")]
    WrongPassword,
}
