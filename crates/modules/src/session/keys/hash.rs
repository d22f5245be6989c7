//! Access to hashes.

use super::SessionKey;

/// Access to hashes.
pub trait HashSession {
    /// Calls `visit` with the value of a field. Returns `true` if there is such a field.
    fn read_field(&mut self, key: SessionKey<'_>, field: &[u8], visit: &mut dyn FnMut(&[u8])) -> bool;

    /// Sets a field. Creates the hash if the key is missing. Returns `true` if the field existed, and `None` if the key
    /// holds another type. The field does not expire afterwards, unless `keeps_expiry`.
    fn set_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8], keeps_expiry: bool) -> Option<bool>;

    /// Removes a field. Returns `true` if it existed. The hash stays even if no field is left.
    fn remove_field(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool;

    /// Deletes a hash without fields.
    fn delete_empty_hash(&mut self, key: SessionKey<'_>);
}
