//! Keys that expire while an endless script holds the slot of one of them. The server must delete the others soon, even
//! if no client accesses them.

use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread;
use weft_server::simulation::slot_with_hash_seed;

use crate::bound::Bound;
use crate::client::{Client, connect};
use crate::operation;
use crate::reply::SeenReply;

/// The `hash-seed` of servers whose expired keys are watched. With it the slots of keys are known.
pub const HASH_SEED: &str = "due-keys";
/// The number of keys whose slots no script holds for long.
const OTHER_KEYS: usize = 4;
/// The bound within which the server must have deleted these, from the start of the script on.
const MAX_DELETION: Bound = Bound::of_ms(500);

/// The keys of one script. They are in a database that no other client uses, and in which a name has the same slot.
pub struct DueKeys {
    client: Client,
    /// The name of the key whose slot the script holds.
    held: String,
}

impl DueKeys {
    /// Sets keys that expire within milliseconds, one of them with the name of the string that the script reads.
    ///
    /// # Errors
    /// If the server does not reply.
    pub fn set(string: usize, random: &mut Rng) -> Result<DueKeys, String> {
        let mut keys = DueKeys {
            client: connect("primary.sock", random.u64(..))?,
            held: operation::string(string),
        };
        keys.ask("SELECT 9")?;
        let mut names = names_in_other_slots(&keys.held);
        names.push(keys.held.clone());
        for name in names {
            keys.ask(&format!("SET {name} x PX {}", random.u32(2..7)))?;
        }
        Ok(keys)
    }

    /// Waits until the keys are deleted, but for the one whose slot the script may hold.
    ///
    /// # Errors
    /// If they are not deleted in time.
    pub fn await_deletion(&mut self) -> Result<(), String> {
        let start = scheduler::figures();
        while !matches!(self.ask("DBSIZE")?, SeenReply::Integer(..=1)) {
            MAX_DELETION
                .check(&start)
                .map_err(|passed| format!("keys that have expired are not deleted {passed} later"))?;
            thread::sleep(Duration::from_micros(300));
        }
        Ok(())
    }

    /// Deletes the key whose slot the script has held.
    ///
    /// # Errors
    /// If the server does not reply.
    pub fn delete(mut self) -> Result<(), String> {
        let request = format!("DEL {}", self.held);
        self.ask(&request)?;
        drop(self.client.run_and_close(Vec::new()));
        Ok(())
    }

    fn ask(&mut self, request: &str) -> Result<SeenReply, String> {
        let reply = self.client.ask_text(request);
        reply.map_err(|end| format!("the client whose keys expire: {request}: {end:?}"))
    }
}

/// Names of keys that are not in the slot of the given key.
fn names_in_other_slots(held: &str) -> Vec<String> {
    let slot = |name: &str| slot_with_hash_seed(HASH_SEED, name);
    let names = (0..).map(|number| format!("due:{number}"));
    names.filter(|name| slot(name) != slot(held)).take(OTHER_KEYS).collect()
}
