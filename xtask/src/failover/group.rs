//! A group of servers that replicate each other: commands to single nodes, roles, and the comparison of their data.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::router::{REPLY_BOUND, RoutedClient, Router};
use super::session::words;
use crate::server_process::ServerProcess;
use crate::stress::client::StressReply;

/// The time within which a failover must be complete, and within which replicas must catch up.
pub const SETTLE_BOUND: Duration = Duration::from_secs(60);

/// The servers of a scenario.
pub struct Group {
    pub servers: Vec<ServerProcess>,
    /// The number of primaries that the group has when it is whole.
    pub primaries: usize,
    pub router: Arc<Router>,
    /// The Sentinel that watches the group, in the scenarios that have one.
    pub sentinel: Option<ServerProcess>,
    /// The tags of the writers' keys, with their slots.
    pub tags: Vec<(String, u16)>,
    /// Chooses nodes that stand still for some milliseconds during a failover; `None` in rounds without that.
    pub disturbance: Mutex<Option<Rng>>,
    /// What has happened, for the table at the end.
    pub counts: BTreeMap<String, u64>,
}

/// A node's role, as ROLE reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRole {
    Primary,
    Replica { of: SocketAddr, is_connected: bool },
}

impl Group {
    /// Starts a server of each of `binaries`.
    ///
    /// # Errors
    /// Fails if one does not start.
    pub fn start(binaries: &[&Path], primaries: usize, arguments: &[String], is_cluster: bool) -> Result<Self, String> {
        let servers: Vec<ServerProcess> = binaries
            .iter()
            .map(|binary| ServerProcess::start(binary, arguments))
            .collect::<Result<_, _>>()?;
        let router = Router::new(servers.iter().map(|server| server.address).collect(), is_cluster);
        Ok(Self::of(servers, primaries, router))
    }

    /// Makes a group of servers that run already.
    pub fn of(servers: Vec<ServerProcess>, primaries: usize, router: Router) -> Self {
        Self {
            servers,
            primaries,
            router: Arc::new(router),
            sentinel: None,
            tags: Vec::new(),
            disturbance: Mutex::new(None),
            counts: BTreeMap::new(),
        }
    }

    /// Returns the address of a node.
    pub fn address(&self, node: usize) -> SocketAddr {
        self.servers[node].address
    }

