//! Serves replicas: a thread that owns their connections, gives them all data once, and then the stream of the backlog.
//!
//! ```text
//!   worker: PSYNC ─▶ the connection moves here ─┬─ the backlog has what it misses ───────────────▶ Online
//!                                               └─▶ WaitsForDump ─▶ GetsDump (dump.rs) ─▶ its ACK ─▶ Online
//!
//!   log thread ─▶ backlog ─▶ this thread: from each replica's place, as much as its socket takes
//!   replica: REPLCONF ACK ─▶ what others know of it (`repl::Known`) ─▶ clients that WAIT
//! ```
//!
//! With `dual-channel-replication-enabled` the dump may go over a connection of its own (`channels.rs`).
//!
//! 1. A replica's place in the backlog is pinned from the moment of its data on, so nothing is lost while it gets the dump.
//! 2. While a dump is on its way nobody else writes to the sockets that get it.
//! 3. Who lags so far behind that the limits of `client-output-buffer-limit` are passed is disconnected.
//! 4. No worker waits for a replica, ever; clients that WAIT are parked and answered by mail.

mod channels;
mod dump;
mod requests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use weft_reactor::{Event, Output, Reactor, Received, Sent, unix_ms};

use crate::config::id;
use crate::feed;
use crate::keyspace::Seat;
use crate::net::client::{Flags, Introduction};
use crate::net::connection::Connection;
use crate::observe::{lock, log};
use crate::persist::aof::Phase;
use crate::persist::rdb::Format;
use crate::persist::running::Purpose;
use crate::repl::{Channel, HandoverState, Known, NO_LOG, Progress};
use crate::role::{self, Step};
use crate::state::{Message, Server, SupplyOrder, SyncRequest};
use channels::Grace;
use dump::DumpTarget;

/// Events taken in one turn.
const EVENTS_A_TURN: usize = 128;
/// Bytes of the backlog given to a socket at once.
const SEND_BYTES: usize = 256 * 1024;
/// Room made for each receive, bytes.
const RECEIVE_BYTES: usize = 16 * 1024;
/// How often things that depend on time are looked at.
const TICK: Duration = Duration::from_millis(100);
/// The same while somebody waits for this server's disk.
const SHORT_TICK: Duration = Duration::from_millis(5);

/// Starts the thread.
///
/// # Errors
/// When the operating system refuses it, or no seat is left at the keyspace.
pub fn start(server: &Arc<Server>, orders: mpsc::Receiver<SupplyOrder>) -> std::io::Result<()> {
    let seat = server
        .keyspace
        .slots
        .join()
        .ok_or_else(|| std::io::Error::other("no seat is left at the keyspace"))?;
    let reactor = Reactor::new()?;
    let _ = server.supply_waker.set(reactor.waker());
    let mut supplier = Supplier {
        server: server.clone(),
        seat,
        reactor,
        orders,
        replicas: HashMap::new(),
        next_token: 0,
        dump: None,
        graces: Vec::new(),
        last_tick: Instant::now(),
        alone_since: None,
    };
    supplier.server.repl.judge_replicas(&supplier.server.config);
    std::thread::Builder::new()
        .name("weft-supply".into())
        .spawn(move || supplier.run())?;
    Ok(())
}

/// One replica.
struct Replica {
    connection: Box<Connection>,
    introduction: Introduction,
    name: String,
    progress: Progress,
    /// Whether it asked with PSYNC.
    is_psync: bool,
    /// Whether the stream begins only when it has said that it has the dump.
    awaits_ack: bool,
    /// Since when it waits for a dump.
    since: Instant,
    heard: Instant,
    over_soft_limit_since: Option<Instant>,
}

impl Replica {
    fn id(&self) -> u64 {
        self.connection.client.id
    }

    fn gets_stream(&self) -> bool {
        matches!(self.progress, Progress::Online | Progress::LoadsDump) && !self.awaits_ack
    }
}

