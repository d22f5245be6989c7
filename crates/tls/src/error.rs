//! The reasons for which certificates and keys cannot be read, and connections cannot begin. They are for the log.

use std::{fmt, io};

use weft_base::files::error_text;

/// The reason for which a TLS session cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The configuration names no certificate.
    #[error("TLS is not configured")]
    NotConfigured,
    /// The settings do not fit together.
    #[error(transparent)]
    Settings(#[from] rustls::Error),
}

/// The reason for which the certificate of a peer is refused if it has version 1. rustls shows its `Debug` form in
/// errors.
#[derive(thiserror::Error)]
#[error("it has X.509 version 1, but version 3 is required: issue it with an extension (-extfile of openssl x509)")]
pub struct VersionOneOfPeer;

impl fmt::Debug for VersionOneOfPeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

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
