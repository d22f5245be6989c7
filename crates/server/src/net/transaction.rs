//! The transaction of a client: the commands queued for EXEC.
//!
//! The requests are stored one after the other, as received, with their keys hashed. So EXEC can lease all slots and
//! run the commands without parsing them again.

use std::ops::Range;

use weft_base::DbIndex;
use weft_resp::{ArgRange, Args};

use super::client_snapshot::ClientSnapshot;
use super::library_loads::LibraryLoads;
use crate::keyspace::key_identity::PlannedKey;

/// One queued command.
#[derive(Clone)]
pub struct QueuedCommand {
    /// The index in the command registry.
    pub command: usize,
    /// The database in which the command runs. EXEC determines it again, because the user may have lost the permission
    /// for the SELECT before it.
    pub db: DbIndex,
    request: Range<usize>,
    args: Range<usize>,
    keys: Range<usize>,
}

impl QueuedCommand {
    /// Returns the size of the request, in bytes.
    pub fn request_bytes(&self) -> usize {
        self.request.len()
    }

    /// Returns the range of the command's keys in [`Transaction::keys`].
    pub fn key_indices(&self) -> Range<usize> {
        self.keys.clone()
    }
}

/// The commands between MULTI and EXEC.
#[derive(Default)]
pub struct Transaction {
    requests: Vec<u8>,
    ranges: Vec<ArgRange>,
    /// The keys of all commands. While EXEC runs, the watched keys follow them.
    pub keys: Vec<PlannedKey>,
    /// The commands.
    pub commands: Vec<QueuedCommand>,
    /// The database in which the next command will run.
    pub db: DbIndex,
    /// The version of the users, and the database of the client, for which EXEC has determined the databases of the
    /// commands. `None` before that.
    pub databases_as_of: Option<(u64, DbIndex)>,
    /// Set if a command was refused, so EXEC will fail.
    pub is_refused: bool,
    /// Set if a command may change data, or must be propagated for another reason.
    pub may_write: bool,
    /// Set if a command is denied when memory is short.
    pub is_denied_out_of_memory: bool,
    /// Set if a command needs exclusive use of the keyspace.
    pub needs_exclusive: bool,
    /// Set if a command runs code of a module: EXEC runs on the home worker.
    pub runs_modules: bool,
    /// Set if a command reports about clients, for which EXEC needs their snapshots.
    pub reports_clients: bool,
    /// The snapshots of the other clients right before EXEC, once they have been requested and collected.
    pub client_snapshots: Option<Vec<ClientSnapshot>>,
    /// Set if a command loads libraries of functions.
    pub loads_libraries: bool,
    /// Those libraries, once EXEC has requested that their code run.
    pub library_loads: Option<Box<LibraryLoads>>,
    /// The memory that their code takes besides the requests, in bytes. Another thread may have it.
    pub library_bytes: usize,
    /// Set if a command loads or deletes libraries of functions: EXEC runs in exclusive mode, on whichever thread.
    pub changes_libraries: bool,
    /// Set once it is known: `true` if the code of the libraries whose functions EXEC calls is too long for a worker.
    pub calls_long_libraries: Option<bool>,
    /// Set if a command runs a script.
    pub runs_script: bool,
    /// Set if a command changes the configuration or writes its file.
    pub changes_config: bool,
    /// Set if a command selects a database.
    pub selects_database: bool,
    /// Set if a command may change the permissions of the client.
    pub changes_permissions: bool,
    /// Set if a command that may change the permissions of the client is followed by one that selects a database: it is
    /// not known in which databases the later commands will run.
    pub has_uncertain_databases: bool,
    /// Set if a command pauses clients.
    pub pauses_clients: bool,
    /// Set if a script may never end.
    pub may_run_forever: bool,
    /// Set if EXEC cannot run outside the client's worker: a command changes the client, or has steps after the leases.
    pub must_stay_on_worker: bool,
    /// Set if a script has a shebang line and may write.
    pub script_may_write: bool,
}

impl Transaction {
    /// Creates an empty transaction that starts in this database.
    pub fn new(db: DbIndex) -> Self {
        Transaction {
            db,
            ..Transaction::default()
        }
    }

    /// Queues a command: its index in the registry, its request, the ranges of its arguments, and its keys.
    pub fn push(&mut self, command: usize, request: &[u8], ranges: &[ArgRange], keys: &[PlannedKey]) {
        let (bytes, args, first_key) = (self.requests.len(), self.ranges.len(), self.keys.len());
        self.databases_as_of = None;
        self.requests.extend_from_slice(request);
        self.ranges.extend_from_slice(ranges);
        self.keys.extend_from_slice(keys);
        self.commands.push(QueuedCommand {
            command,
            db: self.db,
            request: bytes..self.requests.len(),
            args: args..self.ranges.len(),
            keys: first_key..self.keys.len(),
        });
    }

    /// Returns the arguments of a command.
    pub fn args(&self, queued: &QueuedCommand) -> Args<'_> {
        Args::new(
            &self.requests[queued.request.clone()],
            &self.ranges[queued.args.clone()],
        )
    }

    /// Returns the keys of a command.
    pub fn keys_of(&self, queued: &QueuedCommand) -> &[PlannedKey] {
        &self.keys[queued.key_indices()]
    }

    /// Returns the number of keys of all commands.
    pub fn command_key_count(&self) -> usize {
        self.commands.last().map_or(0, |last| last.keys.end)
    }

    /// Returns `true` if EXEC runs on a script thread, under leases.
    pub fn runs_on_script_thread(&self) -> bool {
        self.may_run_forever && !self.must_stay_on_worker && !self.changes_libraries && !self.is_refused
    }

    /// Returns the size of the queued requests, in bytes.
    pub fn queued_bytes(&self) -> usize {
        self.requests.len()
    }

    /// Returns the allocated memory, in bytes.
    pub fn allocated_bytes(&self) -> usize {
        self.library_bytes
            + self.requests.capacity()
            + self.ranges.capacity() * size_of::<ArgRange>()
            + self.keys.capacity() * size_of::<PlannedKey>()
            + self.commands.capacity() * size_of::<QueuedCommand>()
    }
}
