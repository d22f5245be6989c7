//! Access control for commands: the permissions that a command needs, and the errors if they are missing.
//!
//! A command must pass [`check`] before it is queued or runs, and again when EXEC runs it. A blocked client must pass
//! [`check_waiter`] before it is served. See the essay of [`weft_acl`].

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ThreadIndex};

use weft_resp::number::parse_i64;

use super::context::{Binding, Context, build_reply};
use super::error::{CommandError, c_string_prefix};
use crate::clients_waiting::blocking::Waiter;
use crate::net::client::{BufferFigures, Client};
use crate::observability::metrics::Counter;
use crate::state::{PermissionLoss, Server};
use weft_acl::{
    AccessRequest, ChannelUse, CommandCatalogue, CommandId, Denial, DenialContext, DenialReason, DeniedAccess,
    KeyAccess, UserRules,
};
use weft_command_table::keys;
use weft_command_table::keys::CommandArguments;
use weft_command_table::registry::{Command, Registry};
use weft_command_table::spec::{Categories, CommandFlags, CommandSpec, KeyFlags};
use weft_config::id;
use weft_modules::objects::positions::channel_flag;

/// Returns the commands that ACL rules may name: all commands of Valkey and of modules. Those that exist keep their own
/// ids.
pub fn command_catalogue() -> Arc<CommandCatalogue> {
    let registry = super::registry();
    let existing = registry.commands().iter();
    let existing = existing.map(|command| (command.full_name, command.spec));
    let reserved = registry.built_in_count() + Registry::<Binding>::MAX_MODULE_COMMANDS;
    Arc::new(CommandCatalogue::of_table(
        existing,
        reserved,
        registry.module_categories(),
    ))
}

// ---- the permissions that commands need -----------------------------------------------------------------------
/// A command with its arguments, as a request for access.
pub struct CommandPermission<'a, Args: CommandArguments + ?Sized> {
    /// The command.
    pub command: &'static Command<Binding>,
    /// The arguments; the first is the command's name.
    pub args: &'a Args,
    /// The client's database.
    pub db: DbIndex,
    /// The number of databases.
    pub databases: usize,
}

impl<Args: CommandArguments + ?Sized> CommandPermission<'_, Args> {
    /// Returns `index` and the number of the database that the argument at `index` names, if it names one.
    fn database_argument(&self, index: usize) -> Option<(usize, DbIndex)> {
        let number = parse_i64(self.args.arg(index))?;
        Some((index, DbIndex::parse(number, self.databases)?))
    }

    /// Returns the destination databases of COPY (the last one counts), each with the index of its argument. Returns
    /// `None` if an option is invalid.
    fn copy_destinations(&self) -> Option<Vec<(usize, DbIndex)>> {
        let is = |index: usize, word: &[u8]| self.args.arg(index).eq_ignore_ascii_case(word);
        let mut destinations = Vec::new();
        let mut index = 3;
        while index < self.args.len() {
            if is(index, b"db") && index + 1 < self.args.len() {
                destinations.push(self.database_argument(index + 1)?);
                index += 2;
            } else if is(index, b"replace") {
                index += 1;
            } else {
                return None;
            }
        }
        Some(destinations)
    }

    /// Returns the databases that the arguments name, each with the index of its argument. The list is empty if one of
    /// them is invalid.
    fn named_databases(&self) -> Vec<(usize, DbIndex)> {
        let at = |indexes: &[usize]| indexes.iter().map(|index| self.database_argument(*index)).collect();
        let named = match self.command.full_name {
            "select" => at(&[1]),
            "move" => at(&[2]),
            "swapdb" => at(&[1, 2]),
            "copy" => self.copy_destinations(),
            _ => None,
        };
        named.unwrap_or_default()
    }

    /// Visits the channels that a command of a module names when it is asked for them.
    fn each_channel_of_module(&self, visit: &mut dyn FnMut(usize, ChannelUse, &[u8])) {
        if !self.command.spec.flags.contains(CommandFlags::MODULE_GETCHANNELS) {
            return;
        }
        let Some(command) = self.command.handler.and_then(|binding| binding.module_command) else {
            return;
        };
        let words: Vec<&[u8]> = (0..self.args.len()).map(|index| self.args.arg(index)).collect();
        for position in command.find_channels(&words) {
            let Some(channel) = words.get(position.index) else {
                continue;
            };
            if let Some(usage) = usage_of_channel(position.flags) {
                visit(position.index, usage, channel);
            }
        }
    }

    /// Returns `true` if the command uses the client's own database.
    fn uses_selected_database(&self) -> bool {
        let spec = self.command.spec;
        let elsewhere = matches!(self.command.full_name, "select" | "swapdb");
        let on_data = spec.flags.intersects(CommandFlags::READONLY.union(CommandFlags::WRITE))
            || spec.acl_categories.contains(Categories::KEYSPACE);
        !elsewhere && (on_data || spec.may_have_keys())
    }
}

