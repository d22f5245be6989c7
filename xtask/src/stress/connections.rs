//! Scenarios about connections that end, pause or are not read while requests are under way.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::client::{CallError, StressClient, StressReply, append_request};
use super::run::{ReconnectingClient, StressRun, is_redirection};
use super::watchdog;

/// The maximum number of requests of a pipeline that is cut.
const MAX_REQUESTS: usize = 60;
/// A script that leaves its worker, and does what INCR does.
const INCREMENT_SLOWLY: &str = "for i = 1, 30000 do end return redis.call('INCR', KEYS[1])";
/// The text in the error of a script that another scenario killed.
pub const KILLED: &str = "killed by user";
/// The bytes of the value that a client asks for and does not read.
const LARGE_BYTES: usize = 300_000;

/// The kinds of achievements of `cut`: pipelines of which at least one request was sent completely, and for pieces
/// those that were cut within a request.
pub const CUT_KINDS: &[&str] = &[HALF_CLOSED, RESET, IN_PIECES];
const HALF_CLOSED: &str = "half-closed";
const RESET: &str = "reset";
const IN_PIECES: &str = "in pieces";
/// The kinds of achievements of `unread`: clients that read late and got everything, and clients that closed their
/// connection without reading and were forgotten by the server.
pub const UNREAD_KINDS: &[&str] = &[READ_LATE, FORGOTTEN];
const READ_LATE: &str = "read late";
const FORGOTTEN: &str = "forgotten";
/// The key of the value that clients ask for and do not read.
const UNREAD_KEY: &str = "unread";

/// A pipeline of requests that increment one key.
struct Pipeline {
    bytes: Vec<u8>,
    /// The end of each request in `bytes`.
    ends: Vec<usize>,
}

impl Pipeline {
    fn random(key: &str, rng: &mut Rng) -> Pipeline {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..rng.usize(1..MAX_REQUESTS) {
            match rng.u8(..16) {
                0 => append_request(&mut bytes, &["EVAL", INCREMENT_SLOWLY, "1", key]),
                1 => bytes.extend_from_slice(format!("INCR {key}\r\n").as_bytes()),
                _ => append_request(&mut bytes, &["INCR", key]),
            }
            ends.push(bytes.len());
        }
        Pipeline { bytes, ends }
    }

    /// Returns the number of requests within the first `length` bytes.
    fn complete_requests(&self, length: usize) -> usize {
        self.ends.iter().filter(|end| **end <= length).count()
    }

    /// Returns `true` if a byte is within a request.
    fn is_within_request(&self, place: usize) -> bool {
        place > 0 && !self.ends.contains(&place)
    }
}

/// Cuts pipelines at any byte. What was sent before a half-close is executed and answered, what was sent in pieces is
/// answered completely, and of what was sent before a reset, no request runs that was not sent completely. In a cluster
/// the slot moves meanwhile, and the answer to a request that was not executed is a redirection.
pub fn cut_pipelines(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut control = ReconnectingClient::new(run, 0)?;
    let mut round = 0u64;
    while run.is_running() {
        round += 1;
        let key = run.key(thread, &format!("cut:{thread}:{round}"));
        let server = control.server();
        let pipeline = Pipeline::random(&key, &mut rng);
        let cut = rng.usize(..=pipeline.bytes.len());
        let (kind, requests, sent) = match rng.u8(..3) {
            0 => (HALF_CLOSED, half_close(run, server, &pipeline, cut, &mut rng)?, cut),
            1 => (RESET, reset(run, server, &pipeline, cut, &mut rng)?, cut),
            _ => {
                let requests = send_in_pieces(run, server, &pipeline, cut, &mut rng)?;
                (IN_PIECES, requests, pipeline.bytes.len())
            }
        };
        run.count_commands(pipeline.complete_requests(sent) as u64);
        let Some(value) = control.execute(&format!("GET {key}"))? else {
            continue;
        };
        let value: usize = value.text().parse().unwrap_or(0);
        match requests {
            Some(requests) if value != requests => {
                return Err(format!("{key} is {value} after {requests} answered requests"));
            }
            None if value > pipeline.complete_requests(cut) => {
                return Err(format!(
                    "{key} is {value} after a reset in a pipeline cut at byte {cut}"
                ));
            }
            // A pipeline of no complete request checks nothing, nor do pieces of whole requests, or of requests that
            // were all redirected.
            _ => match kind {
                IN_PIECES if !pipeline.is_within_request(cut) => {}
                _ if pipeline.complete_requests(sent) == 0 || requests == Some(0) => {}
                _ => run.succeed_in(kind),
            },
        }
        control.execute(&format!("PEXPIRE {key} 2000"))?;
    }
    Ok(())
}

