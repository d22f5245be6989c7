//! Metadata of the group *pubsub*. Messages to channels, patterns and shard channels.

use crate::spec::flag::{FAST, LOADING, MAY_REPLICATE, NOSCRIPT, PUBSUB, STALE};
use crate::spec::key_flag::NOT_KEY;
use crate::spec::{CommandSpec, Group, command, keys, pattern, string};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("psubscribe", -2, Group::PubSub, "2.0.0")
        .flags(&[PUBSUB, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N patterns")
        .summary("Subscribes to all channels that match patterns.")
        .args(&[pattern("pattern").multiple()]),
    command("publish", 3, Group::PubSub, "2.0.0")
        .flags(&[PUBSUB, LOADING, STALE, FAST, MAY_REPLICATE])
        .complexity("O(N+M) for N subscribers of the channel and M patterns of anybody")
        .summary("Delivers a message to the subscribers of a channel.")
        .args(&[string("channel"), string("message")]),
    command("pubsub", -2, Group::PubSub, "2.8.0")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands that look into publish/subscribe.")
        .subcommands(PUBSUB_SUBCOMMANDS),
    command("punsubscribe", -1, Group::PubSub, "2.0.0")
        .flags(&[PUBSUB, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N patterns")
        .summary("Ends subscriptions to patterns.")
        .args(&[pattern("pattern").optional().multiple()]),
    command("spublish", 3, Group::PubSub, "7.0.0")
        .flags(&[PUBSUB, LOADING, STALE, FAST, MAY_REPLICATE])
        .keys(&[keys(1, &[NOT_KEY])])
        .complexity("O(N) for N subscribers of the shard channel")
        .summary("Delivers a message to the subscribers of a shard channel.")
        .args(&[string("shardchannel"), string("message")]),
    command("ssubscribe", -2, Group::PubSub, "7.0.0")
        .flags(&[PUBSUB, NOSCRIPT, LOADING, STALE])
        .keys(&[keys(1, &[NOT_KEY]).with_range(-1, 1)])
        .complexity("O(N) for N shard channels")
        .summary("Subscribes to shard channels.")
        .args(&[string("shardchannel").multiple()]),
    command("subscribe", -2, Group::PubSub, "2.0.0")
        .flags(&[PUBSUB, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N channels")
        .summary("Subscribes to channels.")
        .args(&[string("channel").multiple()]),
    command("sunsubscribe", -1, Group::PubSub, "7.0.0")
        .flags(&[PUBSUB, NOSCRIPT, LOADING, STALE])
        .keys(&[keys(1, &[NOT_KEY]).with_range(-1, 1)])
        .complexity("O(N) for N shard channels")
        .summary("Ends subscriptions to shard channels.")
        .args(&[string("shardchannel").optional().multiple()]),
    command("unsubscribe", -1, Group::PubSub, "2.0.0")
        .flags(&[PUBSUB, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N channels")
        .summary("Ends subscriptions to channels.")
        .args(&[string("channel").optional().multiple()]),
];

/// The subcommands of PUBSUB.
const PUBSUB_SUBCOMMANDS: &[CommandSpec] = &[
    command("channels", -2, Group::PubSub, "2.8.0")
        .flags(&[PUBSUB, LOADING, STALE])
        .complexity("O(N) for N active channels, with names and pattern of bounded length")
        .summary("Lists the channels that have subscribers.")
        .args(&[pattern("pattern").optional()]),
    command("help", 2, Group::PubSub, "6.2.0")
        .flags(&[LOADING, STALE])
        .categories_without_group(&[])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("numpat", 2, Group::PubSub, "2.8.0")
        .flags(&[PUBSUB, LOADING, STALE])
        .complexity("O(1)")
        .summary("Counts the patterns that are subscribed to."),
    command("numsub", -2, Group::PubSub, "2.8.0")
        .flags(&[PUBSUB, LOADING, STALE])
        .complexity("O(N) for N channels")
        .summary("Counts the subscribers of channels.")
        .args(&[string("channel").optional().multiple()]),
    command("shardchannels", -2, Group::PubSub, "7.0.0")
        .flags(&[PUBSUB, LOADING, STALE])
        .complexity("O(N) for N active shard channels with names of bounded length")
        .summary("Lists the shard channels that have subscribers.")
        .args(&[pattern("pattern").optional()]),
    command("shardnumsub", -2, Group::PubSub, "7.0.0")
        .flags(&[PUBSUB, LOADING, STALE])
        .complexity("O(N) for N shard channels")
        .summary("Counts the subscribers of shard channels.")
        .args(&[string("shardchannel").optional().multiple()]),
];
