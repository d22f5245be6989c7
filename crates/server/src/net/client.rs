//! What the server knows of one client; owned by the worker that serves its connection.

use std::io::Write as _;

use weft_resp::Protocol;

use super::client_snapshot::Tally;
use super::transaction::Transaction;
use crate::acl::Login;
use crate::clients_waiting::watch::Watches;
use crate::notify::pubsub::{Kind, Subscriptions};
use crate::notify::tracking::Tracking;

/// Switches of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// No reply to anything (CLIENT REPLY OFF).
    pub const REPLY_OFF: Flags = Flags(1);
    /// No reply to the next command (CLIENT REPLY SKIP).
    pub const REPLY_SKIP_NEXT: Flags = Flags(1 << 1);
    /// No reply to this command.
    pub const REPLY_SKIP: Flags = Flags(1 << 2);
    /// Close once the output is sent.
    pub const CLOSE_AFTER_REPLY: Flags = Flags(1 << 3);
    /// Close now, dropping what was not sent.
    pub const CLOSE_ASAP: Flags = Flags(1 << 4);
    /// Never evicted (CLIENT NO-EVICT).
    pub const NO_EVICT: Flags = Flags(1 << 5);
    /// Reads do not advance access clocks (CLIENT NO-TOUCH).
    pub const NO_TOUCH: Flags = Flags(1 << 6);
    /// Feeds an import (CLIENT IMPORT-SOURCE).
    pub const IMPORT_SOURCE: Flags = Flags(1 << 7);
    /// Connected over a Unix socket.
    pub const UNIX_SOCKET: Flags = Flags(1 << 8);
    /// Understands redirections (CLIENT CAPA redirect).
    pub const CAPA_REDIRECT: Flags = Flags(1 << 9);
    /// May have been woken by CLIENT UNBLOCK.
    pub const BLOCKED: Flags = Flags(1 << 10);
    /// Between MULTI and EXEC.
    pub const MULTI: Flags = Flags(1 << 11);
    /// Has begun a transaction or watched a key before.
    pub const TRANSACTED: Flags = Flags(1 << 12);
    /// Subscribed to something.
    pub const PUBSUB: Flags = Flags(1 << 13);
    /// Repeats commands that were run before, elsewhere or in another time: they have to succeed.
    pub const REPLAYS: Flags = Flags(1 << 15);
    /// Shows what others do (MONITOR).
    pub const MONITOR: Flags = Flags(1 << 14);
    /// May read from a replica in a cluster (READONLY).
    pub const READONLY: Flags = Flags(1 << 16);
    /// Was sent after a slot that is on its way here (ASKING).
    pub const ASKING: Flags = Flags(1 << 17);
    /// ... and has used that up.
    pub const ASKED: Flags = Flags(1 << 18);
    /// The primary that this server follows.
    pub const PRIMARY: Flags = Flags(1 << 19);
    /// A replica of this server.
    pub const REPLICA: Flags = Flags(1 << 20);
    /// Connected over TLS.
    pub const TLS: Flags = Flags(1 << 25);
    /// Has logged in at least once.
    pub const HAS_AUTHENTICATED: Flags = Flags(1 << 26);
    /// Stands for a script's caller while the script's commands run.
    pub const SCRIPT: Flags = Flags(1 << 24);
    /// Its scripts run in sessions of the debugger (SCRIPT DEBUG).
    pub const DEBUGS: Flags = Flags(1 << 21);
    /// ... in which everybody else waits, and what they write stays.
    pub const DEBUGS_SYNC: Flags = Flags(1 << 22);

    /// Whether all of `other` are set.
    #[inline]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is set.
    #[inline]
    pub const fn has_any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets or clears `other`.
    #[inline]
    pub fn put(&mut self, other: Flags, on: bool) {
        if on {
            self.0 |= other.0;
        } else {
            self.0 &= !other.0;
        }
    }

    /// Both.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Stands for [`Client::is_dirty`] among the letters that CLIENT LIST shows; never set.
