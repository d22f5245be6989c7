//! The parameters of the log.

use super::ChangeAction::ConfigureLog;
use super::{Choices, boolean, choice, text};

const LOG_LEVELS: Choices = &[
    ("debug", 0),
    ("verbose", 1),
    ("notice", 2),
    ("warning", 3),
    ("nothing", 4),
];

const LOG_FORMATS: Choices = &[("legacy", 0), ("logfmt", 1), ("json", 2)];

const LOG_TIMESTAMPS: Choices = &[("legacy", 0), ("iso8601", 1), ("milliseconds", 2)];

const SYSLOG_FACILITIES: Choices = &[
    ("user", 8),
    ("local0", 128),
    ("local1", 136),
    ("local2", 144),
    ("local3", 152),
    ("local4", 160),
    ("local5", 168),
    ("local6", 176),
    ("local7", 184),
];

super::table! {
    LOGLEVEL "loglevel" = choice(LOG_LEVELS, "notice").on_change(&[ConfigureLog]),
        Active, "Minimum severity of logged messages: debug, verbose, notice, warning or nothing.";
    LOGFILE "logfile" = text("").immutable(),
        Active, "File to log to; empty logs to standard output.";
    LOG_FORMAT "log-format" = choice(LOG_FORMATS, "legacy").on_change(&[ConfigureLog]),
        Active, "Format of a log line: legacy, logfmt or json.";
    LOG_TIMESTAMP_FORMAT "log-timestamp-format" = choice(LOG_TIMESTAMPS, "legacy").on_change(&[ConfigureLog]),
        Active, "Format of the timestamp in a log line: legacy, iso8601 or milliseconds.";
    HIDE_USER_DATA_FROM_LOG "hide-user-data-from-log" = boolean(true),
        Active, "Keep keys, arguments and values out of the log.";
    SYSLOG_ENABLED "syslog-enabled" = boolean(false).immutable(),
        Active, "Log to the system log.";
    SYSLOG_IDENT "syslog-ident" = text("valkey").immutable(),
        Active, "Name under which the system log shows the server.";
    SYSLOG_FACILITY "syslog-facility" = choice(SYSLOG_FACILITIES, "local0").immutable(),
        Active, "Facility of the system log: user or local0 to local7.";
}
