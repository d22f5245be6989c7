//! The state of one client. The worker that serves the client's connection owns it.

use std::io::Write as _;
use std::sync::Arc;

use weft_base::{ClientId, DbIndex, LogSequence, SlotIndex, ThreadIndex};
use weft_resp::Protocol;

use super::client_snapshot::TransactionFigures;
use super::kill_mark::KillMark;
use super::library_loads::LibraryLoads;
use super::transaction::Transaction;
use crate::clients_waiting::watch::Watches;
use crate::notify::pubsub::{SubscriptionKind, Subscriptions};
use crate::notify::tracking::TrackingOptions;
use weft_acl::Login;

bitflags::bitflags! {
    /// The flags of a client.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ClientFlags: u64 {
        /// No command gets a reply (CLIENT REPLY OFF).
        const REPLY_OFF = 1;
        /// The next command gets no reply (CLIENT REPLY SKIP).
        const REPLY_SKIP_NEXT = 1 << 1;
        /// The current command gets no reply.
        const REPLY_SKIP = 1 << 2;
        /// The connection is closed once its output is sent.
        const CLOSE_AFTER_REPLY = 1 << 3;
        /// The connection is closed immediately; unsent output is dropped.
        const CLOSE_ASAP = 1 << 4;
        /// No further request of the client runs.
        const CLOSING = Self::CLOSE_AFTER_REPLY.bits() | Self::CLOSE_ASAP.bits();
        /// The client is never evicted (CLIENT NO-EVICT).
        const NO_EVICT = 1 << 5;
        /// Reads do not update access clocks (CLIENT NO-TOUCH).
        const NO_TOUCH = 1 << 6;
        /// The client is the source of an import (CLIENT IMPORT-SOURCE).
        const IMPORT_SOURCE = 1 << 7;
        /// The client is connected over a Unix socket.
        const UNIX_SOCKET = 1 << 8;
        /// The client understands redirections (CLIENT CAPA redirect).
        const CAPA_REDIRECT = 1 << 9;
        /// The client is blocked in a command that CLIENT UNBLOCK can end.
        const BLOCKED = 1 << 10;
        /// The client is between MULTI and EXEC.
        const MULTI = 1 << 11;
        /// The client has begun a transaction or watched a key before.
        const TRANSACTED = 1 << 12;
        /// The client has a subscription.
        const PUBSUB = 1 << 13;
        /// The client replays commands that were executed before, on another server or at another time. They must
        /// succeed.
        const REPLAY = 1 << 15;
        /// The client receives the commands of all clients (MONITOR).
        const MONITOR = 1 << 14;
        /// The client may read from a replica in a cluster (READONLY).
        const READONLY = 1 << 16;
        /// The client was redirected to a slot that is being imported (ASKING).
        const ASKING = 1 << 17;
        /// The client is the source of a slot migration, whose commands import its slots.
        const SLOT_IMPORT = 1 << 18;
        /// The client is the target of a slot migration, to which this server exports slots.
        const SLOT_EXPORT = 1 << 23;
        /// The client is the primary that this server replicates.
        const PRIMARY = 1 << 19;
        /// The client is a replica of this server.
        const REPLICA = 1 << 20;
        /// The client is connected over TLS.
        const TLS = 1 << 25;
        /// The client has authenticated at least once.
        const HAS_AUTHENTICATED = 1 << 26;
        /// The client represents the caller of a script while the script's commands run.
        const SCRIPT = 1 << 24;
        /// The client represents the caller of a module while a command that the module calls runs.
        const MODULE_CALL = 1 << 32;
        /// The commands of the client's transaction run.
        const EXECUTING = 1 << 27;
        /// The client's scripts run in debugger sessions (SCRIPT DEBUG).
        const DEBUG_SCRIPTS = 1 << 21;
        /// The debugger sessions are synchronous: all other clients wait, and the script's writes are kept.
        const DEBUG_SCRIPTS_SYNC = 1 << 22;
    }
}

impl ClientFlags {
    /// The clients whose commands have run before, on a primary, on the source of a slot migration, or in a file.
    pub const REPLAYING: ClientFlags = ClientFlags::PRIMARY
        .union(ClientFlags::REPLAY)
        .union(ClientFlags::SLOT_IMPORT);
}

