//! Compares lists, hashes, sets and sorted sets with naive models: for random operations, every reply must be the
//! model's.
//!
//! The server runs as a process. WEFT_SERVER names another binary than the one just built, such as Valkey, with which
//! the models themselves can be checked. A failure prints its seed and the shortest sequence of operations that still
//! fails, found by omitting operations.

mod hash;
mod list;
mod model;
mod server;
mod set;
mod sorted_set;

use fastrand::Rng;
use model::{Difference, Model, Operation, WorkloadShape};
use server::{Client, Server};

const ROUNDS: usize = 24;
const OPERATIONS: usize = 250;

/// Runs rounds of random operations on a model of kind `M`, each with another shape.
fn run<M: Model>() {
    let server = Server::start();
    let mut client = server.connect();
    let seed = match std::env::var("WEFT_SEED") {
        Ok(text) => text.parse().expect("WEFT_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("WEFT_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    for round in 0..ROUNDS {
        let shape = WorkloadShape::of_round(round);
        let operations: Vec<Operation> = (0..OPERATIONS).map(|_| M::operation(&shape, &mut rng)).collect();
        if first_difference::<M>(&mut client, &operations).is_some() {
            let (shrunk, verdict) = shrink::<M>(&mut client, operations);
            let lines: Vec<String> = shrunk.iter().map(Operation::shown).collect();
            panic!("WEFT_SEED={seed}, {shape:?}:\n{}\n{verdict}", lines.join("\n"));
        }
    }
}

/// Returns the first operation whose reply differs from the model's, and the difference. Server and model start empty.
fn first_difference<M: Model>(client: &mut Client, operations: &[Operation]) -> Option<(usize, Difference)> {
    assert_eq!(client.call(&Operation::new(["FLUSHALL", "SYNC"])), model::Reply::ok());
    let mut model = M::default();
    for operation in operations {
        client.send(operation);
    }
    let mut found = None;
    for (index, operation) in operations.iter().enumerate() {
        let reply = client.answer();
        let expected = model.apply(operation);
        if found.is_none() && !expected.accepts(&reply) {
            found = Some((index, Difference { expected, reply }));
        }
    }
    found
}

/// Omits operations, first many and then few at a time, as long as a difference remains.
fn shrink<M: Model>(client: &mut Client, mut operations: Vec<Operation>) -> (Vec<Operation>, Difference) {
    let (index, mut verdict) = first_difference::<M>(client, &operations).expect("it differs again");
    operations.truncate(index + 1);
    let mut chunk = operations.len() / 2;
    while chunk > 0 {
        let mut start = 0;
        while start < operations.len() {
            let end = (start + chunk).min(operations.len());
            let fewer = [&operations[..start], &operations[end..]].concat();
            match first_difference::<M>(client, &fewer) {
                Some((index, found)) => {
                    operations = fewer;
                    operations.truncate(index + 1);
                    verdict = found;
                }
                None => start = end,
            }
        }
        chunk /= 2;
    }
    (operations, verdict)
}

#[test]
fn lists_answer_as_a_vector_would() {
    run::<list::ListModel>();
}

#[test]
fn hashes_answer_as_a_map_would() {
    run::<hash::HashModel>();
}

#[test]
fn sets_answer_as_ordered_sets_would() {
    run::<set::SetModel>();
}

#[test]
fn sorted_sets_answer_as_a_sorted_vector_would() {
    run::<sorted_set::SortedSetModel>();
}

#[test]
fn a_difference_is_shrunk_to_the_operations_it_takes() {
    /// A list whose length is wrong from its fifth element on.
    #[derive(Default)]
    struct WrongListModel(list::ListModel);
    impl Model for WrongListModel {
        fn operation(shape: &WorkloadShape, rng: &mut Rng) -> Operation {
            list::ListModel::operation(shape, rng)
        }
        fn apply(&mut self, operation: &Operation) -> model::Expected {
            match self.0.apply(operation) {
                model::Expected::Exactly(model::Reply::Integer(length)) if length >= 5 => {
                    model::Expected::Exactly(model::Reply::Integer(length - 1))
                }
                right => right,
            }
        }
    }
    let server = Server::start();
    let mut client = server.connect();
    let operations: Vec<Operation> = (0..40)
        .map(|number| Operation::new(["RPUSH", "k", &number.to_string()]))
        .collect();
    let (shrunk, _) = shrink::<WrongListModel>(&mut client, operations);
    assert_eq!(shrunk.len(), 5, "{shrunk:?}");
}
