//! A writer's session: it sends commands to the primary, follows redirections, and says what is known of each command.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::history::Outcome;
use super::router::{REPLY_BOUND, RoutedClient, Router};
use crate::stress::client::{CallError, StressReply};

/// The time within which a writer must find a node that accepts its writes.
pub const PROGRESS_BOUND: Duration = Duration::from_secs(40);
/// The time that a WAIT waits for the replicas.
const WAIT_TIMEOUT_MS: u32 = 1000;

/// Errors with which a server refuses a command that it has not run.
pub const REFUSALS: &[&str] = &[
    "MOVED ",
    "ASK ",
    "READONLY ",
    "LOADING ",
    "MASTERDOWN ",
    "CLUSTERDOWN ",
    "TRYAGAIN ",
    "UNBLOCKED ",
    "EXECABORT ",
];

/// Sets a flag when it is dropped, also by a panic. Otherwise the threads that look at the flag would not end, and a
/// scope that waits for them would wait forever.
pub struct StopOnDrop<'f>(pub &'f AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state that the writers of a round share.
pub struct RoundState {
    pub router: Arc<Router>,
    pub number: u64,
    /// The number of replicas that WAIT asks for.
    pub replicas: usize,
    /// `true` if the writers pause between their commands. Otherwise the servers are as busy as they can be.
    pub has_pauses: bool,
    /// The beginnings of the errors that clients may see.
    allowed_errors: &'static [&'static str],
    stop: AtomicBool,
    replies: AtomicU64,
    longest_reply_ms: AtomicU64,
    longest_outage_ms: AtomicU64,
    longest_down_ms: AtomicU64,
    /// What clients have seen instead of a reply, with its number.
    errors: Mutex<BTreeMap<String, u64>>,
    failures: Mutex<Vec<String>>,
}

impl RoundState {
    pub fn new(router: Arc<Router>, number: u64, replicas: usize, has_pauses: bool) -> Self {
        Self {
            router,
            number,
            replicas,
            has_pauses,
            allowed_errors: REFUSALS,
            stop: AtomicBool::new(false),
            replies: AtomicU64::new(0),
            longest_reply_ms: AtomicU64::new(0),
            longest_outage_ms: AtomicU64::new(0),
            longest_down_ms: AtomicU64::new(0),
            errors: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Makes every error a failure that does not begin like one of these.
    pub fn with_allowed_errors(self, allowed_errors: &'static [&'static str]) -> Self {
        Self { allowed_errors, ..self }
    }

    /// Returns `true` while the writers should continue.
    pub fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns a guard that calls [`Self::stop`] when it is dropped.
    pub fn stop_on_drop(&self) -> StopOnDrop<'_> {
        StopOnDrop(&self.stop)
    }

    /// Records a failure and ends the round.
    pub fn fail(&self, story: String) {
        self.stop();
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(story);
    }

    /// Returns the failures of the writers.
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The longest time for which a request to a running server was not answered, in milliseconds.
    pub fn longest_reply_ms(&self) -> u64 {
        self.longest_reply_ms.load(Ordering::Relaxed)
    }

    /// The longest time for which a writer had no success between two successes, in milliseconds.
    pub fn longest_outage_ms(&self) -> u64 {
        self.longest_outage_ms.load(Ordering::Relaxed)
    }

    /// The longest time between the first CLUSTERDOWN that a writer saw and its next success, in milliseconds.
    pub fn longest_down_ms(&self) -> u64 {
        self.longest_down_ms.load(Ordering::Relaxed)
    }

