//! Tests of loads and mixtures.

use super::*;

fn subject() -> LoadParameters {
    LoadParameters {
        order: KeyOrder::Uniform { keys: 1000 },
        value_size: 32,
        expire_s: None,
        verify_every: 1,
    }
}

#[test]
fn every_load_can_be_sent_and_filled() {
    for load in LOADS {
        Workload::from_name(load.name, &subject()).expect(load.name);
        if !load.fill.is_empty() {
            Workload::from_command(load.fill, "any", &subject()).expect(load.name);
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
fn a_mixture_follows_its_weights() {
    let workload = Workload::from_name("mixed", &subject()).expect("mixed");
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
    let workload = Workload::from_name("get:1,set:1", &subject()).expect("a mixture");
    let values = ValuePool::new(32);
    for index in 0..1000 {
        let mut request = Vec::new();
        workload.append_request(9, index, &mut request);
        let is_set = request.starts_with(b"*3");
        let name = String::from_utf8(request).expect("text");
        let id: u64 = name.split("key:").nth(1).expect("a key")[..12].parse().expect("digits");
        let value = [b"$32\r\n", values.value(id), b"\r\n"].concat();
        let other = [b"$32\r\n", values.value(id + 1), b"\r\n"].concat();
        let check = |reply: &[u8]| workload.check_reply(9, index, reply, &mut ReplyScanner::default());
        assert_eq!(check(b"+OK\r\n").is_ok(), is_set);
        assert_eq!(check(&value).is_ok(), !is_set);
        assert!(check(&other).is_err());
    }
}

#[test]
fn bad_mixtures_are_refused() {
    for text in ["", "nothing", "get:0", "get:x", "get:80,,set:20"] {
        assert!(Workload::from_name(text, &subject()).is_err(), "{text:?} was accepted");
    }
    assert!(Workload::from_command("PING", "value", &subject()).is_err());
    assert!(Workload::from_command("MGET {keys:3}", "values:4", &subject()).is_err());
}
