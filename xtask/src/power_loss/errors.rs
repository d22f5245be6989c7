//! Disk errors: chosen operations fail, and replies, INFO, log lines and the end of the process are Valkey's.
//!
//! Each scenario runs on both servers, on Weft also with many active workers. Its transcript has the replies, the
//! awaited fields of INFO, the exit code, the temporary files, the warnings of the log without their numbers, and what
//! a server without faults loads afterwards. A second part lets every single operation of a rewrite, a save and a
//! switch fail in turn ([`super::every_fault`]).

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::disk::{Image, write_image};
use super::error_scenarios::{Action, SCENARIOS, Scenario};
use super::server::{Preload, Server, info_field};
use crate::stress::client::StressReply;

/// The time after which a write is synced with `appendfsync everysec`.
const SYNC_PAUSE: Duration = Duration::from_millis(2500);
/// The time that an awaited state may take. On a busy machine a save point alone may need most of it.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// The further arguments of Weft in each of its runs.
const WEFT_ARGUMENTS: [&[&str]; 2] = [&[], &["--io-threads", "8", "--io-threads-always-active", "yes"]];

/// Sets the faults that are injected from now on.
pub struct FaultControl {
    path: PathBuf,
    generation: u64,
}

impl FaultControl {
    /// Creates the control file, without faults.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn new(path: PathBuf) -> Result<Self, String> {
        let mut control = FaultControl { path, generation: 0 };
        control.set(&[])?;
        Ok(control)
    }

    /// The path of the control file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the faults.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn set(&mut self, faults: &[&str]) -> Result<(), String> {
        self.generation += 1;
        let mut text = format!("{}\n", self.generation);
        for fault in faults {
            text += &format!("{fault}\n");
        }
        // One write in place: the library has the file open. The rest of an older text would be read, too.
        text.push_str(&"\n".repeat(2048_usize.saturating_sub(text.len())));
        let write = || -> io::Result<()> {
            let file = fs::File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&self.path)?;
            std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0)
        };
        write().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// Runs all scenarios on both servers. Returns the number of scenarios.
///
/// # Errors
/// Fails with the differences.
pub fn compare(weft: &Path, valkey: &Path, library: &Path, directory: &Path, filter: &str) -> Result<usize, String> {
    let mut differences = Vec::new();
    let mut count = 0;
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(filter)) {
        count += 1;
        let of_valkey = transcript(scenario, valkey, &[], library, directory)?;
        for arguments in WEFT_ARGUMENTS {
            let of_weft = transcript(scenario, weft, arguments, library, directory)?;
            if of_valkey != of_weft {
                let show = |lines: &[String]| lines.iter().map(|line| format!("    {line}\n")).collect::<String>();
                differences.push(format!(
                    "{}:\n  Valkey:\n{}  Weft {}:\n{}",
                    scenario.name,
                    show(&of_valkey),
                    arguments.join(" "),
                    show(&of_weft)
                ));
            }
        }
    }
    match differences.is_empty() {
        true => Ok(count),
        false => Err(format!(
            "{} differences in {count} scenarios\n{}",
            differences.len(),
            differences.join("\n")
        )),
    }
}

fn transcript(
    scenario: &Scenario,
    binary: &Path,
    further_arguments: &[&str],
    library: &Path,
    directory: &Path,
) -> Result<Vec<String>, String> {
    let arguments = [scenario.arguments, further_arguments].concat();
    let data = directory.join("errors");
    write_image(&Image::new(), &data)?;
    // It does not exist before the first scenario.
    let _ = fs::remove_file(data.with_extension("log"));
    let mut control = FaultControl::new(directory.join("control"))?;
    let preload = Preload {
        library: library.to_owned(),
        control: Some(control.path().to_owned()),
        ..Preload::default()
    };
    let mut lines = Vec::new();
    control.set(scenario.first_faults)?;
    let mut server = Server::spawn(binary, &data, &arguments, Some(&preload))?;
    if let Err(why) = server.wait_until_ready() {
        lines.push(why);
    }
    for action in scenario.actions {
        perform(action, &mut server, &data, &mut control, &mut lines)?;
    }
    server.kill();
    lines.extend(warnings(&server.log()));
    drop(server);
    if scenario.loads {
        let server = Server::start(binary, &data, &arguments, None)?;
        let mut client = server.connect()?;
        for key in ["a", "b", "c", "d", "e"] {
            lines.push(format!("loaded {key}: {}", client.call(&format!("GET {key}"))?.text()));
        }
    }
    Ok(lines)
}

