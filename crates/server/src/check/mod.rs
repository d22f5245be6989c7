//! The file check programs, which this binary runs when it is started as `valkey-check-rdb` or
//! `valkey-check-aof`.
//!
//! They print the same lines as Valkey's programs, in the same order, and return the same exit codes. No part of the
//! server runs.

mod append_only;
mod dump;
mod statistics;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use weft_config::program_version;

pub use append_only::check as check_append_only;

/// The path and the options of an RDB check.
struct DumpOptions<'a> {
    path: &'a Path,
    format: Option<statistics::StatisticsFormat>,
    output: Option<File>,
}

/// Runs the check of an RDB file. `arguments` are those after the program name. Returns the exit code.
pub fn check_dump(program: &str, arguments: &[OsString]) -> u8 {
    if let [only] = arguments
        && (only == "-v" || only == "--version")
    {
        println!("valkey-check-rdb {}", program_version());
        return 0;
    }
    let Some(options) = parse_dump_options(arguments) else {
        eprint!("Usage: {program} <rdb-file-name> [--format table|info|csv] [--stats] [--output <file>]");
        return 1;
    };
    // Failed writes are ignored, as in any program whose reader has exited.
    let _ = writeln!(io::stdout(), "[offset 0] Checking RDB file {}", options.path.display());
    let sound = match options.output {
        Some(file) => check_dump_file(options.path, options.format, &mut io::BufWriter::new(file)),
        None => check_dump_file(options.path, options.format, &mut io::BufWriter::new(io::stdout())),
    };
    u8::from(!sound)
}

fn check_dump_file(path: &Path, format: Option<statistics::StatisticsFormat>, out: &mut dyn Write) -> bool {
    let Ok(file) = File::open(path) else {
        let _ = writeln!(out, "[offset 0] Check RDB returned error code 1 (0 means success)");
        return false;
    };
    let mut check = dump::RdbCheck::new(file, format.is_some(), out);
    let sound = check.run();
    check.print_result(sound);
    if let Some(format) = format {
        check.statistics().print(format, out);
    }
    let _ = out.flush();
    sound
}

fn parse_dump_options(arguments: &[OsString]) -> Option<DumpOptions<'_>> {
    let (path, rest) = arguments.split_first()?;
    let mut options = DumpOptions {
        path: Path::new(path),
        format: None,
        output: None,
    };
    let (mut wanted, mut format) = (false, statistics::StatisticsFormat::Table);
    let mut rest = rest.iter();
    while let Some(option) = rest.next() {
        match option.to_str()? {
            "--stats" => wanted = true,
            "--format" => format = statistics::StatisticsFormat::from_name(rest.next()?.to_str()?)?,
            // If the file cannot be created, the output goes to standard output.
            "--output" => options.output = File::create(rest.next()?).ok(),
            _ => return None,
        }
    }
    options.format = wanted.then_some(format);
    Some(options)
}
