//! The commands that clients can use. The registry binds handlers to metadata and finds a command by its name.
//!
//! Every request looks up a command, so a name is never lower-cased, copied or compared byte by byte. It becomes two
//! words, its first and its last eight bytes in lower case (for shorter names one word holds all bytes), which together
//! with the length *are* the name up to 16 bytes:
//!
//! ```text
//! "ZUnionStore"   head "zunionst"   tail "ionstore"   length 11
//! "get"           head  g e t       tail 0            length 3
//! ```
//!
//! Head, tail and length are mixed into a hash. The table uses open addressing: a slot holds all three and the
//! command's id, so most lookups read one cache line and compare three numbers. Longer names are also compared in full.
//! No command of one word has such a name, but a rename may give it one.
//!
//! Names belong to the index, not to the command: `rename-command` moves an index entry and does not change the
//! command. In replies and statistics the command keeps its original name, as in Valkey.
//!
//! Modules add and remove commands while the server runs ([`modules`]): each change makes a new registry that shares
//! the commands of the one before, and the names of all commands that are not of modules.

use std::sync::Arc;

use super::spec::CommandSpec;
use super::tables::TABLES;
use crate::keys::CommandArguments;

mod modules;

pub use modules::{AddCommandsError, ModuleCategory, ModuleCommandBinding};

/// A command or subcommand that clients can use.
#[derive(Debug)]
pub struct Command<H: 'static> {
    /// The metadata.
    pub spec: &'static CommandSpec,
    /// The handler. Only a container that cannot be called on its own (CONFIG) has none: its arity of -2 rejects such a
    /// call before a handler is needed.
    pub handler: Option<H>,
    /// The position in [`Registry::commands`]. Ids are dense and start at 0, so they serve as indexes for statistics
    /// and ACL bits.
    pub id: u16,
    /// The full name, such as `get` or `config|get`.
    pub full_name: &'static str,
    /// The ids of the subcommands.
    pub subcommand_ids: Box<[u16]>,
    /// The subcommands by name; empty if there are none.
    subcommand_index: NameIndex,
    /// `true` if the first word of a request names the command.
    is_named_by_one_word: bool,
}

impl<H> Command<H> {
    /// Returns `true` if the second word names a subcommand.
    pub fn is_container(&self) -> bool {
        !self.subcommand_ids.is_empty()
    }

    /// Returns `true` if the first word of a request names the command: it is neither a container nor a subcommand.
    #[inline]
    pub fn is_named_by_one_word(&self) -> bool {
        self.is_named_by_one_word
    }
}

/// The result of looking up a request's command.
#[derive(Debug)]
pub enum Lookup<H: 'static> {
    /// The command. Its arity is not checked yet: see [`CommandSpec::accepts_arg_count`].
    Found(&'static Command<H>),
    /// No command has the first word as its name.
    UnknownCommand,
    /// The first word names a container, and the second word none of its subcommands.
    UnknownSubcommand {
        /// The container.
        parent: &'static Command<H>,
    },
}

/// The reason why a command was not renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameError {
    /// No command has that name, or only a subcommand has it.
    NoSuchCommand,
    /// Another command has the new name.
    NameTaken,
}

/// All commands that have a handler.
///
/// Commands live as long as the process, so plans, statistics and queued transactions may keep references to them.
#[derive(Debug)]
pub struct Registry<H: 'static> {
    commands: Vec<&'static Command<H>>,
    /// Top-level commands by the names that clients use, without those of modules.
    index: NameIndex,
    /// Top-level commands by their original names, for ACL rules and for commands that the server itself runs, without
    /// those of modules.
    original_index: NameIndex,
    /// Top-level commands of modules. Their names cannot be changed.
    module_index: NameIndex,
    /// The number of commands that are not those of modules. Theirs are the ids from here on.
    built_in_count: usize,
    /// The full names, in lower case, of the commands that modules have had, with their ids. A command that comes back
    /// gets the same id.
    module_ids: Vec<(String, u16)>,
    /// The ACL categories that modules have added. They stay when the module is unloaded, because users have them.
    module_categories: Vec<ModuleCategory>,
}

