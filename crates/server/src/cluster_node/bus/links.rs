//! The sockets of the cluster bus, and the bytes received over them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weft_reactor::{Listener, Output, Reactor, ReceiveOutcome, Socket};

use crate::net::listeners::{BindAddress, VALID_ADDRESSES};
use crate::observability::log;
use weft_cluster::links::LinkAddresses;
use weft_cluster::message::{BusMessage, InvalidMessage, MessageType, decode, kind, length};
use weft_cluster::node::LinkId;
use weft_cluster::settings::ClusterSettings;
use weft_config::{Config, id};
use weft_tls::TlsLayer;

/// The buffer space reserved for each receive, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// The maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 511;

/// The number of low bits of a link's id that are its index. Those above are its generation.
const INDEX_BITS: u32 = 32;

/// The receive state of one link.
struct BusLink {
    id: LinkId,
    received: Vec<u8>,
    ends: LinkAddresses,
    tls: Option<TlsLayer>,
}

/// All links. A link's id is its reactor token: an index, which is used again, and above it a generation, which is not.
/// So an action that was queued for a link that is gone does not reach a later one. The listeners have the first
/// indexes.
pub struct BusLinks {
    listeners: usize,
    links: Vec<Option<BusLink>>,
    last_generation: u32,
}

/// The result of receiving from a link.
#[derive(Default)]
pub struct ReceivedMessages {
    /// The received messages.
    pub messages: Vec<ReceivedMessage>,
    /// `true` if the link is closed or unusable.
    pub is_closed: bool,
    /// The number of bytes received.
    pub bytes: u64,
    /// The addresses of the link's endpoints.
    pub ends: LinkAddresses,
}

/// A received message. Its content is `None` if it is invalid.
pub struct ReceivedMessage {
    /// The message kind, if it is a known one.
    pub kind: Option<MessageType>,
    /// The decoded content.
    pub content: Option<BusMessage>,
}