/// Sends bytes in random pieces.
fn send_pieces(client: &mut StressClient, mut bytes: &[u8], rng: &mut Rng) -> Result<(), CallError> {
    while !bytes.is_empty() {
        let length = match rng.u8(..4) {
            0 => rng.usize(1..=bytes.len()),
            _ => bytes.len(),
        };
        client.send_watched("a pipeline of INCR in pieces", &bytes[..length])?;
        bytes = &bytes[length..];
        if !bytes.is_empty() {
            std::thread::sleep(Duration::from_micros(rng.u64(..2000)));
        }
    }
    Ok(())
}

/// Sends a pipeline up to a byte, closes the sending side, and checks the replies. Returns the number of increments.
fn half_close(
    run: &StressRun,
    server: usize,
    pipeline: &Pipeline,
    cut: usize,
    rng: &mut Rng,
) -> Result<Option<usize>, String> {
    let mut client = run.connect_lasting_to(server)?;
    send_pieces(&mut client, &pipeline.bytes[..cut], rng)?;
    client.half_close()?;
    let received = client.read_to_end()?;
    let text = String::from_utf8_lossy(&received);
    let mut count = 0;
    let replies: Vec<&str> = text.lines().collect();
    for reply in &replies {
        count = next_count(run, count, reply)?;
    }
    let wanted = pipeline.complete_requests(cut);
    if replies.len() != wanted {
        return Err(format!(
            "{} of {wanted} requests before a half-close were answered; the last replies are {:?}",
            replies.len(),
            &replies[replies.len().saturating_sub(3)..]
        ));
    }
    Ok(Some(count))
}

/// Returns the count after this reply to an increment.
fn next_count(run: &StressRun, count: usize, reply: &str) -> Result<usize, String> {
    let is_unexecuted = |error: &str| error.contains(KILLED) || (run.is_cluster && is_redirection(error));
    if reply == format!(":{}", count + 1) {
        Ok(count + 1)
    } else if reply.strip_prefix('-').is_some_and(is_unexecuted) {
        Ok(count)
    } else {
        Err(format!("an increment of {count} in a pipeline was answered by {reply}"))
    }
}

/// Sends a pipeline up to a byte, and closes the connection without reading the replies, which resets it.
fn reset(
    run: &StressRun,
    server: usize,
    pipeline: &Pipeline,
    cut: usize,
    rng: &mut Rng,
) -> Result<Option<usize>, String> {
    let mut client = run.connect_lasting_to(server)?;
    send_pieces(&mut client, &pipeline.bytes[..cut], rng)?;
    std::thread::sleep(Duration::from_micros(rng.u64(..3000)));
    Ok(None)
}

