//! Finds clients that were answered long after others had done what answers them, because a wake-up was lost.
//!
//! While writes are paused, requests wait for the end of the pause, and lists have elements that no client may take.
//! So pauses are left out: a wait counts without the parts of it that lie in a pause, and a reply that came in a pause
//! does not count.

use std::ops::Range;

use crate::history::ConnectionHistory;
use crate::operation::Operation;
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

/// The requests that were unanswered for longest while no thread could run.
#[derive(Default)]
pub struct IdleWait {
    /// For how long, in nanoseconds.
    pub nanoseconds: u64,
    /// The last request of the pipeline.
    request: String,
}

impl IdleWait {
    /// Checks that the wait was short enough.
    ///
    /// # Errors
    /// With a description if it was not.
    pub fn check(&self, max_ns: u64) -> Result<(), String> {
        if self.nanoseconds <= max_ns {
            return Ok(());
        }
        let (request, waited_us) = (&self.request, self.nanoseconds / 1000);
        Err(format!("{request} was not answered in {waited_us} us without any work"))
    }
}

/// Returns the pauses of writes, as idle times of the run, in order.
fn find_pauses(histories: &[ConnectionHistory]) -> Vec<Range<u64>> {
    let mut pauses: Vec<Range<u64>> = Vec::new();
    for history in histories {
        let mut begin = None;
        for event in &history.events {
            if event.operation.pauses_writes() {
                begin = begin.or(Some(event.sent_idle_ns));
            } else if event.operation == Operation::Unpause
                && let Some(begin) = begin.take()
            {
                pauses.push(begin..event.answer_idle_ns);
            }
        }
        pauses.extend(begin.map(|begin| begin..u64::MAX));
    }
    pauses
}

/// Returns the longest wait of a pipeline none of whose requests blocks, without what lies in pauses.
pub fn find_longest_wait(histories: &[ConnectionHistory]) -> IdleWait {
    let pauses = find_pauses(histories);
    let mut longest = IdleWait::default();
    for history in histories {
        for wait in &history.waits {
            let in_pause = |pause: &Range<u64>| {
                let (from, until) = (pause.start.max(wait.from_idle_ns), pause.end.min(wait.until_idle_ns));
                until.saturating_sub(from)
            };
            let all_ns = wait.until_idle_ns - wait.from_idle_ns;
            let nanoseconds = all_ns.saturating_sub(pauses.iter().map(in_pause).sum());
            if nanoseconds > longest.nanoseconds {
                let request = format!("{:?}", history.events[wait.last_event].operation);
                longest = IdleWait { nanoseconds, request };
            }
        }
    }
    longest
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
    let pauses = find_pauses(histories);
    let is_in_pause = |idle_ns: u64| pauses.iter().any(|pause| pause.contains(&idle_ns));
    for (connection, history) in histories.iter().enumerate() {
        for (index, event) in history.events.iter().enumerate() {
            let Some((replies, _)) = &event.answer else { continue };
            let is_served = matches!(replies[..], [SeenReply::Array(_) | SeenReply::Bulk(_)]);
            if !event.operation.is_blocking() || !is_served || is_in_pause(event.answer_idle_ns) {
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
    use crate::history::{Event, PipelineWait};
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
            ..ConnectionHistory::default()
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

    #[test]
    fn waits_count_without_pauses() {
        let done = || SeenReply::Status("OK".to_owned());
        let waits = |from_ms: u64, until_ms: u64| {
            let mut writer = ConnectionHistory {
                events: vec![event(Operation::FlushAll, from_ms, until_ms, done())],
                ..ConnectionHistory::default()
            };
            writer.waits.push(PipelineWait {
                from_idle_ns: from_ms * 1_000_000,
                until_idle_ns: until_ms * 1_000_000,
                last_event: 0,
            });
            let pause = vec![
                event(Operation::Transaction(vec![Operation::Pause]), 100, 110, done()),
                event(Operation::Unpause, 190, 200, done()),
            ];
            let mut all = histories(vec![pause]);
            all.push(writer);
            find_longest_wait(&all).nanoseconds / 1_000_000
        };
        assert_eq!(waits(110, 190), 0);
        assert_eq!(waits(90, 203), 13);
        assert_eq!(waits(20, 50), 30);
        assert_eq!(waits(200, 250), 50);
    }
}
