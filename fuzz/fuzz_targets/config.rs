//! Fuzzes configuration files and command lines. What CONFIG REWRITE makes of an accepted file must be accepted, and
//! rewritten as itself.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;
use weft_config::command_line::CommandLine;
use weft_config::{Config, RewriteScope, RewrittenDirectives, StartAction};

/// Words that read other files, or create some.
const EXCLUDED: [&[u8]; 4] = [b"include", b"logfile", b"dir", b"loadmodule"];

fn load(text: &[u8]) -> Result<Config, String> {
    let command_line = CommandLine {
        options: text.to_vec(),
        ..CommandLine::default()
    };
    Config::load(&command_line).map_err(|error| error.to_string())
}

fn check_file(text: &[u8]) {
    let Ok(config) = load(text) else {
        return;
    };
    // A blank at the end of a line, where the last of several addresses is empty, is lost the first time.
    let first = config.rewritten(text, &RewrittenDirectives::default(), RewriteScope::ChangedOnly);
    let second = rewrite(&first);
    assert_eq!(
        String::from_utf8_lossy(&rewrite(&second)),
        String::from_utf8_lossy(&second)
    );
}

/// Rewrites a file that was rewritten before.
fn rewrite(text: &[u8]) -> Vec<u8> {
    match load(text) {
        Ok(config) => config.rewritten(text, &RewrittenDirectives::default(), RewriteScope::ChangedOnly),
        Err(error) => panic!("{error}\nin {:?}", String::from_utf8_lossy(text)),
    }
}

fuzz_target!(|input: &[u8]| {
    let lower = input.to_ascii_lowercase();
    if EXCLUDED
        .iter()
        .any(|word| lower.windows(word.len()).any(|found| found == *word))
    {
        return;
    }
    let Some((shape, text)) = input.split_first() else {
        return;
    };
    if shape & 1 == 0 {
        return check_file(text);
    }
    let mut arguments = vec![OsString::from("weft-server")];
    arguments.extend(
        text.split(|byte| *byte == 0)
            .map(|word| OsString::from_vec(word.to_vec())),
    );
    if let Ok(StartAction::RunServer(command_line)) = StartAction::parse(&arguments)
        && command_line.file.is_none()
        && !command_line.standard_input
    {
        check_file(&command_line.options);
    }
});
