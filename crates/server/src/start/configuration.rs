//! Checks and applies what a configuration contains besides the values of parameters: users, renamed commands,
//! certificates and the locale. An error says which line is at fault, and what would be valid.

use crate::cluster_node::bus::bus_port;
use crate::commands::context::Binding;
use crate::commands::permission;
use crate::net::listeners::Listeners;
use crate::observability::log;
use crate::runtime::process::collation;
use weft_acl::{ADVICE_FOR_RULES, Acl, InvalidUserDirective, check_declarations};
use weft_command_table::registry::{Registry, RenameError};
use weft_config::{Config, StartError, id, similar_of};
use weft_tls::{TlsMaterial, TlsState, UnusableTlsConfig};

use super::StartFailure;

/// Applies and checks the directives of a configuration that are about commands.
pub(super) fn prepare_config(config: Config) -> Result<Config, StartError> {
    crate::commands::install_registry(renamed_commands(&config)?);
    check_users(&config)?;
    Ok(config)
}

/// Checks what a start would use besides the configuration: users, certificates and keys, the locale, the addresses of
/// this machine, and the directory of the Unix socket. Prints the result; the log goes to standard output.
pub(super) fn check_configured_files(config: &Config) -> Result<(), StartFailure> {
    load_users(&Acl::new(permission::command_catalogue()), config)?;
    read_tls_material(config)?;
    configure_collation(config)?;
    Listeners::check(config)?;
    if config.boolean(id::CLUSTER_ENABLED) {
        bus_port(config).map_err(|_| StartFailure)?;
    }
    println!("The configuration is valid.");
    Ok(())
}

/// Reads the certificates and keys, if TLS is configured.
pub(super) fn read_tls_material(config: &Config) -> Result<Option<TlsMaterial>, StartFailure> {
    if !TlsState::is_tls_configured(config) {
        return Ok(None);
    }
    TlsMaterial::read(config).map(Some).map_err(|UnusableTlsConfig| {
        log::warning!("Failed to configure TLS. Check logs for more info.");
        StartFailure
    })
}

/// A configured locale must exist; one that the environment names may be missing.
pub(super) fn configure_collation(config: &Config) -> Result<(), StartFailure> {
    let Err(collation::UnknownLocale) = collation::set_from_config(config) else {
        return Ok(());
    };
    if config.text(id::LOCALE_COLLATE).is_empty() {
        log::warning!("The system lacks the locale that the environment names: SORT ALPHA compares bytes.");
        return Ok(());
    }
    log::warning!("Failed to configure LOCALE for invalid locale name.");
    let valid = "a locale that this system has, as 'locale -a' lists them; \"\" is that of the environment";
    log::warning!("{}", config.advice(id::LOCALE_COLLATE, valid));
    Err(StartFailure)
}

/// Rejects a configuration with invalid `user` lines.
fn check_users(config: &Config) -> Result<(), StartError> {
    let directives = config.users();
    let lines: Vec<&[Vec<u8>]> = directives
        .iter()
        .map(|directive| directive.arguments.as_slice())
        .collect();
    let all_channels = config.choice(id::ACL_PUBSUB_DEFAULT) == "allchannels";
    check_declarations(&lines, &permission::command_catalogue(), all_channels).map_err(
        |InvalidUserDirective { line, reason }| {
            let advice = format!("user takes the name of a user and its rules. {ADVICE_FOR_RULES}");
            directives[line].error_with_advice(reason, advice)
        },
    )
}

/// Creates the users that the configuration, or the ACL file that it names, declares.
pub(super) fn load_users(acl: &Acl, config: &Config) -> Result<(), StartFailure> {
    acl.load_at_start(config).map_err(|reason| {
        log::warning!("{reason}");
        log::warning!("{}", reason.advice(config));
        if config.text(id::ACLFILE).is_empty() {
            log::warning!("Critical error while loading ACLs. Exiting.");
        }
        StartFailure
    })
}

/// Returns the commands under the names that `rename-command` gives them.
fn renamed_commands(config: &Config) -> Result<Registry<Binding>, StartError> {
    let mut commands = crate::commands::full_registry();
    for directive in config.renamed_commands() {
        let [from, to] = directive.arguments.as_slice() else {
            return Err(directive.error("wrong number of arguments"));
        };
        commands.rename(from, to).map_err(|error| {
            let reason = match error {
                RenameError::NoSuchCommand => "No such command in rename-command",
                RenameError::NameTaken => "Target command name already exists",
            };
            directive.error_with_advice(reason, advice_for_rename(error, from, to, &commands))
        })?;
    }
    Ok(commands)
}

/// Returns a sentence about a `rename-command` line that renames no command, or gives it a name that another one has.
fn advice_for_rename(error: RenameError, from: &[u8], to: &[u8], commands: &Registry<Binding>) -> String {
    let [from_text, to_text] = [from, to].map(String::from_utf8_lossy);
    if error == RenameError::NameTaken {
        return format!(
            "'{to_text}' is another command: choose a name that no command has, or \"\" to remove {from_text}."
        );
    }
    if !from.contains(&b'|') && commands.find_by_original_name(from).is_some() {
        return format!("An earlier line rename-command has given '{from_text}' another name: keep one of the lines.");
    }
    let names = commands.top_level().map(|command| command.full_name);
    match similar_of(&from.to_ascii_lowercase(), names) {
        Some(similar) => format!("There is no command '{from_text}'. Did you mean '{similar}'?"),
        None => format!("There is no command '{from_text}'; COMMAND LIST lists all of them. Remove the line."),
    }
}
