//! Publish/subscribe: SUBSCRIBE and its variants, PUBLISH, SPUBLISH, PUBSUB. For the delivery of messages see
//! [`crate::notify::pubsub`].

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use crate::net::client::ClientFlags;
use crate::notify::messages::{NotificationSender, subscriber};
use crate::notify::pubsub::{ChannelNamespace, SubscriptionKind};
use crate::propagation::LogTarget;
use weft_resp::Reply;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("psubscribe", leased(psubscribe)),
    ("publish", leased(publish)),
    ("pubsub|channels", leased(channels)),
    ("pubsub|help", leased(help)),
    ("pubsub|numpat", leased(numpat)),
    ("pubsub|numsub", leased(numsub)),
    ("pubsub|shardchannels", leased(shardchannels)),
    ("pubsub|shardnumsub", leased(shardnumsub)),
    ("punsubscribe", leased(punsubscribe)),
    ("spublish", leased(spublish)),
    ("ssubscribe", leased(ssubscribe)),
    ("subscribe", leased(subscribe)),
    ("sunsubscribe", leased(sunsubscribe)),
    ("unsubscribe", leased(unsubscribe)),
];

// ---- subscribing ------------------------------------------------------------------------------------------

fn subscribe(ctx: &mut Context<'_, '_>) -> CommandResult {
    subscribe_to(ctx, SubscriptionKind::Channel, b"subscribe")
}

fn psubscribe(ctx: &mut Context<'_, '_>) -> CommandResult {
    subscribe_to(ctx, SubscriptionKind::Pattern, b"psubscribe")
}

fn ssubscribe(ctx: &mut Context<'_, '_>) -> CommandResult {
    if !ctx.may_block {
        // SUBSCRIBE and PSUBSCRIBE are allowed in transactions for backward compatibility, as in Valkey.
        return Err(CommandError::constant(
            "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client",
        ));
    }
    subscribe_to(ctx, SubscriptionKind::ShardChannel, b"ssubscribe")
}

fn subscribe_to(ctx: &mut Context<'_, '_>, kind: SubscriptionKind, reply_kind: &[u8]) -> CommandResult {
    let who = subscriber(ctx.client);
    for index in 1..ctx.argc() {
        let name = ctx.arg(index);
        let subscriptions = ctx.client.subscriptions.get_or_insert_default();
        ctx.server.clients.pubsub.subscribe(subscriptions, kind, name, who);
        send_confirmation(ctx, kind, reply_kind, Some(name));
    }
    ctx.client.flags.set(ClientFlags::PUBSUB, true);
    Ok(())
}

fn unsubscribe(ctx: &mut Context<'_, '_>) -> CommandResult {
    unsubscribe_from(ctx, SubscriptionKind::Channel, b"unsubscribe")
}

fn punsubscribe(ctx: &mut Context<'_, '_>) -> CommandResult {
    unsubscribe_from(ctx, SubscriptionKind::Pattern, b"punsubscribe")
}

fn sunsubscribe(ctx: &mut Context<'_, '_>) -> CommandResult {
    unsubscribe_from(ctx, SubscriptionKind::ShardChannel, b"sunsubscribe")
}

fn unsubscribe_from(ctx: &mut Context<'_, '_>, kind: SubscriptionKind, reply_kind: &[u8]) -> CommandResult {
    let who = subscriber(ctx.client);
    let named: Vec<Vec<u8>> = match ctx.argc() {
        1 => match &ctx.client.subscriptions {
            Some(subscriptions) => subscriptions.names(kind).iter().map(|name| name.to_vec()).collect(),
            None => Vec::new(),
        },
        _ => ctx.args.iter().skip(1).map(<[u8]>::to_vec).collect(),
    };
    for name in &named {
        if let Some(subscriptions) = &mut ctx.client.subscriptions {
            ctx.server.clients.pubsub.unsubscribe(subscriptions, kind, name, who);
        }
        send_confirmation(ctx, kind, reply_kind, Some(name));
    }
    if named.is_empty() {
        send_confirmation(ctx, kind, reply_kind, None);
    }
    if ctx.client.subscriptions.as_ref().is_none_or(|left| left.is_empty()) {
        ctx.client.subscriptions = None;
        ctx.client.flags.set(ClientFlags::PUBSUB, false);
    }
    Ok(())
}

