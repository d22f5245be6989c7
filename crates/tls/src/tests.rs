//! Tests the layer over real sockets: values of any size, moves between reactors, closing, and peers that send invalid
//! data.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier as _;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use weft_reactor::{Event, Output, Reactor, ReceiveOutcome, SendOutcome, Socket};

use super::error::{SessionError, VersionOneOfPeer};
use super::layer::TURN_SHARE_BYTES;
use super::reissue::CertificateFiles;
use super::trust::{ClientVerifier, ServerVerifier, TrustedAuthorities};
use super::*;
use weft_config::SetPermissions;

const TOKEN: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The configurations of both sides, with one self-signed certificate.
struct ConfigPair {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    certificate: Vec<u8>,
}

fn config_pair() -> ConfigPair {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let key = || PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let chain = vec![made.cert.der().clone()];
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain.clone(), key())
        .expect("a certificate");
    let trust = Arc::new(TrustedAuthorities::new(chain.clone(), &provider));
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier(trust)))
        .with_no_client_auth();
    ConfigPair {
        server: Arc::new(server),
        client: Arc::new(client),
        certificate: chain[0].to_vec(),
    }
}

fn connected_sockets() -> (Socket, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let client = TcpStream::connect(listener.local_addr().expect("is bound")).expect("connects");
    client.set_read_timeout(Some(TIMEOUT)).expect("sets a timeout");
    let (served, _) = listener.accept().expect("accepts");
    (served.into(), client)
}

/// The server's side of a connection.
struct ServerSide {
    reactor: Reactor,
    tls: TlsLayer,
    input: Vec<u8>,
    /// The result of the receive or send that ended the connection.
    result: Option<std::io::Result<()>>,
}

impl ServerSide {
    fn new(socket: Socket, config: Arc<ServerConfig>) -> ServerSide {
        let mut reactor = Reactor::new().expect("a reactor");
        reactor.register(TOKEN, socket).expect("registers");
        ServerSide {
            reactor,
            tls: TlsLayer::new(ServerConnection::new(config).expect("a session").into()),
            input: Vec::new(),
            result: None,
        }
    }