impl<H: Copy> Registry<H> {
    /// Binds handlers to the rows of the metadata tables; a subcommand is written `container|name`.
    ///
    /// A container need not be bound. Commands are numbered in the order of their full names.
    ///
    /// # Panics
    ///
    /// If a name has no metadata row, if a name is bound twice, or if a container without a handler has an arity other
    /// than -2. The bindings are part of the program, so each of these is a bug.
    pub fn new(bindings: &[(&'static str, H)]) -> Registry<H> {
        let mut bindings = bindings.to_vec();
        bindings.sort_unstable_by_key(|(name, _)| *name);
        if let Some(pair) = bindings.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            panic!("command {} is bound twice", pair[0].0);
        }
        let mut rows: Vec<&'static CommandSpec> = TABLES.iter().copied().flatten().collect();
        rows.sort_unstable_by_key(|spec| spec.name);

        let mut registry = Registry {
            commands: Vec::new(),
            index: NameIndex::default(),
            original_index: NameIndex::default(),
            module_index: NameIndex::default(),
            built_in_count: 0,
            module_ids: Vec::new(),
            module_categories: Vec::new(),
        };
        let mut names = Vec::new();
        let mut bound = 0;
        for spec in rows {
            let handler = find_handler(&bindings, spec.name);
            let subcommands: Vec<_> = bindings
                .iter()
                .filter_map(|(name, handler)| Some((name.strip_prefix(spec.name)?.strip_prefix('|')?, name, *handler)))
                .collect();
            if handler.is_some() || !subcommands.is_empty() {
                names.push((spec.name.as_bytes().to_vec(), registry.commands.len() as u16));
                bound += usize::from(handler.is_some()) + subcommands.len();
                registry.add_command(spec, handler, &subcommands);
            }
        }
        assert_eq!(bound, bindings.len(), "a binding names a command that has no metadata");
        registry.index = NameIndex::new(names);
        registry.original_index = registry.index.clone();
        registry.built_in_count = registry.commands.len();
        registry
    }

    /// Adds a command and, directly after it, its subcommands.
    fn add_command(
        &mut self,
        spec: &'static CommandSpec,
        handler: Option<H>,
        subcommands: &[(&str, &&'static str, H)],
    ) {
        assert!(
            handler.is_some() || spec.arity == -2,
            "container {} can be called on its own and needs a handler",
            spec.name
        );
        let id = self.commands.len() as u16;
        let first = id + 1;
        let names = subcommands
            .iter()
            .zip(first..)
            .map(|((name, ..), id)| (name.as_bytes().to_vec(), id));
        let parent: &'static Command<H> = Box::leak(Box::new(Command {
            spec,
            handler,
            id,
            full_name: spec.name,
            subcommand_ids: (first..).take(subcommands.len()).collect(),
            subcommand_index: NameIndex::new(names.collect()),
            is_named_by_one_word: subcommands.is_empty(),
        }));
        self.commands.push(parent);
        for (name, full_name, handler) in subcommands {
            let Some(spec) = spec.subcommands.iter().find(|spec| spec.name == *name) else {
                panic!("subcommand {full_name} has no metadata");
            };
            let id = self.commands.len() as u16;
            self.commands.push(Box::leak(Box::new(Command {
                spec,
                handler: Some(*handler),
                id,
                full_name,
                subcommand_ids: Box::default(),
                subcommand_index: NameIndex::default(),
                is_named_by_one_word: false,
            })));
        }
    }
}

impl<H> Registry<H> {
    /// Finds the command that the words of a request name.
    #[inline]
    pub fn lookup<Args: CommandArguments + ?Sized>(&self, args: &Args) -> Lookup<H> {
        let Some(command) = self.command(args.arg(0)) else {
            return Lookup::UnknownCommand;
        };
        if !command.is_container() || args.len() < 2 {
            return Lookup::Found(command);
        }
        match self.subcommand(command, args.arg(1)) {
            Some(subcommand) => Lookup::Found(subcommand),
            None => Lookup::UnknownSubcommand { parent: command },
        }
    }