/// Represents [`Client::is_dirty`] in the letters of CLIENT LIST. It is never set in [`Client::flags`].
const DIRTY: ClientFlags = ClientFlags::from_bits_retain(1 << 31);
/// Represents a client that tracks keys, in the same way.
const TRACKING: ClientFlags = ClientFlags::from_bits_retain(1 << 30);
/// Set for a client whose invalidation messages go to a client that has disconnected.
const BROKEN_REDIRECT: ClientFlags = ClientFlags::from_bits_retain(1 << 29);
/// Represents a client that tracks keys in broadcast mode.
const BROADCAST: ClientFlags = ClientFlags::from_bits_retain(1 << 28);

/// Returns the part of a name that CLIENT LIST shows: the bytes before the first zero byte.
pub fn c_string_prefix(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The kinds of clients that the option `TYPE` distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A client of no other kind.
    Normal,
    /// A replica of this server.
    Replica,
    /// A subscriber of channels or patterns.
    PubSub,
    /// The primary that this server replicates.
    Primary,
    /// The source of a slot migration.
    SlotImport,
    /// The target of a slot migration.
    SlotExport,
}

impl ClientKind {
    /// Returns the kind with that name, in any case. Deprecated names are accepted.
    pub fn from_name(name: &[u8]) -> Option<ClientKind> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Some(ClientKind::Normal),
            b"replica" | b"slave" => Some(ClientKind::Replica),
            b"pubsub" => Some(ClientKind::PubSub),
            b"primary" | b"master" => Some(ClientKind::Primary),
            _ => None,
        }
    }
}

/// The properties that a replica announces in its handshake (REPLCONF).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaHandshake {
    /// The port on which the replica listens; 0 if it was not announced.
    pub port: i64,
    /// The address of the replica; empty if it is the address of the connection.
    pub address: String,
    /// `true` if the replica understands a full sync whose end is marked by a delimiter (capability `eof`).
    pub supports_eof_mark: bool,
    /// `true` if the replica understands that a replication id is replaced by another one (capability `psync2`).
    pub supports_psync2: bool,
    /// The id of the replica's cluster node; empty if it was not announced.
    pub cluster_node: String,
    /// `true` if the replica wants the RDB only and no replication stream.
    pub wants_rdb_only: bool,
    /// `true` if the replica wants an RDB without keys.
    pub excludes_data: bool,
    /// `true` if the replica wants an RDB without functions.
    pub excludes_functions: bool,
    /// The replica's version, with two hexadecimal digits for each part; 0 if it was not announced.
    pub version: u32,
    /// `true` if the replica can take the RDB over a second connection and this server is configured to send it so.
    pub supports_dual_channel: bool,
    /// `true` if this connection is such a second connection.
    pub is_rdb_channel: bool,
    /// The id of the client that is the second connection of this replica.
    pub rdb_channel_client: Option<ClientId>,
}

impl ReplicaHandshake {
    /// Returns the name of the replica for the log, if its connection comes from `peer`.
    pub fn name(&self, peer: &str) -> String {
        let host = self.host(peer);
        match self.port {
            0 => format!("{host}:<unknown-replica-port>"),
            port => format!("{host}:{port}"),
        }
    }

    /// Returns the address of the replica, if its connection comes from `peer`.
    pub fn host<'a>(&'a self, peer: &'a str) -> &'a str {
        if self.address.is_empty() { peer } else { &self.address }
    }
}

