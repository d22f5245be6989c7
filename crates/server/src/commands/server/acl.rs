//! ACL: the users, their rules, and the log of denied access.
//!
//! Commands that narrow permissions run in exclusive mode. For the reason see the essay of [`weft_acl`].

use std::sync::Arc;

use weft_resp::Reply;
use weft_resp::number::parse_i64;

use crate::commands::context::{Binding, CommandResult, Context, build_reply, exclusive, leased};
use crate::commands::error::{CommandError, c_string_prefix, printable_name};
use crate::commands::permission::CommandPermission;
use crate::commands::scripting::script::busy_reply_of_run;
use crate::commands::{module_commands, permission};
use crate::net::client::ClientFlags;
use crate::observability::log;
use crate::state::{Message, Server};
use weft_acl::{AclAccount, LogEntry, Selector, has_blanks, random_digits};
use weft_base::{ClientId, DbIndex};
use weft_command_table::registry::Lookup;
use weft_config::id;

/// The subcommands of ACL and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("acl|cat", leased(cat)),
    ("acl|deluser", exclusive(delete_users)),
    ("acl|dryrun", leased(dry_run)),
    ("acl|genpass", leased(generate_password)),
    ("acl|getuser", leased(user)),
    ("acl|help", leased(help)),
    ("acl|list", leased(list)),
    ("acl|load", leased(load).with_undeclared_keys()),
    ("acl|log", leased(log_entries)),
    ("acl|save", leased(save)),
    ("acl|setuser", exclusive(set_user)),
    ("acl|users", leased(users)),
    ("acl|whoami", leased(who_am_i)),
];

/// The largest size of a generated password, in bits.
const MAX_PASSWORD_BITS: i64 = 4096;
/// The default size of a generated password, in bits.
const DEFAULT_PASSWORD_BITS: i64 = 256;
/// The default number of log entries shown.
const DEFAULT_LOG_ENTRIES: i64 = 10;

const NO_ACL_FILE_ERROR: CommandError = CommandError::constant(
    "ERR This instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER command \
     and then issue a CONFIG REWRITE (assuming you have a configuration file set) in order to store users in the \
     configuration.",
);

/// Returns the error of a subcommand with too many words.
fn wrong_argument_count(ctx: &Context<'_, '_>) -> CommandError {
    let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
    text.extend_from_slice(printable_name(ctx.arg(1)));
    text.extend_from_slice(b"'. Try ACL HELP.");
    CommandError::from_bytes(text)
}

// ---- users ------------------------------------------------------------------------------------------------

fn set_user(ctx: &mut Context<'_, '_>) -> CommandResult {
    let name = ctx.arg(2);
    if has_blanks(name) {
        return Err(CommandError::constant(
            "ERR Usernames can't contain spaces or null characters",
        ));
    }
    let rules: Vec<&[u8]> = ctx.args.iter().skip(3).collect();
    let server = ctx.server;
    let narrowed = server
        .acl
        .set_user(name, &rules, &server.config)
        .map_err(|text| CommandError::from_bytes([b"ERR ", &*text].concat()))?;
    disconnect_unauthorized(server, narrowed.into_iter().collect(), None);
    ctx.reply.ok();
    Ok(())
}

fn delete_users(ctx: &mut Context<'_, '_>) -> CommandResult {
    let names = || ctx.args.iter().skip(2);
    if names().any(|name| c_string_prefix(name) == weft_acl::DEFAULT_USER) {
        return Err(CommandError::constant("ERR The 'default' user cannot be removed"));
    }
    let deleted = ctx.server.acl.delete_users(names());
    let is_deleted = |account: &Arc<AclAccount>| Arc::ptr_eq(account, ctx.client.login.account());
    if deleted.iter().any(is_deleted) {
        // The reply is still sent.
        ctx.client.login = ctx.server.acl.new_login().deauthenticated();
        ctx.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
    }
    disconnect_unauthorized(ctx.server, Vec::new(), None);
    ctx.reply.integer(deleted.len() as i64);
    Ok(())
}

