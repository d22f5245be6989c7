//! Tests of splitting and quoting lines, file patterns, numbers and title templates.

use crate::glob::expand_paths;
use crate::lines::{quote_argument, split_arguments};
use crate::numbers::{format_with_unit, parse_octal};
use crate::title;

use super::ScratchDirectory;

#[test]
fn lines_split_as_valkey_splits_them() {
    type Case = (&'static [u8], Option<&'static [&'static [u8]]>);
    let cases: [Case; 20] = [
        (b"", Some(&[])),
        (b" \t ", Some(&[])),
        (b"a b\tc\rd", Some(&[b"a", b"b", b"c", b"d"])),
        (b"a \"b c\" 'd e'", Some(&[b"a", b"b c", b"d e"])),
        (b"\"\" ''", Some(&[b"", b""])),
        (br#""\n\r\t\b\a\x41\q\\\"""#, Some(&[b"\n\r\t\x08\x07Aq\\\""])),
        (br#""\x4""#, Some(&[b"x4"])),
        (br"'\n\''", Some(&[br"\n'"])),
        (b"a\"b c\"", Some(&[b"ab c"])),
        (b"a'b' c", Some(&[b"ab", b"c"])),
        (b"a\\nb", Some(&[b"a\\nb"])),
        (b"a #b", Some(&[b"a", b"#b"])),
        (b"a\0b c", Some(&[b"a"])),
        (b"\xff\xfe", Some(&[b"\xfe"])),
        (b"\"a", None),
        (b"'a", None),
        (b"\"a\"b", Some(&[b"ab"])),
        (b"'a'b", Some(&[b"ab"])),
        (b"\"a\\", None),
        (b"\"a\\\"", None),
    ];
    for (line, expected) in cases {
        let split = split_arguments(line);
        let split: Option<Vec<&[u8]>> = split.as_ref().map(|parts| parts.iter().map(Vec::as_slice).collect());
        assert_eq!(split.as_deref(), expected, "{}", line.escape_ascii());
    }
}

#[test]
fn quoted_arguments_are_read_back() {
    assert_eq!(
        quote_argument(b"a \"\\\n\r\t\x07\x08\0\xff~"),
        br#""a \"\\\n\r\t\a\b\x00\xff~""#
    );
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..2000 {
        let argument: Vec<u8> = (0..random.usize(0..12)).map(|_| random.u8(..)).collect();
        assert_eq!(split_arguments(&quote_argument(&argument)), Some(vec![argument]));
    }
}

#[test]
fn file_patterns_expand_in_order_and_skip_dot_files() {
    let scratch = ScratchDirectory::new("patterns");
    for name in ["b.conf", "a.conf", ".c.conf", "a.txt"] {
        scratch.file(name, "");
    }
    std::fs::create_dir(scratch.path().join("sub")).expect("a directory");
    scratch.file("sub/d.conf", "");
    let expand = |pattern: &str| -> Vec<String> {
        let pattern = format!("{}/{pattern}", scratch.path().display());
        let root = scratch.path();
        expand_paths(pattern.as_bytes())
            .iter()
            .map(|path| path.strip_prefix(root).expect("below the root").display().to_string())
            .collect()
    };
    assert_eq!(expand("*.conf"), ["a.conf", "b.conf"]);
    assert_eq!(expand(".*.conf"), [".c.conf"]);
    assert_eq!(expand("s*/?.conf"), ["sub/d.conf"]);
    assert_eq!(expand("*/*/x"), [""; 0]);
    assert_eq!(expand("[ab].txt"), ["a.txt"]);
}

#[test]
fn numbers_read_and_print() {
    assert_eq!(
        (parse_octal(b"770"), parse_octal(b"8"), parse_octal(b"")),
        (Some(0o770), None, Some(0))
    );
    let printed = [
        (0, "0"),
        (1, "1"),
        (1024, "1kb"),
        (3 << 20, "3mb"),
        (5 << 30, "5gb"),
        (1025, "1025"),
        (1 << 40, "1024gb"),
    ];
    for (amount, text) in printed {
        assert_eq!(format_with_unit(amount), text);
        assert_eq!(weft_resp::number::parse_memory(text.as_bytes()), Some(amount));
    }
}

#[test]
fn title_templates_expand() {
    let value = |name: &[u8]| (name == b"x").then(|| b"42".to_vec());
    assert_eq!(title::expand_template(b" a {x}{{x} ", value), Some(b"a 42{x}".to_vec()));
    assert_eq!(title::expand_template(b"{y}", value), None);
    assert_eq!(title::expand_template(b"{x", value), None);
    assert_eq!(title::expand_template(b"  ", value), Some(Vec::new()));
}
