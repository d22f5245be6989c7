//! Checks the certificate of the server.
//!
//! rustls does not read certificates of X.509 version 1. Here they have an error of their own, and `--insecure` accepts
//! them.

use std::sync::Arc;
use std::{fmt, io};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

#[cfg(test)]
mod tests;

/// The reason for which a certificate of version 1 is refused.
#[derive(Debug)]
struct VersionOne;

impl fmt::Display for VersionOne {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(
            "the certificate of the server has X.509 version 1, but version 3 is required: issue it with an extension \
             (-extfile of openssl x509), or accept any certificate with --insecure",
        )
    }
}

impl std::error::Error for VersionOne {}

/// Replaces an error of the handshake that rustls has wrapped by the error of this program inside it.
pub fn plain_error(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))) if reason.is::<VersionOne>() => {
            io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
        }
        _ => error,
    }
}

/// Returns `true` if a certificate has version 1.
pub fn is_version_one(certificate: &CertificateDer<'_>) -> bool {
    version_one(certificate).is_some()
}

/// Reads a certificate if it has version 1.
fn version_one<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    (parsed.version() == X509Version::V1).then_some(parsed)
}

/// Accepts certificates of trusted authorities.
#[derive(Debug)]
pub struct TrustedCertificate(pub Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for TrustedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if is_version_one(certificate) {
            return Err(CertificateError::Other(OtherError(Arc::new(VersionOne))).into());
        }
        self.0.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Accepts every certificate (`--insecure`). The signatures of the handshake are still checked.
#[derive(Debug)]
pub struct AnyCertificate(WebPkiSupportedAlgorithms);

impl AnyCertificate {
    /// Checks signatures with the algorithms of this provider.
    pub fn new(provider: &CryptoProvider) -> AnyCertificate {
        AnyCertificate(provider.signature_verification_algorithms)
    }

    /// Checks a signature of TLS 1.2 with a key for which rustls has no function, like [`verify_tls12_signature`].
    fn verify_with_key(&self, message: &[u8], key: &[u8], signed: &DigitallySignedStruct) -> Result<(), Error> {
        let mut algorithms = self.0.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let is_valid = algorithms.next().is_some_and(|(_, algorithms)| {
            // An algorithm refuses a key of another kind.
            let mut checks = algorithms.iter();
            checks.any(|algorithm| algorithm.verify_signature(key, message, signed.signature()).is_ok())
        });
        is_valid
            .then_some(())
            .ok_or_else(|| CertificateError::BadSignature.into())
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(parsed) = version_one(certificate) else {
            return verify_tls12_signature(message, certificate, signed, &self.0);
        };
        self.verify_with_key(message, &parsed.public_key().subject_public_key.data, signed)?;
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(parsed) = version_one(certificate) else {
            return verify_tls13_signature(message, certificate, signed, &self.0);
        };
        let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
