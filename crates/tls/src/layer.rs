//! The TLS layer of one connection: decrypts input and encrypts output.

use std::cell::RefCell;
use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;

use rustls::Connection as Session;
use weft_os::sync::Mutex;
use weft_reactor::{Output, Reactor, ReceiveOutcome, SendOutcome, SendQueue, Token};

use super::error::SessionError;

/// The maximum bytes of one connection that are encrypted per turn, since all other connections wait meanwhile.
pub const TURN_SHARE_BYTES: usize = 512 * 1024;
/// The maximum bytes that are encrypted before they are offered to the socket.
const PART_BYTES: usize = 128 * 1024;
/// Output up to this size, in bytes, is encrypted even while other output is in flight.
const SMALL_BYTES: usize = 16 * 1024;
/// A record buffer with a larger capacity, in bytes, is freed after use.
const RECORD_BUFFER_KEPT_BYTES: usize = 256 * 1024;

thread_local! {
    /// The encrypted records of the current receive.
    static RECORDS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The TLS layer of a connection. Clones share one layer.
#[derive(Clone)]
pub struct TlsLayer(Arc<Mutex<TlsLayerState>>);

struct TlsLayerState {
    session: Session,
    /// The plain output that is encrypted when the socket accepts more. If it is not empty, either output is in flight
    /// or the reactor was asked to report when the socket is writable.
    pending_output: SendQueue,
    /// Set once the peer has announced the end of its data (`close_notify`).
    is_peer_closed: bool,
    /// The error that the client gets instead of service once the handshake has ended.
    refusal: Option<&'static str>,
}

impl TlsLayer {
    /// Creates the layer of a session that has not begun.
    pub fn new(mut session: Session) -> TlsLayer {
        // This layer limits the buffered bytes, so rustls need not.
        session.set_buffer_limit(None);
        TlsLayer(Arc::new(Mutex::new(TlsLayerState {
            session,
            pending_output: SendQueue::default(),
            is_peer_closed: false,
            refusal: None,
        })))
    }

    /// Refuses service: the client gets `text` once the handshake has ended.
    pub fn refuse(&self, text: &'static str) {
        self.0.lock().refusal = Some(text);
    }

    /// Returns the error that the client gets instead of service.
    pub fn refusal(&self) -> Option<&'static str> {
        self.0.lock().refusal
    }

    /// Sends the first message of the side that begins the handshake. The socket need not be connected yet.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn start_handshake(&self, reactor: &mut Reactor, token: Token) -> io::Result<()> {
        self.0.lock().send_encrypted(reactor, token).map(drop)
    }

    /// Returns `true` if the handshake has not ended.
    pub fn is_handshaking(&self) -> bool {
        self.0.lock().session.is_handshaking()
    }

    /// Returns the peer's certificate, in DER.
    pub fn peer_certificate(&self) -> Option<Vec<u8>> {
        let layer = self.0.lock();
        let first = layer.session.peer_certificates()?.first()?;
        Some(first.to_vec())
    }

    /// Returns the bytes of output that are not encrypted yet.
    pub fn unencrypted_bytes(&self) -> usize {
        self.0.lock().pending_output.len()
    }

    /// Returns the memory of the output that is not encrypted yet, in bytes, without that of shared values.
    pub fn unencrypted_memory(&self) -> usize {
        self.0.lock().pending_output.memory_bytes()
    }

    /// Receives as [`Reactor::receive`] does, and appends the decrypted bytes. `count` may be 0 if the records
    /// concerned only the session itself.
    ///
    /// # Errors
    /// If the connection is broken, or if the peer violates the protocol. In the second case an alert was sent.
    pub fn receive(
        &self,
        reactor: &mut Reactor,
        token: Token,
        into: &mut Vec<u8>,
        max_bytes: usize,
    ) -> io::Result<ReceiveOutcome> {
        let mut layer = self.0.lock();
        if layer.is_peer_closed {
            return Ok(ReceiveOutcome::Closed);
        }
        RECORDS.with_borrow_mut(|records| {
            records.clear();
            let more = match reactor.receive(token, records, max_bytes)? {
                ReceiveOutcome::Bytes { more, .. } => more,
                nothing @ (ReceiveOutcome::WouldBlock | ReceiveOutcome::Closed) => return Ok(nothing),
            };
            let before = into.len();
            let decrypted = layer.decrypt_into(records, into);
            if records.capacity() > RECORD_BUFFER_KEPT_BYTES {
                *records = Vec::new();
            }
            // The session's own messages, above all alerts.
            let sent = layer.send_encrypted(reactor, token);
            decrypted?;
            sent?;
            if layer.is_peer_closed {
                // No further event of the socket will report the end.
                reactor.request_readable(token);
            }
            Ok(ReceiveOutcome::Bytes {
                count: into.len() - before,
                more,
            })
        })
    }

    /// Sends as [`Reactor::send`] does. Output that is not encrypted yet counts as in flight.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn send(&self, reactor: &mut Reactor, token: Token, output: &mut Output) -> io::Result<SendOutcome> {
        let mut layer = self.0.lock();
        let length = output.len();
        let waits = !layer.pending_output.is_empty() || (length > SMALL_BYTES && reactor.in_flight(token) > 0);
        if waits {
            layer.pending_output.push(output);
        } else if length <= TURN_SHARE_BYTES && length == output.bytes.len() {
            layer.session.writer().write_all(&output.bytes)?;
            output.clear();
            layer.send_encrypted(reactor, token)?;
        } else {
            layer.pending_output.push(output);
            layer.encrypt_and_send(reactor, token)?;
        }
        Ok(layer.send_result(reactor, token))
    }

    /// Encrypts and sends more of the waiting output, after the socket has accepted all output in flight.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn continue_sending(&self, reactor: &mut Reactor, token: Token) -> io::Result<SendOutcome> {
        let mut layer = self.0.lock();
        layer.encrypt_and_send(reactor, token)?;
        Ok(layer.send_result(reactor, token))
    }

    /// Continues after the connection has moved to another reactor.
    ///
    /// # Errors
    /// If the reactor cannot register its interest in the socket.
    pub fn resume_on_reactor(&self, reactor: &mut Reactor, token: Token) -> io::Result<()> {
        let layer = self.0.lock();
        if layer.is_peer_closed {
            reactor.request_readable(token);
        }
        match layer.pending_output.is_empty() {
            true => Ok(()),
            false => reactor.request_writable(token),
        }
    }

    /// Sends `close_notify` to the peer if the socket accepts it at once.
    pub fn send_close_notify(&self, reactor: &mut Reactor, token: Token) {
        let mut layer = self.0.lock();
        if layer.session.is_handshaking() || !layer.pending_output.is_empty() || reactor.in_flight(token) > 0 {
            return;
        }
        layer.session.send_close_notify();
        // A peer that has disconnected need not be informed.
        let _ = layer.send_encrypted(reactor, token);
    }

    /// Encrypts bytes for a caller that writes to the socket itself.
    ///
    /// # Errors
    /// If the session is broken.
    pub fn encrypt(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut layer = self.0.lock();
        layer.session.writer().write_all(bytes)?;
        layer.take_encrypted()
    }
}

