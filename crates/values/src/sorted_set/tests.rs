//! Tests of every form against a naive sorted set.

use super::*;

use std::collections::{BTreeSet, HashMap};

use crate::listpack::Element;

const LIMITS: SortedSetLimits = SortedSetLimits {
    members: 128,
    member_bytes: 64,
};

/// A score that compares as in sorted sets.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Score(f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp_score(other.0)
    }
}

#[derive(Default)]
struct Model {
    scores: HashMap<Vec<u8>, f64>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

impl Model {
    fn put(&mut self, member: &[u8], score: f64) -> UpsertOutcome {
        let before = self.scores.insert(member.to_vec(), score);
        if let Some(before) = before {
            self.order.remove(&(Score(before), member.to_vec()));
        }
        self.order.insert((Score(score), member.to_vec()));
        match before {
            None => UpsertOutcome::Added,
            Some(before) if before == score => UpsertOutcome::Unchanged,
            Some(_) => UpsertOutcome::Changed,
        }
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        self.order.remove(&(Score(score), member.to_vec()))
    }

    fn remove_ranks(&mut self, ranks: Range<usize>) {
        let gone: Vec<_> = self.order.iter().skip(ranks.start).take(ranks.len()).cloned().collect();
        for (_, member) in gone {
            self.remove(&member);
        }
    }

    fn listed(&self) -> Vec<(Vec<u8>, f64)> {
        self.order
            .iter()
            .map(|(score, member)| (member.clone(), score.0))
            .collect()
    }
}

fn listed<'a>(walk: impl Iterator<Item = (Element<'a>, f64)>) -> Vec<(Vec<u8>, f64)> {
    walk.map(|(member, score)| (member.to_vec(), score)).collect()
}

fn check_rules(draft: &DetachedSortedSet) {
    if let DetachedSortedSet::Large(SortedSet {
        body: Body::Tree(tree), ..
    }) = draft
    {
        tree.check();
    }
}

fn check(draft: &DetachedSortedSet, model: &Model, random: &mut fastrand::Rng) {
    check_rules(draft);
    let view = draft.view();
    let expected = model.listed();
    assert_eq!(view.len(), expected.len());
    assert_eq!(listed(view.iter()), expected);
    let end = random.usize(0..=expected.len());
    let start = random.usize(0..=end);
    assert_eq!(listed(view.iter_ranks(start..end, false)), &expected[start..end]);
    let reversed: Vec<_> = expected[start..end].iter().rev().cloned().collect();
    assert_eq!(listed(view.iter_ranks(start..end, true)), reversed);
    for (rank, (member, score)) in expected.iter().enumerate() {
        assert_eq!(view.rank(member), Some((rank, *score)));
        assert_eq!(view.score(member), Some(*score));
    }
    let (a, b) = (random.f64() * 60.0 - 5.0, random.f64() * 60.0 - 5.0);
    let range = ScoreRange {
        min: if random.bool() { a.floor() } else { a },
        max: if random.bool() { b.floor() } else { b },
        min_exclusive: random.bool(),
        max_exclusive: random.bool(),
    };
    let inside = |score: f64| !range.is_before_start(score) && range.is_before_end(score);
    let found = listed(view.iter_ranks(view.ranks_of_scores(&range), false));
    let wanted: Vec<_> = expected.iter().filter(|(_, score)| inside(*score)).cloned().collect();
    assert_eq!(found, wanted);
}

fn member(random: &mut fastrand::Rng, different: u32) -> Vec<u8> {
    let number = random.u32(..different);
    match number % 5 {
        0 => number.to_string().into_bytes(),
        1 => format!("-{number}").into_bytes(),
        2 => format!("member {number} {}", "x".repeat(number as usize % 40)).into_bytes(),
        _ => format!("m{number}").into_bytes(),
    }
}

fn score(random: &mut fastrand::Rng) -> f64 {
    match random.u8(..10) {
        0 => f64::INFINITY,
        1 => f64::NEG_INFINITY,
        2 | 3 => random.f64() * 50.0,
        _ => random.i8(..50).into(),
    }
}