impl<Args: CommandArguments + ?Sized> AccessRequest for CommandPermission<'_, Args> {
    fn command(&self) -> CommandId {
        self.command.id
    }

    fn is_always_allowed(&self) -> bool {
        self.command.spec.flags.contains(CommandFlags::NO_AUTH)
    }

    fn first_arg(&self) -> Option<&[u8]> {
        let index = if self.command.full_name.contains('|') { 2 } else { 1 };
        (index < self.args.len()).then(|| self.args.arg(index))
    }

    fn all_databases(&self) -> Option<usize> {
        let acts_on_all = self.command.spec.flags.contains(CommandFlags::ALL_DBS);
        acts_on_all.then_some(self.databases)
    }

    fn each_database(&self, visit: &mut dyn FnMut(usize, DbIndex)) {
        for (argument, database) in self.named_databases() {
            visit(argument, database);
        }
        if self.uses_selected_database() {
            visit(0, self.db);
        }
    }

    fn each_key(&self, visit: &mut dyn FnMut(usize, KeyAccess, &[u8])) {
        keys::walk_keys(self.command.spec, self.args, &mut |position: keys::KeyPosition| {
            visit(
                position.index,
                key_access(position.flags),
                self.args.arg(position.index),
            );
        });
    }

    fn each_channel(&self, visit: &mut dyn FnMut(usize, ChannelUse, &[u8])) {
        let (range, usage) = match self.command.full_name {
            "publish" | "spublish" => (1..2, ChannelUse::Name),
            "subscribe" | "ssubscribe" => (1..self.args.len(), ChannelUse::Name),
            "psubscribe" => (1..self.args.len(), ChannelUse::Pattern),
            _ => return self.each_channel_of_module(visit),
        };
        for index in range {
            visit(index, usage, self.args.arg(index));
        }
    }
}

/// Returns the use of a channel that a module has named with these flags. `None` if it needs no permission: the module
/// only ends a subscription.
fn usage_of_channel(flags: u32) -> Option<ChannelUse> {
    let needs_permission = flags & (channel_flag::PUBLISH | channel_flag::SUBSCRIBE) != 0;
    let usage = match flags & channel_flag::PATTERN != 0 {
        true => ChannelUse::Pattern,
        false => ChannelUse::Name,
    };
    needs_permission.then_some(usage)
}

fn key_access(flags: KeyFlags) -> KeyAccess {
    let mut access = KeyAccess::empty();
    if flags.contains(KeyFlags::ACCESS) {
        access = access.union(KeyAccess::READ);
    }
    if flags.intersects(KeyFlags::of(&[KeyFlags::INSERT, KeyFlags::DELETE, KeyFlags::UPDATE])) {
        access = access.union(KeyAccess::WRITE);
    }
    access
}

/// Checks that a user may run a command.
///
/// # Errors
/// The first permission that the user lacks.
pub fn check_permission<Args: CommandArguments + ?Sized>(
    user: &UserRules,
    permission: &CommandPermission<'_, Args>,
) -> Result<(), Denial> {
    if user.is_unrestricted() {
        Ok(())
    } else {
        user.check(permission)
    }
}

/// Checks again, before a command begins that was queued for another thread, if the client's user may run it. `client`
/// is a view of the client. A denial is counted and logged.
///
/// # Errors
/// The reason for which the command does not begin.
pub fn check_queued_command(
    server: &Server,
    thread_index: ThreadIndex,
    client: &mut Client,
    command: &'static Command<Binding>,
    words: &[Vec<u8>],
) -> Result<(), PermissionLoss> {
    if client.was_killed() {
        return Err(PermissionLoss::ClientEnds);
    }
    if client.login.is_unrestricted(server.acl.version()) {
        return Ok(());
    }
    if !client.login.refresh(&server.acl) {
        return Err(PermissionLoss::ClientEnds);
    }
    let permission = CommandPermission {
        command,
        args: words,
        db: client.db,
        databases: database_count(server),
    };
    check_permission(client.login.rules(), &permission).map_err(|denial| {
        let refusal = denied_access(client, denial_context(client), command, words, denial);
        let now_ms = unix_ms();
        log_denial(
            server,
            thread_index,
            now_ms,
            refusal,
            client.list_line(now_ms, BufferFigures::default()),
        );
        server.stats.metrics.record_rejection(thread_index, command.id as usize);
        server.stats.metrics.add(thread_index, Counter::ErrorReplies, 1);
        server.stats.errors.count(b"NOPERM");
        let error = denial_error(denial.reason, client.login.name(), command);
        PermissionLoss::Denied(build_reply(client.protocol, |reply| reply.error_bytes(&error.0)))
    })
}

