//! The events of the server, as the server describes them.

use std::sync::Arc;

use crate::module::Module;
use crate::session::clients::ClientInfo;

/// The kinds of events (`VALKEYMODULE_EVENT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// This server has become a primary or a replica.
    ReplicationRoleChanged = 0,
    /// A dump, or the append-only file, is written.
    Persistence = 1,
    /// A database is emptied.
    FlushDb = 2,
    /// Data are loaded.
    Loading = 3,
    /// A client has connected or disconnected.
    ClientChange = 4,
    /// The server ends.
    Shutdown = 5,
    /// A replica is online or offline.
    ReplicaChange = 6,
    /// The link to the primary is up or down.
    PrimaryLinkChange = 7,
    /// The regular tasks of the server run.
    CronLoop = 8,
    /// Another module was loaded or unloaded.
    ModuleChange = 9,
    /// A part of the data was loaded.
    LoadingProgress = 10,
    /// Two databases were swapped.
    SwapDb = 11,
    /// The background task of a dump has begun or ended.
    ForkChild = 13,
    /// A replica loads the data of its primary beside its own.
    AsyncLoading = 14,
    /// The home worker sleeps, or has slept.
    EventLoop = 15,
    /// Parameters of the configuration have changed.
    Config = 16,
    /// A key is removed.
    Key = 17,
    /// A client has tried to authenticate.
    AuthenticationAttempt = 18,
    /// A slot migration has begun or ended.
    AtomicSlotMigration = 19,
    /// A command has succeeded.
    CommandSucceeded = 20,
    /// A command has failed.
    CommandFailed = 21,
    /// A command was refused.
    CommandRejected = 22,
    /// A command was refused because the client lacks a permission.
    CommandDenied = 23,
}

/// The number behind the last kind.
pub const KINDS: u64 = 24;

impl EventKind {
    /// All kinds.
    pub const ALL: [EventKind; 23] = [
        EventKind::ReplicationRoleChanged,
        EventKind::Persistence,
        EventKind::FlushDb,
        EventKind::Loading,
        EventKind::ClientChange,
        EventKind::Shutdown,
        EventKind::ReplicaChange,
        EventKind::PrimaryLinkChange,
        EventKind::CronLoop,
        EventKind::ModuleChange,
        EventKind::LoadingProgress,
        EventKind::SwapDb,
        EventKind::ForkChild,
        EventKind::AsyncLoading,
        EventKind::EventLoop,
        EventKind::Config,
        EventKind::Key,
        EventKind::AuthenticationAttempt,
        EventKind::AtomicSlotMigration,
        EventKind::CommandSucceeded,
        EventKind::CommandFailed,
        EventKind::CommandRejected,
        EventKind::CommandDenied,
    ];

    /// Returns `true` if there is a sub-event with this number, as modules may ask. Valkey counts a negative number
    /// among those of most kinds, and knows none of authentication, of slot migrations, and of commands that have run.
    pub fn has_sub_event(self, number: i64) -> bool {
        match self {
            EventKind::Persistence => number < 6,
            EventKind::Loading | EventKind::CommandDenied => number < 5,
            EventKind::Key => number < 4,
            EventKind::AsyncLoading => number < 3,
            EventKind::ReplicationRoleChanged
            | EventKind::FlushDb
            | EventKind::ClientChange
            | EventKind::ReplicaChange
            | EventKind::PrimaryLinkChange
            | EventKind::ModuleChange
            | EventKind::LoadingProgress
            | EventKind::ForkChild
            | EventKind::EventLoop => number < 2,
            EventKind::Config => number < 1,
            EventKind::CommandRejected => number == 0,
            EventKind::Shutdown | EventKind::CronLoop | EventKind::SwapDb => number < 0,
            EventKind::AuthenticationAttempt
            | EventKind::AtomicSlotMigration
            | EventKind::CommandSucceeded
            | EventKind::CommandFailed => false,
        }
    }

    /// Returns the newest version of the data of a kind. Any version is accepted of a kind without data.
    pub fn version(self) -> u64 {
        match self {
            EventKind::Persistence
            | EventKind::Loading
            | EventKind::Shutdown
            | EventKind::ReplicaChange
            | EventKind::PrimaryLinkChange
            | EventKind::ForkChild
            | EventKind::AsyncLoading
            | EventKind::EventLoop
            | EventKind::Config => u64::MAX,
            _ => 1,
        }
    }
}

