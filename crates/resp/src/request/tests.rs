//! Tests of requests received whole, in every pair of pieces and byte by byte, and of malformed input.

use super::*;

const AUTHENTICATED: RequestLimits = RequestLimits {
    max_bulk_len: 512 << 20,
    is_authenticated: true,
};
const UNAUTHENTICATED: RequestLimits = RequestLimits {
    is_authenticated: false,
    ..AUTHENTICATED
};

/// One outcome of parsing a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Request(Vec<Vec<u8>>),
    Error(String),
    /// The stream ended inside a request.
    Incomplete,
}

use Event::{Error, Incomplete, Request};

/// A connection that receives a stream in pieces.
struct Connection {
    parser: Parser,
    buffer: Vec<u8>,
    start: usize,
    args: Vec<ArgRange>,
    events: Vec<Event>,
    limits: RequestLimits,
}

impl Connection {
    fn new(limits: RequestLimits) -> Self {
        Self {
            parser: Parser::default(),
            buffer: Vec::new(),
            start: 0,
            args: Vec::new(),
            events: Vec::new(),
            limits,
        }
    }

    /// Receives a piece. Returns `false` once the connection is closed.
    fn receive(&mut self, piece: &[u8]) -> bool {
        self.buffer.extend_from_slice(piece);
        loop {
            let request = &self.buffer[self.start..];
            let before = self.args.len();
            match self.parser.parse(request, &mut self.args, &self.limits) {
                ParseOutcome::Incomplete { missing_bytes: wanted } => {
                    assert_eq!(self.args.len(), before, "an incomplete request leaves no arguments");
                    assert_eq!(self.parser.is_idle(), request.is_empty());
                    assert!(wanted == 0 || wanted <= self.limits.max_bulk_len as usize + 2);
                    return true;
                }
                ParseOutcome::Request { consumed, argc } => {
                    assert_eq!(self.args.len(), before + argc);
                    let args = self.args[before..].iter().map(|arg| arg.of(request).to_vec());
                    self.events.push(Request(args.collect()));
                    self.start += consumed;
                }
                ParseOutcome::Inline { consumed, args } => {
                    assert_eq!(self.args.len(), before);
                    assert!(!args.is_empty());
                    self.events.push(Request(args));
                    self.start += consumed;
                }
                ParseOutcome::Error(error) => {
                    assert_eq!(self.args.len(), before);
                    let message = error.message().iter().copied().map(char::from).collect();
                    self.events.push(Error(message));
                    assert!(self.parser.is_idle());
                    return false;
                }
            }
            assert!(self.parser.is_idle(), "a finished request leaves nothing in the parser");
        }
    }

    fn finish(mut self) -> Vec<Event> {
        if !self.parser.is_idle() {
            self.events.push(Incomplete);
        }
        self.events
    }
}

fn parse_pieces<'p>(pieces: impl IntoIterator<Item = &'p [u8]>, limits: RequestLimits) -> Vec<Event> {
    let mut connection = Connection::new(limits);
    for piece in pieces {
        if !connection.receive(piece) {
            break;
        }
    }
    connection.finish()
}

fn parse_whole(stream: &[u8], limits: RequestLimits) -> Vec<Event> {
    parse_pieces([stream], limits)
}

/// Returns the outcome for a request with these arguments.
fn request(args: &[&str]) -> Event {
    // Each character stands for one byte, so that the tables below can contain any byte.
    Request(args.iter().map(|arg| arg.chars().map(|c| c as u8).collect()).collect())
}

fn error(message: &str) -> Event {
    Error(format!("Protocol error: {message}"))
}

fn check(cases: &[(&str, &[Event])], limits: RequestLimits) {
    for (stream, expected) in cases {
        let stream: Vec<u8> = stream.chars().map(|c| c as u8).collect();
        let text = stream.escape_ascii();
        assert_eq!(parse_whole(&stream, limits), *expected, "{text}");
        assert_eq!(parse_pieces(stream.chunks(1), limits), *expected, "{text} byte by byte");
        for cut in 0..=stream.len() {
            let (head, tail) = stream.split_at(cut);
            assert_eq!(parse_pieces([head, tail], limits), *expected, "{text} cut at {cut}");
        }
    }
}