    /// Returns what clients have seen instead of a reply, with its number.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count_error(&self, kind: &str) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(kind.to_owned()).or_default() += 1;
    }

    /// Returns the next position in the order of all replies.
    pub fn next_position(&self) -> u64 {
        self.replies.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// The outcome of an attempt to run commands.
pub enum Attempt {
    Replies(Vec<StressReply>),
    Refused,
    Unknown,
}

/// The outcome of sending commands.
enum Exchange {
    /// There was no node to send them to.
    NotSent,
    /// The connection ended before all replies.
    Ended,
    Replies(Vec<StressReply>),
}

/// A write and its reply.
pub struct Written {
    pub outcome: Outcome,
    /// The last reply; a null if the outcome is not at least `Acknowledged`.
    pub reply: StressReply,
    /// The position of the reply in the order of all replies, and that of the confirmation.
    pub received: u64,
    pub settled: u64,
}

/// The connections of one writer, all of whose keys are in one slot.
pub struct Session<'run> {
    pub run: &'run RoundState,
    pub rng: Rng,
    slot: u16,
    connections: HashMap<SocketAddr, RoutedClient>,
    primary: Option<SocketAddr>,
    /// The node to which the refused commands must be sent again, after ASKING.
    asking: Option<SocketAddr>,
    /// The node to which the last command went.
    last_node: Option<SocketAddr>,
    last_success: Instant,
    /// `true` if an attempt has failed since the last success.
    is_delayed: bool,
    /// The time of the first CLUSTERDOWN since the last success.
    down_since: Option<Instant>,
}

impl<'run> Session<'run> {
    pub fn new(run: &'run RoundState, slot: u16, rng: Rng) -> Self {
        Self {
            run,
            rng,
            slot,
            connections: HashMap::new(),
            primary: None,
            asking: None,
            last_node: None,
            last_success: Instant::now(),
            is_delayed: false,
            down_since: None,
        }
    }

    /// Sends `commands` to the node that seems to be the primary, and waits a little if it refuses them.
    ///
    /// # Errors
    /// Fails if a reply takes longer than [`REPLY_BOUND`], or is an error that has nothing to do with a failover; and
    /// if no attempt succeeded for [`PROGRESS_BOUND`].
    pub fn attempt(&mut self, commands: &[Vec<String>]) -> Result<Attempt, String> {
        let mut attempt = self.attempt_once(commands, None)?;
        // ASK is only about the keys of this command.
        if let Some(target) = self.asking.take() {
            attempt = self.attempt_once(commands, Some(target))?;
            self.asking = None;
        }
        self.note_progress(matches!(attempt, Attempt::Replies(_)), commands)?;
        Ok(attempt)
    }

    fn attempt_once(&mut self, commands: &[Vec<String>], asking: Option<SocketAddr>) -> Result<Attempt, String> {
        match self.exchange(commands, asking)? {
            Exchange::NotSent => Ok(Attempt::Refused),
            Exchange::Ended => Ok(Attempt::Unknown),
            Exchange::Replies(replies) => self.judge(commands, replies),
        }
    }

    /// Waits a little after an attempt without success.
    fn note_progress(&mut self, is_success: bool, commands: &[Vec<String>]) -> Result<(), String> {
        if is_success {
            if std::mem::take(&mut self.is_delayed) {
                raise(&self.run.longest_outage_ms, self.last_success.elapsed());
            }
            if let Some(since) = self.down_since.take() {
                raise(&self.run.longest_down_ms, since.elapsed());
            }
            self.last_success = Instant::now();
            return Ok(());
        }
        self.is_delayed = true;
        if self.last_success.elapsed() > PROGRESS_BOUND {
            let seconds = PROGRESS_BOUND.as_secs();
            return Err(format!("no node has accepted a command for {seconds} s: {commands:?}"));
        }
        std::thread::sleep(Duration::from_millis(self.rng.u64(2..20)));
        Ok(())
    }

