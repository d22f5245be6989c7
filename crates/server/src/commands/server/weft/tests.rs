//! Tests of the replies of WEFT HOTKEYS GET and WEFT BIGKEYS GET.

use std::time::Duration;

use weft_base::DbIndex;
use weft_resp::Protocol;

use super::*;
use crate::observability::big_keys::BigKeys;

/// Returns a reply with a space instead of each end of a line, and without the lengths of strings.
fn text(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>)) -> String {
    let reply = String::from_utf8(build_reply(protocol, write)).expect("text");
    let lines = reply.lines().filter(|line| !line.starts_with('$'));
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn hot_keys_are_maps_with_their_shares() {
    let report = HotKeyReport {
        is_active: true,
        ratio: 64,
        started_ms: 1000,
        duration_ms: 30,
        samples: 3,
        id: 9,
        keys: vec![HotKey {
            db: DbIndex::new(2),
            name: b"key".to_vec(),
            name_bytes: 3,
            uses: 128,
            error: 64,
            share: 2.0 / 3.0,
            write_share: 0.0,
            time_share: 0.5,
        }],
    };
    let of = |protocol| text(protocol, |reply| write_hot_keys(reply, &report));
    let head = "state on sample-ratio :64 started-ms :1000 duration-ms :30 samples :3 id :9 keys *1";
    let key = "database :2 key key key-length :3 uses :128 error :64";
    let shares = |number: fn(&str) -> String| {
        let [share, writes, time] = ["0.6667", "0", "0.5"].map(number);
        format!("share {share} write-share {writes} time-share {time}")
    };
    let second = shares(str::to_owned);
    let third = shares(|number| format!(",{number}"));
    assert_eq!(of(Protocol::Resp2), format!("*14 {head} *16 {key} {second}"));
    assert_eq!(of(Protocol::Resp3), format!("%7 {head} %8 {key} {third}"));
    let off = text(Protocol::Resp3, |reply| write_hot_keys(reply, &HotKeyReport::default()));
    assert_eq!(
        off,
        "%7 state off sample-ratio :0 started-ms :0 duration-ms :0 samples :0 id :0 keys *0"
    );
}

#[test]
fn big_keys_are_listed_by_type() {
    let big_keys = BigKeys::default();
    let none = text(Protocol::Resp3, |reply| write_big_keys(reply, &big_keys.report(0)));
    assert!(
        none.starts_with("%9 state none started-ms :0 duration-ms :0 "),
        "{none}"
    );
    assert!(big_keys.start(5, 5, 100, 0) && big_keys.take_step_turn());
    let mut step = big_keys.begin_step(Duration::ZERO).expect("it runs");
    for bytes in [500, 700] {
        assert!(step.count(4, bytes));
        step.add(4, DbIndex::new(1), format!("h{bytes}").as_bytes(), bytes, 9);
    }
    big_keys.end_step(step, 100);
    let report = big_keys.report(160);
    let running = text(Protocol::Resp3, |reply| write_big_keys(reply, &report));
    let head = "%9 state running started-ms :100 duration-ms :60 complete-scans :0 skipped-slots :0 keys :2 \
                bytes :1200 id :0 ";
    assert!(running.starts_with(head), "{running}");
    let key = |bytes: u64| format!("%5 database :1 key h{bytes} key-length :4 bytes :{bytes} elements :9");
    let hashes = format!(
        "%4 type hash keys :2 bytes :1200 biggest *2 {} {} %4 type stream keys :0 bytes :0 biggest *0",
        key(700),
        key(500)
    );
    assert!(running.ends_with(&hashes), "{running}");
    let flat = text(Protocol::Resp2, |reply| write_big_keys(reply, &report));
    assert!(
        flat.starts_with("*18 state running") && flat.contains("*8 type hash"),
        "{flat}"
    );
}
