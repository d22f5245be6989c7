//! Tests of the end of a client's session.

use super::*;

/// As in Valkey's `clearClientConnectionState`.
#[test]
fn a_reset_ends_the_session_and_keeps_the_properties_of_the_program_behind_the_connection() {
    let mut client = Client::new(ClientId::new(7), 0, ThreadIndex::FIRST);
    client.flags = ClientFlags::all();
    client.protocol = Protocol::Resp3;
    client.db = DbIndex::parse(3, 16).expect("there is such a database");
    client.name = b"name".to_vec();
    client.lib_name = b"library".to_vec();
    client.lib_version = b"1.2".to_vec();
    client.handshake = Some(Box::default());
    client.reset(Login::unauthenticated());
    let cleared = ClientFlags::all().difference(client.flags);
    let session = [
        ClientFlags::REPLY_OFF,
        ClientFlags::REPLY_SKIP_NEXT,
        ClientFlags::NO_EVICT,
        ClientFlags::NO_TOUCH,
        ClientFlags::MULTI,
        ClientFlags::PUBSUB,
        ClientFlags::MONITOR,
        ClientFlags::READONLY,
        ClientFlags::ASKING,
        ClientFlags::IMPORT_SOURCE,
    ];
    let session = session.into_iter().fold(ClientFlags::empty(), ClientFlags::union);
    assert_eq!(cleared, session);
    assert_eq!((client.protocol, client.db), (Protocol::Resp2, DbIndex::FIRST));
    assert_eq!(client.name, b"");
    assert_eq!(
        (&*client.lib_name, &*client.lib_version),
        (&b"library"[..], &b"1.2"[..])
    );
    assert!(client.handshake.is_some());
}

/// The output of a client that has authenticated at some time is not limited like that of a stranger.
#[test]
fn a_client_that_needed_no_password_counts_as_authenticated_after_a_reset() {
    let mut client = Client::new(ClientId::new(7), 0, ThreadIndex::FIRST);
    client.reset(Login::unauthenticated());
    assert!(!client.flags.contains(ClientFlags::HAS_AUTHENTICATED));
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    client.login = server.acl.new_login();
    client.reset(Login::unauthenticated());
    assert!(client.flags.contains(ClientFlags::HAS_AUTHENTICATED));
}
