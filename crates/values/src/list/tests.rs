//! Tests of lists against a naive model, with all sizes and depths, and of Valkey's rules for splitting and merging.

use super::packed::{PackedList, PackedListMut, PackedListPlan};
use super::position::ElementAction;
use super::*;
use crate::listpack::{self, Needle};
use crate::size_class::size_class;

fn texts(list: ListRef<'_>, start: usize, direction: Direction) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    list.visit(start, direction, |element| {
        texts.push(element.to_vec());
        ControlFlow::Continue(())
    });
    texts
}

fn random_element(random: &mut fastrand::Rng) -> Vec<u8> {
    match random.usize(0..12) {
        0 => random.i64(..).to_string().into_bytes(),
        1 => vec![random.u8(b'a'..=b'c'); random.usize(1000..9000)],
        2 => vec![b'x'; random.usize(60..70)],
        3..6 => random.u8(0..5).to_string().into_bytes(),
        _ => vec![random.u8(b'a'..=b'c'); random.usize(0..200)],
    }
}

fn check(list: &List) {
    let nodes: Vec<&Node> = list.nodes.iter().collect();
    assert_eq!(list.count, nodes.iter().map(|node| node.len()).sum::<usize>());
    assert_eq!(
        list.node_bytes,
        nodes.iter().map(|node| node.allocated_bytes()).sum::<usize>()
    );
    let depth = usize::from(list.depth);
    for (at, node) in nodes.iter().enumerate() {
        assert!(node.len() > 0, "node {at} is empty");
        let inner = depth > 0 && at >= depth && at + depth < nodes.len();
        if !inner {
            assert!(!node.is_compressed(), "node {at} of {} is compressed", nodes.len());
        } else if !node.is_compressed() {
            let mut tried = (*node).clone();
            tried.compress();
            assert!(!tried.is_compressed(), "node {at} of {} is not compressed", nodes.len());
        }
    }
}

/// Applies one random change to the list and the model.
fn change(random: &mut fastrand::Rng, list: &mut List, model: &mut Vec<Vec<u8>>) {
    let element = random_element(random);
    let index = random.usize(0..=model.len());
    match random.usize(0..10) {
        0..2 => {
            list.push(ListEnd::Head, &element);
            model.insert(0, element);
        }
        2..4 => {
            list.push(ListEnd::Tail, &element);
            model.push(element);
        }
        4 => {
            assert_eq!(list.replace(index, &element), index < model.len());
            if let Some(place) = model.get_mut(index) {
                *place = element;
            }
        }
        5..7 => {
            let after = random.bool();
            assert_eq!(list.insert(index, after, &element), index < model.len());
            if index < model.len() {
                model.insert(index + usize::from(after), element);
            }
        }
        7 if random.usize(0..4) > 0 => {
            let count = random.usize(0..4).min(model.len() - index);
            list.remove_range(index, count);
            model.drain(index..index + count);
        }
        7 => {
            let count = random.usize(0..=model.len() - index);
            list.remove_range(index, count);
            model.drain(index..index + count);
        }
        _ => remove_equal(random, list, model, &element),
    }
}

fn remove_equal(random: &mut fastrand::Rng, list: &mut List, model: &mut Vec<Vec<u8>>, element: &[u8]) {
    let most = random.usize(1..4);
    let direction = if random.bool() {
        Direction::Forward
    } else {
        Direction::Backward
    };
    let needle = Needle::new(element);
    let mut left = most;
    let removed = list.remove_if(direction, |found| {
        if !needle.matches(found) {
            return ElementAction::Keep;
        }
        left -= 1;
        if left == 0 {
            ElementAction::RemoveAndStop
        } else {
            ElementAction::Remove
        }
    });
    let mut places: Vec<usize> = (0..model.len()).filter(|&at| model[at] == element).collect();
    if direction == Direction::Forward {
        places.truncate(most);
    } else {
        places.drain(..places.len().saturating_sub(most));
    }
    assert_eq!(removed, places.len());
    for place in places.into_iter().rev() {
        model.remove(place);
    }
}

