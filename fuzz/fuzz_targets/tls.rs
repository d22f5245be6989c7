//! Fuzzes the records that a TLS session receives. Bytes of no session give the same in one piece and in many. Of a
//! session of which a byte was changed, what comes out is the beginning of what was sent.
#![no_main]

use std::io::Write;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme};
use weft_tls::SocketlessSession;

/// Trusts every certificate: the client is the fuzzer's.
#[derive(Debug)]
struct TrustsAll;

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn configs() -> &'static (Arc<ServerConfig>, Arc<ClientConfig>) {
    static CONFIGS: OnceLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a certificate");
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustsAll))
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    })
}

fn server() -> SocketlessSession {
    let session = ServerConnection::new(configs().0.clone()).expect("a session");
    SocketlessSession::new(session.into())
}

/// Gives the bytes to a session piece by piece. Returns what was decrypted, and if the session is still sound.
fn feed<'a>(session: &mut SocketlessSession, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
    let mut decrypted = Vec::new();
    for piece in pieces {
        let result = session.decrypt_into(piece, &mut decrypted);
        // Alerts and the like.
        let _ = session.take_encrypted();
        if result.is_err() {
            return (decrypted, false);
        }
    }
    (decrypted, true)
}

/// Completes a handshake. Returns both sides.
fn shake_hands() -> (ClientConnection, SocketlessSession) {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = ClientConnection::new(configs().1.clone(), name).expect("a session");
    let mut server = server();
    while client.is_handshaking() {
        let mut records = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut records).expect("writes");
        }
        let (early, is_sound) = feed_handshake(&mut server, &records);
        assert!(is_sound && early.is_empty());
        let answer = server.take_encrypted().expect("a sound session");
        let mut unread = &answer[..];
        while !unread.is_empty() {
            client.read_tls(&mut unread).expect("reads");
            client.process_new_packets().expect("a sound server");
        }
    }
    (client, server)
}

fn feed_handshake(session: &mut SocketlessSession, records: &[u8]) -> (Vec<u8>, bool) {
    let mut decrypted = Vec::new();
    let is_sound = session.decrypt_into(records, &mut decrypted).is_ok();
    (decrypted, is_sound)
}

fuzz_target!(|input: &[u8]| {
    let [shape, place, change, data @ ..] = input else {
        return;
    };
    let piece = usize::from(shape >> 1).max(1);
    if shape & 1 == 0 {
        let whole = feed(&mut server(), std::iter::once(data));
        assert_eq!(feed(&mut server(), data.chunks(piece)), whole);
        return;
    }
    let (mut client, mut server) = shake_hands();
    let mut records = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut records).expect("writes");
    }
    for part in data.chunks(usize::from(*place) + 1) {
        client.writer().write_all(part).expect("writes");
        while client.wants_write() {
            client.write_tls(&mut records).expect("writes");
        }
    }
    if let Some(byte) = records
        .len()
        .checked_sub(1 + usize::from(*place) % records.len().max(1))
    {
        records[byte] ^= change;
    }
    let (decrypted, is_sound) = feed(&mut server, records.chunks(piece));
    assert!(data.starts_with(&decrypted), "what comes out was not sent");
    if *change == 0 {
        assert!(is_sound && decrypted == data, "a sound session fails");
    }
});
