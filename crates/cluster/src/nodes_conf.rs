//! The cluster configuration file (`nodes.conf`) in Valkey's format: a line for each node, and a line of variables. A
//! new file is written next to the old one and renamed, so it is always complete. The lock is held on a descriptor that
//! stays open for the lifetime of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use weft_base::SlotIndex;
use weft_base::files::FixedPath;

use nix::fcntl::{Flock, FlockArg};

use super::message::truncate_address;
use super::node::{Node, NodeFlags, NodeId};
use super::settings::ClusterSettings;
use super::slot_set::SlotSet;
use super::state::ClusterState;

/// The variable with the slots that their owners have stopped claiming ([`ClusterState::unclaimed`]). Valkey skips
/// variables that it does not know. This one and the next are missing if they have no slots.
const UNCLAIMED_SLOTS: &str = "unclaimedSlots";
/// The variable with the slots of other nodes whose keys are kept ([`ClusterState::keeps_keys_of`]).
const KEPT_SLOTS: &str = "keptSlots";

/// The locked cluster configuration file of a running node.
pub struct NodesFile {
    path: PathBuf,
    _lock: Flock<File>,
}

/// The file could not be used. The reason has been logged.
#[derive(Debug)]
pub struct NodesFileUnusable;

/// A line that cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct CorruptedLine(pub String);

impl NodesFile {
    /// Locks the file. Creates it if it is missing.
    ///
    /// # Errors
    /// When it cannot be opened, or another node uses it.
    pub fn lock(path: PathBuf) -> Result<Self, NodesFileUnusable> {
        let shown = path.display();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| {
                log::warn!("Can't open {shown} in order to acquire a lock: {error}");
                NodesFileUnusable
            })?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
            if error == nix::errno::Errno::EWOULDBLOCK {
                log::warn!(
                    "Sorry, the cluster configuration file {shown} is already used by a different Cluster node. Please \
                     make sure that different nodes use different cluster configuration files."
                );
            } else {
                log::warn!("Impossible to lock {shown}: {error}");
            }
            NodesFileUnusable
        })?;
        Ok(NodesFile { path, _lock: lock })
    }

    /// Loads the state from the file. Returns `None` if it is empty.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn load(&self, settings: ClusterSettings, now_ms: u64) -> Result<Option<ClusterState>, NodesFileUnusable> {
        let shown = self.path.display();
        let text = std::fs::read(&self.path).map_err(|error| {
            log::warn!("Loading the cluster node config from {shown}: {error}");
            NodesFileUnusable
        })?;
        if text.is_empty() {
            return Ok(None);
        }
        match parse(&String::from_utf8_lossy(&text), settings, now_ms) {
            Ok(state) => Ok(Some(state)),
            Err(CorruptedLine(line)) => {
                log::warn!("Unrecoverable error: corrupted cluster config file \"{line}\".");
                Err(NodesFileUnusable)
            }
        }
    }

    /// Replaces the file. With `sync`, the file and its directory are synced to disk.
    ///
    /// # Errors
    /// When a file system operation fails.
    pub fn save(&self, text: &str, sync: bool) -> io::Result<()> {
        // Both names are in the same directory, even if CONFIG SET changes it meanwhile.
        let path = FixedPath::new(&self.path);
        let mut name = path.as_path().as_os_str().to_owned();
        name.push(format!(".tmp-{}", std::process::id()));
        let temporary = PathBuf::from(name);
        let written = write_and_rename(path.as_path(), &temporary, text, sync);
        if written.is_err() {
            // The temporary file is not needed.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}

/// Writes a temporary file, and renames it to `path`.
fn write_and_rename(path: &Path, temporary: &Path, text: &str, sync: bool) -> io::Result<()> {
    let failed = |step: &'static str| {
        move |error: &io::Error| log::warn!("Could not {step}: {}", weft_base::files::error_text(error))
    };
    let mut file = File::create(temporary).inspect_err(failed("open temp cluster config file"))?;
    file.write_all(text.as_bytes())
        .inspect_err(failed("write tmp cluster config file"))?;
    if sync {
        file.sync_all().inspect_err(failed("sync tmp cluster config file"))?;
    }
    std::fs::rename(temporary, path).inspect_err(failed("rename tmp cluster config file"))?;
    if sync {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))
            .and_then(|directory| directory.sync_all())
            .inspect_err(failed("sync cluster config file dir"))?;
    }
    Ok(())
}

