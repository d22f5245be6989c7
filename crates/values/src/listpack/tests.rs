//! Tests of runs: the limits of every encoding, changes against a naive model, and damaged listpacks.

use super::*;

fn run_of<B: AsRef<[u8]>>(elements: &[B]) -> Vec<u8> {
    let mut run = Vec::new();
    for element in elements {
        push(&mut run, element.as_ref());
    }
    run
}

fn texts(run: &[u8]) -> Vec<Vec<u8>> {
    ElementRun::new(run)
        .iter()
        .map(|(_, element)| element.to_vec())
        .collect()
}

fn random_element(random: &mut fastrand::Rng) -> Vec<u8> {
    match random.usize(0..8) {
        0 => random.i64(-200..200).to_string().into_bytes(),
        1 => (random.i64(..) >> random.u32(0..64)).to_string().into_bytes(),
        2 => vec![b'x'; random.usize(60..70)],
        3 => vec![b'y'; random.usize(120..135)],
        4 if random.usize(0..20) == 0 => vec![b'z'; random.usize(4090..4100)],
        5 if random.usize(0..50) == 0 => vec![b'w'; random.usize(16_370..16_390)],
        _ => (0..random.usize(0..20)).map(|_| random.u8(..)).collect(),
    }
}

#[test]
fn integers_use_the_shortest_encoding_and_survive_the_round_trip() {
    let cases: &[(i64, &[u8])] = &[
        (0, &[0, 1]),
        (127, &[127, 1]),
        (128, &[0xC0, 128, 2]),
        (4095, &[0xCF, 0xFF, 2]),
        (-1, &[0xDF, 0xFF, 2]),
        (-4096, &[0xD0, 0x00, 2]),
        (4096, &[0xF1, 0x00, 0x10, 3]),
        (-4097, &[0xF1, 0xFF, 0xEF, 3]),
        (-32_768, &[0xF1, 0x00, 0x80, 3]),
        (32_768, &[0xF2, 0x00, 0x80, 0x00, 4]),
        (-8_388_608, &[0xF2, 0x00, 0x00, 0x80, 4]),
        (8_388_608, &[0xF3, 0x00, 0x00, 0x80, 0x00, 5]),
        (i64::from(i32::MIN), &[0xF3, 0, 0, 0, 0x80, 5]),
        (i64::from(i32::MAX) + 1, &[0xF4, 0, 0, 0, 0x80, 0, 0, 0, 0, 9]),
        (i64::MIN, &[0xF4, 0, 0, 0, 0, 0, 0, 0, 0x80, 9]),
    ];
    for &(number, encoded) in cases {
        let run = run_of(&[number.to_string()]);
        assert_eq!(run, encoded, "{number}");
        assert_eq!(ElementRun::new(&run).at(0), Some(Element::Int(number)));
        assert_eq!(Element::Int(number).run_bytes(), encoded.len());
        assert_eq!(Element::Int(number).to_vec(), number.to_string().into_bytes());
    }
}

#[test]
fn only_canonical_decimals_are_integers() {
    for text in [
        "",
        "-",
        "-0",
        "+1",
        "01",
        "1 ",
        " 1",
        "1a",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999",
    ] {
        assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
    }
    for number in [0, 1, -1, 10, i64::MAX, i64::MIN] {
        assert_eq!(parse_integer(number.to_string().as_bytes()), Some(number));
    }
}

#[test]
fn strings_at_the_limits_of_headers_and_backlens_survive_the_round_trip() {
    let lengths = [
        0, 1, 62, 63, 64, 125, 126, 127, 4094, 4095, 4096, 16_376, 16_377, 16_378, 16_379, 2_097_145, 2_097_146,
        2_097_147,
    ];
    for length in lengths {
        let bytes = vec![b'a'; length];
        let run = run_of(&[&b"before"[..], &bytes, b"17"]);
        assert_eq!(
            texts(&run),
            [b"before".to_vec(), bytes.clone(), b"17".to_vec()],
            "{length}"
        );
        let backward: Vec<_> = ElementRun::new(&run).iter().rev().map(|(offset, _)| offset).collect();
        let mut forward: Vec<_> = ElementRun::new(&run).iter().map(|(offset, _)| offset).collect();
        forward.reverse();
        assert_eq!(backward, forward, "{length}");
        assert_eq!(forward[0] - forward[1], Element::Bytes(&bytes).run_bytes());
    }
    // The smallest length whose backlen takes three bytes in Valkey.
    assert_eq!(backlen(16_382).1, 2);
    assert_eq!(backlen(16_383), ([0, 0xFF, 0xFF, 0, 0], 3));
}

