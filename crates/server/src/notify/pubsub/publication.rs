//! A published message and its encoding.

use std::sync::Arc;

use weft_base::ClientId;
use weft_reactor::Output;
use weft_resp::{Protocol, Reply};

/// Payloads above this size, in bytes, are sent by reference: all subscribers share the same memory.
const COPIED_PAYLOAD_BYTES_MAX: usize = 16 * 1024;
/// The bytes that could be copied in the time that a delivery takes in addition.
pub const DELIVERY_OVERHEAD_BYTES: usize = 1024;

/// The namespaces of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelNamespace {
    /// Channels, to which patterns apply.
    Channels,
    /// Shard channels.
    ShardChannels,
}

/// A message, shared by all receivers.
#[derive(Debug)]
pub struct PublishedMessage {
    /// The namespace of the channel.
    pub namespace: ChannelNamespace,
    /// The channel.
    pub channel: Box<[u8]>,
    /// The payload.
    payload: Arc<[u8]>,
    /// The patterns that match the channel.
    pub patterns: Vec<Arc<[u8]>>,
    /// The registry's clock when the subscribers of the channel were counted.
    pub channel_stamp: u64,
    /// The registry's clock when the subscribers of patterns were counted.
    pub pattern_stamp: u64,
}

/// A client that receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipient {
    /// The client's id.
    pub client: ClientId,
    /// The matching pattern, as an index into the message's patterns; `None` for the channel itself.
    pub pattern: Option<usize>,
}

impl PublishedMessage {
    /// Creates a message without content.
    pub fn new(space: ChannelNamespace) -> Self {
        PublishedMessage {
            namespace: space,
            channel: Box::default(),
            payload: Arc::default(),
            patterns: Vec::new(),
            channel_stamp: 0,
            pattern_stamp: 0,
        }
    }

    /// Sets the channel and the payload.
    pub fn set_content(&mut self, channel: &[u8], payload: &[u8]) {
        self.channel = channel.into();
        self.payload = payload.into();
    }

    /// Estimates what the delivery to this number of receivers takes, as the number of bytes that could be copied in
    /// the same time.
    pub fn delivery_bytes(&self, receivers: usize) -> usize {
        let copied = self.channel.len() + self.payload.len().min(COPIED_PAYLOAD_BYTES_MAX);
        receivers * (DELIVERY_OVERHEAD_BYTES + copied) + self.payload.len()
    }

    /// Appends the message in the encoding of `protocol`, for the channel or for one of its patterns.
    pub fn append(&self, pattern: Option<usize>, protocol: Protocol, output: &mut Output) {
        let mut reply = Reply::new(&mut output.bytes, protocol);
        match pattern.and_then(|index| self.patterns.get(index)) {
            Some(pattern) => {
                reply.push(4);
                reply.bulk(b"pmessage");
                reply.bulk(pattern);
            }
            None => {
                reply.push(3);
                reply.bulk(match self.namespace {
                    ChannelNamespace::Channels => b"message",
                    ChannelNamespace::ShardChannels => b"smessage",
                });
            }
        }
        reply.bulk(&self.channel);
        if self.payload.len() <= COPIED_PAYLOAD_BYTES_MAX {
            reply.bulk(&self.payload);
        } else {
            reply.bulk_header(self.payload.len());
            output.push_shared(Box::new(self.payload.clone()));
            output.bytes.extend_from_slice(b"\r\n");
        }
    }
}