// ---- writing --------------------------------------------------------------------------------------------------------
/// Returns the text of the file.
pub fn nodes_file_text(state: &ClusterState) -> String {
    let mut out = String::new();
    let nodes = state.nodes.values().filter(|node| !node.is_in_handshake());
    for node in nodes {
        let address = &node.address;
        let _ = write!(
            out,
            "{} {}:{}@{},{}",
            node.id, address.ip, node.address.tcp_port, address.bus_port, node.announced.hostname
        );
        for (name, value) in auxiliary_fields(node) {
            let _ = write!(out, ",{name}={value}");
        }
        super::nodes_text::append_node_fields(&mut out, state, node);
        out.push('\n');
    }
    let _ = write!(
        out,
        "vars currentEpoch {} lastVoteEpoch {}",
        state.current_epoch, state.last_vote_epoch
    );
    for (name, slots) in [
        (UNCLAIMED_SLOTS, &state.unclaimed),
        (KEPT_SLOTS, &state.unclaimed_with_keys),
    ] {
        if !slots.is_empty() {
            let _ = write!(out, " {name} {}", slot_list(slots));
        }
    }
    out.push('\n');
    out
}

/// Returns slots as a list of ranges without spaces: `5,7-9`.
fn slot_list(slots: &SlotSet) -> String {
    let range = |(first, last): (SlotIndex, SlotIndex)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranges: Vec<String> = slots.ranges().into_iter().map(range).collect();
    ranges.join(",")
}