/// A step of writing a dump or the append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceStep {
    /// A dump is written in the background.
    RdbStart = 0,
    /// The append-only file is rewritten in the background.
    AofStart = 1,
    /// A dump is written while clients wait.
    SyncRdbStart = 2,
    /// It is written.
    Ended = 3,
    /// It could not be written.
    Failed = 4,
    /// The append-only file is written while clients wait.
    SyncAofStart = 5,
}

/// A step of loading data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadingStep {
    /// A dump is loaded.
    RdbStart = 0,
    /// The append-only file is loaded.
    AofStart = 1,
    /// The data of the primary are loaded.
    ReplicationStart = 2,
    /// They are loaded.
    Ended = 3,
    /// They could not be loaded.
    Failed = 4,
}

/// A step of loading the data of the primary beside those of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncLoadingStep {
    /// It begins.
    Started = 0,
    /// It has failed.
    Aborted = 1,
    /// The data have replaced those of the replica.
    Completed = 2,
}

/// A step of a slot migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMigrationStep {
    /// This node begins to get the slots.
    ImportStarted = 0,
    /// This node begins to give the slots away.
    ExportStarted = 1,
    /// This node does not get them.
    ImportAborted = 2,
    /// This node keeps them.
    ExportAborted = 3,
    /// This node has got them.
    ImportCompleted = 4,
    /// This node has given them away.
    ExportCompleted = 5,
}

/// The reason why a key is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRemoval {
    /// A command deletes it.
    Deleted = 0,
    /// It has expired.
    Expired = 1,
    /// It is evicted.
    Evicted = 2,
    /// Another value takes its place.
    Overwritten = 3,
}

/// The replication of this server.
#[derive(Clone, Debug, Default)]
pub struct ReplicationInfo {
    /// `true` if it is a primary.
    pub is_primary: bool,
    /// The name and port of its primary, if it is a replica.
    pub primary: Option<(String, u16)>,
    /// Its replication id.
    pub id: String,
    /// The replication id of its earlier primary.
    pub second_id: String,
    /// Its replication offset.
    pub offset: u64,
    /// The offset up to which the second id is valid.
    pub second_offset: i64,
}

/// The end of a command.
#[derive(Clone, Debug)]
pub struct CommandResult {
    /// The full name of the command; `None` if there is no such command.
    pub name: Option<&'static str>,
    /// How it has ended.
    pub end: ReportedEnd,
    /// The time for which it has run, in microseconds.
    pub duration_us: u64,
    /// The number of changes that it has made.
    pub changes: u64,
    /// The id of its client.
    pub client_id: u64,
    /// `true` if a module has called it.
    pub is_from_module: bool,
    /// Its words.
    pub words: Vec<Box<[u8]>>,
}

/// How a command has ended.
#[derive(Clone, Debug)]
pub enum ReportedEnd {
    /// It has run without an error.
    Succeeded,
    /// It has run, and replied with an error.
    Failed,
    /// It was refused with this error reply, without the line end; `None` if its keys belong to another node.
    Rejected(Option<Vec<u8>>),
    /// The client lacks a permission: the reason, as the ACL log numbers it, and the key or channel.
    Denied(u64, Option<Vec<u8>>),
}