fn run(random: &mut fastrand::Rng, different: u32, steps: usize, limits: SortedSetLimits, removals: u8) {
    let mut draft = DetachedSortedSet::new(1, 1, limits);
    let mut model = Model::default();
    for step in 0..steps {
        let name = member(random, different);
        match random.u8(..100) {
            roll if roll < removals => {
                assert_eq!(draft.remove(&name), model.remove(&name));
            }
            99 if removals > 0 && !model.scores.is_empty() => {
                let end = random.usize(0..=model.scores.len());
                let start = end.saturating_sub(random.usize(0..=model.scores.len() / 3));
                draft.remove_ranks(start..end);
                model.remove_ranks(start..end);
            }
            _ => {
                let score = score(random);
                assert_eq!(draft.upsert(&name, limits, |_| Some(score)), model.put(&name, score));
            }
        }
        if step % (steps / 20).max(1) == 0 {
            check(&draft, &model, random);
        }
    }
    check(&draft, &model, random);
    while !model.scores.is_empty() {
        let start = random.usize(0..model.scores.len());
        let end = model.scores.len().min(start + random.usize(1..=200));
        draft.remove_ranks(start..end);
        model.remove_ranks(start..end);
        check_rules(&draft);
        assert_eq!(draft.view().len(), model.scores.len());
    }
}

#[test]
fn random_changes_agree_with_a_naive_sorted_set() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20 {
        run(&mut random, 60, 500, LIMITS, 40);
        run(&mut random, 200, 1000, LIMITS, 20);
    }
    run(&mut random, 20_000, 60_000, LIMITS, 20);
    run(&mut random, 2_000, 20_000, LIMITS, 49);
    let wide = SortedSetLimits {
        members: 100_000,
        member_bytes: 1000,
    };
    run(&mut random, 3_000, 10_000, wide, 10);
}

#[test]
fn long_members_split_leaves_with_few_members() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draft = DetachedSortedSet::new(1, 100_000, LIMITS);
    let mut model = Model::default();
    for step in 0..600 {
        let mut name = random.u16(..200).to_string().into_bytes();
        let fill = usize::from(name[0]).pow(2) * 20;
        name.resize(name.len() + fill, b'x');
        if random.u8(..3) == 0 {
            assert_eq!(draft.remove(&name), model.remove(&name));
        } else {
            let score = score(&mut random);
            assert_eq!(draft.upsert(&name, LIMITS, |_| Some(score)), model.put(&name, score));
        }
        if step % 20 == 0 {
            check(&draft, &model, &mut random);
        }
    }
}

#[test]
fn members_in_order_fill_their_leaves() {
    let mut set = SortedSet::new(SortedSetEncoding::Skiplist);
    for number in 0..10_000 {
        set.insert(format!("{number:05}").as_bytes(), 7.0);
    }
    let Body::Tree(tree) = &set.body else {
        panic!("ten thousand members are a tree");
    };
    tree.check();
    assert!(tree.leaf_count() < 85, "{} leaves", tree.leaf_count());
    let range = LexRange {
        min: LexEnd::Inclusive(b"00100"),
        max: LexEnd::Exclusive(b"00200"),
    };
    assert_eq!(set.ranks_of_lex(&range), 100..200);
    let all = LexRange {
        min: LexEnd::Lowest,
        max: LexEnd::Highest,
    };
    assert_eq!(set.ranks_of_lex(&all), 0..10_000);
}

