//! Compares the manual page with the table of options. `WEFT_WRITE_DOCUMENTS=1` writes the page.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::options::{OPTIONS, OptionRow};

const INTRODUCTION: &str = r#".\" Generated: WEFT_WRITE_DOCUMENTS=1 cargo test -p weft-top manual
.TH WEFT-TOP 1 "" "Weft" "User Commands"
.SH NAME
weft-top \- dashboard of a Weft, Valkey or Redis server for the terminal
.SH SYNOPSIS
.B weft-top
.RI [ OPTION ]...
.SH DESCRIPTION
.B weft-top
shows what a server does now: operations, latencies, CPU time, memory, threads, commands, clients, slots, big keys and
replication.
It compares two replies to INFO at a time and uses ordinary commands only.
.PP
The keys
.B 1
to
.B 8
choose a panel,
.B <
and
.B >
the column by which rows are sorted,
.B /
filters them,
.B ?
shows all keys and
.B q
ends the program.
.SH OPTIONS
"#;

const END: &str = r#".SH ENVIRONMENT
.TP
.BR VALKEYCLI_AUTH ", " REDISCLI_AUTH
The password, if none is given as an option.
.TP
.B NO_COLOR
If it is not empty, no colours are used.
.TP
.B SSL_CERT_FILE
The certificates of trusted authorities, if
.B \-\-cacert
is not given.
.SH EXIT STATUS
0 for success, 1 if the server cannot be reached or used, 2 for wrong arguments.
.SH SEE ALSO
.BR weft-server (1)
"#;

/// Returns the text for lines of a manual page, one for each sentence.
fn manual_text(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    text.replace(". ", ".\n")
}

fn option(row: &OptionRow) -> String {
    let names = row.names.iter().map(|name| manual_text(name));
    let line = match row.value {
        "" => format!(".B {}", names.collect::<Vec<_>>().join(", ")),
        // The macro alternates bold and italic.
        value => {
            let names: Vec<String> = names.map(|name| format!("{name} \" {value}\"")).collect();
            format!(".BI {}", names.join(" \"\\fR, \\fP\" "))
        }
    };
    format!(".TP\n{line}\n{}\n", manual_text(row.help))
}

#[test]
fn the_manual_page_shows_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/man/weft-top.1");
    let mut expected = INTRODUCTION.to_owned();
    for row in OPTIONS {
        write!(expected, "{}", option(row)).expect("a text");
    }
    expected.push_str(END);
    if std::env::var_os("WEFT_WRITE_DOCUMENTS").is_some() {
        fs::write(&path, &expected).expect("weft-top.1");
    }
    let text = fs::read_to_string(&path).expect("weft-top.1");
    assert!(
        text == expected,
        "WEFT_WRITE_DOCUMENTS=1 writes packaging/man/weft-top.1"
    );
}
