//! Redirections and refusals of cluster mode: checks that this node serves the keys of a command.
//!
//! There are two checks, as [`weft_cluster`] describes. The first runs at admission and looks up the owner of the slot
//! in the cluster view. If the slot is migrating or being imported, the second check runs under the leases of the keys
//! and determines which keys are on this node.

use std::sync::Arc;

use weft_base::{DbIndex, SlotIndex};
use weft_resp::Args;
use weft_resp::number::parse_i64;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::keyspace::access::{HeldLeases, is_expired};
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::transaction::Transaction;
use crate::state::Server;
use weft_base::slots::{SLOTS, cluster_slot};
use weft_cluster::settings::EndpointType;
use weft_cluster::view::{ClusterView, RequesterInfo, SlotOwner};
use weft_command_table::keys;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_config::id;
use weft_modules::module::cluster_messages::is_redirection_off;

use super::admit::WRITE_FLAGS;
use super::script_flags;
use super::thread::{SlotMigration, ThreadState};

/// A command's requirements on the cluster.
struct ClusterRequirement {
    /// The slot of its keys.
    slot: SlotIndex,
    /// `true` if the command has several different keys.
    many: bool,
    /// `true` if the command is about shard channels.
    uses_shard_channels: bool,
}

const CROSS_SLOT: CommandError = CommandError::constant("CROSSSLOT Keys in request don't hash to the same slot");
const TRY_AGAIN: CommandError = CommandError::constant("TRYAGAIN Multiple keys request during rehashing of slot");
const SLOT_NOT_SERVED: CommandError = CommandError::constant("CLUSTERDOWN Hash slot not served");
const CLUSTER_DOWN: CommandError = CommandError::constant("CLUSTERDOWN The cluster is down");
const CLUSTER_READ_ONLY: CommandError =
    CommandError::constant("CLUSTERDOWN The cluster is down and only accepts read commands");

/// Collects the slot that a command is about. `wanted` stays `None` for a command without keys.
struct SlotCollector<'a> {
    requirement: Option<ClusterRequirement>,
    first_name: &'a [u8],
    is_cross_slot: bool,
    /// Set if no node owns the slot.
    is_unserved: bool,
}

impl<'a> SlotCollector<'a> {
    fn new() -> Self {
        SlotCollector {
            requirement: None,
            first_name: &[],
            is_cross_slot: false,
            is_unserved: false,
        }
    }

    fn add(&mut self, view: &ClusterView, slot: SlotIndex, name: &'a [u8]) {
        if self.is_cross_slot {
            return;
        }
        match &mut self.requirement {
            None => {
                self.is_unserved = view.owner(slot) == SlotOwner::Unassigned;
                self.first_name = name;
                self.requirement = Some(ClusterRequirement {
                    slot,
                    many: false,
                    uses_shard_channels: false,
                });
            }
            Some(wanted) if wanted.slot != slot => self.is_cross_slot = true,
            Some(wanted) => wanted.many |= name != self.first_name,
        }
    }

    /// Adds the keys or shard channels of a command; `planned` are its keys.
    fn add_command(&mut self, view: &ClusterView, command: &Command<Binding>, args: Args<'a>, planned: &[PlannedKey]) {
        for key in planned {
            self.add(view, key.slot, args.argument(key.argument as usize));
        }
        if planned.is_empty() && command.spec.has_slot_arguments() {
            keys::walk_routed_arguments(command.spec, &args, &mut |position: keys::KeyPosition| {
                let name = args.argument(position.index);
                self.add(view, cluster_slot(name), name);
            });
        }
        if is_shard_channel_command(command)
            && let Some(wanted) = &mut self.requirement
        {
            wanted.uses_shard_channels = true;
        }
    }
}

/// How the slot of a command moves between nodes, as its client sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotTransition {
    /// The slot stays.
    Settled,
    /// The slot is migrating away from this node, or from the primary of this replica.
    Leaving,
    /// This node imports the slot.
    Arriving,
}

