//! Vulnerabilities of the programs that check files, which are the server's binary under other names.

use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use super::{ADDRESS_SPACE_KIB, Target, in_time};
use crate::append_only::server::{TestDirectory, weft};

/// The maximum length of a path for the kernel, with the zero byte at its end.
const PATH_MAX: usize = 4096;

/// Runs a program in a directory, with a limited address space.
fn run(place: &TestDirectory, program: &str, arguments: &[&str]) -> Output {
    let limited = "ulimit -v \"$0\" && exec \"$@\"";
    Command::new("sh")
        .args(["-c", limited, &ADDRESS_SPACE_KIB.to_string()])
        .arg(place.0.join(program))
        .args(arguments)
        .current_dir(&place.0)
        .stdin(Stdio::null())
        .output()
        .expect("starts")
}

/// Checks that the programs refuse a path with exit code 1.
fn refuses(place: &TestDirectory, path: &str) {
    for (program, options) in [
        ("valkey-check-aof", &[][..]),
        ("valkey-check-aof", &["--fix"]),
        ("valkey-check-aof", &["--truncate-to-timestamp", "1"]),
        ("valkey-check-rdb", &[]),
    ] {
        let output = run(place, program, &[options, &[path]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        let shown = &text[..text.len().min(200)];
        assert_eq!(
            output.status.code(),
            Some(1),
            "{program} {options:?}, {} bytes: {shown}",
            path.len()
        );
        assert!(!text.contains("is valid"), "{program}: {shown}");
        if program == "valkey-check-aof" && path.len() > PATH_MAX {
            assert!(
                text.starts_with("Error: filepath is too long (exceeds PATH_MAX)\nUsage: "),
                "{options:?}: {shown}"
            );
        }
    }
}

/// The path is copied into a buffer of fixed size, to find the directory of the file.
#[test]
fn cve_2025_27151_long_paths_do_not_overflow_a_buffer() {
    let mut target = Target::start(&[]);
    let place = TestDirectory::new();
    for name in ["valkey-check-aof", "valkey-check-rdb"] {
        symlink(weft(), place.0.join(name)).expect("makes a link");
    }
    let content = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n";
    std::fs::write(place.0.join("file"), content).expect("writes");
    // The longest path that the kernel takes is that of a sound file.
    for length in [PATH_MAX / 2, PATH_MAX - 1] {
        let path = format!("{}file", "/".repeat(length));
        let path = format!(".{}", &path[path.len() - (length - 1)..]);
        let output = run(&place, "valkey-check-aof", &[&path]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("is valid"), "{length}");
    }
    in_time(|| {
        for length in [PATH_MAX, PATH_MAX + 1, PATH_MAX + 8, 2 * PATH_MAX, 100_000] {
            for part in ["a", "/", "a/", "./", "../"] {
                let path = part.repeat(length.div_ceil(part.len()));
                refuses(&place, &format!("{}file", &path[4..length]));
                target.serves();
            }
        }
    });
    // Nothing was changed or left.
    assert_eq!(std::fs::read_to_string(place.0.join("file")).expect("reads"), content);
    assert_eq!(std::fs::read_dir(&place.0).expect("lists").count(), 3);
}

/// The names in a manifest are joined with the path of its directory.
#[test]
fn cve_2025_27151_long_names_in_a_manifest_do_not_overflow_a_buffer() {
    let mut target = Target::start(&[]);
    let place = TestDirectory::new();
    symlink(weft(), place.0.join("valkey-check-aof")).expect("makes a link");
    for length in [
        255,
        256,
        1024,
        PATH_MAX - 1,
        PATH_MAX,
        PATH_MAX + 1,
        100_000,
        10_000_000,
    ] {
        for kind in ["b", "i", "h"] {
            let manifest = format!(
                "file {} seq 1 type {kind}\nfile last seq 2 type i\n",
                "a".repeat(length)
            );
            std::fs::write(place.0.join("manifest"), manifest).expect("writes");
            let output = run(&place, "valkey-check-aof", &["manifest"]);
            assert_eq!(output.status.code(), Some(1), "{length} {kind}");
        }
        target.serves();
    }
}