#[test]
fn a_set_built_in_bulk_equals_one_built_member_by_member() {
    for count in [0, 1, 2, 10, 60, 127, 128, 129, 200, 5000, 60_000] {
        let names: Vec<Vec<u8>> = (0..count).map(|number| format!("{number:06}").into_bytes()).collect();
        let sorted: Vec<(&[u8], f64)> = names
            .iter()
            .zip(0u32..)
            .map(|(name, at)| (&name[..], f64::from(at / 3)))
            .collect();
        let draft = DetachedSortedSet::from_sorted(&sorted, LIMITS);
        check_rules(&draft);
        let expected: Vec<_> = sorted.iter().map(|(name, score)| (name.to_vec(), *score)).collect();
        assert_eq!(listed(draft.view().iter()), expected);
        let by_members = sorted
            .iter()
            .fold(DetachedSortedSet::new(1, 1, LIMITS), |mut draft, (name, score)| {
                draft.upsert(name, LIMITS, |_| Some(*score));
                draft
            });
        let packed = |draft: &DetachedSortedSet| matches!(draft, DetachedSortedSet::Packed(_));
        assert_eq!(packed(&draft), packed(&by_members));
    }
}

#[test]
fn a_scan_returns_every_member_that_is_present_throughout() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    // One leaf, a leaf that becomes a tree and a leaf again, a tree.
    for (stay, come_and_go) in [(60, 60), (60, 300), (1000, 5000)] {
        let mut set = SortedSet::new(SortedSetEncoding::Skiplist);
        for number in 0..stay {
            set.insert(format!("stays {number}").as_bytes(), score(&mut random));
        }
        let mut seen = std::collections::HashSet::new();
        let mut cursor = 0;
        let mut calls = 0;
        loop {
            let mut visited = 0;
            cursor = set.scan(cursor, 10, |member, _| {
                visited += 1;
                seen.insert(member.to_vec());
            });
            assert!(visited <= 11, "{visited} at once");
            calls += 1;
            if cursor == 0 {
                break;
            }
            for _ in 0..come_and_go / 25 {
                let name = format!("comes and goes {}", random.u16(..come_and_go));
                if set.remove(name.as_bytes()).is_none() {
                    set.insert(name.as_bytes(), score(&mut random));
                }
                let moved = format!("stays {}", random.u16(..stay));
                set.upsert(moved.as_bytes(), LIMITS, |_| Some(score(&mut random)));
            }
            if come_and_go == 300 && calls % 3 == 0 {
                // All of them come or go at once, and the set changes its form.
                let comes = calls % 2 == 1;
                for number in 0..come_and_go {
                    let name = format!("comes and goes {number}");
                    set.remove(name.as_bytes());
                    if comes {
                        set.insert(name.as_bytes(), score(&mut random));
                    }
                }
            }
        }
        assert!(calls >= stay / 11, "{calls} calls");
        for number in 0..stay {
            assert!(
                seen.contains(format!("stays {number}").as_bytes()),
                "{number} was not shown"
            );
        }
    }
}

#[test]
fn a_scan_of_a_listpack_returns_all_members_at_once() {
    let mut set = SortedSet::new(SortedSetEncoding::Listpack);
    for number in 0..300 {
        set.insert(format!("member {number}").as_bytes(), f64::from(number));
    }
    for cursor in [0, 17, u64::MAX] {
        let mut visited = 0;
        assert_eq!(set.scan(cursor, 10, |_, _| visited += 1), 0);
        assert_eq!(visited, 300);
    }
}

#[test]
fn the_reported_encoding_follows_the_limits_and_stays() {
    let mut draft = DetachedSortedSet::new(1, 1, LIMITS);
    for number in 0..128 {
        draft.upsert(format!("{number:040}x").as_bytes(), LIMITS, |_| Some(1.5));
    }
    let DetachedSortedSet::Large(mut set) = draft else {
        panic!("it has more bytes than a packed one may");
    };
    assert_eq!(set.encoding_name(), "listpack");
    set.upsert(b"one more", LIMITS, |_| Some(-0.0));
    assert_eq!(set.encoding_name(), "skiplist");
    set.remove_ranks(1..129);
    assert_eq!((set.len(), set.encoding_name()), (1, "skiplist"));
}

