//! Access of modules to strings.

use weft_modules::session::keys::{SessionKey, StringBytes, StringSession};
use weft_table::{Blob, NewValue, ValueRef};

use super::ModuleSession;
use crate::commands::string::bytes::with_bytes;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};

/// The length in bytes up to which a string is copied for a reader. A copy ends with a zero byte, which modules that
/// expect a C string need.
const MAX_COPIED_BYTES: usize = 64 << 10;

/// A long string that is shared with its entry.
struct SharedString(Blob);

impl AsRef<[u8]> for SharedString {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the string that a key holds.
fn copy_string(write: &KeyWrite<'_>) -> Option<Vec<u8>> {
    with_bytes(write.entry()?.value(), <[u8]>::to_vec).ok()
}

impl StringSession for ModuleSession<'_, '_> {
    fn set_string(&mut self, key: SessionKey<'_>, value: &[u8]) {
        self.edit_key(key, |write, _| write.replace_with_string(value));
    }

    fn read_string(&mut self, key: SessionKey<'_>, memory: Vec<u8>) -> Option<(usize, StringBytes)> {
        self.with_stored(key, |entry| match entry.value() {
            ValueRef::Blob(blob) if blob.len() > MAX_COPIED_BYTES => {
                let shared = StringBytes::Shared(Box::new(SharedString(blob.clone())));
                Some((blob.len(), shared))
            }
            value => with_bytes(value, |bytes| (bytes.len(), StringBytes::copy(bytes, memory))).ok(),
        })?
    }

    fn overwrite_string(&mut self, key: SessionKey<'_>, value: &[u8]) {
        self.edit_key(key, |write, _| {
            let Some(length) = write
                .entry()
                .and_then(|entry| with_bytes(entry.value(), <[u8]>::len).ok())
            else {
                return;
            };
            if let Some(mut entry) = write.entry_mut().filter(|_| length == value.len()) {
                entry.bytes_mut(length)[..length].copy_from_slice(value);
            } else {
                write.set(NewValue::Bytes(value), ExpiryUpdate::Keep);
            }
        });
    }

    fn truncate_string(&mut self, key: SessionKey<'_>, length: usize) -> bool {
        let done = self.edit_key(key, |write, _| {
            if write.exists() {
                let Some(mut bytes) = copy_string(write) else {
                    return false;
                };
                bytes.resize(length, 0);
                write.set(NewValue::Bytes(&bytes), ExpiryUpdate::Keep);
            } else {
                write.set(NewValue::Bytes(&vec![0; length]), ExpiryUpdate::Remove);
            }
            if let Some(mut entry) = write.entry_mut() {
                entry.mark_raw();
            }
            true
        });
        done.unwrap_or(false)
    }
}
