//! The order in which the servers have executed the operations: that which the search for an order tries first.
//!
//! A server of a simulation records when it has executed a request, and for which of its clients. The histories do not
//! know these numbers, so the requests of each connection are compared with the records of each client.

use std::collections::HashMap;

use weft_server::simulation::{Execution, ExecutionStage, request_digest};

use crate::history::{ConnectionHistory, Event};
use crate::operation::Operation;

/// The weight of a request that only one record can belong to, when the client of a connection is looked for.
const WEIGHT_OF_SINGLE: usize = 100;

/// A request that was executed.
#[derive(Clone, Copy)]
struct ExecutedRequest {
    client: u64,
    digest: u64,
    step: u64,
    /// Its position among all records.
    position: u64,
}

/// The position of an event in an order that is tried: a step, and what distinguishes events of the same step. The
/// smallest one is tried first.
pub type OrderKey = (u64, u64);

/// Returns for each event of each connection when it was executed; `None` if that is not known, or if it was not.
pub fn execution_keys(histories: &[ConnectionHistory], executions: &[Execution]) -> Vec<Vec<Option<OrderKey>>> {
    let executed = executed_requests(executions);
    let mut by_digest: HashMap<u64, Vec<ExecutedRequest>> = HashMap::new();
    let mut by_client: HashMap<u64, Vec<ExecutedRequest>> = HashMap::new();
    for request in executed {
        by_digest.entry(request.digest).or_default().push(request);
        by_client.entry(request.client).or_default().push(request);
    }
    let keys_of = |history: &ConnectionHistory| match find_client(history, &by_digest) {
        Some(client) => keys_of_connection(history, &by_client[&client]),
        None => vec![None; history.events.len()],
    };
    histories.iter().map(keys_of).collect()
}

/// Returns the requests that were executed, in order. Those that waited for keys count when they were served.
fn executed_requests(executions: &[Execution]) -> Vec<ExecutedRequest> {
    let mut waiting: HashMap<u64, u64> = HashMap::new();
    let mut executed = Vec::new();
    for (position, execution) in executions.iter().enumerate() {
        let client = execution.client;
        let digest = match execution.stage {
            ExecutionStage::Ran(digest) => Some(digest),
            ExecutionStage::Waits(digest) => {
                waiting.insert(client, digest);
                None
            }
            ExecutionStage::Served => waiting.remove(&client),
        };
        executed.extend(digest.map(|digest| ExecutedRequest {
            client,
            digest,
            step: execution.step,
            position: position as u64,
        }));
    }
    executed
}

/// Returns the digests of the commands of an event that a server executes.
fn digests(event: &Event) -> impl Iterator<Item = u64> {
    let commands = event.operation.single_operations().iter().flat_map(Operation::commands);
    commands.map(|words| request_digest(words.iter().map(String::as_bytes)))
}

fn can_be(event: &Event, request: &ExecutedRequest) -> bool {
    event.sent_step <= request.step && request.step <= event.answer_step()
}

/// Returns the client that has most likely sent the requests of a connection.
fn find_client(history: &ConnectionHistory, by_digest: &HashMap<u64, Vec<ExecutedRequest>>) -> Option<u64> {
    let mut weights: HashMap<u64, usize> = HashMap::new();
    for event in &history.events {
        for digest in digests(event) {
            let requests = by_digest.get(&digest).map(Vec::as_slice).unwrap_or_default();
            let clients: Vec<u64> = requests
                .iter()
                .filter(|request| can_be(event, request))
                .map(|request| request.client)
                .collect();
            let weight = if clients.len() == 1 { WEIGHT_OF_SINGLE } else { 1 };
            for client in clients {
                *weights.entry(client).or_default() += weight;
            }
        }
    }
    let heaviest = weights.into_iter().max_by_key(|(client, weight)| (*weight, *client));
    heaviest.map(|(client, _)| client)
}