/// The state of one client.
pub struct Client {
    /// The unique id; ids ascend.
    pub id: ClientId,
    /// The selected database.
    pub db: DbIndex,
    /// The position of the client's last write in the propagation log; 0 for none.
    pub last_write_sequence: LogSequence,
    /// The position of the first write whose reply has not been sent yet; 0 for none.
    pub unacknowledged_write: LogSequence,
    /// The protocol: RESP2 until HELLO 3.
    pub protocol: Protocol,
    /// The authenticated user and its permissions.
    pub login: Login,
    /// The name set by CLIENT SETNAME.
    pub name: Vec<u8>,
    /// The library name set by CLIENT SETINFO LIB-NAME.
    pub lib_name: Vec<u8>,
    /// The library version set by CLIENT SETINFO LIB-VER.
    pub lib_version: Vec<u8>,
    /// The flags.
    pub flags: ClientFlags,
    /// The peer's address as replies and the log show it.
    pub address: Arc<str>,
    /// The local address of the connection.
    pub local_address: Arc<str>,
    /// The file descriptor.
    pub fd: i32,
    /// The time at which the client connected, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The time of the last command or reply, in milliseconds since the Unix epoch.
    pub last_interaction_ms: u64,
    /// The full name of the last command (`client|list`).
    pub last_command: &'static str,
    /// The bytes received from the client.
    pub net_input_bytes: u64,
    /// The bytes sent to the client.
    pub net_output_bytes: u64,
    /// The number of commands that have ended.
    pub commands: u64,
    /// The largest output of one turn so far, in bytes.
    pub largest_output: usize,
    /// The index of the worker that owns the client.
    pub worker: ThreadIndex,
    /// The commands queued for EXEC; `Some` while [`ClientFlags::MULTI`] is set.
    pub transaction: Option<Box<Transaction>>,
    /// The watched keys.
    pub watches: Option<Box<Watches>>,
    /// The subscriptions.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// The state of client-side caching (CLIENT TRACKING).
    pub tracking: Option<Box<TrackingOptions>>,
    /// The arguments of the running command of a module that logs and monitors must not show.
    pub redacted_arguments: Vec<u32>,
    /// The properties that the client announced as a replica.
    pub handshake: Option<Box<ReplicaHandshake>>,
    /// Figures that replace those of `transaction` and `watches`: in snapshots of a client, and while EXEC runs.
    pub transaction_figures: Option<Box<TransactionFigures>>,
    /// Shared with the client's command on another thread. `None` until there was one.
    pub kill_mark: Option<Arc<KillMark>>,
    /// What the last attempt to run the client's present script was refused, other than the slots of its declared keys.
    pub script_refusal: Option<ScriptRefusal>,
    /// The slot that the client's command was refused while it ran, so that it runs again later. The thread that runs
    /// the command takes it.
    pub refused_slot: Option<SlotIndex>,
    /// The libraries that the running command, or transaction, loads and whose code has run already.
    pub library_loads: Option<Box<LibraryLoads>>,
    /// What a module has decided about the login that the running command asks for.
    pub module_login: Option<Box<ModuleLogin>>,
}

/// The decision of a module about a login.
#[derive(Debug)]
pub enum ModuleLogin {
    /// The client is logged in already.
    Granted,
    /// The client gets this error; `None` for that of a wrong password.
    Denied(Option<Vec<u8>>),
}

/// What a script was refused, so that it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptRefusal {
    /// The lease of a slot whose keys it has not declared.
    Slot(SlotIndex),
    /// The token.
    Token,
    /// A command of a module, for which the script has to run in exclusive mode on the home worker.
    Home,
}

/// Figures for CLIENT LIST that only the connection knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferFigures {
    /// The unprocessed input, in bytes.
    pub input: usize,
    /// The free space in the input buffer, in bytes.
    pub input_free: usize,
    /// The arguments of the current command, in bytes.
    pub arguments: usize,
    /// The replies that wait for the end of the turn, in bytes.
    pub output: usize,
    /// The allocated size of the reply buffer, in bytes.
    pub output_capacity: usize,
    /// The output that the kernel has not accepted yet, in bytes.
    pub in_flight: usize,
    /// The sum, in bytes.
    pub total: usize,
    /// The memory that is allocated for the client alone, in bytes.
    pub allocated: usize,
    /// `true` if the worker currently receives from the connection.
    pub is_receiving: bool,
}

impl Client {
    /// Creates a client in database 0, without addresses.
    pub fn new(id: ClientId, now_ms: u64, worker: ThreadIndex) -> Self {
        Self::with_addresses(
            id,
            now_ms,
            worker,
            Login::unauthenticated(),
            Arc::default(),
            Arc::default(),
        )
    }

