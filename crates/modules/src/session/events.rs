//! What functions about keyspace events, messages and the cluster need from the server.

/// What a thread with a session may do.
pub trait EventSession {
    /// Publishes an event of a key, and calls the modules that have subscribed to it. `class` is one of
    /// [`crate::module::keyspace_events::classes`].
    fn notify_key_event(&mut self, class: i32, name: &[u8], db: u32, key: &[u8]);

    /// Publishes a message. Returns the number of receivers on this node.
    fn publish(&mut self, channel: &[u8], message: &[u8], is_sharded: bool) -> usize;
}

/// A node of the cluster, as modules see it.
pub struct NodeInfo {
    /// Its address.
    pub ip: String,
    /// Its port.
    pub port: u16,
    /// The id of its primary, if it is a replica.
    pub primary: Option<[u8; 40]>,
    /// Its flags, of [`node_flags`].
    pub flags: i32,
}

/// The flags of a node.
pub mod node_flags {
    /// This node.
    pub const MYSELF: i32 = 1;
    /// A primary.
    pub const PRIMARY: i32 = 1 << 1;
    /// A replica.
    pub const REPLICA: i32 = 1 << 2;
    /// This node suspects it to have failed.
    pub const SUSPECTED: i32 = 1 << 3;
    /// It has failed.
    pub const FAILED: i32 = 1 << 4;
    /// It does not take the place of its primary.
    pub const NO_FAILOVER: i32 = 1 << 5;
}

/// What any thread may ask of the server.
pub trait EventHost {
    /// Called when modules have subscribed to other classes of events than before.
    fn note_event_subscriptions(&self);

    /// Called when modules have subscribed to other events of the server than before.
    fn note_server_event_subscriptions(&self);

    /// Returns the classes that `notify-keyspace-events` names, in the bits of modules.
    fn published_event_classes(&self) -> i32;

    /// Returns the id of this node; `None` outside of cluster mode.
    fn own_node_id(&self) -> Option<[u8; 40]>;

    /// Returns the ids of the known nodes, without those in handshake.
    fn node_ids(&self) -> Vec<[u8; 40]>;

    /// Sends a message of a module to a node, or to all other nodes. Returns `false` if the node is not known or there
    /// is no link to it, and outside of cluster mode.
    fn send_cluster_message(&self, target: Option<&[u8]>, module: u64, kind: u8, payload: &[u8]) -> bool;

    /// Switches off what these flags of [`crate::module::cluster_messages::flags`] name.
    fn set_cluster_flags(&self, flags: u64);

    /// Returns a hash tag that leads to a slot.
    fn slot_tag(&self, slot: usize) -> &'static str;

    /// Returns a node.
    fn node(&self, id: &[u8]) -> Option<NodeInfo>;
}

#[cfg(test)]
impl EventSession for super::fake::FakeSession {
    fn notify_key_event(&mut self, _class: i32, _name: &[u8], _db: u32, _key: &[u8]) {}

    fn publish(&mut self, _channel: &[u8], _message: &[u8], _is_sharded: bool) -> usize {
        0
    }
}