#[test]
fn a_needle_finds_numbers_in_either_form() {
    let mut run = Vec::new();
    push_element(&mut run, Element::Bytes(b"12"));
    let second = run.len();
    push_element(&mut run, Element::Int(13));
    assert_eq!(ElementRun::new(&run).find(b"12", 1), Some(0));
    assert_eq!(ElementRun::new(&run).find(b"13", 1), Some(second));
    assert_eq!(ElementRun::new(&run).find(b"13", 2), None);
    assert_eq!(ElementRun::new(&run).find(b"14", 1), None);
}

#[test]
fn changes_agree_with_the_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model: Vec<Vec<u8>> = Vec::new();
    let mut run = Vec::new();
    for _ in 0..6_000 {
        let count = model.len();
        let offset_of = |run: &[u8], index| ElementRun::new(run).offset_of(index, count);
        match random.usize(0..6) {
            0 | 1 if model.len() < 80 => {
                let (index, element) = (random.usize(0..=model.len()), random_element(&mut random));
                let offset = offset_of(&run, index).unwrap_or(run.len());
                insert(&mut run, offset, &element);
                model.insert(index, element);
            }
            2 if !model.is_empty() => {
                let (index, element) = (random.usize(0..model.len()), random_element(&mut random));
                let offset = offset_of(&run, index).unwrap();
                replace(&mut run, offset, &element);
                model[index] = element;
            }
            3 if !model.is_empty() => {
                let (index, element) = (random.usize(0..model.len()), random_element(&mut random));
                let offset = offset_of(&run, index).unwrap();
                let same = Element::of(&model[index]).run_bytes() == Element::of(&element).run_bytes();
                assert_eq!(overwrite(&mut run, offset, Element::of(&element)), same);
                if same {
                    model[index] = element;
                }
            }
            4 if !model.is_empty() => {
                let (index, count) = (random.usize(0..model.len()), random.usize(0..4));
                let offset = offset_of(&run, index).unwrap();
                let removed = remove(&mut run, offset, count);
                assert_eq!(removed, count.min(model.len() - index));
                model.drain(index..index + removed);
            }
            _ => {
                let element = random_element(&mut random);
                push(&mut run, &element);
                model.push(element);
            }
        }
        assert_eq!(validate_run(&run), Some(model.len()));
        assert_eq!(texts(&run), model);
        let index = random.usize(0..model.len() + 2);
        let found = ElementRun::new(&run)
            .get(index, model.len())
            .map(|(_, element)| element.to_vec());
        assert_eq!(found.as_ref(), model.get(index));
        if let Some(element) = model.get(index) {
            let first = model.iter().position(|other| other == element).unwrap();
            assert_eq!(
                ElementRun::new(&run).find(element, 1),
                ElementRun::new(&run).offset_of(first, model.len())
            );
        }
    }
}

#[test]
fn whole_listpacks_equal_those_in_files() {
    let run = run_of(&[&b"a"[..], b"5"]);
    let mut whole = Vec::new();
    write_listpack(&mut whole, &run, 2);
    assert_eq!(whole, [12, 0, 0, 0, 2, 0, 0x81, b'a', 2, 5, 1, 0xFF]);
    assert_eq!(whole.len(), listpack_bytes(run.len()));
    let (found, count) = validate(&whole).unwrap();
    assert_eq!(run_of_listpack(&whole).bytes(), &run[..]);
    assert_eq!((found.bytes(), count), (&run[..], 2));
}

#[test]
fn a_listpack_of_unknown_length_is_counted() {
    let run: Vec<u8> = (0..70_000).flat_map(|_| [7, 1]).collect();
    let mut whole = Vec::new();
    write_listpack(&mut whole, &run, 70_000);
    assert_eq!(whole[4..6], [0xFF, 0xFF]);
    assert_eq!(validate(&whole).unwrap().1, 70_000);
}

#[test]
fn damaged_listpacks_are_refused_or_can_be_traversed() {
    let long = [b'q'; 200];
    let run = run_of(&[&b"hello"[..], b"-300", b"70000", &long, b"99999999999", b""]);
    let mut whole = Vec::new();
    write_listpack(&mut whole, &run, 6);
    for length in 0..whole.len() {
        assert!(validate(&whole[..length]).is_none(), "cut at {length}");
    }
    let mut refused = 0;
    for place in 0..whole.len() {
        for value in 0..=255 {
            let mut broken = whole.clone();
            broken[place] = value;
            match validate(&broken) {
                None => refused += 1,
                Some((run, count)) => {
                    assert_eq!(run.iter().count(), count);
                    assert_eq!(run.iter().rev().count(), count);
                }
            }
        }
    }
    assert!(refused > 5_000, "only {refused} changes were noticed");
}
