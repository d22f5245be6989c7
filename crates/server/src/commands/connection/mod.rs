//! The connection commands: authentication, protocol, database, and closing the connection.

pub mod client;
use weft_base::DbIndex;
use weft_resp::number::parse_i64;
use weft_resp::{Args, Protocol};

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use super::permission;
use crate::commands::connection::client::attributes::check_name;
use crate::net::client::{BufferFigures, ClientFlags, ModuleLogin};
use crate::notify::messages::remove_all_registrations;
use crate::state::Server;
use weft_acl::{DEFAULT_USER, DenialReason, DeniedAccess};
use weft_config::{COMPATIBLE_VERSION, REDIS_VERSION, id};
use weft_modules::module::server_events::{self, EventKind, ServerEvent};

/// The connection commands and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("auth", leased(auth)),
    ("echo", leased(echo)),
    ("hello", leased(hello)),
    ("ping", leased(ping)),
    ("quit", leased(quit)),
    ("reset", leased(reset)),
    ("select", leased(select)),
];

const WRONG_PASSWORD_ERROR: CommandError =
    CommandError::constant("WRONGPASS invalid username-password pair or user is disabled.");
const NO_PASSWORD_ERROR: CommandError = CommandError::constant(
    "ERR AUTH <password> called without any password configured for the default user. \
     Are you sure your configuration is correct?",
);
const HELLO_BEFORE_AUTH_ERROR: CommandError = CommandError::constant(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
     <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
);

fn ping(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_messages = ctx.client.flags.contains(ClientFlags::PUBSUB) && ctx.client.protocol == Protocol::Resp2;
    match ctx.argc() {
        1 | 2 if in_messages => {
            // In RESP2 a subscriber expects only messages, so the reply has the form of one.
            ctx.reply.array(2);
            ctx.reply.bulk(b"pong");
            ctx.reply.bulk(ctx.args.argument(1));
        }
        1 => ctx.reply.simple("PONG"),
        2 => ctx.reply.bulk(ctx.args.argument(1)),
        _ => {
            return Err(CommandError::constant(
                "ERR wrong number of arguments for 'ping' command",
            ));
        }
    }
    Ok(())
}

fn echo(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.bulk(ctx.args.argument(1));
    Ok(())
}

fn quit(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.ok();
    ctx.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
    Ok(())
}

fn reset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let others = ClientFlags::PRIMARY
        .union(ClientFlags::REPLICA)
        .union(ClientFlags::MODULE_CALL);
    if ctx.client.flags.intersects(others) {
        return Err(CommandError::constant("ERR can only reset normal client connections"));
    }
    super::transaction::discard_transaction(ctx);
    remove_all_registrations(ctx.server, ctx.client);
    ctx.client.reset(ctx.server.acl.new_login());
    ctx.reply.protocol = ctx.client.protocol;
    ctx.reply.simple("RESET");
    Ok(())
}