const DIRTY: Flags = Flags(1 << 31);
/// Stands for a client that tracks keys, in the same way.
const TRACKING: Flags = Flags(1 << 30);
/// Stands for one whose messages go to a client that is gone.
const BROKEN_REDIRECT: Flags = Flags(1 << 29);
/// Stands for one that gets broadcasts.
const BROADCAST: Flags = Flags(1 << 28);

/// The part of a name that CLIENT LIST shows: what stands before the first zero byte.
pub fn shown(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The kinds of clients that `TYPE` tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Neither of the others.
    Normal,
    /// A replica of this server.
    Replica,
    /// A subscriber of channels or patterns.
    PubSub,
    /// The server that this one follows.
    Primary,
}

impl ClientKind {
    /// The kind with that name, in any case; old names too.
    pub fn named(name: &[u8]) -> Option<ClientKind> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Some(ClientKind::Normal),
            b"replica" | b"slave" => Some(ClientKind::Replica),
            b"pubsub" => Some(ClientKind::PubSub),
            b"primary" | b"master" => Some(ClientKind::Primary),
            _ => None,
        }
    }
}

/// What a replica says about itself (REPLCONF).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaHandshake {
    /// Where it listens; 0 if it has not said.
    pub port: i64,
    /// Its address; empty if that of its connection is right.
    pub address: String,
    /// It understands a dump that ends with a mark.
    pub knows_marks: bool,
    /// It understands that a history gets another name.
    pub knows_renaming: bool,
    /// Which node of the cluster it is; empty if it has not said.
    pub node: String,
    /// It wants the dump and no stream.
    pub dump_only: bool,
    /// It wants no keys in the dump.
    pub without_data: bool,
    /// It wants no functions in the dump.
    pub without_functions: bool,
    /// Its version, as a number with two hexadecimal digits for each part; 0 if it has not said.
    pub version: u32,
    /// It can take the dump over a second connection, and this server wants that.
    pub knows_dual_channel: bool,
    /// This is such a second connection.
    pub is_dump_channel: bool,
    /// The id of the client that is the second connection of this one.
    pub dump_client: Option<u64>,
}

impl ReplicaHandshake {
    /// Where the log says that a replica is, if its connection comes from `peer`.
    pub fn name(&self, peer: &str) -> String {
        let host = self.host(peer);
        match self.port {
            0 => format!("{host}:<unknown-replica-port>"),
            port => format!("{host}:{port}"),
        }
    }

    /// Where it is reached, if its connection comes from `peer`.
    pub fn host<'a>(&'a self, peer: &'a str) -> &'a str {
        if self.address.is_empty() { peer } else { &self.address }
    }
}

/// One client.
pub struct Client {
    /// Unique, ascending.
    pub id: u64,
    /// Selected database.
    pub db: usize,
    /// The ticket of its last write in the log; 0 for none.
    pub log_ticket: u64,
    /// RESP2 until HELLO 3.
    pub protocol: Protocol,
    /// Who it is, and what it may do.
    pub login: Login,
    /// CLIENT SETNAME.
    pub name: Vec<u8>,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: Vec<u8>,
    /// CLIENT SETINFO LIB-VER.
    pub lib_version: Vec<u8>,
    /// Switches.
    pub flags: Flags,
    /// Peer address as it is printed.
    pub address: String,
    /// Own address of the connection.
    pub local_address: String,
    /// File descriptor.
    pub fd: i32,
    /// When it connected, ms since the epoch.
    pub created_ms: u64,
    /// Its last command or reply, ms since the epoch.
    pub last_interaction_ms: u64,
    /// Full name of its last command (`client|list`).
    pub last_command: &'static str,
    /// Bytes read from it.
    pub net_input_bytes: u64,
    /// Bytes sent to it.
    pub net_output_bytes: u64,
    /// Commands it sent and that ended.
    pub commands: u64,
    /// Most output of one turn so far, bytes.
    pub largest_output: usize,
    /// Index of the worker that owns it.
    pub worker: usize,
    /// The commands that wait for EXEC; there is one as long as [`Flags::MULTI`] is set.
    pub transaction: Option<Box<Transaction>>,
    /// The keys that it watches.
    pub watches: Option<Box<Watches>>,
    /// What it is subscribed to.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// How it tracks keys.
    pub tracking: Option<Box<Tracking>>,
    /// What it says about itself as a replica.
    pub handshake: Option<Box<ReplicaHandshake>>,
    /// What is told of its transaction and its watches instead of what is here: in portraits, and while EXEC runs.
    pub tally: Option<Box<Tally>>,
}

