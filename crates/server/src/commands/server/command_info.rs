//! The replies of COMMAND and its subcommands: the commands' metadata in the form that clients see.
//!
//! They show only commands that have a handler. Lists of all commands are those of Valkey: Weft's own commands are
//! shown under their names only, like its own parameters. Each function writes one complete reply. It gets all words of
//! the request, so that the first name of `COMMAND INFO get` is word 2.

use weft_resp::{Reply, glob};

use weft_command_table::keys::{CommandArguments, KeyPosition, walk_keys};
use weft_command_table::registry::{Command, Lookup, Registry};
use weft_command_table::spec::{ArgSpec, ArgType, BeginSearch, CommandFlags, CommandSpec, FindKeys, KeySpec};

/// Returns the top-level commands that lists of all commands show.
fn listed_commands<H>(registry: &Registry<H>) -> impl Iterator<Item = &'static Command<H>> + Clone {
    registry.top_level().filter(|command| !command.spec.is_weft_only)
}

/// Replies to COMMAND: describes every command.
pub fn all<H>(registry: &Registry<H>, out: &mut Reply<'_>) {
    out.array(listed_commands(registry).count());
    for command in listed_commands(registry) {
        reply_command_info(registry, command, out);
    }
}

/// Replies to COMMAND COUNT: the number of commands without subcommands.
pub fn count<H>(registry: &Registry<H>, out: &mut Reply<'_>) {
    out.integer(listed_commands(registry).count() as i64);
}

/// Replies to COMMAND INFO: describes the named commands, or all.
pub fn info<H, Args: CommandArguments + ?Sized>(registry: &Registry<H>, args: &Args, out: &mut Reply<'_>) {
    if args.len() <= 2 {
        return all(registry, out);
    }
    out.array(args.len() - 2);
    for index in 2..args.len() {
        match registry.find_by_full_name(args.arg(index)) {
            Some(command) => reply_command_info(registry, command, out),
            None => out.null(),
        }
    }
}

/// Replies to COMMAND DOCS: the documentation of the named commands except unknown ones, or of all.
pub fn docs<H, Args: CommandArguments + ?Sized>(registry: &Registry<H>, args: &Args, out: &mut Reply<'_>) {
    let commands: Vec<&Command<H>> = if args.len() <= 2 {
        listed_commands(registry).collect()
    } else {
        (2..args.len())
            .filter_map(|index| registry.find_by_full_name(args.arg(index)))
            .collect()
    };
    out.map(commands.len());
    for command in commands {
        out.bulk(command.full_name.as_bytes());
        reply_command_docs(registry, command, out);
    }
}

/// Replies to COMMAND LIST: the names of all commands and subcommands that match the filter, if there is one.
pub fn list<H, Args: CommandArguments + ?Sized>(registry: &Registry<H>, args: &Args, out: &mut Reply<'_>) {
    let Some(filter) = CommandListFilter::parse(args) else {
        return out.error("ERR syntax error");
    };
    let is_listed = |command: &&Command<H>| match filter {
        CommandListFilter::None => true,
        CommandListFilter::Module(name) => !name.is_empty() && command.spec.module.as_bytes() == name,
        CommandListFilter::Category(name) => {
            let category = registry.category(name);
            category.is_some_and(|category| command.spec.acl_categories.intersects(category))
        }
        CommandListFilter::Pattern(pattern) => glob::matches(pattern, command.full_name.as_bytes(), true),
    };
    let with_subcommands = |command| std::iter::once(command).chain(registry.subcommands(command));
    let listed: Vec<&Command<H>> = listed_commands(registry)
        .flat_map(with_subcommands)
        .filter(is_listed)
        .collect();
    out.array(listed.len());
    for command in listed {
        out.bulk(command.full_name.as_bytes());
    }
}