#[test]
fn arrays_are_parsed() {
    let ping = || request(&["PING"]);
    let none = || request(&[]);
    check(
        &[
            ("", &[]),
            ("*1\r\n$4\r\nPING\r\n", &[ping()]),
            ("*2\r\n$3\r\nGET\r\n$0\r\n\r\n", &[request(&["GET", ""])]),
            (
                "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n*",
                &[ping(), ping(), Incomplete],
            ),
            (
                "*2\r\n$4\r\nECHO\r\n$6\r\n\r\n$1\r\n\r\n",
                &[request(&["ECHO", "\r\n$1\r\n"])],
            ),
            ("*1\r\n$12\r\nabcdefghijkl\r\n", &[request(&["abcdefghijkl"])]),
            ("*0\r\nPING\r\n", &[none(), ping()]),
            ("*-1\r\nPING\r\n", &[none(), ping()]),
            ("*-9223372036854775808\r\nPING\r\n", &[none(), ping()]),
            ("*2147483647\r\n", &[Incomplete]),
            ("*1\r", &[Incomplete]),
            ("*1\n$4\nPING\n", &[Incomplete]),
            ("*1\0x", &[Incomplete]),
            ("*1\r\nx", &[Incomplete]),
            ("*1\r\nx\r", &[Incomplete]),
            ("*1\r\n$4\r\nPING\r", &[Incomplete]),
            ("*1\r\n$4\r\nPINGx", &[Incomplete]),
            ("*1\r\n$536870912\r\n", &[Incomplete]),
        ],
        AUTHENTICATED,
    );
}

#[test]
fn malformed_arrays_are_refused() {
    let count = || error("invalid multibulk length");
    let len = || error("invalid bulk length");
    let line_end = || error("invalid CRLF in request");
    let expected = |got: char| error(&format!("expected '$', got '{got}'"));
    check(
        &[
            ("*abc\r\n", &[count()]),
            ("*\r\n", &[count()]),
            ("*2147483648\r\n", &[count()]),
            ("*9223372036854775808\r\n", &[count()]),
            ("*-0\r\n", &[count()]),
            ("*00\r\n", &[count()]),
            ("*01\r\n", &[count()]),
            ("*+1\r\n", &[count()]),
            ("*1 \r\n", &[count()]),
            ("*1\0\r\n", &[count()]),
            ("*\x001\r\n", &[count()]),
            ("*1\n$4\nPING\n\r\n", &[count()]),
            ("*1\r\n4\r\nPING\r\n", &[expected('4')]),
            ("*1\r\n*1\r\n", &[expected('*')]),
            ("*2\r\n$4\r\nPING\r\n:1\r\n", &[expected(':')]),
            ("*1\r\n\r\n$4\r\nPING\r\n", &[expected(' ')]),
            ("*1\r\n\n\r\n", &[expected(' ')]),
            ("*1\r\n\r\r", &[expected(' ')]),
            ("*1\r\nx\rx", &[expected('x')]),
            ("*1\r\n\0\r\n", &[expected('\0')]),
            ("*1\r\n\u{ff}\r\n", &[expected('\u{ff}')]),
            ("*1\r\n$\r\n", &[len()]),
            ("*1\r\n$-1\r\n", &[len()]),
            ("*1\r\n$04\r\nPING\r\n", &[len()]),
            ("*1\r\n$+4\r\nPING\r\n", &[len()]),
            ("*1\r\n$4\0\r\nPING\r\n", &[len()]),
            ("*3\r\n$3\r\nSET\r\n$x\r\n", &[len()]),
            ("*1\r\n$536870913\r\n", &[len()]),
            ("*1\r\n$9223372036854775808\r\n", &[len()]),
            ("*abc\rx", &[line_end()]),
            ("*0\rxPING\n", &[line_end()]),
            ("*2147483648\rx", &[line_end()]),
            ("*1\rx$4\r\nPING\r\n", &[line_end()]),
            ("*1\r\r\n", &[line_end()]),
            ("*1\r\n$abc\rx", &[line_end()]),
            ("*1\r\n$999999999999\rx", &[line_end()]),
            ("*1\r\n$4\rxPING\r\n", &[line_end()]),
            ("*1\r\n$4\r\r\nPING\r\n", &[line_end()]),
            ("*1\r\n$4\r\nPINGxx", &[line_end()]),
            ("*1\r\n$4\r\nPING\rx", &[line_end()]),
            ("*1\r\n$4\r\nPING\n\r", &[line_end()]),
        ],
        AUTHENTICATED,
    );
}

