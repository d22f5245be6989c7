//! Compares the parsing of first lines with Valkey 9.1.2.

use super::{ScriptFlags, ScriptHeader, of_library, of_script};

fn text(error: Vec<u8>) -> String {
    String::from_utf8(error).unwrap()
}

#[test]
fn a_script_without_shebang_has_no_flags() {
    let header = ScriptHeader {
        flags: None,
        code_at: 0,
    };
    assert_eq!(of_script(b"return 1"), Ok(header));
}

#[test]
fn flags_of_a_script_are_parsed() {
    let both = ScriptFlags::NO_WRITES.union(ScriptFlags::ALLOW_OOM);
    for (line, flags) in [
        ("#!lua\n", ScriptFlags::default()),
        ("#!Lua\r\n", ScriptFlags::default()),
        ("#!\"lua\"\n", ScriptFlags::default()),
        ("#!lua flags=\n", ScriptFlags::default()),
        ("#!lua  flags=no-writes flags=allow-oom\n", both),
        ("#!lua flags=no-writes,allow-oom\n", both),
    ] {
        let header = of_script(line.as_bytes()).unwrap();
        assert_eq!(
            (header.flags, header.code_at),
            (Some(flags), line.len() - 1),
            "{line:?}"
        );
    }
}

#[test]
fn wrong_first_lines_of_scripts_are_refused() {
    for (line, error) in [
        ("#!lua", "Invalid script shebang"),
        ("#!lua a\0b\n", "Invalid script shebang"),
        ("#!lua \"x\n", "Invalid engine in script shebang"),
        ("#!\n", "Could not find scripting engine ''"),
        ("#!foo\n", "Could not find scripting engine 'foo'"),
        ("#! lua\n", "Unknown lua shebang option: lua"),
        ("#!lua name=a\n", "Unknown lua shebang option: name=a"),
        ("#!lua flags=x\n", "Unexpected flag in script shebang: x"),
        (
            "#!lua flags=NO-WRITES\n",
            "Unexpected flag in script shebang: NO-WRITES",
        ),
        ("#!lua flags=,\n", "Unexpected flag in script shebang: "),
    ] {
        assert_eq!(text(of_script(line.as_bytes()).unwrap_err()), error, "{line:?}");
    }
}

#[test]
fn first_lines_of_libraries_are_parsed() {
    assert_eq!(of_library(b"#!LUA NAME=a_1\nx"), Ok((b"a_1".to_vec(), 14)));
    for (line, error) in [
        ("x", "Missing library metadata"),
        ("#!lua name=a", "Invalid library metadata"),
        ("#!lua \"x\n", "Invalid library metadata"),
        ("#!lua\n", "Library name was not given"),
        ("#!foo x\n", "Invalid metadata value given: x"),
        ("#!foo name=a\n", "Engine 'foo' not found"),
        (
            "#!lua name=a name=b\n",
            "Invalid metadata value, name argument was given multiple times",
        ),
    ] {
        assert_eq!(text(of_library(line.as_bytes()).unwrap_err()), error, "{line:?}");
    }
    let error = of_library(b"#!foo name=a-b\n").unwrap_err();
    assert!(text(error).starts_with("Library names can only contain letters"));
}