#[test]
fn scores_that_are_not_exact_integers_survive_packing() {
    let scores = [
        f64::NEG_INFINITY,
        -1e300,
        -9007199254740993.0,
        -9007199254740992.0,
        -1.5,
        0.0,
        5e-324,
        0.1,
        3.0,
        9007199254740992.0,
        9007199254740994.0,
        1.7976931348623157e308,
        f64::INFINITY,
    ];
    let mut packed = packed::PackedSortedSetBuf::empty();
    for (number, score) in scores.iter().enumerate().rev() {
        packed.insert(number.to_string().as_bytes(), *score);
    }
    let found: Vec<f64> = packed.view().iter_ranks(0..20, false).map(|(_, score)| score).collect();
    assert_eq!(found, scores);
}

#[test]
fn prefetched_memory_is_what_a_search_reads() {
    for count in [5, 100, 10_000] {
        let mut set = SortedSet::new(SortedSetEncoding::Skiplist);
        let names: Vec<String> = (0..count).map(|number| format!("{number:05}")).collect();
        for name in &names {
            set.insert(name.as_bytes(), 7.0);
        }
        let mut elsewhere = 0;
        for name in &names {
            let hash = crate::records::hash_of(name.as_bytes());
            let place = set
                .find(member_hash(name.as_bytes()), name.as_bytes())
                .expect("is there");
            let (index, bytes) = set.index_memory(hash);
            assert!(!index.is_null() && bytes > 0);
            elsewhere += u32::from(set.leaf_memory(hash) != Some(set.leaf_at(place).tags()));
        }
        // The index stores 32 bits of the hash, which two of this number of members rarely share.
        assert!(elsewhere <= 3, "{elsewhere} of {count}");
        let unknown = crate::records::hash_of(b"nobody");
        let _ = (set.index_memory(unknown), set.leaf_memory(unknown));
    }
}

#[test]
fn a_set_that_has_shrunk_gives_its_memory_back() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let names: Vec<Vec<u8>> = (0..100_000).map(|number| format!("{number:06}").into_bytes()).collect();
    let build = |names: &[Vec<u8>]| {
        let mut set = SortedSet::new(SortedSetEncoding::Skiplist);
        for (name, at) in names.iter().zip(0u32..) {
            set.insert(name, f64::from(at / 7));
        }
        set
    };
    let full_bytes = build(&names).allocated_bytes();
    for left in [10, 129, 1000, 20_000] {
        let small_bytes = build(&names[..left]).allocated_bytes();
        let check = |set: &SortedSet, way: &str| {
            if let Body::Tree(tree) = &set.body {
                tree.check();
            }
            let bytes = set.allocated_bytes();
            println!(
                "{left} members left, {way}: {bytes} bytes, {small_bytes} if it was never larger, {full_bytes} full"
            );
            assert_eq!(set.len(), left);
            assert!(
                bytes < small_bytes * 5 / 2 + 10_000,
                "{left} members left, {way}: {bytes} bytes"
            );
        };
        let mut set = build(&names);
        set.remove_ranks(0..names.len() - left);
        check(&set, "the first at once");
        let mut set = build(&names);
        set.remove_ranks(left / 2..names.len() - left / 2 - left % 2);
        check(&set, "the middle at once");
        for order in ["ascending", "descending", "random"] {
            let mut set = build(&names);
            let mut gone: Vec<&Vec<u8>> = names.iter().collect();
            match order {
                "ascending" => {}
                "descending" => gone.reverse(),
                _ => random.shuffle(&mut gone),
            }
            for (step, name) in gone[..names.len() - left].iter().enumerate() {
                assert!(set.remove(name).is_some());
                if step % 10_000 == 0
                    && let Body::Tree(tree) = &set.body
                {
                    tree.check();
                }
            }
            check(&set, order);
            // It can grow again.
            for (name, at) in names.iter().zip(0u32..) {
                set.upsert(name, LIMITS, |_| Some(f64::from(at / 7)));
            }
            let Body::Tree(tree) = &set.body else {
                panic!("many members are a tree");
            };
            tree.check();
            assert_eq!(tree.len(), names.len());
        }
    }
}