#[test]
fn inline_lines_are_parsed() {
    let ping = || request(&["PING"]);
    let none = || request(&[]);
    check(
        &[
            ("PING\n", &[ping()]),
            ("PING\r\n", &[ping()]),
            ("\n\r\nPING\n", &[none(), none(), ping()]),
            ("   \nPING\n", &[none(), ping()]),
            (" PING \r\r\n", &[ping()]),
            ("\rPING\n", &[ping()]),
            ("\u{b}PING\n", &[ping()]),
            ("PI\rNG\n", &[request(&["PI", "NG"])]),
            ("SET  key\tvalue\n", &[request(&["SET", "key", "value"])]),
            ("PING a\u{b}b\n", &[request(&["PING", "a\u{b}b"])]),
            ("PING a\u{c}\n", &[request(&["PING", "a\u{c}"])]),
            ("PING \u{b} a\n", &[request(&["PING", "a"])]),
            ("\"PING\"x\n", &[request(&["PINGx"])]),
            ("\"\"\n", &[request(&[""])]),
            ("PING \"\\x41\\n\\q\"\n", &[request(&["PING", "A\nq"])]),
            ("PING 'a\\'b\\n'\n", &[request(&["PING", "a'b\\n"])]),
            ("PING \"a\\\"\r\n*0\r\n", &[request(&["PING", "a\\"]), none()]),
            ("PING \u{ff}\n", &[request(&["PING", ""])]),
            ("PING a\u{a0}\n", &[request(&["PING", "a\u{a0}"])]),
            ("$4\r\nPING\r\n", &[request(&["$4"]), ping()]),
            ("\"PI\n", &[error("unbalanced quotes in request")]),
            ("'PI\n", &[error("unbalanced quotes in request")]),
            ("PING", &[Incomplete]),
            ("\0", &[Incomplete]),
            ("PI\0NG\n*1\r\n$4\r\nPING\r\n", &[Incomplete]),
        ],
        AUTHENTICATED,
    );
}

#[test]
fn unauthenticated_clients_have_low_limits() {
    check(
        &[
            ("*10\r\n", &[Incomplete]),
            ("*11\r\n", &[error("unauthenticated multibulk length")]),
            ("*11\rx", &[error("invalid CRLF in request")]),
            ("*2147483648\r\n", &[error("invalid multibulk length")]),
            ("*1\r\n$16384\r\n", &[Incomplete]),
            ("*1\r\n$16385\r\n", &[error("unauthenticated bulk length")]),
            ("*1\r\n$16385\rx", &[error("invalid CRLF in request")]),
            ("*1\r\n$999999999999\r\n", &[error("invalid bulk length")]),
            (
                "a b c d e f g h i j k l\n",
                &[request(&"abcdefghijkl".split("").collect::<Vec<_>>()[1..13])],
            ),
        ],
        UNAUTHENTICATED,
    );
}

#[test]
fn short_bulk_strings_obey_the_limit() {
    let limits = RequestLimits {
        max_bulk_len: 3,
        is_authenticated: true,
    };
    check(
        &[
            ("*1\r\n$3\r\nGET\r\n", &[request(&["GET"])]),
            ("*1\r\n$4\r\n", &[error("invalid bulk length")]),
            ("*1\r\n$4000\r\n", &[error("invalid bulk length")]),
        ],
        limits,
    );
}

#[test]
fn every_header_length_is_parsed() {
    for len in [0, 1, 9, 10, 11, 99, 100, 999, 1000, 9999, 10_000, 70_000] {
        let value = vec![b'v'; len];
        let mut stream = format!("*2\r\n$4\r\nECHO\r\n${len}\r\n").into_bytes();
        stream.extend_from_slice(&value);
        stream.extend_from_slice(b"\r\n");
        let expected = [Request(vec![b"ECHO".to_vec(), value])];
        assert_eq!(parse_whole(&stream, AUTHENTICATED), expected, "{len}");
        assert_eq!(parse_pieces(stream.chunks(7), AUTHENTICATED), expected, "{len}");
    }
}

#[test]
fn an_incomplete_bulk_string_reports_the_missing_bytes() {
    let mut parser = Parser::default();
    let mut args = Vec::new();
    let mut parse = |stream: &[u8]| parser.parse(stream, &mut args, &AUTHENTICATED);
    assert_eq!(parse(b"*1\r\n$10"), ParseOutcome::Incomplete { missing_bytes: 0 });
    assert_eq!(
        parse(b"*1\r\n$100\r\n"),
        ParseOutcome::Incomplete { missing_bytes: 102 }
    );
    assert_eq!(
        parse(b"*1\r\n$100\r\nabc"),
        ParseOutcome::Incomplete { missing_bytes: 99 }
    );
}

#[test]
fn a_reset_parser_starts_over() {
    let mut parser = Parser::default();
    let mut args = Vec::new();
    parser.parse(b"*2\r\n$3\r\nGET\r\n$3\r\nk", &mut args, &AUTHENTICATED);
    assert!(!parser.is_idle());
    parser.reset();
    assert!(parser.is_idle());
    let outcome = parser.parse(b"PING\r\n", &mut args, &AUTHENTICATED);
    assert_eq!(outcome, ParseOutcome::Request { consumed: 6, argc: 1 });
    assert_eq!(args, [ArgRange { start: 0, len: 4 }]);
}