    /// Runs one turn of the reactor.
    fn run_turn(&mut self) {
        let mut events = Vec::new();
        let wait = Some(Duration::from_millis(100));
        self.reactor.wait(wait, &mut events, 16).expect("waits");
        for event in events {
            match event {
                Event::Readable(_) => match self.tls.receive(&mut self.reactor, TOKEN, &mut self.input, 4096) {
                    Ok(ReceiveOutcome::Closed) => self.result = Some(Ok(())),
                    Ok(_) => {}
                    Err(error) => self.result = Some(Err(error)),
                },
                Event::Writable(_) => {
                    self.tls.continue_sending(&mut self.reactor, TOKEN).expect("goes on");
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    fn run_until(&mut self, what: &str, mut is: impl FnMut(&ServerSide) -> bool) {
        let start = Instant::now();
        while !is(self) {
            assert!(start.elapsed() < TIMEOUT, "{what}");
            self.run_turn();
        }
    }

    /// Moves the connection to a new reactor.
    fn move_to_new_reactor(&mut self) {
        let registered = self.reactor.deregister(TOKEN).expect("is registered");
        self.reactor = Reactor::new().expect("a reactor");
        self.reactor.adopt(TOKEN, registered).expect("adopts");
        self.tls.resume_on_reactor(&mut self.reactor, TOKEN).expect("arrives");
    }
}

fn client(pair: &ConfigPair, socket: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(
        ClientConnection::new(pair.client.clone(), name).expect("a session"),
        socket,
    )
}

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

#[test]
fn large_values_are_sent_as_the_socket_accepts_them_across_reactors() {
    let pair = config_pair();
    let (served, socket) = connected_sockets();
    let mut served = ServerSide::new(served, pair.server.clone());
    let value = random_bytes(9_000_000, 1);
    let mut stream = client(&pair, socket);
    let mut expected = b"before".to_vec();
    expected.extend_from_slice(&value);
    expected.extend_from_slice(b"behind");
    expected.extend_from_slice(&value);
    expected.extend_from_slice(b"last");
    let all = expected.len();
    let reader = thread::spawn(move || {
        stream.write_all(b"question").expect("sends");
        // The delay fills the socket buffers of the server's side.
        thread::sleep(Duration::from_millis(50));
        let mut got = vec![0; all];
        stream.read_exact(&mut got).expect("receives");
        stream.write_all(b"thanks").expect("sends");
        got
    });
    served.run_until("the question", |served| served.input == b"question");
    served.input.clear();
    let mut output = Output::new();
    output.bytes.extend_from_slice(b"before");
    output.push_shared(Box::new(value.clone()));
    output.bytes.extend_from_slice(b"behind");
    output.push_shared(Box::new(value));
    let sent = served.tls.send(&mut served.reactor, TOKEN, &mut output).expect("sends");
    let SendOutcome::InFlight(bytes) = sent else {
        panic!("18 MB were taken at once");
    };
    assert!(output.is_empty() && bytes > 15_000_000, "{bytes}");
    assert!(
        served.reactor.in_flight(TOKEN) < 2 * TURN_SHARE_BYTES,
        "no more is sealed than a turn's share"
    );
    output.bytes.extend_from_slice(b"last");
    served.tls.send(&mut served.reactor, TOKEN, &mut output).expect("sends");
    while served.tls.unencrypted_bytes() > 4_000_000 {
        served.run_turn();
        served.move_to_new_reactor();
    }
    served.run_until("the end", |served| served.input == b"thanks");
    assert_eq!(served.tls.unencrypted_bytes(), 0);
    assert!(reader.join().expect("the reader") == expected, "the bytes are others");
}

#[test]
fn close_notify_after_data_is_seen_after_the_data() {
    let pair = config_pair();
    let (served, socket) = connected_sockets();
    let mut served = ServerSide::new(served, pair.server.clone());
    let mut stream = client(&pair, socket);
    let peer = thread::spawn(move || {
        stream.write_all(b"last words").expect("sends");
        stream.conn.send_close_notify();
        stream.flush().expect("sends");
        // The socket stays open: only `close_notify` announces the end. The server sends `close_notify` too.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("a clean end");
        rest
    });
    served.run_until("the end", |served| served.result.is_some());
    assert_eq!(served.input, b"last words");
    assert!(matches!(served.result, Some(Ok(()))));
    served.move_to_new_reactor();
    served.result = None;
    served.run_until("the end, on the other reactor too", |served| served.result.is_some());
    served.tls.send_close_notify(&mut served.reactor, TOKEN);
    drop(served.reactor.deregister(TOKEN));
    assert_eq!(peer.join().expect("the peer"), b"");
}

#[test]
fn keys_may_be_updated_at_any_time() {
    let pair = config_pair();
    let (served, socket) = connected_sockets();
    let mut served = ServerSide::new(served, pair.server.clone());
    let mut stream = client(&pair, socket);
    let peer = thread::spawn(move || {
        for round in 0..20u8 {
            stream.write_all(&[round]).expect("sends");
            let mut echo = [0];
            stream.read_exact(&mut echo).expect("receives");
            assert_eq!(echo, [round]);
            stream.conn.refresh_traffic_keys().expect("asks for new keys");
        }
    });
    for round in 0..20u8 {
        served.run_until("a byte", |served| served.input == [round]);
        let mut output = Output::new();
        output.bytes.append(&mut served.input);
        served.tls.send(&mut served.reactor, TOKEN, &mut output).expect("sends");
    }
    peer.join().expect("the peer");
}

/// Returns the first message of a client's handshake.
fn client_hello(pair: &ConfigPair) -> Vec<u8> {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut session = ClientConnection::new(pair.client.clone(), name).expect("a session");
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes).expect("writes");
    bytes
}

#[test]
fn invalid_data_ends_only_its_connection() {
    let pair = config_pair();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let hello = client_hello(&pair);
    for round in 0..300 {
        let bytes = match round % 4 {
            0 => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            1 => random_bytes(random.usize(1..2000), random.u64(..)),
            2 => {
                // The head of a record, followed by random bytes.
                let mut bytes = vec![random.u8(20..25), 3, random.u8(0..5), random.u8(0..70), random.u8(..)];
                bytes.extend(random_bytes(random.usize(1..20_000), random.u64(..)));
                bytes
            }
            _ => {
                let mut bytes = hello.clone();
                for _ in 0..random.usize(1..6) {
                    let at = random.usize(0..bytes.len());
                    bytes[at] = random.u8(..);
                }
                bytes
            }
        };
        let (served, mut socket) = connected_sockets();
        let mut served = ServerSide::new(served, pair.server.clone());
        let cut = random.usize(0..=bytes.len());
        socket.write_all(&bytes[..cut]).expect("sends");
        served.run_turn();
        let _ = socket.write_all(&bytes[cut..]);
        drop(socket);
        served.run_until("the end", |served| served.result.is_some());
        assert!(served.input.is_empty(), "nothing was said");
    }
}

#[test]
fn a_broken_record_ends_a_connection() {
    let pair = config_pair();
    let (served, socket) = connected_sockets();
    let mut served = ServerSide::new(served, pair.server.clone());
    let mut stream = client(&pair, socket);
    let peer = thread::spawn(move || {
        stream.write_all(b"whole").expect("sends");
        stream.read_exact(&mut [0]).expect("receives");
        stream.sock.write_all(&[23, 3, 3, 0, 40]).expect("sends");
        stream.sock.write_all(&random_bytes(40, 5)).expect("sends");
        let mut rest = Vec::new();
        let error = stream.read_to_end(&mut rest).expect_err("it is told");
        error.to_string()
    });
    served.run_until("what is whole", |served| served.input == b"whole");
    let mut output = Output::new();
    output.bytes.push(b'!');
    served.tls.send(&mut served.reactor, TOKEN, &mut output).expect("sends");
    served.run_until("the end", |served| served.result.is_some());
    assert_eq!(served.input, b"whole");
    assert!(matches!(served.result, Some(Err(_))));
    let told = peer.join().expect("the peer");
    assert!(told.contains("BadRecordMac"), "{told}");
}

#[test]
fn a_certificate_shows_its_subject_and_expiry() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "joe");
    for uri in ["spiffe://a/b", "urn:c"] {
        parameters
            .subject_alt_names
            .push(rcgen::SanType::URI(uri.try_into().expect("a URI")));
    }
    parameters.serial_number = Some(rcgen::SerialNumber::from(0xAB12_u64));
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2030, 1, 1);
    let der = parameters.self_signed(&key).expect("a certificate").der().to_vec();
    assert_eq!(certificate::common_name(&der).as_deref(), Some("joe"));
    assert_eq!(certificate::uris(&der), ["spiffe://a/b", "urn:c"]);
    let label = certificate::read_info(&der).expect("a certificate");
    assert_eq!((label.serial.as_str(), label.expires_s), ("AB12", 1_893_456_000));
    assert!(certificate::is_valid_at(&der, 1_700_000_000));
    assert!(!certificate::is_valid_at(&der, 1_500_000_000));
    assert!(!certificate::is_valid_at(&der, 1_900_000_000));
    assert_eq!(certificate::read_info(b"no certificate"), None);
    assert_eq!(
        certificate::common_name(&config_pair().certificate).as_deref(),
        Some("rcgen self signed cert")
    );
}

