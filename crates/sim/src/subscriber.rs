//! A client that receives the messages of the others, and the check of what it received.
//!
//! PUBLISH replies with the number of receivers. So the subscriber must have every message that was published with the
//! reply 1, and the messages of one client come in the order in which it published them.

use std::collections::{HashMap, HashSet};

use weft_os::thread;

use crate::client::Client;
use crate::history::ConnectionHistory;
use crate::operation::Operation;
use crate::reply::SeenReply;

/// The number of the client that publishes the last message.
const LAST_CLIENT: u64 = u64::MAX;

/// A message: the client that published it, and its number.
type Message = (u64, u64);

/// A thread that receives messages.
pub struct Subscriber(thread::JoinHandle<Result<Vec<Message>, String>>);

impl Subscriber {
    /// Subscribes, and starts a thread that receives messages up to that of [`LAST_CLIENT`].
    ///
    /// # Errors
    /// If the connection ends.
    pub fn start(mut client: Client) -> Result<Subscriber, String> {
        client
            .ask(&["SUBSCRIBE", "channel"])
            .map_err(|end| format!("SUBSCRIBE: {end:?}"))?;
        let receive = move || {
            let mut messages = Vec::new();
            loop {
                let reply = client
                    .receive_message()
                    .map_err(|end| format!("the subscriber: {end:?}"))?;
                let message = parse_message(&reply).ok_or_else(|| format!("the subscriber received {reply:?}"))?;
                if message.0 == LAST_CLIENT {
                    return Ok(messages);
                }
                messages.push(message);
            }
        };
        let spawned = thread::Builder::new().name("subscriber".to_owned()).spawn(receive);
        spawned.map(Subscriber).map_err(|error| error.to_string())
    }

    /// Publishes the last message, and checks what the subscriber received against the replies of the publishers.
    ///
    /// # Errors
    /// If a message is missing, was not sent, or is out of order.
    pub fn finish(self, admin: &mut Client, histories: &[ConnectionHistory]) -> Result<(), String> {
        let last = Operation::Publish {
            client: LAST_CLIENT,
            number: 0,
        };
        admin.run(vec![last]).map_err(|end| format!("PUBLISH: {end:?}"))?;
        let received = self.0.join().map_err(|_| "the subscriber panicked".to_owned())??;
        check_order(&received)?;
        let received: HashSet<Message> = received.into_iter().collect();
        for event in histories.iter().flat_map(|history| &history.events) {
            let (Operation::Publish { client, number }, Some((replies, _))) = (&event.operation, &event.answer) else {
                continue;
            };
            let message = (*client, *number);
            if **replies != [SeenReply::Integer(received.contains(&message).into())] {
                return Err(format!(
                    "message {message:?}: PUBLISH replied {replies:?}, received {received:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Checks that the messages of each client are in its order, each once.
fn check_order(received: &[Message]) -> Result<(), String> {
    let mut last: HashMap<u64, u64> = HashMap::new();
    for (client, number) in received {
        if last.insert(*client, *number).is_some_and(|before| before >= *number) {
            return Err(format!("messages are out of order: {received:?}"));
        }
    }
    Ok(())
}

fn parse_message(reply: &SeenReply) -> Option<Message> {
    let SeenReply::Array(parts) = reply else {
        return None;
    };
    let Some(SeenReply::Bulk(text)) = parts.last() else {
        return None;
    };
    let text = String::from_utf8_lossy(text);
    let (client, number) = text.split_once(' ')?;
    Some((client.parse().ok()?, number.parse().ok()?))
}
