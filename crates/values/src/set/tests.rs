//! Tests of sets against a naive model, and of the rules for changing their form.

use std::collections::{BTreeSet, HashMap};

use super::*;

const LIMITS: SetLimits = SetLimits {
    integers: 8,
    run_members: 5,
    run_member_bytes: 10,
};

fn set_of(members: &[&str], limits: SetLimits) -> Set {
    let mut set = Set::for_first_member(members[0].as_bytes(), members.len(), limits, Vec::new());
    for member in members {
        set.add(member.as_bytes(), limits);
    }
    set
}

fn members_of(set: &Set) -> Vec<String> {
    let text = |member: Element<'_>| String::from_utf8(member.to_vec()).unwrap();
    set.view().iter().map(text).collect()
}

#[test]
fn forms_follow_from_members_and_their_number() {
    let cases: &[(&[&str], &str)] = &[
        (&["1", "-5", "9223372036854775807"], "intset"),
        (&["1", "2", "3", "4", "5", "6", "7", "8"], "intset"),
        (&["1", "2", "3", "4", "5", "6", "7", "8", "9"], "hashtable"),
        (&["a", "b", "c", "d", "e"], "listpack"),
        (&["a", "b", "c", "d", "e", "f"], "hashtable"),
        (&["01"], "listpack"),
        (&["-0"], "listpack"),
        (&["9223372036854775808"], "hashtable"),
        (&["0123456789"], "listpack"),
        (&["0123456789x"], "hashtable"),
        (&["1", "2", "x"], "listpack"),
        (&["1", "2", "3", "4", "5", "x"], "hashtable"),
        (&["12345678901", "x"], "hashtable"),
        (&["1234567890", "x"], "listpack"),
        (&["-123456789", "x"], "listpack"),
        (&["-1234567890", "x"], "hashtable"),
        (&["x", "12345678901"], "hashtable"),
        (&["a", "a", "a", "a", "a", "a"], "hashtable"),
        (&["1", "1", "1", "1", "1", "1", "1", "1", "1"], "hashtable"),
    ];
    for (members, encoding) in cases {
        assert_eq!(set_of(members, LIMITS).encoding_name(), *encoding, "{members:?}");
    }
}

#[test]
fn flat_sets_have_an_order() {
    assert_eq!(
        members_of(&set_of(&["9", "-1", "70000", "3"], LIMITS)),
        ["-1", "3", "9", "70000"]
    );
    assert_eq!(
        members_of(&set_of(&["z", "4", "a", "-1"], LIMITS)),
        ["z", "4", "a", "-1"]
    );
    assert_eq!(members_of(&set_of(&["9", "3", "a", "1"], LIMITS)), ["3", "9", "a", "1"]);
}

#[test]
fn preparing_for_many_members_creates_a_table() {
    for (first, more, encoding) in [
        ("1", 8, "intset"),
        ("1", 9, "hashtable"),
        ("a", 5, "listpack"),
        ("a", 6, "hashtable"),
    ] {
        let mut set = set_of(&[first], LIMITS);
        set.prepare_for_members(more, LIMITS);
        assert_eq!(set.encoding_name(), encoding, "{first} and {more} more");
        assert_eq!(members_of(&set), [first]);
    }
}