    fn with_addresses(
        id: ClientId,
        now_ms: u64,
        worker: ThreadIndex,
        login: Login,
        address: Arc<str>,
        local_address: Arc<str>,
    ) -> Self {
        Client {
            id,
            db: DbIndex::FIRST,
            last_write_sequence: LogSequence::NONE,
            unacknowledged_write: LogSequence::NONE,
            protocol: Protocol::Resp2,
            login,
            name: Vec::new(),
            lib_name: Vec::new(),
            lib_version: Vec::new(),
            flags: ClientFlags::default(),
            address,
            local_address,
            fd: -1,
            created_ms: now_ms,
            last_interaction_ms: now_ms,
            last_command: "",
            net_input_bytes: 0,
            net_output_bytes: 0,
            commands: 0,
            largest_output: 0,
            worker,
            transaction: None,
            watches: None,
            subscriptions: None,
            tracking: None,
            redacted_arguments: Vec::new(),
            handshake: None,
            transaction_figures: None,
            kill_mark: None,
            script_refusal: None,
            refused_slot: None,
            library_loads: None,
            module_login: None,
        }
    }

    /// Records a write of the client, whose reply is still to be sent.
    #[inline]
    pub fn record_write(&mut self, sequence: LogSequence) {
        self.last_write_sequence = sequence;
        if self.unacknowledged_write.is_none() {
            self.unacknowledged_write = sequence;
        }
    }

    /// Records that everything in the log up to `last` counts as written by the client. `first` is the client's own
    /// first write among that, whose reply is still to be sent, or none.
    pub fn record_log_sequence(&mut self, first: LogSequence, last: LogSequence) {
        self.last_write_sequence = last.max(self.last_write_sequence);
        if self.unacknowledged_write.is_none() {
            self.unacknowledged_write = first;
        }
    }

    /// Requests that the connection be closed. A command of the client that waits on another thread does not run any
    /// more: what follows CLIENT KILL may rely on that.
    pub fn kill(&mut self) {
        self.flags.set(ClientFlags::CLOSE_ASAP, true);
        self.stop_detached_commands();
    }

    /// Keeps the commands of the client that wait on other threads from running.
    pub fn stop_detached_commands(&self) {
        if let Some(mark) = &self.kill_mark {
            mark.kill();
        }
    }

    /// Returns the view of the client for a command that another thread runs, unless the client is killed.
    pub fn detached_view(&mut self) -> Client {
        let mark = self.kill_mark.get_or_insert_default().clone();
        Client {
            kill_mark: Some(mark),
            // For ACL LOG.
            lib_name: self.lib_name.clone(),
            lib_version: self.lib_version.clone(),
            ..self.link_snapshot()
        }
    }

    /// Ends the effect of CLIENT CACHING after a command, which may have been refused; `None` for a command that does
    /// not exist. The effect lasts through a transaction, and through the subcommands of CLIENT.
    #[inline]
    pub fn reset_caching_after(&mut self, command: Option<&'static str>) {
        let is_client_command = command.is_some_and(|name| name.starts_with("client|"));
        if self.tracking.is_some() && self.transaction.is_none() && !is_client_command {
            self.reset_caching();
        }
    }

    /// Ends the effect of CLIENT CACHING, which applies to one command only.
    pub fn reset_caching(&mut self) {
        if let Some(tracking) = &mut self.tracking {
            tracking.caching_was_called = false;
        }
    }

    /// Returns `true` if the client of a [`Self::detached_view`] was killed.
    pub fn was_killed(&self) -> bool {
        self.kill_mark.as_ref().is_some_and(|mark| mark.is_killed())
    }

    /// Copies the part of the state that handlers may read, for a command that runs outside the client's worker. The
    /// flags that suppress replies are not copied; they are applied to the client itself.
    pub fn handler_view(&self) -> Client {
        let (address, local_address) = (self.address.clone(), self.local_address.clone());
        let login = self.login.clone();
        let mut view = Client::with_addresses(self.id, self.created_ms, self.worker, login, address, local_address);
        self.update_handler_view(&mut view);
        view
    }

    /// Copies the state that replies about clients show, for a client whose connection no worker has: the view, and the
    /// figures of the connection.
    pub fn link_snapshot(&self) -> Client {
        let mut view = self.handler_view();
        view.fd = self.fd;
        view.last_interaction_ms = self.last_interaction_ms;
        view.last_command = self.last_command;
        view.net_input_bytes = self.net_input_bytes;
        view.net_output_bytes = self.net_output_bytes;
        view.commands = self.commands;
        view
    }

