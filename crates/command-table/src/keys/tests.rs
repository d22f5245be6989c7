//! Tests of the key walker that the recordings of COMMAND GETKEYS do not cover: routing, hostile arguments, and
//! agreement of the fast cases with the general one.

use super::*;
use crate::tables::TABLES;

fn all_specs() -> Vec<&'static CommandSpec> {
    TABLES
        .iter()
        .copied()
        .flatten()
        .flat_map(|spec| std::iter::once(spec).chain(spec.subcommands))
        .collect()
}

fn spec(name: &str) -> &'static CommandSpec {
    let row = TABLES.iter().copied().flatten().find(|spec| spec.name == name);
    row.expect("the command has a row")
}

fn walked_keys(spec: &CommandSpec, args: &[&[u8]]) -> Vec<KeyPosition> {
    let mut keys = Vec::new();
    let count = walk_keys(spec, args, &mut |key| keys.push(key));
    assert_eq!(count, keys.len());
    keys
}

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

#[test]
fn shard_channels_are_routed_but_are_not_keys() {
    for (line, expected) in [
        ("ssubscribe a b", vec![1, 2]),
        ("spublish a message", vec![1]),
        ("get k", vec![1]),
    ] {
        let args = words(line);
        let spec = spec(line.split(' ').next().unwrap_or_default());
        let mut routed = Vec::new();
        walk_routed_arguments(spec, args.as_slice(), &mut |key| routed.push(key.index));
        assert_eq!(routed, expected, "{line}");
    }
    assert_eq!(walked_keys(spec("ssubscribe"), &words("ssubscribe a b")), []);
    assert_eq!(walked_keys(spec("spublish"), &words("spublish a message")), []);
}

#[test]
fn a_failing_spec_discards_the_keys_of_the_other_specs() {
    assert_eq!(
        walked_keys(spec("zunionstore"), &words("zunionstore destination 3 a b")),
        []
    );
    assert_eq!(
        walked_keys(spec("zunionstore"), &words("zunionstore destination 2 a b")).len(),
        3
    );
}

#[test]
fn pfmerge_without_sources_still_has_its_destination() {
    let keys = walked_keys(spec("pfmerge"), &words("pfmerge destination"));
    assert_eq!(keys.iter().map(|key| key.index).collect::<Vec<_>>(), [1]);
}

#[test]
fn overflowing_counts_find_no_keys() {
    for count in [
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551617",
        "99999999999999999999999",
        "-1",
    ] {
        for name in ["eval", "zunionstore", "msetex", "lmpop", "bzmpop", "sintercard"] {
            let args = [name.as_bytes(), count.as_bytes(), count.as_bytes(), b"a", b"b"];
            assert_eq!(walked_keys(spec(name), &args), [], "{name} {count}");
        }
    }
}

#[test]
fn malformed_arguments_do_not_panic() {
    const WORDS: &[&[u8]] = &[
        b"",
        b"0",
        b"1",
        b"2",
        b"3",
        b"-1",
        b"01",
        b"1x",
        b"9223372036854775807",
        b"99999999999999999999",
        b"k",
        b"STORE",
        b"storedist",
        b"STREAMS",
        b"KEYS",
        b"GET",
        b"by",
        b"LIMIT",
        b"AUTH",
        b"auth2",
        b"SET",
        b"incrby",
        b"OVERFLOW",
        b"\xff\x00\r\n",
        b"BLOCK",
        b"COUNT",
        b"GROUP",
    ];
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for spec in all_specs() {
        for _ in 0..300 {
            let mut args: Vec<&[u8]> = (0..random.usize(0..12))
                .map(|_| WORDS[random.usize(0..WORDS.len())])
                .collect();
            if let Some(first) = args.first_mut() {
                *first = spec.name.as_bytes();
            }
            for key in walked_keys(spec, &args) {
                assert!(
                    key.index > 0 && key.index < args.len(),
                    "{} {args:?}: {key:?}",
                    spec.name
                );
                assert!(!key.flags.contains(KeyFlags::NOT_KEY));
            }
        }
    }
}

#[test]
fn the_fast_paths_agree_with_the_key_specs() {
    for spec in all_specs() {
        if spec.key_shape == KeyShape::Complex || spec.special_keys != SpecialKeys::None {
            continue;
        }
        for count in 1..9 {
            let args = vec![b"x".as_slice(); count];
            let mut expected = Vec::new();
            walk_specs(spec, args.as_slice(), false, &mut |key| expected.push(key));
            assert_eq!(walked_keys(spec, &args), expected, "{} with {count} words", spec.name);
        }
    }
}

