//! The permissions that a command requires, and the reasons for denial.

use weft_base::DbIndex;

bitflags::bitflags! {
    /// The kinds of access to a key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyAccess: u8 {
        /// Reads data.
        const READ = 1;
        /// Adds, changes or deletes data.
        const WRITE = 2;
        /// Reads and writes.
        const BOTH = 3;
    }
}

impl KeyAccess {
    /// Returns the prefix of a key pattern in a rule.
    pub(super) fn prefix(self) -> &'static [u8] {
        match self {
            KeyAccess::READ => b"%R~",
            KeyAccess::WRITE => b"%W~",
            _ => b"~",
        }
    }
}

/// The meaning of a channel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelUse {
    /// A channel.
    Name,
    /// A pattern of channels.
    Pattern,
}

/// The permissions that a command requires. Argument indexes count from the command name, which is 0.
pub trait AccessRequest {
    /// Returns the id of the command.
    fn command(&self) -> super::CommandId;
    /// Returns `true` if every user may execute the command, although not with every key and database.
    fn is_always_allowed(&self) -> bool;
    /// Returns the first argument after the name of the command or subcommand.
    fn first_arg(&self) -> Option<&[u8]>;
    /// Returns the number of databases if the command acts on all of them.
    fn all_databases(&self) -> Option<usize>;
    /// Calls `visit` for each database used, with the index of the argument that names it; 0 for the client's own
    /// database.
    fn each_database(&self, visit: &mut dyn FnMut(usize, DbIndex));
    /// Calls `visit` for each key.
    fn each_key(&self, visit: &mut dyn FnMut(usize, KeyAccess, &[u8]));
    /// Calls `visit` for each channel that the command subscribes to or publishes to.
    fn each_channel(&self, visit: &mut dyn FnMut(usize, ChannelUse, &[u8]));
}

/// The reason for a denial. Of the reasons of several selectors, the greatest is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DenialReason {
    /// A database is not allowed.
    Database,
    /// The command is not allowed.
    Command,
    /// A key is not allowed.
    Key,
    /// A channel is not allowed.
    Channel,
    /// An authentication failed.
    Auth,
    /// A client certificate names no user that may log in.
    Certificate,
}

impl DenialReason {
    /// Returns its name in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            DenialReason::Command => "command",
            DenialReason::Database => "database",
            DenialReason::Key => "key",
            DenialReason::Channel => "channel",
            DenialReason::Auth => "auth",
            DenialReason::Certificate => "tls-cert",
        }
    }
}

/// A denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The reason.
    pub reason: DenialReason,
    /// The index of the denied argument; 0 for the command itself.
    pub argument: usize,
}

impl Denial {
    pub(super) fn from_argument(reason: DenialReason, argument: Option<usize>) -> Result<(), Denial> {
        match argument {
            None => Ok(()),
            Some(argument) => Err(Denial { reason, argument }),
        }
    }
}
