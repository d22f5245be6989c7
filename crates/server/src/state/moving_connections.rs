//! Connections on their way between workers, and queries to all workers, which must not miss them.
//!
//! CLIENT LIST, KILL, UNBLOCK and similar commands query every worker about its connections. A connection in the mail
//! between two workers belongs to neither. So moves and queries exclude each other:
//!
//! 1. A worker moves a connection only while no query is under way. A worker that is refused moves it when the queries
//!    are over.
//! 2. A query starts only when every moved connection has arrived. Until then it waits in this structure, and the
//!    worker that adopts the last connection sends it. New moves are refused as soon as a query waits, so it waits for
//!    arrivals only.
//!
//! No thread blocks: queries and moves that cannot start are sent later.

use std::ops::Range;
use std::sync::Arc;

use super::{ClientCollection, Message, SentQuery, Server};

use weft_base::ThreadIndex;
use weft_os::sync::Mutex;

/// A query to all workers.
pub(super) enum AllWorkersQuery {
    WorkerQuery(Arc<SentQuery>),
    ClientCollection(Arc<ClientCollection>),
}

/// Moves and queries under way.
#[derive(Default)]
pub struct MovingConnections(Mutex<InTransit>);

#[derive(Default)]
struct InTransit {
    /// The number of connections that have left a worker and have not arrived at the next one.
    moving: usize,
    /// The number of queries that were sent and are not answered by all workers.
    queries: usize,
    /// Queries that wait for the last arrival.
    waiting_queries: Vec<AllWorkersQuery>,
    /// Refused orders to move connections: the worker, the target workers, and the number of connections that it keeps.
    refused_moves: Vec<(ThreadIndex, Range<usize>, usize)>,
}

impl InTransit {
    fn try_begin_move(&mut self) -> bool {
        let is_allowed = self.queries == 0 && self.waiting_queries.is_empty();
        self.moving += usize::from(is_allowed);
        is_allowed
    }
}

impl MovingConnections {
    /// Returns `true` if a connection may leave a worker now.
    pub fn try_begin_move(&self) -> bool {
        self.0.lock().try_begin_move()
    }

    /// Returns `true` if a connection may leave a worker now. Otherwise the worker gets the order again later.
    pub fn begin_move(&self, worker: ThreadIndex, to: &Range<usize>, kept_connections: usize) -> bool {
        let mut now = self.0.lock();
        if now.try_begin_move() {
            return true;
        }
        now.refused_moves.retain(|(other, ..)| *other != worker);
        now.refused_moves.push((worker, to.clone(), kept_connections));
        false
    }
}

impl Server {
    /// Records that a moved connection has arrived or was closed, and sends the queries that waited for it.
    pub fn end_move(&self) {
        let waiting = {
            let mut now = self.clients.moving.0.lock();
            now.moving -= 1;
            if now.moving > 0 {
                return;
            }
            now.queries += now.waiting_queries.len();
            std::mem::take(&mut now.waiting_queries)
        };
        for query in waiting {
            self.send_query(query);
        }
    }

    /// Sends a query to all workers, once no connection is between two of them.
    pub(super) fn begin_query(&self, query: AllWorkersQuery) {
        {
            let mut now = self.clients.moving.0.lock();
            if now.moving > 0 {
                now.waiting_queries.push(query);
                return;
            }
            now.queries += 1;
        }
        self.send_query(query);
    }

    fn send_query(&self, query: AllWorkersQuery) {
        for worker in &self.workers {
            worker.send(match &query {
                AllWorkersQuery::WorkerQuery(query) => Message::Query(query.clone()),
                AllWorkersQuery::ClientCollection(gathering) => Message::CollectClients(gathering.clone()),
            });
        }
    }

    /// Records that all workers have answered a query.
    pub(super) fn end_query(&self) {
        let refused = {
            let mut now = self.clients.moving.0.lock();
            now.queries -= 1;
            if now.queries > 0 {
                return;
            }
            std::mem::take(&mut now.refused_moves)
        };
        for (worker, to, keep) in refused {
            self.worker(worker).send(Message::MoveConnections {
                target_workers: to,
                kept_connections: keep,
            });
        }
    }
}
