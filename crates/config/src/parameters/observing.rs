//! The parameters of monitoring: command logs, latency, keyspace events, busy scripts.

use super::ChangeAction::{ListenForMetrics, SetKeyspaceEvents, SetScriptFunctions};
use super::{Choices, I32_MAX, SpecialKind, boolean, choice, integer, special};

/// The metrics endpoint asks for no password, so only this machine reaches it unless the administrator says otherwise.
const DEFAULT_METRICS_BIND: &[&str] = &["127.0.0.1", "-::1"];

const BUSY_SCOPES: Choices = &[("all", 0), ("affected", 1)];

super::table! {
    COMMANDLOG_EXECUTION_SLOWER_THAN "commandlog-execution-slower-than" = integer(10_000, -1, i64::MAX).alias("slowlog-log-slower-than"),
        Active, "Microseconds a command must take to enter the slow log; -1 logs none.";
    COMMANDLOG_SLOW_EXECUTION_MAX_LEN "commandlog-slow-execution-max-len" = integer(128, 0, i64::MAX).unsigned().alias("slowlog-max-len"),
        Active, "Entries the slow log keeps.";
    COMMANDLOG_REQUEST_LARGER_THAN "commandlog-request-larger-than" = integer(1_048_576, -1, i64::MAX),
        Active, "Bytes a request must have to enter the log of large requests; -1 logs none.";
    COMMANDLOG_LARGE_REQUEST_MAX_LEN "commandlog-large-request-max-len" = integer(128, 0, i64::MAX).unsigned(),
        Active, "Entries the log of large requests keeps.";
    COMMANDLOG_REPLY_LARGER_THAN "commandlog-reply-larger-than" = integer(1_048_576, -1, i64::MAX),
        Active, "Bytes a reply must have to enter the log of large replies; -1 logs none.";
    COMMANDLOG_LARGE_REPLY_MAX_LEN "commandlog-large-reply-max-len" = integer(128, 0, i64::MAX).unsigned(),
        Active, "Entries the log of large replies keeps.";
    LATENCY_MONITOR_THRESHOLD "latency-monitor-threshold" = integer(0, 0, i64::MAX),
        Active, "Milliseconds an event must take to enter the latency history; 0 records none.";
    LATENCY_TRACKING "latency-tracking" = boolean(true),
        Active, "Measure how long each command takes.";
    LATENCY_TRACKING_INFO_PERCENTILES "latency-tracking-info-percentiles" = special(SpecialKind::Percentiles).multi_arg(),
        Active, "Percentiles of those times that INFO shows.";
    NOTIFY_KEYSPACE_EVENTS "notify-keyspace-events" = special(SpecialKind::KeyspaceEvents).on_change(&[SetKeyspaceEvents]),
        Active, "Classes of keyspace events to publish, as letters; empty publishes none.";
    BUSY_REPLY_THRESHOLD "busy-reply-threshold" = integer(5000, 0, i64::MAX).alias("lua-time-limit"),
        Active, "Milliseconds after which a script counts as busy and can be killed.";
    BUSY_REPLY_SCOPE "busy-reply-scope" = choice(BUSY_SCOPES, "all").hidden(),
        Active, "Clients that receive BUSY during a long script: all, as in Valkey, or only those that need its keys.";
    LUA_ENABLE_INSECURE_API "lua-enable-insecure-api" = boolean(false).alias("lua-enable-deprecated-api").hidden().protected().on_change(&[SetScriptFunctions]),
        Active, "Offer scripts functions that can leave their sandbox.";
    STALL_REPORT_THRESHOLD "stall-report-threshold" = integer(1000, 0, I32_MAX).hidden().documented(),
        Active, "Milliseconds after which Weft logs what keeps a worker, leases or exclusive mode busy; 0 logs nothing.";
    METRICS_PORT "metrics-port" = integer(0, 0, 65535).hidden().documented().on_change(&[ListenForMetrics]),
        Active, "Port of Weft on which Prometheus reads metrics over HTTP, see docs/metrics.md; 0 offers none.";
    METRICS_BIND "metrics-bind" = special(SpecialKind::Addresses(DEFAULT_METRICS_BIND)).multi_arg().hidden().documented().on_change(&[ListenForMetrics]),
        Active, "Addresses of that port, as in 'bind'. There is no password: open it to trusted networks only.";
}
