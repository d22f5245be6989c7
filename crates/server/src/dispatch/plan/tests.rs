//! Tests of inline requests with quotes.

use weft_base::{ClientId, ThreadIndex};

use super::*;
use crate::net::client::Client;

const MAX_BULK_LEN: u64 = 512 << 20;

/// Rewrites an input as the planner does: whenever it comes to an inline request with quotes. Returns the requests, the
/// rest that is not a complete request, and the number of times that the input was rewritten.
fn plan_input(mut input: Vec<u8>) -> (Vec<Vec<Vec<u8>>>, Vec<u8>, usize) {
    let limits = RequestLimits {
        max_bulk_len: MAX_BULK_LEN,
        is_authenticated: true,
    };
    let (mut parser, mut ranges) = (Parser::default(), Vec::new());
    let (mut requests, mut position, mut rewrites) = (Vec::new(), 0, 0);
    loop {
        ranges.clear();
        match parser.parse(&input[position..], &mut ranges, &limits) {
            ParseOutcome::Request { consumed, .. } => {
                let request = &input[position..position + consumed];
                let words = ranges.iter().map(|range: &ArgRange| range.of(request).to_vec());
                requests.push(words.collect());
                position += consumed;
            }
            ParseOutcome::Inline { .. } => {
                rewrite_quoted_requests(&mut input, position, MAX_BULK_LEN);
                rewrites += 1;
            }
            ParseOutcome::Incomplete { .. } | ParseOutcome::Error(_) => {
                return (requests, input.split_off(position), rewrites);
            }
        }
    }
}

#[test]
fn quoted_requests_are_rewritten_together_and_others_stay_as_they_are() {
    let quoted = "SET \"a b\" 'c'\r\n";
    let array = "*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$1\r\nc\r\n";
    let others = [
        "",
        "PING\r\n",
        "\r\n",
        "*0\r\n",
        // An argument that looks like a request.
        "*2\r\n$4\r\nECHO\r\n$10\r\nGET \"b\"\r\n\"\r\n",
        "ECHO \"unbalanced\r\n",
        "*x\r\n",
        "GET \"inc",
        "*2\r\n$3\r\nGET\r\n$9\r\nGET \"a\"\r\n",
    ];
    for (index, other) in others.into_iter().enumerate() {
        let mut input = format!("before{quoted}{other}{quoted}{other}").into_bytes();
        rewrite_quoted_requests(&mut input, "before".len(), MAX_BULK_LEN);
        // What is malformed or incomplete ends the requests.
        let second = if index < 5 { array } else { quoted };
        let expected = format!("before{array}{other}{second}{other}");
        assert_eq!(
            input.escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
    }
}

/// The input was moved once for each of them, which took minutes for some megabytes.
#[test]
fn a_long_pipeline_of_quoted_requests_is_rewritten_in_few_steps() {
    const REQUESTS: usize = 100_000;
    for (piece, of_piece) in [("SET \"a\" b\r\n", 1), ("SET \"a\" b\r\n*1\r\n$4\r\nPING\r\n", 2)] {
        let mut input = piece.repeat(REQUESTS).into_bytes();
        input.extend_from_slice(b"SET \"a");
        let (requests, rest, rewrites) = plan_input(input);
        assert_eq!(requests.len(), REQUESTS * of_piece);
        for request in requests.iter().step_by(of_piece) {
            assert_eq!(request, &[&b"SET"[..], b"a", b"b"]);
        }
        assert_eq!(rest, b"SET \"a");
        assert!(rewrites < 100, "{rewrites}");
    }
}

/// As in Valkey, whose limits before authentication apply to arrays only. A request that does not run at once, such as
/// AUTH during CLIENT PAUSE, is planned again.
#[test]
fn quoted_requests_before_authentication_are_limited_like_other_lines() {
    let keyspace = Keyspace::new(1, 2);
    let planner = Planner {
        keyspace: &keyspace,
        max_bulk_len: MAX_BULK_LEN,
        must_authenticate: true,
        is_prefetch_enabled: false,
        commands: crate::commands::registry(),
    };
    let (long, words) = ("p".repeat(20_000), vec!["a"; 20]);
    let many = words.join("' '");
    let requests: [(String, Vec<&str>); 5] = [
        (format!("AUTH \"{long}\"\r\n"), vec!["AUTH", long.as_str()]),
        ("AUTH plain\r\n".to_owned(), vec!["AUTH", "plain"]),
        (format!("MGET '{many}'\n"), [vec!["MGET"], words.clone()].concat()),
        ("\r\nAUTH \"\\x41 b\" ''\r\n".to_owned(), vec!["AUTH", "A b", ""]),
        ("*2\r\n$4\r\nAUTH\r\n$3\r\n\"a\"\r\n".to_owned(), vec!["AUTH", "\"a\""]),
    ];
    let mut connection = Connection::new(Client::new(ClientId::new(1), 0, ThreadIndex::FIRST));
    let mut plans = Plans::default();
    for (bytes, _) in &requests {
        connection.input.extend_from_slice(bytes.as_bytes());
    }
    connection.input.extend_from_slice(b"*11\r\n");
    for (_, words) in &requests {
        for runs in [false, false, true] {
            plans.clear();
            planner.plan(0, &mut connection, &mut plans);
            let [plan] = plans.plans.as_slice() else {
                panic!("{} requests are planned at a time", plans.plans.len());
            };
            let args = plan.args_of(&plans.ranges, &connection.input).iter();
            let args: Vec<_> = args.map(String::from_utf8_lossy).collect();
            assert_eq!(&args, words);
            if runs {
                connection.end_request(plan.end, || false);
            }
            connection.discard_consumed();
        }
    }
    plans.clear();
    planner.plan(0, &mut connection, &mut plans);
    let kinds: Vec<RequestKind> = plans.plans.iter().map(|plan| plan.kind).collect();
    assert!(matches!(
        kinds[..],
        [RequestKind::Malformed(ProtocolError::UnauthenticatedArrayLength)]
    ));
}
