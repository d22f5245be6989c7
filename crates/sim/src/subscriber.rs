//! A client that receives the messages of the others, and the check of what it received.
//!
//! PUBLISH replies with the number of receivers. So the subscriber must have every message that was published with the
//! reply 1, and the messages of one client come in the order in which it published them. So do messages that
//! transactions publish about a key that they change.

use std::collections::{HashMap, HashSet};

use weft_os::thread;

use crate::client::Client;
use crate::history::{ConnectionHistory, Event};
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
        let published: Vec<Published<'_>> = histories
            .iter()
            .flat_map(|history| &history.events)
            .filter_map(Published::of_event)
            .collect();
        check_counts(&received, &published)?;
        check_order_of_changes(&received, &published)
    }
}

/// A message that was published, with what its client saw.
struct Published<'h> {
    message: Message,
    reply: &'h SeenReply,
    /// If a transaction published it after it had changed a string: the key, the new value, and the old one.
    change: Option<(usize, u32, &'h SeenReply)>,
}

impl Published<'_> {
    fn of_event(event: &Event) -> Option<Published<'_>> {
        let (replies, _) = event.answer.as_ref()?;
        match (&event.operation, &**replies) {
            (Operation::Publish { client, number }, [reply]) => Some(Published {
                message: (*client, *number),
                reply,
                change: None,
            }),
            (Operation::Transaction(operations), [.., SeenReply::Array(replies)]) => {
                match (&**operations, &**replies) {
                    ([Operation::SetGet(key, value), Operation::Publish { client, number }], [old, reply]) => {
                        Some(Published {
                            message: (*client, *number),
                            reply,
                            change: Some((*key, *value, old)),
                        })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Checks that PUBLISH has reported the messages as they were received.
fn check_counts(received: &[Message], published: &[Published<'_>]) -> Result<(), String> {
    let received: HashSet<Message> = received.iter().copied().collect();
    for Published { message, reply, .. } in published {
        if **reply != SeenReply::Integer(received.contains(message).into()) {
            return Err(format!(
                "message {message:?}: PUBLISH replied {reply:?}, received {received:?}"
            ));
        }
    }
    Ok(())
}

/// Checks that the messages about changes of a key are in the order of these changes: a transaction that replaced a
/// value published after the one that had set it.
fn check_order_of_changes(received: &[Message], published: &[Published<'_>]) -> Result<(), String> {
    let positions: HashMap<Message, usize> = received
        .iter()
        .enumerate()
        .map(|(at, message)| (*message, at))
        .collect();
    let position = |published: &Published<'_>| positions.get(&published.message).copied();
    let mut by_value = HashMap::new();
    for published in published {
        if let (Some((key, value, _)), Some(at)) = (published.change, position(published)) {
            by_value.insert((key, SeenReply::bulk(Some(value.to_string().as_bytes()))), at);
        }
    }
    for published in published {
        let (Some((key, _, old)), Some(at)) = (published.change, position(published)) else {
            continue;
        };
        if by_value.get(&(key, old.clone())).is_some_and(|before| *before > at) {
            return Err(format!(
                "message {:?} about key s{key} came before that about the value which it replaced: {received:?}",
                published.message
            ));
        }
    }
    Ok(())
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
