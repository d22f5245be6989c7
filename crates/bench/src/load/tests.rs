//! Tests of loads and mixtures.

use super::*;

fn subject() -> Subject {
    Subject {
        order: KeyOrder::Uniform { keys: 1000 },
        value_size: 32,
        expire_s: None,
        verify_every: 1,
    }
}

#[test]
fn every_load_can_be_sent_and_filled() {
    for load in LOADS {
        Workload::named(load.name, &subject()).expect(load.name);
        if !load.fill.is_empty() {
            Workload::command(load.fill, "any", &subject()).expect(load.name);
        }
    }
}

#[test]
fn load_names_are_unique() {
    for (position, load) in LOADS.iter().enumerate() {
        assert!(
            LOADS[..position].iter().all(|other| other.name != load.name),
            "{}",
            load.name
        );
    }
}

#[test]
fn a_mixture_has_its_weights() {
    let workload = Workload::named("mixed", &subject()).expect("mixed");
    let mut sets = 0;
    for index in 0..10_000 {
        let mut request = Vec::new();
        workload.append_request(9, index, &mut request);
        sets += u32::from(request.starts_with(b"*3\r\n$3\r\nSET"));
    }
    // 2000 are expected with a standard deviation of 40.
    assert!((1800..2200).contains(&sets), "{sets} of 10000 requests are SETs");
}

#[test]
fn each_reply_of_a_mixture_is_checked_against_its_own_request() {
    let workload = Workload::named("get:1,set:1", &subject()).expect("a mixture");
    let values = Values::new(32);
    for index in 0..1000 {
        let mut request = Vec::new();
        workload.append_request(9, index, &mut request);
        let is_set = request.starts_with(b"*3");
        let name = String::from_utf8(request).expect("text");
        let id: u64 = name.split("key:").nth(1).expect("a key")[..12].parse().expect("digits");
        let value = [b"$32\r\n", values.of(id), b"\r\n"].concat();
        let other = [b"$32\r\n", values.of(id + 1), b"\r\n"].concat();
        let check = |reply: &[u8]| workload.check_reply(9, index, reply, &mut Scanner::default());
        assert_eq!(check(b"+OK\r\n").is_ok(), is_set);
        assert_eq!(check(&value).is_ok(), !is_set);
        assert!(check(&other).is_err());
    }
}

#[test]
fn bad_mixtures_are_refused() {
    for text in ["", "nothing", "get:0", "get:x", "get:80,,set:20"] {
        assert!(Workload::named(text, &subject()).is_err(), "{text:?} was accepted");
    }
    assert!(Workload::command("PING", "value", &subject()).is_err());
    assert!(Workload::command("MGET {keys:3}", "values:4", &subject()).is_err());
}
