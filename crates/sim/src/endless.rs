//! A client that runs scripts without an end, and another one that repeats SCRIPT KILL until each of them has ended.
//!
//! One thread plays both. The script is a part of the history: nothing that it has written may stay.

use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread;

use crate::bound::Bound;
use crate::client::{Client, ClientEnd, connect};
use crate::disturber;
use crate::due_keys::DueKeys;
use crate::history::ConnectionHistory;
use crate::operation::{EndlessLoop, KEYS_PER_TYPE, Operation};
use crate::reply::SeenReply;
use crate::scenario::{Disturbance, RunPlan};

/// The bound within which SCRIPT KILL must have ended a script. A pause holds the script back before it begins.
const MAX_KILL: Bound = Bound::of_ms(1000);
/// The same where other clients keep scripts running, for some of which the script waits before it begins.
const MAX_KILL_BEHIND_SCRIPTS: Bound = Bound::of_ms(6000);
/// The number of times that scripts whose client was killed are killed. Other clients run scripts, too.
const MAX_LAST_KILLS: usize = 2000;

const LOOPS: [EndlessLoop; 4] = [
    EndlessLoop::Computing,
    EndlessLoop::Reading,
    EndlessLoop::ReadingUndeclared,
    EndlessLoop::BeforeWrite,
];

/// The connections of the two clients, which may be killed by others.
#[derive(Default)]
struct Connections {
    runner: Option<Client>,
    killer: Option<Client>,
    finished: Vec<ConnectionHistory>,
    /// `true` once keys have expired while a script ran.
    has_watched_expiry: bool,
}

impl Connections {
    /// Takes a connection that has ended.
    ///
    /// # Errors
    /// If no other client can have closed it.
    fn record_end(&mut self, client: Client, end: ClientEnd) -> Result<(), String> {
        match end {
            ClientEnd::Closed if disturber::has_closed_connections() => {
                self.finished.push(client.into_history());
                Ok(())
            }
            end => Err(format!("a client of endless scripts: {end:?}")),
        }
    }

    /// Sends SCRIPT KILL, and returns the reply, unless the connection was killed.
    fn kill(&mut self, random: &mut Rng) -> Result<Option<SeenReply>, String> {
        let mut killer = match self.killer.take() {
            Some(client) => client,
            None => connect("primary.sock", random.u64(..))?,
        };
        match killer.ask(&["SCRIPT", "KILL"]) {
            Ok(reply) => {
                self.killer = Some(killer);
                Ok(Some(reply))
            }
            Err(end) => self.record_end(killer, end).map(|()| None),
        }
    }
}

/// Runs endless scripts, one after the other.
///
/// # Errors
/// If one of them does not end in time, or in another way than by SCRIPT KILL.
pub fn run_scripts(seed: u64, plan: &RunPlan) -> Result<Vec<ConnectionHistory>, String> {
    let mut random = Rng::with_seed(seed);
    let mut connections = Connections::default();
    for _ in 0..random.usize(1..6) {
        thread::sleep(Duration::from_micros(random.u64(..2000)));
        let script = Operation::ScriptEndless {
            key: random.usize(..KEYS_PER_TYPE),
            value: random.u32(..),
            kind: LOOPS[random.usize(..LOOPS.len())],
        };
        run_script(&mut connections, script, &mut random, plan)?;
    }
    let Connections {
        runner,
        killer,
        mut finished,
        ..
    } = connections;
    finished.extend([runner, killer].into_iter().flatten().map(Client::into_history));
    Ok(finished)
}

fn run_script(
    connections: &mut Connections,
    script: Operation,
    random: &mut Rng,
    plan: &RunPlan,
) -> Result<(), String> {
    let mut runner = match connections.runner.take() {
        Some(client) => client,
        None => connect("primary.sock", random.u64(..))?,
    };
    let mut due_keys = match &script {
        Operation::ScriptEndless {
            key,
            kind: EndlessLoop::Reading,
            ..
        } if plan.watches_expiry() && !connections.has_watched_expiry => Some(DueKeys::set(*key, random)?),
        _ => None,
    };
    connections.has_watched_expiry |= due_keys.is_some();
    let text = format!("{script:?}");
    if let Err(end) = runner.send(vec![script]) {
        return connections.record_end(runner, end);
    }
    if let Some(due_keys) = &mut due_keys {
        due_keys.await_deletion()?;
    }
    let start = scheduler::figures();
    let mut kills = 0;
    loop {
        let end = match runner.try_receive_last() {
            Ok(true) => break,
            Ok(false) => None,
            Err(end) => Some(end),
        };
        // A killed client leaves its script behind.
        if let Some(end) = end {
            connections.record_end(runner, end)?;
            return kill_rest(connections, random);
        }
        let bound = if plan.has_turns {
            MAX_KILL_BEHIND_SCRIPTS
        } else {
            MAX_KILL
        };
        bound
            .check(&start)
            .map_err(|passed| format!("SCRIPT KILL, accepted {kills} times, has not ended {text} {passed} later"))?;
        if random.u32(..3) == 0 {
            thread::sleep(Duration::from_micros(random.u64(..400)));
        }
        kills += u64::from(connections.kill(random)? == Some(SeenReply::ok()));
    }
    if let Some(due_keys) = due_keys {
        due_keys.delete()?;
    }
    let reply = runner.last_reply();
    connections.runner = Some(runner);
    let may_be_replica = plan.disturbances.contains(&Disturbance::Demote);
    match &reply {
        Some(SeenReply::Error(error)) if error.starts_with("ERR Script killed by user with SCRIPT KILL.") => Ok(()),
        Some(SeenReply::Error(error)) if may_be_replica && error.contains("READONLY") => Ok(()),
        other => Err(format!("{text} was answered by {other:?}")),
    }
}

/// Kills scripts until none has run for a while.
fn kill_rest(connections: &mut Connections, random: &mut Rng) -> Result<(), String> {
    let mut refused = 0;
    for _ in 0..MAX_LAST_KILLS {
        let was_killed = connections.kill(random)? == Some(SeenReply::ok());
        refused = if was_killed { 0 } else { refused + 1 };
        if refused == 5 {
            return Ok(());
        }
        thread::sleep(Duration::from_micros(500));
    }
    Err("SCRIPT KILL is accepted again and again".to_owned())
}