impl SlotTransition {
    /// A replica knows the migrations of its primary, so a client that reads from it is redirected as the primary would
    /// do.
    fn seen_by(client: &Client, view: &ClusterView, slot: SlotIndex) -> SlotTransition {
        if view.is_replica && !client.flags.contains(ClientFlags::READONLY) {
            SlotTransition::Settled
        } else if view.is_of_my_shard(slot) && view.migrating(slot).is_some() {
            SlotTransition::Leaving
        } else if view.is_importing(slot) {
            SlotTransition::Arriving
        } else {
            SlotTransition::Settled
        }
    }
}

fn is_shard_channel_command(command: &Command<Binding>) -> bool {
    matches!(command.full_name, "ssubscribe" | "sunsubscribe" | "spublish")
}

/// The first check, at admission: decides whether a command may run on this node, without looking at its keys.
///
/// # Errors
/// The redirection or refusal to send.
pub fn check_routing(
    thread: &mut ThreadState,
    view: &Arc<ClusterView>,
    client: &Client,
    command: &'static Command<Binding>,
    args: Args<'_>,
    planned: &[PlannedKey],
) -> Result<(), CommandError> {
    thread.moving = None;
    if is_redirection_off() {
        return Ok(());
    }
    let mut collector = SlotCollector::new();
    let transaction = client.transaction.as_deref().filter(|_| command.full_name == "exec");
    // A transaction with a refused command executes nothing.
    let transaction = transaction.filter(|transaction| !transaction.is_refused);
    match transaction {
        Some(transaction) => add_transaction(&mut collector, view, transaction),
        None => collector.add_command(view, command, args, planned),
    }
    let writes = command.spec.flags.contains(CommandFlags::WRITE) || transaction.is_some_and(has_queued_key_write);
    let Some(wanted) = collected_requirement(&collector)? else {
        return Ok(());
    };
    let transition = SlotTransition::seen_by(client, view, wanted.slot);
    if transition != SlotTransition::Settled {
        let writes_other_database = match transaction {
            Some(transaction) => has_queued_write_to_other_database(transaction),
            None => writes_other_database(command, args, client.db),
        };
        if writes_other_database {
            return Err(TRY_AGAIN);
        }
    }
    let server = &thread.server;
    // On a replica a script counts as a write unless it declares that it does not write, or declares nothing at all.
    let reads_here = view.is_replica && client.flags.contains(ClientFlags::READONLY);
    let runs_script = reads_here && matches!(command.full_name, "eval" | "evalsha" | "fcall");
    let writes = writes || (runs_script && script_flags::may_write(server, command, args));
    if !view.is_up {
        check_cluster_up(server, wanted, writes)?;
    }
    let asking = client.flags.contains(ClientFlags::ASKING) || command.spec.flags.contains(CommandFlags::ASKING);
    if command.full_name == "migrate" && transition != SlotTransition::Settled {
        return Ok(());
    }
    let endpoint = EndpointType::configured(&server.config);
    thread.moving = check_slot_owner(view, client, wanted, transition, asking, writes, endpoint)?;
    Ok(())
}

/// Returns `true` for MOVE, and for COPY to a database other than `db`. While a slot is migrating, the key may be on
/// the other node in that database, so the command could create it twice.
fn writes_other_database(command: &Command<Binding>, args: Args<'_>, db: DbIndex) -> bool {
    match command.full_name {
        "move" => true,
        "copy" => {
            let options = args.iter().skip(3);
            let values = options.clone().skip(1);
            options
                .zip(values)
                .filter(|(option, _)| option.eq_ignore_ascii_case(b"DB"))
                .any(|(_, value)| parse_i64(value).and_then(|number| usize::try_from(number).ok()) != Some(db.get()))
        }
        _ => false,
    }
}

