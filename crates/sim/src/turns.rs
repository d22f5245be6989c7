//! Scripts and commands in exclusive mode take turns, and no worker waits for a script that waits for it.
//!
//! In one kind of round, clients run scripts one after the other until a command of another client has had exclusive
//! mode. In the other one, scripts query all workers while scripts on workers write the keys that they read. The model
//! does not know the keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread;

use crate::bound::Bound;
use crate::client::{Client, ClientEnd, connect, spawn};
use crate::disturber;
use crate::reply::SeenReply;
use crate::scenario::RunPlan;

const SOCKET: &str = "primary.sock";
/// The number of clients that run scripts beside a command in exclusive mode.
const RIVALS: usize = 5;
/// The number of scripts that a client sends at once, so that another one begins as soon as one has ended.
const SCRIPTS_PER_PIPELINE: usize = 3;
/// The number of scripts that may end between the request for exclusive mode and its reply. A command waits for the
/// scripts that run when it comes and for those of one turn, and for some more where its worker is stalled for long.
const MAX_OVERTAKINGS: usize = 1000;
/// The bound within which a script must be answered that only waits for other scripts.
const MAX_SCRIPT_WAIT: Bound = Bound::of_ms(5000);
/// A command that needs exclusive mode, changes nothing, and is not held back by a pause of writes.
const EXCLUSIVE_COMMAND: &str = "ACL DELUSER nobody";

/// What the clients of a round share.
#[derive(Default)]
struct RoundState {
    /// Set when the command is sent.
    is_waiting: AtomicBool,
    /// Set when it is answered.
    has_ended: AtomicBool,
    /// The number of scripts that have ended meanwhile.
    overtakings: AtomicUsize,
}

/// Runs some rounds.
///
/// # Errors
/// If a command or a script waits for too long.
pub fn take_turns(seed: u64, plan: &RunPlan) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    for _ in 0..random.usize(1..3) {
        thread::sleep(Duration::from_micros(random.u64(..3000)));
        match random.bool() {
            true => wait_behind_scripts(&mut random)?,
            // An endless script may hold the slots.
            false if plan.shares_slots => {}
            false => query_beside_writes(&mut random)?,
        }
    }
    Ok(())
}

/// Sends a command that needs exclusive mode while other clients run scripts.
fn wait_behind_scripts(random: &mut Rng) -> Result<(), String> {
    let round = Arc::new(RoundState::default());
    let mut rivals = Vec::new();
    for index in 0..RIVALS {
        let (seed, round) = (random.u64(..), round.clone());
        rivals.push(spawn(&format!("rival-{index}"), move || run_scripts(seed, &round)));
    }
    // Some scripts run by then.
    thread::sleep(Duration::from_micros(random.u64(..2000)));
    let answered = ask_for_exclusive_mode(random.u64(..), &round);
    round.has_ended.store(true, Ordering::SeqCst);
    let overtakings = round.overtakings.load(Ordering::SeqCst);
    for rival in rivals {
        rival.join().map_err(|_| "a client of scripts panicked".to_owned())??;
    }
    answered?;
    match overtakings <= MAX_OVERTAKINGS {
        true => Ok(()),
        false => Err(format!(
            "{overtakings} scripts have ended while {EXCLUSIVE_COMMAND} waited"
        )),
    }
}

fn ask_for_exclusive_mode(seed: u64, round: &RoundState) -> Result<(), String> {
    let mut client = connect(SOCKET, seed)?;
    round.is_waiting.store(true, Ordering::SeqCst);
    client.ask_text(EXCLUSIVE_COMMAND).map(drop).or_else(accept_end)
}

/// Runs scripts, several at a time, until the round has ended or has lasted for too long.
fn run_scripts(seed: u64, round: &RoundState) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let mut client = connect(SOCKET, random.u64(..))?;
    let are_too_many = || round.overtakings.load(Ordering::SeqCst) > MAX_OVERTAKINGS;
    while !round.has_ended.load(Ordering::SeqCst) && !are_too_many() {
        match run_pipeline(&mut client, &mut random) {
            Ok(ended) if round.is_waiting.load(Ordering::SeqCst) => {
                round.overtakings.fetch_add(ended, Ordering::SeqCst);
            }
            Ok(_) => {}
            Err(end) => return accept_end(end),
        }
    }
    Ok(())
}

/// Runs a few scripts. Returns the number of those that have ended without an error.
fn run_pipeline(client: &mut Client, random: &mut Rng) -> Result<usize, ClientEnd> {
    for _ in 0..SCRIPTS_PER_PIPELINE {
        client.request(&slow_script(random))?;
    }
    let mut ended = 0;
    for _ in 0..SCRIPTS_PER_PIPELINE {
        let reply = client.receive_message()?;
        ended += usize::from(!matches!(reply, SeenReply::Error(_)));
    }
    Ok(ended)
}

/// Lets two clients run scripts that get into each other's way.
fn query_beside_writes(random: &mut Rng) -> Result<(), String> {
    let scripts: [fn(&mut Rng) -> String; 2] = [querying_script, writing_script];
    let mut clients = Vec::new();
    for script in scripts {
        let seed = random.u64(..);
        clients.push(spawn("querier", move || run_single_scripts(seed, script)));
    }
    for client in clients {
        client.join().map_err(|_| "a client of scripts panicked".to_owned())??;
    }
    Ok(())
}

fn run_single_scripts(seed: u64, script: fn(&mut Rng) -> String) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let mut client = connect(SOCKET, random.u64(..))?;
    for _ in 0..random.usize(2..8) {
        thread::sleep(Duration::from_micros(random.u64(..400)));
        if let Err(end) = ask_within_bound(&mut client, &script(&mut random)) {
            return accept_end(end);
        }
    }
    Ok(())
}

fn ask_within_bound(client: &mut Client, request: &str) -> Result<(), ClientEnd> {
    let start = scheduler::figures();
    client.request(request)?;
    while client.try_receive_message()?.is_none() {
        MAX_SCRIPT_WAIT
            .check(&start)
            .map_err(|passed| ClientEnd::Failed(format!("{request} is not answered {passed} later")))?;
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// A script that runs on a script thread: it has a loop, and the server has not seen its text.
fn slow_script(random: &mut Rng) -> String {
    let script = in_one_word("for i=1,500 do redis.call('GET',KEYS[1]) end");
    format!("EVAL_RO {script}\t--{} 1 turns:x", random.u32(..))
}

/// A script that runs on a script thread, and asks all workers while it holds a slot.
fn querying_script(random: &mut Rng) -> String {
    let script = "for i=1,40 do redis.call('GET',KEYS[1]) end return #redis.call('INFO','clients')";
    format!("EVAL_RO {}\t--{} 1 turns:x", in_one_word(script), random.u32(..))
}

/// A script that runs on its worker, since it has no loop. It has written when it needs the slot of the other one.
fn writing_script(_: &mut Rng) -> String {
    let script = "redis.call('SET',ARGV[1],'1') redis.call('SET',ARGV[2],'1')";
    format!("EVAL {} 0 turns:y turns:x", in_one_word(script))
}

/// Words of requests are separated by blanks.
fn in_one_word(script: &str) -> String {
    script.replace(' ', "\t")
}

/// Accepts that another client has closed the connection.
fn accept_end(end: ClientEnd) -> Result<(), String> {
    match end {
        ClientEnd::Closed if disturber::has_closed_connections() => Ok(()),
        end => Err(format!("a client of scripts that take turns: {end:?}")),
    }
}
