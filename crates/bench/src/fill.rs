//! Fills the keyspace of a server, and waits until its memory has settled.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::content::ValuePool;
use crate::control::ControlConnection;
use crate::draw::KeyOrder;
use crate::error::{Error, Result};
use crate::interruption::Interruption;
use crate::load::{LoadParameters, Workload};
use crate::process;
use crate::run::{self, RunParameters};
use crate::scripts;
use crate::template::STREAM_ENTRIES;

/// Resident memory counts as settled when it changes by less than this share between two samples.
const SETTLED_SHARE: f64 = 0.001;

/// The time between two samples of resident memory, unless a run is so short that it has another one.
pub const SETTLE_INTERVAL: Duration = Duration::from_millis(2500);

/// The maximum number of samples of resident memory. After that, the last sample is used.
const MAX_SETTLE_SAMPLES: usize = 6;

/// The parameters for filling a keyspace.
#[derive(Debug)]
pub struct FillParameters<'a> {
    /// The command that creates one key.
    pub command: &'a str,
    /// The number of keys.
    pub keys: u64,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// The expiry of each key, in seconds.
    pub ttl_s: Option<u64>,
    /// The number of connections.
    pub connections: usize,
    /// The number of outstanding requests per connection.
    pub pipeline: u64,
    /// The core of the client; only the first is used.
    pub cores: Vec<usize>,
    /// The request to end the run before its time.
    pub interruption: Interruption,
}

/// Sends the command of `filling` once for each key. Returns the time it took.
///
/// # Errors
/// Fails if the command does not name exactly one key, lacks `{expire}` for an expiry, or gets an error reply.
pub fn fill(address: SocketAddr, filling: &FillParameters<'_>) -> Result<Duration> {
    let subject = LoadParameters {
        order: KeyOrder::Sequential,
        value_size: filling.value_size,
        expire_s: filling.ttl_s,
        verify_every: 1,
    };
    if filling.ttl_s.is_some() && !filling.command.contains("{expire}") {
        return Err(Error::Usage("an expiry needs {expire} in the command".into()));
    }
    let workload = Workload::from_command(filling.command, "any", &subject)?;
    if workload.keys_per_request() != 1 {
        return Err(Error::Usage("a fill command must name one {key} or {id}".into()));
    }
    if workload.uses_scripts() {
        scripts::load_all(&mut ControlConnection::connect(address, 2)?)?;
    }
    let shape = RunParameters {
        address,
        connections: filling.connections,
        threads: 1,
        pipeline: filling.pipeline,
        rate: None,
        warmup: Duration::ZERO,
        window: Duration::ZERO,
        drain: Duration::ZERO,
        seed: 0,
        first_new_key: 0,
        subscribers: None,
        protocol: 2,
        tls: None,
        cores: filling.cores.clone(),
        server_pid: None,
        interruption: filling.interruption.clone(),
    };
    run::send_each_once(&shape, &workload, filling.keys)
}

/// Creates the stream of the load `group-read`, and a group for each connection.
///
/// # Errors
/// Fails if the server refuses a command.
pub fn fill_stream(control: &mut ControlConnection, value_size: usize, connections: usize) -> Result<()> {
    let values = ValuePool::new(value_size);
    for entry in 0..STREAM_ENTRIES {
        let value = String::from_utf8_lossy(values.item(entry, 0)).into_owned();
        let id = format!("{}-1", entry + 1);
        control.call(&["XADD", "stream", &id, "field:000000", &value])?;
    }
    for connection in 0..connections {
        let group = format!("group:{connection:012}");
        control.call(&["XGROUP", "CREATE", "stream", &group, "0"])?;
    }
    Ok(())
}

/// Returns the resident memory of a server in bytes, once background work (rehashing, purging) has ended. It is sampled
/// every `interval`.
///
/// # Errors
/// Fails if the process has ended or the run is interrupted.
pub fn settled_rss_bytes(pid: u32, interval: Duration, interruption: &Interruption) -> Result<u64> {
    let mut last = process::rss_bytes(pid)?;
    for _ in 0..MAX_SETTLE_SAMPLES {
        interruption.sleep_until(Instant::now() + interval)?;
        let now = process::rss_bytes(pid)?;
        let change = now.abs_diff(last) as f64;
        last = now;
        if change <= last as f64 * SETTLED_SHARE {
            break;
        }
    }
    Ok(last)
}
