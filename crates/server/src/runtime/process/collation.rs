//! `locale-collate`: the order in which SORT ALPHA compares strings.

use std::sync::Arc;

use weft_reactor::Collation;

use weft_config::{Config, id};
use weft_os::sync::RwLock;

/// The current order; `None` compares bytes.
static CURRENT: RwLock<Option<Arc<Collation>>> = RwLock::new(None);

/// The error of a locale that the system does not have.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownLocale;

/// Returns the current order, or `None` if bytes are compared.
pub fn current() -> Option<Arc<Collation>> {
    CURRENT.read().clone()
}

/// Applies the configured order; an empty name stands for the locale of the environment.
///
/// # Errors
/// When the system does not have that locale; nothing has changed then.
pub fn set_from_config(config: &Config) -> Result<(), UnknownLocale> {
    let name = config.text(id::LOCALE_COLLATE);
    let collation = match is_bytewise(&name) {
        true => None,
        false => Some(Arc::new(Collation::for_locale(&name).ok_or(UnknownLocale)?)),
    };
    *CURRENT.write() = collation;
    Ok(())
}

/// Returns `true` if a locale compares bytes. For the environment's locale, the first variable that is set counts.
fn is_bytewise(name: &[u8]) -> bool {
    if !name.is_empty() {
        return matches!(name, b"C" | b"POSIX");
    }
    let variables = ["LC_ALL", "LC_COLLATE", "LANG"];
    let locale = variables
        .into_iter()
        .filter_map(std::env::var_os)
        .find(|value| !value.is_empty());
    locale.is_none_or(|name| name == "C" || name == "POSIX")
}
