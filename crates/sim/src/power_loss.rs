//! A client that looks at the disk as soon as a write is acknowledged: what a loss of power would leave of the
//! append-only file at that moment. At the end of the run, a server loads what was left.
//!
//! With `appendfsync always` all acknowledged writes must be there; with `everysec`, and where syncs are suspended
//! during snapshots, the last ones may be missing.

use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use weft_os::disk;
use weft_os::thread;
use weft_server::simulation::start_server;

use crate::client::{Client, ClientEnd, connect, spawn};
use crate::disturber;
use crate::reply::SeenReply;
use crate::scenario::RunPlan;

/// The key of the list. The model does not know it.
const KEY: &str = "durable";
/// The directory of the server's append-only file.
const FOLDER: &str = "appendonlydir";
/// A script that pushes a number. It has a loop, so a text that the server has not seen runs on a script thread.
const SCRIPT: &str = "for i=1,2 do end return redis.call('RPUSH',KEYS[1],ARGV[1])";
/// The maximum number of copies of the disk in a run.
const MAX_COPIES: usize = 3;

/// What a loss of power would have left.
pub struct LostDisk {
    folder: String,
    /// The numbers whose pushes the server had acknowledged, in order.
    acknowledged: Vec<u32>,
    /// The last number that was sent.
    sent: u32,
}

/// The thread of the client, if the run has it.
pub type DiskObserver = Option<thread::JoinHandle<Result<Vec<LostDisk>, String>>>;

/// Starts the client, if the run has it.
pub fn start_client(plan: &RunPlan, random: &mut Rng) -> DiskObserver {
    let seed = random.u64(..);
    let has_client = plan.loses_power && plan.appendfsync.is_some();
    has_client.then(|| spawn("power-loss", move || write_and_copy(seed)))
}

/// Waits for the end of the client. Returns its copies.
///
/// # Errors
/// If it has failed.
pub fn end_client(observer: DiskObserver) -> Result<Vec<LostDisk>, String> {
    observer.map_or(Ok(Vec::new()), |thread| {
        let ended = thread.join();
        ended.map_err(|_| "the client that looks at the disk panicked".to_owned())?
    })
}

/// Pushes numbers to a list, and copies the disk after some of them. Fails if a request fails in another way than the
/// run allows, or the disk cannot be copied.
fn write_and_copy(seed: u64) -> Result<Vec<LostDisk>, String> {
    let mut random = Rng::with_seed(seed);
    let mut copies = Vec::new();
    let mut acknowledged = Vec::new();
    let mut open: Option<Client> = None;
    for number in 1..=random.u32(4..40) {
        thread::sleep(Duration::from_micros(random.u64(..3000)));
        let mut client = match open.take() {
            Some(client) => client,
            None => connect("primary.sock", random.u64(..))?,
        };
        match client.ask_text(&push_request(number, random.u32(..3) == 0)) {
            Ok(SeenReply::Integer(_)) => {
                acknowledged.push(number);
                if copies.len() < MAX_COPIES && random.u32(..4) == 0 {
                    let folder = format!("lost-{}", copies.len());
                    disk::copy_synced(Path::new(FOLDER), Path::new(&folder))
                        .map_err(|error| format!("copying {FOLDER}: {error}"))?;
                    copies.push(LostDisk {
                        folder,
                        acknowledged: acknowledged.clone(),
                        sent: number,
                    });
                }
                open = Some(client);
            }
            // A replica refuses it, as does a server that loads its data.
            Ok(_) => open = Some(client),
            Err(ClientEnd::Closed) if disturber::has_closed_connections() => {}
            Err(end) => return Err(format!("the client that looks at the disk: {end:?}")),
        }
    }
    Ok(copies)
}

/// Returns the request that pushes a number. The reply to a script comes from another thread than that of a worker.
fn push_request(number: u32, is_script: bool) -> String {
    if !is_script {
        return format!("RPUSH {KEY} {number}");
    }
    // Words of requests are separated by blanks.
    let script = SCRIPT.replace(' ', "\t");
    format!("EVAL {script}\t--{number} 1 {KEY} {number}")
}

/// Starts a server with each of the disks, and looks for what was acknowledged. Returns a text for the figures.
/// `may_lack_numbers` is `true` if something in the run has deleted the list.
///
/// # Errors
/// If a server does not start, or lacks an acknowledged write.
pub fn check_disks(disks: &[LostDisk], plan: &RunPlan, may_lack_numbers: bool) -> Result<String, String> {
    for (index, disk) in disks.iter().enumerate() {
        let socket = format!("restored-{index}.sock");
        let server = start_server("restored", plan.restored_arguments(&socket, &disk.folder));
        while !Path::new(&socket).exists() {
            if server.is_finished() {
                return Err(format!("no server starts with what is left in {}", disk.folder));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let failed = |end: ClientEnd| format!("a server with what is left in {}: {end:?}", disk.folder);
        let mut client = connect(&socket, 1)?;
        let reply = loop {
            match client.ask_text(&format!("LRANGE {KEY} 0 -1")).map_err(failed)? {
                SeenReply::Error(text) if text.starts_with("LOADING") => thread::sleep(Duration::from_millis(1)),
                reply => break reply,
            }
        };
        let is_always_synced = plan.appendfsync == Some("always") && !plan.spares_disk();
        disk.check(&reply, is_always_synced, may_lack_numbers)?;
        client.request("SHUTDOWN NOSAVE").map_err(failed)?;
        if !server.join().map_err(|_| "the restored server panicked".to_owned())? {
            return Err("the restored server has not ended in order".to_owned());
        }
    }
    Ok(format!("{} lost disks loaded", disks.len()))
}

impl LostDisk {
    fn check(&self, reply: &SeenReply, is_always_synced: bool, may_lack_numbers: bool) -> Result<(), String> {
        let SeenReply::Array(elements) = reply else {
            return Err(format!("LRANGE {KEY} was answered by {reply:?}"));
        };
        let number = |element: &SeenReply| match element {
            SeenReply::Bulk(text) => std::str::from_utf8(text).ok()?.parse::<u32>().ok(),
            _ => None,
        };
        let found: Vec<u32> = elements.iter().filter_map(number).collect();
        let is_in_order = found.is_sorted_by(|one, next| one < next) && found.len() == elements.len();
        let is_sent = found.last().is_none_or(|last| *last <= self.sent);
        let is_kept = match (is_always_synced, may_lack_numbers) {
            (false, true) => true,
            // The end may be missing, and nothing else.
            (false, false) => self.contains_acknowledged(&found, found.last().copied().unwrap_or(0)),
            (true, false) => self.contains_acknowledged(&found, self.sent),
            (true, true) => found.last().is_none_or(|last| self.acknowledged.last() <= Some(last)),
        };
        if is_in_order && is_sent && is_kept {
            return Ok(());
        }
        Err(format!(
            "a loss of power left {found:?} in {}, where {:?} was acknowledged",
            self.folder, self.acknowledged
        ))
    }

    /// Returns `true` if the acknowledged numbers up to `last` are among those that were found.
    fn contains_acknowledged(&self, found: &[u32], last: u32) -> bool {
        let expected = self.acknowledged.iter().filter(|number| **number <= last);
        expected.copied().all(|number| found.contains(&number))
    }
}
