//! The map of unused pages.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use super::page_map::{CHUNK_BYTES, CHUNK_PAGES, ChunkWords, PAGE_BYTES, PageMap};

/// The number of chunks of the maps.
const CHUNKS: usize = 130;

/// The memory of all maps, which is never freed. A leak detector finds it here.
static KEPT: Mutex<Vec<MapMemory>> = Mutex::new(Vec::new());

type MapMemory = (&'static [ChunkWords], &'static [AtomicU64]);

/// Creates a map of `CHUNKS` chunks.
fn map() -> PageMap {
    let chunks: Vec<ChunkWords> = (0..CHUNKS)
        .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
        .collect();
    let known: Vec<AtomicU64> = (0..CHUNKS.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
    let (chunks, known): (&[_], &[_]) = (chunks.leak(), known.leak());
    KEPT.lock().expect("no test panics meanwhile").push((chunks, known));
    PageMap::new(chunks, known)
}

/// Returns the runs of unused pages, of all chunks, as page numbers.
fn runs(map: &PageMap) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    map.visit(|address, unused| {
        assert_eq!(address % CHUNK_BYTES, 0);
        assert_eq!(unused.count(), unused.runs().map(|run| run.len()).sum());
        let first = address / PAGE_BYTES;
        runs.extend(unused.runs().map(|run| first + run.start..first + run.end));
    });
    runs
}

fn insert(map: &PageMap, pages: Range<usize>) {
    map.insert(pages.start * PAGE_BYTES, pages.len() * PAGE_BYTES);
}

fn remove(map: &PageMap, pages: Range<usize>) {
    map.remove(pages.start * PAGE_BYTES, pages.len() * PAGE_BYTES);
}

#[test]
fn ranges_may_cross_borders_of_words_and_chunks() {
    let map = map();
    assert_eq!(runs(&map), []);
    for pages in [
        0..1,
        63..65,
        64..128,
        0..512,
        511..513,
        500..512,
        5..1300,
        512 * 64 - 1..512 * 64 + 1,
    ] {
        insert(&map, pages.clone());
        let mut expected = Vec::new();
        let mut first = pages.start;
        while first < pages.end {
            let last = pages.end.min((first / CHUNK_PAGES + 1) * CHUNK_PAGES);
            expected.push(first..last);
            first = last;
        }
        assert_eq!(runs(&map), expected);
        remove(&map, pages);
        assert_eq!(runs(&map), []);
    }
}

#[test]
fn parts_of_a_range_can_be_removed() {
    let map = map();
    insert(&map, 100..400);
    remove(&map, 200..201);
    remove(&map, 0..101);
    remove(&map, 399..600);
    remove(&map, 250..250);
    assert_eq!(runs(&map), [101..200, 201..399]);
    insert(&map, 200..201);
    assert_eq!(runs(&map), [Range { start: 101, end: 399 }]);
}

#[test]
fn addresses_beyond_the_map_count_as_used() {
    let map = map();
    let end = CHUNKS * CHUNK_PAGES;
    insert(&map, end - 1..end + 5);
    insert(&map, end + 700..end + 701);
    insert(&map, usize::MAX / PAGE_BYTES - 1..usize::MAX / PAGE_BYTES);
    assert_eq!(runs(&map), [Range { start: end - 1, end }]);
    remove(&map, end - 1..end + 5);
    remove(&map, end + 700..end + 701);
    assert_eq!(runs(&map), []);
}

#[test]
fn random_ranges_are_recorded() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let map = map();
    let mut model = BTreeSet::new();
    for _ in 0..500 {
        let start = random.usize(..CHUNKS * CHUNK_PAGES);
        let most = if random.bool() { 100 } else { 3000 };
        let pages = start..(start + random.usize(..most)).min(CHUNKS * CHUNK_PAGES);
        if random.bool() {
            insert(&map, pages.clone());
            model.extend(pages);
        } else {
            remove(&map, pages.clone());
            pages.for_each(|page| {
                model.remove(&page);
            });
        }
        assert!(runs(&map).into_iter().flatten().eq(model.iter().copied()));
    }
}

/// A visitor that holds a chunk and its pages are never in use at the same time.
#[test]
fn pages_cannot_be_removed_during_a_visit() {
    let map = map();
    let in_use = AtomicU64::new(0);
    let is_over = AtomicU64::new(0);
    let load = |counter: &AtomicU64| counter.load(std::sync::atomic::Ordering::SeqCst);
    let add = |counter: &AtomicU64, change: u64| {
        counter.fetch_add(change, std::sync::atomic::Ordering::SeqCst);
    };
    insert(&map, 10..20);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while load(&is_over) == 0 {
                    map.visit(|_, unused| {
                        if unused.count() == 10 {
                            assert_eq!(load(&in_use), 0);
                        }
                    });
                }
            });
        }
        for _ in 0..20_000 {
            remove(&map, 10..20);
            add(&in_use, 1);
            add(&in_use, u64::MAX);
            insert(&map, 10..20);
        }
        add(&is_over, 1);
    });
}
