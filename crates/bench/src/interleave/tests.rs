//! Tests of the orders, the checksums and the limits.

use super::*;

fn options(lists: usize, nodes: usize) -> InterleaveOptions {
    InterleaveOptions {
        lists,
        nodes,
        work: 0,
        rounds: 2,
        seed: 1,
        core: None,
        command_line: "weft-bench lab interleave".to_string(),
        interruption: Interruption::default(),
    }
}

fn linked_lists(lists: usize, length: usize, seed: u64) -> LinkedLists {
    LinkedLists::new(lists, length, seed, &Interruption::default()).expect("no request to end")
}

#[test]
fn each_order_is_one_cycle_through_all_places() {
    for length in [1, 2, 3, 10, 1000] {
        for seed in 0..20 {
            let mut successors = vec![0; length];
            random_cycle(&mut successors, seed);
            let mut seen = vec![false; length];
            let mut place = 0;
            for _ in 0..length {
                assert!(!seen[place], "{length}, {seed}: place {place} is visited twice");
                seen[place] = true;
                place = successors[place] as usize;
            }
            assert_eq!(place, 0, "{length}, {seed}: the cycle does not end at its first place");
        }
    }
}

#[test]
fn orders_are_random_and_follow_from_the_seed() {
    let cycle = |seed| {
        let mut successors = vec![0; 1000];
        random_cycle(&mut successors, seed);
        successors
    };
    assert_eq!(cycle(1), cycle(1));
    assert_ne!(cycle(1), cycle(2));
    // Nearly no place is followed by a neighbour, and no distance is frequent, so nothing can be predicted from
    // addresses.
    let successors = cycle(1);
    let mut distances: Vec<i64> = successors
        .iter()
        .enumerate()
        .map(|(place, successor)| i64::from(*successor) - place as i64)
        .collect();
    let near = distances.iter().filter(|distance| distance.abs() <= 8).count();
    assert!(near < 60, "{near} of 1000 successors are near");
    distances.sort_unstable();
    let most = distances.chunk_by(|left, right| left == right).map(<[i64]>::len).max();
    assert!(most < Some(15), "a distance occurs {most:?} times");
}

#[test]
fn lists_do_not_share_nodes_and_have_different_orders() {
    let lists = linked_lists(16, 50, 7);
    let mut seen = vec![false; lists.nodes.len()];
    let mut orders = Vec::new();
    for list in 0..16 {
        let mut order = Vec::new();
        let mut index = list;
        for _ in 0..50 {
            assert_eq!(index % 16, list, "the list leaves its nodes");
            assert!(!seen[index], "node {index} is visited twice");
            seen[index] = true;
            order.push(index / 16);
            index = lists.nodes[index].next as usize;
        }
        orders.push(order);
    }
    assert!(seen.iter().all(|seen| *seen));
    assert_ne!(orders[0], orders[1]);
}

#[test]
fn all_walks_have_the_checksums_of_a_plain_one() {
    for (count, length) in [(1, 1), (1, 100), (3, 1), (16, 100), (5, 37)] {
        for work in [0, 3] {
            let lists = linked_lists(count, length, 3);
            let plain: Vec<u64> = (0..count)
                .map(|list| {
                    let (mut sum, mut index) = (0, list);
                    for _ in 0..length {
                        sum = visit(sum, lists.nodes[index].value, work);
                        index = lists.nodes[index].next as usize;
                    }
                    sum
                })
                .collect();
            for (name, walk) in WALKS {
                assert_eq!(
                    walk(&lists, work),
                    plain,
                    "{name}: {count} lists of {length}, work {work}"
                );
            }
        }
    }
}

#[test]
fn the_checksum_depends_on_the_order_of_the_nodes() {
    let sum = |values: &[u32]| values.iter().fold(0, |sum, value| visit(sum, *value, 0));
    assert_ne!(sum(&[1, 2, 3]), sum(&[2, 1, 3]));
    assert_ne!(sum(&[1, 2, 3]), sum(&[1, 2]));
}

#[test]
fn every_round_measures_every_walk() {
    let options = options(4, 100);
    let lists = linked_lists(options.lists, options.nodes, options.seed);
    let mut times = WalkTimes::default();
    measure(&lists, &options, &mut times).expect("equal checksums");
    assert!(times.ns_per_node.iter().all(|rounds| rounds.len() == 2));
    let text = results_text(&RunEnvironment::default(), &options, &times, None);
    for part in [
        " logical CPUs, ",
        "Command line: `weft-bench lab interleave` of weft-bench ",
        "4 lists of 100 nodes of 8 B in one array of 0 MB",
        "| one after the other | ",
        " | 1.00x |\n",
        "| interleaved | ",
        "| interleaved with prefetch | ",
        &format!("{:016x}", times.checksum()),
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("ended early"));
}

#[test]
fn an_interrupted_run_shows_what_it_has() {
    let options = options(4, 100);
    let lists = linked_lists(options.lists, options.nodes, options.seed);
    options.interruption.request();
    let mut times = WalkTimes::default();
    times.ns_per_node[0].push(80.0);
    times.ns_per_node[1].push(40.0);
    let outcome = measure(&lists, &options, &mut times);
    assert!(matches!(outcome, Err(Error::Interrupted)));
    let text = results_text(&RunEnvironment::default(), &options, &times, outcome.as_ref().err());
    for part in [
        "**The run ended early: interrupted.**",
        "| one after the other | 1 | 80.00 | 1.00x |\n",
        "| interleaved | 1 | 40.00 | 2.00x |\n",
        "| interleaved with prefetch | 0 | - | - |\n",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(LinkedLists::new(4, 100, 1, &options.interruption).is_err());
}

#[test]
fn too_many_nodes_are_refused() {
    // 16 lists of 10M nodes: 1.28 GB, and 40 MB to create them.
    assert_eq!(
        memory_bytes(&options(16, 10_000_000)).expect("few enough"),
        1_320_000_000
    );
    assert!(memory_bytes(&options(16, 300_000_000)).is_err());
    assert!(check_available(1_320_000_000, Some(1_700_000_000)).is_err());
    assert!(check_available(1_320_000_000, Some(2_000_000_000)).is_ok());
    assert!(check_available(1_320_000_000, None).is_ok());
}
