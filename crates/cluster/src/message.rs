//! The messages of the cluster bus, in the format of Valkey. All numbers are big-endian.
//!
//! ```text
//!   0 "RCmb"   4 length   8 version   10 port    12 type    14 gossip entries
//!  16 current epoch      24 config epoch        32 offset   40 sender
//!  80 slots (2048)     2128 primary           2168 address (46)     2214 extensions   2216 -
//! 2246 other port      2248 bus port          2250 flags            2252 down?        2253 switches
//! 2256 depends on the type: gossip (104 each) and extensions │ failing node │ channel and message │ slots of a node
//! ```
//!
//! A message with a *light* header has only the first 16 bytes of the header. It carries a published message over a
//! link whose node is known.
//!
//! Received bytes are untrusted: every length is checked, and an invalid node ID makes a message invalid.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::node::{AnnouncedAddress, NODE_ID_BYTES, NodeFlags, NodeId};
use super::slot_set::{BITMAP_BYTES, SlotSet};

/// The number of bytes needed to determine the length of a message.
pub const LENGTH_BYTES: usize = 8;
/// The size of a full header in bytes.
pub const HEADER_BYTES: usize = 2256;
/// The size of a light header in bytes.
pub const LIGHT_HEADER_BYTES: usize = 16;
/// The size of the two lengths before a published message in bytes.
pub(super) const PUBLISHED_LENGTHS_BYTES: usize = 8;
/// The size of an address in bytes, with the zero byte that ends it.
const ADDRESS_BYTES: usize = 46;
/// The maximum length of an address in bytes.
pub const ADDRESS_LENGTH_MAX: usize = ADDRESS_BYTES - 1;
/// The maximum length of a message in bytes: the greatest number in its header.
pub const MAX_MESSAGE_BYTES: usize = u32::MAX as usize;

/// The length of the fields of a message between modules, in bytes.
pub const MODULE_FIELDS_BYTES: usize = 13;

const SIGNATURE: &[u8; 4] = b"RCmb";
const VERSION: u16 = 1;
/// Marks a type with a light header.
const LIGHT_HEADER_FLAG: u16 = 0x8000;

/// The message types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the protocol")]
pub enum MessageType {
    Ping,
    Pong,
    Meet,
    Fail,
    Publish,
    VoteRequest,
    Vote,
    Update,
    ManualFailover,
    Module,
    PublishShard,
}

impl MessageType {
    const ALL: [MessageType; 11] = [
        MessageType::Ping,
        MessageType::Pong,
        MessageType::Meet,
        MessageType::Fail,
        MessageType::Publish,
        MessageType::VoteRequest,
        MessageType::Vote,
        MessageType::Update,
        MessageType::ManualFailover,
        MessageType::Module,
        MessageType::PublishShard,
    ];

    /// Returns the number of the type.
    pub fn number(self) -> usize {
        self as usize
    }

    fn of(number: u16) -> Option<MessageType> {
        MessageType::ALL.get(usize::from(number)).copied()
    }
}

/// The switches of a message.
pub mod switch {
    /// The sender is a primary that has paused writes: its offset no longer changes.
    pub const PAUSED: u8 = 1;
    /// The vote is requested although the primary is up.
    pub const FORCED: u8 = 1 << 1;
    /// The sender supports extensions.
    pub const EXTENSIONS: u8 = 1 << 2;
}

/// The contents of a full header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The ID of the sender.
    pub sender: NodeId,
    /// The current epoch of the sender.
    pub current_epoch: u64,
    /// The configuration epoch of its slots, or of its primary's slots.
    pub config_epoch: u64,
    /// Its replication offset.
    pub offset: u64,
    /// Its slots, or its primary's slots.
    pub slots: SlotSet,
    /// Its primary, if it is a replica.
    pub primary: Option<NodeId>,
    /// The address that it announces; empty if the receiver has to use the address of the socket.
    pub ip: String,
    /// The client port: the TLS port if the bus uses TLS.
    pub port: u16,
    /// The other client port.
    pub other_port: u16,
    /// The cluster bus port.
    pub bus_port: u16,
    /// Its flags.
    pub flags: NodeFlags,
    /// `true` if it does not accept commands.
    pub is_down: bool,
    /// The switches of the message.
    pub switches: u8,
}

