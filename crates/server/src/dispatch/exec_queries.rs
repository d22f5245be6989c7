//! Queries about all clients (CLIENT LIST, INFO) within a transaction.

use weft_base::{ClientId, DbIndex};

use crate::net::client::{BufferFigures, Client, ClientFlags};
use crate::net::client_snapshot::TransactionFigures;
use crate::net::transaction::Transaction;
use crate::state::{ClientVisitorHost, WorkerQuery};

use super::script;
use super::thread::ThreadState;

/// Answers a query about all clients within a transaction.
pub fn answer_query(
    thread: &mut ThreadState,
    transaction: &Transaction,
    query: WorkerQuery,
    client: &mut Client,
    buffers: BufferFigures,
) -> Vec<u8> {
    match thread.for_script {
        true => query_workers(thread, query, client.id, client.db),
        false => answer_query_locally(thread, transaction, &query, client, buffers),
    }
}

/// Queries all workers on a script thread, which can wait for them. The client's worker learns first which database the
/// transaction has selected.
fn query_workers(thread: &ThreadState, mut query: WorkerQuery, client: ClientId, db: DbIndex) -> Vec<u8> {
    let server = &thread.server;
    let task = query.task;
    query.task = Box::new(move |clients| {
        clients.visit_clients(&mut |visited, _| {
            if visited.id == client {
                visited.db = db;
            }
        });
        task(clients)
    });
    let reply = script::query_workers(server, query, || server.scripting.running.is_shutting_down());
    reply.unwrap_or_else(|| b"-ERR The server is about to end\r\n".to_vec())
}

/// Answers a query about all clients within the transaction of one of them.
fn answer_query_locally(
    thread: &mut ThreadState,
    transaction: &Transaction,
    query: &WorkerQuery,
    client: &mut Client,
    buffers: BufferFigures,
) -> Vec<u8> {
    // The client counts as inside its transaction until EXEC has ended.
    client.transaction_figures = Some(Box::new(TransactionFigures {
        queued: transaction.commands.len() as i64,
        queued_bytes: transaction.allocated_bytes(),
        watched: 0,
        is_dirty: false,
    }));
    client.flags.set(ClientFlags::MULTI, true);
    client.last_command = "exec";
    let part = (query.task)(&mut ClientVisitorHost {
        server: &thread.server,
        client_snapshots: thread.client_snapshots.get_or_insert_default(),
        requesting_client: client,
        requesting_client_buffers: buffers,
    });
    client.flags.set(ClientFlags::MULTI, false);
    client.transaction_figures = None;
    (query.combine)(vec![part])
}
