//! What a command asks for, and why it does not get it.

/// What is done with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Nothing that concerns the data: whoever may do anything with the key may do this.
    pub const NONE: Access = Access(0);
    /// Data comes out of it.
    pub const READ: Access = Access(1);
    /// Data is added, changed or deleted.
    pub const WRITE: Access = Access(2);
    /// Both.
    pub const BOTH: Access = Access(3);

    /// Both of two.
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// What stands before a pattern of keys.
    pub(super) fn prefix(self) -> &'static [u8] {
        match self {
            Access::READ => b"%R~",
            Access::WRITE => b"%W~",
            _ => b"~",
        }
    }
}

/// How an argument names channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelUse {
    /// It is a channel.
    Name,
    /// It is a pattern of channels.
    Pattern,
}

/// What a command asks for. Arguments are counted with the command's name as the first, 0.
pub trait AccessRequest {
    /// The command.
    fn command(&self) -> super::CommandId;
    /// Whether everybody may use the command, if not every key and database.
    fn is_for_everybody(&self) -> bool;
    /// The argument behind the name of the command, or of the subcommand.
    fn first_argument(&self) -> Option<&[u8]>;
    /// Whether it acts on every database there is.
    fn needs_all_databases(&self) -> bool;
    /// The databases that it uses, each with the argument that names it; 0 for the client's own.
    fn each_database(&self, visit: &mut dyn FnMut(usize, usize));
    /// The keys.
    fn each_key(&self, visit: &mut dyn FnMut(usize, Access, &[u8]));
    /// The channels that it subscribes to or publishes on.
    fn each_channel(&self, visit: &mut dyn FnMut(usize, ChannelUse, &[u8]));
}

/// Why something is refused. Of several selectors' reasons the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A database is not allowed.
    Database,
    /// The command is not.
    Command,
    /// A key is not.
    Key,
    /// A channel is not.
    Channel,
    /// A login failed.
    Auth,
    /// A client's certificate names nobody who may log in.
    Certificate,
}

impl Reason {
    /// How ACL LOG names it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Command => "command",
            Reason::Database => "database",
            Reason::Key => "key",
            Reason::Channel => "channel",
            Reason::Auth => "auth",
            Reason::Certificate => "tls-cert",
        }
    }
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Why.
    pub reason: Reason,
    /// The argument at fault; 0 for the command itself.
    pub argument: usize,
}

impl Denial {
    pub(super) fn because(reason: Reason, argument: Option<usize>) -> Result<(), Denial> {
        match argument {
            None => Ok(()),
            Some(argument) => Err(Denial { reason, argument }),
        }
    }
}
