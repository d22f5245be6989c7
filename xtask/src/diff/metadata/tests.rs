//! Tests of commands generated from documentation.

use super::*;

/// Returns a command's documentation as Valkey sends it in RESP2. `arguments` is the encoded array of arguments.
fn documentation(arguments: &str) -> Reply {
    let text = format!("*2\r\n$1\r\nx\r\n*2\r\n$9\r\narguments\r\n{arguments}");
    Reply::parse(text.as_bytes()).expect("a reply").0
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn argument(name: &str, kind: &str, more: &[String]) -> String {
    let fixed = [bulk("name"), bulk(name), bulk("type"), bulk(kind)];
    format!("*{}\r\n{}{}", 4 + more.len() * 2, fixed.concat(), more.concat())
}

fn flags(names: &[&str]) -> String {
    let names: String = names.iter().map(|name| bulk(name)).collect();
    let count = names.matches('$').count();
    bulk("flags") + &format!("*{count}\r\n{names}")
}

fn token(word: &str) -> String {
    bulk("token") + &bulk(word)
}

fn array(items: &[String]) -> String {
    format!("*{}\r\n{}", items.len(), items.concat())
}

fn sentences(name: &str, arguments: &[String]) -> Vec<Vec<String>> {
    let syntax = CommandSyntax::parse(name, &documentation(&array(arguments))).expect("a known form");
    let mut rng = Rng::with_seed(3);
    (0..300)
        .map(|step| syntax.write_command("hash", step, &mut rng))
        .map(|words| {
            words
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect()
        })
        .collect()
}

#[test]
fn a_count_precedes_its_arguments() {
    let counted = [
        argument("key", "key", &[]),
        argument("numfields", "integer", &[token("FIELDS")]),
        argument("field", "string", &[flags(&["multiple"])]),
    ];
    let written = sentences("hget", &counted);
    let right = written
        .iter()
        .filter(|words| words[2] == "FIELDS" && words[3] == (words.len() - 4).to_string());
    assert!(right.count() > 250);
    assert!(written.iter().any(|words| words.len() == 7), "up to three");
}

#[test]
fn options_appear_in_all_combinations_and_orders() {
    let options = [
        argument("one", "pure-token", &[token("ONE"), flags(&["optional"])]),
        argument("two", "pure-token", &[token("TWO"), flags(&["optional"])]),
    ];
    let written = sentences("x|y", &options);
    for expected in [
        &["X", "Y"][..],
        &["X", "Y", "ONE"],
        &["X", "Y", "TWO"],
        &["X", "Y", "ONE", "TWO"],
        &["X", "Y", "TWO", "ONE"],
    ] {
        assert!(written.iter().any(|words| words == expected), "{expected:?}");
    }
}

#[test]
fn choices_and_repeated_tokens_are_written_out() {
    let children = array(&[
        argument("left", "pure-token", &[token("LEFT")]),
        argument("right", "pure-token", &[token("RIGHT")]),
    ]);
    let arguments = [
        argument("where", "oneof", &[bulk("arguments") + &children]),
        argument(
            "get-pattern",
            "pattern",
            &[token("GET"), flags(&["multiple", "multiple_token"])],
        ),
    ];
    for words in sentences("z", &arguments) {
        assert!(matches!(words[1].as_str(), "LEFT" | "RIGHT"));
        assert!(words[2..].chunks(2).all(|pair| pair.len() == 2 && pair[0] == "GET"));
    }
}