#[test]
fn set_reads_the_key_only_with_get() {
    let flags = |line: &str| walked_keys(spec("set"), &words(line))[0].flags;
    let overwrites = KeyFlags::OW.union(KeyFlags::UPDATE);
    assert_eq!(flags("set k v"), overwrites);
    assert_eq!(flags("set k get"), overwrites, "a value is no option");
    assert_eq!(
        flags("set k v EX 10 Get"),
        KeyFlags::of(&[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])
    );
}

/// A module that names the second and third words as keys, unless the thread may not call it.
struct SecondAndThird {
    may_be_called: bool,
}

impl crate::spec::KeyFinder for SecondAndThird {
    fn find_keys(&self, words: &[&[u8]]) -> Option<Vec<(usize, KeyFlags)>> {
        let keys = [2, 3, words.len(), 900].map(|index| (index, KeyFlags::RO));
        self.may_be_called.then(|| keys.to_vec())
    }
}

fn module_command(finder: &'static SecondAndThird, key_specs: &'static [KeySpec]) -> CommandSpec {
    let mut spec = crate::spec::command("m.keys", -1, crate::spec::Group::Module, "").keys(key_specs);
    spec.special_keys = SpecialKeys::Module(ModuleKeys(finder));
    spec.key_shape = KeyShape::Complex;
    spec
}

fn indexes(spec: &CommandSpec, line: &str) -> Vec<usize> {
    walked_keys(spec, &words(line)).iter().map(|key| key.index).collect()
}

#[test]
fn modules_are_asked_for_keys_if_their_specs_do_not_tell() {
    static ASKED: SecondAndThird = SecondAndThird { may_be_called: true };
    static NOT_ASKED: SecondAndThird = SecondAndThird { may_be_called: false };
    const RELIABLE: &[KeySpec] = &[crate::spec::keys(1, &[KeyFlags::RO])];
    const VARIABLE: &[KeySpec] = &[crate::spec::keys(1, &[KeyFlags::RW, KeyFlags::VARIABLE_FLAGS])];
    const UNKNOWN: &[KeySpec] = &[crate::spec::unknown_keys(&[KeyFlags::RO])];
    let line = "m.keys a b c d";
    for (key_specs, asked, not_asked) in [
        (&[][..], vec![2, 3], vec![]),
        (RELIABLE, vec![1], vec![1]),
        (VARIABLE, vec![2, 3], vec![1]),
        (UNKNOWN, vec![2, 3], vec![]),
    ] {
        assert_eq!(indexes(&module_command(&ASKED, key_specs), line), asked);
        assert_eq!(indexes(&module_command(&NOT_ASKED, key_specs), line), not_asked);
    }
}

#[test]
fn specs_of_modules_may_have_any_numbers() {
    let range = |first, last, step, limit| KeySpec {
        find: FindKeys::Range { last, step, limit },
        ..crate::spec::keys(first, &[KeyFlags::RW])
    };
    let count = |index, first, step| KeySpec {
        find: FindKeys::KeyNum { index, first, step },
        ..crate::spec::keys(1, &[KeyFlags::RW])
    };
    let numbers = [i32::MIN, -300, -1, 0, 1, 2, 300, i32::MAX];
    let args = words("m.keys 3 b c d e 9223372036854775807");
    for a in numbers {
        for b in numbers {
            for c in numbers {
                let specs = [range(a, b, c, 0), range(a, b, 1, c), count(a, b, c)];
                for key_spec in specs {
                    let specs: &'static [KeySpec] = Box::leak(Box::new([key_spec]));
                    let spec = crate::spec::command("m.keys", -1, crate::spec::Group::Module, "").keys(specs);
                    for key in walked_keys(&spec, &args) {
                        assert!((1..args.len()).contains(&key.index), "{key_spec:?}");
                    }
                }
            }
        }
    }
    assert_eq!(
        indexes(
            &crate::spec::command("m.keys", -1, crate::spec::Group::Module, "")
                .keys(Box::leak(Box::new([range(1, 0, 0, 0)]))),
            "m.keys a b"
        ),
        [1]
    );
}

#[test]
fn modules_may_have_more_specs_than_the_table() {
    let many: Vec<KeySpec> = (1..=9).map(|index| crate::spec::keys(index, &[KeyFlags::RO])).collect();
    let spec = crate::spec::command("m.keys", -1, crate::spec::Group::Module, "").keys(many.leak());
    assert_eq!(
        indexes(&spec, "m.keys a b c d e f g h i j"),
        (1..=9).collect::<Vec<_>>()
    );
    assert_eq!(
        indexes(&spec, "m.keys a b"),
        [],
        "a failing spec discards the keys of the others"
    );
}
