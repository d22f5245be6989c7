//! A client that saves dumps while others write. At the end of the run, a server loads each of them. A dump must show
//! one moment between BGSAVE and its reply: the checker treats it as a read of all keys.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;
use weft_server::simulation::start_server;

use crate::client::{Client, ClientEnd, connect, spawn};
use crate::disturber;
use crate::history::ConnectionHistory;
use crate::operation::{self, KEYS_PER_TYPE, Operation};
use crate::reply::SeenReply;
use crate::scenario::RunPlan;

/// The file to which the server saves.
const DUMP: &str = "dump.rdb";
/// The maximum number of dumps in a run.
const MAX_DUMPS: usize = 3;
/// The number of times that the client asks whether a dump is complete.
const MAX_QUESTIONS: usize = 2000;

/// What a client has seen, and the files of its dumps.
#[derive(Default)]
pub struct ObservedDumps {
    histories: Vec<ConnectionHistory>,
    /// For each dump, the file, and the history with its BGSAVE.
    dumps: Vec<(String, usize)>,
}

/// The thread of the client, if the run has it.
pub type DumpObserver = Option<thread::JoinHandle<Result<ObservedDumps, String>>>;

/// Starts the client, if the run has it.
pub fn start_client(plan: &RunPlan, random: &mut Rng) -> DumpObserver {
    let seed = random.u64(..);
    plan.observes_dumps
        .then(|| spawn("dump-observer", move || save_repeatedly(seed)))
}

/// Waits for the end of the client.
///
/// # Errors
/// If it has failed.
pub fn end_client(observer: DumpObserver) -> Result<ObservedDumps, String> {
    observer.map_or(Ok(ObservedDumps::default()), |thread| {
        let ended = thread.join();
        ended.map_err(|_| "the client that saves dumps panicked".to_owned())?
    })
}

/// Saves dumps at random times. Fails if a request fails in another way than the run allows.
fn save_repeatedly(seed: u64) -> Result<ObservedDumps, String> {
    let mut random = Rng::with_seed(seed);
    let mut seen = ObservedDumps::default();
    for _ in 0..MAX_DUMPS {
        thread::sleep(Duration::from_micros(random.u64(..6000)));
        let mut client = connect("primary.sock", random.u64(..))?;
        let file = format!("seen-{}.rdb", seen.dumps.len());
        let saved = save(&mut client, &file);
        let mut history = client.into_history();
        match saved {
            Ok(true) => seen.dumps.push((file, seen.histories.len())),
            Ok(false) => forget_save(&mut history),
            Err(ClientEnd::Closed) if disturber::has_closed_connections() => forget_save(&mut history),
            Err(end) => return Err(format!("the client that saves dumps: {end:?}")),
        }
        seen.histories.push(history);
    }
    Ok(seen)
}

/// Saves a dump. Returns `false` if the server refuses that, or ends it before the file is complete.
fn save(client: &mut Client, file: &str) -> Result<bool, ClientEnd> {
    // One whose client was killed may still be under way.
    wait_for_end(client)?;
    // An older dump would be taken for this one.
    let _ = fs::remove_file(DUMP);
    client.run(vec![Operation::Save])?;
    if !client.last_reply_is(&SeenReply::Status("Background saving started".to_owned())) {
        return Ok(false);
    }
    wait_for_end(client)?;
    Ok(fs::rename(DUMP, file).is_ok())
}

/// Waits until the server saves no dump.
fn wait_for_end(client: &mut Client) -> Result<(), ClientEnd> {
    for _ in 0..MAX_QUESTIONS {
        let SeenReply::Bulk(info) = client.ask_text("INFO persistence")? else {
            return Err(ClientEnd::Failed("INFO persistence without a text".to_owned()));
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        if info.lines().any(|line| line == "rdb_bgsave_in_progress:0") {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(ClientEnd::Failed("BGSAVE does not end".to_owned()))
}

/// Replaces the operation of a save without a file by one that the model ignores.
fn forget_save(history: &mut ConnectionHistory) {
    for event in &mut history.events {
        if event.operation == Operation::Save {
            event.operation = Operation::Ignored(vec!["BGSAVE"]);
        }
    }
}

impl ObservedDumps {
    /// Loads the dumps, and puts what is in them into the histories as the replies to BGSAVE. Returns the histories,
    /// and a text for the figures.
    ///
    /// # Errors
    /// If a server does not start with a dump, or does not reply.
    pub fn load(mut self, plan: &RunPlan) -> Result<(Vec<ConnectionHistory>, String), String> {
        for (index, (file, history)) in self.dumps.iter().enumerate() {
            let contents = load(plan, index, file)?;
            let mut events = self.histories[*history].events.iter_mut();
            let saving = events.find(|event| event.operation == Operation::Save);
            if let Some((replies, _)) = saving.and_then(|event| event.answer.as_mut()) {
                *replies = vec![contents];
            }
        }
        let text = format!("{} dumps loaded", self.dumps.len());
        Ok((self.histories, text))
    }
}

/// Starts a server with a dump. Returns all its strings, lists and sets.
fn load(plan: &RunPlan, index: usize, file: &str) -> Result<SeenReply, String> {
    let socket = format!("loaded-{index}.sock");
    let server = start_server("loaded", plan.loading_arguments(&socket, file));
    while !Path::new(&socket).exists() {
        if server.is_finished() {
            return Err(format!("no server starts with {file}"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    let failed = |end: ClientEnd| format!("a server with {file}: {end:?}");
    let mut client = connect(&socket, 1)?;
    let mut ask = |request: String| loop {
        match client.ask_text(&request).map_err(failed)? {
            SeenReply::Error(text) if text.starts_with("LOADING") => thread::sleep(Duration::from_millis(1)),
            reply => break Ok::<SeenReply, String>(reply),
        }
    };
    let strings: Vec<String> = (0..KEYS_PER_TYPE).map(operation::string).collect();
    let mut parts = vec![ask(format!("MGET {}", strings.join(" ")))?];
    for key in 0..KEYS_PER_TYPE {
        parts.push(ask(format!("LRANGE {} 0 -1", operation::list(key)))?);
    }
    for key in 0..KEYS_PER_TYPE {
        parts.push(in_order(ask(format!("SMEMBERS {}", operation::set(key)))?));
    }
    client.request("SHUTDOWN NOSAVE").map_err(failed)?;
    if !server
        .join()
        .map_err(|_| "the server with a dump panicked".to_owned())?
    {
        return Err("the server with a dump has not ended in order".to_owned());
    }
    Ok(SeenReply::Array(parts))
}

/// Sorts the members of a set, which are numbers.
fn in_order(members: SeenReply) -> SeenReply {
    let number = |member: &SeenReply| match member {
        SeenReply::Bulk(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse::<u32>().ok()),
        _ => None,
    };
    match members {
        SeenReply::Array(mut members) => {
            members.sort_by_key(number);
            SeenReply::Array(members)
        }
        other => other,
    }
}