    /// Sends `commands` to the node that seems to be the primary, or to another one after ASKING, and reads their
    /// replies.
    fn exchange(&mut self, commands: &[Vec<String>], asking: Option<SocketAddr>) -> Result<Exchange, String> {
        if asking.is_none() && self.primary.is_none() {
            self.primary = self.run.router.locate(self.slot, &mut self.rng);
        }
        let Some(address) = asking.or(self.primary) else {
            self.run.count_error("no node found");
            return Ok(Exchange::NotSent);
        };
        if !self.connections.contains_key(&address) {
            match self.run.router.connect(address, REPLY_BOUND) {
                Some(client) => drop(self.connections.insert(address, client)),
                None => {
                    self.run.count_error("not connected");
                    self.primary = None;
                    return Ok(Exchange::NotSent);
                }
            }
        }
        let Some(client) = self.connections.get_mut(&address) else {
            return Ok(Exchange::NotSent);
        };
        self.last_node = Some(address);
        let begin = Instant::now();
        let result = match asking {
            None => client.pipeline(commands),
            Some(_) => {
                let mut all = vec![vec!["ASKING".to_owned()]];
                all.extend_from_slice(commands);
                client.pipeline(&all).map(|mut replies| replies.split_off(1))
            }
        };
        match result {
            Ok(replies) => {
                raise(&self.run.longest_reply_ms, begin.elapsed());
                Ok(Exchange::Replies(replies))
            }
            Err(CallError::Closed) => {
                let may_have_ended = client.may_have_ended();
                self.forget(address);
                self.run.count_error("connection closed");
                match may_have_ended {
                    true => Ok(Exchange::Ended),
                    false => Err(format!(
                        "{address} closed the connection without a restart, after {commands:?}"
                    )),
                }
            }
            Err(CallError::Protocol(why)) => Err(format!("{address}: {why}, after {commands:?}")),
        }
    }

    fn forget(&mut self, address: SocketAddr) {
        self.connections.remove(&address);
        self.primary = None;
    }

    /// Follows the redirection in a reply. Returns `true` if the reply is a refusal.
    ///
    /// # Errors
    /// Fails if the reply is an error that has nothing to do with a failover.
    fn follow_refusal(&mut self, reply: &StressReply, commands: &[Vec<String>]) -> Result<bool, String> {
        let StressReply::Error(error) = reply else {
            return Ok(false);
        };
        self.run.count_error(error.split(' ').next().unwrap_or_default());
        if !self.run.allowed_errors.iter().any(|allowed| error.starts_with(allowed)) {
            return Err(format!("{:?}: {commands:?} was answered by {error}", self.last_node));
        }
        if error.starts_with("CLUSTERDOWN ") {
            self.down_since.get_or_insert_with(Instant::now);
        }
        let target = error.split(' ').nth(2).and_then(|target| target.parse().ok());
        if error.starts_with("MOVED ") {
            self.primary = target;
        } else if error.starts_with("ASK ") {
            self.asking = target;
        } else if !error.starts_with("EXECABORT ") && !error.starts_with("TRYAGAIN ") {
            self.primary = None;
        }
        Ok(true)
    }

    /// Says whether the commands ran, from their replies.
    fn judge(&mut self, commands: &[Vec<String>], replies: Vec<StressReply>) -> Result<Attempt, String> {
        let mut is_refused = false;
        for reply in &replies {
            is_refused |= self.follow_refusal(reply, commands)?;
        }
        if !is_refused {
            return Ok(Attempt::Replies(replies));
        }
        match replies.last() {
            Some(StressReply::Error(_)) => Ok(Attempt::Refused),
            _ => Err(format!("{:?}: a part of {commands:?} ran: {replies:?}", self.last_node)),
        }
    }

    /// Sends a write of one or more commands, and lets WAIT confirm some of those that are acknowledged.
    ///
    /// # Errors
    /// Fails like [`Self::attempt`].
    pub fn write(&mut self, commands: &[Vec<String>]) -> Result<Written, String> {
        let attempt = self.attempt(commands)?;
        let received = self.run.next_position();
        let mut written = Written {
            outcome: Outcome::Acknowledged,
            reply: StressReply::Bulk(None),
            received,
            settled: received,
        };
        match attempt {
            Attempt::Refused => written.outcome = Outcome::Refused,
            Attempt::Unknown => written.outcome = Outcome::Unknown,
            Attempt::Replies(mut replies) => {
                if let Some(reply) = replies.pop() {
                    written.reply = reply;
                }
                if self.rng.u8(..4) == 0 && self.confirm()? {
                    written.outcome = Outcome::Confirmed;
                    written.settled = self.run.next_position();
                }
            }
        }
        Ok(written)
    }

