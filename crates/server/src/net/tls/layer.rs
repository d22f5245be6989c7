//! The layer of one connection: unseals what comes in, seals what goes out.

use std::cell::RefCell;
use std::io::{self, BufRead as _, Write as _};
use std::sync::{Arc, Mutex};

use rustls::Connection as Session;
use weft_reactor::{Output, Reactor, Received, Sent, Token, Unsent};

use crate::observability::lock;

/// The most bytes of one connection that are sealed in a turn: everybody else waits meanwhile.
pub const SHARE_BYTES: usize = 512 * 1024;
/// The most that are sealed before the socket is asked whether it takes more.
const PART_BYTES: usize = 128 * 1024;
/// Output up to this size is sealed though something is in flight.
const SMALL_BYTES: usize = 16 * 1024;
/// A buffer for records that has grown larger is given back.
const KEPT_BYTES: usize = 256 * 1024;

thread_local! {
    /// Records as they came, for the time of one receive.
    static RECORDS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The layer of a connection. Clones are of the same one.
#[derive(Clone)]
pub struct Tls(Arc<Mutex<Layer>>);

struct Layer {
    session: Session,
    /// Plain output that is sealed when the socket takes more. If there is any, something is in flight, or the reactor was
    /// asked to tell when the socket takes more.
    waiting: Unsent,
    /// The peer has said that nothing more will come.
    peer_closed: bool,
    /// What the client is told when both sides have agreed: it is not served.
    refusal: Option<&'static str>,
}

impl Tls {
    /// A layer at its beginning.
    pub fn new(mut session: Session) -> Tls {
        // How much waits is decided here.
        session.set_buffer_limit(None);
        Tls(Arc::new(Mutex::new(Layer {
            session,
            waiting: Unsent::default(),
            peer_closed: false,
            refusal: None,
        })))
    }

    /// The client shall be told this as soon as it can be told anything, and not be served.
    pub fn refuse(&self, text: &'static str) {
        lock(&self.0).refusal = Some(text);
    }

    /// What the client is told instead of being served.
    pub fn refusal(&self) -> Option<&'static str> {
        lock(&self.0).refusal
    }

    /// Sends what a side that begins has to say. The socket need not stand yet.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn begin(&self, reactor: &mut Reactor, token: Token) -> io::Result<()> {
        lock(&self.0).send_sealed(reactor, token).map(drop)
    }

    /// Whether the two sides have not agreed yet.
    pub fn is_handshaking(&self) -> bool {
        lock(&self.0).session.is_handshaking()
    }

    /// The certificate that the peer showed.
    pub fn peer_certificate(&self) -> Option<Vec<u8>> {
        let layer = lock(&self.0);
        let first = layer.session.peer_certificates()?.first()?;
        Some(first.to_vec())
    }

    /// Bytes of output that are not sealed yet.
    pub fn waiting(&self) -> usize {
        lock(&self.0).waiting.len()
    }

    /// What [`Reactor::receive`] does, for the bytes in the records that come. `count` may be 0: then they were about the
    /// session itself.
    ///
    /// # Errors
    /// When the connection is broken, or the peer does not keep to the rules; it was told so.
    pub fn receive(
        &self,
        reactor: &mut Reactor,
        token: Token,
        into: &mut Vec<u8>,
        room: usize,
    ) -> io::Result<Received> {
        let mut layer = lock(&self.0);
        if layer.peer_closed {
            return Ok(Received::Closed);
        }
        RECORDS.with_borrow_mut(|records| {
            records.clear();
            let more = match reactor.receive(token, records, room)? {
                Received::Bytes { more, .. } => more,
                nothing @ (Received::WouldBlock | Received::Closed) => return Ok(nothing),
            };
            let before = into.len();
            let taken = layer.take_in(records, into);
            if records.capacity() > KEPT_BYTES {
                *records = Vec::new();
            }
            // Whatever the session has to say to that, complaints above all.
            let said = layer.send_sealed(reactor, token);
            taken?;
            said?;
            if layer.peer_closed {
                // Nothing will come any more that says so.
                reactor.report_again(token);
            }
            Ok(Received::Bytes {
                count: into.len() - before,
                more,
            })
        })
    }

    /// What [`Reactor::send`] does. In flight is also what is not sealed yet.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send(&self, reactor: &mut Reactor, token: Token, output: &mut Output) -> io::Result<Sent> {
        let mut layer = lock(&self.0);
        let length = output.len();
        let waits = !layer.waiting.is_empty() || (length > SMALL_BYTES && reactor.in_flight(token) > 0);
        if waits {
            layer.waiting.push(output);
        } else if length <= SHARE_BYTES && length == output.bytes.len() {
            layer.session.writer().write_all(&output.bytes)?;
            output.clear();
            layer.send_sealed(reactor, token)?;
        } else {
            layer.waiting.push(output);
            layer.go_on(reactor, token)?;
        }
        Ok(layer.sent(reactor, token))
    }

    /// Seals and sends more of what waits: the socket has taken all that was in flight.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn go_on(&self, reactor: &mut Reactor, token: Token) -> io::Result<Sent> {
        let mut layer = lock(&self.0);
        layer.go_on(reactor, token)?;
        Ok(layer.sent(reactor, token))
    }

    /// The connection has come to another reactor.
    ///
    /// # Errors
    /// When the system refuses something.
    pub fn arrive(&self, reactor: &mut Reactor, token: Token) -> io::Result<()> {
        let layer = lock(&self.0);
        if layer.peer_closed {
            reactor.report_again(token);
        }
        match layer.waiting.is_empty() {
            true => Ok(()),
            false => reactor.ask_writable(token),
        }
    }

    /// Tells the peer that nothing more will come, if the socket takes that at once.
    pub fn farewell(&self, reactor: &mut Reactor, token: Token) {
        let mut layer = lock(&self.0);
        if layer.session.is_handshaking() || !layer.waiting.is_empty() || reactor.in_flight(token) > 0 {
            return;
        }
        layer.session.send_close_notify();
        // Who is gone need not be told.
        let _ = layer.send_sealed(reactor, token);
    }

    /// Seals bytes for somebody who writes to the socket himself.
    ///
    /// # Errors
    /// When the session is broken.
    pub fn seal(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut layer = lock(&self.0);
        layer.session.writer().write_all(bytes)?;
        layer.sealed()
    }
}

