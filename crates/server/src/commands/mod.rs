//! The commands: one file per group, each with its handlers and their bindings; and what they share.

use std::sync::OnceLock;

pub mod command_info;
pub mod context;
pub mod error;
pub mod registry;
pub mod spec;
pub mod string;
pub mod connection;
pub mod tables;

use context::Binding;
use registry::Registry;

static REGISTRY: OnceLock<Registry<Binding>> = OnceLock::new();

/// Every command that exists here, by group.
pub const GROUPS: &[&[(&str, Binding)]] = &[connection::BINDINGS, string::BINDINGS];

/// Makes the registry, with the renames of the configuration. Called once, before any thread starts.
///
/// # Errors
/// When a rename names a command that does not exist or a name that is taken.
pub fn install(renames: &[(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
    let bindings: Vec<(&str, Binding)> = GROUPS.iter().flat_map(|group| group.iter().copied()).collect();
    let registry = Registry::new(&bindings, renames)?;
    REGISTRY
        .set(registry)
        .map_err(|_| "the commands are installed already".to_owned())
}

/// The commands.
#[inline]
pub fn registry() -> &'static Registry<Binding> {
    REGISTRY.get_or_init(|| {
        let bindings: Vec<(&str, Binding)> = GROUPS.iter().flat_map(|group| group.iter().copied()).collect();
        Registry::new(&bindings, &[]).unwrap_or_else(|error| panic!("the command table is inconsistent: {error}"))
    })
}