/// Each case consists of the start of a line, the byte that repeats up to the limit, and the error for one byte more.
#[test]
fn unterminated_lines_are_refused_after_64_kib() {
    let cases: [(&[u8], u8, &str); 6] = [
        (b"", b'a', "too big inline request"),
        (b"PING ", b'a', "too big inline request"),
        (b"PI\0NG\n", b'a', "too big inline request"),
        (b"*", b'1', "too big mbulk count string"),
        (b"$", b'1', "too big bulk count string"),
        (b"x", b'x', "too big bulk count string"),
    ];
    for (head, filler, message) in cases {
        let prefix: &[u8] = if matches!(head, b"$" | b"x") { b"*1\r\n" } else { b"" };
        let mut stream = [prefix, head].concat();
        stream.resize(prefix.len() + LINE_MAX_LEN, filler);
        assert_eq!(parse_whole(&stream, AUTHENTICATED), [Incomplete], "{message}");
        stream.push(filler);
        for chunk in [1, 1000, 1 << 20] {
            let events = parse_pieces(stream.chunks(chunk), AUTHENTICATED);
            assert_eq!(events, [error(message)], "in pieces of {chunk}");
        }
        stream.extend_from_slice(b"\r\n");
        assert_eq!(parse_whole(&stream, AUTHENTICATED), [error(message)]);
    }
    let mut longest = vec![b'a'; LINE_MAX_LEN];
    longest.push(b'\n');
    assert_eq!(parse_whole(&longest, AUTHENTICATED).len(), 1);
    assert!(matches!(parse_whole(&longest, AUTHENTICATED)[0], Request(_)));
}

#[test]
fn a_request_above_4_gib_is_refused() {
    let limits = RequestLimits {
        max_bulk_len: u64::MAX,
        is_authenticated: true,
    };
    for len in ["4294967295", "4294967296", "9223372036854775807"] {
        let stream = format!("*1\r\n${len}\r\n");
        assert_eq!(
            parse_whole(stream.as_bytes(), limits),
            [error("too big request")],
            "{len}"
        );
    }
}

#[test]
fn a_request_byte_by_byte_is_not_scanned_again() {
    let mut stream = b"*20000\r\n".to_vec();
    for _ in 0..20_000 {
        stream.extend_from_slice(b"$1\r\nx\r\n");
    }
    // Quadratic work would take ten billion steps.
    assert_eq!(parse_pieces(stream.chunks(1), AUTHENTICATED).len(), 1);
}

/// Returns a random stream that is mostly well-formed.
fn random_stream(random: &mut fastrand::Rng) -> Vec<u8> {
    const PIECES: [&[u8]; 22] = [
        b"*1\r\n",
        b"*2\r\n",
        b"*3\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*12\r\n",
        b"$1\r\n",
        b"$3\r\n",
        b"$0\r\n",
        b"$10\r\n",
        b"$x\r\n",
        b"abc",
        b"\r\n",
        b"\n",
        b"\r",
        b"PING\r\n",
        b"\"a b\"",
        b"'",
        b"\\",
        b"\0",
        b"\xff",
        b" ",
    ];
    let mut stream = Vec::new();
    for _ in 0..random.usize(1..12) {
        match random.u8(0..4) {
            0 => stream.extend_from_slice(PIECES[random.usize(0..PIECES.len())]),
            _ => append_request(random, &mut stream),
        }
    }
    if random.u8(0..4) == 0 {
        let at = random.usize(0..stream.len().max(1));
        if let Some(byte) = stream.get_mut(at) {
            *byte = random.u8(..);
        }
    }
    stream
}

fn append_request(random: &mut fastrand::Rng, stream: &mut Vec<u8>) {
    let argc = random.usize(1..15);
    stream.extend_from_slice(format!("*{argc}\r\n").as_bytes());
    for _ in 0..argc {
        let len = if random.bool() {
            random.usize(0..5)
        } else {
            random.usize(0..130)
        };
        stream.extend_from_slice(format!("${len}\r\n").as_bytes());
        stream.extend((0..len).map(|_| random.u8(..)));
        stream.extend_from_slice(b"\r\n");
    }
}

fn random_pieces<'s>(random: &mut fastrand::Rng, mut stream: &'s [u8]) -> Vec<&'s [u8]> {
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        let longest = if random.bool() { 4 } else { 60 };
        let (piece, rest) = stream.split_at(random.usize(1..=stream.len().min(longest)));
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