    /// Takes a snapshot of the client for replies about clients.
    pub fn client_snapshot(&self) -> Client {
        let mut client_snapshot = self.link_snapshot();
        client_snapshot.flags = self.flags;
        client_snapshot.lib_name.clone_from(&self.lib_name);
        client_snapshot.lib_version.clone_from(&self.lib_version);
        client_snapshot.largest_output = self.largest_output;
        client_snapshot.kill_mark.clone_from(&self.kill_mark);
        client_snapshot.subscriptions.clone_from(&self.subscriptions);
        client_snapshot.transaction_figures = Some(Box::new(self.current_transaction_figures()));
        client_snapshot
    }

    /// Returns the figures of the client's transaction and watches.
    pub fn current_transaction_figures(&self) -> TransactionFigures {
        TransactionFigures {
            queued: self.queued_commands(),
            queued_bytes: self.queued_bytes(),
            watched: self.watched_keys(),
            is_dirty: self.is_dirty(),
        }
    }

    /// Ends the client's session (RESET): it continues with `login`, that of a new client. The caller has removed its
    /// watches, its subscriptions and its tracking.
    pub fn reset(&mut self, login: Login) {
        if self.login.is_authenticated() {
            self.flags.insert(ClientFlags::HAS_AUTHENTICATED);
        }
        self.db = DbIndex::FIRST;
        self.protocol = Protocol::Resp2;
        self.login = login;
        self.name.clear();
        // Capabilities and the library belong to the program behind the connection, not to its session. A reply that is
        // to be skipped is the one to RESET itself.
        let session = [
            ClientFlags::REPLY_OFF,
            ClientFlags::REPLY_SKIP_NEXT,
            ClientFlags::NO_EVICT,
            ClientFlags::NO_TOUCH,
            ClientFlags::MULTI,
            ClientFlags::PUBSUB,
            ClientFlags::MONITOR,
            ClientFlags::READONLY,
            ClientFlags::ASKING,
            ClientFlags::IMPORT_SOURCE,
        ];
        session.into_iter().for_each(|flag| self.flags.remove(flag));
        self.transaction = None;
        self.watches = None;
    }

    /// Returns `true` if a watched key has changed.
    pub fn is_dirty(&self) -> bool {
        self.watches.as_ref().is_some_and(|watches| watches.is_dirty())
    }

    /// Returns the number of queued commands, as CLIENT LIST counts them; -1 for a client that has never used
    /// transactions.
    fn queued_commands(&self) -> i64 {
        match (&self.transaction_figures, &self.transaction) {
            (Some(tally), _) => tally.queued,
            (None, Some(transaction)) => transaction.commands.len() as i64,
            (None, None) if self.flags.contains(ClientFlags::TRANSACTED) => 0,
            (None, None) => -1,
        }
    }

    /// Returns the bytes of memory that the transaction takes.
    fn queued_bytes(&self) -> usize {
        match (&self.transaction_figures, &self.transaction) {
            (Some(tally), _) => tally.queued_bytes,
            (None, Some(transaction)) => transaction.allocated_bytes(),
            (None, None) => 0,
        }
    }

    /// Returns the number of watched keys; 0 once one of them has changed.
    pub fn watched_keys(&self) -> usize {
        if let Some(tally) = &self.transaction_figures {
            return tally.watched;
        }
        let watches = self.watches.as_ref().filter(|watches| !watches.is_dirty());
        watches.map_or(0, |watches| watches.keys.len())
    }

    /// Returns the number of subscriptions of a kind.
    pub fn subscription_count(&self, kind: SubscriptionKind) -> usize {
        self.subscriptions
            .as_ref()
            .map_or(0, |subscriptions| subscriptions.names(kind).len())
    }

    /// Returns the id of the client that gets the invalidation messages: 0 for this client itself, -1 without tracking.
    pub fn redirect(&self) -> i64 {
        self.tracking
            .as_ref()
            .map_or(-1, |tracking| tracking.redirect.map_or(0, ClientId::get) as i64)
    }

    /// Returns the kind by which CLIENT LIST and CLIENT KILL select the client with `TYPE`.
    pub fn kind(&self) -> ClientKind {
        if self.flags.contains(ClientFlags::PRIMARY) {
            ClientKind::Primary
        } else if self.flags.contains(ClientFlags::REPLICA) {
            ClientKind::Replica
        } else if self.flags.contains(ClientFlags::SLOT_IMPORT) {
            ClientKind::SlotImport
        } else if self.flags.contains(ClientFlags::SLOT_EXPORT) {
            ClientKind::SlotExport
        } else if self.flags.contains(ClientFlags::PUBSUB) {
            ClientKind::PubSub
        } else {
            ClientKind::Normal
        }
    }

