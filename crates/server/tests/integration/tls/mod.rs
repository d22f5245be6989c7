//! End-to-end tests of TLS: clients, their certificates, configuration changes, other servers, and peers that violate
//! the protocol.

mod authority;
mod errors;
mod links;
mod rules;

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::client::Client;
use crate::harness::port::free_port;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;
use authority::{Authority, ClientTlsOptions, Identity};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

type Stream = StreamOwned<ClientConnection, TcpStream>;
type Secure = Client<Stream>;

/// A server with a TLS port, which requests no client certificates unless the arguments say otherwise.
struct TlsServer {
    server: Server,
    authority: Authority,
    port: u16,
}

fn start_tls_server(arguments: &[&str]) -> TlsServer {
    let authority = Authority::new();
    let port = free_port();
    let own = authority.arguments("server");
    let number = port.to_string();
    let mut all: Vec<&str> = own.iter().map(String::as_str).collect();
    all.extend(["--tls-port", &number, "--tls-auth-clients", "no"]);
    all.extend(arguments);
    TlsServer {
        server: Server::start(&all),
        authority,
        port,
    }
}

fn dial(port: u16, config: Arc<ClientConfig>) -> Stream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    socket.set_nodelay(true).expect("sets an option");
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(ClientConnection::new(config, name).expect("a session"), socket)
}

/// Sends PING over this stream. Returns the reply or the error.
fn ping(mut stream: Stream) -> Result<String, String> {
    let mut ask = || {
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().map_err(|error| error.to_string())
}

impl TlsServer {
    fn dial(&self, manner: ClientTlsOptions<'_>) -> Stream {
        dial(self.port, self.authority.client(manner))
    }

    fn connect(&self) -> Secure {
        Client(BufReader::new(self.dial(ClientTlsOptions::default())))
    }

    fn connect_as(&self, identity: &Identity) -> Secure {
        Client(BufReader::new(self.dial(ClientTlsOptions {
            identity: Some(identity),
            ..ClientTlsOptions::default()
        })))
    }

    fn plain(&self) -> Client {
        Client::connect(self.server.port)
    }
}

fn random_bytes(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..len).map(|_| random.u8(..)).collect()
}

#[test]
fn commands_run_over_tls_in_any_number_and_size() {
    let secured = start_tls_server(&[]);
    let mut client = secured.connect();
    assert_eq!(client.call(&["PING"]), "PONG");
    for number in 0..5000 {
        client.send(&["SET".to_owned(), format!("key{number}"), number.to_string()]);
    }
    for number in 0..5000 {
        client.send(&["GET".to_owned(), format!("key{number}")]);
    }
    for _ in 0..5000 {
        assert_eq!(client.answer(), "OK");
    }
    for number in 0..5000 {
        assert_eq!(client.answer(), number.to_string());
    }
    let value = random_bytes(20_000_000);
    client.send(&[&b"SET"[..], b"large", &value[..]]);
    assert_eq!(client.answer(), "OK");
    // Several large replies, with small replies between them.
    for _ in 0..3 {
        client.send(&["GET", "large"]);
        client.send(&["PING"]);
    }
    for _ in 0..3 {
        let mut reply = vec![0; b"$20000000\r\n".len() + value.len() + b"\r\n+PONG\r\n".len()];
        client.0.read_exact(&mut reply).expect("receives");
        assert!(reply.starts_with(b"$20000000\r\n") && reply.ends_with(b"\r\n+PONG\r\n"));
        assert!(reply[11..11 + value.len()] == value[..], "the bytes are others");
    }
    let info = client.call(&["INFO", "server"]);
    let listener = format!("listener1:name=tls,bind=127.0.0.1,port={}", secured.port);
    assert!(info.contains(&listener), "{info}");
    assert!(
        client
            .call(&["CLIENT", "LIST"])
            .contains(&format!("laddr=127.0.0.1:{}", secured.port))
    );
}

