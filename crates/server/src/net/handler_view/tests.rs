//! A view that becomes one of another client is like a new one.

use weft_acl::Login;
use weft_base::{ClientId, DbIndex, ThreadIndex};
use weft_resp::Protocol;

use super::*;
use crate::net::client::{BufferFigures, ScriptRefusal};

fn client(id: u64, name: &[u8]) -> Client {
    let mut client = Client::new(ClientId::new(id), 1000 * id, ThreadIndex::FIRST);
    client.name = name.to_vec();
    client.address = format!("127.0.0.1:{id}").into();
    client.local_address = format!("127.0.0.1:{}", id + 1).into();
    client
}

/// Returns what can be compared of two views.
fn shown(view: &Client) -> (Vec<u8>, String) {
    let line = view.list_line(5_000_000, BufferFigures::default());
    let rest = format!(
        "{:?}",
        (
            &view.login,
            view.flags,
            view.last_write_sequence,
            view.unacknowledged_write,
            &view.tracking,
            view.worker,
            view.script_refusal,
            view.refused_slot,
        )
    );
    (line, rest)
}

#[test]
fn nothing_of_the_earlier_client_remains() {
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    let mut first = client(7, b"first");
    first.login = server.acl.new_login();
    first.db = DbIndex::parse(3, 16).expect("there is such a database");
    first.protocol = Protocol::Resp3;
    first.flags = ClientFlags::all();
    first.lib_name = b"library".to_vec();
    first.tracking = Some(Box::default());
    first.last_command = "eval";
    let second = client(90, b"");

    let mut view = first.client_snapshot();
    (view.fd, view.commands, view.largest_output) = (5, 6, 7);
    view.script_refusal = Some(ScriptRefusal::Token);
    assert!(!view.may_become_other_view(), "it tracks keys");
    second.update_handler_view(&mut view);
    assert_eq!(shown(&view), shown(&second.handler_view()));
    assert!(view.may_become_other_view());
    first.update_handler_view(&mut view);
    assert_eq!(shown(&view), shown(&first.handler_view()));
    assert!(!view.flags.intersects(REPLY_SWITCHES));
}

#[test]
fn a_view_of_the_same_client_keeps_what_it_shares() {
    let mut client = client(7, b"name");
    let mut view = client.handler_view();
    let owners = Arc::strong_count(&client.address);
    client.update_handler_view(&mut view);
    assert_eq!(Arc::strong_count(&client.address), owners);
    assert!(Arc::ptr_eq(&view.address, &client.address) && Arc::ptr_eq(view.login.rules(), client.login.rules()));
    // Another user.
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    client.login = server.acl.new_login();
    client.update_handler_view(&mut view);
    assert!(Arc::ptr_eq(view.login.account(), client.login.account()));
    client.login = Login::unauthenticated();
    client.update_handler_view(&mut view);
    assert!(!view.login.is_authenticated());
    client.name = vec![b'x'; 2 * MAX_KEPT_NAME_BYTES];
    client.update_handler_view(&mut view);
    assert!(!view.may_become_other_view(), "its memory is large");
}
