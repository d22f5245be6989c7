//! CONFIG.

use std::sync::Arc;
use std::time::Duration;

use super::module_parameters::{self, ModuleSetError};
use crate::commands::context::{BackgroundRun, BackgroundStep, Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::{CommandError, loading_error};
use crate::commands::scripting::script::busy_error;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::runtime::config_changes;
use crate::runtime::config_changes::ConfigSetError;
use crate::state::Server;
use weft_cluster::state::BusStatistics;
use weft_config::{
    ConfigChangeGuard, ConfigRewriteError, ModuleSetting, ParameterId, RewriteScope, RewrittenDirectives, SetError,
    SetPermissions, id,
};
use weft_modules::module::{Module, loading, parameters};
use weft_os::atomic::Ordering;

/// The subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("config|get", leased(get).with_module_parameters()),
    ("config|help", leased(help)),
    ("config|resetstat", leased(reset_statistics)),
    (
        "config|rewrite",
        leased(rewrite).with_config_change().with_module_parameters(),
    ),
    ("config|set", leased(set).with_config_change().with_module_parameters()),
];

/// The pause before a change is attempted again because another one is under way.
const CHANGE_RETRY_PAUSE: Duration = Duration::from_millis(1);

fn get(ctx: &mut Context<'_, '_>) -> CommandResult {
    let patterns: Vec<&[u8]> = ctx.args.iter().skip(2).collect();
    let mut found = ctx.server.config.matching_parameters(&patterns);
    if parameters::any_exist() {
        found.extend(module_parameters::matching(ctx, &patterns)?);
        found.sort();
    }
    ctx.reply.map(found.len());
    for (name, value) in found {
        ctx.reply.bulk(&name);
        ctx.reply.bulk(&value);
    }
    Ok(())
}

/// Executes CONFIG SET. Commands change parameters one after another. Applying the changes may open ports and files, so
/// it does not run on a worker.
fn set(ctx: &mut Context<'_, '_>) -> CommandResult {
    if !ctx.argc().is_multiple_of(2) {
        return Err(CommandError::SYNTAX);
    }
    let words: Vec<Vec<u8>> = ctx.args.iter().skip(2).map(<[u8]>::to_vec).collect();
    let pairs = pairs_of(&words);
    let permissions = SetPermissions {
        may_set_protected: match ctx.server.config.choice(id::ENABLE_PROTECTED_CONFIGS) {
            "yes" => true,
            "local" => ctx.client.is_local(),
            _ => false,
        },
        is_loading: ctx.server.persistence.dumps.is_loading.load(Ordering::Relaxed)
            || ctx.server.replication.is_loading(),
    };
    if module_parameters::are_named(&pairs) {
        return set_with_modules(ctx, &pairs, permissions);
    }
    let protocol = ctx.client.protocol;
    let may_wait = ctx.may_block;
    let server = ctx.server;
    let _change = begin_change_within_gate(server, may_wait)?;
    run_change(ctx, move |server| {
        let result = config_changes::set(server, &pairs_of(&words), permissions, may_wait);
        build_reply(protocol, |reply| match result {
            Ok(changed) => {
                changed
                    .iter()
                    .filter(|id| id.is_retired())
                    .for_each(warn_about_retired_parameter);
                reply.ok();
            }
            Err(error) => reply.error_bytes(&error_of(server, error).0),
        })
    })
}

/// Returns the pairs of name and value.
fn pairs_of(words: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    words.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1])).collect()
}

/// Returns the error reply to a CONFIG SET.
fn error_of(server: &Server, error: ConfigSetError) -> CommandError {
    match error {
        ConfigSetError::Refused(SetError::Loading) => loading_error(&server.config),
        ConfigSetError::Refused(SetError::Refused(text)) => CommandError::from_bytes([b"ERR ", &*text].concat()),
        ConfigSetError::ScriptBusy(script) => busy_error(&server.config, script.is_function),
    }
}

/// Sets parameters of modules, and of the server with them.
fn set_with_modules(ctx: &mut Context<'_, '_>, pairs: &[(&[u8], &[u8])], permissions: SetPermissions) -> CommandResult {
    let _change = module_parameters::begin_change(ctx, pairs)?;
    match module_parameters::set(ctx, pairs, permissions) {
        Ok(()) => {
            ctx.reply.ok();
            Ok(())
        }
        Err(ModuleSetError::Server(error)) => Err(error_of(ctx.server, error)),
        Err(ModuleSetError::Command(error)) => Err(error),
    }
}

/// The error of a change within the gate while another one is under way.
pub const CHANGE_UNDER_WAY: CommandError =
    CommandError::constant("TRYAGAIN Another client is changing the configuration");

/// Begins a change of the configuration that is made on this thread at once, within the gate. A change on a background
/// thread waits for its turn there.
///
/// # Errors
/// If another change is under way. A transaction has begun its change already, so this happens in scripts only.
fn begin_change_within_gate(server: &Server, may_wait: bool) -> Result<Option<ConfigChangeGuard<'_>>, CommandError> {
    if may_wait {
        return Ok(None);
    }
    let change = server.config.try_begin_change().ok_or(CHANGE_UNDER_WAY)?;
    Ok(Some(change))
}