#[test]
fn a_server_may_listen_with_tls_only() {
    let authority = Authority::new();
    let port = free_port();
    let mut process = Command::new(env!("CARGO_BIN_EXE_weft-server"))
        .args([
            "--bind",
            "127.0.0.1",
            "--port",
            "0",
            "--tls-port",
            &port.to_string(),
            "--save",
            "",
        ])
        .args(["--dir", &authority.file("")])
        .args(authority.arguments("server"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    wait_until("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let identity = authority.identity("client", &[]);
    let manner = ClientTlsOptions {
        identity: Some(&identity),
        ..ClientTlsOptions::default()
    };
    let mut client = Client(BufReader::new(dial(port, authority.client(manner))));
    let info = client.call(&["INFO", "server"]);
    assert!(info.contains(&format!("tcp_port:{port}")), "{info}");
    // The port changes between TLS and plain while a client is connected.
    let port_text = port.to_string();
    assert_eq!(client.call(&["CONFIG", "SET", "tls-port", "0"]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "port", &port_text]), "OK");
    let mut plain = Client::connect(port);
    assert_eq!(plain.call(&["PING"]), "PONG");
    assert_eq!(
        plain.call(&["CONFIG", "SET", "port", "0", "tls-port", &port_text]),
        "OK"
    );
    assert_eq!(ping(dial(port, authority.client(manner))).as_deref(), Ok("+PONG\r\n"));
    process.kill().expect("kills");
    process.wait().expect("ends");
}

#[test]
fn clients_present_certificates_if_required() {
    let secured = start_tls_server(&[]);
    let mut plain = secured.plain();
    let (known, strangers) = (secured.authority.identity("known", &[]), Authority::new());
    let unknown = strangers.identity("unknown", &[]);
    let as_whom = |identity| ClientTlsOptions {
        identity,
        ..ClientTlsOptions::default()
    };
    // No certificate, a trusted one, an untrusted one.
    let cases = [
        ("no", [true, true, true]),
        ("optional", [true, true, false]),
        ("yes", [false, true, false]),
    ];
    for (asks, expected) in cases {
        assert_eq!(plain.call(&["CONFIG", "SET", "tls-auth-clients", asks]), "OK");
        let served = [None, Some(&known), Some(&unknown)].map(|who| ping(secured.dial(as_whom(who))));
        assert_eq!(
            served.clone().map(|result| result.is_ok()),
            expected,
            "{asks}: {served:?}"
        );
    }
    assert_eq!(plain.call(&["PING"]), "PONG");
}

#[test]
fn a_session_without_a_certificate_is_not_resumed_where_one_is_required() {
    let secured = start_tls_server(&[]);
    let config = secured.authority.client(ClientTlsOptions::default());
    for _ in 0..3 {
        assert!(ping(dial(secured.port, config.clone())).is_ok());
    }
    assert_eq!(
        secured.plain().call(&["CONFIG", "SET", "tls-auth-clients", "yes"]),
        "OK"
    );
    assert!(ping(dial(secured.port, config)).is_err());
}

#[test]
fn a_certificate_names_the_user() {
    let secured = start_tls_server(&["--tls-auth-clients", "yes", "--tls-auth-clients-user", "CN"]);
    let mut plain = secured.plain();
    for user in ["joe", "urn:joe"] {
        assert_eq!(plain.call(&["ACL", "SETUSER", user, "on", "+@all", "~*"]), "OK");
    }
    assert_eq!(plain.call(&["ACL", "SETUSER", "off", "+@all"]), "OK");
    let whoami = |name: &str, uris: &[&str]| {
        let identity = secured.authority.identity(name, uris);
        secured.connect_as(&identity).call(&["ACL", "WHOAMI"])
    };
    assert_eq!(whoami("joe", &["urn:joe"]), "joe");
    assert_eq!(whoami("nobody", &[]), "default");
    assert_eq!(whoami("off", &[]), "default", "a user that is switched off");
    assert_eq!(plain.call(&["CONFIG", "SET", "tls-auth-clients-user", "URI"]), "OK");
    assert_eq!(whoami("joe", &["urn:other", "urn:joe"]), "urn:joe");
    assert_eq!(whoami("joe", &[]), "default", "no URI, no user");
    assert_eq!(whoami("joe", &["urn:other"]), "default");
    assert_eq!(plain.call(&["CONFIG", "SET", "tls-auth-clients-user", "off"]), "OK");
    assert_eq!(whoami("joe", &["urn:joe"]), "default");
    let log = plain.call(&["ACL", "LOG"]);
    assert!(log.contains("reason tls-cert"), "{log}");
    assert!(
        log.contains("username nobody") && log.contains("username urn:other"),
        "{log}"
    );
    let stats = plain.call(&["INFO", "stats"]);
    assert!(stats.contains("acl_access_denied_tls_cert:3"), "{stats}");
}

#[test]
fn new_certificates_are_loaded_at_once_and_wrong_ones_are_not() {
    let secured = start_tls_server(&[]);
    let mut plain = secured.plain();
    let shown = || {
        let mut stream = secured.dial(ClientTlsOptions::default());
        stream.write_all(b"PING\r\n").expect("sends");
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).expect("receives");
        stream.conn.peer_certificates().expect("one")[0].clone()
    };
    let first = shown();
    let mut old = secured.connect();
    let second = secured.authority.identity("second", &[]);
    secured.authority.write("second", &second);
    let file = |name: &str| secured.authority.file(name);
    let failed = |parameter: &str| {
        format!(
            "ERR CONFIG SET failed (possibly related to argument '{parameter}') - Unable to update TLS configuration. \
             Check server logs."
        )
    };
    // The new certificate does not fit the old key, and the new key does not fit the old certificate.
    assert_eq!(
        plain.call(&["CONFIG", "SET", "tls-cert-file", &file("second.crt")]),
        failed("tls-cert-file")
    );
    assert_eq!(shown(), first);
    let set = [
        "CONFIG",
        "SET",
        "tls-cert-file",
        &file("second.crt"),
        "tls-key-file",
        &file("second.key"),
    ];
    assert_eq!(plain.call(&set), "OK");
    assert_eq!(shown(), second.certificate);
    assert_eq!(old.call(&["PING"]), "PONG", "who is connected stays");
    for (parameter, value) in [
        ("tls-key-file", file("missing")),
        ("tls-ca-cert-file", file("second.key")),
        ("tls-protocols", "TLSv1.9".to_owned()),
        ("tls-protocols", "TLSv1.1".to_owned()),
        ("tls-ciphers", "AES128-SHA256".to_owned()),
        ("tls-ciphersuites", "TLS_AES_128_CCM_SHA256".to_owned()),
        ("tls-dh-params-file", file("missing")),
        ("tls-cert-file", String::new()),
    ] {
        assert_eq!(
            plain.call(&["CONFIG", "SET", parameter, &value]),
            failed(parameter),
            "{value}"
        );
    }
    let value = plain.call(&["CONFIG", "GET", "tls-key-file"]);
    assert_eq!(
        value,
        format!("(tls-key-file {})", file("second.key")),
        "what failed is not kept"
    );
    assert_eq!(shown(), second.certificate);
    // The contents of the files change, their names do not.
    let third = secured.authority.identity("third", &[]);
    secured.authority.write("second", &third);
    assert_eq!(shown(), second.certificate);
    assert_eq!(plain.call(&["CONFIG", "SET", "tls-auto-reload-interval", "1"]), "OK");
    wait_until("the new certificate", || shown() == third.certificate);
    std::fs::write(file("second.crt"), "broken").expect("writes");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(shown(), third.certificate, "what cannot be used does no harm");
    let info = plain.call(&["INFO", "tls"]);
    assert!(!info.contains("tls_server_cert_serial:none"), "{info}");
    assert!(info.contains("tls_client_cert_serial:none"), "{info}");
    assert!(!info.contains("tls_ca_cert_expires_in_seconds:0"), "{info}");
}

/// A named pipe stands for a disk that does not answer: its reader waits.
#[test]
fn a_disk_that_does_not_answer_holds_up_changes_of_the_configuration_and_nothing_else() {
    let secured = start_tls_server(&[]);
    let pipe = secured.authority.file("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    let mut changing = secured.plain();
    changing.send(&["CONFIG", "SET", "tls-cert-file", &pipe]);
    // Waits until the server reads.
    let disk = std::fs::OpenOptions::new().write(true).open(&pipe).expect("opens");
    let mut waiting: Vec<Client> = (0..4).map(|_| secured.plain()).collect();
    for client in &mut waiting {
        client.send(&["CONFIG", "SET", "hz", "20"]);
    }
    let mut other = secured.plain();
    let code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    for _ in 0..10 {
        assert_eq!(other.call(&["FUNCTION", "LOAD", "REPLACE", code]), "lib");
    }
    assert!(changing.is_waiting() && waiting.iter().all(Client::is_waiting));
    std::fs::remove_file(&pipe).expect("removes");
    drop(disk);
    let failed = changing.answer();
    assert!(failed.starts_with("ERR CONFIG SET failed"), "{failed}");
    for client in &mut waiting {
        assert_eq!(client.answer(), "OK");
    }
}

#[test]
fn keys_may_be_encrypted() {
    use pkcs8::{PrivateKeyInfo, pkcs5::pbes2};
    let secured = start_tls_server(&[]);
    let mut plain = secured.plain();
    let identity = secured.authority.identity("locked", &[]);
    let parameters = pbes2::Parameters::pbkdf2_sha256_aes256cbc(2048, b"saltsalt", &[7; 16]).expect("parameters");
    let key = PrivateKeyInfo::try_from(&identity.key[..]).expect("a key");
    let locked = key.encrypt_with_params(parameters, "1234").expect("encrypts");
    let locked = pem::encode(&pem::Pem::new("ENCRYPTED PRIVATE KEY", locked.as_bytes()));
    secured.authority.write("locked", &identity);
    std::fs::write(secured.authority.file("locked.key"), locked).expect("writes");
    let files = [
        "CONFIG".to_owned(),
        "SET".into(),
        "tls-cert-file".into(),
        secured.authority.file("locked.crt"),
        "tls-key-file".into(),
        secured.authority.file("locked.key"),
    ];
    let mut set = |pass: &str| {
        assert_eq!(plain.call(&["CONFIG", "SET", "tls-key-file-pass", pass]), "OK");
        plain.send(&files);
        plain.answer()
    };
    for wrong in ["", "12345"] {
        let answer = set(wrong);
        assert!(
            answer.contains("Unable to update TLS configuration"),
            "{wrong:?}: {answer}"
        );
    }
    assert_eq!(set("1234"), "OK");
    assert_eq!(secured.connect().call(&["PING"]), "PONG");
}

#[test]
fn versions_and_ciphers_are_those_that_are_configured() {
    use rustls::version::{TLS12, TLS13};
    let secured = start_tls_server(&[]);
    let mut plain = secured.plain();
    let mut set = |parameter: &str, value: &str| {
        assert_eq!(plain.call(&["CONFIG", "SET", parameter, value]), "OK");
    };
    let old = ClientTlsOptions {
        versions: &[&TLS12],
        ..ClientTlsOptions::default()
    };
    let new = ClientTlsOptions {
        versions: &[&TLS13],
        ..ClientTlsOptions::default()
    };
    let talks = |manner| ping(secured.dial(manner)).is_ok();
    assert!(talks(old) && talks(new));
    set("tls-protocols", "TLSv1.2");
    assert!(talks(old) && !talks(new));
    set("tls-protocols", "TLSv1.3");
    assert!(!talks(old) && talks(new));
    set("tls-protocols", "");
    set(
        "tls-ciphers",
        "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305",
    );
    let with = |ciphers| ClientTlsOptions { ciphers, ..old };
    assert!(talks(with(&["TLS_ECDHE_ECDSA_WITH_AES_128"])));
    assert!(!talks(with(&["TLS_ECDHE_ECDSA_WITH_AES_256"])));
    // Either the client's order of preference decides, or the server's.
    let agreed = || {
        let mut stream = secured.dial(with(&["TLS_ECDHE_ECDSA"]));
        stream.write_all(b"PING\r\n").expect("sends");
        stream.read_exact(&mut [0; 7]).expect("receives");
        format!("{:?}", stream.conn.negotiated_cipher_suite().expect("one").suite())
    };
    set(
        "tls-ciphers",
        "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES256-GCM-SHA384",
    );
    assert_eq!(agreed(), "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384");
    set("tls-prefer-server-ciphers", "yes");
    assert_eq!(agreed(), "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256");
    set("tls-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256");
    assert!(talks(ClientTlsOptions {
        ciphers: &["TLS13_CHACHA20"],
        ..new
    }));
    assert!(!talks(ClientTlsOptions {
        ciphers: &["TLS13_AES_256"],
        ..new
    }));
}

#[test]
fn sessions_are_resumed_if_enabled() {
    let secured = start_tls_server(&[]);
    let kinds = |config: &Arc<ClientConfig>| {
        let mut stream = dial(secured.port, config.clone());
        stream.write_all(b"PING\r\n").expect("sends");
        stream.read_exact(&mut [0; 7]).expect("receives");
        stream.conn.handshake_kind().expect("it is over")
    };
    let resumed = rustls::HandshakeKind::Resumed;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let manner = ClientTlsOptions {
            versions: &[version],
            ..ClientTlsOptions::default()
        };
        let config = secured.authority.client(manner);
        assert_ne!(kinds(&config), resumed);
        assert_eq!(kinds(&config), resumed);
    }
    assert_eq!(
        secured.plain().call(&["CONFIG", "SET", "tls-session-caching", "no"]),
        "OK"
    );
    let config = secured.authority.client(ClientTlsOptions::default());
    assert_ne!(kinds(&config), resumed);
    assert_ne!(kinds(&config), resumed);
}
