//! Verifies certificates: those of clients, and those of servers to which this server connects.
//!
//! A certificate must be issued by a trusted authority. A certificate that is itself in the list of authorities is
//! trusted as long as it is valid. So a self-signed certificate can serve as its own authority.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::certificate;
use super::error::VersionOneOfPeer;

/// The trusted authorities.
#[derive(Debug)]
pub struct TrustedAuthorities {
    roots: Arc<RootCertStore>,
    /// The same authorities, as certificates.
    certificates: Vec<CertificateDer<'static>>,
    /// The verifier for certificates of clients; none without authorities.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl TrustedAuthorities {
    /// Trusts these authorities. Certificates that cannot be parsed are skipped.
    pub fn new(certificates: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Self {
        let mut roots = RootCertStore::empty();
        let (_, skipped) = roots.add_parsable_certificates(certificates.iter().cloned());
        if skipped > 0 {
            log::warn!(
                "{skipped} CA certificates of tls-ca-cert-file and tls-ca-cert-dir are malformed and not trusted"
            );
        }
        let roots = Arc::new(roots);
        TrustedAuthorities {
            // Building the verifier fails only if there are no roots.
            clients: WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .ok(),
            roots,
            certificates,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn is_directly_trusted(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
        self.certificates.iter().any(|trusted| trusted == certificate)
            && certificate::is_valid_at(certificate, i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
    }
}

/// Refuses a peer's certificate of version 1, for which rustls has no error of its own.
fn refuse_version_one(end_entity: &CertificateDer<'_>) -> Result<(), Error> {
    match certificate::is_version_one(end_entity) {
        true => Err(CertificateError::Other(OtherError(Arc::new(VersionOneOfPeer))).into()),
        false => Ok(()),
    }
}

/// The part of rustls's verifier traits that is the same for both verifiers: signatures are checked with the supported
/// algorithms.
macro_rules! signatures_by {
    ($trust:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signed, &self.$trust.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signed, &self.$trust.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$trust.algorithms.supported_schemes()
        }
    };
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub struct ClientVerifier {
    /// The trusted authorities.
    pub trust: Arc<TrustedAuthorities>,
    /// `true` if a client must present a certificate.
    pub is_mandatory: bool,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trust
            .clients
            .as_ref()
            .map_or(&[], |clients| clients.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        refuse_version_one(end_entity)?;
        if self.trust.is_directly_trusted(end_entity, now) {
            return Ok(ClientCertVerified::assertion());
        }
        match &self.trust.clients {
            Some(clients) => clients.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    signatures_by!(trust);
}

/// Verifies the certificates of servers to which this server connects. Their names are not checked.
#[derive(Debug)]
pub struct ServerVerifier(pub Arc<TrustedAuthorities>);

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        refuse_version_one(end_entity)?;
        if self.0.is_directly_trusted(end_entity, now) {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.0.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.0.roots, intermediates, now, algorithms)
            .map(|()| ServerCertVerified::assertion())
    }

    signatures_by!(0);
}