/// Returns `true` if a queued command may write to a database other than its own, or if its own is not known.
fn has_queued_write_to_other_database(transaction: &Transaction) -> bool {
    let commands = crate::commands::registry().commands();
    let is_uncertain = transaction.has_uncertain_databases && transaction.may_write;
    is_uncertain
        || transaction.commands.iter().any(|queued| {
            let command = commands.get(queued.command);
            command.is_some_and(|command| writes_other_database(command, transaction.args(queued), queued.db))
        })
}

fn collected_requirement<'c>(collector: &'c SlotCollector<'_>) -> Result<Option<&'c ClusterRequirement>, CommandError> {
    if collector.is_cross_slot {
        return Err(CROSS_SLOT);
    }
    if collector.is_unserved {
        return Err(SLOT_NOT_SERVED);
    }
    Ok(collector.requirement.as_ref())
}

fn add_transaction<'a>(collector: &mut SlotCollector<'a>, view: &ClusterView, transaction: &'a Transaction) {
    let commands = crate::commands::registry().commands();
    for queued in &transaction.commands {
        if let Some(command) = commands.get(queued.command) {
            collector.add_command(view, command, transaction.args(queued), transaction.keys_of(queued));
        }
    }
}

/// Returns `true` if a queued command writes keys. PUBLISH does not count.
fn has_queued_key_write(transaction: &Transaction) -> bool {
    let commands = crate::commands::registry().commands();
    let queued = || {
        transaction
            .commands
            .iter()
            .filter_map(|queued| commands.get(queued.command))
    };
    transaction.may_write && queued().any(|command| command.spec.flags.contains(CommandFlags::WRITE))
}

/// Returns the refusal of a command while the cluster is down.
fn check_cluster_up(server: &Server, requirement: &ClusterRequirement, writes: bool) -> Result<(), CommandError> {
    let config = &server.config;
    if requirement.uses_shard_channels {
        return match config.boolean(id::CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN) {
            true => Ok(()),
            false => Err(CLUSTER_DOWN),
        };
    }
    match (config.boolean(id::CLUSTER_ALLOW_READS_WHEN_DOWN), writes) {
        (false, _) => Err(CLUSTER_DOWN),
        (true, true) => Err(CLUSTER_READ_ONLY),
        (true, false) => Ok(()),
    }
}

fn check_slot_owner(
    view: &ClusterView,
    client: &Client,
    requirement: &ClusterRequirement,
    transition: SlotTransition,
    asking: bool,
    writes: bool,
    endpoint: EndpointType,
) -> Result<Option<SlotMigration>, CommandError> {
    let slot = requirement.slot;
    debug_assert!(slot.index() < SLOTS, "a key has one of the slots");
    let mine = view.is_mine(slot);
    if transition == SlotTransition::Leaving && !requirement.uses_shard_channels {
        let runs_here = mine || !writes;
        return Ok(Some(SlotMigration::Out { slot, runs_here }));
    }
    if transition == SlotTransition::Arriving && asking {
        return Ok((!requirement.uses_shard_channels).then_some(SlotMigration::In { many: requirement.many }));
    }
    if mine {
        return Ok(None);
    }
    let reads = client.flags.contains(ClientFlags::READONLY);
    let reads_here = (reads || requirement.uses_shard_channels) && !writes;
    if reads_here && view.is_of_my_shard(slot) {
        return Ok(None);
    }
    Err(moved_error(view, client, slot, endpoint))
}

/// Returns the error that redirects a client to the owner of a slot.
fn moved_error(view: &ClusterView, client: &Client, slot: SlotIndex, endpoint: EndpointType) -> CommandError {
    match view.owner(slot) {
        SlotOwner::Other(place) => {
            let endpoint_text = place.text(endpoint, requester_info(client));
            CommandError::from_text(format!("MOVED {slot} {endpoint_text}"))
        }
        SlotOwner::Unassigned | SlotOwner::Myself => SLOT_NOT_SERVED,
    }
}