/// Returns `true` if a single selector lets the client of the running command run it and read every key.
pub fn can_read_all_keys(ctx: &Context<'_, '_>) -> bool {
    let login = &ctx.client.login;
    login.is_unrestricted(ctx.server.acl.version()) || {
        let permission = CommandPermission {
            command: ctx.command,
            args: &ctx.args,
            db: ctx.keys.db,
            databases: database_count(ctx.server),
        };
        login.rules().may_read_all_keys(&permission)
    }
}

/// Returns `true` if a client's user currently allows all of the client's subscriptions.
pub fn may_keep_subscriptions(client: &Client) -> bool {
    let user = client.login.account().rules();
    let Some(subscriptions) = &client.subscriptions else {
        return true;
    };
    let names = subscriptions.channels.iter().chain(&subscriptions.shard_channels);
    let patterns = &subscriptions.patterns;
    names
        .into_iter()
        .all(|name| user.allows_channel(ChannelUse::Name, name))
        && patterns
            .iter()
            .all(|pattern| user.allows_channel(ChannelUse::Pattern, pattern))
}

/// Returns the number of databases.
pub fn database_count(server: &Server) -> usize {
    server.config.databases()
}

// ---- blocked clients ------------------------------------------------------------------------------------------
/// A blocked client's command, as a request for access. Of its arguments only the keys are kept.
struct WaiterAccessRequest<'a> {
    waiter: &'a Waiter,
    spec: &'static CommandSpec,
}

impl WaiterAccessRequest<'_> {
    /// Returns the names of the keys, the destination of a move last, with the access that each needs.
    fn keys(&self) -> impl Iterator<Item = (KeyAccess, &[u8])> {
        let access = |place: usize| {
            let spec = self.spec.key_specs.get(place);
            spec.map_or(KeyAccess::BOTH, |spec| key_access(spec.flags))
        };
        let waited = self.waiter.keys.iter().map(move |key| (access(0), &*key.name));
        let destination = self.waiter.operation.destination();
        waited.chain(destination.into_iter().map(move |key| (access(1), &*key.name)))
    }
}

impl AccessRequest for WaiterAccessRequest<'_> {
    fn command(&self) -> CommandId {
        self.waiter.permission.command
    }

    fn is_always_allowed(&self) -> bool {
        false
    }

    fn first_arg(&self) -> Option<&[u8]> {
        Some(&self.waiter.permission.first_argument)
    }

    fn all_databases(&self) -> Option<usize> {
        None
    }

    fn each_database(&self, visit: &mut dyn FnMut(usize, DbIndex)) {
        visit(0, self.waiter.db);
    }

    fn each_key(&self, visit: &mut dyn FnMut(usize, KeyAccess, &[u8])) {
        for (index, (access, key)) in self.keys().enumerate() {
            visit(index, access, key);
        }
    }

    fn each_channel(&self, _: &mut dyn FnMut(usize, ChannelUse, &[u8])) {}
}

/// The reason why a blocked client may not be served.
pub enum WaiterDenial {
    /// The client's user is deleted, and its connection will be closed.
    UserDeleted,
    /// The user may no longer run the command.
    Refused(DeniedAccess, CommandError),
}

/// Checks that a blocked client may still be served, because its user's rules may have changed since it began to wait.
///
/// # Errors
/// If the client may not be served.
pub fn check_waiter(server: &Server, waiter: &Waiter) -> Result<(), WaiterDenial> {
    if waiter.permission.acl_version == server.acl.version() {
        return Ok(());
    }
    let account = &waiter.permission.account;
    if account.is_deleted() {
        return Err(WaiterDenial::UserDeleted);
    }
    let Some(command) = super::registry().commands().get(usize::from(waiter.permission.command)) else {
        unreachable!("a waiter's command is one of the registry's");
    };
    let permission = WaiterAccessRequest {
        waiter,
        spec: command.spec,
    };
    let user = account.rules();
    if user.is_unrestricted() {
        return Ok(());
    }
    user.check(&permission).map_err(|denial| {
        let object = match denial.reason {
            DenialReason::Key => permission
                .keys()
                .nth(denial.argument)
                .map_or(&b""[..], |(_, name)| name),
            _ => command.full_name.as_bytes(),
        };
        let refusal = DeniedAccess {
            reason: denial.reason,
            context: DenialContext::TopLevel,
            object: object.to_vec(),
            user: account.name().to_vec(),
        };
        WaiterDenial::Refused(refusal, denial_error(denial.reason, account.name(), command))
    })
}