/// Figures that only the connection knows, for CLIENT LIST.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    /// Unprocessed input, bytes.
    pub input: usize,
    /// Room left in the input buffer, bytes.
    pub input_free: usize,
    /// Arguments of the command under way, bytes.
    pub arguments: usize,
    /// Replies that wait for the end of the turn, bytes.
    pub output: usize,
    /// Allocation behind them, bytes.
    pub output_capacity: usize,
    /// Output that the kernel has not taken, bytes.
    pub in_flight: usize,
    /// All of it, bytes.
    pub total: usize,
    /// Whether the worker listens to the connection at the moment.
    pub receiving: bool,
}

impl Client {
    /// A new client in database 0.
    pub fn new(id: u64, now_ms: u64, worker: usize) -> Self {
        Client {
            id,
            db: 0,
            log_ticket: 0,
            protocol: Protocol::Resp2,
            login: Login::stranger(),
            name: Vec::new(),
            lib_name: Vec::new(),
            lib_version: Vec::new(),
            flags: Flags::default(),
            address: String::new(),
            local_address: String::new(),
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
            handshake: None,
            tally: None,
        }
    }

    /// What handlers may read of a client, for a command that runs away from its worker. How replies are
    /// suppressed stays with the client itself.
    pub fn view(&self) -> Client {
        let mut view = Client::new(self.id, self.created_ms, self.worker);
        view.db = self.db;
        view.log_ticket = self.log_ticket;
        view.protocol = self.protocol;
        view.login = self.login.clone();
        view.name.clone_from(&self.name);
        view.address.clone_from(&self.address);
        view.local_address.clone_from(&self.local_address);
        view.flags = self.flags;
        view.tracking.clone_from(&self.tracking);
        view.last_command = self.last_command;
        let reply_switches = [Flags::REPLY_OFF, Flags::REPLY_SKIP, Flags::REPLY_SKIP_NEXT];
        view.flags
            .put(reply_switches.into_iter().fold(Flags::default(), Flags::with), false);
        view
    }

    /// What others are shown of a client whose connection no worker has: the view, and what is told of its connection.
    pub fn shown(&self) -> Client {
        let mut view = self.view();
        view.fd = self.fd;
        view.last_interaction_ms = self.last_interaction_ms;
        view.last_command = self.last_command;
        view.net_input_bytes = self.net_input_bytes;
        view.net_output_bytes = self.net_output_bytes;
        view.commands = self.commands;
        view
    }

    /// What others are shown of it as it is now.
    pub fn client_snapshot(&self) -> Client {
        let mut client_snapshot = self.shown();
        client_snapshot.flags = self.flags;
        client_snapshot.lib_name.clone_from(&self.lib_name);
        client_snapshot.lib_version.clone_from(&self.lib_version);
        client_snapshot.largest_output = self.largest_output;
        client_snapshot.subscriptions.clone_from(&self.subscriptions);
        client_snapshot.tally = Some(Box::new(Tally {
            queued: self.queued_commands(),
            queued_bytes: self.queued_bytes(),
            watched: self.watched_keys(),
            is_dirty: self.is_dirty(),
        }));
        client_snapshot
    }

    /// Back to how it was when it connected (RESET), but for the connection itself.
    pub fn reset(&mut self, login: Login) {
        self.db = 0;
        self.protocol = Protocol::Resp2;
        self.login = login;
        self.name.clear();
        // Capabilities and the library are those of the program behind the connection, not of its session. A reply
        // that is to be skipped is the one to RESET itself.
        let kept = [
            Flags::UNIX_SOCKET,
            Flags::TLS,
            Flags::CLOSE_AFTER_REPLY,
            Flags::CLOSE_ASAP,
            Flags::CAPA_REDIRECT,
            Flags::REPLY_SKIP,
            Flags::TRANSACTED,
            Flags::HAS_AUTHENTICATED,
            Flags::DEBUGS,
            Flags::DEBUGS_SYNC,
        ];
        let mut flags = Flags::default();
        for flag in kept {
            flags.put(flag, self.flags.has(flag));
        }
        self.flags = flags;
        self.transaction = None;
        self.watches = None;
    }