/// Disconnects the clients whose users are deleted, wherever their connections are, and subscribers whose users have
/// lost channels. `changed_by` is the client that waits for the reply to this change.
pub fn disconnect_unauthorized(server: &Server, lost_channels: Vec<Arc<AclAccount>>, changed_by: Option<ClientId>) {
    // No subscriber is among them.
    server.close_links_of_deleted_users();
    let lost_channels: Arc<[Arc<AclAccount>]> = lost_channels.into();
    for worker in &server.workers {
        worker.send(Message::UsersChanged {
            lost_channels: lost_channels.clone(),
            changed_by,
        });
    }
}

fn user(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(account) = ctx.server.acl.account(ctx.arg(2)) else {
        ctx.reply.null();
        return Ok(());
    };
    let user = account.rules();
    let reply = &mut ctx.reply;
    reply.map(7);
    reply.bulk(b"flags");
    let flags = user.flag_names();
    reply.set(flags.len());
    for flag in flags {
        reply.bulk(flag.as_bytes());
    }
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    for hash in user.passwords() {
        reply.bulk(hash.digits().as_bytes());
    }
    reply_selector(reply, user.root());
    reply.bulk(b"selectors");
    reply.array(user.selectors().len());
    for selector in user.selectors() {
        reply.map(4);
        reply_selector(reply, selector);
    }
    Ok(())
}

/// Writes the four fields of a selector with their values.
fn reply_selector(reply: &mut Reply<'_>, selector: &Selector) {
    reply.bulk(b"commands");
    reply.bulk(&selector.describe_commands());
    reply.bulk(b"keys");
    reply.bulk(&selector.describe_keys());
    reply.bulk(b"channels");
    reply.bulk(&selector.describe_channels());
    reply.bulk(b"databases");
    reply.bulk(selector.describe_databases().as_bytes());
}

fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    let users = ctx.server.acl.describe_users();
    ctx.reply.array(users.len());
    for user in users {
        ctx.reply.bulk(&[b"user ", &*user].concat());
    }
    Ok(())
}

fn users(ctx: &mut Context<'_, '_>) -> CommandResult {
    let accounts = ctx.server.acl.accounts();
    ctx.reply.array(accounts.len());
    for account in accounts {
        ctx.reply.bulk(account.name());
    }
    Ok(())
}

fn who_am_i(ctx: &mut Context<'_, '_>) -> CommandResult {
    // A call of a module for no user.
    match ctx.client.login.is_superuser() {
        true => ctx.reply.null(),
        false => ctx.reply.bulk(ctx.client.login.name()),
    }
    Ok(())
}

// ---- the file ---------------------------------------------------------------------------------------------

/// Replaces the users by those in the file, in exclusive mode: that of the transaction, if it is a part of one.
/// Otherwise a background thread reads the file before that mode, because a slow file would stop the server, and reads
/// it again if users are saved meanwhile, which would be lost.
fn load(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.server.config.text(id::ACLFILE).is_empty() {
        return Err(NO_ACL_FILE_ERROR);
    }
    let wrong = |errors: Vec<u8>| CommandError::from_bytes([b"ERR ", &*errors].concat());
    if !ctx.may_block {
        let narrowed = ctx.server.acl.load_file(&ctx.server.config).map_err(wrong)?;
        if ctx.client.login.account().is_deleted() {
            ctx.client.login = ctx.server.acl.new_login().deauthenticated();
            ctx.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
        }
        disconnect_unauthorized(ctx.server, narrowed, None);
        ctx.reply.ok();
        return Ok(());
    }
    let (protocol, client) = (ctx.client.protocol, ctx.client.id);
    ctx.reply_from_background(move |server, seat| {
        loop {
            let users = match server.acl.read_file_users(&server.config) {
                Ok(users) => users,
                Err(errors) => return build_reply(protocol, |reply| reply.error_bytes(&wrong(errors).0)),
            };
            match server.run_exclusive_for_client(seat, |_| server.acl.install_file_users(users)) {
                Err(run) => return busy_reply_of_run(&server.config, &run),
                Ok(None) => {}
                Ok(Some(narrowed)) => {
                    disconnect_unauthorized(server, narrowed, Some(client));
                    return build_reply(protocol, |reply| reply.ok());
                }
            }
        }
    });
    Ok(())
}