/// The filter of COMMAND LIST.
enum CommandListFilter<'a> {
    None,
    /// Only the commands of the module of this name.
    Module(&'a [u8]),
    /// Only the commands in a category. An unknown category is the empty set.
    Category(&'a [u8]),
    Pattern(&'a [u8]),
}

impl<'a> CommandListFilter<'a> {
    fn parse<Args: CommandArguments + ?Sized>(args: &'a Args) -> Option<CommandListFilter<'a>> {
        match args.len() {
            0..=2 => return Some(CommandListFilter::None),
            5 if args.arg(2).eq_ignore_ascii_case(b"filterby") => {}
            _ => return None,
        }
        let (kind, value) = (args.arg(3), args.arg(4));
        if kind.eq_ignore_ascii_case(b"module") {
            Some(CommandListFilter::Module(value))
        } else if kind.eq_ignore_ascii_case(b"aclcat") {
            Some(CommandListFilter::Category(value))
        } else if kind.eq_ignore_ascii_case(b"pattern") {
            Some(CommandListFilter::Pattern(value))
        } else {
            None
        }
    }
}

/// Replies to COMMAND GETKEYS: the keys of the command that follows.
pub fn keys<H, Args: CommandArguments + ?Sized>(registry: &Registry<H>, args: &Args, out: &mut Reply<'_>) {
    reply_keys(registry, args, out, |request, key, out| {
        out.bulk(request.arg(key.index))
    });
}

/// Replies to COMMAND GETKEYSANDFLAGS: the keys of the command that follows, and the use that it makes of each.
pub fn keys_and_flags<H, Args: CommandArguments + ?Sized>(registry: &Registry<H>, args: &Args, out: &mut Reply<'_>) {
    reply_keys(registry, args, out, |request, key, out| {
        out.array(2);
        out.bulk(request.arg(key.index));
        reply_names(key.flags.names(), out);
    });
}

/// The words after COMMAND GETKEYS, as a request.
struct QuotedCommand<'a, Args: ?Sized>(&'a Args);

impl<Args: CommandArguments + ?Sized> CommandArguments for QuotedCommand<'_, Args> {
    fn len(&self) -> usize {
        self.0.len().saturating_sub(2)
    }

    fn arg(&self, index: usize) -> &[u8] {
        self.0.arg(index + 2)
    }
}

fn reply_keys<H, Args: CommandArguments + ?Sized>(
    registry: &Registry<H>,
    args: &Args,
    out: &mut Reply<'_>,
    reply_key: impl Fn(&QuotedCommand<'_, Args>, KeyPosition, &mut Reply<'_>),
) {
    let request = QuotedCommand(args);
    let Lookup::Found(command) = registry.lookup(&request) else {
        return out.error("ERR Invalid command specified");
    };
    let spec = command.spec;
    if !spec.may_have_keys() {
        return out.error("ERR The command has no key arguments");
    }
    if !spec.accepts_arg_count(request.len()) {
        return out.error("ERR Invalid number of arguments specified for command");
    }
    let count = walk_keys(spec, &request, &mut |_| ());
    if count == 0 && !spec.flags.contains(CommandFlags::NO_MANDATORY_KEYS) {
        return out.error("ERR Invalid arguments specified for command");
    }
    out.array(count);
    walk_keys(spec, &request, &mut |key| reply_key(&request, key, out));
}

/// The reply of COMMAND HELP.
pub const HELP: &[&str] = &[
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the total number of commands in this server.",
    "LIST",
    "    Return a list of all commands in this server.",
    "INFO [<command-name> ...]",
    "    Return details about multiple commands.",
    "    If no command names are given, documentation details for all",
    "    commands are returned.",
    "DOCS [<command-name> ...]",
    "    Return documentation details about multiple commands.",
    "    If no command names are given, documentation details for all",
    "    commands are returned.",
    "GETKEYS <full-command>",
    "    Return the keys from a full command.",
    "GETKEYSANDFLAGS <full-command>",
    "    Return the keys and the access flags from a full command.",
    "HELP",
    "    Print this help.",
];

/// Writes one row of COMMAND INFO.
fn reply_command_info<H>(registry: &Registry<H>, command: &Command<H>, out: &mut Reply<'_>) {
    let spec = command.spec;
    out.array(10);
    out.bulk(command.full_name.as_bytes());
    out.integer(i64::from(spec.arity));
    reply_names(spec.flags.names(), out);
    out.integer(i64::from(spec.legacy_range.first));
    out.integer(i64::from(spec.legacy_range.last));
    out.integer(i64::from(spec.legacy_range.step));
    reply_categories(&registry.category_names(spec.acl_categories), out);
    out.set(spec.tips.len());
    for tip in spec.tips {
        out.bulk(tip.as_bytes());
    }
    out.set(spec.key_specs.len());
    for key_spec in spec.key_specs {
        reply_key_spec(key_spec, out);
    }
    let subcommands = registry.subcommands(command);
    out.array(subcommands.len());
    for subcommand in subcommands {
        reply_command_info(registry, subcommand, out);
    }
}

fn reply_names(names: impl Iterator<Item = &'static str> + Clone, out: &mut Reply<'_>) {
    out.set(names.clone().count());
    for name in names {
        out.simple(name);
    }
}

fn reply_categories(names: &[&str], out: &mut Reply<'_>) {
    out.set(names.len());
    for name in names {
        out.simple(&format!("@{name}"));
    }
}

fn reply_key_spec(spec: &KeySpec, out: &mut Reply<'_>) {
    out.map(3 + usize::from(!spec.notes.is_empty()));
    reply_field_unless_empty("notes", spec.notes, out);
    out.bulk(b"flags");
    reply_names(spec.flags.names(), out);
    out.bulk(b"begin_search");
    match spec.begin {
        BeginSearch::Index(index) => reply_search_rule("index", &[("index", index)], out),
        BeginSearch::Unknown => reply_search_rule("unknown", &[], out),
        BeginSearch::Keyword { keyword, start_from } => {
            out.map(2);
            reply_field("type", "keyword", out);
            out.bulk(b"spec");
            out.map(2);
            reply_field("keyword", keyword, out);
            out.bulk(b"startfrom");
            out.integer(i64::from(start_from));
        }
    }
    out.bulk(b"find_keys");
    match spec.find {
        FindKeys::Range { last, step, limit } => {
            reply_search_rule("range", &[("lastkey", last), ("keystep", step), ("limit", limit)], out);
        }
        FindKeys::KeyNum { index, first, step } => {
            reply_search_rule(
                "keynum",
                &[("keynumidx", index), ("firstkey", first), ("keystep", step)],
                out,
            );
        }
        FindKeys::Unknown => reply_search_rule("unknown", &[], out),
    }
}

/// Writes the type of a search and its numbers.
fn reply_search_rule(kind: &str, numbers: &[(&str, i32)], out: &mut Reply<'_>) {
    out.map(2);
    reply_field("type", kind, out);
    out.bulk(b"spec");
    out.map(numbers.len());
    for (name, number) in numbers {
        out.bulk(name.as_bytes());
        out.integer(i64::from(*number));
    }
}

fn reply_field(name: &str, value: &str, out: &mut Reply<'_>) {
    out.bulk(name.as_bytes());
    out.bulk(value.as_bytes());
}

fn reply_field_unless_empty(name: &str, value: &str, out: &mut Reply<'_>) {
    if !value.is_empty() {
        reply_field(name, value, out);
    }
}

/// Writes the value of one command in COMMAND DOCS.
fn reply_command_docs<H>(registry: &Registry<H>, command: &Command<H>, out: &mut Reply<'_>) {
    let spec = command.spec;
    let subcommands = registry.subcommands(command);
    // Only commands of modules lack a summary or a version.
    let fields = [
        !spec.summary.is_empty(),
        !spec.since.is_empty(),
        !spec.complexity.is_empty(),
        !spec.module.is_empty(),
        has_doc_flags(spec),
        !spec.deprecated_since.is_empty(),
        !spec.replaced_by.is_empty(),
        !spec.history.is_empty(),
        !spec.args.is_empty(),
        !subcommands.is_empty(),
    ];
    out.map(1 + fields.into_iter().filter(|is_present| *is_present).count());
    reply_field_unless_empty("summary", spec.summary, out);
    reply_field_unless_empty("since", spec.since, out);
    reply_field("group", spec.group.name(), out);
    reply_field_unless_empty("complexity", spec.complexity, out);
    reply_field_unless_empty("module", spec.module, out);
    reply_doc_flags(spec, out);
    reply_field_unless_empty("deprecated_since", spec.deprecated_since, out);
    reply_field_unless_empty("replaced_by", spec.replaced_by, out);
    if !spec.history.is_empty() {
        out.bulk(b"history");
        out.set(spec.history.len());
        for (version, change) in spec.history {
            out.array(2);
            out.bulk(version.as_bytes());
            out.bulk(change.as_bytes());
        }
    }
    if !spec.args.is_empty() {
        out.bulk(b"arguments");
        reply_args(spec.args, out);
    }
    if !subcommands.is_empty() {
        out.bulk(b"subcommands");
        out.map(subcommands.len());
        for subcommand in subcommands {
            out.bulk(subcommand.full_name.as_bytes());
            reply_command_docs(registry, subcommand, out);
        }
    }
}

fn has_doc_flags(spec: &CommandSpec) -> bool {
    !spec.deprecated_since.is_empty() || spec.is_internal
}

fn reply_doc_flags(spec: &CommandSpec, out: &mut Reply<'_>) {
    if !has_doc_flags(spec) {
        return;
    }
    let flags = [
        (!spec.deprecated_since.is_empty(), "deprecated"),
        (spec.is_internal, "syscmd"),
    ];
    out.bulk(b"doc_flags");
    let present = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name);
    reply_names(present, out);
}

