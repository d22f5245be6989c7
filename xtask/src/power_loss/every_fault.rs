//! Each single file operation of logging, rewrites, saves and switches fails in turn, and no acknowledged write is
//! lost.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::{Image, write_image};
use super::errors::FaultControl;
use super::recording::{FileEvent, Recording};
use super::server::{Preload, Server, info_field};
use crate::stress::client::{StressClient, StressReply};

/// The most operations that a scene has. More would mean that the fault does not end it.
const MAX_OPERATIONS: usize = 200;
const AWAIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The work that is done while one operation fails.
const SCENES: &[&[&str]] = &[
    &["BGREWRITEAOF"],
    &["BGSAVE"],
    &["CONFIG SET appendonly no", "CONFIG SET appendonly yes"],
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
    let mut client = server.connect()?;
    let mut acknowledged = 0;
    write(&mut client, &mut acknowledged);
    let before = acknowledged;
    control.set(&[fault])?;
    for command in scene {
        // A command may be refused, and the process may end.
        let _ = client.call(command);
        write(&mut client, &mut acknowledged);
        settle(&server);
        write(&mut client, &mut acknowledged);
    }
    control.set(&[])?;
    // A rewrite that was put off follows, and failed writes are repeated. Without a file nothing need be kept.
    if client
        .call("CONFIG GET appendonly")
        .is_ok_and(|reply| reply.items().iter().any(|word| word.text() == "no"))
    {
        let _ = client.call("CONFIG SET appendonly yes");
    }
    settle(&server);
    let has_failed = Recording::read(&recording)?
        .records
        .iter()
        .any(|record| matches!(record.event, FileEvent::Fault { .. }));
    if let Some(status) = server.wait_for_exit(Duration::ZERO) {
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

/// Writes some keys, each with its number. Stops at the first that is refused.
fn write(client: &mut StressClient, acknowledged: &mut usize) {
    for _ in 0..5 {
        match client.call(&format!("SET k{acknowledged} {acknowledged}")) {
            Ok(StressReply::Simple(_)) => *acknowledged += 1,
            _ => return,
        }
    }
}

/// Waits until no save and no rewrite is under way and nothing that was written is missing, or until the process ends.
fn settle(server: &Server) {
    let deadline = Instant::now() + AWAIT_TIMEOUT;
    while Instant::now() < deadline {
        let Ok(mut client) = server.connect() else {
            return;
        };
        let text = client
            .call("INFO persistence")
            .map_or_else(|_| String::new(), |reply| reply.text());
        let idle = [
            "aof_rewrite_in_progress",
            "aof_rewrite_scheduled",
            "rdb_bgsave_in_progress",
        ];
        let is_idle = idle.iter().all(|field| info_field(&text, field) == Some("0"));
        if is_idle && info_field(&text, "aof_last_write_status") == Some("ok") {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
