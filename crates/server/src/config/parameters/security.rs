//! The parameters of access control.

use super::{Choices, TextCheck, boolean, choice, integer, optional_bytes, text};

const PUBSUB_DEFAULT: Choices = &[("allchannels", 8), ("resetchannels", 0)];

const WHO_MAY: Choices = &[("no", 0), ("yes", 1), ("local", 2)];

super::table! {
    REQUIREPASS "requirepass" = optional_bytes().sensitive(),
        Live, "Password of the default user.";
    ACLFILE "aclfile" = text("").immutable(),
        Live, "File that holds the users.";
    ACL_PUBSUB_DEFAULT "acl-pubsub-default" = choice(PUBSUB_DEFAULT, "resetchannels"),
        Live, "Channels a new user may use before rules say otherwise.";
    ACLLOG_MAX_LEN "acllog-max-len" = integer(128, 0, i64::MAX).unsigned(),
        Live, "Entries the ACL log keeps.";
    ENABLE_PROTECTED_CONFIGS "enable-protected-configs" = choice(WHO_MAY, "no").immutable(),
        Live, "Who may change protected parameters at run time: no, yes or local.";
    ENABLE_DEBUG_COMMAND "enable-debug-command" = choice(WHO_MAY, "no").immutable(),
        Live, "Who may call DEBUG: no, yes or local.";
    ENABLE_MODULE_COMMAND "enable-module-command" = choice(WHO_MAY, "no").immutable(),
        Live, "Who may call MODULE: no, yes or local.";
    ENABLE_DEBUG_ASSERT "enable-debug-assert" = boolean(false).immutable().hidden(),
        NotYet, "Allow DEBUG to fail an assertion on purpose.";
    HASH_SEED "hash-seed" = optional_bytes().checked(TextCheck::HashSeed).immutable(),
        Live, "Seed of the hash function, for the same order of iteration on several servers.";
}