    /// Returns the top-level command that clients call `name`, in any case.
    #[inline]
    pub fn command(&self, name: &[u8]) -> Option<&'static Command<H>> {
        self.top_level_command(&self.index, name)
    }

    /// Returns the top-level command that has that name in `index` or is one of a module, in any case.
    #[inline]
    fn top_level_command(&self, index: &NameIndex, name: &[u8]) -> Option<&'static Command<H>> {
        let id = index.find(name).or_else(|| self.module_index.find(name))?;
        self.commands.get(usize::from(id)).copied()
    }

    /// Returns the subcommand of `container` with that name, in any case.
    pub fn subcommand(&self, container: &Command<H>, name: &[u8]) -> Option<&'static Command<H>> {
        let id = container.subcommand_index.find(name)?;
        self.commands.get(usize::from(id)).copied()
    }

    /// Returns the command with that full name, such as `get` or `config|get`, in any case.
    pub fn find_by_full_name(&self, full_name: &[u8]) -> Option<&'static Command<H>> {
        self.find_in_index(&self.index, full_name)
    }

    /// Returns the command that had that full name before commands were renamed, in any case.
    pub fn find_by_original_name(&self, full_name: &[u8]) -> Option<&'static Command<H>> {
        self.find_in_index(&self.original_index, full_name)
    }

    fn find_in_index(&self, index: &NameIndex, full_name: &[u8]) -> Option<&'static Command<H>> {
        let mut words = full_name.split(|byte| *byte == b'|');
        let command = self.top_level_command(index, words.next()?)?;
        match (words.next(), words.next()) {
            (None, _) => Some(command),
            (Some(name), None) => self.subcommand(command, name),
            (Some(_), Some(_)) => None,
        }
    }

    /// Returns every command and subcommand by id, including disabled ones. An id whose command is gone with its module
    /// has a command without a name.
    pub fn commands(&self) -> &[&'static Command<H>] {
        &self.commands
    }

    /// Returns the top-level commands that clients can call, by id.
    pub fn top_level(&self) -> impl Iterator<Item = &'static Command<H>> + Clone {
        let names = self.index.names.iter().chain(self.module_index.names.iter());
        names.map(|(_, id)| self.commands[usize::from(*id)])
    }

    /// Returns the subcommands of `container`, by id.
    pub fn subcommands(&self, container: &Command<H>) -> Vec<&'static Command<H>> {
        let ids = container.subcommand_ids.iter();
        ids.filter_map(|id| self.commands.get(usize::from(*id)).copied())
            .collect()
    }

    /// Gives a command another name, or removes it if the new name is empty.
    ///
    /// # Errors
    ///
    /// If there is no such top-level command, or if another command has the new name. In the second case the old name
    /// is removed nevertheless, because the server refuses to start with such a configuration.
    pub fn rename(&mut self, name: &[u8], new_name: &[u8]) -> Result<(), RenameError> {
        let id = self.index.find(name).ok_or(RenameError::NoSuchCommand)?;
        let mut names = self.index.names.to_vec();
        names.retain(|(_, other)| *other != id);
        let is_taken = names.iter().any(|(other, _)| other.eq_ignore_ascii_case(new_name));
        if !is_taken && !new_name.is_empty() {
            names.push((new_name.to_ascii_lowercase(), id));
            names.sort_unstable_by_key(|(_, id)| *id);
        }
        self.index = NameIndex::new(names);
        if is_taken { Err(RenameError::NameTaken) } else { Ok(()) }
    }
}

