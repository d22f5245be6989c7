//! What modules hold pointers to.

pub mod arguments;
pub mod automatic;
pub mod blocked_client;
pub mod call_reply;
pub mod context;
pub mod defragmentation;
pub mod dict;
pub mod digest;
pub mod info;
pub mod io;
pub mod key;
pub mod key_options;
pub mod pool;
pub mod positions;
pub mod promise;
pub mod reply;
pub mod reply_receiver;
pub mod string;
pub mod user;
pub mod value;
