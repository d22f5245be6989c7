//! Each single file operation of logging, rewrites, saves and switches fails in turn, and no acknowledged write is
//! lost.

use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::{Image, write_image};
use super::errors::FaultControl;
use super::recording::{FileEvent, Recording};
use super::server::{PATIENCE, Preload, Server, info_field};
use crate::stress::client::{CallError, StressClient, StressReply};

/// The most operations that a scene has. More would mean that the fault does not end it.
const MAX_OPERATIONS: usize = 200;
const AWAIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The work that is done while one operation fails.
const SCENES: &[&[&str]] = &[
    &["BGREWRITEAOF"],
    &["BGSAVE"],
    &["CONFIG SET appendonly no", "CONFIG SET appendonly yes"],
];

/// The errors with which a command of a scene may be refused because an operation has failed. BGSAVE reports that
/// later, and switching off cannot fail.
const REFUSALS: [&str; 2] = [
    "ERR Can't execute an AOF background rewriting. Please check the server logs for more information.",
    "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check server logs.",
];

/// The counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct EveryFaultCounts {
    pub faults: usize,
    pub exits: usize,
}

/// Lets every `stride`-th operation fail.
///
/// # Errors
/// Says which acknowledged write is lost, or that the server ended without need.
pub fn run(binary: &Path, library: &Path, directory: &Path, stride: usize) -> Result<EveryFaultCounts, String> {
    let mut counts = EveryFaultCounts::default();
    for scene in SCENES {
        for policy in ["always", "everysec"] {
            for error in [5, 28] {
                for operation in (0..MAX_OPERATIONS).step_by(stride) {
                    let story = |why| {
                        format!("{scene:?}, appendfsync {policy}, operation {operation} fails with {error}: {why}")
                    };
                    let fault = format!("any * {operation} 1 {error}");
                    let has_failed =
                        one(binary, library, directory, (scene, policy, &fault), &mut counts).map_err(story)?;
                    if !has_failed {
                        break;
                    }
                    counts.faults += 1;
                }
            }
        }
    }
    Ok(counts)
}

/// Lets one operation fail. Returns `false` if there was none.
fn one(
    binary: &Path,
    library: &Path,
    directory: &Path,
    (scene, policy, fault): (&[&str], &str, &str),
    counts: &mut EveryFaultCounts,
) -> Result<bool, String> {
    let data = directory.join("every-fault");
    write_image(&Image::new(), &data)?;
    let recording = directory.join("every-fault-recording");
    // Neither file exists before the first fault.
    let _ = fs::remove_file(&recording);
    let _ = fs::remove_file(data.with_extension("log"));
    let mut control = FaultControl::new(directory.join("control"))?;
    let preload = Preload {
        library: library.to_owned(),
        recording: Some(recording.clone()),
        control: Some(control.path().to_owned()),
        ..Preload::default()
    };
    let arguments = ["--appendonly", "yes", "--appendfsync", policy, "--save", ""];
    let mut server = Server::start(binary, &data, &arguments, Some(&preload))?;
    let mut client = SceneClient::connect(&server)?;
    client.write()?;
    let before = client.acknowledged;
    control.set(&[fault])?;
    for command in scene {
        client.run(command, &REFUSALS)?;
        client.write()?;
        settle(&server)?;
        client.write()?;
    }
    control.set(&[])?;
    // A rewrite that was put off follows, and failed writes are repeated. Without a file nothing need be kept.
    let file = client.run("CONFIG GET appendonly", &[])?;
    if file.is_some_and(|reply| reply.items().iter().any(|word| word.text() == "no")) {
        client.run("CONFIG SET appendonly yes", &[])?;
    }
    settle(&server)?;
    let ended = client.await_end(&mut server)?;
    let mut acknowledged = client.acknowledged;
    let has_failed = Recording::read(&recording)?
        .records
        .iter()
        .any(|record| matches!(record.event, FileEvent::Fault { .. }));
    if let Some(status) = ended {
        counts.exits += 1;
        let log = server.log_tail(10);
        if policy != "always" || !log.contains("Exiting...") {
            return Err(format!("the server has ended ({status})\n{log}"));
        }
        // Data that was written while the append-only file was off is in no file until the first base is complete.
        if scene.iter().any(|command| command.contains("appendonly")) {
            acknowledged = before;
        }
    }
    server.kill();
    drop(server);
    let server = Server::start(binary, &data, &arguments, None)?;
    let mut client = server.connect()?;
    for number in 0..acknowledged {
        let found = client.call(&format!("GET k{number}"))?.text();
        if found != number.to_string() {
            return Err(format!(
                "the acknowledged write {number} of {acknowledged} is lost: '{found}'"
            ));
        }
    }
    Ok(has_failed)
}