#[test]
fn integers_are_preferred_where_they_fit() {
    for (members, encoding) in [
        (&["1", "x"][..], "listpack"),
        (&["-1", "5", "x0123456789"], "intset"),
        (&["-1", "5", "x0123456789", "a"], "hashtable"),
        (
            &["x0123456789", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
            "hashtable",
        ),
    ] {
        let mut set = set_of(members, LIMITS);
        set.remove(b"x0123456789");
        set.convert_to_integers_if_possible(LIMITS);
        assert_eq!(set.encoding_name(), encoding, "{members:?}");
    }
}

#[test]
fn packed_sets_survive_the_round_trip() {
    for members in [&["5", "-70000"][..], &["a", "5", ""], &["x"]] {
        let set = set_of(members, LIMITS);
        let packed = set.packed().map(<[u8]>::to_vec).expect("it is small");
        let kind = PackedKind::of(&packed);
        assert_eq!(kind.encoding_name(), set.encoding_name());
        assert_eq!(members_of(&Set::from_packed(packed)), members_of(&set));
    }
    let large = SetLimits {
        integers: 10_000,
        ..LIMITS
    };
    let mut set = Set::new_integers();
    for number in 0..10_000 {
        set.add_element(Element::Int(number), large);
        let bytes = 2 + 2 * (number as usize + 1);
        assert_eq!(
            set.packed().is_some(),
            bytes <= packed::MAX_PACKED_BYTES,
            "{bytes} bytes"
        );
    }
    assert_eq!((set.len(), set.encoding_name()), (10_000, "intset"));
    assert!(set.allocated_bytes() <= 20_002 * 5 / 4, "memory to spare is bounded");
}

#[test]
fn external_runs_are_normalized() {
    // The string 12 is stored as a string, which no set in this module does.
    let run = [0x82, b'1', b'2', 3, 0x81, b'a', 2];
    let set = Set::from_external_run(ElementRun::new(&run), LIMITS).unwrap();
    assert_eq!(members_of(&set), ["12", "a"]);
    assert!(set.view().contains(b"12") && set.view().contains_element(Element::Int(12)));
    let twice = [0x82, b'1', b'2', 3, 12, 1];
    assert!(Set::from_external_run(ElementRun::new(&twice), LIMITS).is_none());
    let mut run = Vec::new();
    (0..6).for_each(|number| listpack::push_int(&mut run, number));
    let set = Set::from_external_run(ElementRun::new(&run), LIMITS).unwrap();
    assert_eq!((set.len(), set.encoding_name()), (6, "hashtable"));
}

fn random_member(random: &mut fastrand::Rng, words: bool) -> Vec<u8> {
    match random.u8(..8) {
        0..5 => random.i32(-20..60).to_string().into_bytes(),
        5 => random.i64(..).to_string().into_bytes(),
        _ if !words => random.i32(-70_000..70_000).to_string().into_bytes(),
        6 => format!("{}{}", random.alphabetic(), random.u8(..30)).into_bytes(),
        _ => vec![random.u8(..4); random.usize(..200)],
    }
}

#[test]
fn random_changes_agree_with_an_ordered_set() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let large = SetLimits {
        integers: 512,
        run_members: 128,
        run_member_bytes: 64,
    };
    for round in 0..60 {
        let limits = if round % 2 == 0 { LIMITS } else { large };
        let words = round % 3 > 0;
        let mut set = Set::for_first_member(&random_member(&mut random, words), 1, limits, Vec::new());
        let mut model = BTreeSet::new();
        for _ in 0..400 {
            let member = random_member(&mut random, words);
            match random.u8(..5) {
                0..3 => assert_eq!(set.add(&member, limits), model.insert(member)),
                3 => assert_eq!(set.remove(&member), model.remove(&member)),
                _ => {
                    let element = Element::of(&member);
                    assert_eq!(set.view().contains_element(element), model.contains(&member));
                    assert_eq!(set.remove_element(element), model.remove(&member));
                }
            }
            let probe = random_member(&mut random, words);
            assert_eq!(set.view().contains(&probe), model.contains(&probe));
            assert_eq!(set.len(), model.len());
        }
        let members: BTreeSet<Vec<u8>> = set.view().iter().map(Element::to_vec).collect();
        assert_eq!(members, model);
        assert!(set.view().max_text_bytes() >= model.iter().map(Vec::len).sum());
        let mut scanned = BTreeSet::new();
        let mut cursor = 0;
        loop {
            cursor = set.view().scan(cursor, 3, |member| {
                scanned.insert(member.to_vec());
            });
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(scanned, model);
    }
}

/// Returns sets of ten members in each form, with limits under which they have it.
fn sets_of_ten() -> [(Set, SetLimits); 3] {
    let numbers: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let words: Vec<String> = (0..10).map(|number| format!("w{number}")).collect();
    let (numbers, words): (Vec<&str>, Vec<&str>) = (
        numbers.iter().map(String::as_str).collect(),
        words.iter().map(String::as_str).collect(),
    );
    let roomy = SetLimits {
        integers: 20,
        run_members: 20,
        run_member_bytes: 20,
    };
    [
        (set_of(&numbers, roomy), roomy),
        (set_of(&words, roomy), roomy),
        (set_of(&words, LIMITS), LIMITS),
    ]
}

/// Fails unless all outcomes occurred about equally often, that is, within six standard deviations.
fn assert_uniform<K: std::fmt::Debug>(counts: &HashMap<K, usize>, outcomes: usize, what: &str) {
    let draws: usize = counts.values().sum();
    let mean = draws as f64 / outcomes as f64;
    assert_eq!(counts.len(), outcomes, "{what}: {counts:?}");
    for (outcome, count) in counts {
        let deviation = (*count as f64 - mean).abs() / mean.sqrt();
        assert!(deviation < 6.0, "{what}: {outcome:?} came up {count} times of {draws}");
    }
}

#[test]
fn all_random_selections_are_equally_likely() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut random = move |bound| rng.usize(..bound);
    for (set, limits) in sets_of_ten() {
        let form = set.encoding_name();
        let view = set.view();
        let (mut single, mut drawn, mut pairs, mut popped) =
            <(HashMap<_, _>, HashMap<_, _>, HashMap<_, _>, HashMap<_, _>)>::default();
        let mut left = HashMap::new();
        for _ in 0..20_000 {
            let member = view.random_member(&mut random).map(Element::to_vec);
            *single.entry(member).or_default() += 1;
            view.random_repeated(3, &mut random, |member| *drawn.entry(member.to_vec()).or_default() += 1);
            let mut pair = BTreeSet::new();
            view.random_distinct(2, &mut random, |member| {
                pair.insert(member.to_vec());
            });
            *pairs.entry(pair).or_default() += 1;
            let mut copy = set.clone();
            copy.pop(&mut random, |member| *popped.entry(member.to_vec()).or_default() += 1);
            copy.pop_many(7, limits, &mut random, |_| {});
            let rest: BTreeSet<_> = copy.view().iter().map(Element::to_vec).collect();
            *left.entry(rest).or_default() += 1;
        }
        assert_uniform(&single, 10, &format!("a member of {form}"));
        assert_uniform(&drawn, 10, &format!("three draws of {form}"));
        assert_uniform(&pairs, 45, &format!("two distinct members of {form}"));
        assert_uniform(&popped, 10, &format!("a member popped of {form}"));
        assert_uniform(&left, 45, &format!("two members left of {form}"));
    }
}