#[test]
fn cached_sessions_are_limited_in_age_and_number() {
    use rustls::server::StoresServerSessions as _;
    let sessions = sessions::SessionCache::new(2, Duration::from_secs(60));
    for id in 0..3u8 {
        assert!(sessions.put(vec![id], vec![id, id]));
    }
    assert_eq!(sessions.get(&[0]), None, "the oldest makes room");
    assert_eq!(sessions.take(&[1]), Some(vec![1, 1]));
    assert_eq!(sessions.take(&[1]), None, "one is taken once");
    assert_eq!(sessions.get(&[2]), Some(vec![2, 2]));
    let brief = sessions::SessionCache::new(0, Duration::from_millis(20));
    assert!(brief.put(vec![1], vec![1]));
    assert_eq!(brief.get(&[1]), Some(vec![1]));
    thread::sleep(Duration::from_millis(40));
    assert_eq!(brief.get(&[1]), None, "its time is over");
}

const VERSION_ONE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/version_one.crt");

fn own_files<'a>(certificate: &'a Path, key: &'a str, authorities: Option<&'a Path>) -> CertificateFiles<'a> {
    CertificateFiles {
        certificate,
        key: Path::new(key),
        authorities,
    }
}

/// Many instructions produce certificates without extensions, which have version 1.
#[test]
fn an_own_certificate_of_version_one_is_refused_with_advice() {
    let path = Path::new(VERSION_ONE);
    assert_eq!(files::read_certificates(path).map(|chain| chain.len()).ok(), Some(1));
    let refused = files::read_own_chain(own_files(path, "own.key", None))
        .expect_err("rustls does not use it")
        .to_string();
    assert!(
        refused.contains("version 1") && refused.contains("-extfile"),
        "{refused}"
    );
    assert!(
        refused.contains(&format!("openssl x509 -in {VERSION_ONE} -signkey own.key "))
            && refused.ends_with(&format!(" -out {VERSION_ONE}.v3")),
        "{refused}"
    );
    let current = std::env::temp_dir().join(format!("weft-tls-version-{}", std::process::id()));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(&current, made.cert.pem()).expect("writes");
    assert!(files::read_own_chain(own_files(&current, "own.key", None)).is_ok());
    std::fs::remove_file(current).expect("removes");
}