/// A gossip entry: what a node reports about another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipEntry {
    /// The ID of the other node.
    pub id: NodeId,
    /// The time of the ping that has not been answered, in seconds since the Unix epoch.
    pub ping_sent_s: u32,
    /// The time of the last answer, in seconds since the Unix epoch.
    pub pong_received_s: u32,
    /// Its address.
    pub ip: String,
    /// The client port: the TLS port if the bus uses TLS.
    pub port: u16,
    /// The other client port.
    pub other_port: u16,
    /// The cluster bus port.
    pub bus_port: u16,
    /// Its flags.
    pub flags: NodeFlags,
}

/// The extensions, which follow the gossip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The information that the sender announces about itself.
    pub announced: AnnouncedAddress,
    /// Its shard.
    pub shard: Option<NodeId>,
    /// The nodes that it has to forget, and the duration in seconds.
    pub forgotten: Vec<(NodeId, u64)>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusMessage {
    /// PING, PONG or MEET.
    Ping {
        /// The type.
        kind: MessageType,
        /// The sender.
        header: Header,
        /// Gossip about other nodes.
        gossip: Vec<GossipEntry>,
        /// More information about the sender.
        extensions: Extensions,
    },
    /// A node has failed.
    Fail(Header, NodeId),
    /// A published message. A light one has no header.
    Publish {
        /// The sender, in a message with a full header.
        header: Option<Header>,
        /// `true` if the channel is a shard channel.
        is_sharded: bool,
        /// The channel.
        channel: Vec<u8>,
        /// The message.
        payload: Vec<u8>,
    },
    /// A replica requests a vote.
    VoteRequest(Header),
    /// A primary grants a vote.
    Vote(Header),
    /// The slots of a node.
    Update {
        /// The sender.
        header: Header,
        /// The node.
        id: NodeId,
        /// The configuration epoch of its slots.
        config_epoch: u64,
        /// The slots.
        slots: SlotSet,
    },
    /// A replica requests a manual failover from its primary.
    ManualFailover(Header),
    /// A message between modules. A light one has no header.
    Module {
        /// The sender, in a message with a full header.
        header: Option<Header>,
        /// The number of the module.
        module: u64,
        /// The type of the message, which the module has chosen.
        kind: u8,
        /// The message.
        payload: Vec<u8>,
    },
}

/// The reason for which bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessage {
    /// The start of a message is invalid, so the rest of the stream cannot be read.
    Signature,
    /// The content of a message is invalid. The message can be skipped.
    Content,
}

// ---- reading --------------------------------------------------------------------------------------------------------
/// Returns the length of the message that begins with these bytes, or `None` if there are too few bytes.
///
/// # Errors
/// When the signature or the length is invalid.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, InvalidMessage> {
    let Some(head) = bytes.get(..LENGTH_BYTES) else {
        return Ok(None);
    };
    let length = Reader { bytes: head, at: 4 }.u32().unwrap_or(0) as usize;
    if !head.starts_with(SIGNATURE) || length < LIGHT_HEADER_BYTES {
        return Err(InvalidMessage::Signature);
    }
    Ok(Some(length))
}

/// Returns the type of a message, or `None` if it is unknown.
pub fn kind(bytes: &[u8]) -> Option<MessageType> {
    let number = Reader { bytes, at: 12 }.u16()?;
    MessageType::of(number & !LIGHT_HEADER_FLAG)
}

/// Decodes a message. `bytes` must have the length that the message states.
///
/// # Errors
/// When the content is invalid.
pub fn decode(bytes: &[u8]) -> Result<BusMessage, InvalidMessage> {
    read(bytes).ok_or(InvalidMessage::Content)
}

