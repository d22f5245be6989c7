//! Tests that `weft.conf`, its manual page, `docs/compat.md` and the book's chapter about parameters agree with the
//! table of parameters.
//!
//! All are generated from the table: `WEFT_WRITE_DOCUMENTS=1 cargo test -p weft-config documents` writes them.

use std::path::PathBuf;

use super::{config_get, working_directory};
use crate::numbers::format_with_unit;
use crate::parameters::{
    Adjustment, NumberNotation, Parameter, ParameterEffect, ParameterFlags, ParameterKind, SpecialKind, TOPICS,
};
use crate::specials::{self, print_output_buffer_limit};
use crate::value::ParameterValue;
use crate::{Config, ParameterId, find};

const INTRODUCTION: &str = "\
# The configuration of a Weft server: every parameter, commented out, at its default.
#
# Start the server with this file as its first argument:
#
#     weft-server /path/to/weft.conf
#
# A line contains a parameter and its value; the last line for a parameter counts, except for save, whose lines add
# up. Quote values that contain blanks: \"two words\" supports escapes such as \\n and \\x00, 'two words' does
# not. Amounts of memory have units in any case: 1k is 1000 bytes and 1kb 1024; m, mb, g and gb likewise.
# Remove the # before a parameter to set it, and add lines of these kinds where needed:
#
#     include /path/to/more.conf       read another file here, or all files that match a pattern
#     user NAME RULES...               create a user
#     rename-command OLD NEW           rename a command, or remove it with \"\"
#
# docs/compat.md lists the parameters that have no effect yet.
";

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn is_hidden(parameter: &Parameter) -> bool {
    parameter.flags.contains(ParameterFlags::HIDDEN) && !parameter.flags.contains(ParameterFlags::DOCUMENTED)
}

/// Returns the lines that give a parameter its default value.
fn default_lines(parameter: &Parameter) -> Vec<String> {
    let values = match parameter.default_value() {
        ParameterValue::OutputBufferLimits(limits) => (0..limits.len())
            .map(|class| print_output_buffer_limit(class, &limits[class]))
            .collect(),
        ParameterValue::Directory => vec!["./".into()],
        ParameterValue::Primary(_) => vec!["no one".into()],
        ParameterValue::SavePoints(points) => vec![specials::print_save_points(&points)],
        value => vec![default_text(parameter, &value)],
    };
    values
        .into_iter()
        .map(|value| format!("{} {value}", parameter.name))
        .collect()
}

fn default_text(parameter: &Parameter, value: &ParameterValue) -> String {
    match (parameter.kind, value) {
        (
            ParameterKind::Integer {
                adjust: Adjustment::ZeroIsAutomatic,
                ..
            },
            _,
        ) => "0".into(),
        (
            ParameterKind::Integer {
                unit: NumberNotation::Memory,
                ..
            },
            ParameterValue::Number(number),
        ) => format_with_unit(*number as u64),
        _ => {
            let text = String::from_utf8(parameter.print(value)).expect("defaults are text");
            let several = parameter.flags.contains(ParameterFlags::MULTI_ARG);
            if text.is_empty() || (text.contains(' ') && !several) {
                format!("\"{text}\"")
            } else {
                text
            }
        }
    }
}

fn weft_conf() -> String {
    let mut text = INTRODUCTION.to_string();
    for topic in TOPICS.iter().filter(|topic| !topic.parameters.iter().all(is_hidden)) {
        text += &format!("\n\n# ---- {} {}\n", topic.title, "-".repeat(90 - topic.title.len()));
        for parameter in topic.parameters.iter().filter(|parameter| !is_hidden(parameter)) {
            text += &format!("\n# {}\n", parameter.summary);
            for line in default_lines(parameter) {
                text += &format!("#{line}\n");
            }
        }
    }
    text
}

const BEGIN: &str = "<!-- parameters without effect: begin -->\n";
const END: &str = "<!-- parameters without effect: end -->\n";

fn effect_table() -> String {
    let mut text = String::from("\n| Parameter | Topic | What it will do |\n|---|---|---|\n");
    for topic in TOPICS {
        let without = topic
            .parameters
            .iter()
            .filter(|parameter| parameter.effect == ParameterEffect::NotImplemented);
        for Parameter { name, summary, .. } in without.filter(|parameter| !is_hidden(parameter)) {
            text += &format!("| `{name}` | {} | {} |\n", topic.title, summary.replace('|', "\\|"));
        }
    }
    text + "\n"
}

fn writes_documents() -> bool {
    std::env::var_os("WEFT_WRITE_DOCUMENTS").is_some()
}

fn assert_same(path: &str, actual: &str, expected: &str) {
    let different = actual
        .lines()
        .zip(expected.lines())
        .position(|(actual, expected)| actual != expected);
    assert!(
        actual == expected,
        "{path} and the table of parameters differ, first at line {} of the comparison",
        different.unwrap_or_else(|| actual.lines().count().min(expected.lines().count())) + 1
    );
}

