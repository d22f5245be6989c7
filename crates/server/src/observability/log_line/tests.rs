//! Compares lines of the log with Valkey's, in every format.

use jiff::Zoned;
use jiff::tz::{Offset, TimeZone};

use super::{LogFormat, LogLine, Role, TimestampFormat};
use crate::observability::log::Level;

fn a_moment(offset_hours: i8) -> Zoned {
    let zone = TimeZone::fixed(Offset::constant(offset_hours));
    jiff::civil::date(2026, 11, 3)
        .at(7, 5, 9, 62_000_000)
        .to_zoned(zone)
        .expect("a fixed offset has no gaps")
}

fn line(level: Level, role: Role, message: &str) -> LogLine<'_> {
    LogLine {
        process: 42,
        role,
        level,
        message,
    }
}

/// Recorded from Valkey 9.1.2, with the time and the process replaced.
#[test]
fn lines_equal_those_of_valkey() {
    let cases = [
        (
            LogFormat::Legacy,
            TimestampFormat::Legacy,
            "42:M 03 Nov 2026 07:05:09.062 * hello\n",
        ),
        (
            LogFormat::Legacy,
            TimestampFormat::Iso8601,
            "42:M 2026-11-03T07:05:09.062+00:00 * hello\n",
        ),
        (
            LogFormat::Legacy,
            TimestampFormat::Milliseconds,
            "42:M 1793689509062 * hello\n",
        ),
        (
            LogFormat::Logfmt,
            TimestampFormat::Legacy,
            "pid=42 role=primary timestamp=\"03 Nov 2026 07:05:09.062\" level=notice message=\"hello\"\n",
        ),
        (
            LogFormat::Logfmt,
            TimestampFormat::Milliseconds,
            "pid=42 role=primary timestamp=\"1793689509062\" level=notice message=\"hello\"\n",
        ),
        (
            LogFormat::Json,
            TimestampFormat::Iso8601,
            "{\"pid\":42,\"role\":\"primary\",\"timestamp\":\"2026-11-03T07:05:09.062+00:00\",\
             \"level\":\"notice\",\"message\":\"hello\"}\n",
        ),
    ];
    for (format, timestamps, expected) in cases {
        let rendered = line(Level::Notice, Role::Primary, "hello").render(format, timestamps, &a_moment(0));
        assert_eq!(rendered, expected, "{format:?} {timestamps:?}");
    }
}

#[test]
fn iso_timestamps_include_the_offset() {
    for (hours, offset) in [(-5, "-05:00"), (1, "+01:00")] {
        let rendered = line(Level::Notice, Role::Primary, "").render(
            LogFormat::Legacy,
            TimestampFormat::Iso8601,
            &a_moment(hours),
        );
        assert_eq!(rendered, format!("42:M 2026-11-03T07:05:09.062{offset} * \n"));
    }
}

#[test]
fn levels_and_roles_have_signs_and_words() {
    let cases = [
        (
            Level::Debug,
            Role::Primary,
            ":M ",
            " . x",
            "level=debug",
            "role=primary",
        ),
        (
            Level::Verbose,
            Role::Primary,
            ":M ",
            " - x",
            "level=info",
            "role=primary",
        ),
        (
            Level::Notice,
            Role::Replica,
            ":S ",
            " * x",
            "level=notice",
            "role=replica",
        ),
        (
            Level::Warning,
            Role::Replica,
            ":S ",
            " # x",
            "level=warning",
            "role=replica",
        ),
    ];
    for (level, role, letter, sign, level_word, role_word) in cases {
        let legacy = line(level, role, "x").render(LogFormat::Legacy, TimestampFormat::Legacy, &a_moment(0));
        assert!(legacy.contains(letter) && legacy.trim_end().ends_with(sign), "{legacy}");
        let logfmt = line(level, role, "x").render(LogFormat::Logfmt, TimestampFormat::Legacy, &a_moment(0));
        assert!(logfmt.contains(level_word) && logfmt.contains(role_word), "{logfmt}");
    }
}

/// Recorded from DEBUG LOG of Valkey 9.1.2.
#[test]
fn messages_cannot_break_out_of_their_quotes() {
    let cases = [
        ("a\"b\\c/d", "a'b\\c/d", "a\\\"b\\\\c/d"),
        ("x\ny\r\tz", "x y \tz", "x\\ny\\r\\tz"),
        ("\u{1}\u{1f}\u{7f}", "\u{1}\u{1f}\u{7f}", "\\u0001\\u001f\u{7f}"),
        ("\u{8}\u{c}", "\u{8}\u{c}", "\\b\\f"),
        ("é a=b", "é a=b", "é a=b"),
    ];
    for (message, logfmt, json) in cases {
        let of =
            |format| line(Level::Warning, Role::Primary, message).render(format, TimestampFormat::Legacy, &a_moment(0));
        let rendered = of(LogFormat::Logfmt);
        assert!(rendered.ends_with(&format!(" message=\"{logfmt}\"\n")), "{rendered}");
        let rendered = of(LogFormat::Json);
        assert!(rendered.ends_with(&format!("\"message\":\"{json}\"}}\n")), "{rendered}");
    }
}
