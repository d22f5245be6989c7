//! Tests of certificates and connections against a server inside the test.

use std::net::TcpListener;
use std::thread;

use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a server with this certificate, which requires one of its clients and returns what each of them sends.
fn serve(authority: &CertificateAuthority, issued: &IssuedCertificate) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.root.clone()).expect("a root");
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .expect("a verifier");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(issued.key.clone()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![issued.certificate.clone()], key)
        .expect("a certificate");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for socket in listener.incoming() {
            let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
            let mut stream = StreamOwned::new(session, socket.expect("the client connects"));
            thread::spawn(move || {
                let mut chunk = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut chunk) {
                    if stream.write_all(&chunk[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn clients_see_the_certificate_of_the_server() {
    let authority = CertificateAuthority::create().expect("an authority");
    let client = authority.client().expect("a client");
    for name in ["first", "second"] {
        let issued = authority.issue(name).expect("a certificate");
        let address = serve(&authority, &issued);
        let mut connection = TlsConnection::connect(address, PATIENCE, &client).expect("a handshake");
        assert_eq!(connection.server_certificate().as_ref(), Some(&issued.certificate));
        connection.write_all(b"PING").expect("sent");
        let mut reply = [0; 4];
        connection
            .try_clone()
            .expect("a handle")
            .read_exact(&mut reply)
            .expect("received");
        assert_eq!(&reply, b"PING");
    }
}

#[test]
fn servers_of_another_authority_are_refused() {
    let [authority, other] = [(); 2].map(|()| CertificateAuthority::create().expect("an authority"));
    let issued = other.issue("server").expect("a certificate");
    let address = serve(&other, &issued);
    let client = authority.client().expect("a client");
    assert!(TlsConnection::connect(address, PATIENCE, &client).is_err());
}

#[test]
fn another_thread_can_end_a_read() {
    let authority = CertificateAuthority::create().expect("an authority");
    let issued = authority.issue("server").expect("a certificate");
    let client = authority.client().expect("a client");
    let address = serve(&authority, &issued);
    let mut connection = TlsConnection::connect(address, PATIENCE, &client).expect("a handshake");
    let handle = connection.try_clone().expect("a handle");
    thread::scope(|scope| {
        let reader = scope.spawn(|| connection.read(&mut [0; 1]));
        handle.shutdown(Shutdown::Both).expect("shut down");
        let ended = reader.join().expect("no panic");
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    });
}

#[test]
fn the_files_are_removed_with_the_authority() {
    let authority = CertificateAuthority::create().expect("an authority");
    let issued = authority.issue("server").expect("a certificate");
    assert!(authority.root_file().is_file() && issued.certificate_file.is_file() && issued.key_file.is_file());
    drop(authority);
    assert!(!issued.certificate_file.exists());
}
