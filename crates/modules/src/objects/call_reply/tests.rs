//! Replies of calls: their elements, and who frees them.

use super::*;

fn reply(bytes: &[u8]) -> CallReply {
    CallReply::new(bytes.to_vec(), false)
}

#[test]
fn scalars_have_their_types_and_values() {
    assert_eq!(reply(b"$3\r\nfoo\r\n").text(), Some(&b"foo"[..]));
    assert_eq!(reply(b"$0\r\n\r\n").text(), Some(&b""[..]));
    assert_eq!(reply(b"+OK\r\n").reply_type(), ReplyType::String);
    assert_eq!(reply(b"-ERR no\r\n").text(), Some(&b"ERR no"[..]));
    assert_eq!(reply(b"-ERR no\r\n").length(), 6);
    assert_eq!(reply(b":-12\r\n").integer(), Some(-12));
    assert_eq!(reply(b":-12\r\n").text(), None);
    assert_eq!(reply(b"_\r\n").reply_type(), ReplyType::Null);
    assert_eq!(reply(b"$-1\r\n").reply_type(), ReplyType::Null);
    assert_eq!(reply(b"*-1\r\n").reply_type(), ReplyType::Null);
    assert_eq!(reply(b"#t\r\n").boolean(), Some(true));
    assert_eq!(reply(b"#f\r\n").boolean(), Some(false));
    assert_eq!(reply(b",3.5\r\n").double(), Some(3.5));
    assert_eq!(reply(b",-inf\r\n").double(), Some(f64::NEG_INFINITY));
    assert!(reply(b",nan\r\n").double().is_some_and(f64::is_nan));
    assert_eq!(
        reply(b"(1234567999999999999999999999999999999\r\n").big_number(),
        Some(&b"1234567999999999999999999999999999999"[..])
    );
    let verbatim = reply(b"=8\r\ntxt:some\r\n");
    assert_eq!(verbatim.verbatim(), Some((&b"txt:some"[..], &b"some"[..])));
    assert_eq!(verbatim.length(), 0);
}

#[test]
fn exact_types_tell_strings_and_nulls_apart() {
    let exact = |bytes: &[u8]| CallReply::new(bytes.to_vec(), true).reply_type();
    assert_eq!(exact(b"+OK\r\n"), ReplyType::SimpleString);
    assert_eq!(exact(b"$2\r\nOK\r\n"), ReplyType::String);
    assert_eq!(exact(b"*-1\r\n"), ReplyType::NullArray);
    assert_eq!(exact(b"$-1\r\n"), ReplyType::Null);
    // Only the reply itself, as in Valkey.
    let nested = CallReply::new(b"*2\r\n+OK\r\n*-1\r\n".to_vec(), true);
    let types = [0, 1].map(|index| nested.array_element(index).map(CallReply::reply_type));
    assert_eq!(types, [Some(ReplyType::String), Some(ReplyType::Null)]);
    let described = CallReply::new(b"|1\r\n+k\r\n+v\r\n+OK\r\n".to_vec(), true);
    assert_eq!(described.reply_type(), ReplyType::SimpleString);
    assert_eq!(CallReply::new(b"+OK\r\n".to_vec(), true).length(), 0);
}

#[test]
fn nested_replies_have_their_part_of_the_bytes() {
    let reply = reply(b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n+b\r\n%1\r\n+k\r\n#t\r\n");
    assert_eq!(reply.proto().len(), 35);
    assert_eq!(reply.length(), 3);
    assert!(reply.is_known_as_resp3());
    let inner = reply.array_element(1).expect("the second element");
    assert_eq!(inner.proto(), b"*2\r\n$1\r\na\r\n+b\r\n");
    assert!(!inner.is_known_as_resp3());
    assert_eq!(inner.array_element(1).and_then(CallReply::text), Some(&b"b"[..]));
    assert!(inner.array_element(2).is_none() && inner.set_element(0).is_none());
    let map = reply.array_element(2).expect("the third element");
    let (key, value) = map.map_element(0).expect("the first pair");
    assert_eq!((key.text(), value.boolean()), (Some(&b"k"[..]), Some(true)));
    assert!(map.map_element(1).is_none() && map.map_element(usize::MAX).is_none());
}

#[test]
fn a_reply_is_not_known_as_resp3_before_it_is_looked_at() {
    let reply = reply(b"_\r\n");
    assert!(!reply.is_known_as_resp3());
    assert_eq!(reply.reply_type(), ReplyType::Null);
    assert!(reply.is_known_as_resp3());
}

#[test]
fn attributes_belong_to_the_reply_behind_them() {
    let bytes = b"|1\r\n$3\r\nttl\r\n:36\r\n$4\r\nreal\r\n";
    let reply = reply(bytes);
    assert_eq!(reply.text(), Some(&b"real"[..]));
    assert_eq!(reply.proto(), bytes);
    let attribute = reply.attribute().expect("attributes");
    assert_eq!((attribute.reply_type(), attribute.length()), (ReplyType::Attribute, 1));
    assert_eq!(attribute.proto(), &bytes[..18]);
    let (name, value) = attribute.attribute_element(0).expect("the first attribute");
    assert_eq!((name.text(), value.integer()), (Some(&b"ttl"[..]), Some(36)));
    assert!(attribute.map_element(0).is_none());
}

#[test]
fn what_is_no_reply_is_unknown() {
    for bytes in [
        &b""[..],
        b"?1\r\n",
        b"$5\r\nab\r\n",
        b"*2\r\n:1\r\n",
        b":x\r\n",
        b"*-2\r\n",
        b"=2\r\nab\r\n",
        b"*9223372036854775807\r\n",
        b"+OK",
        b"+OK\r",
    ] {
        assert_eq!(reply(bytes).reply_type(), ReplyType::Unknown, "{bytes:?}");
    }
}

#[test]
fn freeing_a_nested_reply_has_no_effect() {
    let root = reply(b"*1\r\n:7\r\n").into_pointer(None);
    // SAFETY: the root was just created, and is freed last.
    unsafe {
        let nested = std::ptr::from_ref((*root).array_element(0).expect("an element")).cast_mut();
        CallReply::free_by_module(nested);
        assert_eq!((*nested).integer(), Some(7));
        CallReply::free_by_module(root);
    }
}
