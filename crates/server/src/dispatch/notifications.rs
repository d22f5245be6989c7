//! The notifications that a command causes, sent before its leases end: keyspace events, invalidations, MONITOR lines.
//!
//! This runs only while at least one hook is set, which a single read decides.

use crate::commands::context::{Context, NextStep};
use crate::keyspace::effects::Hooks;
use crate::net::client::{Client, ClientFlags};
use crate::notify::messages::NotificationSender;
use crate::notify::monitor::monitor_line;
use crate::state::Server;
use weft_command_table::spec::CommandFlags;
use weft_config::id;
use weft_os::time::{SystemTime, UNIX_EPOCH};

use super::record::is_redacted;
use super::thread::ThreadState;

/// The number of keys that are dropped from the tracking table, while it exceeds its limit, for each key that is added.
pub(super) const FORGOTTEN_KEYS_PER_TRACKED_KEY: usize = 2;

/// The caller of the command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// A request of a client.
    Client,
    /// A transaction of the client.
    Transaction,
    /// A script of the client.
    Script,
    /// A module.
    Module,
}

/// Queues the notifications of a finished command for other clients. Does nothing for a command that will run again
/// from its start.
#[cold]
pub(super) fn queue_notifications(ctx: &mut Context<'_, '_>, runs_again: bool, caller: Caller) {
    if runs_again {
        ctx.keys.effects.changes.clear();
        if matches!(ctx.next_step, NextStep::RunInBackground(Some(_))) {
            // The reply shows the keys as they are now, even if they change before it is produced.
            track_read_keys(ctx);
        }
        return;
    }
    let (seat, by) = (ctx.keys.context.thread_index, ctx.client.id);
    let shows = ctx.keys.effects.hooks.intersects(Hooks::MONITOR) && is_shown_to_monitors(ctx.command.spec.flags);
    let shown = shows.then(|| format_monitor_line(ctx, caller));
    let mut post = NotificationSender::new(ctx.server, ctx.keys.effects, seat);
    post.send_recorded_effects(Some(by));
    if let Some(line) = shown {
        post.send_monitor_line(line);
    }
    debug_assert!(
        ctx.keys.effects.changes.is_empty(),
        "the recorded changes of a command are sent before its leases end"
    );
    // This comes last: a read command that updates a cache inside the value (PFCOUNT) keeps the client's copy valid.
    let tracked = track_read_keys(ctx);
    if tracked > 0 {
        let mut post = NotificationSender::new(ctx.server, ctx.keys.effects, seat);
        post.evict_excess_tracked_keys(FORGOTTEN_KEYS_PER_TRACKED_KEY * tracked);
    }
    if caller == Caller::Client {
        ctx.client.reset_caching_after(Some(ctx.command.full_name));
    }
}

/// Tracks the keys that a client has read, if the client uses client-side caching. The caller holds the leases of the
/// keys. Returns their number.
fn track_read_keys(ctx: &Context<'_, '_>) -> usize {
    let reads = ctx.command.spec.flags.contains(CommandFlags::READONLY);
    let tracking = ctx.client.tracking.as_deref().filter(|_| reads);
    if !tracking.is_some_and(|tracking| tracking.should_track_next_command()) {
        return 0;
    }
    for index in 0..ctx.keys.len() {
        ctx.server
            .clients
            .tracking
            .add_reader(ctx.keys.name(index), ctx.client.id);
    }
    ctx.keys.len()
}

pub(super) fn is_shown_to_monitors(flags: CommandFlags) -> bool {
    !flags.intersects(CommandFlags::ADMIN.union(CommandFlags::SKIP_MONITOR))
}

fn format_monitor_line(ctx: &Context<'_, '_>, caller: Caller) -> Vec<u8> {
    let name = ctx.command.full_name;
    let from = match caller {
        Caller::Script => "lua".to_owned(),
        Caller::Module => "?:0".to_owned(),
        Caller::Client | Caller::Transaction => format_client(ctx.server, ctx.client),
    };
    monitor_line(unix_us(), ctx.client.db, &from, ctx.args.iter(), |index| {
        is_redacted(name, ctx.args, index)
    })
}

/// Formats the MONITOR line of EXEC or of a script's command. It is shown after the lines of the commands within.
pub(super) fn monitor_line_of_unit<'a>(
    server: &Server,
    client: &Client,
    words: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    monitor_line(unix_us(), client.db, &format_client(server, client), words, |index| {
        client.redacted_arguments.contains(&(index as u32))
    })
}

fn format_client(server: &Server, client: &Client) -> String {
    if client.flags.contains(ClientFlags::UNIX_SOCKET) {
        let path = server.config.text(id::UNIXSOCKET);
        return format!("unix:{}", String::from_utf8_lossy(&path));
    }
    client.address.to_string()
}

fn unix_us() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros())
}

/// Sends the broadcasts of the changes so far in the middle of a batch. A worker puts off the clients that have changed
/// keys if their broadcasts have filled a mailbox, once it has run the batch.
#[inline]
pub(super) fn send_early_broadcasts(thread: &mut ThreadState) {
    if !thread.effects.broadcast.is_empty() {
        send_recorded_broadcasts(thread);
    }
}

#[cold]
fn send_recorded_broadcasts(thread: &mut ThreadState) {
    let full_mailbox = thread.effects.full_mailbox;
    let ThreadState {
        server,
        effects,
        thread_index,
        ..
    } = thread;
    let changed_by = NotificationSender::new(server, effects, *thread_index).send_broadcasts();
    let is_worker = thread_index.get() < server.workers.len();
    if let Some(worker) = effects.full_mailbox.filter(|_| is_worker) {
        let put_off = changed_by.into_iter().map(|client| (client, worker));
        thread.early_broadcasters.extend(put_off);
    }
    // The mailbox that the command itself has filled.
    thread.effects.full_mailbox = full_mailbox.or(thread.effects.full_mailbox);
}

#[cfg(test)]
mod tests;
