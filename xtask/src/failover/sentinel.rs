//! Failovers of a primary with two replicas that a Sentinel decides.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::group::{Group, NodeRole, SETTLE_BOUND};
use super::history::Guarantee;
use super::scenario::FailoverScenario;
use crate::server_process::ServerProcess;
use crate::stress::client::{StressClient, StressReply};
use crate::stress::watchdog::RequestRegistry;
use crate::workspace;

/// The time of silence after which the Sentinel replaces the primary, in failovers that the primary survives. On a busy
/// machine a primary may be silent for seconds.
const LONG_DOWN_AFTER_MS: u32 = 60_000;
/// The same while the primary is killed or stopped.
const SHORT_DOWN_AFTER_MS: u32 = 800;
/// The time after which the Sentinel is asked again for a failover that it has given up.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// The failovers by a Sentinel of any version.
pub const SCENARIOS: &[FailoverScenario] = &[
    FailoverScenario {
        name: "sentinel-failover",
        about: "SENTINEL FAILOVER",
        guarantee: Guarantee::Confirmed,
        replicas: 2,
        fail_over: |group, _| command(group, "SENTINEL FAILOVER weft"),
    },
    FailoverScenario {
        name: "sentinel-kill",
        about: "kill -9 of the primary",
        guarantee: Guarantee::Confirmed,
        replicas: 2,
        fail_over: kill,
    },
    FailoverScenario {
        name: "sentinel-stop",
        about: "SIGSTOP of the primary",
        guarantee: Guarantee::Confirmed,
        replicas: 2,
        fail_over: stop,
    },
];

/// The failover that only a Sentinel of Valkey 9 can do.
pub const COORDINATED: FailoverScenario = FailoverScenario {
    name: "sentinel-coordinated",
    about: "SENTINEL FAILOVER COORDINATED",
    guarantee: Guarantee::Acknowledged,
    replicas: 1,
    fail_over: |group, _| command(group, "SENTINEL FAILOVER weft COORDINATED"),
};

/// A program that is a Sentinel.
pub struct SentinelProgram {
    binary: PathBuf,
    /// The arguments after the name of the configuration file.
    arguments: &'static [&'static str],
    /// `true` if it knows SENTINEL FAILOVER COORDINATED.
    pub is_coordinating: bool,
}

/// Returns the Sentinels of this machine: those in the path, and the oracle if it is installed.
pub fn programs() -> Vec<SentinelProgram> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = |name: &str| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    };
    let mut found = Vec::new();
    if let Some(binary) = in_path("redis-sentinel") {
        found.push(SentinelProgram {
            binary,
            arguments: &[],
            is_coordinating: false,
        });
    }
    let oracle = workspace::find_file(&workspace::root().join(".venv/lib"), "valkey-server");
    if let Some(binary) = in_path("valkey-server").or(oracle) {
        found.push(SentinelProgram {
            binary,
            arguments: &["--sentinel"],
            is_coordinating: true,
        });
    }
    found
}

/// Starts a primary, two replicas and a Sentinel.
pub fn start(binary: &Path, arguments: &[String], sentinel: &SentinelProgram) -> Result<Group, String> {
    let mut group = super::replication::start(binary, arguments)?;
    let port = group.address(0).port();
    let configuration = format!(
        "sentinel monitor weft 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds weft {LONG_DOWN_AFTER_MS}\n\
         sentinel failover-timeout weft 20000\n\
         sentinel parallel-syncs weft 1\n"
    );
    let process = ServerProcess::start_sentinel(&sentinel.binary, sentinel.arguments, &configuration)?;
    group.sentinel = Some(process);
    // By default a Sentinel looks at the roles every 10 s, and waits 8 s before it corrects one.
    let periods = "SENTINEL DEBUG INFO-PERIOD 200 PUBLISH-PERIOD 200 ASK-PERIOD 200 TILT-PERIOD 1000";
    match ask(&group, periods)? {
        StressReply::Simple(text) if text == "OK" => {}
        other => return Err(format!("{periods} was answered by {other:?}")),
    }
    heal(&mut group)?;
    Ok(group)
}

fn ask(group: &Group, command: &str) -> Result<StressReply, String> {
    let sentinel = group.sentinel.as_ref().ok_or("no Sentinel")?;
    let mut client = StressClient::connect(sentinel.address, SETTLE_BOUND, &RequestRegistry::default())?;
    client
        .call(command)
        .map_err(|error| format!("Sentinel: {command}: {}", String::from(error)))
}