/// Returns the parts of a client on which the address of a redirect depends.
pub fn requester_info(client: &Client) -> RequesterInfo {
    RequesterInfo {
        ipv6: client.local_address.starts_with('['),
        tls: client.flags.contains(ClientFlags::TLS),
    }
}

/// The second check, under the leases of the keys: decides by the keys that are on this node. `planned` has the keys,
/// each with its request and its database.
///
/// # Errors
/// The redirection or refusal to send.
#[cold]
pub fn check_migrating_keys<'k>(
    thread: &ThreadState,
    view: &ClusterView,
    client: &Client,
    migration: SlotMigration,
    held: &HeldLeases<'_, '_>,
    planned: impl Iterator<Item = (Args<'k>, DbIndex, &'k PlannedKey)>,
) -> Result<(), CommandError> {
    let (mut here, mut missing) = (0, 0);
    for (args, db, key) in planned {
        let entry = held.entry(key, db, args);
        match entry.is_some_and(|entry| !is_expired(entry.expire_at_ms(), thread.now_ms)) {
            true => here += 1,
            false => missing += 1,
        }
    }
    let endpoint = EndpointType::configured(&thread.server.config);
    match migration {
        SlotMigration::Out { runs_here: true, .. } if missing == 0 => Ok(()),
        SlotMigration::Out { slot, .. } if missing == 0 => Err(moved_error(view, client, slot, endpoint)),
        SlotMigration::Out { .. } if here > 0 => Err(TRY_AGAIN),
        SlotMigration::Out { slot, .. } => match view.migrating(slot) {
            Some(place) => {
                let endpoint_text = place.text(endpoint, requester_info(client));
                Err(CommandError::from_text(format!("ASK {slot} {endpoint_text}")))
            }
            None => Err(TRY_AGAIN),
        },
        SlotMigration::In { many: true } if missing > 0 => Err(TRY_AGAIN),
        SlotMigration::In { .. } => Ok(()),
    }
}

/// The second check for a command that is queued in a transaction. EXEC looks for the keys
/// ([`check_transaction`]); until then they may come or go.
///
/// # Errors
/// The redirection to send.
#[cold]
pub fn check_queued_command(thread: &ThreadState, client: &Client) -> Result<(), CommandError> {
    match (thread.moving, &thread.view) {
        (Some(SlotMigration::Out { slot, runs_here: false }), Some(view)) => {
            let endpoint = EndpointType::configured(&thread.server.config);
            Err(moved_error(view, client, slot, endpoint))
        }
        _ => Ok(()),
    }
}

/// The second check for EXEC, with the keys of all queued commands.
///
/// # Errors
/// The redirection or refusal to send.
#[cold]
pub fn check_transaction(
    thread: &ThreadState,
    client: &Client,
    transaction: &Transaction,
    held: &HeldLeases<'_, '_>,
) -> Result<(), CommandError> {
    let (Some(moving), Some(view)) = (thread.moving, &thread.view) else {
        return Ok(());
    };
    let keys = transaction.commands.iter().flat_map(|queued| {
        let args = transaction.args(queued);
        transaction
            .keys_of(queued)
            .iter()
            .map(move |key| (args, queued.db, key))
    });
    check_migrating_keys(thread, view, client, moving, held, keys)
}

/// The error text of a script that accesses a key that may be on another node.
/// The error text of a script that writes while the cluster is down and only serves reads.
pub const CLUSTER_IS_READ_ONLY: &str = "Can not execute a write command while the cluster is down and readonly";
/// The error text of a script that accesses a key while the cluster is down.
pub const CLUSTER_IS_DOWN: &str = "Can not execute a command while the cluster is down";
const KEY_OF_ANOTHER_NODE: &str = "Attempted to access a non local key in a cluster node";

