//! This node of a cluster: the bus that talks to the other nodes, and the changes that follow from it.

pub mod bus;
pub mod key_deletion;
pub mod topology;