/// Returns for each event of a connection when its last command was executed. `requests` are those of its client.
fn keys_of_connection(history: &ConnectionHistory, requests: &[ExecutedRequest]) -> Vec<Option<OrderKey>> {
    let mut rest = requests;
    let key_of = |event: &Event| {
        let mut key = None;
        for digest in digests(event) {
            let is_this = |request: &ExecutedRequest| request.digest == digest && can_be(event, request);
            if let Some(at) = rest.iter().position(is_this) {
                key = Some((rest[at].step, rest[at].position));
                rest = &rest[at + 1..];
            }
        }
        key
    };
    history.events.iter().map(key_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::SeenReply;

    fn event(operation: Operation, sent_step: u64, answer_step: Option<u64>) -> Event {
        Event {
            operation,
            sent_step,
            sent_ns: 0,
            sent_idle_ns: 0,
            answer_ns: 0,
            answer_idle_ns: 0,
            answer: answer_step.map(|step| (vec![SeenReply::ok()], step)),
        }
    }

    fn histories(connections: Vec<Vec<Event>>) -> Vec<ConnectionHistory> {
        let history = |events| ConnectionHistory {
            events,
            ..ConnectionHistory::default()
        };
        connections.into_iter().map(history).collect()
    }

    fn ran(client: u64, step: u64, operation: &Operation) -> Execution {
        let digest = digests(&event(operation.clone(), 0, None)).next();
        Execution {
            client,
            step,
            stage: ExecutionStage::Ran(digest.unwrap_or_default()),
        }
    }

    #[test]
    fn equal_requests_belong_to_the_clients_that_have_sent_them() {
        let append = Operation::Append(0);
        let histories = histories(vec![
            vec![
                event(Operation::Set(1, 5), 0, Some(50)),
                event(append.clone(), 0, Some(50)),
            ],
            vec![
                event(append.clone(), 0, Some(50)),
                event(Operation::Set(1, 6), 0, Some(50)),
            ],
        ]);
        let executions = [
            ran(9, 10, &append),
            ran(7, 20, &Operation::Set(1, 5)),
            ran(9, 30, &Operation::Set(1, 6)),
            ran(7, 40, &append),
        ];
        let expected = vec![vec![Some((20, 1)), Some((40, 3))], vec![Some((10, 0)), Some((30, 2))]];
        assert_eq!(execution_keys(&histories, &executions), expected);
    }

    #[test]
    fn a_request_that_has_waited_counts_when_it_was_served() {
        let pop = Operation::BlockingPop {
            lists: vec![0],
            timeout_ms: 10,
        };
        let histories = histories(vec![vec![event(pop.clone(), 0, Some(50))]]);
        let Execution {
            stage: ExecutionStage::Ran(digest),
            ..
        } = ran(3, 10, &pop)
        else {
            panic!("a request that has run has a digest");
        };
        let waits = Execution {
            client: 3,
            step: 10,
            stage: ExecutionStage::Waits(digest),
        };
        let served = Execution {
            client: 3,
            step: 20,
            stage: ExecutionStage::Served,
        };
        assert_eq!(execution_keys(&histories, &[waits]), vec![vec![None]]);
        assert_eq!(execution_keys(&histories, &[waits, served]), vec![vec![Some((20, 1))]]);
    }

    #[test]
    fn what_was_executed_outside_of_the_time_of_a_request_is_another_one() {
        let set = Operation::Set(0, 5);
        let histories = histories(vec![vec![event(set.clone(), 20, Some(30))]]);
        assert_eq!(
            execution_keys(&histories, &[ran(1, 10, &set), ran(1, 40, &set)]),
            vec![vec![None]]
        );
        assert_eq!(
            execution_keys(&histories, &[ran(1, 10, &set), ran(2, 25, &set)]),
            vec![vec![Some((25, 1))]]
        );
    }

    #[test]
    fn a_transaction_counts_when_its_last_command_has_run() {
        let (first, last) = (Operation::SetGet(0, 5), Operation::SetGet(1, 6));
        let transaction = Operation::Transaction(vec![first.clone(), last.clone()]);
        let histories = histories(vec![vec![event(transaction, 0, None)]]);
        let executions = [ran(1, 10, &first), ran(1, 10, &last)];
        assert_eq!(execution_keys(&histories, &executions), vec![vec![Some((10, 1))]]);
    }
}