#[test]
fn the_advice_names_the_files_as_words_of_a_shell() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let root = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    let issuer = rcgen::Issuer::new(root, rcgen::KeyPair::generate().expect("a key"));
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "joe");
    let issued = parameters.signed_by(&key, &issuer).expect("a certificate");
    let certificate = Path::new("/etc/two words/joe's.crt");
    let commands =
        own_files(certificate, "/etc/own.key", Some(Path::new("ca.crt"))).version_three_commands(issued.der());
    let expected = concat!(
        "echo basicConstraints=CA:FALSE > v3.ext && ",
        r"openssl x509 -x509toreq -in '/etc/two words/joe'\''s.crt' -signkey /etc/own.key | ",
        "openssl x509 -req -CA ca.crt -CAkey CA_KEY -CAcreateserial -days 365 -extfile v3.ext ",
        r"-out '/etc/two words/joe'\''s.crt.v3'",
    );
    assert_eq!(commands, expected);
    let unknown = own_files(certificate, "/etc/own.key", None).version_three_commands(issued.der());
    assert!(unknown.contains(" -CA CA_CERTIFICATE -CAkey CA_KEY "), "{unknown}");
}

#[test]
fn a_certificate_of_version_one_of_a_peer_is_refused_by_name() {
    let chain = files::read_certificates(Path::new(VERSION_ONE)).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trust = Arc::new(TrustedAuthorities::new(chain.clone(), &provider));
    let clients = ClientVerifier {
        trust: trust.clone(),
        is_mandatory: true,
    };
    let (name, now) = (ServerName::try_from("localhost").expect("a name"), UnixTime::now());
    let refusals = [
        clients.verify_client_cert(&chain[0], &[], now).map(drop),
        ServerVerifier(trust)
            .verify_server_cert(&chain[0], &[], &name, &[], now)
            .map(drop),
    ];
    for refusal in refusals {
        let refusal = refusal.expect_err("it has no extensions");
        let expected = format!("invalid peer certificate: {VersionOneOfPeer}");
        // As a stream of rustls and as a connection of the reactor report it.
        let of_stream = SessionError::within(std::io::Error::new(std::io::ErrorKind::InvalidData, refusal.clone()));
        let of_layer = std::io::Error::from(SessionError::from(refusal));
        for error in [of_stream, of_layer] {
            assert_eq!(error.to_string(), expected);
            assert!(expected.contains(": it has X.509 version 1, but "), "{expected}");
        }
    }
    let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    assert_eq!(SessionError::within(lost).kind(), std::io::ErrorKind::ConnectionReset);
}

/// A certificate and its key, which are created as the files `own.crt` and `own.key` of a directory. Returns the serial
/// number.
fn create_pair(directory: &Path) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(directory.join("own.crt"), made.cert.pem()).expect("writes");
    std::fs::write(directory.join("own.key"), made.signing_key.serialize_pem()).expect("writes");
    certificate::read_info(made.cert.der()).expect("is valid").serial
}

fn set(config: &Config, name: &str, value: &Path) {
    let permissions = SetPermissions {
        may_set_protected: true,
        is_loading: false,
    };
    let pair = (name.as_bytes(), value.as_os_str().as_bytes());
    assert!(config.set(&[pair], permissions, &mut |_| Ok(())).is_ok(), "{name}");
}