// ---- denials --------------------------------------------------------------------------------------------------
/// Returns the error of a denied command.
pub fn denial_error(reason: DenialReason, user: &[u8], command: &Command<Binding>) -> CommandError {
    match reason {
        DenialReason::Command => {
            CommandError::from_bytes([b"NOPERM ", &*dry_run_reply(reason, user, command, b"")].concat())
        }
        DenialReason::Key => CommandError::constant("NOPERM No permissions to access a key"),
        DenialReason::Channel => CommandError::constant("NOPERM No permissions to access a channel"),
        DenialReason::Database | DenialReason::Auth | DenialReason::Certificate => {
            CommandError::constant("NOPERM No permissions to access database")
        }
    }
}

/// Returns the error that a script gets for a command that its user may not run.
pub fn script_denial_error(reason: DenialReason, user: &[u8], command: &Command<Binding>) -> Vec<u8> {
    let text: &[u8] = match reason {
        DenialReason::Command => &dry_run_reply(reason, user, command, b""),
        DenialReason::Key => b"No permissions to access a key",
        DenialReason::Channel => b"No permissions to access a channel",
        DenialReason::Database | DenialReason::Auth | DenialReason::Certificate => b"No permissions to access database",
    };
    [SCRIPT_DENIAL, text].concat()
}

/// The beginning of the error of a script whose command was denied. The denial counts as NOPERM.
pub const SCRIPT_DENIAL: &[u8] = b"ERR ACL failure in script: ";

/// Returns the reply of ACL DRYRUN for a denial.
pub fn dry_run_reply(reason: DenialReason, user: &[u8], command: &Command<Binding>, object: &[u8]) -> Vec<u8> {
    let name = command.full_name.as_bytes();
    let (what, object, after): (&[u8], &[u8], &[u8]) = match reason {
        DenialReason::Command => (b" has no permissions to run the '", name, b"' command"),
        DenialReason::Key => (b" has no permissions to access the '", object, b"' key"),
        DenialReason::Channel => (b" has no permissions to access the '", object, b"' channel"),
        DenialReason::Database | DenialReason::Auth | DenialReason::Certificate => {
            (b" has no permissions to access database ", c_string_prefix(object), b"")
        }
    };
    [b"User ", user, what, object, after].concat()
}

/// Returns a denial in the form in which the ACL log shows it.
pub fn denied_access<Args: CommandArguments + ?Sized>(
    client: &Client,
    context: DenialContext,
    command: &Command<Binding>,
    args: &Args,
    denial: Denial,
) -> DeniedAccess {
    let object = match denial.argument {
        0 => command.full_name.as_bytes(),
        argument => args.arg(argument),
    };
    DeniedAccess {
        reason: denial.reason,
        context,
        object: object.to_vec(),
        user: client.login.name().to_vec(),
    }
}

/// Returns the error of EXEC for a command that was denied after it was queued.
pub fn exec_denial_error(reason: DenialReason) -> CommandError {
    let reason = match reason {
        DenialReason::Command => "no permission to execute the command or subcommand",
        DenialReason::Key => "no permission to touch the specified keys",
        DenialReason::Channel => "no permission to access one of the channels used as arguments",
        DenialReason::Database | DenialReason::Auth | DenialReason::Certificate => "no permission",
    };
    CommandError::from_text(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is \
         no longer allowed for the following reason: {reason}"
    ))
}

/// Returns the context of a client's next command for the ACL log.
pub fn denial_context(client: &Client) -> DenialContext {
    match client.transaction {
        Some(_) => DenialContext::Transaction,
        None => DenialContext::TopLevel,
    }
}

/// Counts a denial and adds it to the ACL log. `client` is the client's line in CLIENT LIST.
pub fn log_denial(server: &Server, thread_index: ThreadIndex, now_ms: u64, refusal: DeniedAccess, client: Vec<u8>) {
    let counter = match refusal.reason {
        DenialReason::Command => Counter::DeniedCommand,
        DenialReason::Database => Counter::DeniedDatabase,
        DenialReason::Key => Counter::DeniedKey,
        DenialReason::Channel => Counter::DeniedChannel,
        DenialReason::Auth => Counter::DeniedAuth,
        DenialReason::Certificate => Counter::DeniedCertificate,
    };
    server.stats.metrics.add(thread_index, counter, 1);
    let max_len = usize::try_from(server.config.unsigned(id::ACLLOG_MAX_LEN)).unwrap_or(usize::MAX);
    server.acl.log.lock().add(refusal, client, now_ms, max_len);
}

#[cfg(test)]
mod tests;