/// An event.
#[derive(Clone)]
pub enum ServerEvent {
    /// This server has become a primary or a replica.
    RoleChanged(Box<ReplicationInfo>),
    /// A dump, or the append-only file, is written.
    Persistence(PersistenceStep),
    /// A database is about to be emptied, or was emptied; all of them if `db` is `None`.
    Flush {
        /// `true` after it.
        has_ended: bool,
        /// `true` if the memory is freed before the reply.
        is_sync: bool,
        /// The database.
        db: Option<u32>,
    },
    /// Data are loaded.
    Loading(LoadingStep),
    /// A client has connected, or disconnects.
    ClientChanged {
        /// `true` if it has connected.
        is_connected: bool,
        /// The client.
        client: Box<ClientInfo>,
    },
    /// The server ends.
    Shutdown,
    /// A replica is online, or offline.
    ReplicaChanged {
        /// `true` if it is online.
        is_online: bool,
    },
    /// The link to the primary is up, or down.
    PrimaryLinkChanged {
        /// `true` if it is up.
        is_up: bool,
    },
    /// The regular tasks run.
    CronLoop {
        /// How often in a second.
        hz: i32,
    },
    /// A module was loaded or unloaded. It does not get the event itself.
    ModuleChanged {
        /// `true` if it was loaded.
        is_loaded: bool,
        /// The module.
        module: Arc<Module>,
    },
    /// A part of the data was loaded.
    LoadingProgress {
        /// `true` for a dump, `false` for the append-only file.
        is_rdb: bool,
        /// How often in a second the regular tasks run.
        hz: i32,
        /// The part of the data, from 0 to 1024; -1 if unknown.
        progress: i32,
    },
    /// Two databases were swapped.
    Swapped(u32, u32),
    /// The background task of a dump has begun, or ended.
    ForkChild {
        /// `true` if it has begun.
        is_born: bool,
    },
    /// The data of the primary are loaded beside those of this replica.
    AsyncLoading(AsyncLoadingStep),
    /// The home worker is about to sleep, or has slept.
    EventLoop {
        /// `true` if it has slept.
        has_slept: bool,
    },
    /// Parameters of the configuration have changed.
    ConfigChanged(Vec<String>),
    /// A key is removed. It is still there.
    KeyRemoved {
        /// The reason.
        removal: KeyRemoval,
        /// The database.
        db: u32,
        /// The key.
        key: Box<[u8]>,
    },
    /// A client has tried to authenticate.
    Authenticated {
        /// The id of the client.
        client_id: u64,
        /// The user.
        user: Vec<u8>,
        /// The name of the module that has decided.
        module: Option<Arc<str>>,
        /// `true` if it has succeeded.
        is_granted: bool,
    },
    /// A slot migration has begun or ended.
    SlotMigration {
        /// What has happened.
        step: SlotMigrationStep,
        /// The name of the migration.
        name: [u8; 40],
        /// The first and last slot of each range.
        ranges: Vec<(u16, u16)>,
    },
    /// A command has ended.
    CommandEnded(Box<CommandResult>),
}

impl ServerEvent {
    /// Returns its kind and the number of its sub-event.
    pub(super) fn number(&self) -> (EventKind, u64) {
        let first_if = |is_first: bool| u64::from(!is_first);
        match self {
            ServerEvent::RoleChanged(info) => (EventKind::ReplicationRoleChanged, first_if(info.is_primary)),
            ServerEvent::Persistence(step) => (EventKind::Persistence, *step as u64),
            ServerEvent::Flush { has_ended, .. } => (EventKind::FlushDb, u64::from(*has_ended)),
            ServerEvent::Loading(step) => (EventKind::Loading, *step as u64),
            ServerEvent::ClientChanged { is_connected, .. } => (EventKind::ClientChange, first_if(*is_connected)),
            ServerEvent::Shutdown => (EventKind::Shutdown, 0),
            ServerEvent::ReplicaChanged { is_online } => (EventKind::ReplicaChange, first_if(*is_online)),
            ServerEvent::PrimaryLinkChanged { is_up } => (EventKind::PrimaryLinkChange, first_if(*is_up)),
            ServerEvent::CronLoop { .. } => (EventKind::CronLoop, 0),
            ServerEvent::ModuleChanged { is_loaded, .. } => (EventKind::ModuleChange, first_if(*is_loaded)),
            ServerEvent::LoadingProgress { is_rdb, .. } => (EventKind::LoadingProgress, first_if(*is_rdb)),
            ServerEvent::Swapped(..) => (EventKind::SwapDb, 0),
            ServerEvent::ForkChild { is_born } => (EventKind::ForkChild, first_if(*is_born)),
            ServerEvent::AsyncLoading(step) => (EventKind::AsyncLoading, *step as u64),
            ServerEvent::EventLoop { has_slept } => (EventKind::EventLoop, u64::from(*has_slept)),
            ServerEvent::ConfigChanged(_) => (EventKind::Config, 0),
            ServerEvent::KeyRemoved { removal, .. } => (EventKind::Key, *removal as u64),
            ServerEvent::Authenticated { .. } => (EventKind::AuthenticationAttempt, 0),
            ServerEvent::SlotMigration { step, .. } => (EventKind::AtomicSlotMigration, *step as u64),
            ServerEvent::CommandEnded(result) => match &result.end {
                ReportedEnd::Succeeded => (EventKind::CommandSucceeded, 0),
                ReportedEnd::Failed => (EventKind::CommandFailed, 0),
                ReportedEnd::Rejected(_) => (EventKind::CommandRejected, 0),
                ReportedEnd::Denied(reason, _) => (EventKind::CommandDenied, *reason),
            },
        }
    }
}