#[test]
fn changes_agree_with_the_model() {
    for (fill, depth) in [(-1, 0), (-2, 0), (-2, 1), (-5, 2), (1, 1), (3, 0), (4, 2), (100, 1)] {
        let seed = fastrand::u64(..);
        println!("seed {seed}, fill {fill}, depth {depth}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut list = List::quicklist(fill, depth);
        let mut model: Vec<Vec<u8>> = Vec::new();
        for round in 0..700 {
            change(&mut random, &mut list, &mut model);
            check(&list);
            assert_eq!(list.len(), model.len());
            let index = random.usize(0..model.len() + 2);
            assert_eq!(
                list.with_element(index, |element| element.to_vec()).as_ref(),
                model.get(index)
            );
            if round % 20 == 0 {
                assert_eq!(texts(ListRef::Large(&list), 0, Direction::Forward), model);
                let from = index.min(model.len().saturating_sub(1));
                let mut backward: Vec<_> = model.iter().take(from + 1).cloned().collect();
                backward.reverse();
                assert_eq!(texts(ListRef::Large(&list), from, Direction::Backward), backward);
            }
        }
    }
}

#[test]
fn a_listpack_of_any_size_stays_one_node() {
    let mut list = List::listpack(&[], 0);
    for number in 0..5000 {
        list.push(ListEnd::Tail, format!("element {number}").as_bytes());
    }
    list.insert(17, false, &[b'x'; 100_000]);
    list.replace(17, &[b'y'; 50_000]);
    assert_eq!((list.nodes.len(), list.encoding_name()), (1, "listpack"));
    check(&list);
}

#[test]
fn an_element_beside_a_large_one_reserves_no_memory_for_its_like() {
    let mut list = List::quicklist(-2, 0);
    list.push(ListEnd::Tail, b"header");
    list.push(ListEnd::Tail, &[b'x'; 1_000_000]);
    list.push(ListEnd::Tail, b"trailer");
    check(&list);
    let bytes = list.allocated_bytes();
    assert!(bytes < 1_100_000, "{bytes} bytes");
}

#[test]
fn a_list_without_elements_has_no_nodes() {
    let mut list = List::listpack(&[], 0);
    assert!(list.nodes.is_empty());
    list.push(ListEnd::Tail, b"element");
    check(&list);
    assert_eq!(
        texts(ListRef::Large(&list), 0, Direction::Forward),
        [b"element".to_vec()]
    );
}

#[test]
fn packed_lists_agree_with_the_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = Vec::new();
    let free = PackedListPlan {
        added_elements: 64,
        added_bytes: 3000,
        ..PackedListPlan::of_run(ElementRun::new(&[]), 0)
    };
    free.build(&mut bytes, 4096);
    let mut room = PackedList::new(&bytes).free_bytes();
    let mut model: Vec<Vec<u8>> = Vec::new();
    for round in 0..6_000 {
        let longest = random.usize(1..100);
        let element: Vec<u8> = vec![random.u8(b'a'..=b'c'); random.usize(0..longest)];
        let list = PackedList::new(&bytes);
        let fits = list.free_bytes() >= Element::of(&element).run_bytes();
        let run_bytes: usize = model.iter().map(|element| Element::of(element).run_bytes()).sum();
        assert_eq!(list.free_bytes() + run_bytes, room);
        let (run, index) = (list.run(), random.usize(0..=model.len()));
        let offset = run.offset_of(index, model.len()).unwrap_or(run.bytes().len());
        let mut change = PackedListMut::new(&mut bytes);
        match random.usize(0..7) {
            0 if fits => {
                change.push(ListEnd::Head, Element::of(&element));
                model.insert(0, element);
            }
            1 if fits => {
                change.push(ListEnd::Tail, Element::of(&element));
                model.push(element);
            }
            2 if fits => {
                change.splice(offset..offset, 0, Some(Element::of(&element)));
                model.insert(index, element);
            }
            5 if fits && index < model.len() => {
                let end = change.as_ref().run().end_of(offset);
                change.splice(offset..end, 1, Some(Element::of(&element)));
                model[index] = element;
            }
            3 => {
                let count = random.usize(0..3).min(model.len() - index);
                change.remove_range(index, count);
                model.drain(index..index + count);
            }
            4 if random.usize(0..10) == 0 => {
                let needle = Needle::new(&element);
                let pick = |found: Element<'_>| {
                    if needle.matches(found) {
                        ElementAction::Remove
                    } else {
                        ElementAction::Keep
                    }
                };
                let removed = change.remove_if(Direction::Forward, pick);
                let before = model.len();
                model.retain(|other| *other != element);
                assert_eq!(removed, before - model.len());
            }
            _ => {}
        }
        let list = PackedList::new(&bytes);
        assert_eq!(list.len(), model.len());
        if round % 10 > 0 {
            continue;
        }
        assert_eq!(texts(ListRef::Packed(list), 0, Direction::Forward), model);
        for (index, element) in model.iter().enumerate() {
            let found = ListRef::Packed(list).with_element(index, |found| found.to_vec());
            assert_eq!(found.as_ref(), Some(element), "element {index}");
        }
        assert_eq!(list.offset_of(model.len()), None);
        if random.usize(0..20) == 0 {
            let (run, count) = (list.run().bytes().to_vec(), list.len());
            let plan = PackedListPlan {
                run: ElementRun::new(&run),
                count,
                free_end: if random.bool() { ListEnd::Head } else { ListEnd::Tail },
                ..free
            };
            plan.build(&mut bytes, plan.min_bytes().max(4096));
            room = PackedList::new(&bytes).free_bytes() + run.len();
        }
    }
}

