//! Tests of bit arrays against a model that processes single bits.

use super::*;

/// Returns a random string, possibly with long uniform runs, of a length around the block sizes.
fn sample(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = match random.u32(0..4) {
        0 => random.usize(0..20),
        1 => random.usize(0..SKIP_BYTES * 4),
        2 => random.usize(STEP_BYTES - 9..STEP_BYTES * 3 + 9),
        _ => random.usize(0..BLOCK_BYTES * 2 + 100),
    };
    let mut bytes: Vec<u8> = match random.u32(0..4) {
        0 => vec![0; length],
        1 => vec![0xff; length],
        _ => std::iter::repeat_with(|| random.u8(..)).take(length).collect(),
    };
    for _ in 0..random.usize(0..3) {
        if let Some(byte) = random.choice(&mut bytes) {
            *byte ^= 1 << random.u32(0..8);
        }
    }
    bytes
}

fn bits_of(bytes: &[u8]) -> impl Iterator<Item = bool> + '_ {
    bytes
        .iter()
        .flat_map(|byte| (0..8).map(move |bit| byte >> (7 - bit) & 1 == 1))
}

fn with_random_samples(check: impl Fn(&mut fastrand::Rng, &[u8])) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..200 {
        let bytes = sample(&mut random);
        check(&mut random, &bytes);
    }
}

#[test]
fn single_bits_are_numbered_from_the_most_significant_one() {
    assert!(bit_at(&[0x80], 0));
    assert!(!bit_at(&[0x80], 1));
    assert!(bit_at(&[0, 1], 15));
    assert!(!bit_at(&[0, 1], 16));
    assert!(!bit_at(&[], 0));
    assert!(!bit_at(&[0xff], u64::MAX));
}

#[test]
fn counting_agrees_with_the_model() {
    with_random_samples(|random, bytes| {
        assert_eq!(count_ones(bytes), bits_of(bytes).filter(|bit| *bit).count() as u64);
        if bytes.is_empty() {
            return;
        }
        let last = random.u64(0..bytes.len() as u64 * 8);
        let first = random.u64(0..=last);
        let wanted = bits_of(bytes)
            .take(last as usize + 1)
            .skip(first as usize)
            .filter(|bit| *bit)
            .count();
        assert_eq!(
            count_ones_between(bytes, first, last),
            wanted as u64,
            "{first}..={last}"
        );
    });
}

#[test]
fn empty_and_out_of_range_ranges_contain_no_bits() {
    assert_eq!(count_ones_between(&[0xff], 5, 4), 0);
    assert_eq!(count_ones_between(&[0xff], 0, 8), 0);
    assert_eq!(find_bit_between(&[0xff], true, 5, 4), None);
    assert_eq!(find_bit_between(&[0xff], true, 0, 8), None);
    assert_eq!(count_ones_between(&[0xff], 3, 3), 1);
    assert_eq!(count_ones_between(&[0xff], 1, 6), 6);
}

#[test]
fn finding_agrees_with_the_model() {
    with_random_samples(|random, bytes| {
        for bit in [false, true] {
            let wanted = bits_of(bytes).position(|other| other == bit);
            assert_eq!(find_bit(bytes, bit), wanted.map(|at| at as u64));
            if bytes.is_empty() {
                continue;
            }
            let last = random.u64(0..bytes.len() as u64 * 8);
            let first = random.u64(0..=last);
            let wanted = bits_of(bytes)
                .take(last as usize + 1)
                .skip(first as usize)
                .position(|other| other == bit)
                .map(|at| at as u64 + first);
            assert_eq!(
                find_bit_between(bytes, bit, first, last),
                wanted,
                "{bit} in {first}..={last}"
            );
        }
    });
}

#[test]
fn combining_agrees_with_the_model() {
    with_random_samples(|random, bytes| {
        let others: Vec<Vec<u8>> = (0..random.usize(0..4)).map(|_| sample(random)).collect();
        let mut sources = vec![bytes];
        sources.extend(others.iter().map(Vec::as_slice));
        let length = sources.iter().map(|source| source.len()).max().unwrap();
        let at = |source: &[u8], index: usize| source.get(index).copied().unwrap_or(0);
        let model = |fold: fn(u8, u8) -> u8| -> Vec<u8> {
            let byte = |index| {
                sources[1..]
                    .iter()
                    .fold(at(sources[0], index), |sum, source| fold(sum, at(source, index)))
            };
            (0..length).map(byte).collect()
        };
        assert!(combine(BitOperation::And, &sources) == model(|one, other| one & other));
        assert!(combine(BitOperation::Or, &sources) == model(|one, other| one | other));
        assert!(combine(BitOperation::Xor, &sources) == model(|one, other| one ^ other));
        let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        assert!(combine(BitOperation::Not, &[bytes]) == inverted);
    });
}

#[test]
fn combining_no_sources_gives_an_empty_string() {
    assert_eq!(combine(BitOperation::And, &[]), Vec::<u8>::new());
    assert_eq!(combine(BitOperation::Not, &[b""]), Vec::<u8>::new());
}