fn perform(
    action: &Action,
    server: &mut Server,
    data: &Path,
    control: &mut FaultControl,
    lines: &mut Vec<String>,
) -> Result<(), String> {
    match action {
        Action::Call(command) => {
            let reply = server.connect().and_then(|mut client| Ok(client.call(command)?));
            let reply = match reply {
                Ok(reply) => shown(&reply),
                Err(_) => "no reply".to_owned(),
            };
            lines.push(format!("{command}: {reply}"));
        }
        Action::Fault(faults) => control.set(faults)?,
        Action::Await(fields) => lines.push(await_fields(server, fields)?),
        Action::AwaitSync => std::thread::sleep(SYNC_PAUSE),
        Action::FullSync => lines.push(format!("SYNC: {}", receive_dump(server))),
        Action::TemporaryFiles => lines.push(format!("temporary files: {}", temporary_files(data).join(" "))),
        Action::AwaitExit => {
            let status = server.wait_for_exit(AWAIT_TIMEOUT);
            lines.push(status.map_or_else(|| "still running".to_owned(), |status| status.to_string()));
        }
    }
    Ok(())
}

/// Requests a dump with SYNC and receives it. Returns what has become of it.
fn receive_dump(server: &Server) -> String {
    let receive = || -> io::Result<()> {
        let stream = UnixStream::connect(server.socket())?;
        stream.set_read_timeout(Some(AWAIT_TIMEOUT))?;
        let mut stream = BufReader::new(stream);
        stream.get_mut().write_all(b"SYNC\r\n")?;
        let mut line = String::new();
        // Newlines keep the connection alive until the dump begins.
        while line.trim_end().is_empty() {
            line.clear();
            if stream.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let length = line.trim_end().strip_prefix('$').and_then(|length| length.parse().ok());
        let length: usize = length.ok_or_else(|| io::Error::other(line.trim_end().to_owned()))?;
        stream.read_exact(&mut vec![0; length])
    };
    match receive() {
        Ok(()) => "a dump".to_owned(),
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            "the connection is closed".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

/// Returns the names of the temporary files below the data directory, in order, with numbers replaced by `N`.
fn temporary_files(data: &Path) -> Vec<String> {
    let directories = [data.to_owned(), data.join("appendonlydir")];
    // The second one exists only with an append-only file.
    let entries = directories.iter().flat_map(fs::read_dir).flatten().flatten();
    let names = entries.map(|entry| without_numbers(&entry.file_name().to_string_lossy()));
    let mut names: Vec<String> = names.filter(|name| name.starts_with("temp-")).collect();
    names.sort();
    names
}

fn shown(reply: &StressReply) -> String {
    let text = match reply {
        StressReply::Error(error) => format!("-{error}"),
        other => other.text(),
    };
    without_numbers(&text)
}

/// Waits until fields of INFO have values. Returns what they have in the end.
fn await_fields(server: &Server, fields: &[(&str, &str)]) -> Result<String, String> {
    let deadline = Instant::now() + AWAIT_TIMEOUT;
    loop {
        let Ok(mut client) = server.connect() else {
            return Ok("no connection".to_owned());
        };
        let text = client
            .call("INFO persistence")
            .map_or_else(|_| String::new(), |reply| reply.text());
        let is_reached = fields
            .iter()
            .all(|(field, value)| info_field(&text, field) == Some(value));
        if is_reached || Instant::now() > deadline {
            let of = |(field, _): &(&str, &str)| format!("{field}={}", info_field(&text, field).unwrap_or("-"));
            return Ok(fields.iter().map(of).collect::<Vec<_>>().join(" "));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The different warnings of a log, sorted, with numbers replaced by `N` and the server's directory removed.
fn warnings(log: &str) -> Vec<String> {
    const ABOUT_THE_SYSTEM: [&str; 7] = [
        "Memory overcommit",
        "Transparent Huge",
        "memory overcommit",
        "oO0",
        "Failed to test the kernel",
        "no config file",
        "TCP backlog",
    ];
    let mut lines: Vec<String> = log
        .lines()
        .filter_map(|line| line.split_once(" # ").map(|(_, text)| without_numbers(text)))
        .filter(|line| !ABOUT_THE_SYSTEM.iter().any(|word| line.contains(word)))
        .map(|line| format!("log: {line}"))
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter.is_ascii_digit() {
            true if out.ends_with('N') => {}
            true => out.push('N'),
            false => out.push(letter),
        }
    }
    out
}