fn select(ctx: &mut Context<'_, '_>) -> CommandResult {
    let index = parse_i64(ctx.arg(1)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let index = i32::try_from(index).map_err(|_| {
        CommandError::constant("ERR value is out of range, value must between -2147483648 and 2147483647")
    })?;
    ctx.client.db = DbIndex::parse(index.into(), ctx.server.config.databases())
        .ok_or(CommandError::constant("ERR DB index is out of range"))?;
    ctx.server.keyspace.counts.mark_used(ctx.client.db);
    ctx.reply.ok();
    Ok(())
}

// ---- login ------------------------------------------------------------------------------------------------

fn auth(ctx: &mut Context<'_, '_>) -> CommandResult {
    match ctx.argc() {
        2 if ctx.server.acl.default_user_needs_no_password() => return Err(NO_PASSWORD_ERROR),
        2 => authenticate(ctx, DEFAULT_USER, ctx.arg(1))?,
        3 => authenticate(ctx, ctx.arg(1), ctx.arg(2))?,
        _ => return Err(CommandError::SYNTAX),
    }
    ctx.reply.ok();
    Ok(())
}

/// Authenticates the client. After a failure the client remains authenticated as before, if it was.
fn authenticate(ctx: &mut Context<'_, '_>, user: &[u8], password: &[u8]) -> CommandResult {
    match ctx.client.module_login.take().map(|decision| *decision) {
        None => {}
        Some(ModuleLogin::Granted) => return Ok(()),
        Some(ModuleLogin::Denied(None)) => return Err(WRONG_PASSWORD_ERROR),
        Some(ModuleLogin::Denied(Some(text))) => {
            let with_code = match text.strip_prefix(b"-") {
                Some(text) => text.to_vec(),
                None => [b"ERR ", &*text].concat(),
            };
            return Err(CommandError::from_text(
                String::from_utf8_lossy(&with_code).into_owned(),
            ));
        }
    }
    let login = ctx.server.acl.log_in(user, password);
    server_events::send(EventKind::AuthenticationAttempt, || ServerEvent::Authenticated {
        client_id: ctx.client.id.get(),
        user: user.to_vec(),
        module: None,
        is_granted: login.is_some(),
    });
    if let Some(login) = login {
        ctx.client.login = login;
        ctx.client.flags.set(ClientFlags::HAS_AUTHENTICATED, true);
        return Ok(());
    }
    let refusal = DeniedAccess {
        reason: DenialReason::Auth,
        context: permission::denial_context(ctx.client),
        object: ctx.arg(0).to_vec(),
        user: user.to_vec(),
    };
    let client = ctx.client.list_line(ctx.now_ms, BufferFigures::default());
    permission::log_denial(ctx.server, ctx.keys.context.thread_index, ctx.now_ms, refusal, client);
    Err(WRONG_PASSWORD_ERROR)
}

// ---- HELLO ------------------------------------------------------------------------------------------------

/// The options of HELLO.
#[derive(Default)]
struct HelloOptions<'a> {
    protocol: Option<Protocol>,
    login: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

fn hello(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = parse_hello(ctx.args)?;
    if let Some((user, password)) = options.login {
        authenticate(ctx, user, password)?;
    }
    if !ctx.client.login.is_authenticated() {
        return Err(HELLO_BEFORE_AUTH_ERROR);
    }
    if let Some(name) = options.name {
        ctx.client.name = name.to_vec();
    }
    if let Some(protocol) = options.protocol {
        ctx.client.protocol = protocol;
        ctx.reply.protocol = protocol;
    }
    reply_with_server_properties(ctx);
    Ok(())
}

/// Returns the user and the password of AUTH or HELLO, unless the command fails without them.
pub fn credentials<'a>(server: &Server, args: Args<'a>) -> Option<(&'a [u8], &'a [u8])> {
    if args.argument(0).eq_ignore_ascii_case(b"hello") {
        return parse_hello(args).ok()?.login;
    }
    match args.len() {
        2 if !server.acl.default_user_needs_no_password() => Some((DEFAULT_USER, args.argument(1))),
        3 => Some((args.argument(1), args.argument(2))),
        _ => None,
    }
}

fn parse_hello(args: Args<'_>) -> Result<HelloOptions<'_>, CommandError> {
    let mut options = HelloOptions::default();
    if args.len() < 2 {
        return Ok(options);
    }
    options.protocol = Some(match parse_i64(args.argument(1)) {
        Some(2) => Protocol::Resp2,
        Some(3) => Protocol::Resp3,
        Some(_) => {
            return Err(CommandError::constant("NOPROTO unsupported protocol version"));
        }
        None => {
            return Err(CommandError::constant(
                "ERR Protocol version is not an integer or out of range",
            ));
        }
    });
    let mut at = 2;
    while at < args.len() {
        let option = args.argument(at);
        let values = args.len() - at - 1;
        if option.eq_ignore_ascii_case(b"AUTH") && values >= 2 {
            options.login = Some((args.argument(at + 1), args.argument(at + 2)));
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && values >= 1 {
            check_name(args.argument(at + 1))?;
            options.name = Some(args.argument(at + 1));
            at += 2;
        } else {
            return Err(CommandError::with_word(
                "ERR Syntax error in HELLO option '",
                option,
                "'",
            ));
        }
    }
    Ok(options)
}

fn reply_with_server_properties(ctx: &mut Context<'_, '_>) {
    let config = &ctx.server.config;
    let zone = config.text(id::AVAILABILITY_ZONE);
    let (name, version) = if config.boolean(id::EXTENDED_REDIS_COMPATIBILITY) {
        ("redis", REDIS_VERSION)
    } else {
        ("valkey", COMPATIBLE_VERSION)
    };
    let protocol = match ctx.client.protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let mode = if config.boolean(id::CLUSTER_ENABLED) {
        "cluster"
    } else {
        "standalone"
    };
    let role = if config.primary().is_some() {
        "replica"
    } else {
        "master"
    };
    let has_scripts = super::registry().find_by_original_name(b"eval").is_some();
    let reply = &mut ctx.reply;
    reply.map(if zone.is_empty() { 7 } else { 8 });
    reply.bulk(b"server");
    reply.bulk(name.as_bytes());
    reply.bulk(b"version");
    reply.bulk(version.as_bytes());
    reply.bulk(b"proto");
    reply.integer(protocol);
    reply.bulk(b"id");
    reply.integer(ctx.client.id.get() as i64);
    reply.bulk(b"mode");
    reply.bulk(mode.as_bytes());
    reply.bulk(b"role");
    reply.bulk(role.as_bytes());
    reply.bulk(b"modules");
    crate::commands::server::modules::write_list(reply, has_scripts);
    if !zone.is_empty() {
        reply.bulk(b"availability_zone");
        reply.bulk(&zone);
    }
}

#[cfg(test)]
mod tests;