/// Makes a change of the configuration, which returns the reply: on a background thread, or at once within the gate.
///
/// # Errors
/// The error of a change that was made at once.
fn run_change(
    ctx: &mut Context<'_, '_>,
    change: impl FnOnce(&Arc<Server>) -> Vec<u8> + Send + 'static,
) -> CommandResult {
    if ctx.may_block {
        ctx.run_in_background(change_in_turn(change));
        return Ok(());
    }
    ctx.run_without_keys(change)
}

/// Returns the work of a background thread that makes a change once no other one is under way. That one may wait for a
/// disk that does not answer. Until it ends, other long commands have the thread.
fn change_in_turn(change: impl FnOnce(&Arc<Server>) -> Vec<u8> + Send + 'static) -> BackgroundRun {
    Box::new(move |server, _| {
        let Some(_change) = server.config.try_begin_change() else {
            weft_os::thread::sleep(CHANGE_RETRY_PAUSE);
            return BackgroundStep::Continue(change_in_turn(change));
        };
        BackgroundStep::reply(change(server))
    })
}

fn warn_about_retired_parameter(id: &ParameterId) {
    let name = id.parameter().name;
    log::notice!("The parameter '{name}' is retired: its value is kept and changes nothing");
}

fn rewrite(ctx: &mut Context<'_, '_>) -> CommandResult {
    rewrite_with_scope(ctx, RewriteScope::ChangedOnly, "")
}

/// Executes DEBUG CONFIG-REWRITE-FORCE-ALL, which writes defaults to the file, too.
pub fn rewrite_all(ctx: &mut Context<'_, '_>) -> CommandResult {
    rewrite_with_scope(ctx, RewriteScope::All, "CONFIG-REWRITE-FORCE-ALL failed: ")
}

/// Rewrites the configuration file. Error texts begin with `error_prefix`.
fn rewrite_with_scope(ctx: &mut Context<'_, '_>, scope: RewriteScope, error_prefix: &'static str) -> CommandResult {
    if ctx.server.config.file().is_none() {
        return Err(CommandError::from_text(format!(
            "ERR {error_prefix}The server is running without a config file"
        )));
    }
    let protocol = ctx.client.protocol;
    let settings = module_parameters::for_file(ctx)?;
    let server = ctx.server;
    let _change = begin_change_within_gate(server, ctx.may_block)?;
    run_change(ctx, move |server| {
        let result = rewrite_file(server, scope, settings);
        build_reply(protocol, |reply| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(&format!("ERR {error_prefix}{error}")),
        })
    })
}

/// Rewrites the configuration file, and logs if it succeeded. `settings` are the parameters of modules. It waits for a
/// change that is under way: a caller within the gate has begun one itself.
///
/// # Errors
/// If the file cannot be written.
pub fn rewrite_file(
    server: &Server,
    scope: RewriteScope,
    settings: Vec<ModuleSetting>,
) -> Result<(), ConfigRewriteError> {
    // Begun before the users are read, so that a file with older users does not replace one with newer users.
    let _change = server.config.begin_change();
    let words = |module: &Arc<Module>| {
        let path = [module.path.clone().into_bytes()];
        path.into_iter().chain(module.args.lock().iter().cloned()).collect()
    };
    let directives = RewrittenDirectives {
        users: server.acl.describe_users(),
        modules: loading::loaded().iter().map(words).collect(),
        module_settings: settings,
    };
    let result = server.config.rewrite(&directives, scope);
    match &result {
        Ok(()) => log::notice!("CONFIG REWRITE executed with success."),
        Err(error) => log::warning!("CONFIG REWRITE failed: {error}"),
    }
    result
}

/// Counters that CONFIG RESETSTAT does not reset, because they describe a state or the age of the data, or are about
/// security.
const COUNTERS_NOT_RESET: &[Counter] = &[
    Counter::Dirty,
    Counter::BusyNs,
    Counter::DeniedAuth,
    Counter::DeniedCommand,
    Counter::DeniedKey,
    Counter::DeniedChannel,
    Counter::DeniedCertificate,
    Counter::DeniedDatabase,
];

fn reset_statistics(ctx: &mut Context<'_, '_>) -> CommandResult {
    let server = ctx.server;
    server.stats.metrics.reset_all_but(COUNTERS_NOT_RESET);
    server.stats.metrics.reset_commands();
    server.stats.slots.reset_all();
    server.stats.errors.reset();
    server.scripting.cache.reset_statistics();
    server.background.lazyfree.reset();
    server.replication.reset_statistics();
    server.persistence.reset_statistics();
    server.memory.reset_statistics();
    server.stats.defragmentation.reset();
    server.stats.history.rates.reset();
    if let Some(cluster) = &server.cluster {
        cluster.lock(&server.config).statistics = BusStatistics::default();
    }
    ctx.reply.ok();
    Ok(())
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "CONFIG",
        &[
            (
                "GET <pattern>",
                "Show parameters whose names match the glob-style <pattern>, with their values.",
            ),
            (
                "SET <directive> <value>",
                "Give the parameter <directive> the value <value>.",
            ),
            ("RESETSTAT", "Set the statistics that INFO reports back to zero."),
            ("REWRITE", "Bring the configuration file up to date."),
        ],
    )
}
