//! The metadata of every command of Valkey 9.1, in one table for each group, and of Weft's own commands.
//!
//! There is a row for each command, including those that Weft does not implement. The [registry](super::registry) binds
//! handlers to rows, and clients see only the rows that have a handler.

use super::spec::CommandSpec;

pub mod bitmap;
pub mod cluster;
pub mod connection;
pub mod generic;
pub mod geo;
pub mod hash;
pub mod hyperloglog;
pub mod list;
pub mod pubsub;
pub mod scripting;
pub mod server;
pub mod set;
pub mod sorted_set;
pub mod stream;
pub mod string;
pub mod transactions;
pub mod weft;

/// All tables.
pub const TABLES: &[&[CommandSpec]] = &[
    bitmap::TABLE,
    cluster::TABLE,
    connection::TABLE,
    generic::TABLE,
    geo::TABLE,
    hash::TABLE,
    hyperloglog::TABLE,
    list::TABLE,
    pubsub::TABLE,
    scripting::TABLE,
    server::TABLE,
    set::TABLE,
    sorted_set::TABLE,
    stream::TABLE,
    string::TABLE,
    transactions::TABLE,
    weft::TABLE,
];
