//! Tests of the functions that block clients.

use super::*;
use crate::session::fake::FakeSession;
use crate::session::with_session;

fn context() -> Context {
    let caller = Caller {
        client_id: 7,
        ..Caller::none()
    };
    Context::new(Module::new(String::new()), caller)
}

#[test]
fn client_is_blocked_only_where_a_command_runs() {
    let context = context();
    // SAFETY: the context lives; there are no callbacks.
    let block = || unsafe { block_client(context.as_pointer(), None, None, None, 0) };
    assert!(block().is_null(), "there is no session");
    let client = with_session(&mut FakeSession::default(), block);
    assert!(BlockedClient::find(client).is_some());
    assert_eq!(abort_block(client), OK);
    let found = BlockedClient::find(client).expect("it ends on the home worker");
    assert!(found.is_unblocked());
    found.end(&mut FakeSession::default());
    assert_eq!(unblock_client(client, std::ptr::null_mut()), ERR, "it has ended");
}

#[test]
fn client_cannot_be_blocked_in_a_reply_callback() {
    let context = context();
    context.blocked.kind.set(CallbackKind::Reply);
    let client = with_session(&mut FakeSession::default(), || {
        // SAFETY: the context lives; there are no callbacks.
        unsafe { block_client(context.as_pointer(), None, None, None, 0) }
    });
    let found = BlockedClient::find(client).expect("the module gets one, for which nobody waits");
    let reply = context.take_reply();
    assert!(
        reply
            .bytes
            .starts_with(b"-ERR Blocking module command called from a Reply")
    );
    assert!(found.end(&mut FakeSession::default()).is_none());
}

#[test]
fn end_of_a_wait_for_keys_needs_a_timeout_callback() {
    let context = context();
    let mut keys = [ModuleString::create(b"k")];
    let client = with_session(&mut FakeSession::default(), || {
        let (pointer, none) = (context.as_pointer(), std::ptr::null_mut());
        // SAFETY: the context and the keys live; there are no callbacks.
        unsafe { block_client_on_keys(pointer, None, None, None, i64::MAX, keys.as_mut_ptr(), 1, none) }
    });
    assert!(context.take_reply().bytes.starts_with(b"-ERR timeout is out of range"));
    assert_eq!(unblock_client(client, std::ptr::null_mut()), ERR);
    let found = BlockedClient::find(client).expect("it has not ended");
    found.end(&mut FakeSession::default());
    // SAFETY: this function is the holder of the string.
    unsafe { ModuleString::release(keys[0]) };
}

#[test]
fn authentication_cannot_be_blocked_elsewhere() {
    let context = context();
    let client = with_session(&mut FakeSession::default(), || {
        // SAFETY: the context lives; there are no callbacks.
        unsafe { block_client_on_auth(context.as_pointer(), None, None) }
    });
    assert!(client.is_null());
    assert!(
        context
            .take_reply()
            .bytes
            .starts_with(b"-ERR Module blocking client on auth")
    );
}