/// What a replica wants of a dump; one dump is for those who want the same.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Filters {
    without_data: bool,
    without_functions: bool,
    /// The version of a dump that goes to sockets; files are of the newest one.
    format: Format,
    /// It comes over a connection of its own.
    alone: bool,
}

/// A dump under way.
struct Dump {
    /// The clients that get it.
    replicas: Vec<u64>,
    with_mark: bool,
}

/// The thread's own.
struct Supplier {
    server: Arc<Server>,
    seat: Seat,
    reactor: Reactor,
    orders: mpsc::Receiver<SupplyOrder>,
    replicas: HashMap<usize, Replica>,
    next_token: usize,
    /// The dump under way.
    dump: Option<Dump>,
    /// What is kept for main channels that may still come.
    graces: Vec<Grace>,
    last_tick: Instant,
    /// Since when there has been no replica.
    alone_since: Option<Instant>,
}

impl Supplier {
    fn run(&mut self) {
        let mut events = Vec::new();
        loop {
            events.clear();
            self.server.repl.stand_still();
            let timeout = self.timeout();
            if let Err(error) = self.reactor.wait(timeout, &mut events, EVENTS_A_TURN) {
                panic!("serving replicas: waiting for events failed: {error}");
            }
            for event in events.drain(..) {
                match event {
                    Event::Readable(token) => self.receive(token),
                    Event::Writable(token) => self.sent(token),
                    Event::Closed(token) | Event::SendFailed(token) => self.close(token),
                    // There are no listeners here.
                    Event::Accepted(..) | Event::AcceptFailed(..) => {}
                }
            }
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
            self.pump_all();
            self.answer_waits();
            if self.server.repl.is_handing_over() {
                self.advance_handover();
            }
            if self.last_tick.elapsed() >= TICK {
                self.last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Without replicas it has next to nothing to do.
    fn timeout(&self) -> Option<Duration> {
        let for_disk = |wait: &crate::repl::Wait| wait.disk.is_some();
        if self.server.repl.replicas.waits().iter().any(for_disk) {
            return Some(SHORT_TICK);
        }
        let idle = self.replicas.is_empty() && self.alone_since.is_none();
        Some(if idle { Duration::from_secs(1) } else { TICK })
    }

    fn obey(&mut self, order: SupplyOrder) {
        match order {
            SupplyOrder::Adopt(connection, request) => self.adopt(connection, &request),
            SupplyOrder::DumpEnded {
                replicas,
                served,
                with_mark,
            } => self.end_dump(&replicas, &served, with_mark),
            SupplyOrder::DisconnectAll => {
                let awaited = self.server.repl.replicas.awaited().clone();
                awaited.into_iter().for_each(|client| self.give_up(client));
                let tokens: Vec<usize> = self.replicas.keys().copied().collect();
                tokens.into_iter().for_each(|token| self.close(token));
            }
            SupplyOrder::Disconnect(id) => {
                if let Some(token) = self.token_of(id) {
                    self.close(token);
                }
            }
            // What follows looks at everything.
            SupplyOrder::Look => {}
        }
    }

    fn token_of(&self, id: u64) -> Option<usize> {
        let found = self.replicas.iter().find(|(_, replica)| replica.id() == id);
        found.map(|(token, _)| *token)
    }

    // ---- coming and going -----------------------------------------------------------------------------------------

    fn adopt(&mut self, mut connection: Box<Connection>, request: &SyncRequest) {
        let Some(registered) = connection.in_transit.take() else {
            return;
        };
        let token = self.next_token;
        self.next_token += 1;
        let id = connection.client.id;
        connection.client.flags.put(Flags::REPLICA, true);
        let introduction = connection.client.introduction.as_deref().cloned().unwrap_or_default();
        let host = introduction.host(connection.client.ip()).to_owned();
        let name = introduction.name(connection.client.ip());
        if self.server.config.boolean(id::REPL_DISABLE_TCP_NODELAY) {
            // It only tunes.
            let _ = registered.socket.set_nodelay(false);
        }
        if let Err(error) = self.reactor.adopt(token, registered) {
            log::warning!("cannot watch the connection of a replica: {error}");
            self.server.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        if let Some(tls) = &connection.tls
            && tls.arrive(&mut self.reactor, token).is_err()
        {
            log::warning!("cannot go on sending to a replica");
        }
        log::notice!("Replica {name} asks for synchronization");
        let now = Instant::now();
        self.server.repl.replicas.known().push(Known {
            id,
            host,
            port: introduction.port,
            node: introduction.node.clone(),
            progress: Progress::WaitsForDump,
            channel: match introduction.is_dump_channel {
                true => Channel::Dump,
                false => Channel::Only,
            },
            acknowledged: 0,
            synced: -1,
            heard_s: unix_ms() / 1000,
        });
        self.alone_since = None;
        self.server.repl.replicas.has_readers.store(true, Ordering::Relaxed);
        let mut replica = Replica {
            connection,
            introduction,
            name,
            progress: Progress::WaitsForDump,
            is_psync: request.is_psync,
            awaits_ack: false,
            since: now,
            heard: now,
            over_soft_limit_since: None,
        };
        let resumes = self.try_to_resume(&mut replica, request);
        let dump_client = replica.introduction.dump_client;
        let has_dump = resumes && dump_client.is_some_and(|dump| self.associate(dump, &replica.name));
        let mut output = std::mem::take(&mut replica.connection.output);
        self.replicas.insert(token, replica);
        if self.send(token, &mut output) {
            match (resumes, has_dump) {
                (true, true) => self.stream_beside_dump(token),
                (true, false) => self.go_online(token, false),
                (false, _) => {
                    self.server.repl.replicas.full.fetch_add(1, Ordering::Relaxed);
                    self.tell_when_dump_begins();
                    self.begin_dump_if_due();
                }
            }
        }
        self.show_clients();
    }

    /// Lets a replica go on where it was, if the backlog has what it misses.
    fn try_to_resume(&self, replica: &mut Replica, request: &SyncRequest) -> bool {
        let Some(resume) = &request.resume else {
            return false;
        };
        let repl = &self.server.repl;
        if let Err(refusal) = repl.may_resume(resume) {
            refusal.tell(&replica.name, &repl.replicas);
            return false;
        }
        let wanted = resume.1;
        let history = repl.state().history.clone();
        let mut shelf = repl.replicas.shelf();
        let missing = shelf.extent().map_or(0, |extent| extent.end - (wanted - 1));
        shelf.pin(replica.id(), wanted - 1);
        drop(shelf);
        let answer = match replica.introduction.knows_renaming {
            true => format!("+CONTINUE {}\r\n", history.id),
            false => "+CONTINUE\r\n".to_owned(),
        };
        replica.connection.output.bytes.extend_from_slice(answer.as_bytes());
        log::notice!(
            "Partial resynchronization request from {} accepted. Sending {missing} bytes of backlog starting from offset \
             {wanted}.",
            replica.name
        );
        repl.replicas.partial.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn go_online(&mut self, token: usize, awaits_ack: bool) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        replica.progress = Progress::Online;
        replica.awaits_ack = awaits_ack;
        replica.heard = Instant::now();
        self.publish(token, |known| known.progress = Progress::Online);
        self.server.repl.judge_replicas(&self.server.config);
        self.pump(token);
    }

    fn close(&mut self, token: usize) {
        let Some(replica) = self.replicas.remove(&token) else {
            return;
        };
        match replica.introduction.is_dump_channel {
            true => log::notice!(
                "Dual channel replication: Replica {} rdb channel disconnected.",
                replica.name
            ),
            false => log::notice!("Connection with replica {} lost.", replica.name),
        }
        if let Some(tls) = &replica.connection.tls
            && replica.progress != Progress::GetsDump
        {
            tls.farewell(&mut self.reactor, token);
        }
        if let Some(registered) = self.reactor.deregister(token) {
            // Whoever writes a dump to it has a handle of its own.
            let _ = registered.socket.shutdown_both();
        }
        let id = replica.id();
        let server = self.server.clone();
        let replicas = &server.repl.replicas;
        if replicas.awaited().contains(&id) {
            self.postpone(id, &replica.name, replica.shown());
        } else {
            replicas.shelf().unpin(id);
        }
        replicas.known().retain(|known| known.id != id);
        lock(&server.linked_clients).remove(&id);
        server.directory.remove(id);
        server.connections.fetch_sub(1, Ordering::Relaxed);
        if self.replicas.is_empty() {
            self.alone_since = Some(Instant::now());
            replicas.has_readers.store(false, Ordering::Relaxed);
        }
        if let Some(dump) = &self.dump
            && !dump::outlives(&server, dump.with_mark)
            && !self
                .replicas
                .values()
                .any(|replica| dump.replicas.contains(&replica.id()))
            && server.snapshot.cancel(&[Purpose::Replicas])
            && !replica.introduction.is_dump_channel
        {
            log::notice!("Diskless rdb transfer, last replica dropped, killing fork child.");
        }
        self.server.repl.judge_replicas(&self.server.config);
    }

    /// Changes what others know of a replica.
    fn publish(&self, token: usize, change: impl FnOnce(&mut Known)) {
        let Some(replica) = self.replicas.get(&token) else {
            return;
        };
        let id = replica.id();
        let mut known = self.server.repl.replicas.known();
        if let Some(known) = known.iter_mut().find(|known| known.id == id) {
            change(known);
        }
    }

    // ---- bytes ------------------------------------------------------------------------------------------------------

    fn receive(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        let connection = &mut *replica.connection;
        let received = match &connection.tls {
            None => self.reactor.receive(token, &mut connection.input, RECEIVE_BYTES),
            Some(tls) => tls.receive(&mut self.reactor, token, &mut connection.input, RECEIVE_BYTES),
        };
        match received {
            Ok(Received::Bytes { count, .. }) => {
                connection.client.net_input_bytes += count as u64;
                connection.client.last_interaction_ms = unix_ms();
                replica.heard = Instant::now();
            }
            Ok(Received::WouldBlock) => return,
            Ok(Received::Closed) | Err(_) => return self.close(token),
        }
        self.listen(token);
    }

    /// Gives bytes to a socket; false if that is broken.
    fn send(&mut self, token: usize, output: &mut Output) -> bool {
        let length = output.len();
        if length == 0 {
            return true;
        }
        let tls = self
            .replicas
            .get(&token)
            .and_then(|replica| replica.connection.tls.as_ref());
        let sent = match tls {
            None => self.reactor.send(token, output),
            Some(tls) => tls.send(&mut self.reactor, token, output),
        };
        output.clear();
        let replicas = &self.server.repl.replicas;
        replicas.output_bytes.fetch_add(length as u64, Ordering::Relaxed);
        if let Some(replica) = self.replicas.get_mut(&token) {
            replica.connection.client.net_output_bytes += length as u64;
        }
        match sent {
            Ok(Sent::Done | Sent::InFlight(_)) => true,
            Err(_) => {
                self.close(token);
                false
            }
        }
    }

    /// What was in flight has gone.
    fn sent(&mut self, token: usize) {
        let tls = self
            .replicas
            .get(&token)
            .and_then(|replica| replica.connection.tls.clone());
        match tls.map(|tls| tls.go_on(&mut self.reactor, token)) {
            None | Some(Ok(_)) => self.pump(token),
            Some(Err(_)) => self.close(token),
        }
    }

    /// Bytes on their way to a replica.
    fn in_flight(&self, token: usize) -> usize {
        let replica = self.replicas.get(&token);
        self.reactor.in_flight(token) + replica.map_or(0, |replica| replica.connection.waiting_to_be_sealed())
    }

    fn pump_all(&mut self) {
        let tokens: Vec<usize> = self.replicas.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.pump(token));
    }

    /// Sends a replica what it misses, as much as its socket takes.
    fn pump(&mut self, token: usize) {
        let server = self.server.clone();
        loop {
            let Some(replica) = self.replicas.get(&token).filter(|replica| replica.gets_stream()) else {
                return;
            };
            if self.in_flight(token) > 0 {
                return;
            }
            let id = replica.id();
            let mut output = Output::new();
            {
                let mut shelf = server.repl.replicas.shelf();
                let Some(place) = shelf.place(id) else {
                    drop(shelf);
                    return self.close(token);
                };
                shelf.read(place, SEND_BYTES, &mut output.bytes);
                shelf.pin(id, place + output.bytes.len() as i64);
            }
            if output.is_empty() || !self.send(token, &mut output) {
                return;
            }
            let in_flight: usize = self.replicas.keys().map(|token| self.reactor.in_flight(*token)).sum();
            let under_way = &server.repl.replicas.under_way_bytes;
            under_way.store(in_flight as u64, Ordering::Relaxed);
        }
    }

    // ---- what others are told --------------------------------------------------------------------------------------

    /// Answers clients whose replicas are there.
    fn answer_waits(&self) {
        let server = &self.server;
        let replicas = &server.repl.replicas;
        let mut waits = replicas.waits();
        if waits.is_empty() {
            return;
        }
        waits.retain(|wait| {
            let Some(offset) = replicas.shelf().offset_of(wait.log_ticket) else {
                return true;
            };
            let bytes = match wait.disk {
                None => {
                    let having = replicas.having(offset);
                    (having >= wait.replicas).then(|| format!(":{having}\r\n").into_bytes())
                }
                Some(1..) if server.aof.phase() == Phase::Off => Some(NO_LOG.to_vec()),
                Some(disk) => {
                    let having = replicas.having_synced(offset);
                    let local = i64::from(server.is_on_disk(wait.log_ticket));
                    let enough = having >= wait.replicas && local >= disk;
                    enough.then(|| format!("*2\r\n:{local}\r\n:{having}\r\n").into_bytes())
                }
            };
            let Some(bytes) = bytes else {
                return true;
            };
            server.workers[wait.worker].send(Message::Reply {
                client: wait.client,
                ticket: wait.ticket,
                bytes,
            });
            false
        });
    }

    /// Shows replicas among the clients.
    fn show_clients(&self) {
        let shelf = self.server.repl.replicas.shelf();
        let end = shelf.extent().map_or(0, |extent| extent.end);
        let places: HashMap<u64, i64> = shelf.places().collect();
        drop(shelf);
        let place_of = |id: u64| places.get(&id);
        let mut shown = lock(&self.server.linked_clients);
        for (token, replica) in &self.replicas {
            let client = &replica.connection.client;
            // What the backlog has for it lies in no buffer of its own, and is told as if it did.
            let behind = place_of(client.id).map_or(0, |place| (end - place).max(0));
            let in_flight = self.reactor.in_flight(*token);
            let buffers = replica
                .connection
                .buffers(in_flight + usize::try_from(behind).unwrap_or(0));
            shown.insert(client.id, (client.shown(), buffers));
        }
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    fn tick(&mut self) {
        self.server.repl.judge_replicas(&self.server.config);
        self.show_clients();
        self.close_late();
        self.close_far_behind();
        self.end_graces();
        self.keep_waiting_alive();
        self.begin_dump_if_due();
        self.drop_unused_backlog();
    }

    /// Disconnects who has been silent for too long.
    fn close_late(&mut self) {
        let timeout = Duration::from_secs(self.server.config.unsigned(id::REPL_TIMEOUT));
        let streams = |replica: &Replica| matches!(replica.progress, Progress::Online | Progress::LoadsDump);
        let late = |replica: &Replica| streams(replica) && replica.heard.elapsed() > timeout;
        let tokens: Vec<usize> = self
            .replicas
            .iter()
            .filter(|(_, replica)| late(replica) && replica.is_psync)
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(replica) = self.replicas.get(&token) {
                log::warning!("Disconnecting timedout replica (streaming sync): {}", replica.name);
            }
            self.close(token);
        }
    }

    /// Gives a sign of life to those who wait for a dump.
    fn keep_waiting_alive(&mut self) {
        let period = Duration::from_secs(1);
        let waiting =
            |replica: &Replica| replica.progress == Progress::WaitsForDump && replica.heard.elapsed() > period;
        let tokens: Vec<usize> = self
            .replicas
            .iter()
            .filter(|(_, replica)| waiting(replica))
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(replica) = self.replicas.get_mut(&token) {
                replica.heard = Instant::now();
            }
            let mut output = Output::new();
            output.bytes.push(b'\n');
            self.send(token, &mut output);
        }
    }

    /// Drops the backlog when there has been no replica for `repl-backlog-ttl`.
    fn drop_unused_backlog(&mut self) {
        let ttl_s = self.server.config.unsigned(id::REPL_BACKLOG_TTL);
        let is_kept = !self.server.repl.follows() && self.server.repl.replicas.shelf().extent().is_some();
        if is_kept && self.replicas.is_empty() {
            // One that a dump told of was there before anybody asked for it.
            self.alone_since.get_or_insert_with(Instant::now);
        }
        let unused = self
            .alone_since
            .is_some_and(|since| since.elapsed() > Duration::from_secs(ttl_s));
        if ttl_s == 0 || !unused || self.server.repl.follows() {
            return;
        }
        self.alone_since = None;
        let server = &self.server;
        server.alone(&mut self.seat, |all| {
            if !server.repl.follows() {
                feed::close(server, all);
                log::notice!("Replication backlog freed after {ttl_s} seconds without connected replicas.");
            }
        });
    }

    /// Hands this server's role over, if somebody is ready for it.
    fn advance_handover(&mut self) {
        let server = &self.server;
        let step = role::handover_step(server);
        if step == Step::Wait {
            return;
        }
        server.alone(&mut self.seat, |_| match step {
            Step::Wait => {}
            Step::Abort => {
                role::abort_handover(server, "Replica never caught up before timeout");
            }
            Step::To(replica) => {
                if server.repl.handover().state == HandoverState::WaitForSync {
                    role::hand_over(server, replica);
                }
            }
        });
    }

    // ---- dumps ------------------------------------------------------------------------------------------------------

    /// Begins a dump for those who wait for one, if it is time.
    fn begin_dump_if_due(&mut self) {
        let config = &self.server.config;
        let waits = |replica: &&Replica| replica.progress == Progress::WaitsForDump;
        let waiting: Vec<&Replica> = self.replicas.values().filter(waits).collect();
        let Some(first) = waiting.iter().map(|replica| replica.since).min() else {
            return;
        };
        if self.dump.is_some() {
            return;
        }
        let never_in_file =
            |replica: &&Replica| replica.introduction.without_data || replica.introduction.is_dump_channel;
        let with_mark = waiting.iter().all(|replica| replica.introduction.knows_marks)
            && (config.boolean(id::REPL_DISKLESS_SYNC) || waiting.iter().any(never_in_file));
        if with_mark {
            let delay = Duration::from_secs(config.unsigned(id::REPL_DISKLESS_SYNC_DELAY));
            let most = config.unsigned(id::REPL_DISKLESS_SYNC_MAX_REPLICAS) as usize;
            let enough = most > 0 && waiting.len() >= most;
            if first.elapsed() < delay && !enough {
                return;
            }
        }
        let filters = |replica: &Replica| {
            let introduction = &replica.introduction;
            Filters {
                without_data: introduction.without_data,
                without_functions: introduction.without_functions,
                format: match with_mark {
                    true => Format::of_version(introduction.version),
                    false => Format::Newest,
                },
                alone: introduction.is_dump_channel,
            }
        };
        // One dump for those who want the same.
        let Some(wanted) = waiting.first().map(|replica| filters(replica)) else {
            return;
        };
        let meant = |(_, replica): &(&usize, &Replica)| waits(replica) && filters(replica) == wanted;
        let tokens = self.replicas.iter().filter(meant).map(|(token, _)| *token).collect();
        self.begin_dump(tokens, with_mark, wanted);
    }

    fn begin_dump(&mut self, tokens: Vec<usize>, with_mark: bool, filters: Filters) {
        if self.open_backlog().is_err() {
            return;
        }
        let mut targets = Vec::new();
        for token in &tokens {
            let Some(replica) = self.replicas.get(token) else {
                continue;
            };
            match self.reactor.socket(*token).map(DumpTarget::clone_of) {
                Some(Ok(socket)) => targets.push(DumpTarget::new(
                    replica.id(),
                    replica.name.clone(),
                    socket,
                    replica.connection.tls.clone(),
                    dump::Announcement::fitting(replica.is_psync, filters.alone),
                )),
                Some(Err(_)) | None => self.close(*token),
            }
        }
        let ids: Vec<u64> = targets.iter().map(|target| target.id).collect();
        let kind = if with_mark { "replicas sockets" } else { "disk" };
        let using = if filters.alone { "dual-channel" } else { "normal sync" };
        let wanted = dump::Wanted {
            format: filters.format,
            without_data: filters.without_data,
        };
        match dump::begin(&self.server, targets, with_mark, wanted) {
            Ok(()) => {
                log::notice!("Starting BGSAVE for SYNC with target: {kind} using: {using}");
                for token in &tokens {
                    if let Some(replica) = self.replicas.get_mut(token) {
                        replica.progress = Progress::GetsDump;
                    }
                    self.publish(*token, |known| known.progress = Progress::DumpBegun);
                }
                self.dump = Some(Dump {
                    replicas: ids,
                    with_mark,
                });
            }
            Err(dump::CannotBegin::Busy) => {
                // They go on waiting.
            }
            Err(dump::CannotBegin::Failed(reason)) => {
                log::warning!("BGSAVE for replication failed: {reason}");
                tokens.into_iter().for_each(|token| self.close(token));
            }
        }
    }

    /// Sees to it that there is a history to follow.
    fn open_backlog(&mut self) -> Result<(), ()> {
        let server = self.server.clone();
        if server.repl.follows() || server.repl.replicas.shelf().extent().is_some() {
            return Ok(());
        }
        let opened = server.alone(&mut self.seat, |all| {
            let needed = !server.repl.follows() && server.repl.replicas.shelf().extent().is_none();
            if needed { feed::open(&server, all) } else { Ok(()) }
        });
        opened.map_err(|error| log::warning!("Replicas cannot be served: {error}"))
    }

    fn end_dump(&mut self, replicas: &[u64], served: &[u64], with_mark: bool) {
        self.dump = None;
        for id in replicas {
            let Some(token) = self.token_of(*id) else {
                // It went away before its place was pinned.
                let is_awaited = self.server.repl.replicas.awaited().contains(id);
                match is_awaited {
                    true => self.postpone(*id, "gone", Vec::new()),
                    false => self.server.repl.replicas.shelf().unpin(*id),
                }
                continue;
            };
            if !served.contains(id) {
                self.close(token);
                continue;
            }
            let Some(replica) = self.replicas.get(&token) else {
                continue;
            };
            if with_mark {
                log::notice!(
                    "Streamed RDB transfer with replica {} succeeded (socket). Waiting for REPLCONF ACK from replica to \
                     enable streaming",
                    replica.name
                );
            }
            if replica.introduction.dump_only {
                log::notice!(
                    "RDB transfer completed, rdb only replica ({}) should be disconnected asap",
                    replica.name
                );
                self.close(token);
                continue;
            }
            log::notice!("Synchronization with replica {} succeeded", replica.name);
            self.go_online(token, with_mark);
        }
        self.begin_dump_if_due();
    }
}