/// Sends a pipeline that pauses at a byte. Returns the number of increments.
fn send_in_pieces(
    run: &StressRun,
    server: usize,
    pipeline: &Pipeline,
    cut: usize,
    rng: &mut Rng,
) -> Result<Option<usize>, String> {
    let mut client = run.connect_lasting_to(server)?;
    send_pieces(&mut client, &pipeline.bytes[..cut], rng)?;
    std::thread::sleep(Duration::from_micros(rng.u64(..5000)));
    send_pieces(&mut client, &pipeline.bytes[cut..], rng)?;
    let mut count = 0;
    for _ in &pipeline.ends {
        count = match client.next_reply()? {
            StressReply::Error(error) => next_count(run, count, &format!("-{error}"))?,
            other => next_count(run, count, &format!(":{}", other.text()))?,
        };
    }
    Ok(Some(count))
}

pub fn prepare_large_value(run: &StressRun) -> Result<(), String> {
    let key = run.key(0, UNREAD_KEY);
    ReconnectingClient::new(run, 0)?.execute(&format!("SETRANGE {key} {} x", LARGE_BYTES - 1))?;
    Ok(())
}

/// Asks for large values and does not read them. Some of these clients read everything in the end, and it must be
/// complete. The server must forget the others soon after they have closed their connections.
pub fn never_reads(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let zeros = vec![0; LARGE_BYTES - 1];
    let reply = [format!("${LARGE_BYTES}\r\n").as_bytes(), &zeros, b"x\r\n"].concat();
    let key = run.key(0, UNREAD_KEY);
    let mut control = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        // In a cluster this finds the node that has the key.
        control.execute(&format!("EXISTS {key}"))?;
        let server = control.server();
        let mut client = run.connect_lasting_to(server)?;
        let id = client.execute("CLIENT ID")?.text();
        let requests = rng.usize(1..30);
        let request = format!("GET {key}\r\n");
        client.send_watched(&format!("GET {key}, read late"), request.repeat(requests).as_bytes())?;
        for _ in 0..rng.u8(1..20) {
            std::thread::sleep(Duration::from_millis(20));
            if !run.is_running() {
                return Ok(());
            }
        }
        run.count_commands(requests as u64);
        if rng.u8(..3) > 0 {
            drop(client);
            await_forgotten(run, &mut control, server, &id)?;
            continue;
        }
        client.half_close()?;
        let received = client.read_to_end()?;
        if count_values(run, &received, &reply, requests)? > 0 {
            run.succeed_in(READ_LATE);
        }
    }
    Ok(())
}

/// Checks what a client has read late: the replies to its requests for a value. Returns how many of them are the value;
/// in a cluster the others are redirections.
fn count_values(run: &StressRun, received: &[u8], value: &[u8], requests: usize) -> Result<usize, String> {
    let (mut rest, mut values, mut redirections) = (received, 0, 0);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(value) {
            (rest, values) = (after, values + 1);
            continue;
        }
        let end = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(rest.len(), |end| end + 1);
        let line = String::from_utf8_lossy(&rest[..end]);
        let error = line.strip_prefix('-').unwrap_or_default();
        if !run.is_cluster || !is_redirection(error) {
            return Err(format!(
                "reply {} of {requests} to a client that read late is wrong, or not all of its {} bytes arrived",
                values + redirections,
                value.len()
            ));
        }
        (rest, redirections) = (&rest[end..], redirections + 1);
    }
    match values + redirections == requests {
        true => Ok(values),
        false => Err(format!(
            "a client that read late got {values} values and {redirections} redirections for {requests} requests"
        )),
    }
}

/// Waits until a server has forgotten a client that has closed its connection.
fn await_forgotten(
    run: &StressRun,
    control: &mut ReconnectingClient<'_>,
    server: usize,
    id: &str,
) -> Result<(), String> {
    let (begin, bound) = (Instant::now(), watchdog::bound());
    loop {
        let list = control.call_at(server, &format!("CLIENT LIST ID {id}"))?;
        let list = list.map_or_else(|| "unknown".to_owned(), |reply| reply.text());
        if list.trim().is_empty() {
            run.succeed_in(FORGOTTEN);
            return Ok(());
        }
        if begin.elapsed() > bound {
            return Err(format!(
                "a client is known {} s after it has closed its connection: {list}",
                bound.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