#[test]
fn nodes_are_filled_up_to_the_limit_and_split_in_the_middle() {
    let mut list = List::quicklist(4, 0);
    for number in 0..8 {
        list.push(ListEnd::Tail, &[b'a' + number]);
    }
    let counts = |list: &List| list.nodes.iter().map(Node::len).collect::<Vec<_>>();
    assert_eq!(counts(&list), [4, 4]);
    // The node is full and the position is in the middle: the node splits before b, and no merge is possible.
    list.insert(1, false, b"x");
    assert_eq!(counts(&list), [2, 3, 4]);
    // The position is at a border, and the neighbour has space for the element.
    list.insert(5, false, b"y");
    assert_eq!(counts(&list), [2, 4, 4]);
}

#[test]
fn only_a_single_small_run_is_a_listpack() {
    let limits = ListLimits::new(-2);
    let mut list = List::quicklist(-2, 0);
    list.push(ListEnd::Tail, &[b'a'; 4000]);
    assert!(list.fits_listpack(limits, true));
    list.push(ListEnd::Tail, &[b'b'; 4000]);
    assert!(!list.fits_listpack(limits, true) && list.fits_listpack(limits, false));
    list.push(ListEnd::Tail, &[b'c'; 4000]);
    assert_eq!(list.nodes.len(), 2);
    list.remove_range(0, 1);
    assert!(!list.fits_listpack(limits, false));
    list.remove_range(1, 1);
    assert!(list.fits_listpack(limits, true));
    list.push(ListEnd::Tail, &[b'd'; 9000]);
    list.remove_range(0, 1);
    assert!(!list.fits_listpack(limits, true), "a plain node is no listpack");
}