/// A named pipe is a file whose reader waits for as long as the test wants.
#[test]
fn a_reload_that_waits_for_the_disk_holds_up_no_change_of_the_configuration() {
    let scratch = std::env::temp_dir().join(format!("weft-tls-slow-disk-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("creates");
    let before = create_pair(&scratch);
    let (file, key) = (scratch.join("own.crt"), scratch.join("own.key"));
    let config = Config::defaults();
    set(&config, "tls-auth-clients", Path::new("no"));
    set(&config, "tls-cert-file", &file);
    set(&config, "tls-key-file", &key);
    let tls = TlsState::default();
    tls.configure(&config).expect("the files are fine");
    let serial = || {
        let info = tls.current().and_then(|material| material.figures.server.clone());
        info.expect("there is a certificate").serial
    };
    assert_eq!(serial(), before);
    let changed = create_pair(&scratch);
    let certificate = std::fs::read(&file).expect("reads");
    let [regular, second_pipe] = ["regular", "second"].map(|name| scratch.join(name));
    std::fs::rename(&file, &regular).expect("renames");
    let made = std::process::Command::new("mkfifo")
        .args([&file, &second_pipe])
        .status();
    assert!(made.is_ok_and(|status| status.success()));
    // Waits for a reader.
    let open = || std::fs::OpenOptions::new().write(true).open(&file).expect("opens");
    let mut may_change = false;
    thread::scope(|scope| {
        let reload = scope.spawn(|| tls.reload_if_changed(&config));
        // The file is found to have changed. Each reader has a pipe of its own, which it reads up to the end.
        let mut first = open();
        first.write_all(&certificate).expect("writes");
        std::fs::rename(&second_pipe, &file).expect("renames");
        drop(first);
        // Now it is read.
        let mut second = open();
        may_change = config.try_begin_change().is_some();
        second.write_all(&certificate).expect("writes");
        std::fs::rename(&regular, &file).expect("renames");
        drop(second);
        reload.join().expect("ends");
    });
    assert!(may_change);
    assert_eq!(serial(), changed);
    std::fs::remove_dir_all(scratch).expect("removes");
}

#[test]
fn one_reload_is_under_way_at_a_time() {
    let tls = TlsState::default();
    assert!(tls.try_begin_reload());
    assert!(!tls.try_begin_reload());
    tls.end_reload();
    assert!(tls.try_begin_reload());
}

/// Otherwise a certificate that is about to expire might stay in use for a whole interval.
#[test]
fn a_reload_that_changes_of_the_configuration_prevent_is_tried_again_soon() {
    let scratch = std::env::temp_dir().join(format!("weft-tls-put-off-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("creates");
    let before = create_pair(&scratch);
    let config = Config::defaults();
    set(&config, "tls-auth-clients", Path::new("no"));
    set(&config, "tls-cert-file", &scratch.join("own.crt"));
    set(&config, "tls-key-file", &scratch.join("own.key"));
    let tls = TlsState::default();
    tls.configure(&config).expect("the files are fine");
    let serial = || {
        let info = tls.current().and_then(|material| material.figures.server.clone());
        info.expect("there is a certificate").serial
    };
    let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(1));
    let intervals = || [hour, moment].map(|interval| tls.reload_interval(interval));
    tls.reload_if_changed(&config);
    assert_eq!(intervals(), [hour, moment], "nothing has changed");
    let changed = create_pair(&scratch);
    let reads = Cell::new(0);
    let read_during_change = |config: &Config| {
        let material = TlsMaterial::read(config);
        reads.set(reads.get() + 1);
        set(config, "hz", Path::new(&reads.get().to_string()));
        material
    };
    for attempts in [MAX_RELOAD_ATTEMPTS, 2 * MAX_RELOAD_ATTEMPTS] {
        tls.reload_with(&config, read_during_change);
        assert_eq!((reads.get(), serial()), (attempts, before.clone()));
        assert_eq!(intervals(), [RELOAD_RETRY_INTERVAL, moment]);
    }
    tls.reload_if_changed(&config);
    assert_eq!(serial(), changed);
    assert_eq!(intervals(), [hour, moment]);
    std::fs::remove_dir_all(scratch).expect("removes");
}

/// CONFIG SET changes the directory, to which the names of the files are relative, while a reload is under way. This is
/// the only test of the crate that depends on the working directory.
#[test]
fn a_reload_reads_all_files_of_one_state_of_the_configuration() {
    let home = std::env::current_dir().expect("a working directory");
    let scratch = std::env::temp_dir().join(format!("weft-tls-reload-{}", std::process::id()));
    let [first, second] = ["first", "second"].map(|name| scratch.join(name));
    for directory in [&first, &second] {
        std::fs::create_dir_all(directory).expect("creates");
    }
    let before = create_pair(&first);
    let config = Config::defaults();
    set(&config, "dir", &first);
    set(&config, "tls-auth-clients", Path::new("no"));
    set(&config, "tls-cert-file", Path::new("own.crt"));
    set(&config, "tls-key-file", Path::new("own.key"));
    let tls = TlsState::default();
    tls.configure(&config).expect("the files are fine");
    let serial = || {
        let info = tls.current().and_then(|material| material.figures.server.clone());
        info.expect("there is a certificate").serial
    };
    assert_eq!(serial(), before);
    let changed = create_pair(&first);
    let other = create_pair(&second);
    let change = config.begin_change();
    thread::scope(|scope| {
        let reload = scope.spawn(|| tls.reload_if_changed(&config));
        // A reload that did not wait would end meanwhile.
        let start = Instant::now();
        while !reload.is_finished() && start.elapsed() < Duration::from_millis(200) {
            thread::sleep(Duration::from_millis(5));
        }
        assert_ne!(serial(), changed, "the configuration is being changed");
        set(&config, "dir", &second);
        drop(change);
        reload.join().expect("ends");
    });
    assert_eq!(serial(), other);
    std::env::set_current_dir(home).expect("the way back");
    std::fs::remove_dir_all(scratch).expect("removes");
}
