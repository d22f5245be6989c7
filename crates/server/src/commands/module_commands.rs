//! Commands of modules: how they join the registry, the rules of users and the statistics, and how they leave them.
//!
//! A module registers its commands while its load function runs. When that has succeeded, all of them become available
//! at once. Whoever loads or unloads a module holds exclusive mode, or there are no clients yet.

use weft_acl::CommandRule;
use weft_command_table::keys::CommandArguments;
use weft_command_table::registry::{AddCommandsError, Lookup, ModuleCommandBinding, Registry};
use weft_command_table::spec::CommandFlags;
use weft_modules::module::Module;
use weft_modules::module::command::ModuleCommand;
use weft_modules::session::Session;
use weft_modules::session::registry::is_home_thread;
use weft_os::sync::Mutex;
use weft_resp::Reply;

use super::context::{Binding, CommandResult, Context, build_reply, leased, module};
use super::error::{CommandError, printable_name};
use super::{permission, registry, replace_registry};
use crate::observability::log;
use crate::observability::metrics::Metrics;
use crate::state::Server;

/// Held while the registry is replaced.
static CHANGING: Mutex<()> = Mutex::new(());

/// Returns counters for the commands of the registry and those that modules may add, for `seats` threads.
pub fn new_metrics(seats: usize) -> Metrics {
    Metrics::new(
        seats,
        registry().built_in_count(),
        Registry::<Binding>::MAX_MODULE_COMMANDS,
    )
}

/// Makes the commands and ACL categories of a module available, or what it has added to their metadata since. Rules of
/// users that name them, or their categories, take effect.
///
/// # Errors
/// The reason for the log, if the registry cannot have these commands. Nothing has changed then.
pub fn publish(server: &Server, module: &Module) -> Result<(), String> {
    let _changing = CHANGING.lock();
    let name = module.name();
    let is_new = registry().module_commands(&name).next().is_none();
    let base = registry().without_module_commands(&name, leased(gone));
    let base = base.with_module_categories(&module.commands.categories());
    let bindings = bindings_of(&module.commands.all());
    let changed = base.with_module_commands(&bindings).map_err(|error| match error {
        AddCommandsError::NameTaken(command) => format!("Module {name}: another command is called {command}"),
        AddCommandsError::TooMany => format!(
            "Module {name}: modules have registered more than {} different commands",
            Registry::<Binding>::MAX_MODULE_COMMANDS
        ),
    })?;
    replace_registry(changed);
    if is_new {
        for command in registry().module_commands(&name) {
            server.stats.metrics.reset_command(usize::from(command.id));
        }
    }
    server.acl.replace_catalogue(permission::command_catalogue());
    Ok(())
}

/// Removes the commands of a module. Its ACL categories stay, because rules of users may name them.
pub fn remove(server: &Server, module: &str) {
    let _changing = CHANGING.lock();
    let ids: Vec<u16> = registry().module_commands(module).map(|command| command.id).collect();
    replace_registry(registry().without_module_commands(module, leased(gone)));
    for id in ids {
        server.stats.metrics.reset_command(usize::from(id));
    }
    server.acl.replace_catalogue(permission::command_catalogue());
}

/// Returns the bindings of top-level commands with their subcommands.
fn bindings_of(commands: &[&'static ModuleCommand]) -> Vec<ModuleCommandBinding<Binding>> {
    let bind = |command: &'static ModuleCommand, subcommands| ModuleCommandBinding {
        spec: command.leak_spec(),
        full_name: command.full_name,
        handler: match command.function {
            Some(_) => module(Some(command)),
            None => leased(subcommand_missing),
        },
        subcommands,
    };
    let of = |parent: Option<&'static ModuleCommand>| {
        commands
            .iter()
            .copied()
            .filter(move |command| match (command.parent, parent) {
                (None, None) => true,
                (Some(own), Some(parent)) => std::ptr::eq(own, parent),
                _ => false,
            })
    };
    let with_subcommands = |command| {
        bind(
            command,
            of(Some(command))
                .map(|subcommand| bind(subcommand, Vec::new()))
                .collect(),
        )
    };
    of(None).map(with_subcommands).collect()
}

/// Replies to a container that has no subcommands, or is called without one.
fn subcommand_missing(ctx: &mut Context<'_, '_>) -> CommandResult {
    Err(CommandError::from_text(format!(
        "ERR wrong number of arguments for '{}' command",
        ctx.command.full_name
    )))
}

/// Returns `true` if only the function of a module knows the keys or channels of this command, and it cannot be called
/// on this thread.
pub fn must_be_asked_at_home<Args: CommandArguments + ?Sized>(words: &Args) -> bool {
    let asks = CommandFlags::MODULE_GETKEYS.union(CommandFlags::MODULE_GETCHANNELS);
    match registry().lookup(words) {
        Lookup::Found(command) => command.spec.flags.intersects(asks) && !is_home_thread(),
        _ => false,
    }
}

/// Replies with what `write` writes on the home worker, where modules can be asked for the keys of their commands.
pub fn reply_at_home(ctx: &mut Context<'_, '_>, write: impl Fn(&Server, &mut Reply<'_>) + Clone + Send + 'static) {
    let protocol = ctx.client.protocol;
    ctx.reply_from_background(move |server, _| {
        let (host, write_there) = (server.clone(), write.clone());
        let there = move |_: &mut dyn Session| build_reply(protocol, |reply| write_there(&host, reply));
        let written = server.run_session_at_home_and_wait(there);
        written.unwrap_or_else(|| build_reply(protocol, |reply| write(server, reply)))
    });
}

/// Replies to a command that was queued before its module was unloaded.
fn gone(ctx: &mut Context<'_, '_>) -> CommandResult {
    Err(CommandError::with_word(
        "ERR unknown command '",
        printable_name(ctx.arg(0)),
        "'",
    ))
}

/// Returns `true`, and logs it, if a rule of a user names a command of the module.
pub fn has_rules_about(server: &Server, module: &Module) -> bool {
    let name = module.name();
    let accounts = server.acl.accounts();
    let users = accounts.iter().map(|account| account.rules());
    let rule = users.into_iter().find_map(|user| {
        let mut rules = user.rules_about_commands();
        rules.find(|rule| is_about(rule, &name)).cloned()
    });
    if let Some(rule) = &rule {
        log::warning!(
            "Module {name} unload blocked: An ACL user has reference to rule '{}{}'",
            if rule.allows { '+' } else { '-' },
            String::from_utf8_lossy(&rule.name)
        );
    }
    rule.is_some()
}

/// Returns `true` if a rule names a command of the module, or a first argument of one.
fn is_about(rule: &CommandRule, module: &str) -> bool {
    let registry = registry();
    let container = rule.name.split(|byte| *byte == b'|').next().unwrap_or_default();
    let command = registry.find_by_original_name(&rule.name);
    let command = command.or_else(|| registry.find_by_original_name(container));
    command.is_some_and(|command| command.spec.module == module)
}