    /// Returns the number of the node with an address.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn node_at(&self, address: SocketAddr) -> Result<usize, String> {
        self.servers
            .iter()
            .position(|server| server.address == address)
            .ok_or_else(|| format!("no node has the address {address}"))
    }

    fn client(&self, node: usize) -> Result<RoutedClient, String> {
        let address = self.address(node);
        self.router
            .connect(address, REPLY_BOUND)
            .ok_or_else(|| format!("{address} does not accept connections"))
    }

    /// Sends a command of words to a node and returns its reply.
    ///
    /// # Errors
    /// Fails if the node does not reply in time.
    pub fn call_words(&self, node: usize, command: &[&str]) -> Result<StressReply, String> {
        self.pipeline(node, &[words(command)])
    }

    fn pipeline(&self, node: usize, commands: &[Vec<String>]) -> Result<StressReply, String> {
        self.pipeline_all(node, commands)?
            .pop()
            .ok_or_else(|| format!("{} (node {node}): {commands:?}: no reply", self.address(node)))
    }

    /// Sends several commands to a node over one connection and returns the replies.
    ///
    /// # Errors
    /// Fails like [`Self::call_words`].
    pub fn pipeline_all(&self, node: usize, commands: &[Vec<String>]) -> Result<Vec<StressReply>, String> {
        let replies = self.client(node)?.pipeline(commands);
        replies.map_err(|error| {
            let first = &commands[..commands.len().min(4)];
            format!(
                "{} (node {node}): {first:?}: {}",
                self.address(node),
                String::from(error)
            )
        })
    }

    /// Sends several commands to a node over one connection and returns the last reply.
    ///
    /// # Errors
    /// Fails like [`Self::call_words`].
    pub fn call_together(&self, node: usize, commands: &[&str]) -> Result<StressReply, String> {
        let split = |command: &&str| words(&command.split(' ').collect::<Vec<_>>());
        self.pipeline(node, &commands.iter().map(split).collect::<Vec<_>>())
    }

    /// Sends a command of words separated by blanks to a node and returns its reply.
    ///
    /// # Errors
    /// Fails like [`Self::call_words`].
    pub fn call(&self, node: usize, command: &str) -> Result<StressReply, String> {
        self.call_words(node, &command.split(' ').collect::<Vec<_>>())
    }

    /// Sends a command that must be answered by `OK`.
    ///
    /// # Errors
    /// Fails if it is not.
    pub fn expect_ok(&self, node: usize, command: &str) -> Result<(), String> {
        match self.call(node, command)? {
            StressReply::Simple(text) if text == "OK" => Ok(()),
            other => Err(format!(
                "{} (node {node}): {command} was answered by {other:?}",
                self.address(node)
            )),
        }
    }

    /// Returns the slot of a key.
    ///
    /// # Errors
    /// Fails if no node says so.
    pub fn key_slot(&self, key: &str) -> Result<u16, String> {
        let reply = self.call_words(0, &["CLUSTER", "KEYSLOT", key])?;
        let slot = reply.text().parse();
        slot.map_err(|_| format!("CLUSTER KEYSLOT was answered by {reply:?}"))
    }

    /// Returns a node's role.
    ///
    /// # Errors
    /// Fails if the node does not reply, or in another form.
    pub fn role(&self, node: usize) -> Result<NodeRole, String> {
        let reply = self.call(node, "ROLE")?;
        match reply.items() {
            [name, ..] if name.text() == "master" => Ok(NodeRole::Primary),
            [name, host, port, state, ..] if name.text() == "slave" => Ok(NodeRole::Replica {
                of: format!("{}:{}", host.text(), port.text())
                    .parse()
                    .map_err(|_| format!("node {node}: ROLE was answered by {reply:?}"))?,
                is_connected: state.text() == "connected",
            }),
            _ => Err(format!("node {node}: ROLE was answered by {reply:?}")),
        }
    }

    /// Returns a field of INFO.
    ///
    /// # Errors
    /// Fails if the node does not reply.
    pub fn info(&self, node: usize, field: &str) -> Result<String, String> {
        let text = self.call(node, "INFO")?.text();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.unwrap_or("").trim_end().to_owned())
    }

    /// Returns the offset that a node has in the replication history.
    ///
    /// # Errors
    /// Fails if the node does not reply.
    pub fn offset(&self, node: usize) -> Result<u64, String> {
        let text = self.info(node, "master_repl_offset")?;
        text.parse()
            .map_err(|_| format!("node {node}: master_repl_offset is {text:?}"))
    }

    /// Waits until `is_so` returns `true`. An error of it counts as `false`, and is reported if the time is over.
    ///
    /// # Errors
    /// Fails after [`SETTLE_BOUND`], and as soon as a node has ended by itself.
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> Result<bool, String>) -> Result<(), String> {
        let deadline = Instant::now() + SETTLE_BOUND;
        loop {
            let state = is_so(self);
            if state == Ok(true) {
                return Ok(());
            }
            if let Some(node) = self.ended_nodes().first() {
                let (server, lines) = (&self.servers[*node], self.servers[*node].crash_lines());
                return Err(format!(
                    "{what}: node {node} {} has ended by itself: {lines:?}; its log ends with:\n{}\n{state:?}",
                    server.address,
                    server.log_tail()
                ));
            }
            if Instant::now() > deadline {
                let seconds = SETTLE_BOUND.as_secs();
                return Err(format!(
                    "{what}: not so within {seconds} s ({state:?}); {}",
                    self.describe()
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
            self.disturb()?;
        }
    }

    /// Returns the nodes that have ended although nobody has ended them.
    pub fn ended_nodes(&self) -> Vec<usize> {
        let has_ended = |server: &ServerProcess| self.router.is_available(server.address) && server.has_ended();
        (0..self.servers.len())
            .filter(|node| has_ended(&self.servers[*node]))
            .collect()
    }

    /// Lets a random node stand still for a moment, as on a busy machine, so that the steps of a failover happen in
    /// other orders.
    fn disturb(&self) -> Result<(), String> {
        let mut disturbance = self.disturbance.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rng) = disturbance.as_mut() else {
            return Ok(());
        };
        let server = &self.servers[rng.usize(..self.servers.len())];
        if !self.router.is_available(server.address) {
            return Ok(());
        }
        server.signal("STOP")?;
        std::thread::sleep(Duration::from_millis(rng.u64(0..80)));
        server.signal("CONT")
    }

    /// Returns the roles and offsets of all nodes, for error messages.
    pub fn describe(&self) -> String {
        let nodes = (0..self.servers.len()).map(|node| {
            let offset = self.offset(node);
            format!(
                "node {node} {}: {:?}, offset {offset:?}",
                self.address(node),
                self.role(node)
            )
        });
        nodes.collect::<Vec<_>>().join("; ")
    }

    /// Returns the primaries, each with the nodes that follow it, directly or through another replica.
    ///
    /// # Errors
    /// Fails if a node does not reply, or if a replica's link is not up.
    pub fn shards(&self) -> Result<BTreeMap<usize, Vec<usize>>, String> {
        let roles: Vec<NodeRole> = (0..self.servers.len())
            .map(|node| self.role(node))
            .collect::<Result<_, _>>()?;
        let mut shards = BTreeMap::new();
        for (node, role) in roles.iter().enumerate() {
            if *role == NodeRole::Primary {
                shards.entry(node).or_insert_with(Vec::new);
            }
        }
        for node in 0..roles.len() {
            let mut top = node;
            // A chain is at most as long as there are nodes; otherwise it is a circle.
            for _ in 0..roles.len() {
                if let NodeRole::Replica { of, is_connected } = &roles[top] {
                    if !is_connected {
                        return Err(format!("node {top} is not connected to {of}"));
                    }
                    top = self.node_at(*of)?;
                }
            }
            if top != node {
                shards
                    .get_mut(&top)
                    .ok_or_else(|| format!("the nodes above node {node} follow each other"))?
                    .push(node);
            }
        }
        Ok(shards)
    }

    /// Stops a node with SIGSTOP and ends the clients' connections to it.
    ///
    /// # Errors
    /// Fails if the signal cannot be sent.
    pub fn suspend(&self, node: usize) -> Result<(), String> {
        self.servers[node].signal("STOP")?;
        self.router.set_unavailable(self.address(node));
        Ok(())
    }

    /// Lets a stopped node go on.
    ///
    /// # Errors
    /// Fails if the signal cannot be sent.
    pub fn resume(&self, node: usize) -> Result<(), String> {
        self.servers[node].signal("CONT")?;
        self.router.set_available(self.address(node));
        Ok(())
    }

    /// Kills a node.
    ///
    /// # Errors
    /// Fails if the process cannot be waited for.
    pub fn kill(&mut self, node: usize) -> Result<(), String> {
        self.servers[node].kill()?;
        self.router.set_unavailable(self.address(node));
        Ok(())
    }

    /// Ends a node with SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// Fails if it does not end within [`SETTLE_BOUND`], or not with success.
    pub fn shut_down(&mut self, node: usize) -> Result<(), String> {
        let server = &mut self.servers[node];
        server.signal("TERM")?;
        server
            .await_success(SETTLE_BOUND)
            .map_err(|why| format!("node {node} after SIGTERM: {why}"))?;
        self.router.set_unavailable(self.address(node));
        Ok(())
    }

    /// Starts a killed node again, and waits until it has loaded what it finds on the disk.
    ///
    /// # Errors
    /// Fails if it does not start.
    pub fn restart(&mut self, node: usize) -> Result<(), String> {
        self.servers[node].start_again()?;
        self.router.set_available(self.address(node));
        self.wait_until("the node has loaded its data", |group| {
            Ok(group.info(node, "loading")? == "0")
        })
    }

    /// Returns `true` if the node is a Valkey.
    fn is_valkey(&self, node: usize) -> Result<bool, String> {
        Ok(!self.call(node, "INFO server")?.text().contains("weft_version"))
    }

    /// Waits until there are as many primaries as there should be, and all other nodes have their data: the offsets are
    /// equal, and so are the digests. A replica of Valkey was seen to stay one byte behind its primary of Valkey, with
    /// the same data, after a slot had come from a third Valkey.
    ///
    /// # Errors
    /// Fails if that takes longer than [`SETTLE_BOUND`], or if the data differ.
    pub fn settle(&self) -> Result<(), String> {
        self.wait_until("every replica has its primary's offset", |group| {
            let shards = group.shards()?;
            if shards.len() != group.primaries {
                return Err(format!("there are {} primaries", shards.len()));
            }
            for (primary, replicas) in &shards {
                let offset = group.offset(*primary)?;
                for replica in replicas {
                    let other = group.offset(*replica)?;
                    let is_known = other + 1 == offset && group.is_valkey(*primary)? && group.is_valkey(*replica)?;
                    if other != offset && !is_known {
                        return Err(format!("node {primary} has {offset}, node {replica} has {other}"));
                    }
                }
            }
            Ok(true)
        })?;
        for (primary, replicas) in self.shards()? {
            let digest = self.call(primary, "DEBUG DIGEST")?.text();
            for replica in replicas {
                let other = self.call(replica, "DEBUG DIGEST")?.text();
                if digest != other || digest.len() != 40 {
                    return Err(format!(
                        "nodes {primary} and {replica} have different data ({digest}, {other}): {}; {}",
                        self.different_keys(primary, replica)?,
                        self.describe()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the first keys whose values differ between two nodes.
    fn different_keys(&self, one: usize, other: usize) -> Result<String, String> {
        let mut digests: BTreeMap<String, [String; 2]> = BTreeMap::new();
        for (index, node) in [one, other].into_iter().enumerate() {
            for key in self.call(node, "KEYS *")?.items() {
                let key = key.text();
                let digest = self.call_words(node, &["DEBUG", "DIGEST-VALUE", &key])?;
                let digest = digest.items().first().map(StressReply::text).unwrap_or_default();
                digests.entry(key).or_default()[index] = digest;
            }
        }
        let different: Vec<String> = digests
            .into_iter()
            .filter(|(_, [one, other])| one != other)
            .take(8)
            .map(|(key, digests)| format!("{key} {digests:?}"))
            .collect();
        Ok(different.join(", "))
    }
}
