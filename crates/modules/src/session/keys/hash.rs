//! Access to hashes.

use super::SessionKey;

/// Access to hashes.
pub trait HashSession {
    /// Calls `visit` with the value of a field. Returns `true` if there is such a field.
    fn read_field(&mut self, key: SessionKey<'_>, field: &[u8], visit: &mut dyn FnMut(&[u8])) -> bool;

    /// Sets a field. Creates the hash if the key is missing. Returns `true` if the field existed, and `None` if the key
    /// holds another type. The field does not expire afterwards, unless `keeps_expiry`.
    fn set_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8], keeps_expiry: bool) -> Option<bool>;

    /// Sets a field that exists to a copy of bytes that belong to the module, and notes that. Its expiry stays. Returns
    /// `false` if there is no such field.
    fn set_provided_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8]) -> bool;

    /// Returns `true` if the value of a field was set by [`Self::set_provided_field`] and not changed since then.
    fn is_field_provided(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool;

    /// Removes a field. Returns `true` if it existed. The hash stays even if no field is left.
    fn remove_field(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool;

    /// Deletes a hash without fields.
    fn delete_empty_hash(&mut self, key: SessionKey<'_>);
}