fn save(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.server.config.text(id::ACLFILE).is_empty() {
        return Err(NO_ACL_FILE_ERROR);
    }
    let protocol = ctx.client.protocol;
    ctx.run_without_keys(move |server| {
        let saved = server.acl.write_file(&server.config);
        build_reply(protocol, |reply| match saved {
            Ok(()) => reply.ok(),
            Err(error) => {
                log::warning!("Writing the ACL file for ACL SAVE failed: {error}");
                reply.error(
                    "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
                );
            }
        })
    })
}

// ---- commands and categories ------------------------------------------------------------------------------

fn cat(ctx: &mut Context<'_, '_>) -> CommandResult {
    let catalogue = ctx.server.acl.catalogue();
    match ctx.argc() {
        2 => {
            ctx.reply.array(catalogue.categories().len());
            for category in catalogue.categories() {
                ctx.reply.bulk(category.name.as_bytes());
            }
        }
        3 => {
            let name = c_string_prefix(ctx.arg(2));
            let unknown = || CommandError::with_word("ERR Unknown category '", &name[..name.len().min(128)], "'");
            let category = catalogue.category(name).ok_or_else(unknown)?;
            // Only commands that the server implements are shown.
            let exists = |id: &&u16| usize::from(**id) < crate::commands::registry().commands().len();
            ctx.reply.array(category.members.iter().filter(exists).count());
            for id in category.members.iter().filter(exists) {
                ctx.reply.bulk(catalogue.entry(*id).full_name.as_bytes());
            }
        }
        _ => return Err(wrong_argument_count(ctx)),
    }
    Ok(())
}

fn dry_run(ctx: &mut Context<'_, '_>) -> CommandResult {
    let words: Vec<Vec<u8>> = ctx.args.iter().skip(2).map(<[u8]>::to_vec).collect();
    let db = ctx.client.db;
    if ctx.may_block && module_commands::must_be_asked_at_home(&words[1..]) {
        module_commands::reply_at_home(ctx, move |server, reply| {
            if let Err(error) = write_dry_run(server, &words, db, reply) {
                reply.error_bytes(&error.0);
            }
        });
        return Ok(());
    }
    write_dry_run(ctx.server, &words, db, &mut ctx.reply)
}

/// Writes the reply of ACL DRYRUN. The words are the name of a user and a command.
fn write_dry_run(server: &Server, words: &[Vec<u8>], db: DbIndex, reply: &mut Reply<'_>) -> CommandResult {
    let [user, words @ ..] = words else {
        unreachable!("the arity demands a user and a command");
    };
    let Some(account) = server.acl.account(user) else {
        return Err(CommandError::with_word("ERR User '", user, "' not found"));
    };
    let Lookup::Found(command) = crate::commands::registry().lookup(words) else {
        return Err(CommandError::with_word("ERR Command '", &words[0], "' not found"));
    };
    if !command.spec.accepts_arg_count(words.len()) {
        return Err(CommandError::from_text(format!(
            "ERR wrong number of arguments for '{}' command",
            command.full_name
        )));
    }
    let permission = CommandPermission {
        command,
        args: words,
        db,
        databases: permission::database_count(server),
    };
    match permission::check_permission(&account.rules(), &permission) {
        Ok(()) => reply.ok(),
        Err(denial) => {
            let object = words.get(denial.argument).map_or(&b""[..], Vec::as_slice);
            let text = permission::dry_run_reply(denial.reason, account.name(), command, object);
            reply.bulk(&text);
        }
    }
    Ok(())
}

