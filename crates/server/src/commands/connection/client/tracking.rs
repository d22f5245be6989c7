//! CLIENT TRACKING, CACHING, GETREDIR and TRACKINGINFO: server-assisted client-side caching, as
//! [`crate::notify::tracking`] describes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use weft_base::ClientId;
use weft_resp::number::parse_i64;

use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::effects::Hooks;
use crate::notify::messages::stop_tracking;
use crate::notify::tracking::TrackingOptions;

pub(crate) fn tracking(ctx: &mut Context<'_, '_>) -> CommandResult {
    let requested = parse_tracking_options(ctx)?;
    let word = ctx.arg(2);
    if word.eq_ignore_ascii_case(b"off") {
        stop_tracking(ctx.server, ctx.client);
    } else if word.eq_ignore_ascii_case(b"on") {
        enable_tracking(ctx, requested)?;
    } else {
        return Err(CommandError::SYNTAX);
    }
    ctx.reply.ok();
    Ok(())
}

/// The requested options, with prefixes in the order of the arguments.
struct RequestedTracking<'a> {
    options: TrackingOptions,
    prefixes: Vec<&'a [u8]>,
}

fn parse_tracking_options<'a>(ctx: &Context<'a, '_>) -> Result<RequestedTracking<'a>, CommandError> {
    let mut requested = RequestedTracking {
        options: TrackingOptions::default(),
        prefixes: Vec::new(),
    };
    let options = &mut requested.options;
    let mut at = 3;
    while at < ctx.argc() {
        let word = ctx.arg(at).to_ascii_uppercase();
        let has_value = at + 1 < ctx.argc();
        match word.as_slice() {
            b"REDIRECT" if has_value => {
                at += 1;
                options.redirect = Some(parse_redirect(ctx, options.redirect, ctx.arg(at))?);
            }
            b"PREFIX" if has_value => {
                at += 1;
                requested.prefixes.push(ctx.arg(at));
            }
            b"BCAST" => options.is_broadcast = true,
            b"OPTIN" => options.is_opt_in = true,
            b"OPTOUT" => options.is_opt_out = true,
            b"NOLOOP" => options.is_no_loop = true,
            _ => return Err(CommandError::SYNTAX),
        }
        at += 1;
    }
    Ok(requested)
}

/// Returns the client that an argument names, which must be connected.
fn parse_redirect(ctx: &Context<'_, '_>, current: Option<ClientId>, word: &[u8]) -> Result<ClientId, CommandError> {
    if current.is_some() {
        return Err(CommandError::constant(
            "ERR A client can only redirect to a single other client",
        ));
    }
    let id = parse_i64(word).ok_or(CommandError::NOT_AN_INTEGER)?;
    u64::try_from(id)
        .ok()
        .map(ClientId::new)
        .filter(|id| ctx.server.clients.directory.worker_of(*id).is_some())
        .ok_or(CommandError::constant(
            "ERR The client ID you want redirect to does not exist",
        ))
}

fn enable_tracking(ctx: &mut Context<'_, '_>, requested: RequestedTracking<'_>) -> CommandResult {
    let RequestedTracking { mut options, prefixes } = requested;
    let before = ctx.client.tracking.as_deref();
    check_options(before, &options, prefixes.is_empty())?;
    if options.is_broadcast {
        let known = before.map(|before| before.prefixes.clone()).unwrap_or_default();
        check_prefixes(&known, &prefixes)?;
        let names: &[&[u8]] = if prefixes.is_empty() { &[b""] } else { &prefixes };
        let table = &ctx.server.clients.tracking;
        // A set that is collected from all its elements has full nodes.
        options.prefixes = known
            .into_iter()
            .chain(names.iter().map(|name| table.shared_prefix(name)))
            .collect();
    }
    // CLIENT CACHING applies to the next command, regardless of this one.
    options.caching_was_called = before.is_some_and(|before| before.caching_was_called);
    let hooks = &ctx.server.keyspace.hooks;
    let first = || hooks.set(Hooks::TRACKING, true);
    ctx.server
        .clients
        .tracking
        .enable(ctx.client.id, before, &options, first);
    ctx.client.tracking = Some(Box::new(options));
    Ok(())
}