    /// Returns the seconds since the client connected, as CLIENT LIST shows them: both times are truncated to seconds
    /// first.
    pub fn age_s(&self, now_ms: u64) -> u64 {
        (now_ms / 1000).saturating_sub(self.created_ms / 1000)
    }

    /// Returns the seconds since the last interaction, calculated in the same way.
    pub fn idle_s(&self, now_ms: u64) -> u64 {
        (now_ms / 1000).saturating_sub(self.last_interaction_ms / 1000)
    }

    /// Returns the peer's address without port and brackets, or the path of a Unix socket with its port 0.
    pub fn ip(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the letters of the field `capa` of CLIENT LIST.
    pub fn capability_letters(&self) -> &'static str {
        if self.flags.contains(ClientFlags::CAPA_REDIRECT) {
            "r"
        } else {
            ""
        }
    }

    /// Returns the letters of the field `flags` of CLIENT LIST.
    pub fn flag_letters(&self) -> String {
        let letters = [
            (ClientFlags::MONITOR, 'O'),
            (ClientFlags::REPLICA, 'S'),
            (ClientFlags::PRIMARY, 'M'),
            (ClientFlags::PUBSUB, 'P'),
            (ClientFlags::READONLY, 'r'),
            (ClientFlags::MULTI, 'x'),
            (ClientFlags::BLOCKED, 'b'),
            (TRACKING, 't'),
            (BROKEN_REDIRECT, 'R'),
            (BROADCAST, 'B'),
            (DIRTY, 'd'),
            (ClientFlags::CLOSE_AFTER_REPLY, 'c'),
            (ClientFlags::CLOSE_ASAP, 'A'),
            (ClientFlags::UNIX_SOCKET, 'U'),
            (ClientFlags::NO_EVICT, 'e'),
            (ClientFlags::NO_TOUCH, 'T'),
            (ClientFlags::IMPORT_SOURCE, 'I'),
            (ClientFlags::SLOT_IMPORT, 'i'),
            (ClientFlags::SLOT_EXPORT, 'E'),
        ];
        let mut flags = self.flags;
        flags.set(
            DIRTY,
            self.transaction_figures
                .as_ref()
                .map_or(self.is_dirty(), |tally| tally.is_dirty),
        );
        if let Some(tracking) = &self.tracking {
            flags.set(TRACKING, true);
            flags.set(BROKEN_REDIRECT, tracking.is_redirect_broken);
            flags.set(BROADCAST, tracking.is_broadcast);
        }
        let set: String = letters
            .iter()
            .filter(|(flag, _)| flags.contains(*flag))
            .map(|(_, letter)| letter)
            .collect();
        if set.is_empty() { "N".to_owned() } else { set }
    }

    /// Formats the client's line of CLIENT LIST, without the newline.
    pub fn list_line(&self, now_ms: u64, buffers: BufferFigures) -> Vec<u8> {
        self.line_with_names(now_ms, buffers, &self.name, self.login.name())
    }

