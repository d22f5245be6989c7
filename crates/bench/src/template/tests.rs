//! Tests of template encoding.

use super::*;
use crate::draw::KeyOrder;

fn request(text: &str, value_size: usize, expire_s: Option<u64>) -> String {
    let values = ValuePool::new(value_size);
    let template = Template::parse(text, &values, expire_s).expect(text);
    let order = KeyOrder::Sequential;
    let mut out = Vec::new();
    template.append(&mut RequestDraw::new(&order, 40, 2), &values, &mut out);
    String::from_utf8(out).expect("requests here are text")
}

#[test]
fn commands_are_encoded_as_resp_arrays() {
    let value = String::from_utf8(ValuePool::new(8).value(42).to_vec()).expect("values are text");
    let item = |id, number| String::from_utf8(ValuePool::new(8).item(id, number).to_vec()).expect("values are text");
    let name = |id, number| {
        let mut name = Vec::new();
        ValuePool::new(8).append_name(id, number, &mut name);
        String::from_utf8(name).expect("names are text")
    };
    let cases = [
        ("PING", None, "*1\r\n$4\r\nPING\r\n".to_string()),
        (
            "GET {key}",
            None,
            "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n".to_string(),
        ),
        (
            "SET {key} {value} {expire}",
            None,
            format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$8\r\n{value}\r\n"),
        ),
        (
            "SET {key} {value} {expire}",
            Some(90),
            format!("*5\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$8\r\n{value}\r\n$2\r\nEX\r\n$2\r\n90\r\n"),
        ),
        (
            "INCR c:{id}:x",
            None,
            "*2\r\n$4\r\nINCR\r\n$16\r\nc:000000000042:x\r\n".to_string(),
        ),
        (
            "LINDEX l {number:1}",
            None,
            "*3\r\n$6\r\nLINDEX\r\n$1\r\nl\r\n$1\r\n0\r\n".to_string(),
        ),
        (
            "HGET h {field:1}",
            None,
            "*3\r\n$4\r\nHGET\r\n$1\r\nh\r\n$12\r\nfield:000000\r\n".to_string(),
        ),
        (
            "LSET l:{id} {number:1} {item}",
            None,
            format!(
                "*4\r\n$4\r\nLSET\r\n$14\r\nl:000000000042\r\n$1\r\n0\r\n$8\r\n{}\r\n",
                item(42, 0)
            ),
        ),
        (
            "SADD s {names:2}",
            None,
            format!(
                "*4\r\n$4\r\nSADD\r\n$1\r\ns\r\n$8\r\n{}\r\n$8\r\n{}\r\n",
                name(0, 0),
                name(0, 1)
            ),
        ),
        (
            "SREM s:{id} {name:1}",
            None,
            format!("*3\r\n$4\r\nSREM\r\n$14\r\ns:000000000042\r\n$8\r\n{}\r\n", name(42, 0)),
        ),
        (
            "SADD s {idname}",
            None,
            format!("*3\r\n$4\r\nSADD\r\n$1\r\ns\r\n$8\r\n{}\r\n", name(0, 42)),
        ),
        (
            "ZADD z {scored:1}",
            None,
            format!("*4\r\n$4\r\nZADD\r\n$1\r\nz\r\n$1\r\n0\r\n$8\r\n{}\r\n", name(0, 0)),
        ),
        (
            "ZADD z {scored-id}",
            None,
            format!(
                "*4\r\n$4\r\nZADD\r\n$1\r\nz\r\n$12\r\n000000000042\r\n$8\r\n{}\r\n",
                name(0, 42)
            ),
        ),
        (
            "RPUSH l:{id} {values:1}",
            None,
            format!(
                "*3\r\n$5\r\nRPUSH\r\n$14\r\nl:000000000042\r\n$8\r\n{}\r\n",
                item(42, 0)
            ),
        ),
        (
            "HSET h {fields:2}",
            None,
            format!(
                "*6\r\n$4\r\nHSET\r\n$1\r\nh\r\n$12\r\nfield:000000\r\n$8\r\n{}\r\n$12\r\nfield:000001\r\n$8\r\n{}\r\n",
                item(0, 0),
                item(0, 1)
            ),
        ),
        (
            "X {key} hash:{same-id}",
            None,
            "*3\r\n$1\r\nX\r\n$16\r\nkey:000000000042\r\n$17\r\nhash:000000000042\r\n".to_string(),
        ),
        (
            "SET {new-key} {value}",
            None,
            format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$8\r\n{value}\r\n"),
        ),
        (
            "SADD s {shared:3-5}",
            None,
            format!(
                "*4\r\n$4\r\nSADD\r\n$1\r\ns\r\n$8\r\n{}\r\n$8\r\n{}\r\n",
                name(0, 3),
                name(0, 4)
            ),
        ),
        (
            "EVALSHA {sha:get} 0",
            None,
            format!(
                "*3\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n0\r\n",
                scripts::sha1_hex(b"return redis.call('GET', KEYS[1])")
            ),
        ),
        (
            "EVAL {script:get} 0",
            None,
            "*3\r\n$4\r\nEVAL\r\n$33\r\nreturn redis.call('GET', KEYS[1])\r\n$1\r\n0\r\n".to_string(),
        ),
        (
            "XACK s {entries:2}",
            None,
            "*4\r\n$4\r\nXACK\r\n$1\r\ns\r\n$3\r\n1-1\r\n$3\r\n2-1\r\n".to_string(),
        ),
    ];
    for (text, expire_s, expected) in cases {
        assert_eq!(request(text, 8, expire_s), expected, "{text}");
    }
}

