//! The scenario of messages to blocked clients: they arrive during the wait.

use fastrand::Rng;

use super::client::{CallError, StressClient, StressReply};
use super::run::StressRun;

/// Blocks clients that are subscribed and track keys, and checks that messages and invalidations reach them at once.
pub fn pushes_to_blocked_clients(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    while run.is_running() {
        match check_blocked_client(run, thread, &mut rng) {
            Ok(()) | Err(CallError::Closed) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn check_blocked_client(run: &StressRun, thread: usize, rng: &mut Rng) -> Result<(), CallError> {
    let mut client = run.connect_lasting()?;
    let mut other = run.connect_lasting()?;
    let (key, list, channel) = (
        format!("pushed:{thread}"),
        format!("waits:{thread}"),
        format!("news:{thread}"),
    );
    client.call("HELLO 3")?;
    client.call("CLIENT TRACKING ON")?;
    // Subscribers stay on their worker; other clients move while they are blocked.
    let is_subscribed = rng.bool();
    if is_subscribed {
        let subscribe = format!("SUBSCRIBE {channel}");
        client.send_watched(&subscribe, format!("{subscribe}\r\n").as_bytes())?;
        expect(&skip_invalidations(&mut client)?, "subscribe")?;
    }
    for round in 0..rng.u32(1..20) {
        client.send_watched(&format!("GET {key}"), format!("GET {key}\r\n").as_bytes())?;
        skip_invalidations(&mut client)?;
        client.send_watched(
            &format!("what a client that is blocked by BLPOP {list} is to be told"),
            format!("BLPOP {list} 0\r\n").as_bytes(),
        )?;
        other.call(&format!("SET {key} {round}"))?;
        expect(&client.next_reply()?, "invalidate")?;
        if is_subscribed {
            client.send_watched(&format!("a message for a client that is blocked by BLPOP {list}"), b"")?;
            other.call(&format!("PUBLISH {channel} {round}"))?;
            expect(&skip_invalidations(&mut client)?, "message")?;
        }
        client.send_watched(&format!("BLPOP {list} (an element is pushed)"), b"")?;
        other.call(&format!("RPUSH {list} {round}"))?;
        expect(&skip_invalidations(&mut client)?, &list)?;
        run.count_commands(4);
        run.succeed();
    }
    Ok(())
}

/// Returns the next reply or message that is no invalidation. Another scenario flushes its database, which invalidates
/// all keys.
fn skip_invalidations(client: &mut StressClient) -> Result<StressReply, CallError> {
    loop {
        let reply = client.next_reply()?;
        if reply.items().first().map(StressReply::text).as_deref() != Some("invalidate") {
            return Ok(reply);
        }
    }
}

fn expect(reply: &StressReply, first: &str) -> Result<(), CallError> {
    match reply.items().first().map(StressReply::text) {
        Some(text) if text == first => Ok(()),
        _ => Err(CallError::Protocol(format!("{reply:?} came instead of {first}"))),
    }
}