#[test]
fn distinct_members_are_distinct_and_popped_ones_are_gone() {
    let mut random = |bound| fastrand::usize(..bound);
    for (set, limits) in sets_of_ten() {
        for count in 0..=12 {
            let mut chosen = BTreeSet::new();
            let mut visits = 0;
            set.view().random_distinct(count, &mut random, |member| {
                visits += 1;
                chosen.insert(member.to_vec());
            });
            assert_eq!((visits, chosen.len()), (count.min(10), count.min(10)));
            if count < 10 {
                let mut copy = set.clone();
                let mut popped = BTreeSet::new();
                copy.pop_many(count, limits, &mut random, |member| {
                    popped.insert(member.to_vec());
                });
                assert_eq!((popped.len(), copy.len()), (count, 10 - count));
                assert!(
                    popped
                        .iter()
                        .all(|member| set.view().contains(member) && !copy.view().contains(member))
                );
            }
        }
    }
}

#[test]
fn the_remainder_of_a_nearly_emptied_set_is_a_new_set() {
    let mut random = |bound| fastrand::usize(..bound);
    let narrow = SetLimits {
        integers: 1,
        run_members: 1,
        run_member_bytes: 1,
    };
    let [integers, run, table] = sets_of_ten();
    for (set, count, limits, encoding) in [
        (&table.0, 8, LIMITS, "hashtable"),
        (&table.0, 9, LIMITS, "listpack"),
        (&table.0, 9, narrow, "hashtable"),
        (&run.0, 8, narrow, "listpack"),
        (&run.0, 9, narrow, "hashtable"),
        (&integers.0, 8, narrow, "intset"),
        (&integers.0, 9, narrow, "intset"),
    ] {
        let mut copy = set.clone();
        copy.pop_many(count, limits, &mut random, |_| {});
        assert_eq!(copy.encoding_name(), encoding, "{count} of {}", set.encoding_name());
    }
}
