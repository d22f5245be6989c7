//! The part of HTTP that the endpoint speaks: parses a request, and writes a response (RFC 9110, RFC 9112).
//!
//! A connection serves one request, so that its bounds are those of a request. Every response says so (`Connection:
//! close`), and its body has a length.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_reactor::Output;

/// The maximum size of a request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// The maximum number of header lines of a request.
const MAX_HEADERS: usize = 64;

/// The content type of the text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const HTML_TYPE: &str = "text/html; charset=utf-8";

const ROOT_BODY: &str = "<!DOCTYPE html><title>Weft</title><p>Weft: <a href=\"/metrics\">metrics</a></p>\n";

/// A request, as far as the endpoint reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// `true` if the method is GET or HEAD.
    pub is_read: bool,
    /// `true` if the response has a body, which that to HEAD has not.
    pub wants_body: bool,
    /// The requested resource.
    pub path: Resource,
}

/// A resource of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The metrics.
    Metrics,
    /// A page that leads to the metrics.
    Root,
    /// The state of the server as a status code.
    Health,
    /// A resource that does not exist.
    Other,
}

/// The result of parsing the bytes that a client has sent so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedRequest {
    /// The request is not complete yet.
    Incomplete,
    /// The bytes are no request, or too long.
    Invalid,
    /// The request.
    Complete(HttpRequest),
}

/// Parses a request. A body is not expected, and bytes behind the head are ignored.
pub fn parse(input: &[u8]) -> ParsedRequest {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(input) {
        Ok(httparse::Status::Complete(head_bytes)) if head_bytes <= MAX_REQUEST_BYTES => {}
        Ok(httparse::Status::Partial) if input.len() <= MAX_REQUEST_BYTES => return ParsedRequest::Incomplete,
        Ok(_) | Err(_) => return ParsedRequest::Invalid,
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return ParsedRequest::Invalid;
    };
    let hosts = request.headers.iter().filter(|header| is_host(header)).count();
    // A request of HTTP/1.1 names the host once.
    if hosts > 1 || (version == 1 && hosts == 0) {
        return ParsedRequest::Invalid;
    }
    ParsedRequest::Complete(HttpRequest {
        is_read: matches!(method, "GET" | "HEAD"),
        wants_body: method != "HEAD",
        path: path_of(target),
    })
}

fn is_host(header: &httparse::Header<'_>) -> bool {
    header.name.eq_ignore_ascii_case("host")
}

/// Returns the resource of a request target: a path, or a URL as proxies send it. A query is ignored.
fn path_of(target: &str) -> Resource {
    let path = match target.strip_prefix("http://") {
        Some(url) => url.find('/').map_or("/", |start| &url[start..]),
        None => target,
    };
    match path.split('?').next().unwrap_or(path) {
        "/metrics" => Resource::Metrics,
        "/" => Resource::Root,
        "/health" => Resource::Health,
        _ => Resource::Other,
    }
}

/// A response. Its body can be sent to several clients.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    status: &'static str,
    content_type: &'static str,
    body: Arc<[u8]>,
    names_methods: bool,
}

impl HttpResponse {
    fn new(status: &'static str, content_type: &'static str, body: &[u8]) -> HttpResponse {
        HttpResponse {
            status,
            content_type,
            body: body.into(),
            names_methods: false,
        }
    }

    fn with_text(status: &'static str, text: &str) -> HttpResponse {
        HttpResponse::new(status, TEXT_TYPE, text.as_bytes())
    }

    /// Returns the size of the body in bytes.
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Writes the response. The response to HEAD has the length of the body, but no body.
    pub fn write_to(&self, output: &mut Output, with_body: bool) {
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        if let Some(date) = http_date(unix_ms() / 1000) {
            head += &format!("Date: {date}\r\n");
        }
        if self.names_methods {
            head += "Allow: GET, HEAD\r\n";
        }
        head += "\r\n";
        output.bytes.extend_from_slice(head.as_bytes());
        if with_body && !self.body.is_empty() {
            output.push_shared(Box::new(self.body.clone()));
        }
    }
}

/// Returns the time in the format of HTTP.
fn http_date(unix_s: u64) -> Option<String> {
    let time = jiff::Timestamp::from_second(i64::try_from(unix_s).ok()?).ok()?;
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    printer.timestamp_to_rfc9110_string(&time).ok()
}

/// Returns the response with the metrics.
pub fn metrics(text: Vec<u8>) -> HttpResponse {
    HttpResponse::new("200 OK", METRICS_TYPE, &text)
}

/// Returns the page that leads to the metrics.
pub fn root() -> HttpResponse {
    HttpResponse::new("200 OK", HTML_TYPE, ROOT_BODY.as_bytes())
}

/// Returns the response about the state of the server.
pub fn health(is_loading: bool) -> HttpResponse {
    match is_loading {
        false => HttpResponse::with_text("200 OK", "ok\n"),
        true => HttpResponse::with_text("503 Service Unavailable", "loading\n"),
    }
}

/// Returns the response to a path that does not exist.
pub fn not_found() -> HttpResponse {
    HttpResponse::with_text("404 Not Found", "not found\n")
}

/// Returns the response to a method other than GET and HEAD.
pub fn method_not_allowed() -> HttpResponse {
    HttpResponse {
        names_methods: true,
        ..HttpResponse::with_text("405 Method Not Allowed", "method not allowed\n")
    }
}

/// Returns the response to bytes that are no request.
pub fn bad_request() -> HttpResponse {
    HttpResponse::with_text("400 Bad HttpRequest", "bad request\n")
}

#[cfg(test)]
mod tests;