impl Layer {
    /// Unseals records, and appends what is in them.
    fn take_in(&mut self, mut records: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        while !records.is_empty() && self.session.read_tls(&mut records)? > 0 {
            let state = self
                .session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let mut left = state.plaintext_bytes_to_read();
            self.peer_closed = state.peer_has_closed();
            into.reserve(left);
            let mut reader = self.session.reader();
            while left > 0 {
                let piece = reader.fill_buf()?;
                let count = piece.len().min(left);
                if count == 0 {
                    break;
                }
                into.extend_from_slice(&piece[..count]);
                reader.consume(count);
                left -= count;
            }
            if self.peer_closed {
                break;
            }
        }
        Ok(())
    }

    /// All records that are ready.
    fn sealed(&mut self) -> io::Result<Vec<u8>> {
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records)?;
        }
        Ok(records)
    }

    fn send_sealed(&mut self, reactor: &mut Reactor, token: Token) -> io::Result<Sent> {
        let mut output = Output::new();
        output.bytes = self.sealed()?;
        reactor.send(token, &mut output)
    }

    fn go_on(&mut self, reactor: &mut Reactor, token: Token) -> io::Result<()> {
        let mut share = SHARE_BYTES;
        while !self.waiting.is_empty() && share > 0 {
            let mut part = share.min(PART_BYTES);
            while !self.waiting.is_empty() && part > 0 {
                let piece = self.waiting.front();
                let count = piece.len().min(part);
                self.session.writer().write_all(&piece[..count])?;
                self.waiting.consume(count);
                part -= count;
                share -= count;
            }
            if self.send_sealed(reactor, token)? != Sent::Done {
                return Ok(());
            }
        }
        match self.waiting.is_empty() {
            true => Ok(()),
            false => reactor.ask_writable(token),
        }
    }

    fn sent(&self, reactor: &Reactor, token: Token) -> Sent {
        match reactor.in_flight(token) + self.waiting.len() {
            0 => Sent::Done,
            bytes => Sent::InFlight(bytes),
        }
    }
}