#[test]
fn splitting_the_input_does_not_change_the_outcome() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..4000 {
        let stream = random_stream(&mut random);
        let limits = if random.bool() { AUTHENTICATED } else { UNAUTHENTICATED };
        let whole = parse_whole(&stream, limits);
        let pieces = random_pieces(&mut random, &stream);
        assert_eq!(parse_pieces(pieces, limits), whole, "{}", stream.escape_ascii());
        assert_eq!(
            parse_pieces(stream.chunks(1), limits),
            whole,
            "{}",
            stream.escape_ascii()
        );
    }
}

#[test]
fn well_formed_requests_are_parsed_unchanged() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..2000 {
        let args: Vec<Vec<u8>> = (0..random.usize(1..40))
            .map(|_| (0..random.usize(0..200)).map(|_| random.u8(..)).collect())
            .collect();
        let mut stream = format!("*{}\r\n", args.len()).into_bytes();
        for arg in &args {
            stream.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            stream.extend_from_slice(arg);
            stream.extend_from_slice(b"\r\n");
        }
        let pieces = random_pieces(&mut random, &stream);
        assert_eq!(parse_pieces(pieces, AUTHENTICATED), [Request(args)]);
    }
}

#[test]
fn malformed_input_does_not_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let stream: Vec<u8> = match random.u8(0..3) {
            0 => (0..random.usize(0..60)).map(|_| random.u8(..)).collect(),
            1 => (0..random.usize(0..60))
                .map(|_| *random.choice(b"*$0123\r\n\"'\\ x-").unwrap())
                .collect(),
            _ => {
                let mut stream = b"*2\r\n$".to_vec();
                stream.extend((0..random.usize(0..40)).map(|_| *random.choice(b"$019\r\n-").unwrap()));
                stream
            }
        };
        let whole = parse_whole(&stream, AUTHENTICATED);
        assert_eq!(
            parse_pieces(stream.chunks(1), AUTHENTICATED),
            whole,
            "{}",
            stream.escape_ascii()
        );
    }
}

#[test]
fn the_parsed_part_of_an_incomplete_request_is_known() {
    let mut parser = Parser::default();
    let mut args = Vec::new();
    let request = b"*3\r\n$3\r\nSET\r\n$4\r\nname\r\n$100\r\nvalue";
    let mut parsed = |received: usize, parser: &mut Parser| {
        let outcome = parser.parse(&request[..received], &mut args, &AUTHENTICATED);
        assert!(matches!(outcome, ParseOutcome::Incomplete { .. }));
        (parser.parsed_bytes(), parser.argument_bytes())
    };
    assert_eq!(parsed(2, &mut parser), (0, 0));
    assert_eq!(parsed(4, &mut parser), (4, 0));
    assert_eq!(parsed(13, &mut parser), (13, 3));
    assert_eq!(parsed(25, &mut parser), (23, 7));
    assert_eq!(parsed(request.len(), &mut parser), (29, 7));
    parser.reset();
    assert_eq!((parser.parsed_bytes(), parser.argument_bytes()), (0, 0));
}

/// The figure is asked for after each piece of a request, so it must not be added up anew each time.
#[test]
fn the_length_of_the_parsed_arguments_is_that_of_all_pieces() {
    let mut request = b"*1000\r\n".to_vec();
    for number in 0..1000 {
        let arg = "x".repeat(number % 7);
        request.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
    let (mut parser, mut args) = (Parser::default(), Vec::new());
    for received in 1..request.len() {
        let outcome = parser.parse(&request[..received], &mut args, &AUTHENTICATED);
        assert!(matches!(outcome, ParseOutcome::Incomplete { .. }));
        let kept: usize = parser.partial.iter().map(|arg| arg.len as usize).sum();
        assert_eq!(parser.argument_bytes(), kept);
    }
    let consumed = request.len();
    let outcome = parser.parse(&request, &mut args, &AUTHENTICATED);
    assert_eq!(outcome, ParseOutcome::Request { consumed, argc: 1000 });
    assert_eq!(parser.argument_bytes(), 0);
    // A request that turns out to be malformed leaves nothing behind either.
    let malformed = b"*2\r\n$3\r\nGET\r\n:";
    for received in [13, malformed.len()] {
        parser.parse(&malformed[..received], &mut args, &AUTHENTICATED);
    }
    let outcome = parser.parse(b"*2\r\n$3\r\nGET\r\n:\r\n", &mut args, &AUTHENTICATED);
    assert_eq!(outcome, ParseOutcome::Error(ProtocolError::ExpectedBulk(b':')));
    assert_eq!(parser.argument_bytes(), 0);
}
