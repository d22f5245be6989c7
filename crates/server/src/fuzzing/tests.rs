//! Loads payloads made by Valkey, of every type and encoding, current and obsolete, both intact and damaged; and runs
//! other targets on their seeds.

use std::path::Path;

use super::*;

/// Reads values as DUMP of Valkey 9.1.2 returns them, without version and checksum. Those named `old` come from files
/// of older servers. They are also the seeds of the fuzz target.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/restore");
    let mut seeds: Vec<_> = std::fs::read_dir(folder)
        .expect("the seeds are there")
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("is read"))
        })
        .collect();
    seeds.sort();
    assert!(seeds.len() > 30, "only {} seeds", seeds.len());
    seeds
}

fn with_footer(body: &[u8]) -> Vec<u8> {
    let mut sealed = body.to_vec();
    dump_payload::append_footer(&mut sealed, dump_payload::VERSION);
    sealed
}

#[test]
fn every_seed_is_loaded_and_dumped_unchanged() {
    for (name, body) in seeds() {
        println!("{name}");
        assert!(
            with_loaded(&with_footer(&body), &EncodingLimits::default(), fingerprint_and_dump).is_some(),
            "{name} is refused"
        );
        check_restore(&body);
    }
}

#[test]
fn dumps_equal_those_of_valkey_where_order_is_defined() {
    // The members of a hash table come in a different order.
    let unordered = ["hash-table", "hash-with-an-expiring-field", "set-table"];
    // These seeds were made with other limits than the defaults with which they are loaded here.
    let other_limits = ["sorted-set-skiplist"];
    for (name, body) in seeds() {
        if name.starts_with("old") || unordered.contains(&&*name) || other_limits.contains(&&*name) {
            continue;
        }
        let (_, dump) =
            with_loaded(&with_footer(&body), &EncodingLimits::default(), fingerprint_and_dump).expect("is loaded");
        assert_eq!(dump, with_footer(&body), "{name}");
    }
}

#[test]
fn a_damaged_payload_is_refused_or_loads_as_a_value() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let seeds: Vec<_> = seeds().into_iter().filter(|(_, body)| body.len() < 1000).collect();
    for round in 0..20_000 {
        let (name, body) = &seeds[random.usize(..seeds.len())];
        let damaged = damage(body, &mut random);
        let culprit = PrintOnPanic(round, name, &damaged);
        check_restore(culprit.2);
    }
}

/// Prints the payload and its origin if the test panics.
struct PrintOnPanic<'a>(usize, &'a str, &'a [u8]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("round {}, made of {}: {}", self.0, self.1, hex::encode(self.2));
        }
    }
}

/// Returns a copy with a few bits, bytes or lengths changed.
fn damage(body: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut damaged = body.to_vec();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..=damaged.len());
        match random.u8(..6) {
            0 | 1 if at < damaged.len() => damaged[at] ^= 1 << random.u8(..8),
            2 if at < damaged.len() => damaged[at] = random.u8(..),
            3 if at < damaged.len() => {
                damaged.remove(at);
            }
            4 => damaged.insert(at, random.u8(..)),
            _ => {
                // Duplicates a piece.
                let end = (at + random.usize(..8)).min(damaged.len());
                let piece = damaged[at..end].to_vec();
                let to = random.usize(..=damaged.len());
                damaged.splice(to..to, piece);
            }
        }
    }
    damaged
}

/// Runs a target on its seeds, and on damaged ones.
fn run_on_seeds(target: &str, check: fn(&[u8]), rounds: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let seed = fastrand::u64(..);
    println!("{target}: seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let files = std::fs::read_dir(folder).expect("the seeds are there");
    for file in files {
        let path = file.expect("a file").path();
        println!("{}", path.display());
        let sound = std::fs::read(&path).expect("is read");
        check(&sound);
        for _ in 0..rounds {
            let mut damaged = sound.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..damaged.len());
                damaged[at] = random.u8(..);
            }
            check(&damaged);
        }
    }
}

#[test]
fn rdb_files_are_loaded_as_well_in_pieces() {
    run_on_seeds("rdb_file", check_rdb_file, 20);
}

#[test]
fn append_only_files_are_replayed_as_well_in_pieces() {
    run_on_seeds("aof_file", check_aof, 20);
}

#[test]
fn manifests_are_written_as_they_were_read() {
    run_on_seeds("aof_manifest", check_manifest, 500);
}

#[test]
fn links_to_any_primary_end() {
    run_on_seeds("replica_link", check_replica_link, 3);
}
