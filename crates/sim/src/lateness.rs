//! Finds clients that were served long after others had done what serves them.

use crate::history::ConnectionHistory;
use crate::reply::SeenReply;

/// The idle time within which something else happens that the served client has waited for, in nanoseconds: a request
/// was sent, or another reply arrived. A client whose wait ended by timeout may go on with a request that serves
/// another one.
const MAX_DELAY_NS: u64 = 10_000_000;

/// A point of the run, as the time in which no thread could run.
struct Sign {
    idle_ns: u64,
    /// The connection and the event whose reply arrived, or `None` if a request was sent.
    reply_to: Option<(usize, usize)>,
}

/// Returns a description of the first reply to a blocked client that came although nothing else had happened for a
/// while: a wake-up was lost, and something that comes from time to time has replaced it.
pub fn find_late_reply(histories: &[ConnectionHistory]) -> Option<String> {
    let mut signs = Vec::new();
    for (connection, history) in histories.iter().enumerate() {
        for (index, event) in history.events.iter().enumerate() {
            signs.push(Sign {
                idle_ns: event.sent_idle_ns,
                reply_to: None,
            });
            if event.answer.is_some() {
                signs.push(Sign {
                    idle_ns: event.answer_idle_ns,
                    reply_to: Some((connection, index)),
                });
            }
        }
    }
    signs.sort_by_key(|sign| sign.idle_ns);
    for (connection, history) in histories.iter().enumerate() {
        for (index, event) in history.events.iter().enumerate() {
            let Some((replies, _)) = &event.answer else { continue };
            let is_served = matches!(replies[..], [SeenReply::Array(_) | SeenReply::Bulk(_)]);
            if !event.operation.is_blocking() || !is_served {
                continue;
            }
            let from = event.answer_idle_ns.saturating_sub(MAX_DELAY_NS);
            let until = event.answer_idle_ns + MAX_DELAY_NS;
            let first = signs.partition_point(|sign| sign.idle_ns < from);
            let has_reason = signs[first..]
                .iter()
                .take_while(|sign| sign.idle_ns <= until)
                .any(|sign| sign.reply_to != Some((connection, index)));
            if !has_reason {
                return Some(format!(
                    "{:?} was served long after anything else happened",
                    event.operation
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;
    use crate::operation::Operation;

    fn event(operation: Operation, sent_ms: u64, answer_ms: u64, reply: SeenReply) -> Event {
        let (sent_ns, answer_ns) = (sent_ms * 1_000_000, answer_ms * 1_000_000);
        Event {
            operation,
            sent_step: 0,
            sent_ns,
            sent_idle_ns: sent_ns,
            answer_ns,
            answer_idle_ns: answer_ns,
            answer: Some((vec![reply], 0)),
        }
    }

    fn pop(sent_ms: u64, answer_ms: u64, reply: SeenReply) -> Event {
        let operation = Operation::BlockingPop {
            lists: vec![0],
            timeout_ms: 100,
        };
        event(operation, sent_ms, answer_ms, reply)
    }

    fn histories(connections: Vec<Vec<Event>>) -> Vec<ConnectionHistory> {
        let history = |events| ConnectionHistory {
            events,
            closed_step: None,
        };
        connections.into_iter().map(history).collect()
    }

    #[test]
    fn a_reply_long_after_the_push_is_late() {
        let push = event(Operation::GetAll, 10, 10, SeenReply::Integer(1));
        let element = SeenReply::Array(Vec::new());
        let on_time = histories(vec![vec![pop(0, 11, element.clone())], vec![push.clone()]]);
        assert_eq!(find_late_reply(&on_time), None);
        let late = histories(vec![vec![pop(0, 100, element.clone())], vec![push]]);
        assert!(find_late_reply(&late).is_some());
        // A timeout without an element has no reason.
        assert_eq!(
            find_late_reply(&histories(vec![vec![pop(0, 100, SeenReply::Null)]])),
            None
        );
        // The client after whose timeout the element was pushed may read its reply later.
        let first = pop(0, 101, SeenReply::Null);
        let second = pop(0, 100, element);
        assert_eq!(find_late_reply(&histories(vec![vec![first], vec![second]])), None);
    }
}
