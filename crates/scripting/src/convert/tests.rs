//! Tests which replies are also the replies of scripts that return their values.

use mlua::{Lua, LuaOptions, StdLib};
use weft_resp::{Protocol, Reply};

use super::{is_reply_of_its_value, value_of, write_reply};
use crate::run_checks::{RunChecks, WorkMeter};

/// Returns the reply of a script that returns the value of this reply.
fn reply_of_value(reply: &[u8], protocol: Protocol) -> Vec<u8> {
    let lua = Lua::new_with(StdLib::STRING, LuaOptions::new()).expect("there is memory");
    let checks = RunChecks::default();
    let value = value_of(&lua, reply).expect("there is memory");
    let mut out = Vec::new();
    let mut writer = Reply::new(&mut out, protocol);
    let meter = WorkMeter::new(&lua, &checks);
    write_reply(&value, Protocol::Resp2, usize::MAX, meter, &mut writer).expect("nothing stops it");
    out
}

#[test]
fn strings_small_integers_and_plain_statuses_stay_as_they_are() {
    let replies: [&[u8]; 9] = [
        b"$3\r\na\0b\r\n",
        b"$0\r\n\r\n",
        b"$10\r\n0123456789\r\n",
        b":0\r\n",
        b":-7\r\n",
        b":999999999999999\r\n",
        b":-99999999999999\r\n",
        b"+OK\r\n",
        b"+\r\n",
    ];
    for reply in replies {
        assert!(is_reply_of_its_value(reply), "{}", String::from_utf8_lossy(reply));
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            assert_eq!(reply_of_value(reply, protocol), reply);
        }
    }
}

#[test]
fn what_a_value_does_not_keep_is_converted() {
    let changed: [(&[u8], &[u8]); 5] = [
        (b":9007199254740993\r\n", b":9007199254740992\r\n"),
        (b"*-1\r\n", b"$-1\r\n"),
        (b"+a\0b\r\n", b"+a\r\n"),
        (b"+a\nb\r\n", b"+a b\r\n"),
        (b"#t\r\n", b":1\r\n"),
    ];
    for (reply, written) in changed {
        assert!(!is_reply_of_its_value(reply), "{}", String::from_utf8_lossy(reply));
        assert_eq!(reply_of_value(reply, Protocol::Resp2), written);
    }
    for reply in [
        &b""[..],
        b"$",
        b"$-1\r\n",
        b"_\r\n",
        b"*0\r\n",
        b",1.5\r\n",
        b"%0\r\n",
        b"-ERR no\r\n",
    ] {
        assert!(!is_reply_of_its_value(reply), "{}", String::from_utf8_lossy(reply));
    }
}
