//! Access of modules to hashes.

use weft_modules::session::keys::{HashSession, SessionKey};
use weft_values::hash::{FieldExpiry, HashRef};
use weft_values::listpack::DECIMAL_MAX_BYTES;

use super::ModuleSession;
use crate::commands::hash::fields::{entry_as_hash, key_as_hash, remove_fields, set_fields, set_provided_field};
use crate::keyspace::encoding_limits::EncodingParameters;

impl HashSession for ModuleSession<'_, '_> {
    fn read_field(&mut self, key: SessionKey<'_>, field: &[u8], visit: &mut dyn FnMut(&[u8])) -> bool {
        let expiry_ms = self.access_context().now_ms;
        let found = self.with_stored(key, |entry| {
            let hash = entry_as_hash(Some(entry)).ok().flatten()?;
            let value = hash.value(field, expiry_ms)?;
            visit(value.text(&mut [0; DECIMAL_MAX_BYTES]));
            Some(())
        });
        found.flatten().is_some()
    }

    fn set_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8], keeps_expiry: bool) -> Option<bool> {
        self.edit_key(key, |write, context| {
            entry_as_hash(write.entry()).ok()?;
            let limits = context.server.config.hash_limits();
            let expiry = if keeps_expiry {
                FieldExpiry::Keep
            } else {
                FieldExpiry::Never
            };
            let done = set_fields(write, std::iter::once((field, value)), expiry, limits, context.past_ms);
            write.record_expired_fields(done.expired);
            Some(done.added == 0)
        })?
    }

    fn set_provided_field(&mut self, key: SessionKey<'_>, field: &[u8], value: &[u8]) -> bool {
        let set = self.edit_key(key, |write, context| {
            let hash = entry_as_hash(write.entry()).ok().flatten();
            let exists = hash.is_some_and(|hash| hash.value(field, context.expiry_ms).is_some());
            if exists {
                set_provided_field(write, (field, value), context.past_ms);
            }
            exists
        });
        set.unwrap_or(false)
    }

    fn is_field_provided(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool {
        let expiry_ms = self.access_context().now_ms;
        let found = self.with_stored(key, |entry| match entry_as_hash(Some(entry)) {
            Ok(Some(HashRef::Large(hash))) => hash.is_provided(field, expiry_ms),
            _ => false,
        });
        found.unwrap_or(false)
    }

    fn remove_field(&mut self, key: SessionKey<'_>, field: &[u8]) -> bool {
        let removed = self.edit_key(key, |write, context| {
            let is_hash = matches!(entry_as_hash(write.entry()), Ok(Some(_)));
            is_hash && remove_fields(write, std::iter::once(field), context.expiry_ms) > 0
        });
        removed.unwrap_or(false)
    }

    fn delete_empty_hash(&mut self, key: SessionKey<'_>) {
        let is_empty = self.with_stored(key, |entry| {
            entry_as_hash(Some(entry)).is_ok_and(|hash| hash.is_some_and(HashRef::is_empty))
        });
        if is_empty == Some(true) {
            self.edit_key(key, |write, _| {
                if key_as_hash(write).is_some_and(HashRef::is_empty) {
                    write.delete_emptied();
                }
            });
        }
    }
}