/// The client of a scene, which writes keys with consecutive numbers.
struct SceneClient {
    client: StressClient,
    /// The number of acknowledged keys.
    acknowledged: usize,
    /// `true` if the server has closed the connection, which it may do only if it ends.
    is_closed: bool,
}

impl SceneClient {
    fn connect(server: &Server) -> Result<Self, String> {
        Ok(SceneClient {
            client: server.connect()?,
            acknowledged: 0,
            is_closed: false,
        })
    }

    /// Sends a command that may be refused with one of these errors. Returns its reply; `None` if the connection is
    /// closed.
    ///
    /// # Errors
    /// Fails if there is no reply in time, or if it is another error.
    fn run(&mut self, command: &str, refusals: &[&str]) -> Result<Option<StressReply>, String> {
        match self.client.call(command) {
            Ok(StressReply::Error(error)) if !refusals.contains(&error.as_str()) => {
                Err(format!("{command} was answered by {error}"))
            }
            Ok(reply) => Ok(Some(reply)),
            Err(CallError::Closed) => {
                self.is_closed = true;
                Ok(None)
            }
            Err(CallError::Protocol(why)) => Err(format!("{command}: {why}")),
        }
    }

    /// Writes some keys, each with its number. Stops at the first that is refused because the append-only file cannot
    /// be written.
    ///
    /// # Errors
    /// Fails if there is no reply in time, or if it is another one.
    fn write(&mut self) -> Result<(), String> {
        for _ in 0..5 {
            let command = format!("SET k{0} {0}", self.acknowledged);
            match self.client.call(&command) {
                Ok(StressReply::Simple(_)) => self.acknowledged += 1,
                Ok(StressReply::Error(error)) if error.starts_with("MISCONF ") => return Ok(()),
                Ok(other) => return Err(format!("{command} was answered by {other:?}")),
                Err(CallError::Closed) => {
                    self.is_closed = true;
                    return Ok(());
                }
                Err(CallError::Protocol(why)) => return Err(format!("{command}: {why}")),
            }
        }
        Ok(())
    }

    /// Returns the exit status of the process if it has ended. It must end if it has closed the connection.
    ///
    /// # Errors
    /// Fails if it does not end in time.
    fn await_end(&mut self, server: &mut Server) -> Result<Option<ExitStatus>, String> {
        // A process that is ending may have closed its connections without having an exit status yet.
        self.run("ECHO end", &[])?;
        if !self.is_closed {
            return Ok(server.wait_for_exit(Duration::ZERO));
        }
        match server.wait_for_exit(PATIENCE) {
            Some(status) => Ok(Some(status)),
            None => Err("the server closed a connection, and does not end".to_owned()),
        }
    }
}

/// Waits until no save and no rewrite is under way and nothing that was written is missing, or until the process ends.
///
/// # Errors
/// Fails if the server does not reply to INFO in time.
fn settle(server: &Server) -> Result<(), String> {
    let deadline = Instant::now() + AWAIT_TIMEOUT;
    while Instant::now() < deadline {
        let Ok(mut client) = server.connect() else {
            return Ok(());
        };
        let text = match client.call("INFO persistence") {
            Ok(reply) => reply.text(),
            Err(CallError::Closed) => String::new(),
            Err(CallError::Protocol(why)) => return Err(format!("INFO: {why}")),
        };
        let idle = [
            "aof_rewrite_in_progress",
            "aof_rewrite_scheduled",
            "rdb_bgsave_in_progress",
        ];
        let is_idle = idle.iter().all(|field| info_field(&text, field) == Some("0"));
        if is_idle && info_field(&text, "aof_last_write_status") == Some("ok") {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