/// A session without a socket, for the fuzz targets.
pub struct SocketlessSession(TlsLayerState);

impl SocketlessSession {
    /// Creates a session that has not begun.
    pub fn new(mut session: Session) -> SocketlessSession {
        session.set_buffer_limit(None);
        SocketlessSession(TlsLayerState {
            session,
            pending_output: SendQueue::default(),
            is_peer_closed: false,
            refusal: None,
        })
    }

    /// Decrypts what the peer sent, and appends its contents.
    ///
    /// # Errors
    /// If the peer violates the protocol.
    pub fn decrypt_into(&mut self, records: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        if self.0.is_peer_closed {
            return Ok(());
        }
        self.0.decrypt_into(records, into)
    }

    /// Returns what is to be sent to the peer.
    ///
    /// # Errors
    /// If the session is broken.
    pub fn take_encrypted(&mut self) -> io::Result<Vec<u8>> {
        self.0.take_encrypted()
    }
}

impl TlsLayerState {
    /// Decrypts records and appends their contents.
    fn decrypt_into(&mut self, mut records: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        while !records.is_empty() && self.session.read_tls(&mut records)? > 0 {
            let state = self.session.process_new_packets().map_err(SessionError::from)?;
            let mut left = state.plaintext_bytes_to_read();
            self.is_peer_closed = state.peer_has_closed();
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
            if self.is_peer_closed {
                break;
            }
        }
        Ok(())
    }

    /// Returns all encrypted records that are ready to be sent.
    fn take_encrypted(&mut self) -> io::Result<Vec<u8>> {
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records)?;
        }
        Ok(records)
    }

    fn send_encrypted(&mut self, reactor: &mut Reactor, token: Token) -> io::Result<SendOutcome> {
        let mut output = Output::new();
        output.bytes = self.take_encrypted()?;
        reactor.send(token, &mut output)
    }

    fn encrypt_and_send(&mut self, reactor: &mut Reactor, token: Token) -> io::Result<()> {
        let mut share = TURN_SHARE_BYTES;
        while !self.pending_output.is_empty() && share > 0 {
            let mut part = share.min(PART_BYTES);
            while !self.pending_output.is_empty() && part > 0 {
                let piece = self.pending_output.front();
                let count = piece.len().min(part);
                self.session.writer().write_all(&piece[..count])?;
                self.pending_output.consume(count);
                part -= count;
                share -= count;
            }
            if self.send_encrypted(reactor, token)? != SendOutcome::Done {
                return Ok(());
            }
        }
        match self.pending_output.is_empty() {
            true => Ok(()),
            false => reactor.request_writable(token),
        }
    }

    fn send_result(&self, reactor: &Reactor, token: Token) -> SendOutcome {
        match reactor.in_flight(token) + self.pending_output.len() {
            0 => SendOutcome::Done,
            bytes => SendOutcome::InFlight(bytes),
        }
    }
}
