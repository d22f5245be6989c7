//! Tests of requests and responses.

use super::*;

fn complete(input: &str) -> HttpRequest {
    match parse(input.as_bytes()) {
        ParsedRequest::Complete(request) => request,
        other => panic!("{other:?}: {input:?}"),
    }
}

#[test]
fn targets_lead_to_their_resources() {
    let cases = [
        ("/metrics", Resource::Metrics),
        ("/metrics?name[]=weft_keys", Resource::Metrics),
        ("http://localhost:9121/metrics", Resource::Metrics),
        ("http://localhost:9121", Resource::Root),
        ("/", Resource::Root),
        ("/?", Resource::Root),
        ("/health", Resource::Health),
        ("/metrics/", Resource::Other),
        ("//metrics", Resource::Other),
        ("/METRICS", Resource::Other),
        ("/%6detrics", Resource::Other),
        ("*", Resource::Other),
        ("metrics", Resource::Other),
    ];
    for (target, path) in cases {
        let request = complete(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(request.path, path, "{target}");
        assert!(request.is_read && request.wants_body);
    }
}

#[test]
fn only_get_and_head_read() {
    for (method, is_read, wants_body) in [
        ("GET", true, true),
        ("HEAD", true, false),
        ("POST", false, true),
        ("DELETE", false, true),
        ("get", false, true),
    ] {
        let request = complete(&format!("{method} /metrics HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((request.is_read, request.wants_body), (is_read, wants_body), "{method}");
    }
}

#[test]
fn every_beginning_of_a_request_is_incomplete() {
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n";
    for length in 0..request.len() {
        assert_eq!(parse(&request[..length]), ParsedRequest::Incomplete, "{length}");
    }
    assert!(matches!(parse(request), ParsedRequest::Complete(_)));
    // A second request, or a body, is ignored.
    let pipelined = [&request[..], &request[..]].concat();
    assert_eq!(parse(&pipelined), parse(request));
}

#[test]
fn what_is_no_request_is_invalid() {
    let long_line = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(10_000));
    let long_target = format!("GET /{} HTTP/1.1\r\n", "x".repeat(10_000));
    let many_lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(MAX_HEADERS));
    for input in [
        "PING\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost a\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
        &long_line,
        &long_line[..9_000],
        &long_target,
        &many_lines,
    ] {
        assert_eq!(parse(input.as_bytes()), ParsedRequest::Invalid, "{input:.60}");
    }
    // Version 1.0 has no such header.
    complete("GET / HTTP/1.0\r\n\r\n");
}

#[test]
fn a_request_may_have_the_maximum_size_and_not_a_byte_more() {
    let with_size = |bytes: usize| {
        let head = "GET /metrics HTTP/1.1\r\nHost: a\r\nX: ";
        format!("{head}{}\r\n\r\n", "x".repeat(bytes - head.len() - 4))
    };
    assert!(matches!(
        parse(with_size(MAX_REQUEST_BYTES).as_bytes()),
        ParsedRequest::Complete(_)
    ));
    assert_eq!(
        parse(with_size(MAX_REQUEST_BYTES + 1).as_bytes()),
        ParsedRequest::Invalid
    );
    let unfinished = &with_size(2 * MAX_REQUEST_BYTES)[..MAX_REQUEST_BYTES];
    assert_eq!(parse(unfinished.as_bytes()), ParsedRequest::Incomplete);
}

#[test]
fn any_bytes_are_parsed_without_a_panic() {
    let mut random = fastrand::Rng::with_seed(1);
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n";
    for _ in 0..20_000 {
        let mut bytes = request[..random.usize(..=request.len())].to_vec();
        for _ in 0..random.usize(..4) {
            let position = random.usize(..=bytes.len());
            bytes.insert(position, random.u8(..));
        }
        let _ = parse(&bytes);
    }
}

fn written(response: &HttpResponse, with_body: bool) -> String {
    let mut output = Output::new();
    response.write_to(&mut output, with_body);
    output.copy_shared();
    String::from_utf8(output.bytes).expect("the response is UTF-8")
}

#[test]
fn a_response_has_a_length_and_ends_the_connection() {
    let response = metrics(b"weft_keys 1\n".to_vec());
    let text = written(&response, true);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert_eq!(body, "weft_keys 1\n");
    let lines: Vec<&str> = head.split("\r\n").collect();
    assert_eq!(lines[0], "HTTP/1.1 200 OK");
    for line in [
        "Content-Type: text/plain; version=0.0.4; charset=utf-8",
        "Content-Length: 12",
        "Connection: close",
    ] {
        assert!(lines.contains(&line), "{head}");
    }
    // The response to HEAD is the same without the body.
    let head_only = written(&response, false);
    let without_date = |text: &str| -> Vec<String> {
        let lines = text.split("\r\n").filter(|line| !line.starts_with("Date: "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(without_date(head_only.trim_end()), without_date(head));
}

#[test]
fn statuses_and_dates_are_those_of_the_standard() {
    assert!(written(&method_not_allowed(), true).contains("\r\nAllow: GET, HEAD\r\n"));
    assert!(written(&health(true), true).starts_with("HTTP/1.1 503 "));
    assert!(written(&health(false), true).starts_with("HTTP/1.1 200 "));
    assert_eq!(http_date(784_111_777).as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
}