#[test]
fn only_the_ends_of_a_long_list_have_free_space() {
    let mut list = List::quicklist(-2, 0);
    for number in 0..1000 {
        list.push(ListEnd::Head, &[b'a'; 70]);
        if number >= 500 {
            list.remove_range(list.len() - 1, 1);
        }
        let used: usize = list.nodes.iter().map(|node| size_class(node.limit_bytes())).sum();
        let ends = 2 * 8192 + 4096;
        assert!(
            list.node_bytes <= used + ends,
            "{} bytes for {used} in push {number}",
            list.node_bytes
        );
    }
    while list.len() > 1 {
        list.remove_range(list.len() - 1, 1);
    }
    assert!(list.node_bytes <= 512, "{} bytes for one element", list.node_bytes);
    check(&list);
}

#[test]
fn prefetched_memory_belongs_to_the_list() {
    for depth in [0, 1] {
        let mut list = List::quicklist(-2, depth);
        assert!(list.node_memory(ListEnd::Head).is_none() && list.end_memory(ListEnd::Tail).is_none());
        for number in 0..500_u32 {
            list.push(ListEnd::Tail, &[number.to_le_bytes(); 20].concat());
            for end in [ListEnd::Head, ListEnd::Tail] {
                let place = list.end_memory(end).expect("the list has elements");
                assert!(!place.is_empty() && place.len() <= 192, "{} bytes", place.len());
                assert!(list.node_memory(end).is_some());
            }
        }
    }
}

#[test]
fn a_large_element_gets_a_plain_node_and_splits_a_run() {
    let mut list = List::quicklist(-2, 0);
    for element in [b"a", b"b", b"c"] {
        list.push(ListEnd::Tail, element);
    }
    list.replace(1, &[b'x'; 10_000]);
    let containers: Vec<_> = list.nodes.iter().map(Node::container).collect();
    assert_eq!(containers, [NodeKind::Packed, NodeKind::Plain, NodeKind::Packed]);
    list.replace(1, b"small");
    let expected: Vec<Vec<u8>> = vec![b"a".to_vec(), b"small".to_vec(), b"c".to_vec()];
    assert_eq!(texts(ListRef::Large(&list), 0, Direction::Forward), expected);
    check(&list);
}

#[test]
fn stored_nodes_hold_whole_listpacks() {
    let mut list = List::quicklist(2, 1);
    for number in 0..8u8 {
        list.push(ListEnd::Tail, &[b'a' + number; 60]);
    }
    let nodes: Vec<_> = list.stored_nodes().collect();
    assert_eq!(nodes.len(), 4);
    for (at, node) in nodes.iter().enumerate() {
        let whole = match node.compressed {
            None => node.whole.to_vec(),
            Some((packed, length)) => crate::lzf::decompress(packed, length).unwrap(),
        };
        assert_eq!(node.compressed.is_some(), at == 1 || at == 2);
        assert_eq!(listpack::validate(&whole).unwrap().1, 2);
    }
}

#[test]
fn a_node_that_becomes_compressible_by_removal_is_compressed() {
    let noise = |random: &mut fastrand::Rng| -> Vec<u8> { (0..1000).map(|_| random.u8(..)).collect() };
    let mut random = fastrand::Rng::with_seed(1);
    // Nodes of three elements. The inner node consists mostly of noise.
    let mut list = List::quicklist(3, 1);
    for number in 0..9 {
        match number {
            3 | 4 => list.push(ListEnd::Tail, &noise(&mut random)),
            _ => list.push(ListEnd::Tail, &[b'a'; 60]),
        }
    }
    check(&list);
    let removed = list.remove_if(Direction::Forward, |element| match element {
        Element::Bytes(bytes) if bytes[0] != b'a' || bytes[1] != b'a' => ElementAction::Remove,
        _ => ElementAction::Keep,
    });
    assert_eq!(removed, 2);
    check(&list);
}

#[test]
fn a_node_that_two_new_ones_push_inwards_is_compressed() {
    let mut list = List::quicklist(4, 2);
    for number in 0..28 {
        list.push(ListEnd::Tail, &[b'a' + (number % 3); 90]);
    }
    check(&list);
    // The position is in the middle of the last node: one half, the large element and the other half follow each other.
    assert!(list.insert(25, true, &[b'x'; 9000]));
    check(&list);
}