fn reply_args(args: &[ArgSpec], out: &mut Reply<'_>) {
    out.array(args.len());
    for arg in args {
        reply_arg(arg, out);
    }
}

/// Returns `true` if the argument has a keyword. A pure token's keyword is shown even if it is empty.
fn has_token(arg: &ArgSpec) -> bool {
    !arg.token.is_empty() || arg.kind == ArgType::PureToken
}

fn reply_arg(arg: &ArgSpec, out: &mut Reply<'_>) {
    let has_flags = arg.is_optional || arg.is_multiple || arg.repeats_token;
    let fields = [
        arg.key_spec_index >= 0,
        has_token(arg),
        !arg.summary.is_empty(),
        !arg.since.is_empty(),
        !arg.deprecated_since.is_empty(),
        has_flags,
    ];
    // Name, type, and either the display text or the nested arguments are always present.
    out.map(3 + fields.into_iter().filter(|is_present| *is_present).count());
    reply_field("name", arg.name, out);
    reply_field("type", arg.kind.name(), out);
    if !arg.kind.is_nested() {
        reply_field("display_text", arg.display_text, out);
    }
    if arg.key_spec_index >= 0 {
        out.bulk(b"key_spec_index");
        out.integer(i64::from(arg.key_spec_index));
    }
    if has_token(arg) {
        reply_field("token", arg.token, out);
    }
    reply_field_unless_empty("summary", arg.summary, out);
    reply_field_unless_empty("since", arg.since, out);
    reply_field_unless_empty("deprecated_since", arg.deprecated_since, out);
    if has_flags {
        let flags = [
            (arg.is_optional, "optional"),
            (arg.is_multiple, "multiple"),
            (arg.repeats_token, "multiple_token"),
        ];
        out.bulk(b"flags");
        reply_names(
            flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name),
            out,
        );
    }
    if arg.kind.is_nested() {
        out.bulk(b"arguments");
        reply_args(arg.args, out);
    }
}

#[cfg(test)]
mod tests;
