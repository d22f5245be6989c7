//! Valkey's module API: loads unmodified `.so` files, and gives them the functions that they ask for.
//!
//! The ABI is that of Valkey 9.1's `valkeymodule.h`: a module gets its functions by name through `GetApi`, the first
//! word of each context, and sees all other types as opaque pointers.
//!
//! ```text
//!  server ── Session (trait) ──▶ what a thread may do with the data while a function of a module runs
//!         ── Host (trait) ─────▶ what any thread may ask of the server at any time
//!  weft-modules
//!    api/       the functions that modules call, by subject
//!    objects/   what modules hold pointers to: strings, replies, dictionaries, keys, contexts
//!    module/    loaded modules, and what they have registered
//!    session/   the traits
//! ```
//!
//! # Rules that make the unsafe code of this crate sound
//! 1. A pointer that a module passes is one that this crate has returned, of the type that the function names, and not
//!    freed. The API can check no more than null; a module that breaks this has undefined behaviour in Valkey, too.
//! 2. The session of a thread is the one on top of the thread's stack ([`session::with_session`]). It is exclusively
//!    borrowed for as long as it is there, and a function of the API uses it only until it returns. A function of the
//!    API that calls back into a module pushes a new session, and uses its own one only after that has ended.
//! 3. Objects that modules hold are allocated as boxes and become references only within a function of the API.
//!    Fields that functions change have interior mutability, because a callback may use the same object.
//! 4. A session that is lent to another thread ([`session::lending`]) is used by that thread only, until it is
//!    returned. The thread that has lent it sleeps meanwhile.

pub mod api;
pub mod errno;
pub mod invoke;
pub mod module;
pub mod objects;
pub mod session;