    /// Whether a key that it watches changed.
    pub fn is_dirty(&self) -> bool {
        self.watches.as_ref().is_some_and(|watches| watches.is_dirty())
    }

    /// Commands that wait for EXEC, as CLIENT LIST counts them; -1 for a client that never had to do with transactions.
    fn queued_commands(&self) -> i64 {
        match (&self.tally, &self.transaction) {
            (Some(tally), _) => tally.queued,
            (None, Some(transaction)) => transaction.commands.len() as i64,
            (None, None) if self.flags.has(Flags::TRANSACTED) => 0,
            (None, None) => -1,
        }
    }

    /// What its transaction takes, bytes.
    fn queued_bytes(&self) -> usize {
        match (&self.tally, &self.transaction) {
            (Some(tally), _) => tally.queued_bytes,
            (None, Some(transaction)) => transaction.allocated_bytes(),
            (None, None) => 0,
        }
    }

    /// Keys that it watches; none once one of them changed.
    pub fn watched_keys(&self) -> usize {
        if let Some(tally) = &self.tally {
            return tally.watched;
        }
        let watches = self.watches.as_ref().filter(|watches| !watches.is_dirty());
        watches.map_or(0, |watches| watches.keys.len())
    }

    /// How many names of a kind it is subscribed to.
    pub fn subscribed(&self, kind: Kind) -> usize {
        self.subscriptions
            .as_ref()
            .map_or(0, |subscriptions| subscriptions.of(kind).len())
    }

    /// The client that gets its invalidation messages: 0 for itself, -1 for nobody.
    pub fn redirect(&self) -> i64 {
        self.tracking.as_ref().map_or(-1, |tracking| tracking.redirect as i64)
    }

    /// What CLIENT LIST and CLIENT KILL know it as under `TYPE`.
    pub fn kind(&self) -> ClientKind {
        if self.flags.has(Flags::PRIMARY) {
            ClientKind::Primary
        } else if self.flags.has(Flags::REPLICA) {
            ClientKind::Replica
        } else if self.flags.has(Flags::PUBSUB) {
            ClientKind::PubSub
        } else {
            ClientKind::Normal
        }
    }

    /// Seconds since it connected, as CLIENT LIST shows them: both times are cut to seconds first.
    pub fn age_s(&self, now_ms: u64) -> u64 {
        (now_ms / 1000).saturating_sub(self.created_ms / 1000)
    }

    /// Seconds since it was last heard or answered, counted in the same way.
    pub fn idle_s(&self, now_ms: u64) -> u64 {
        (now_ms / 1000).saturating_sub(self.last_interaction_ms / 1000)
    }