/// Returns the primary in the eyes of the Sentinel.
fn primary_of(group: &Group) -> Result<usize, String> {
    let reply = ask(group, "SENTINEL GET-MASTER-ADDR-BY-NAME weft")?;
    let [host, port] = reply.items() else {
        return Err(format!("Sentinel has no address of the primary: {reply:?}"));
    };
    let address = format!("{}:{}", host.text(), port.text());
    group.node_at(address.parse().map_err(|_| format!("unreadable address {address}"))?)
}

/// Waits until the Sentinel has made the other nodes replicas of its primary, and would fail over to both.
pub fn heal(group: &mut Group) -> Result<(), String> {
    group.wait_until("the Sentinel has two good replicas", |group| {
        let primary = primary_of(group)?;
        let shards = group.shards()?;
        if shards.len() != 1 || shards.get(&primary).map(Vec::len) != Some(2) {
            return Err(format!("{shards:?}"));
        }
        let replicas = ask(group, "SENTINEL REPLICAS weft")?;
        let good = replicas.items().iter().filter(|replica| {
            let fields: Vec<String> = replica.items().iter().map(StressReply::text).collect();
            let value = |name: &str| {
                fields
                    .chunks_exact(2)
                    .find(|pair| pair[0] == name)
                    .map(|pair| pair[1].as_str())
            };
            value("flags") == Some("slave")
                && value("master-link-status") == Some("ok")
                && value("master-port") == Some(group.address(primary).port().to_string().as_str())
        });
        let primaries = ask(group, "SENTINEL MASTERS")?;
        let is_calm = !primaries
            .items()
            .iter()
            .flat_map(StressReply::items)
            .any(|field| field.text().contains("failover_in_progress"));
        Ok(good.count() == 2 && is_calm)
    })
}

/// Waits until the Sentinel names another primary, which has the role.
fn wait_for_promotion(group: &Group, old: usize) -> Result<usize, String> {
    let mut promoted = old;
    group.wait_until("the Sentinel has promoted a replica", |group| {
        promoted = primary_of(group)?;
        Ok(promoted != old && group.role(promoted)? == NodeRole::Primary)
    })?;
    Ok(promoted)
}

fn set_down_after(group: &Group, milliseconds: u32) -> Result<(), String> {
    let command = format!("SENTINEL SET weft down-after-milliseconds {milliseconds}");
    match ask(group, &command)? {
        StressReply::Simple(text) if text == "OK" => Ok(()),
        other => Err(format!("{command} was answered by {other:?}")),
    }
}

/// Sends a command that lets the Sentinel fail over, and sends it again if the Sentinel refuses or gives up: it is busy
/// with an earlier failover, or has no fresh news from a replica.
fn command(group: &mut Group, command: &str) -> Result<u64, String> {
    heal(group)?;
    let old = primary_of(group)?;
    let mut next_request = Instant::now();
    group.wait_until(command, |group| {
        let promoted = primary_of(group)?;
        if promoted != old {
            return Ok(group.role(promoted)? == NodeRole::Primary);
        }
        if Instant::now() >= next_request {
            let reply = ask(group, command)?;
            match &reply {
                StressReply::Simple(text) if text == "OK" => next_request = Instant::now() + RETRY_PERIOD,
                _ => return Err(format!("{reply:?}")),
            }
        }
        Ok(false)
    })?;
    Ok(1)
}

fn kill(group: &mut Group, rng: &mut Rng) -> Result<u64, String> {
    heal(group)?;
    let old = primary_of(group)?;
    set_down_after(group, SHORT_DOWN_AFTER_MS)?;
    group.kill(old)?;
    let promoted = wait_for_promotion(group, old)?;
    if rng.bool() {
        // Otherwise the old primary comes back, without data, while the other replica may still follow its address.
        let other = (0..3).find(|node| ![old, promoted].contains(node)).unwrap_or(0);
        group.wait_until("the other replica follows the promoted one", |group| {
            let of = group.address(promoted);
            Ok(matches!(group.role(other)?, NodeRole::Replica { of: primary, .. } if primary == of))
        })?;
    }
    group.restart(old)?;
    set_down_after(group, LONG_DOWN_AFTER_MS)?;
    Ok(1)
}

fn stop(group: &mut Group, rng: &mut Rng) -> Result<u64, String> {
    heal(group)?;
    let old = primary_of(group)?;
    set_down_after(group, SHORT_DOWN_AFTER_MS)?;
    group.suspend(old)?;
    let result = wait_for_promotion(group, old);
    std::thread::sleep(Duration::from_millis(rng.u64(0..500)));
    group.resume(old)?;
    result?;
    set_down_after(group, LONG_DOWN_AFTER_MS)?;
    Ok(1)
}
