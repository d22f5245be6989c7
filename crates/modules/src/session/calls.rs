//! Commands that a module calls, and commands that it propagates.

use std::sync::Arc;

use libc::c_int;

use crate::objects::arguments::{CallFlags, CommandWords};
use crate::objects::context::Context;
use crate::objects::promise::Promise;

/// A command that a module calls.
pub struct CallRequest<'a> {
    /// For whom the module acts.
    pub context: &'a Context,
    /// The command.
    pub words: &'a CommandWords,
    /// How it is called.
    pub flags: CallFlags,
}

/// The result of a call.
pub enum CallOutcome {
    /// The command has replied with these bytes. After a dry run there are none.
    Replied(Vec<u8>),
    /// The command did not run.
    Refused(CallRefusal),
    /// The command is blocked.
    Blocked(Arc<Promise>),
}

/// The reason for which a command did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRefusal {
    /// The error number that the module sees.
    pub errno: CallErrno,
    /// The text of the error reply, which begins with a hyphen if it has a code. `None` if the module has not asked for
    /// one.
    pub text: Option<Vec<u8>>,
}

/// The text of a call that has no user to run as.
pub const NO_USER: &str = "cannot run as user, no user directly attached to context or context's client";

/// The error numbers of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallErrno {
    /// There is no such command (`ENOENT`).
    UnknownCommand,
    /// The command does not accept so many arguments (`EINVAL`).
    WrongArity,
    /// The context has no user (`ENOTSUP`).
    NoUser,
    /// The user may not run the command (`EACCES`).
    Denied,
    /// The command writes, or needs memory, and must not (`ENOSPC`).
    NotAllowed,
    /// Scripts may not run the command, or not at the moment (`ESPIPE`).
    NotForScripts,
    /// This node of the cluster does not have the keys (`EPERM`).
    ForeignKey,
    /// The cluster is down and only serves reads (`EROFS`).
    ClusterReadOnly,
    /// The cluster is down (`ENETDOWN`).
    ClusterDown,
}

impl CallErrno {
    /// Returns the number for the C library.
    pub fn number(self) -> c_int {
        match self {
            CallErrno::UnknownCommand => libc::ENOENT,
            CallErrno::WrongArity => libc::EINVAL,
            CallErrno::NoUser => libc::ENOTSUP,
            CallErrno::Denied => libc::EACCES,
            CallErrno::NotAllowed => libc::ENOSPC,
            CallErrno::NotForScripts => libc::ESPIPE,
            CallErrno::ForeignKey => libc::EPERM,
            CallErrno::ClusterReadOnly => libc::EROFS,
            CallErrno::ClusterDown => libc::ENETDOWN,
        }
    }
}

/// The consumers of a command that a module propagates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropagationTarget {
    /// `true` if it goes to the append-only file.
    pub aof: bool,
    /// `true` if it goes to replicas.
    pub replicas: bool,
}

impl PropagationTarget {
    /// All consumers.
    pub const ALL: PropagationTarget = PropagationTarget {
        aof: true,
        replicas: true,
    };

    /// Returns the consumers that the flags of a command leave.
    pub fn from_flags(flags: CallFlags) -> PropagationTarget {
        PropagationTarget {
            aof: !flags.contains(CallFlags::NO_AOF),
            replicas: !flags.contains(CallFlags::NO_REPLICAS),
        }
    }
}

/// What a thread may do with commands while a function of a module runs.
pub trait CallSession {
    /// Runs a command.
    fn call(&mut self, request: &CallRequest<'_>) -> CallOutcome;

    /// Returns `true` if a command can run as the user of this context.
    fn has_user(&self, context: &Context) -> bool;

    /// Takes back a call that is blocked, so that it never replies. Returns `false` if it is not blocked any more.
    fn abort_call(&mut self, promise: &Promise) -> bool;

    /// Propagates a command behind those that the running unit has propagated so far.
    fn replicate(&mut self, db: u32, words: &CommandWords, target: PropagationTarget);

    /// Propagates the command of the context's client as the client has sent it.
    fn replicate_verbatim(&mut self, context: &Context);
}

/// What any thread may ask about commands.
pub trait CallHost {
    /// Returns `true` if there is a command of this name.
    fn has_command(&self, name: &[u8]) -> bool;
}