#[test]
fn the_sample_file_shows_every_parameter_with_its_default() {
    let _turn = working_directory();
    let path = repository("weft.conf");
    if writes_documents() {
        std::fs::write(&path, weft_conf()).expect("weft.conf");
    }
    let text = std::fs::read_to_string(&path).expect("weft.conf");
    assert_same("weft.conf", &text, &weft_conf());
}

/// Removes the `#` before parameters. A comment has a blank after its `#`.
fn uncommented(text: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|first: char| first.is_ascii_alphabetic()) => rest,
        _ => line,
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_sample_file_loads_with_and_without_its_comments() {
    let _turn = working_directory();
    let text = std::fs::read_to_string(repository("weft.conf")).expect("weft.conf");
    let defaults = Config::defaults();
    for text in [text.clone(), uncommented(&text)] {
        let config = Config::parse(text.as_bytes(), None).unwrap_or_else(|error| panic!("{error}"));
        for id in ParameterId::all() {
            assert_eq!(config.value(id), defaults.value(id), "{}", id.parameter().name);
        }
    }
    let uncommented = uncommented(&text);
    let named: Vec<&str> = uncommented.lines().filter_map(|line| line.split(' ').next()).collect();
    for id in ParameterId::all().filter(|id| !is_hidden(id.parameter())) {
        assert!(
            named.contains(&id.parameter().name),
            "{} is missing",
            id.parameter().name
        );
    }
    assert!(!config_get(&defaults, "dir").is_empty());
}

const CHAPTER_INTRODUCTION: &str = "\
<!-- Generated: WEFT_WRITE_DOCUMENTS=1 cargo test -p weft-config documents -->

# Every parameter

The parameters of the configuration file, of the command line (`--NAME VALUE`) and of CONFIG SET. Names and meanings are those of Valkey 9.1.2.
The last column but one says whether CONFIG SET may change the parameter:

- *yes*: at any time;
- *protected*: only from clients that `enable-protected-configs` admits;
- *not while loading*: yes, but not while the server loads data;
- *at the start*: only the file and the command line.

A default of `\"\"` is the empty string.
";

fn run_time(flags: ParameterFlags) -> &'static str {
    if flags.contains(ParameterFlags::IMMUTABLE) {
        "at the start"
    } else if flags.contains(ParameterFlags::PROTECTED) {
        "protected"
    } else if flags.contains(ParameterFlags::DENY_LOADING) {
        "not while loading"
    } else {
        "yes"
    }
}

/// Returns what a value of the parameter looks like.
fn accepted_values(parameter: &Parameter) -> String {
    match parameter.kind {
        ParameterKind::Bool { .. } => "`yes`, `no`".into(),
        ParameterKind::Enum { choices, .. } => {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            words.join(", ")
        }
        ParameterKind::Integer {
            max,
            adjust: Adjustment::ZeroIsAutomatic,
            ..
        } => format!("0 to {max}"),
        ParameterKind::Integer { unit, min, max, .. } => match unit {
            NumberNotation::Plain if min > i64::from(i32::MIN) && (0..i64::from(i32::MAX)).contains(&max) => {
                format!("{min} to {max}")
            }
            NumberNotation::Plain => "number".into(),
            NumberNotation::Memory => "bytes".into(),
            NumberNotation::SignedMemory => "bytes, or a negative number".into(),
            NumberNotation::MemoryOrPercent => "bytes or per cent".into(),
            NumberNotation::Octal => "octal number".into(),
        },
        ParameterKind::Text { .. } => "text".into(),
        ParameterKind::Special(kind) => match kind {
            SpecialKind::Directory => "directory",
            SpecialKind::SavePoints => "pairs of seconds and changes",
            SpecialKind::OutputBufferLimits => "class, two amounts of bytes, seconds",
            SpecialKind::OomScoreAdjustments => "three numbers",
            SpecialKind::KeyspaceEvents => "letters",
            SpecialKind::Addresses(_) => "addresses",
            SpecialKind::Primary => "host and port, or `no one`",
            SpecialKind::Percentiles => "numbers from 0 to 100",
        }
        .into(),
    }
}

fn parameter_chapter() -> String {
    let mut text = CHAPTER_INTRODUCTION.to_string();
    for topic in TOPICS.iter().filter(|topic| !topic.parameters.iter().all(is_hidden)) {
        text += &format!(
            "\n## {}\n\n| parameter | default | values | CONFIG SET | meaning |\n|---|---|---|---|---|\n",
            topic.title
        );
        for parameter in topic.parameters.iter().filter(|parameter| !is_hidden(parameter)) {
            let defaults: Vec<String> = default_lines(parameter)
                .iter()
                .map(|line| format!("`{}`", line[parameter.name.len()..].trim()))
                .collect();
            let alias = parameter
                .alias
                .map_or_else(String::new, |alias| format!(" (`{alias}`)"));
            let no_effect = match parameter.effect {
                ParameterEffect::NotImplemented => " **No effect in Weft yet.**",
                ParameterEffect::Active | ParameterEffect::Retired => "",
            };
            text += &format!(
                "| `{}`{alias} | {} | {} | {} | {}{no_effect} |\n",
                parameter.name,
                defaults.join("<br>"),
                accepted_values(parameter),
                run_time(parameter.flags),
                parameter.summary.replace('|', "\\|"),
            );
        }
    }
    text
}