fn read(bytes: &[u8]) -> Option<BusMessage> {
    let mut reader = Reader {
        bytes,
        at: LENGTH_BYTES,
    };
    if reader.u16()? != VERSION {
        return None;
    }
    let number = Reader { bytes, at: 12 }.u16()?;
    let kind = MessageType::of(number & !LIGHT_HEADER_FLAG)?;
    if number & LIGHT_HEADER_FLAG != 0 {
        let sharded = match kind {
            MessageType::Publish => false,
            MessageType::PublishShard => true,
            MessageType::Module => {
                let at = LIGHT_HEADER_BYTES;
                return decode_module_message(Reader { bytes, at }, None);
            }
            _ => return None,
        };
        return decode_published(
            Reader {
                bytes,
                at: LIGHT_HEADER_BYTES,
            },
            None,
            sharded,
        );
    }
    let count = Reader { bytes, at: 14 }.u16()?;
    let (header, extensions) = header(bytes)?;
    let mut body = Reader {
        bytes,
        at: HEADER_BYTES,
    };
    match kind {
        MessageType::Ping | MessageType::Pong | MessageType::Meet => {
            let gossip: Option<Vec<GossipEntry>> = (0..count).map(|_| gossip(&mut body)).collect();
            let has = header.switches & switch::EXTENSIONS != 0;
            let extensions = read_extensions(&mut body, if has { extensions } else { 0 })?;
            body.expect_end()?;
            Some(BusMessage::Ping {
                kind,
                header,
                gossip: gossip?,
                extensions,
            })
        }
        MessageType::Fail => {
            let id = body.name()?;
            body.expect_end()?;
            Some(BusMessage::Fail(header, id))
        }
        MessageType::Publish | MessageType::PublishShard => {
            decode_published(body, Some(header), kind == MessageType::PublishShard)
        }
        MessageType::VoteRequest => body.expect_end().map(|()| BusMessage::VoteRequest(header)),
        MessageType::Vote => body.expect_end().map(|()| BusMessage::Vote(header)),
        MessageType::ManualFailover => body.expect_end().map(|()| BusMessage::ManualFailover(header)),
        MessageType::Update => {
            let config_epoch = body.u64()?;
            let id = body.name()?;
            let slots = SlotSet::from_bitmap(body.take(BITMAP_BYTES)?)?;
            body.expect_end()?;
            Some(BusMessage::Update {
                header,
                id,
                config_epoch,
                slots,
            })
        }
        MessageType::Module => decode_module_message(body, Some(header)),
    }
}

