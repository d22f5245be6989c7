//! Whom this server believes: certificates of clients, and of servers that it connects to.
//!
//! A certificate has to come from an authority that is trusted. One that is itself among those that are trusted is believed
//! as it is, as long as it is valid: so a certificate that was signed by itself can serve as its own authority.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::certificate;

/// The authorities that are trusted.
#[derive(Debug)]
pub struct Trust {
    roots: Arc<RootCertStore>,
    /// The same, as certificates.
    certificates: Vec<CertificateDer<'static>>,
    /// For clients; none without authorities.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    /// Trusts these authorities, as far as they can be understood.
    pub fn new(certificates: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let roots = Arc::new(roots);
        Trust {
            // It fails only without any root.
            clients: WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .ok(),
            roots,
            certificates,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn is_trusted_itself(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
        self.certificates.iter().any(|trusted| trusted == certificate)
            && certificate::is_valid_at(certificate, i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
    }
}

/// What rustls asks of both verifiers in the same words: signatures are checked by the algorithms that are trusted.
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

/// Looks at the certificates of clients.
#[derive(Debug)]
pub struct ClientVerifier {
    /// Whom to believe.
    pub trust: Arc<Trust>,
    /// Whether a client must have one.
    pub mandatory: bool,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
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
        if self.trust.is_trusted_itself(end_entity, now) {
            return Ok(ClientCertVerified::assertion());
        }
        match &self.trust.clients {
            Some(clients) => clients.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    signatures_by!(trust);
}

/// Looks at the certificates of servers that this one connects to. Their names do not matter.
#[derive(Debug)]
pub struct ServerVerifier(pub Arc<Trust>);

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.0.is_trusted_itself(end_entity, now) {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.0.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.0.roots, intermediates, now, algorithms)
            .map(|()| ServerCertVerified::assertion())
    }

    signatures_by!(0);
}