/// The second check for a command that a script calls, under the leases of its keys: a key that is missing in a slot
/// that is migrating may be on the other node. A command with one key runs in a slot that arrives, as for a client.
///
/// # Errors
/// The refusal.
#[cold]
pub fn check_script_keys(
    view: &ClusterView,
    client: &Client,
    command: &Command<Binding>,
    call: (Args<'_>, &[PlannedKey]),
    held: &HeldLeases<'_, '_>,
    now_ms: u64,
) -> Result<(), CommandError> {
    let (args, planned) = call;
    let Some(first) = planned.first().filter(|_| !is_redirection_off()) else {
        return Ok(());
    };
    let may_miss = match SlotTransition::seen_by(client, view, first.slot) {
        SlotTransition::Settled => true,
        SlotTransition::Leaving => command.full_name == "migrate",
        SlotTransition::Arriving => planned.len() == 1,
    };
    let is_missing = |key: &PlannedKey| {
        let entry = held.entry(key, client.db, args);
        entry.is_none_or(|entry| is_expired(entry.expire_at_ms(), now_ms))
    };
    match !may_miss && planned.iter().any(is_missing) {
        true => Err(CommandError::from_text(format!("ERR {KEY_OF_ANOTHER_NODE}"))),
        false => Ok(()),
    }
}

/// The error text of a script that writes to a slot while its new owner takes it over.
const WRITES_TO_MOVING_SLOT: &str = "Script attempted to write to a slot that is moving to another node";

/// Returns the error text for a command that a script calls, if the command is refused: its keys belong to another
/// node, or the cluster is down.
#[cold]
pub fn script_routing_error(
    view: &ClusterView,
    server: &Server,
    client: &Client,
    command: &'static Command<Binding>,
    args: Args<'_>,
    required_slot: Option<&mut Option<SlotIndex>>,
) -> Option<&'static str> {
    if is_redirection_off() {
        return None;
    }
    let mut collector = SlotCollector::new();
    let mut planned = Vec::new();
    super::plan::plan_write_keys(&server.keyspace, command, &args, &mut planned);
    collector.add_command(view, command, args, &planned);
    if collector.is_cross_slot {
        return Some(KEY_OF_ANOTHER_NODE);
    }
    let writes = command.spec.flags.contains(CommandFlags::WRITE);
    let Some(requirement) = collector.requirement.as_ref() else {
        // FLUSHALL and similar commands.
        let writes_anywhere = writes && server.clients.pause.held_slots.is_any();
        return writes_anywhere.then_some(WRITES_TO_MOVING_SLOT);
    };
    let mine = view.is_mine(requirement.slot)
        || (view.is_importing(requirement.slot) && client.flags.contains(ClientFlags::ASKING))
        || (view.is_of_my_shard(requirement.slot) && client.flags.contains(ClientFlags::READONLY) && !writes);
    if !collector.is_unserved && !view.is_up {
        match check_cluster_up(server, requirement, writes) {
            Ok(()) => {}
            Err(error) if error == CLUSTER_READ_ONLY => {
                return Some(CLUSTER_IS_READ_ONLY);
            }
            Err(_) => return Some(CLUSTER_IS_DOWN),
        }
    }
    let moves = SlotTransition::seen_by(client, view, requirement.slot) != SlotTransition::Settled;
    if !mine || (moves && writes_other_database(command, args, client.db)) {
        return Some(KEY_OF_ANOTHER_NODE);
    }
    if command.spec.flags.intersects(WRITE_FLAGS) && server.clients.pause.held_slots.contains(requirement.slot) {
        // Not a declared key, since the script would not have started then.
        return Some(WRITES_TO_MOVING_SLOT);
    }
    if let Some(first) = required_slot {
        match first {
            Some(slot) if *slot != requirement.slot => {
                return Some("Script attempted to access keys that do not hash to the same slot");
            }
            _ => *first = Some(requirement.slot),
        }
    }
    None
}
