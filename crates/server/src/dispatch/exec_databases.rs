//! The databases in which the commands of a transaction run.
//!
//! A command is queued with the database that the last SELECT before it selects. When EXEC runs, the user may have lost
//! the permission for that SELECT. Then the commands after it run in the database before. EXEC examines the keys of all
//! commands before it runs the first one: for expired sources, pinned and frozen values, and slots that move. So it
//! determines the databases again when it is admitted after the users have changed. Permissions change in exclusive
//! mode only, so the databases hold until it runs. While it waits for a slot it is admitted again and again, and a
//! transaction may have very many commands.
//!
//! A command of the transaction itself may change the permissions of its client, too (AUTH, ACL SETUSER). After it, the
//! database that a SELECT leads to is not known beforehand. Such a transaction runs in exclusive mode
//! ([`Transaction::has_uncertain_databases`]).

use weft_base::DbIndex;
use weft_command_table::registry::Command;
use weft_resp::Args;
use weft_resp::number::parse_i64;

use crate::commands::context::Binding;
use crate::commands::permission::{self, CommandPermission};
use crate::net::client::Client;
use crate::net::transaction::Transaction;
use crate::state::Server;

/// Returns the database that a command selects, if it is SELECT with a valid index.
pub(super) fn selected_database(command: &Command<Binding>, args: Args<'_>, databases: usize) -> Option<DbIndex> {
    if command.full_name != "select" {
        return None;
    }
    DbIndex::parse(parse_i64(args.argument(1))?, databases)
}

/// Records in a transaction that a command is queued after which its databases may change. `selects` is set if the
/// command is a SELECT with a valid index.
pub(super) fn note_queued_command(
    transaction: &mut Transaction,
    command: &Command<Binding>,
    selects: bool,
    databases: usize,
) {
    transaction.selects_database |= selects;
    // With one database every SELECT leads to it.
    transaction.has_uncertain_databases |= selects && transaction.changes_permissions && databases > 1;
    transaction.changes_permissions |= may_change_permissions(command);
}

/// Returns `true` if a command may change what its client may do next.
fn may_change_permissions(command: &Command<Binding>) -> bool {
    matches!(
        command.full_name,
        "auth" | "hello" | "acl|setuser" | "acl|deluser" | "acl|load"
    )
}

/// Determines the databases of a client's queued commands by its permissions among the users of `acl_version`, unless
/// that was done before. With `is_unrestricted` the client may do everything. Otherwise the rules of its login are up
/// to date.
pub(super) fn update_databases(server: &Server, client: &mut Client, acl_version: u64, is_unrestricted: bool) {
    let Some(transaction) = client.transaction.as_deref_mut() else {
        return;
    };
    let as_of = Some((acl_version, client.db));
    if !transaction.selects_database || transaction.databases_as_of == as_of {
        return;
    }
    transaction.databases_as_of = as_of;
    let commands = crate::commands::registry().commands();
    let databases = permission::database_count(server);
    let mut db = client.db;
    for index in 0..transaction.commands.len() {
        transaction.commands[index].db = db;
        let queued = &transaction.commands[index];
        let Some(command) = commands.get(queued.command) else {
            continue;
        };
        let args = transaction.args(queued);
        let Some(selected) = selected_database(command, args, databases) else {
            continue;
        };
        let permission = CommandPermission {
            command,
            args: &args,
            db,
            databases,
        };
        if is_unrestricted || permission::check_permission(client.login.rules(), &permission).is_ok() {
            db = selected;
        }
    }
}

#[cfg(test)]
mod tests;
