//! Tests of the replies of modules.

use weft_resp::Protocol;

use super::{Collection, ReplyError};
use crate::api::{ERR, OK};
use crate::module::Module;
use crate::objects::context::{Caller, Context};

fn context(protocol: Protocol) -> Context {
    let caller = Caller {
        protocol,
        ..Caller::none()
    };
    Context::new(Module::new("test.so".to_owned()), caller)
}

#[test]
fn postponed_lengths_may_be_nested() {
    for (protocol, expected) in [
        (
            Protocol::Resp2,
            b"*2\r\n*2\r\n:1\r\n*2\r\n:2\r\n:3\r\n*0\r\n".as_slice(),
        ),
        (Protocol::Resp3, b"*2\r\n%1\r\n:1\r\n~2\r\n:2\r\n:3\r\n*0\r\n"),
    ] {
        let context = context(protocol);
        context.begin_collection(Collection::Array, None);
        context.begin_collection(Collection::Map, None);
        context.write_reply(|reply| reply.integer(1));
        context.begin_collection(Collection::Set, None);
        context.write_reply(|reply| reply.integer(2));
        context.write_reply(|reply| reply.integer(3));
        context.end_collection(Collection::Set, 2);
        context.end_collection(Collection::Map, 1);
        context.begin_collection(Collection::Array, Some(0));
        context.end_collection(Collection::Array, 2);
        context.end_collection(Collection::Array, 9);
        assert_eq!(context.take_reply().bytes, expected);
    }
}

#[test]
fn unset_lengths_leave_no_trace_in_the_next_reply() {
    let context = context(Protocol::Resp3);
    context.begin_collection(Collection::Attribute, None);
    context.write_reply(|reply| reply.null());
    assert_eq!(context.take_reply().bytes, b"_\r\n");
    context.end_collection(Collection::Attribute, 1);
    assert_eq!(context.take_reply().bytes, b"");
}

#[test]
fn codes_of_errors_are_counted() {
    let context = context(Protocol::Resp2);
    context.reply_with_error(b"WRONGTYPE not this\r\ntype\r\n", false, true);
    context.reply_with_error(b"alone", true, false);
    let long = [&[b'x'; 31], b" text".as_slice()].concat();
    context.reply_with_error(&long, true, true);
    assert_eq!(context.reply_with_proto(b"-CODE text\r\n", false), OK);
    assert_eq!(context.reply_with_proto(b"_\r\n", true), ERR);
    let reply = context.take_reply();
    assert!(reply.bytes.starts_with(b"-WRONGTYPE not this  type\r\n-alone\r\n"));
    let codes: Vec<&[u8]> = reply.errors.iter().map(|error| &*error.code).collect();
    assert_eq!(codes, [b"WRONGTYPE".as_slice(), b"ERR", b"ERR", b"CODE"]);
    assert!(reply.errors[1].is_custom && !reply.errors[1].is_counted);
    assert_eq!(ReplyError::new(b"A b", false, true).code.as_ref(), b"A");
}

#[test]
fn nothing_is_kept_for_nobody() {
    let context = context(Protocol::Resp2);
    context.reply_state.discard();
    context.begin_collection(Collection::Array, None);
    context.reply_with_error(b"ERR text", false, true);
    context.end_collection(Collection::Array, 1);
    assert_eq!(context.reply_with_proto(b"_\r\n", true), OK);
    let reply = context.take_reply();
    assert!(reply.bytes.is_empty() && reply.errors.is_empty());
}
