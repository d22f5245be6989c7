//! Replicas that follow the measured servers.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::interruption::Interruption;
use crate::server::{BenchServer, ServerParameters};

/// The time limit for the first synchronization, and for the replica to catch up after a load.
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// The time between two looks at the replication offsets.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A server that follows another one.
#[derive(Debug)]
pub struct BenchReplica {
    server: BenchServer,
}

impl BenchReplica {
    /// Starts a server that follows `primary`, and waits until it has all of its data.
    ///
    /// # Errors
    /// Fails if the server does not start, is not synchronized in time, or the run is interrupted.
    pub fn start(
        recipe: &ServerParameters,
        primary: &BenchServer,
        interruption: &Interruption,
    ) -> Result<BenchReplica> {
        let server = BenchServer::start(recipe)?;
        let port = primary.address.port().to_string();
        server.control()?.call(&["REPLICAOF", "127.0.0.1", &port])?;
        let replica = BenchReplica { server };
        replica.wait_until_caught_up(primary, interruption)?;
        Ok(replica)
    }

    /// Waits until the replica has executed all writes of `primary`. Returns the time that it took.
    ///
    /// # Errors
    /// Fails if it takes too long, if the primary had to send all of its data again, if the number of keys differs, or
    /// if the run is interrupted.
    pub fn wait_until_caught_up(&self, primary: &BenchServer, interruption: &Interruption) -> Result<Duration> {
        let begin = Instant::now();
        let mut controls = [primary.control()?, self.server.control()?];
        loop {
            let [primary, replica] = &mut controls;
            let is_linked = replica.info_field("master_link_status")?.as_deref() == Some("up");
            let target = primary.info_field("master_repl_offset")?;
            let reached = replica.info_field("slave_repl_offset")?;
            if is_linked && target.is_some() && target == reached {
                break;
            }
            if begin.elapsed() > SYNC_TIMEOUT {
                return Err(Error::Server(format!(
                    "the replica is at {reached:?} of {target:?}, linked: {is_linked}"
                )));
            }
            interruption.check()?;
            thread::sleep(POLL_INTERVAL);
        }
        let time = begin.elapsed();
        let [primary, replica] = &mut controls;
        let syncs = primary.info_field("sync_full")?;
        if syncs.as_deref() != Some("1") {
            return Err(Error::Server(format!(
                "the replica needed {syncs:?} full synchronizations"
            )));
        }
        let (expected, found) = (primary.key_count()?, replica.key_count()?);
        if expected != found {
            return Err(Error::Server(format!(
                "the replica has {found} keys and the primary {expected}"
            )));
        }
        Ok(time)
    }
}