impl BusLinks {
    /// Opens the sockets that other nodes connect to.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn listen(config: &Config, reactor: &mut Reactor) -> io::Result<Self> {
        let port = bus_port(config)?;
        let mut listeners = 0;
        let mut open = Vec::new();
        for word in config.addresses(id::BIND).iter() {
            let address = BindAddress::parse(word);
            let ip = address.address();
            if ip.as_ref().is_ok_and(|ip| open.contains(ip)) {
                continue;
            }
            open.extend(ip.as_ref().ok());
            match ip.and_then(|ip| Listener::tcp(ip, port, BACKLOG)) {
                Ok(listener) => {
                    reactor.register_listener(listeners, listener)?;
                    listeners += 1;
                }
                Err(error) => {
                    address.log_failure(port, &error);
                    if !address.tolerates(&error) {
                        log_port_failure(port, &error, config);
                        return Err(error);
                    }
                }
            }
        }
        Ok(BusLinks {
            listeners,
            links: Vec::new(),
            last_generation: 0,
        })
    }

    /// Returns the index of a link in `links`, unless it is gone.
    fn place_of(&self, link: LinkId) -> Option<usize> {
        let place = (link as u32 as usize).checked_sub(self.listeners)?;
        let known = self.links.get(place)?.as_ref()?;
        (known.id == link).then_some(place)
    }

    fn link(&self, link: LinkId) -> Option<&BusLink> {
        self.links.get(self.place_of(link)?)?.as_ref()
    }

    fn link_mut(&mut self, link: LinkId) -> Option<&mut BusLink> {
        let place = self.place_of(link)?;
        self.links.get_mut(place)?.as_mut()
    }

    /// Adds a connection. Returns `None` if it cannot be used.
    pub fn add(&mut self, reactor: &mut Reactor, socket: Socket, tls: Option<TlsLayer>) -> Option<LinkId> {
        // Both options only affect performance and failure detection.
        let _ = socket.set_nodelay(true);
        let _ = socket.set_keepalive(10);
        let free = self.links.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.last_generation = self.last_generation.wrapping_add(1);
        let link = (self.last_generation as usize) << INDEX_BITS | (self.listeners + place);
        let ends = LinkAddresses {
            peer: host_of(&socket.peer_name()),
            local: host_of(&socket.local_name()),
        };
        if let Err(error) = reactor.register(link, socket) {
            log::warning!("Cannot register a cluster bus link: {error}");
            return None;
        }
        if let Some(tls) = &tls
            && let Err(error) = tls.start_handshake(reactor, link)
        {
            log::verbose!("Connection with a node failed: {error}");
            drop(reactor.deregister(link));
            return None;
        }
        self.links[place] = Some(BusLink {
            id: link,
            received: Vec::new(),
            ends,
            tls,
        });
        Some(link)
    }

    /// Starts to connect to a node.
    pub fn connect(&mut self, reactor: &mut Reactor, ip: &str, port: u16, tls: Option<TlsLayer>) -> Option<LinkId> {
        let address = SocketAddr::new(ip.parse::<IpAddr>().ok()?, port);
        let socket = Socket::connect_tcp(address).ok()?;
        let link = self.add(reactor, socket, tls)?;
        if let Some(known) = self.link_mut(link) {
            known.ends.peer = ip.to_owned();
        }
        Some(link)
    }

    /// Closes a link.
    pub fn remove(&mut self, reactor: &mut Reactor, link: LinkId) {
        if let Some(place) = self.place_of(link)
            && let Some(ended) = self.links[place].take()
        {
            if let Some(tls) = ended.tls {
                tls.send_close_notify(reactor, link);
            }
            drop(reactor.deregister(link));
        }
    }

    /// Sends bytes. Returns `true` if the link is still up, or does not exist any more.
    pub fn send(&mut self, reactor: &mut Reactor, link: LinkId, bytes: Vec<u8>) -> bool {
        let Some(known) = self.link(link) else {
            return true;
        };
        let mut output = Output::new();
        output.bytes = bytes;
        match &known.tls {
            None => reactor.send(link, &mut output).is_ok(),
            Some(tls) => tls.send(reactor, link, &mut output).is_ok(),
        }
    }

    /// Continues after bytes in flight have been sent. Returns `true` if the link is still up.
    pub fn on_sent(&mut self, reactor: &mut Reactor, link: LinkId) -> bool {
        match self.link(link) {
            Some(BusLink { tls: Some(tls), .. }) => tls.continue_sending(reactor, link).is_ok(),
            _ => true,
        }
    }

    /// Returns the number of bytes in flight over a link.
    pub fn in_flight(&self, reactor: &Reactor, link: LinkId) -> usize {
        let waiting = match self.link(link) {
            Some(BusLink { tls: Some(tls), .. }) => tls.unencrypted_bytes(),
            _ => 0,
        };
        reactor.in_flight(link) + waiting
    }

    /// Receives from a link and decodes complete messages. The link is closed if its next message is to be longer than
    /// `max_bytes`.
    pub fn receive(&mut self, reactor: &mut Reactor, token: LinkId, max_bytes: usize) -> ReceivedMessages {
        let mut taken = ReceivedMessages::default();
        let Some(link) = self.link_mut(token) else {
            return taken;
        };
        let received = match &link.tls {
            None => reactor.receive(token, &mut link.received, RECEIVE_BUFFER_BYTES),
            Some(tls) => tls.receive(reactor, token, &mut link.received, RECEIVE_BUFFER_BYTES),
        };
        match received {
            Ok(ReceiveOutcome::Bytes { count, .. }) => taken.bytes = count as u64,
            Ok(ReceiveOutcome::WouldBlock) => {}
            Ok(ReceiveOutcome::Closed) => taken.is_closed = true,
            Err(error) => {
                if link.tls.is_some() {
                    log::verbose!("Error accepting or connecting to a cluster node: {error}");
                }
                taken.is_closed = true;
            }
        }
        // An outgoing link does not know its local address before it is connected.
        if link.ends.local.is_empty() || link.ends.local == "?" || link.ends.local == "0.0.0.0" {
            link.ends.local = reactor
                .socket(token)
                .map(|socket| host_of(&socket.local_name()))
                .unwrap_or_default();
        }
        taken.ends = link.ends.clone();
        let mut at = 0;
        loop {
            let rest = &link.received[at..];
            match length(rest) {
                Ok(Some(length)) if length <= rest.len() => {
                    let bytes = &rest[..length];
                    taken.messages.push(ReceivedMessage {
                        kind: kind(bytes),
                        content: decode(bytes).ok(),
                    });
                    at += length;
                }
                // Behind other messages, these decide first if the node is known.
                Ok(Some(length)) if length > max_bytes && taken.messages.is_empty() => {
                    log::warning!("A message of {length} bytes is too long for an unknown node on the Cluster bus.");
                    taken.is_closed = true;
                    break;
                }
                Ok(_) => break,
                Err(InvalidMessage::Signature | InvalidMessage::Content) => {
                    log::warning!("Bad message length or signature received on the Cluster bus.");
                    taken.is_closed = true;
                    break;
                }
            }
        }
        link.received.drain(..at);
        if link.received.is_empty() {
            link.received = Vec::new();
        }
        taken
    }
}

/// Returns the port that the bus listens on.
///
/// # Errors
/// If there is none. The reason has been logged.
pub fn bus_port(config: &Config) -> io::Result<u16> {
    ClusterSettings::listening_bus_port(config).ok_or_else(|| {
        log::warning!(
            "Port number too high for cluster mode. The cluster bus port number is calculated by adding 10000 to the \
             port number, which must not exceed 65535."
        );
        let valid = "a port from 1 to 55535 with cluster-enabled yes, unless cluster-port names that of the bus";
        log::warning!("{}", config.advice(ClusterSettings::bus_port_parameter(config), valid));
        io::Error::other("the cluster bus port is invalid")
    })
}

/// Logs that the bus cannot listen on its port, and what would be valid.
fn log_port_failure(port: u16, error: &io::Error, config: &Config) {
    log::warning!("Failed listening on port {port} (cluster), aborting.");
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => {
            let parameter = ClusterSettings::bus_port_parameter(config);
            let valid = match parameter == id::CLUSTER_PORT {
                true => "a port that the user of the server may use and no other process listens on",
                false => "a port to which 10000 can be added so that no other process listens on the sum",
            };
            config.advice(parameter, valid)
        }
        _ => config.advice(id::BIND, VALID_ADDRESSES),
    };
    log::warning!("{advice}");
}

/// Returns the host of `host:port`, without brackets.
fn host_of(name: &str) -> String {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host == "?" { String::new() } else { host.to_owned() }
}

#[cfg(test)]
mod tests;
