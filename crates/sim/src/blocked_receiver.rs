//! A client that waits for a list and receives messages meanwhile, and another one that causes them.
//!
//! One thread plays both. A message must arrive while the client is blocked, and before the element that is pushed
//! after the change that the message is about.

use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread;

use crate::bound::Bound;
use crate::client::{Client, ClientEnd, connect};
use crate::disturber;
use crate::reply::SeenReply;

/// The time in which no thread can run until a message arrives, in nanoseconds.
const MAX_IDLE_WAIT_NS: u64 = 10_000_000;

/// The bound within which a redirected message must arrive.
const MAX_REDIRECTION: Bound = Bound::of_ms(1000);

/// The maximum number of times that the writer asks if the client is blocked.
const MAX_BLOCKED_CHECKS: usize = 20;

/// What makes the order of a message and an element uncertain in a run.
#[derive(Clone, Copy)]
pub struct OrderLimits {
    /// `true` if connections move between the workers.
    pub may_move: bool,
    /// `true` if requests are put off, by CLIENT PAUSE. Such a client is reported as blocked, too.
    pub may_be_put_off: bool,
}

/// How the messages come.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    /// The client tracks a key in RESP3.
    Tracking,
    /// The client tracks a key in RESP2, and another connection receives the invalidations.
    Redirected,
    /// The client subscribes in RESP3.
    Subscription,
}

/// The connections of a few rounds.
struct Connections {
    delivery: Delivery,
    /// The id of the client that blocks.
    receiver_id: i64,
    limits: OrderLimits,
    receiver: Client,
    /// What receives the messages, if it is another one.
    target: Option<Client>,
    writer: Client,
}

/// The end of a round.
enum RoundEnd {
    /// The message and the element came in order.
    Complete,
    /// The server has refused a request, or ended the wait: it is a replica for a while, for example.
    Refused,
}

/// Blocks and receives, several times.
///
/// # Errors
/// If a message is late or missing.
pub fn receive_while_blocked(seed: u64, limits: OrderLimits) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let mut open: Option<Connections> = None;
    for number in 0..random.usize(2..12) {
        thread::sleep(Duration::from_micros(random.u64(..1500)));
        let mut round = || -> Result<Option<Connections>, ClientEnd> {
            let mut connections = match open.take() {
                Some(connections) if random.u32(..4) > 0 => connections,
                _ => Connections::open(&mut random, limits)?,
            };
            let end = connections.run_round(number, &mut random)?;
            Ok(matches!(end, RoundEnd::Complete).then_some(connections))
        };
        open = match round() {
            Ok(connections) => connections,
            Err(ClientEnd::Closed) if disturber::has_closed_connections() => None,
            Err(end) => return Err(format!("a client that blocks and receives: {end:?}")),
        };
    }
    Ok(())
}

impl Connections {
    fn open(random: &mut Rng, limits: OrderLimits) -> Result<Connections, ClientEnd> {
        let mut open = || connect("primary.sock", random.u64(..)).map_err(ClientEnd::Failed);
        let (mut receiver, writer, mut target) = (open()?, open()?, open()?);
        let SeenReply::Integer(receiver_id) = receiver.ask_text("CLIENT ID")? else {
            return Err(ClientEnd::Failed("CLIENT ID without a number".to_owned()));
        };
        let delivery = [Delivery::Tracking, Delivery::Redirected, Delivery::Subscription][random.usize(..3)];
        match delivery {
            Delivery::Tracking => {
                receiver.ask_text("HELLO 3")?;
                receiver.ask_text("CLIENT TRACKING ON")?;
            }
            Delivery::Redirected => {
                let SeenReply::Integer(id) = target.ask_text("CLIENT ID")? else {
                    return Err(ClientEnd::Failed("CLIENT ID without a number".to_owned()));
                };
                target.ask_text("SUBSCRIBE __redis__:invalidate")?;
                receiver.ask_text(&format!("CLIENT TRACKING ON REDIRECT {id}"))?;
            }
            Delivery::Subscription => {
                receiver.ask_text("HELLO 3")?;
                receiver.request("SUBSCRIBE blocked")?;
                receiver.receive_message()?;
            }
        }
        Ok(Connections {
            delivery,
            receiver_id,
            limits,
            receiver,
            target: matches!(delivery, Delivery::Redirected).then_some(target),
            writer,
        })
    }