    /// The peer's address without port and brackets; the path of a Unix socket.
    pub fn ip(&self) -> &str {
        let host = self
            .address
            .rsplit_once(':')
            .map_or(self.address.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The letters of CLIENT LIST's `capa`.
    pub fn capability_letters(&self) -> &'static str {
        if self.flags.has(Flags::CAPA_REDIRECT) { "r" } else { "" }
    }

    /// The letters of CLIENT LIST's `flags`.
    pub fn flag_letters(&self) -> String {
        let letters = [
            (Flags::MONITOR, 'O'),
            (Flags::REPLICA, 'S'),
            (Flags::PRIMARY, 'M'),
            (Flags::PUBSUB, 'P'),
            (Flags::READONLY, 'r'),
            (Flags::MULTI, 'x'),
            (Flags::BLOCKED, 'b'),
            (TRACKING, 't'),
            (BROKEN_REDIRECT, 'R'),
            (BROADCAST, 'B'),
            (DIRTY, 'd'),
            (Flags::CLOSE_AFTER_REPLY, 'c'),
            (Flags::CLOSE_ASAP, 'A'),
            (Flags::UNIX_SOCKET, 'U'),
            (Flags::NO_EVICT, 'e'),
            (Flags::NO_TOUCH, 'T'),
            (Flags::IMPORT_SOURCE, 'I'),
        ];
        let mut flags = self.flags;
        flags.put(
            DIRTY,
            self.tally.as_ref().map_or(self.is_dirty(), |tally| tally.is_dirty),
        );
        if let Some(tracking) = &self.tracking {
            flags.put(TRACKING, true);
            flags.put(BROKEN_REDIRECT, tracking.broken_redirect);
            flags.put(BROADCAST, tracking.broadcast);
        }
        let set: String = letters
            .iter()
            .filter(|(flag, _)| flags.has(*flag))
            .map(|(_, letter)| letter)
            .collect();
        if set.is_empty() { "N".to_owned() } else { set }
    }

    /// The client's line of CLIENT LIST, without the newline.
    pub fn describe(&self, now_ms: u64, buffers: Buffers) -> Vec<u8> {
        let mut out = Vec::with_capacity(500);
        // Writing to a vector cannot fail.
        let _ = self.describe_identity(&mut out, now_ms);
        let _ = self.describe_buffers(&mut out, buffers);
        let _ = self.describe_program(&mut out);
        out
    }

    fn describe_identity(&self, out: &mut Vec<u8>, now_ms: u64) -> std::io::Result<()> {
        write!(
            out,
            "id={} addr={} laddr={} fd={} name=",
            self.id, self.address, self.local_address, self.fd
        )?;
        out.extend_from_slice(shown(&self.name));
        write!(
            out,
            " age={} idle={} flags={} capa={} db={} sub={} psub={} ssub={} multi={} watch={}",
            self.age_s(now_ms),
            self.idle_s(now_ms),
            self.flag_letters(),
            self.capability_letters(),
            self.db,
            self.subscribed(Kind::Channel),
            self.subscribed(Kind::Pattern),
            self.subscribed(Kind::ShardChannel),
            self.queued_commands(),
            self.watched_keys()
        )
    }

    /// There is one output buffer (`obl` of `rbs` bytes are used), and what the kernel does not take at once is
    /// counted as one list entry.
    fn describe_buffers(&self, out: &mut Vec<u8>, buffers: Buffers) -> std::io::Result<()> {
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
            if buffers.receiving { "r" } else { "" },
            if buffers.in_flight > 0 { "w" } else { "" },
        )
    }

    fn describe_program(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
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
        out.extend_from_slice(self.login.name());
        write!(out, " redir={} resp={resp} lib-name=", self.redirect())?;
        out.extend_from_slice(shown(&self.lib_name));
        out.extend_from_slice(b" lib-ver=");
        out.extend_from_slice(shown(&self.lib_version));
        write!(
            out,
            " tot-net-in={} tot-net-out={} tot-cmds={}",
            self.net_input_bytes, self.net_output_bytes, self.commands
        )
    }
}

/// What a name in one of a client's sets takes beside the name itself, bytes: its place, and its share of the set.
const PLACE_BYTES: usize = 64;

impl Client {
    /// What its watches, subscriptions and prefixes take, about, in bytes. Names that all clients share are not counted.
    pub fn held_bytes(&self) -> usize {
        let watched = self.watched_keys() * (size_of::<crate::clients_waiting::watch::Watch>() + PLACE_BYTES);
        let kinds = [Kind::Channel, Kind::Pattern, Kind::ShardChannel];
        let subscribed: usize = kinds.into_iter().map(|kind| self.subscribed(kind)).sum();
        let prefixes = self.tracking.as_ref().map_or(0, |tracking| tracking.prefixes.len());
        watched + (subscribed + prefixes) * PLACE_BYTES
    }

    /// Whether the peer is on this machine.
    pub fn is_local(&self) -> bool {
        let address = &self.address;
        self.flags.has(Flags::UNIX_SOCKET) || address.starts_with("127.") || address.starts_with("[::1]")
    }
}
