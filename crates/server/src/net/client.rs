//! What the server knows of one client; owned by the worker that serves its connection.

use std::fmt::Write as _;

use weft_resp::Protocol;

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

/// One client.
pub struct Client {
    /// Unique, ascending.
    pub id: u64,
    /// Selected database.
    pub db: usize,
    /// RESP2 until HELLO 3.
    pub protocol: Protocol,
    /// Whether commands other than AUTH, HELLO, QUIT and RESET are allowed.
    pub authenticated: bool,
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
    /// Commands it sent.
    pub commands: u64,
    /// Index of the worker that owns it.
    pub worker: usize,
}

/// Buffer figures that only the connection knows, for CLIENT LIST.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    /// Unprocessed input, bytes.
    pub input: usize,
    /// Room left in the input buffer, bytes.
    pub input_free: usize,
    /// Arguments of the command under way, bytes.
    pub arguments: usize,
    /// Output not yet taken by the kernel, bytes.
    pub output: usize,
    /// All of it, bytes.
    pub total: usize,
}

impl Client {
    /// A new client in database 0.
    pub fn new(id: u64, now_ms: u64, worker: usize) -> Self {
        Client {
            id,
            db: 0,
            protocol: Protocol::Resp2,
            authenticated: false,
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
            worker,
        }
    }

    /// What handlers may read of a client, for a command that runs away from its worker. How replies are
    /// suppressed stays with the client itself.
    pub fn view(&self) -> Client {
        let mut view = Client::new(self.id, self.created_ms, self.worker);
        view.db = self.db;
        view.protocol = self.protocol;
        view.authenticated = self.authenticated;
        view.name.clone_from(&self.name);
        view.address.clone_from(&self.address);
        view.flags = self.flags;
        let reply_switches = [Flags::REPLY_OFF, Flags::REPLY_SKIP, Flags::REPLY_SKIP_NEXT];
        view.flags.put(reply_switches.into_iter().fold(Flags::default(), Flags::with), false);
        view
    }

    /// Back to how it was when it connected (RESET), but for the connection itself.
    pub fn reset(&mut self, authenticated: bool) {
        self.db = 0;
        self.protocol = Protocol::Resp2;
        self.authenticated = authenticated;
        self.name.clear();
        let kept = [Flags::UNIX_SOCKET, Flags::CLOSE_AFTER_REPLY, Flags::CLOSE_ASAP];
        let mut flags = Flags::default();
        for flag in kept {
            flags.put(flag, self.flags.has(flag));
        }
        self.flags = flags;
    }

    /// The letters of CLIENT LIST's `flags`.
    pub fn flag_letters(&self) -> String {
        let letters = [
            (Flags::BLOCKED, 'b'),
            (Flags::CLOSE_AFTER_REPLY, 'c'),
            (Flags::CLOSE_ASAP, 'A'),
            (Flags::UNIX_SOCKET, 'U'),
            (Flags::NO_EVICT, 'e'),
            (Flags::NO_TOUCH, 'T'),
            (Flags::IMPORT_SOURCE, 'I'),
        ];
        let set: String = letters
            .iter()
            .filter(|(flag, _)| self.flags.has(*flag))
            .map(|(_, letter)| letter)
            .collect();
        if set.is_empty() { "N".to_owned() } else { set }
    }

    /// The client's line of CLIENT LIST, without the newline.
    pub fn describe(&self, now_ms: u64, buffers: Buffers) -> Vec<u8> {
        let mut line = String::with_capacity(400);
        let seconds = |since: u64| now_ms.saturating_sub(since) / 1000;
        let mut out = Vec::with_capacity(500);
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name=",
            self.id, self.address, self.local_address, self.fd
        );
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(&self.name);
        line.clear();
        let command = if self.last_command.is_empty() {
            "NULL"
        } else {
            self.last_command
        };
        let resp = match self.protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        };
        let _ = write!(
            line,
            " age={} idle={} flags={} capa={} db={} sub=0 psub=0 ssub=0 multi=-1 watch=0 qbuf={} \
             qbuf-free={} argv-mem={} multi-mem=0 rbs={} rbp=0 obl={} oll=0 omem=0 tot-mem={} events=r cmd={} \
             user=default redir=-1 resp={} lib-name=",
            seconds(self.created_ms),
            seconds(self.last_interaction_ms),
            self.flag_letters(),
            if self.flags.has(Flags::CAPA_REDIRECT) { "r" } else { "" },
            self.db,
            buffers.input,
            buffers.input_free,
            buffers.arguments,
            buffers.output,
            buffers.output,
            buffers.total,
            command,
            resp,
        );
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(&self.lib_name);
        out.extend_from_slice(b" lib-ver=");
        out.extend_from_slice(&self.lib_version);
        line.clear();
        let _ = write!(
            line,
            " tot-net-in={} tot-net-out={} tot-cmds={}",
            self.net_input_bytes, self.net_output_bytes, self.commands
        );
        out.extend_from_slice(line.as_bytes());
        out
    }
}