fn header(bytes: &[u8]) -> Option<(Header, u16)> {
    let mut reader = Reader { bytes, at: 10 };
    let port = reader.u16()?;
    reader.at = 16;
    let (current_epoch, config_epoch, offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let sender = reader.name()?;
    let slots = SlotSet::from_bitmap(reader.take(BITMAP_BYTES)?)?;
    let primary = reader.take(NODE_ID_BYTES)?;
    let primary = match primary.iter().all(|byte| *byte == 0) {
        true => None,
        false => Some(NodeId::parse(primary)?),
    };
    let ip = address(reader.take(ADDRESS_BYTES)?)?;
    let extensions = reader.u16()?;
    reader.at = 2246;
    let (other_port, bus_port, flags) = (reader.u16()?, reader.u16()?, reader.u16()?);
    let (down, switches) = (reader.u8()?, reader.u8()?);
    (bytes.len() >= HEADER_BYTES).then_some(())?;
    let header = Header {
        sender,
        current_epoch,
        config_epoch,
        offset,
        slots,
        primary,
        ip,
        port,
        other_port,
        bus_port,
        flags: NodeFlags::from_bits_retain(flags),
        is_down: down != 0,
        switches,
    };
    Some((header, extensions))
}

fn gossip(reader: &mut Reader<'_>) -> Option<GossipEntry> {
    let gossip = GossipEntry {
        id: reader.name()?,
        ping_sent_s: reader.u32()?,
        pong_received_s: reader.u32()?,
        ip: address(reader.take(ADDRESS_BYTES)?)?,
        port: reader.u16()?,
        bus_port: reader.u16()?,
        flags: NodeFlags::from_bits_retain(reader.u16()?),
        other_port: reader.u16()?,
    };
    reader.u16()?;
    Some(gossip)
}

/// The numbers of the extension types.
mod extension {
    pub const HOSTNAME: u16 = 0;
    pub const HUMAN_NAME: u16 = 1;
    pub const FORGOTTEN: u16 = 2;
    pub const SHARD: u16 = 3;
    pub const CLIENT_IPV4: u16 = 4;
    pub const CLIENT_IPV6: u16 = 5;
    pub const CLIENT_PORT: u16 = 6;
    pub const CLIENT_TLS_PORT: u16 = 7;
    pub const AVAILABILITY_ZONE: u16 = 8;
}

fn read_extensions(reader: &mut Reader<'_>, count: u16) -> Option<Extensions> {
    let mut extensions = Extensions::default();
    for _ in 0..count {
        let length = reader.u32()? as usize;
        let kind = reader.u16()?;
        reader.u16()?;
        if length < 8 || !length.is_multiple_of(8) {
            return None;
        }
        let data = reader.take(length - 8)?;
        let announced = &mut extensions.announced;
        let number = |data| Reader { bytes: data, at: 0 }.u16();
        match kind {
            extension::HOSTNAME => announced.hostname = announced_text(data),
            extension::HUMAN_NAME => announced.human_name = announced_text(data),
            extension::CLIENT_IPV4 => announced.client_ipv4 = ip_address::<Ipv4Addr>(data),
            extension::CLIENT_IPV6 => announced.client_ipv6 = ip_address::<Ipv6Addr>(data),
            extension::CLIENT_PORT => announced.client_port = number(data)?,
            extension::CLIENT_TLS_PORT => announced.client_tls_port = number(data)?,
            extension::AVAILABILITY_ZONE => announced.availability_zone = announced_text(data),
            extension::SHARD => extensions.shard = Some(NodeId::parse(data.get(..NODE_ID_BYTES)?)?),
            extension::FORGOTTEN => {
                let id = NodeId::parse(data.get(..NODE_ID_BYTES)?)?;
                let seconds = Reader {
                    bytes: data,
                    at: NODE_ID_BYTES,
                }
                .u64()?;
                extensions.forgotten.push((id, seconds));
            }
            // Extensions of newer nodes are ignored.
            _ => {}
        }
    }
    Some(extensions)
}

fn decode_published(mut reader: Reader<'_>, header: Option<Header>, sharded: bool) -> Option<BusMessage> {
    let (channel, payload) = (reader.u32()? as usize, reader.u32()? as usize);
    let message = BusMessage::Publish {
        header,
        is_sharded: sharded,
        channel: reader.take(channel)?.to_vec(),
        payload: reader.take(payload)?.to_vec(),
    };
    reader.expect_end()?;
    Some(message)
}

fn decode_module_message(mut reader: Reader<'_>, header: Option<Header>) -> Option<BusMessage> {
    // The number is sent in the order of the bytes of the usual processors.
    let module = u64::from_le_bytes(reader.take(8)?.try_into().ok()?);
    let length = reader.u32()? as usize;
    let message = BusMessage::Module {
        header,
        module,
        kind: reader.u8()?,
        payload: reader.take(length)?.to_vec(),
    };
    reader.expect_end()?;
    Some(message)
}

/// Returns an address. The last byte of its field is always taken as the zero byte that ends it, so an address that
/// fills the field is the same one on every node, however often it is passed on.
fn address(field: &[u8]) -> Option<String> {
    text(&field[..field.len().min(ADDRESS_LENGTH_MAX)])
}

/// Truncates an address that is too long for a message.
pub(super) fn truncate_address(ip: &str) -> &str {
    let mut end = ip.len().min(ADDRESS_LENGTH_MAX);
    while !ip.is_char_boundary(end) {
        end -= 1;
    }
    &ip[..end]
}

/// Returns an IP address as the sender writes it, or an empty text if it is none: the cluster configuration file may
/// contain nothing else.
fn ip_address<Ip: std::str::FromStr>(data: &[u8]) -> String {
    let text = announced_text(data);
    match text.parse::<Ip>() {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

/// Returns a text that a node announces about itself, or an empty one if this node's configuration file and replies
/// cannot contain it. Valkey allows more characters, and the rest of the message counts nevertheless.
fn announced_text(data: &[u8]) -> String {
    text(data).unwrap_or_default()
}

/// Returns the text before the first zero byte. It may contain only characters that are allowed in the configuration
/// file and in replies.
fn text(bytes: &[u8]) -> Option<String> {
    let text = str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()?;
    is_plain(text).then(|| text.to_owned())
}

/// Returns `true` if messages, the configuration file and replies may contain the text.
pub(super) fn is_plain(text: &str) -> bool {
    text.chars().all(|character| match character.is_ascii() {
        true => character.is_ascii_graphic() && !matches!(character, ',' | '=' | '"' | '\''),
        false => !character.is_control() && !character.is_whitespace(),
    })
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn name(&mut self) -> Option<NodeId> {
        NodeId::parse(self.take(NODE_ID_BYTES)?)
    }

    fn expect_end(&self) -> Option<()> {
        (self.at == self.bytes.len()).then_some(())
    }
}

// ---- writing --------------------------------------------------------------------------------------------------------
/// Encodes a message.
pub fn encode(message: &BusMessage) -> Vec<u8> {
    let mut out = match message {
        BusMessage::Ping { kind, header, .. } => begin(*kind, header),
        BusMessage::Fail(header, _) => begin(MessageType::Fail, header),
        BusMessage::Publish {
            header: Some(header),
            is_sharded: sharded,
            ..
        } => begin(
            if *sharded {
                MessageType::PublishShard
            } else {
                MessageType::Publish
            },
            header,
        ),
        BusMessage::Publish {
            is_sharded: sharded, ..
        } => begin_light(if *sharded {
            MessageType::PublishShard
        } else {
            MessageType::Publish
        }),
        BusMessage::VoteRequest(header) => begin(MessageType::VoteRequest, header),
        BusMessage::Vote(header) => begin(MessageType::Vote, header),
        BusMessage::Update { header, .. } => begin(MessageType::Update, header),
        BusMessage::ManualFailover(header) => begin(MessageType::ManualFailover, header),
        BusMessage::Module {
            header: Some(header), ..
        } => begin(MessageType::Module, header),
        BusMessage::Module { .. } => begin_light(MessageType::Module),
    };
    match message {
        BusMessage::Ping {
            header,
            gossip,
            extensions,
            ..
        } => {
            out[14..16].copy_from_slice(&(gossip.len() as u16).to_be_bytes());
            gossip.iter().for_each(|entry| write_gossip(&mut out, entry));
            if header.switches & switch::EXTENSIONS != 0 {
                let count = write_extensions(&mut out, extensions);
                out[2214..2216].copy_from_slice(&count.to_be_bytes());
            }
        }
        BusMessage::Fail(_, id) => out.extend_from_slice(id.as_bytes()),
        BusMessage::Publish { channel, payload, .. } => {
            out.extend_from_slice(&(channel.len() as u32).to_be_bytes());
            out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
            out.extend_from_slice(channel);
            out.extend_from_slice(payload);
        }
        BusMessage::Update {
            id,
            config_epoch,
            slots,
            ..
        } => {
            out.extend_from_slice(&config_epoch.to_be_bytes());
            out.extend_from_slice(id.as_bytes());
            out.extend_from_slice(slots.bitmap());
        }
        BusMessage::Module {
            module, kind, payload, ..
        } => {
            out.extend_from_slice(&module.to_le_bytes());
            out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
            out.push(*kind);
            out.extend_from_slice(payload);
        }
        BusMessage::VoteRequest(_) | BusMessage::Vote(_) | BusMessage::ManualFailover(_) => {}
    }
    let length = out.len() as u32;
    out[4..8].copy_from_slice(&length.to_be_bytes());
    out
}

fn begin_light(kind: MessageType) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&(kind as u16 | LIGHT_HEADER_FLAG).to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    out
}

fn begin(kind: MessageType, header: &Header) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, SIGNATURE);
    put(8, &VERSION.to_be_bytes());
    put(10, &header.port.to_be_bytes());
    put(12, &(kind as u16).to_be_bytes());
    put(16, &header.current_epoch.to_be_bytes());
    put(24, &header.config_epoch.to_be_bytes());
    put(32, &header.offset.to_be_bytes());
    put(40, header.sender.as_bytes());
    put(80, header.slots.bitmap());
    if let Some(primary) = &header.primary {
        put(2128, primary.as_bytes());
    }
    put(2168, &padded_address(&header.ip));
    put(2246, &header.other_port.to_be_bytes());
    put(2248, &header.bus_port.to_be_bytes());
    put(2250, &header.flags.bits().to_be_bytes());
    put(2252, &[u8::from(header.is_down), header.switches]);
    out
}