/// Returns the auxiliary fields after the address, in Valkey's order.
fn auxiliary_fields(node: &Node) -> Vec<(&'static str, String)> {
    let announced = &node.announced;
    let port = |port: u16| if port == 0 { String::new() } else { port.to_string() };
    let all = [
        ("availability-zone", announced.availability_zone.clone()),
        ("client-tls-port", port(announced.client_tls_port)),
        ("client-tcp-port", port(announced.client_port)),
        ("client-ipv6", announced.client_ipv6.clone()),
        ("client-ipv4", announced.client_ipv4.clone()),
        ("tls-port", node.address.tls_port.to_string()),
        ("nodename", announced.human_name.clone()),
        ("shard-id", node.shard.to_string()),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

// ---- reading --------------------------------------------------------------------------------------------------------
/// Parses the text of the file.
///
/// # Errors
/// The line that cannot be parsed.
pub fn parse(text: &str, settings: ClusterSettings, now_ms: u64) -> Result<ClusterState, CorruptedLine> {
    let mut state = ClusterState::empty(NodeId::random(), settings);
    let mut reader = NodesFileParser {
        myself: None,
        loaded: BTreeSet::new(),
        sharded: BTreeSet::new(),
        unclaimed: SlotSet::default(),
        kept: SlotSet::default(),
        now_ms,
    };
    for line in text.lines() {
        let line = line.trim();
        if !line.is_empty() {
            reader
                .line(&mut state, line)
                .ok_or_else(|| CorruptedLine(line.to_owned()))?;
        }
    }
    let corrupted = || CorruptedLine(text.lines().last().unwrap_or_default().to_owned());
    state.myself = reader.myself.ok_or_else(corrupted)?;
    let followed: Vec<(NodeId, NodeId)> = state
        .nodes
        .values()
        .filter_map(|node| Some((node.id, node.primary?)))
        .collect();
    assign_shards(&mut state, &reader.sharded);
    for (replica, primary) in followed {
        if let Some(node) = state.nodes.get_mut(&replica) {
            node.config_epoch = 0;
        }
        if let Some(node) = state.nodes.get_mut(&primary) {
            node.flags.set(NodeFlags::MIGRATE_TO, true);
        }
    }
    state.current_epoch = state.newest_epoch();
    reader.apply_slot_lists(&mut state);
    state.update_own_entry();
    (state.todo.save, state.todo.publish) = (false, true);
    Ok(state)
}

/// Returns `text` if it is an IP address. It stays as it was announced, since clients may compare it.
fn ip_address<Ip: std::str::FromStr>(text: &str) -> Option<String> {
    text.parse::<Ip>().is_ok().then(|| text.to_owned())
}

/// Puts each primary and its replicas into one shard, as they always are in a file that a node writes: the shard that
/// the file contains for the primary, or else for the first replica that has one. `sharded` are the nodes whose shards
/// the file contains.
fn assign_shards(state: &mut ClusterState, sharded: &BTreeSet<NodeId>) {
    let mut groups: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for id in state.nodes.keys() {
        groups.entry(topmost_primary(state, *id)).or_default().push(*id);
    }
    for (primary, members) in groups {
        let has_shard = |id: &&NodeId| sharded.contains(id);
        let source = Some(&primary)
            .filter(has_shard)
            .or_else(|| members.iter().find(has_shard))
            .unwrap_or(&primary);
        let Some(shard) = state.shard_of(source) else {
            continue;
        };
        for id in &members {
            let Some(node) = state.nodes.get_mut(id).filter(|node| node.shard != shard) else {
                continue;
            };
            if sharded.contains(id) {
                log::info!("Node {id} has another shard than its primary {primary}. Moving it to the shard {shard}.");
            }
            node.shard = shard;
        }
    }
}

/// Returns the primary of a node, or that primary's own primary, and so on. If nodes replicate each other in a circle,
/// returns the one of them with the smallest ID.
fn topmost_primary(state: &ClusterState, id: NodeId) -> NodeId {
    let primary_of = |id: NodeId| state.nodes.get(&id).and_then(|node| node.primary);
    let mut passed = Vec::new();
    let mut top = id;
    while let Some(primary) = primary_of(top) {
        passed.push(top);
        if let Some(start) = passed.iter().position(|id| *id == primary) {
            return passed[start..].iter().copied().min().unwrap_or(primary);
        }
        top = primary;
    }
    top
}

struct NodesFileParser {
    myself: Option<NodeId>,
    /// The nodes whose lines have been read.
    loaded: BTreeSet<NodeId>,
    /// The nodes whose shards the file contains.
    sharded: BTreeSet<NodeId>,
    /// The slots of [`UNCLAIMED_SLOTS`].
    unclaimed: SlotSet,
    /// The slots of [`KEPT_SLOTS`].
    kept: SlotSet,
    now_ms: u64,
}

impl NodesFileParser {
    fn line(&mut self, state: &mut ClusterState, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if words.first()?.eq_ignore_ascii_case("vars") {
            return self.variables(state, &words[1..]);
        }
        let [name, address, flags, primary, ping, pong, epoch, _link, slots @ ..] = words.as_slice() else {
            return None;
        };
        let id = NodeId::parse(name.as_bytes())?;
        if !self.loaded.insert(id) {
            log::warn!("Duplicate nodeid detected: {id}");
            return None;
        }
        self.ensure_node(state, id);
        let mut node = state.nodes.remove(&id)?;
        let read = self
            .address(&mut node, address)
            .and_then(|()| self.flags(&mut node, flags));
        state.nodes.insert(id, node);
        read?;
        if *primary != "-" {
            let primary = NodeId::parse(primary.as_bytes())?;
            self.ensure_node(state, primary);
            state.nodes.get_mut(&id)?.primary = Some(primary);
        }
        let node = state.nodes.get_mut(&id)?;
        let owns_slots = slots.iter().any(|word| !word.starts_with('['));
        if node.is_in_handshake() && (owns_slots || self.myself == Some(id)) {
            // No node writes such a line. It would lose the slots, or itself, with the next file that it writes.
            log::warn!("Node {id} is in handshake, so it can neither own slots nor be this node");
            return None;
        }
        let number = |word: &str| word.parse::<u64>().unwrap_or(0);
        node.ping_sent_ms = if number(ping) > 0 { self.now_ms } else { 0 };
        node.pong_received_ms = if number(pong) > 0 { self.now_ms } else { 0 };
        node.config_epoch = number(epoch);
        slots.iter().try_for_each(|word| self.slots(state, id, word))
    }

    fn variables(&mut self, state: &mut ClusterState, words: &[&str]) -> Option<()> {
        for pair in words.chunks(2) {
            let [name, value] = pair else {
                return None;
            };
            let number = value.parse().unwrap_or(0);
            if name.eq_ignore_ascii_case("currentEpoch") {
                state.current_epoch = number;
            } else if name.eq_ignore_ascii_case("lastVoteEpoch") {
                state.last_vote_epoch = number;
            } else if name.eq_ignore_ascii_case(UNCLAIMED_SLOTS) {
                self.unclaimed = parse_slot_list(value)?;
            } else if name.eq_ignore_ascii_case(KEPT_SLOTS) {
                self.kept = parse_slot_list(value)?;
            } else {
                log::info!("Skipping unknown cluster config variable '{name}'");
            }
        }
        Some(())
    }

    /// Applies the lists of slots, as far as they agree with the owners. Called when all nodes are known.
    fn apply_slot_lists(&self, state: &mut ClusterState) {
        for slot in self.unclaimed.iter() {
            let is_of_other = state.owner(slot).is_some_and(|owner| owner != state.myself);
            state.unclaimed.set(slot, is_of_other);
        }
        if !state.me().is_primary() {
            return;
        }
        for slot in self.kept.iter() {
            let is_mine = state.owner(slot) == Some(state.myself);
            state.unclaimed_with_keys.set(slot, !is_mine);
        }
    }

    fn ensure_node(&self, state: &mut ClusterState, id: NodeId) {
        let now_ms = self.now_ms;
        state
            .nodes
            .entry(id)
            .or_insert_with(|| Node::new(id, NodeFlags::default(), now_ms));
    }

    /// Parses `ip:port[@bus][,hostname][,name=value]*`.
    fn address(&mut self, node: &mut Node, word: &str) -> Option<()> {
        let mut parts = word.split(',');
        let (ip, ports) = parts.next()?.rsplit_once(':')?;
        let number = |word: &str| word.parse::<u16>().unwrap_or(0);
        let (port, bus) = match ports.split_once('@') {
            Some((port, bus)) => (number(port), number(bus)),
            None => {
                let port = number(ports);
                (port, port.saturating_add(super::settings::BUS_PORT_OFFSET))
            }
        };
        node.address.ip = truncate_address(ip).to_owned();
        (node.address.tcp_port, node.address.bus_port) = (port, bus);
        node.announced.hostname = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, value) = part.split_once('=')?;
            if value.contains('=') {
                return None;
            }
            match name {
                "shard-id" => {
                    node.shard = NodeId::parse(value.as_bytes())?;
                    self.sharded.insert(node.id);
                }
                "nodename" => node.announced.human_name = value.to_owned(),
                "client-ipv4" => node.announced.client_ipv4 = ip_address::<Ipv4Addr>(value)?,
                "client-ipv6" => node.announced.client_ipv6 = ip_address::<Ipv6Addr>(value)?,
                "tcp-port" => node.address.tcp_port = value.parse().ok()?,
                "tls-port" => node.address.tls_port = value.parse().ok()?,
                "client-tcp-port" => node.announced.client_port = value.parse().ok()?,
                "client-tls-port" => node.announced.client_tls_port = value.parse().ok()?,
                "availability-zone" => node.announced.availability_zone = value.to_owned(),
                _ => return None,
            }
        }
        Some(())
    }

    fn flags(&mut self, node: &mut Node, words: &str) -> Option<()> {
        for word in words.split(',') {
            let flag = match word.to_ascii_lowercase().as_str() {
                "myself" => {
                    if self.myself.is_some_and(|known| known != node.id) {
                        return None;
                    }
                    self.myself = Some(node.id);
                    NodeFlags::MYSELF
                }
                "master" | "primary" => NodeFlags::PRIMARY,
                "slave" | "replica" => NodeFlags::REPLICA,
                "fail?" => NodeFlags::PFAIL,
                "fail" => {
                    node.failed_ms = self.now_ms;
                    NodeFlags::FAIL
                }
                "handshake" => NodeFlags::HANDSHAKE,
                "noaddr" => {
                    // This node never connects to it again.
                    node.failed_ms = self.now_ms;
                    NodeFlags::NO_ADDRESS.union(NodeFlags::FAIL)
                }
                "nofailover" => NodeFlags::NO_FAILOVER,
                "noflags" => NodeFlags::default(),
                _ => return None,
            };
            node.flags.set(flag, true);
        }
        Some(())
    }

    /// Parses `5`, `5-9`, `[5->-node]` or `[5-<-node]`.
    fn slots(&mut self, state: &mut ClusterState, owner: NodeId, word: &str) -> Option<()> {
        if let Some(open) = word.strip_prefix('[') {
            let (slot, rest) = open.strip_suffix(']')?.split_once('-')?;
            let slot = parse_slot(slot)?;
            let id = NodeId::parse(rest.get(2..)?.as_bytes())?;
            self.ensure_node(state, id);
            match rest.get(..2)? {
                ">-" => state.set_migrating(slot, Some(id)),
                "<-" => state.set_importing(slot, Some(id)),
                _ => return None,
            }
            return Some(());
        }
        let (first, last) = parse_slot_range(word)?;
        for slot in first.to(last) {
            state.add_slot(owner, slot);
        }
        Some(())
    }
}

fn parse_slot(word: &str) -> Option<SlotIndex> {
    word.parse().ok().and_then(SlotIndex::new)
}

/// Parses `5` or `5-9`.
fn parse_slot_range(word: &str) -> Option<(SlotIndex, SlotIndex)> {
    match word.split_once('-') {
        Some((first, last)) => Some((parse_slot(first)?, parse_slot(last)?)),
        None => parse_slot(word).map(|slot| (slot, slot)),
    }
}

/// Parses `5,7-9`.
fn parse_slot_list(word: &str) -> Option<SlotSet> {
    let mut slots = SlotSet::default();
    for range in word.split(',') {
        let (first, last) = parse_slot_range(range)?;
        for slot in first.to(last) {
            slots.set(slot, true);
        }
    }
    Some(slots)
}

#[cfg(test)]
mod tests;