fn generate_password(ctx: &mut Context<'_, '_>) -> CommandResult {
    let bits = match ctx.argc() {
        2 => DEFAULT_PASSWORD_BITS,
        3 => parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?,
        _ => return Err(wrong_argument_count(ctx)),
    };
    if !(1..=MAX_PASSWORD_BITS).contains(&bits) {
        return Err(CommandError::from_text(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
             {MAX_PASSWORD_BITS}"
        )));
    }
    let digits = (bits as usize).div_ceil(4);
    let password = random_digits(digits)
        .map_err(|error| CommandError::from_text(format!("ERR The system has no randomness: {error}")))?;
    ctx.reply.bulk(password.as_bytes());
    Ok(())
}

// ---- the log ----------------------------------------------------------------------------------------------

fn log_entries(ctx: &mut Context<'_, '_>) -> CommandResult {
    let count = match ctx.argc() {
        2 => DEFAULT_LOG_ENTRIES,
        3 if ctx.arg(2).eq_ignore_ascii_case(b"reset") => {
            ctx.server.acl.log.lock().clear();
            ctx.reply.ok();
            return Ok(());
        }
        3 => parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?,
        _ => return Err(wrong_argument_count(ctx)),
    };
    let entries = ctx.server.acl.log.lock().latest(usize::try_from(count).unwrap_or(0));
    ctx.reply.array(entries.len());
    for entry in &entries {
        reply_log_entry(&mut ctx.reply, entry, ctx.now_ms);
    }
    Ok(())
}

fn reply_log_entry(reply: &mut Reply<'_>, entry: &LogEntry, now_ms: u64) {
    let refusal = &entry.refusal;
    reply.map(10);
    reply.bulk(b"count");
    reply.integer(entry.count as i64);
    let texts: [(&str, &[u8]); 5] = [
        ("reason", refusal.reason.name().as_bytes()),
        ("context", refusal.context.name().as_bytes()),
        ("object", &refusal.object),
        ("username", &refusal.user),
        ("client-info", &entry.client),
    ];
    for (name, text) in texts {
        if name == "client-info" {
            reply.bulk(b"age-seconds");
            reply.double(now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0);
        }
        reply.bulk(name.as_bytes());
        reply.bulk(text);
    }
    let numbers = [
        ("entry-id", entry.id),
        ("timestamp-created", entry.created_ms),
        ("timestamp-last-updated", entry.updated_ms),
    ];
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(number as i64);
    }
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    crate::commands::server::reply_with_help(
        ctx,
        "ACL",
        &[
            (
                "CAT [<category>]",
                "Show the commands of <category>; without one, show the names of all\ncategories.",
            ),
            (
                "DELUSER <username> [<username> ...]",
                "Delete users, and disconnect their clients.",
            ),
            (
                "DRYRUN <username> <command> [<arg> ...]",
                "Say whether the user may run the command, without running it.",
            ),
            ("GETUSER <username>", "Show what is known of a user."),
            (
                "GENPASS [<bits>]",
                "Make up a password of 256 bits, or as many as `bits` says, that is hard\nto guess.",
            ),
            ("LIST", "Show all users as a configuration file would declare them."),
            ("LOAD", "Read the users from the ACL file again."),
            ("LOG [<count> | RESET]", "Show the latest refusals, or forget them all."),
            ("SAVE", "Write the users to the ACL file."),
            (
                "SETUSER <username> <rule> [<rule> ...]",
                "Create a user, or change one, as the rules say.",
            ),
            ("USERS", "Show the names of all users."),
            (
                "WHOAMI",
                "Show the name of the user that this connection is logged in as.",
            ),
        ],
    )
}