/// Returns an address padded with zero bytes. A longer address is truncated, as its receivers would do.
fn padded_address(ip: &str) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    let ip = truncate_address(ip);
    bytes[..ip.len()].copy_from_slice(ip.as_bytes());
    bytes
}

fn write_gossip(out: &mut Vec<u8>, entry: &GossipEntry) {
    out.extend_from_slice(entry.id.as_bytes());
    out.extend_from_slice(&entry.ping_sent_s.to_be_bytes());
    out.extend_from_slice(&entry.pong_received_s.to_be_bytes());
    out.extend_from_slice(&padded_address(&entry.ip));
    for number in [entry.port, entry.bus_port, entry.flags.bits(), entry.other_port, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn write_extensions(out: &mut Vec<u8>, extensions: &Extensions) -> u16 {
    let mut count = 0;
    let mut put = |kind: u16, data: &[u8]| {
        let padded = data.len().next_multiple_of(8);
        out.extend_from_slice(&(padded as u32 + 8).to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(data);
        out.resize(out.len() + padded - data.len(), 0);
        count += 1;
    };
    let announced = &extensions.announced;
    let texts = [
        (extension::HOSTNAME, &announced.hostname),
        (extension::HUMAN_NAME, &announced.human_name),
        (extension::CLIENT_IPV4, &announced.client_ipv4),
        (extension::CLIENT_IPV6, &announced.client_ipv6),
        (extension::AVAILABILITY_ZONE, &announced.availability_zone),
    ];
    for (kind, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
        put(*kind, &[text.as_bytes(), &[0]].concat());
    }
    let ports = [
        (extension::CLIENT_PORT, announced.client_port),
        (extension::CLIENT_TLS_PORT, announced.client_tls_port),
    ];
    for (kind, port) in ports.iter().filter(|(_, port)| *port != 0) {
        let [high, low] = port.to_be_bytes();
        put(*kind, &[high, low, 0, 0, 0, 0, 0, 0]);
    }
    for (id, seconds) in &extensions.forgotten {
        put(
            extension::FORGOTTEN,
            &[&id.as_bytes()[..], &seconds.to_be_bytes()].concat(),
        );
    }
    if let Some(shard) = &extensions.shard {
        put(extension::SHARD, shard.as_bytes());
    }
    count
}

#[cfg(test)]
mod tests;