/// Rejects options that contradict each other or the client's current tracking mode.
fn check_options(current: Option<&TrackingOptions>, options: &TrackingOptions, has_no_prefixes: bool) -> CommandResult {
    let refusals = [
        (
            !options.is_broadcast && !has_no_prefixes,
            "ERR PREFIX option requires BCAST mode to be enabled",
        ),
        (
            current.is_some_and(|before| before.is_broadcast != options.is_broadcast),
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it \
             with a different mode.",
        ),
        (
            options.is_broadcast && (options.is_opt_in || options.is_opt_out),
            "ERR OPTIN and OPTOUT are not compatible with BCAST",
        ),
        (
            options.is_opt_in && options.is_opt_out,
            "ERR You can't specify both OPTIN mode and OPTOUT mode",
        ),
        (
            current.is_some_and(|before| {
                (options.is_opt_in && before.is_opt_out) || (options.is_opt_out && before.is_opt_in)
            }),
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it \
             with a different mode.",
        ),
    ];
    match refusals.iter().find(|(refused, _)| *refused) {
        Some((_, text)) => Err(CommandError::constant(text)),
        None => Ok(()),
    }
}

/// Rejects prefixes of which one is a prefix of another: a key would be reported twice.
fn check_prefixes(current: &BTreeSet<Arc<[u8]>>, prefixes: &[&[u8]]) -> CommandResult {
    let overlap = |one: &[u8], other: &[u8]| one.starts_with(other) || other.starts_with(one);
    let error = |prefix: &[u8], what: &str, other: &[u8], end: &str| {
        let shown = crate::commands::error::c_string_prefix;
        let parts = [
            b"ERR Prefix '",
            shown(prefix),
            b"' overlaps with ",
            what.as_bytes(),
            b" prefix '",
            shown(other),
        ];
        CommandError::from_bytes([&parts.concat(), end.as_bytes()].concat())
    };
    for (index, prefix) in prefixes.iter().enumerate() {
        if let Some(other) = current.iter().find(|other| overlap(prefix, other)) {
            let end = "'. Prefixes for a single client must not overlap.";
            return Err(error(prefix, "an existing", other, end));
        }
        if let Some(other) = prefixes[index + 1..].iter().find(|other| overlap(prefix, other)) {
            let end = "'. Prefixes for a single client must not overlap.";
            return Err(error(prefix, "another provided", other, end));
        }
    }
    Ok(())
}

pub(crate) fn caching(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(tracking) = &mut ctx.client.tracking else {
        return Err(CommandError::constant(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ));
    };
    let (yes, no) = (
        ctx.args.argument(2).eq_ignore_ascii_case(b"yes"),
        ctx.args.argument(2).eq_ignore_ascii_case(b"no"),
    );
    match (yes, no) {
        (true, _) if !tracking.is_opt_in => {
            return Err(CommandError::constant(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        (_, true) if !tracking.is_opt_out => {
            return Err(CommandError::constant(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        (false, false) => return Err(CommandError::SYNTAX),
        _ => tracking.caching_was_called = true,
    }
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn redirection(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.integer(ctx.client.redirect());
    Ok(())
}

pub(crate) fn info(ctx: &mut Context<'_, '_>) -> CommandResult {
    let tracking = ctx.client.tracking.as_deref();
    let flags = flag_words(tracking);
    ctx.reply.map(3);
    ctx.reply.bulk(b"flags");
    ctx.reply.set(flags.len());
    for flag in flags {
        ctx.reply.bulk(flag.as_bytes());
    }
    ctx.reply.bulk(b"redirect");
    ctx.reply.integer(ctx.client.redirect());
    ctx.reply.bulk(b"prefixes");
    let none = BTreeSet::new();
    let prefixes = tracking.map_or(&none, |tracking| &tracking.prefixes);
    ctx.reply.array(prefixes.len());
    for prefix in prefixes {
        ctx.reply.bulk(prefix);
    }
    Ok(())
}

fn flag_words(tracking: Option<&TrackingOptions>) -> Vec<&'static str> {
    let Some(tracking) = tracking else {
        return vec!["off"];
    };
    let words = [
        (true, "on"),
        (tracking.is_broadcast, "bcast"),
        (tracking.is_opt_in, "optin"),
        (tracking.is_opt_in && tracking.caching_was_called, "caching-yes"),
        (tracking.is_opt_out, "optout"),
        (tracking.is_opt_out && tracking.caching_was_called, "caching-no"),
        (tracking.is_no_loop, "noloop"),
        (tracking.is_redirect_broken, "broken_redirect"),
    ];
    words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect()
}