#[test]
fn the_reply_side_draws_the_same_keys_as_the_request_side() {
    let values = ValuePool::new(16);
    let order = KeyOrder::Uniform { keys: 3_000_000 };
    for text in [
        "MGET {keys:100}",
        "MSET {pairs:100}",
        "X {number:7} {key} {field:9} {key}",
    ] {
        let template = Template::parse(text, &values, None).expect(text);
        let mut out = Vec::new();
        template.append(&mut RequestDraw::new(&order, 5, 6), &values, &mut out);
        let sent = String::from_utf8(out).expect("requests here are text");
        let ids = template.replay_draws(&mut RequestDraw::new(&order, 5, 6)).ids;
        assert_eq!(ids.len(), template.keys());
        let mut rest = sent.as_str();
        for id in ids {
            let name = format!("key:{id:012}\r\n");
            let found = rest.find(&name).unwrap_or_else(|| panic!("{name} is not in {text}"));
            rest = &rest[found + name.len()..];
        }
        assert!(
            !rest.contains("key:"),
            "{text} names a key that the reply side does not know"
        );
    }
}

#[test]
fn sized_values_have_every_length_of_their_range() {
    let values = ValuePool::new(8);
    let template = Template::parse("SET {key} {value:16-20}", &values, None).expect("valid");
    let order = KeyOrder::Uniform { keys: 100 };
    let mut seen = [false; 5];
    for index in 0..1000 {
        let mut out = Vec::new();
        template.append(&mut RequestDraw::new(&order, 5, index), &values, &mut out);
        let drawn = template.replay_draws(&mut RequestDraw::new(&order, 5, index));
        let value = values.prefix(drawn.ids[0], drawn.number as usize);
        let end = [format!("${}\r\n", drawn.number).as_bytes(), value, b"\r\n"].concat();
        assert!(out.ends_with(&end), "{}", out.escape_ascii());
        seen[drawn.number as usize - 16] = true;
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn shuffled_names_are_all_names_in_another_order() {
    let values = ValuePool::new(8);
    let template = Template::parse("RPUSH l:{id} {shuffled:300}", &values, None).expect("valid");
    let mut numbers: Vec<u64> = template
        .pieces
        .iter()
        .filter_map(|piece| match piece {
            TemplatePiece::NameAt(number) => Some(*number),
            _ => None,
        })
        .collect();
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..300));
}

#[test]
fn new_keys_differ_between_requests() {
    let values = ValuePool::new(8);
    let template = Template::parse("SET {new-key} {value}", &values, None).expect("valid");
    assert!(template.has_new_keys() && template.keys() == 1);
    let order = KeyOrder::Uniform { keys: 3 };
    let ids: Vec<u64> = (0..4)
        .flat_map(|index| template.replay_draws(&mut RequestDraw::new(&order, 100, index)).ids)
        .collect();
    assert_eq!(ids, [100, 101, 102, 103]);
}

#[test]
fn invalid_commands_are_refused() {
    let values = ValuePool::new(8);
    for text in [
        "",
        "SET {value}",
        "GET {nokey}",
        "GET {keys:0}",
        "GET {keys:x}",
        "GET {key",
        "GET x{keys:3}",
        "SADD s {member:3}",
        "GET hash:{same-id}",
        "SET x {value:1-2}",
        "SET {key} {value:9-8}",
        "SET {key} {value:1-65537}",
        "SET {key} x{value:1-2}",
        "SADD s {shared:5}",
        "EVAL {script:none} 0",
        "EVALSHA {sha:none} 0",
    ] {
        assert!(Template::parse(text, &values, None).is_err(), "{text:?} was accepted");
    }
    let too_short = ValuePool::new(NAME_BYTES - 1);
    assert!(Template::parse("SADD s {idname}", &too_short, None).is_err());
}

#[test]
fn turns_cycle_through_the_stream() {
    assert_eq!(requests_per_cycle(10), 201);
    let cases = [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 10),
        (4, 10),
        (199, 990),
        (200, 990),
        (201, 0),
        (202, 0),
        (204, 10),
    ];
    for (index, first) in cases {
        assert_eq!(first_entry(index, 10), first, "request {index}");
    }
}
