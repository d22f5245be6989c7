//! A client that disturbs the others: it pauses them, kills them, saves, reloads, and changes the role of the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;

use crate::client::{Client, ClientEnd};
use crate::operation::{KEYS_PER_TYPE, Operation};
use crate::scenario::Disturbance;

/// The number of times that connections may have been closed by a disturbance.
static CLOSINGS: AtomicU64 = AtomicU64::new(0);

/// Returns `true` once a disturbance may have closed the connections of others.
pub fn has_closed_connections() -> bool {
    CLOSINGS.load(Ordering::SeqCst) > 0
}

/// Causes disturbances, one after the other, at random times.
///
/// # Errors
/// If the connection ends.
pub fn disturb(client: &mut Client, random: &mut Rng, disturbances: &[Disturbance]) -> Result<(), ClientEnd> {
    for disturbance in disturbances {
        thread::sleep(Duration::from_micros(random.u64(..3000)));
        let requests: Vec<Operation> = match disturbance {
            Disturbance::Pause => {
                client.run(vec![Operation::Pause])?;
                read_repeatedly(client, random)?;
                thread::sleep(Duration::from_micros(random.u64(..5000)));
                client.run(vec![Operation::GetAll])?;
                vec![Operation::Unpause]
            }
            Disturbance::Save => vec![Operation::Ignored(vec!["BGSAVE"])],
            Disturbance::Rewrite => vec![Operation::Ignored(vec!["BGREWRITEAOF"])],
            Disturbance::KillClients => {
                CLOSINGS.fetch_add(1, Ordering::SeqCst);
                client.run(vec![Operation::KillOthers])?;
                read_repeatedly(client, random)?;
                vec![]
            }
            Disturbance::KillInTransaction => {
                CLOSINGS.fetch_add(1, Ordering::SeqCst);
                client.run(vec![Operation::Transaction(vec![
                    Operation::SetGet(0, random.u32(..)),
                    Operation::KillOthers,
                    Operation::GetAll,
                ])])?;
                read_repeatedly(client, random)?;
                vec![]
            }
            Disturbance::Configure => vec![Operation::Ignored(vec!["CONFIG", "SET", "maxclients", "500"])],
            Disturbance::KillScript => {
                for _ in 0..random.usize(..12) {
                    client.run(vec![Operation::Ignored(vec!["SCRIPT", "KILL"])])?;
                }
                vec![]
            }
            Disturbance::LoadFunctions => vec![Operation::Ignored(vec![
                "FUNCTION",
                "LOAD",
                "REPLACE",
                "#!lua name=l\nredis.register_function('f', function() return 1 end)",
            ])],
            Disturbance::Reload => vec![Operation::Ignored(vec!["DEBUG", "RELOAD"])],
            Disturbance::Demote => {
                // The clients that are blocked are disconnected.
                CLOSINGS.fetch_add(1, Ordering::SeqCst);
                client.run(vec![Operation::Demote])?;
                read_repeatedly(client, random)?;
                thread::sleep(Duration::from_micros(random.u64(..3000)));
                client.run(vec![Operation::GetAll])?;
                vec![Operation::Promote]
            }
        };
        client.run(requests)?;
    }
    Ok(())
}

/// Reads the data a few times, at once: whatever changes between two of these reads was changed meanwhile.
fn read_repeatedly(client: &mut Client, random: &mut Rng) -> Result<(), ClientEnd> {
    for _ in 0..random.usize(1..6) {
        let key = random.usize(..KEYS_PER_TYPE);
        client.run(vec![Operation::GetAll, Operation::Range(key), Operation::Count(key)])?;
    }
    Ok(())
}
