//! A client that asks for more than the buffers of a socket hold, and reads late: replies have to wait until the socket
//! accepts more, and go on exactly where they stopped. Meanwhile the connection moves, is closed or half-closed.

use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;

use crate::client::{Client, ClientEnd, connect};
use crate::disturber;
use crate::reply::SeenReply;

/// The length of the value: more than a Unix socket holds (`net.core.wmem_default`, 208 KiB).
const VALUE_BYTES: usize = 300_000;
/// The key. The model does not know it.
const KEY: &str = "large";

/// Asks and reads, several times.
///
/// # Errors
/// If a reply is missing or wrong.
pub fn read_late(seed: u64) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let value = value();
    for _ in 0..random.usize(1..4) {
        let mut client = connect("primary.sock", random.u64(..))?;
        match run_connection(&mut client, &mut random, &value) {
            Ok(()) => {}
            Err(ClientEnd::Closed) if disturber::has_closed_connections() => {}
            Err(end) => return Err(format!("the client that reads late: {end:?}")),
        }
    }
    Ok(())
}

/// A text in which no part is repeated soon.
fn value() -> String {
    let mut text: String = (0..).map(|number| format!("{number},")).take(VALUE_BYTES / 5).collect();
    text.truncate(VALUE_BYTES);
    text
}

fn run_connection(client: &mut Client, random: &mut Rng, value: &str) -> Result<(), ClientEnd> {
    // A replica refuses it, and FLUSHALL deletes it.
    client.ask_text(&format!("SET {KEY} {value}"))?;
    for _ in 0..random.usize(1..4) {
        let requests = draw_requests(random);
        for request in &requests {
            client.request(request)?;
        }
        let has_ended = random.u32(..6) == 0;
        if has_ended {
            client.half_close();
        }
        thread::sleep(Duration::from_micros(random.u64(..8000)));
        if !has_ended && random.u32(..6) == 0 {
            // Closes the connection while replies are under way.
            return Ok(());
        }
        for request in &requests {
            let reply = client.receive_message()?;
            check_reply(request, &reply, value).map_err(ClientEnd::Failed)?;
        }
        if has_ended {
            return match client.receive_message() {
                Err(ClientEnd::Closed) => Ok(()),
                other => Err(ClientEnd::Failed(format!("after the last reply came {other:?}"))),
            };
        }
    }
    Ok(())
}

fn draw_requests(random: &mut Rng) -> Vec<String> {
    (0..random.usize(1..4))
        .map(|number| match random.u32(..3) {
            0 => format!("ECHO {number}"),
            _ => format!("GET {KEY}"),
        })
        .collect()
}

fn check_reply(request: &str, reply: &SeenReply, value: &str) -> Result<(), String> {
    let expected = request.strip_prefix("ECHO ").unwrap_or(value);
    match reply {
        SeenReply::Null if expected.len() == VALUE_BYTES => Ok(()),
        SeenReply::Bulk(text) if text == expected.as_bytes() => Ok(()),
        SeenReply::Bulk(text) => {
            let same = text
                .iter()
                .zip(expected.as_bytes())
                .take_while(|(seen, expected)| seen == expected);
            let (same, length) = (same.count(), text.len());
            Err(format!(
                "{request}: the reply of {length} bytes is wrong from byte {same} on"
            ))
        }
        other => Err(format!("{request} was answered by {other:?}")),
    }
}