    /// Returns `true` if the client waits for its list, and stays on its worker. The reply to a request that is on its
    /// way may come before the message, and so may an element while the connection moves to another worker: messages
    /// take the way over its old one. Subscribers never move.
    fn is_order_certain(&mut self) -> Result<bool, ClientEnd> {
        let moves = self.limits.may_move && !matches!(self.delivery, Delivery::Subscription);
        if moves || self.limits.may_be_put_off {
            return Ok(false);
        }
        let question = format!("CLIENT LIST ID {} FLAGS b", self.receiver_id);
        for _ in 0..MAX_BLOCKED_CHECKS {
            match self.writer.ask_text(&question)? {
                SeenReply::Bulk(line) if !line.is_empty() => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }

    fn run_round(&mut self, number: usize, random: &mut Rng) -> Result<RoundEnd, ClientEnd> {
        // An element that was left by an earlier round must not end the wait.
        let list = format!("blocked:{number}:{}", random.u32(..));
        if !matches!(self.delivery, Delivery::Subscription) {
            self.receiver.ask_text("GET tracked")?;
        }
        self.receiver.request(&format!("BLPOP {list} 0.2"))?;
        if random.bool() {
            thread::sleep(Duration::from_micros(random.u64(..1000)));
        }
        let change = match self.delivery {
            Delivery::Subscription => format!("PUBLISH blocked {number}"),
            Delivery::Tracking | Delivery::Redirected => format!("SET tracked {number}"),
        };
        let push = format!("RPUSH {list} {number}");
        let is_pipelined = random.bool();
        let must_come_first = !is_pipelined || self.is_order_certain()?;
        self.writer.request(&change)?;
        if is_pipelined {
            self.writer.request(&push)?;
        }
        if is_refused(&self.writer.receive_message()?) {
            return Ok(RoundEnd::Refused);
        }
        let idle_ns = scheduler::figures().idle_ns;
        let wait = match &mut self.target {
            Some(target) => receive_until_redirected_message(target, &mut self.receiver)?,
            None => receive_until_message(&mut self.receiver)?,
        };
        if let Wait::Served(element) = &wait
            && must_come_first
            && self.target.is_none()
        {
            return Err(ClientEnd::Failed(format!(
                "{:?}, pipelined {is_pipelined}: {element:?} came before the message about {change}",
                self.delivery
            )));
        }
        let waited_ns = scheduler::figures().idle_ns - idle_ns;
        if matches!(wait, Wait::Ended) {
            return Ok(RoundEnd::Refused);
        }
        if waited_ns > MAX_IDLE_WAIT_NS && !is_pipelined {
            return Err(ClientEnd::Failed(format!(
                "{:?}: the message about {change} came after {} us without any work",
                self.delivery,
                waited_ns / 1000
            )));
        }
        if !is_pipelined {
            self.writer.request(&push)?;
        }
        if is_refused(&self.writer.receive_message()?) || matches!(wait, Wait::TimedOut) {
            return Ok(RoundEnd::Refused);
        }
        if let Wait::Served(_) = wait {
            return Ok(RoundEnd::Complete);
        }
        loop {
            match self.receiver.receive_message()? {
                SeenReply::Push(_) => {}
                SeenReply::Array(_) => return Ok(RoundEnd::Complete),
                // The key was deleted, or the time was over.
                _ => return Ok(RoundEnd::Refused),
            }
        }
    }
}

/// What a client got before the message.
enum Wait {
    /// Nothing.
    Lasts,
    /// The reply at the end of its time.
    TimedOut,
    /// An error: the server has become a replica.
    Ended,
    /// The element.
    Served(SeenReply),
}

/// Receives up to a message.
fn receive_until_message(client: &mut Client) -> Result<Wait, ClientEnd> {
    let mut wait = Wait::Lasts;
    loop {
        match client.receive_message()? {
            SeenReply::Push(_) => return Ok(wait),
            SeenReply::Array(parts) if parts.first() == Some(&SeenReply::bulk(Some(b"message"))) => return Ok(wait),
            SeenReply::Null => wait = Wait::TimedOut,
            SeenReply::Error(_) => return Ok(Wait::Ended),
            element => wait = Wait::Served(element),
        }
    }
}

/// Receives up to a message for another connection. If the client that waits is disconnected, as a demotion does, there
/// is none.
fn receive_until_redirected_message(target: &mut Client, receiver: &mut Client) -> Result<Wait, ClientEnd> {
    let start = scheduler::figures();
    let mut wait = Wait::Lasts;
    while MAX_REDIRECTION.check(&start).is_ok() {
        if target.try_receive_message()?.is_some() {
            return Ok(wait);
        }
        match receiver.try_receive_message()? {
            None => {}
            Some(SeenReply::Null) => wait = Wait::TimedOut,
            Some(SeenReply::Error(_)) => return Ok(Wait::Ended),
            Some(element) => wait = Wait::Served(element),
        }
        thread::sleep(Duration::from_micros(100));
    }
    Err(ClientEnd::Failed("no redirected message".to_owned()))
}

fn is_refused(reply: &SeenReply) -> bool {
    matches!(reply, SeenReply::Error(_))
}