fn find_handler<H: Copy>(bindings: &[(&'static str, H)], name: &str) -> Option<H> {
    let position = bindings.binary_search_by_key(&name, |(bound, _)| *bound).ok()?;
    Some(bindings[position].1)
}

/// An open-addressing hash table from names to ids. Copies share it.
#[derive(Clone, Default, Debug)]
struct NameIndex {
    /// The slots. Their number is zero or a power of two, and at most a quarter of them is used.
    slots: Arc<[NameSlot]>,
    /// The names in lower case with their ids, by id.
    names: Arc<[(Vec<u8>, u16)]>,
}

#[derive(Clone, Copy, Debug)]
struct NameSlot {
    name: PackedName,
    id: u16,
    /// The index into `names`, for comparing a name that is too long to be packed.
    position: u16,
}

impl NameSlot {
    /// A free slot. No name is empty, so a length of zero marks it.
    const FREE: NameSlot = NameSlot {
        name: PackedName {
            head: 0,
            tail: 0,
            len: 0,
        },
        id: 0,
        position: 0,
    };

    fn is_free(&self) -> bool {
        self.name.len == 0
    }
}

impl NameIndex {
    /// Indexes names in lower case. No name may be empty or occur twice.
    fn new(names: Vec<(Vec<u8>, u16)>) -> NameIndex {
        if names.is_empty() {
            return NameIndex::default();
        }
        let mut slots = vec![NameSlot::FREE; (names.len() * 4).next_power_of_two()];
        for ((name, id), position) in names.iter().zip(0..) {
            let packed = PackedName::pack(name);
            assert!(packed.len != 0, "a command has an empty name");
            let mut bucket = packed.hash() & (slots.len() - 1);
            while !slots[bucket].is_free() {
                bucket = (bucket + 1) & (slots.len() - 1);
            }
            slots[bucket] = NameSlot {
                name: packed,
                id: *id,
                position,
            };
        }
        NameIndex {
            slots: slots.into(),
            names: names.into(),
        }
    }

    /// Returns the id of `name`, in any case.
    #[inline]
    fn find(&self, name: &[u8]) -> Option<u16> {
        let packed = PackedName::pack(name);
        let mask = self.slots.len().wrapping_sub(1);
        let mut bucket = packed.hash() & mask;
        loop {
            let slot = self.slots.get(bucket)?;
            if slot.is_free() {
                return None;
            }
            if slot.name == packed && (name.len() <= 16 || self.is_name(slot, name)) {
                return Some(slot.id);
            }
            bucket = (bucket + 1) & mask;
        }
    }

    #[cold]
    fn is_name(&self, slot: &NameSlot, name: &[u8]) -> bool {
        self.names[usize::from(slot.position)].0.eq_ignore_ascii_case(name)
    }
}

/// A name in lower case: all its bytes up to 16 bytes, otherwise its first and last eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PackedName {
    head: u64,
    tail: u64,
    len: usize,
}

impl PackedName {
    #[inline]
    fn pack(name: &[u8]) -> PackedName {
        let len = name.len();
        let (head, tail) = if let (Some(head), Some(tail)) = (name.first_chunk(), name.last_chunk()) {
            (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
        } else if let (Some(head), Some(tail)) = (name.first_chunk(), name.last_chunk()) {
            (
                u64::from(u32::from_le_bytes(*head)) | u64::from(u32::from_le_bytes(*tail)) << 32,
                0,
            )
        } else if let [first, .., last] = name {
            (
                u64::from(*first) | u64::from(name[len / 2]) << 8 | u64::from(*last) << 16,
                0,
            )
        } else {
            (name.first().map_or(0, |byte| u64::from(*byte)), 0)
        };
        PackedName {
            head: to_lower_case(head),
            tail: to_lower_case(tail),
            len,
        }
    }

    #[inline]
    fn hash(&self) -> usize {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.head ^ self.tail.rotate_left(23) ^ self.len as u64).wrapping_mul(MULTIPLIER);
        (mixed ^ mixed >> 29) as usize >> 8
    }
}

/// Lower-cases the ASCII letters among eight bytes at once.
#[inline]
fn to_lower_case(bytes: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    let low_bits = bytes & !HIGH;
    let from_a = low_bits + (0x80 - u64::from(b'A')) * EACH;
    let above_z = low_bits + (0x80 - u64::from(b'Z') - 1) * EACH;
    let is_upper = from_a & !above_z & !bytes & HIGH;
    bytes | is_upper >> 2
}

#[cfg(test)]
mod tests;
