//! The nodes on which the operators work: a cluster with TLS and append-only files, started from configuration files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ClientConfig;

use super::log_lines::NodeLogs;
use crate::failover::cluster::{self, PRIMARIES};
use crate::failover::group::Group;
use crate::failover::router::{REPLY_BOUND, Router};
use crate::failover::session::words;
use crate::server_process::ServerProcess;
use crate::stress::client::{CallError, StressReply};
use crate::tls::CertificateAuthority;

/// The number of nodes: primaries and their replicas.
pub const NODES: usize = 2 * PRIMARIES;
/// The parameter that CONFIG REWRITE writes. It has no effect while the replicas of the cluster are there.
pub const WRITTEN_PARAMETER: &str = "repl-backlog-ttl";
/// The value of the parameter before it is set.
pub const FIRST_VALUE: u64 = 3600;

/// A node, as it is found without the handle of its process.
pub struct NodeSite {
    /// The address on which it listens with TLS.
    pub address: SocketAddr,
    /// The directory with its log and its configuration file.
    pub directory: PathBuf,
    /// The values of the parameter that CONFIG REWRITE writes.
    setting: Mutex<WrittenSetting>,
    /// The log files and what must be in them.
    log: Mutex<NodeLogs>,
}

/// The values of a parameter that increases with each CONFIG SET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenSetting {
    /// The value that CONFIG REWRITE has certainly written.
    pub written: u64,
    /// The last value that was sent.
    pub sent: u64,
}

/// The number of times that something was done, or had to be left for later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionCount {
    /// How often it was done.
    pub done: u64,
    /// How often it was not possible: the node was being restarted, or did something else that excludes it.
    pub postponed: u64,
}

/// All nodes, and what the operators count.
pub struct Site {
    pub nodes: Vec<NodeSite>,
    pub router: Arc<Router>,
    pub authority: CertificateAuthority,
    /// The configuration of clients.
    pub client: Arc<ClientConfig>,
    counts: Mutex<BTreeMap<&'static str, ActionCount>>,
}

/// Locks a mutex, also after a panic of another thread.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeSite {
    fn new(server: &ServerProcess) -> Self {
        Self {
            address: server.address,
            directory: server.directory().to_path_buf(),
            setting: Mutex::new(WrittenSetting {
                written: FIRST_VALUE,
                sent: FIRST_VALUE,
            }),
            log: Mutex::default(),
        }
    }

    /// The values of the parameter that CONFIG REWRITE writes.
    pub fn setting(&self) -> MutexGuard<'_, WrittenSetting> {
        lock(&self.setting)
    }

    /// The log files and what must be in them.
    pub fn log(&self) -> MutexGuard<'_, NodeLogs> {
        lock(&self.log)
    }
}

impl Site {
    /// Sends a command to a node. Returns `None` if the node is being restarted or loads its data.
    ///
    /// # Errors
    /// Fails if the node does not reply in time, or ends the connection although it is not restarted.
    pub fn call(&self, node: usize, command: &[&str]) -> Result<Option<StressReply>, String> {
        let address = self.nodes[node].address;
        let Some(mut client) = self.router.connect(address, REPLY_BOUND) else {
            return Ok(None);
        };
        match client.pipeline(&[words(command)]) {
            Ok(mut replies) => match replies.pop() {
                Some(StressReply::Error(error)) if error.starts_with("LOADING ") => Ok(None),
                Some(reply) => Ok(Some(reply)),
                None => Err(format!("{address}: {command:?}: no reply")),
            },
            Err(CallError::Closed) if client.may_have_ended() => Ok(None),
            Err(error) => Err(format!("{address}: {command:?}: {}", String::from(error))),
        }
    }

    /// Counts something that was done.
    pub fn count_done(&self, what: &'static str) {
        lock(&self.counts).entry(what).or_default().done += 1;
    }

    /// Counts something that was not possible.
    pub fn count_postponed(&self, what: &'static str) {
        lock(&self.counts).entry(what).or_default().postponed += 1;
    }

    /// Returns how often something was done.
    pub fn count(&self, what: &str) -> ActionCount {
        lock(&self.counts).get(what).copied().unwrap_or_default()
    }
}

/// Starts the nodes and forms the cluster.
///
/// # Errors
/// Fails if a node does not start, or refuses a command.
pub fn start(binary: &Path, io_threads: u32) -> Result<(Group, Site), String> {
    let authority = CertificateAuthority::create()?;
    let client = authority.client()?;
    let mut servers = Vec::new();
    for node in 0..NODES {
        let issued = authority.issue(&format!("node-{node}"))?;
        let files = [
            ("tls-cert-file", issued.certificate_file),
            ("tls-key-file", issued.key_file),
            ("tls-ca-cert-file", authority.root_file()),
        ];
        let mut text = configuration(binary, io_threads);
        for (name, path) in files {
            text.push_str(&format!("{name} {}\n", path.display()));
        }
        servers.push(ServerProcess::start_tls_node(binary, &text, &client)?);
    }
    let nodes = servers.iter().map(NodeSite::new).collect();
    let addresses = servers.iter().map(|server| server.address).collect();
    let router = Router::new(addresses, true)
        .with_tls(Arc::clone(&client))
        .with_planned_restarts();
    let mut group = Group::of(servers, PRIMARIES, router);
    cluster::join(&group)?;
    cluster::heal(&mut group)?;
    cluster::choose_tags(&mut group)?;
    let site = Site {
        nodes,
        router: Arc::clone(&group.router),
        authority,
        client,
        counts: Mutex::default(),
    };
    Ok((group, site))
}

/// Returns the lines of the configuration file that all nodes have in common.
fn configuration(binary: &Path, io_threads: u32) -> String {
    let mut text = String::new();
    for (name, value) in cluster::node_parameters() {
        text.push_str(&format!("{name} {value}\n"));
    }
    text.push_str(&format!("io-threads {io_threads}\n"));
    if !binary.ends_with("valkey-server") {
        // On few cores Weft's self-tuning would keep one worker active.
        text.push_str("io-threads-always-active yes\n");
    }
    text.push_str(
        "tls-auth-clients yes\n\
         tls-replication yes\n\
         tls-cluster yes\n\
         appendonly yes\n\
         save \"\"\n\
         enable-debug-command yes\n\
         repl-diskless-sync-delay 0\n\
         repl-backlog-size 16mb\n\
         repl-ping-replica-period 1\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weft_gets_parameters_of_its_own() {
        let weft = configuration(Path::new("target/release/weft-server"), 2);
        let valkey = configuration(Path::new("/opt/valkey-server"), 2);
        assert!(weft.contains("io-threads-always-active yes\n") && !valkey.contains("always-active"));
        for text in [weft, valkey] {
            for line in [
                "cluster-enabled yes",
                "io-threads 2",
                "tls-cluster yes",
                "appendonly yes",
            ] {
                assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
            }
        }
    }
}
