//! A client that looks at the disk as soon as a write is acknowledged: what a loss of power would leave of the
//! append-only file at that moment. At the end of the run, a server loads what was left.
//!
//! With `appendfsync always` the write must be there. With `everysec` the server must be able to load the file.

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

/// The key. The model does not know it.
const KEY: &str = "durable";
/// The directory of the server's append-only file.
const FOLDER: &str = "appendonlydir";
/// The maximum number of copies of the disk in a run.
const MAX_COPIES: usize = 3;

/// What a loss of power would have left.
pub struct LostDisk {
    folder: String,
    /// The number that the server had acknowledged.
    acknowledged: u32,
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

/// Writes numbers, and copies the disk after some of them. Fails if a request fails in another way than the run allows,
/// or the disk cannot be copied.
fn write_and_copy(seed: u64) -> Result<Vec<LostDisk>, String> {
    let mut random = Rng::with_seed(seed);
    let mut copies = Vec::new();
    let mut open: Option<Client> = None;
    for number in 1..=random.u32(3..20) {
        thread::sleep(Duration::from_micros(random.u64(..3000)));
        let mut client = match open.take() {
            Some(client) => client,
            None => connect("primary.sock", random.u64(..))?,
        };
        match client.ask_text(&format!("SET {KEY} {number}")) {
            Ok(reply) => {
                // A replica refuses it, as does a server that loads its data.
                let is_acknowledged = reply == SeenReply::ok();
                if is_acknowledged && copies.len() < MAX_COPIES && random.bool() {
                    let folder = format!("lost-{}", copies.len());
                    disk::copy_synced(Path::new(FOLDER), Path::new(&folder))
                        .map_err(|error| format!("copying {FOLDER}: {error}"))?;
                    copies.push(LostDisk {
                        folder,
                        acknowledged: number,
                        sent: number,
                    });
                }
                open = Some(client);
            }
            Err(ClientEnd::Closed) if disturber::has_closed_connections() => {}
            Err(end) => return Err(format!("the client that looks at the disk: {end:?}")),
        }
    }
    Ok(copies)
}

/// Starts a server with each of the disks, and looks for what was acknowledged. Returns a text for the figures.
/// `may_lack_key` is `true` if something in the run has deleted the key.
///
/// # Errors
/// If a server does not start, or lacks an acknowledged write.
pub fn check_disks(disks: &[LostDisk], plan: &RunPlan, may_lack_key: bool) -> Result<String, String> {
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
            match client.ask_text(&format!("GET {KEY}")).map_err(failed)? {
                SeenReply::Error(text) if text.starts_with("LOADING") => thread::sleep(Duration::from_millis(1)),
                reply => break reply,
            }
        };
        disk.check(&reply, plan.appendfsync == Some("always"), may_lack_key)?;
        client.request("SHUTDOWN NOSAVE").map_err(failed)?;
        if !server.join().map_err(|_| "the restored server panicked".to_owned())? {
            return Err("the restored server has not ended in order".to_owned());
        }
    }
    Ok(format!("{} lost disks loaded", disks.len()))
}

impl LostDisk {
    fn check(&self, reply: &SeenReply, is_always_synced: bool, may_lack_key: bool) -> Result<(), String> {
        let found = match reply {
            SeenReply::Null => None,
            SeenReply::Bulk(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse::<u32>().ok()),
            other => return Err(format!("GET {KEY} was answered by {other:?}")),
        };
        let is_kept = match found {
            Some(number) => self.acknowledged <= number,
            None => may_lack_key,
        };
        if (is_kept || !is_always_synced) && found.is_none_or(|number| number <= self.sent) {
            return Ok(());
        }
        Err(format!(
            "a loss of power left {found:?} in {}, where {} was acknowledged and {} sent",
            self.folder, self.acknowledged, self.sent
        ))
    }
}