    /// Sends independent writes in one pipeline, and lets WAIT confirm some of those that are acknowledged. Returns the
    /// outcome of each.
    ///
    /// # Errors
    /// Fails like [`Self::attempt`].
    pub fn write_each(&mut self, commands: &[Vec<String>]) -> Result<Vec<Outcome>, String> {
        let mut outcomes = match self.exchange(commands, None)? {
            Exchange::NotSent => vec![Outcome::Refused; commands.len()],
            Exchange::Ended => vec![Outcome::Unknown; commands.len()],
            Exchange::Replies(replies) => {
                let mut outcomes = Vec::new();
                for reply in &replies {
                    let is_refused = self.follow_refusal(reply, commands)?;
                    outcomes.push(if is_refused {
                        Outcome::Refused
                    } else {
                        Outcome::Acknowledged
                    });
                }
                // The keys that have left are found again when the slot has a new owner.
                self.asking = None;
                outcomes
            }
        };
        let is_success = outcomes.contains(&Outcome::Acknowledged);
        self.note_progress(is_success, commands)?;
        if is_success && self.rng.u8(..4) == 0 && self.confirm()? {
            for outcome in &mut outcomes {
                if *outcome == Outcome::Acknowledged {
                    *outcome = Outcome::Confirmed;
                }
            }
        }
        Ok(outcomes)
    }

    /// Returns `true` if WAIT reports that the replicas have the last write of the connection that was used last.
    fn confirm(&mut self) -> Result<bool, String> {
        let Some(address) = self.last_node else {
            return Ok(false);
        };
        let Some(client) = self.connections.get_mut(&address) else {
            return Ok(false);
        };
        match client.call(&format!("WAIT {} {WAIT_TIMEOUT_MS}", self.run.replicas)) {
            Ok(StressReply::Integer(count)) => Ok(count >= self.run.replicas as i64),
            Ok(StressReply::Error(error)) if error.starts_with("ERR WAIT cannot be used") => Ok(false),
            Ok(StressReply::Error(error))
                if self.run.allowed_errors.iter().any(|allowed| error.starts_with(allowed)) =>
            {
                self.run.count_error(error.split(' ').next().unwrap_or_default());
                Ok(false)
            }
            Ok(other) => Err(format!("{address}: WAIT was answered by {other:?}")),
            Err(CallError::Closed) => {
                let may_have_ended = client.may_have_ended();
                self.forget(address);
                self.run.count_error("connection closed");
                match may_have_ended {
                    true => Ok(false),
                    false => Err(format!("{address} closed the connection without a restart, after WAIT")),
                }
            }
            Err(CallError::Protocol(why)) => Err(format!("{address}: {why}, after WAIT")),
        }
    }

    /// Sleeps for a random time, unless the writers of this round do not pause.
    pub fn pause(&mut self, range_us: std::ops::Range<u64>) {
        if self.run.has_pauses {
            std::thread::sleep(Duration::from_micros(self.rng.u64(range_us)));
        }
    }

    /// Sends a command until a node accepts it.
    ///
    /// # Errors
    /// Fails like [`Self::attempt`].
    pub fn insist(&mut self, command: &[&str]) -> Result<StressReply, String> {
        let command = vec![words(command)];
        loop {
            if let Attempt::Replies(mut replies) = self.attempt(&command)?
                && let Some(reply) = replies.pop()
            {
                return Ok(reply);
            }
        }
    }
}

/// Returns a command of these words.
pub fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// Raises a maximum to a time in milliseconds.
fn raise(longest_ms: &AtomicU64, time: Duration) {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    longest_ms.fetch_max(milliseconds, Ordering::Relaxed);
}