#[test]
fn the_chapter_of_the_book_shows_every_parameter() {
    let _turn = working_directory();
    let path = repository("docs/book/src/parameters.md");
    if writes_documents() {
        std::fs::write(&path, parameter_chapter()).expect("parameters.md");
    }
    let text = std::fs::read_to_string(&path).expect("parameters.md");
    assert_same("docs/book/src/parameters.md", &text, &parameter_chapter());
}

const MANUAL_INTRODUCTION: &str = r#".\" Generated: WEFT_WRITE_DOCUMENTS=1 cargo test -p weft-config documents
.TH WEFT.CONF 5 "" "Weft" "File Formats"
.SH NAME
weft.conf \- configuration file of weft\-server
.SH DESCRIPTION
A line contains a parameter and its value.
The last line for a parameter counts, except for
.BR save ,
whose lines add up.
A line that begins with # is a comment.
.PP
Values that contain blanks are quoted: "two words" supports escapes such as \en and \ex00, \(aqtwo words\(aq does not.
Amounts of memory have units in any case: 1k is 1000 bytes and 1kb 1024; m, mb, g and gb likewise.
.PP
The same parameters are options of
.BR weft\-server (1)
with \-\- in front, and most of them can be changed by CONFIG SET:
.IR yes ,
at any time;
.IR protected ,
only from clients that enable\-protected\-configs admits;
.IR "not while loading" ,
not while the server loads data;
.IR "at the start" ,
only by the file and the options.
.PP
Lines of these kinds set no parameter:
.TP
.BI include " PATTERN"
Read another file here, or all files that match a pattern.
.TP
.BI user " NAME RULES"\fR...
Create a user.
.TP
.BI rename\-command " OLD NEW"
Rename a command, or remove it with "".
"#;

const MANUAL_END: &str = r#".SH SEE ALSO
.BR weft\-server (1)
"#;

/// Returns the text as a line of a manual page.
fn manual_text(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

fn manual_page() -> String {
    let mut text = MANUAL_INTRODUCTION.to_string();
    for topic in TOPICS.iter().filter(|topic| !topic.parameters.iter().all(is_hidden)) {
        text += &format!(".SH {}\n", topic.title.to_uppercase());
        for parameter in topic.parameters.iter().filter(|parameter| !is_hidden(parameter)) {
            let defaults: Vec<String> = default_lines(parameter)
                .iter()
                .map(|line| line[parameter.name.len()..].trim().to_owned())
                .collect();
            let name = manual_text(parameter.name);
            text += &match parameter.alias {
                Some(alias) => format!(".TP\n.BR {name} \" (\" {} )\n", manual_text(alias)),
                None => format!(".TP\n.B {name}\n"),
            };
            let no_effect = match parameter.effect {
                ParameterEffect::NotImplemented => " No effect in Weft yet.",
                ParameterEffect::Active | ParameterEffect::Retired => "",
            };
            text += &format!("{}{no_effect}\n.br\n", manual_text(parameter.summary));
            let values = accepted_values(parameter).replace('`', "");
            let facts = format!(
                "Default: {}; values: {values}; CONFIG SET: {}.",
                defaults.join(", "),
                run_time(parameter.flags)
            );
            text += &format!("{}\n", manual_text(&facts));
        }
    }
    text + MANUAL_END
}

#[test]
fn the_manual_page_shows_every_parameter() {
    let _turn = working_directory();
    let path = repository("packaging/man/weft.conf.5");
    if writes_documents() {
        std::fs::write(&path, manual_page()).expect("weft.conf.5");
    }
    let text = std::fs::read_to_string(&path).expect("weft.conf.5");
    assert_same("packaging/man/weft.conf.5", &text, &manual_page());
}

#[test]
fn the_list_of_parameters_without_effect_agrees_with_the_table() {
    let path = repository("docs/compat.md");
    let text = std::fs::read_to_string(&path).expect("docs/compat.md");
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the list");
    let (list, after) = rest.split_once(END).expect("the end of the list");
    if writes_documents() {
        std::fs::write(&path, [before, BEGIN, &effect_table(), END, after].concat()).expect("docs/compat.md");
        return;
    }
    assert_same("docs/compat.md", list, &effect_table());
    for row in list.lines().filter(|line| line.starts_with("| `")) {
        let name = row.split('`').nth(1).expect("a name");
        let named = find(name.as_bytes()).expect(name);
        assert_eq!(named.id.parameter().effect, ParameterEffect::NotImplemented, "{name}");
    }
}
