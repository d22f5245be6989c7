//! Tests of encrypted streams against a server inside the test.

use std::net::TcpListener;
use std::thread;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

/// Returns what the client sends until it has sent `length` bytes, on one connection.
fn serve(identity: &TlsIdentity, length: usize) -> std::net::SocketAddr {
    let certificate = CertificateDer::from_pem_file(&identity.certificate).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the default versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a matching key");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (socket, _) = listener.accept().expect("the client connects");
        socket.set_nodelay(true).expect("a socket option");
        let session = ServerConnection::new(Arc::new(config)).expect("a session");
        let mut stream = StreamOwned::new(session, socket);
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).expect("all bytes");
        stream.write_all(&bytes).expect("the client reads");
        stream.flush().expect("the client reads");
        // The connection stays open until the client closes it.
        let _ = stream.read(&mut [0]);
    });
    address
}

#[test]
fn many_records_pass_a_stream_that_does_not_block() {
    let identity = TlsIdentity::create().expect("openssl makes a certificate");
    let config = identity.client_config().expect("a configuration");
    let sent: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
    let socket = TcpStream::connect(serve(&identity, sent.len())).expect("connects");
    let mut stream = TlsStream::connect(socket, &config).expect("a handshake");
    stream.socket.set_nonblocking(true).expect("a socket option");
    assert_eq!(stream.write(&sent).expect("an open session"), sent.len());
    let mut received = Vec::new();
    let mut buffer = vec![0; 100_000];
    while received.len() < sent.len() {
        stream.flush().expect("the server reads");
        match stream.read(&mut buffer) {
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(received, sent);
}

#[test]
fn another_certificate_is_refused() {
    let served = TlsIdentity::create().expect("openssl makes a certificate");
    let trusted = TlsIdentity::create().expect("openssl makes a certificate");
    let config = trusted.client_config().expect("a configuration");
    let socket = TcpStream::connect(serve(&served, 1)).expect("connects");
    assert!(TlsStream::connect(socket, &config).is_err());
}

#[test]
fn the_files_of_a_certificate_are_removed() {
    let identity = TlsIdentity::create().expect("openssl makes a certificate");
    let (certificate, key) = (identity.certificate.clone(), identity.key.clone());
    assert!(certificate.is_file() && key.is_file());
    drop(identity);
    assert!(!certificate.exists() && !key.exists());
}
