//! The parameters of access control.

use super::ChangeAction::SetDefaultPassword;
use super::{Choices, TextCheck, boolean, choice, integer, optional_bytes, optional_text, text};

const PUBSUB_DEFAULT: Choices = &[("allchannels", 8), ("resetchannels", 0)];

const CLIENT_SCOPES: Choices = &[("no", 0), ("yes", 1), ("local", 2)];

super::table! {
    REQUIREPASS "requirepass" = optional_bytes().sensitive().on_change(&[SetDefaultPassword]),
        Active, "Password of the default user.";
    ACLFILE "aclfile" = text("").immutable(),
        Active, "File that holds the users.";
    ACL_PUBSUB_DEFAULT "acl-pubsub-default" = choice(PUBSUB_DEFAULT, "resetchannels"),
        Active, "Channels that a new user may use by default.";
    ACLLOG_MAX_LEN "acllog-max-len" = integer(128, 0, i64::MAX).unsigned(),
        Active, "Entries the ACL log keeps.";
    ENABLE_PROTECTED_CONFIGS "enable-protected-configs" = choice(CLIENT_SCOPES, "no").immutable(),
        Active, "Clients that may change protected parameters at run time: no (none), yes (all) or local.";
    ENABLE_DEBUG_COMMAND "enable-debug-command" = choice(CLIENT_SCOPES, "no").immutable(),
        Active, "Clients that may call DEBUG: no (none), yes (all) or local.";
    ENABLE_MODULE_COMMAND "enable-module-command" = choice(CLIENT_SCOPES, "no").immutable(),
        Active, "Clients that may call MODULE: no (none), yes (all) or local.";
    MODULE_CONCURRENCY "module-concurrency" = optional_text().immutable().hidden().documented(),
        Active, "Where commands of modules run: names of modules, each with home, serial or slot-safe.";
    ENABLE_DEBUG_ASSERT "enable-debug-assert" = boolean(false).immutable().hidden(),
        NotImplemented, "Allow DEBUG to fail an assertion on purpose.";
    HASH_SEED "hash-seed" = optional_bytes().checked(TextCheck::HashSeed).immutable(),
        Active, "Seed of the hash function, for the same order of iteration on several servers.";
}
