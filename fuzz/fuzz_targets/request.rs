//! Fuzzes the request parser: the outcome must not depend on how the input is cut into pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_resp::{ArgRange, ParseOutcome, Parser, RequestLimits};

/// One outcome of parsing a stream: a request as its arguments, a protocol error, or an incomplete request at the end.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Request(Vec<Vec<u8>>),
    Refused(Vec<u8>),
    Unfinished,
}

/// Parses a stream that is received piece by piece. Returns its outcomes in order.
fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>, limits: &RequestLimits) -> Vec<Event> {
    let (mut parser, mut buffer, mut start) = (Parser::default(), Vec::new(), 0);
    let (mut ranges, mut events) = (Vec::<ArgRange>::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while start < buffer.len() {
            ranges.clear();
            let request = &buffer[start..];
            match parser.parse(request, &mut ranges, limits) {
                ParseOutcome::Incomplete { .. } => break,
                ParseOutcome::Request { consumed, argc } => {
                    assert!(consumed > 0 && consumed <= request.len());
                    assert_eq!(argc, ranges.len());
                    events.push(Event::Request(
                        ranges.iter().map(|range| range.of(request).to_vec()).collect(),
                    ));
                    start += consumed;
                }
                ParseOutcome::Inline { consumed, args } => {
                    assert!(consumed > 0 && consumed <= request.len());
                    events.push(Event::Request(args));
                    start += consumed;
                }
                ParseOutcome::Error(error) => {
                    events.push(Event::Refused(error.message().into_owned()));
                    return events;
                }
            }
        }
    }
    if start < buffer.len() {
        events.push(Event::Unfinished);
    }
    events
}

fuzz_target!(|input: &[u8]| {
    let Some((shape, stream)) = input.split_first() else {
        return;
    };
    let limits = RequestLimits {
        // A low limit makes it likely that the input exceeds it.
        max_bulk_len: if shape & 1 == 0 { 512 << 20 } else { 64 },
        is_authenticated: shape & 2 == 0,
    };
    let whole = events(std::iter::once(stream), &limits);
    let piece = usize::from(shape >> 2).max(1);
    assert_eq!(events(stream.chunks(piece), &limits), whole);
});