/// Confirms the begin or end of a subscription. A confirmation is a message, so it is sent even if the client has
/// switched replies off.
fn send_confirmation(ctx: &mut Context<'_, '_>, kind: SubscriptionKind, reply_kind: &[u8], name: Option<&[u8]>) {
    let count = match kind {
        SubscriptionKind::ShardChannel => ctx.client.subscription_count(kind),
        SubscriptionKind::Channel | SubscriptionKind::Pattern => {
            ctx.client.subscription_count(SubscriptionKind::Channel)
                + ctx.client.subscription_count(SubscriptionKind::Pattern)
        }
    };
    let write = |reply: &mut Reply<'_>| {
        reply.push(3);
        reply.bulk(reply_kind);
        match name {
            Some(name) => reply.bulk(name),
            None => reply.null(),
        }
        reply.integer(count as i64);
    };
    if !ctx
        .client
        .flags
        .intersects(ClientFlags::REPLY_OFF.union(ClientFlags::REPLY_SKIP))
    {
        return write(&mut ctx.reply);
    }
    let bytes = super::context::build_reply(ctx.client.protocol, write);
    let seat = ctx.keys.context.thread_index;
    NotificationSender::new(ctx.server, ctx.keys.effects, seat).push_to_own_client(ctx.client.id, bytes);
}

// ---- publishing -------------------------------------------------------------------------------------------

fn publish(ctx: &mut Context<'_, '_>) -> CommandResult {
    publish_to(ctx, ChannelNamespace::Channels)
}

fn spublish(ctx: &mut Context<'_, '_>) -> CommandResult {
    publish_to(ctx, ChannelNamespace::ShardChannels)
}

fn publish_to(ctx: &mut Context<'_, '_>, namespace: ChannelNamespace) -> CommandResult {
    let (channel, payload) = (ctx.arg(1), ctx.arg(2));
    let seat = ctx.keys.context.thread_index;
    let receivers =
        NotificationSender::new(ctx.server, ctx.keys.effects, seat).publish_message(namespace, channel, payload);
    match &ctx.server.cluster {
        // Replicas get the message over the cluster bus, like all nodes.
        Some(cluster) => cluster.queue_published(namespace == ChannelNamespace::ShardChannels, channel, payload),
        None => ctx.keys.effects.log_for(LogTarget::REPLICAS),
    }
    ctx.reply.integer(receivers as i64);
    Ok(())
}

// ---- introspection ----------------------------------------------------------------------------------------

fn channels(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_active_channels(ctx, ChannelNamespace::Channels)
}

fn shardchannels(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_active_channels(ctx, ChannelNamespace::ShardChannels)
}

fn reply_active_channels(ctx: &mut Context<'_, '_>, namespace: ChannelNamespace) -> CommandResult {
    let pattern = match ctx.argc() {
        2 => None,
        3 => Some(ctx.arg(2)),
        _ => return Err(wrong_argument_count(ctx)),
    };
    let active = ctx.server.clients.pubsub.active_channels(namespace, pattern);
    ctx.reply.array(active.len());
    for channel in active {
        ctx.reply.bulk(&channel);
    }
    Ok(())
}

/// Returns the error of a subcommand with too many arguments.
fn wrong_argument_count(ctx: &Context<'_, '_>) -> CommandError {
    CommandError::with_word(
        "ERR unknown subcommand or wrong number of arguments for '",
        ctx.arg(1),
        "'. Try PUBSUB HELP.",
    )
}

fn numsub(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_subscriber_counts(ctx, ChannelNamespace::Channels)
}

fn shardnumsub(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_subscriber_counts(ctx, ChannelNamespace::ShardChannels)
}

fn reply_subscriber_counts(ctx: &mut Context<'_, '_>, namespace: ChannelNamespace) -> CommandResult {
    ctx.reply.array((ctx.argc() - 2) * 2);
    for index in 2..ctx.argc() {
        let channel = ctx.arg(index);
        ctx.reply.bulk(channel);
        ctx.reply
            .integer(ctx.server.clients.pubsub.subscriber_count(namespace, channel) as i64);
    }
    Ok(())
}

fn numpat(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.integer(ctx.server.clients.pubsub.pattern_count() as i64);
    Ok(())
}

/// The lines of PUBSUB HELP. They equal Valkey's, because clients compare and parse them.
const HELP: &[&str] = &[
    "PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CHANNELS [<pattern>]",
    "    Return the currently active channels matching a <pattern> (default: '*').",
    "NUMPAT",
    "    Return number of subscriptions to patterns.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers for the specified channels, excluding",
    "    pattern subscriptions(default: no channels).",
    "SHARDCHANNELS [<pattern>]",
    "    Return the currently active shard level channels matching a <pattern> (default: '*').",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers for the specified shard level channel(s)",
    "HELP",
    "    Print this help.",
];

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(HELP)
}