    /// Formats the client's line for the server log. `hides_user_data` keeps the names of the client and of its user
    /// out.
    pub fn log_line(&self, now_ms: u64, buffers: BufferFigures, hides_user_data: bool) -> String {
        const REDACTED: &[u8] = b"*redacted*";
        let line = match hides_user_data {
            true => self.line_with_names(now_ms, buffers, REDACTED, REDACTED),
            false => self.list_line(now_ms, buffers),
        };
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Returns the short line with which the log names the client that has requested something.
    pub fn short_log_line(&self, hides_user_data: bool) -> String {
        let shown = |text: &[u8]| String::from_utf8_lossy(c_string_prefix(text)).into_owned();
        let (name, user) = match hides_user_data {
            true => ("*redacted*".to_owned(), "*redacted*".to_owned()),
            false => (shown(&self.name), shown(self.login.name())),
        };
        format!(
            "id={} addr={} laddr={} fd={} name={name} user={user} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            self.fd,
            shown(&self.lib_name),
            shown(&self.lib_version),
        )
    }

    fn line_with_names(&self, now_ms: u64, buffers: BufferFigures, name: &[u8], user: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(500);
        // Writing to a vector cannot fail.
        let _ = self.write_identity(&mut out, now_ms, name);
        let _ = self.write_buffers(&mut out, buffers);
        let _ = self.write_program(&mut out, user);
        out
    }

    fn write_identity(&self, out: &mut Vec<u8>, now_ms: u64, name: &[u8]) -> std::io::Result<()> {
        write!(
            out,
            "id={} addr={} laddr={} fd={} name=",
            self.id, self.address, self.local_address, self.fd
        )?;
        out.extend_from_slice(c_string_prefix(name));
        write!(
            out,
            " age={} idle={} flags={} capa={} db={} sub={} psub={} ssub={} multi={} watch={}",
            self.age_s(now_ms),
            self.idle_s(now_ms),
            self.flag_letters(),
            self.capability_letters(),
            self.db,
            self.subscription_count(SubscriptionKind::Channel),
            self.subscription_count(SubscriptionKind::Pattern),
            self.subscription_count(SubscriptionKind::ShardChannel),
            self.queued_commands(),
            self.watched_keys()
        )
    }

    /// Writes the buffer figures. There is one output buffer, of which `obl` of `rbs` bytes are used. The output that
    /// the kernel does not accept at once is counted as one list entry.
    fn write_buffers(&self, out: &mut Vec<u8>, buffers: BufferFigures) -> std::io::Result<()> {
        write!(
            out,
            " qbuf={} qbuf-free={} argv-mem={} multi-mem={} rbs={} rbp={} obl={} oll={} omem={} tot-mem={} events={}{}",
            buffers.input,
            buffers.input_free,
            buffers.arguments,
            self.queued_bytes(),
            buffers.output_capacity,
            self.largest_output,
            buffers.output,
            usize::from(buffers.in_flight > 0),
            buffers.in_flight,
            buffers.total,
            if buffers.is_receiving { "r" } else { "" },
            if buffers.in_flight > 0 { "w" } else { "" },
        )
    }

    fn write_program(&self, out: &mut Vec<u8>, user: &[u8]) -> std::io::Result<()> {
        let command = if self.last_command.is_empty() {
            "NULL"
        } else {
            self.last_command
        };
        let resp = match self.protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        };
        write!(out, " cmd={command} user=")?;
        out.extend_from_slice(user);
        write!(out, " redir={} resp={resp} lib-name=", self.redirect())?;
        out.extend_from_slice(c_string_prefix(&self.lib_name));
        out.extend_from_slice(b" lib-ver=");
        out.extend_from_slice(c_string_prefix(&self.lib_version));
        write!(
            out,
            " tot-net-in={} tot-net-out={} tot-cmds={}",
            self.net_input_bytes, self.net_output_bytes, self.commands
        )
    }
}

/// The estimated bytes of one entry in a client's sets, without the name itself.
const SET_ENTRY_BYTES: usize = 64;

/// The bytes of one entry in a client's set of prefixes, without the name itself: a node of 192 bytes has 11 entries,
/// and there are nodes above it.
const PREFIX_ENTRY_BYTES: usize = 24;

impl Client {
    /// Returns the estimated bytes of the client's watches, subscriptions and tracked prefixes. Names that all clients
    /// share are not counted.
    pub fn registration_bytes(&self) -> usize {
        let watched = self.watched_keys() * (size_of::<crate::clients_waiting::watch::Watch>() + SET_ENTRY_BYTES);
        let kinds = [
            SubscriptionKind::Channel,
            SubscriptionKind::Pattern,
            SubscriptionKind::ShardChannel,
        ];
        let subscribed: usize = kinds.into_iter().map(|kind| self.subscription_count(kind)).sum();
        let prefixes = self.tracking.as_ref().map_or(0, |tracking| tracking.prefixes.len());
        watched + subscribed * SET_ENTRY_BYTES + prefixes * PREFIX_ENTRY_BYTES
    }

    /// Returns `true` if the peer is on this machine.
    pub fn is_local(&self) -> bool {
        let address = &self.address;
        self.flags.contains(ClientFlags::UNIX_SOCKET) || address.starts_with("127.") || address.starts_with("[::1]")
    }
}

#[cfg(test)]
mod tests;
