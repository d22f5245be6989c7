//! String comparison in a locale of the system.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

// SAFETY: rule 6: the declaration is that of POSIX.
unsafe extern "C" {
    /// POSIX: transforms a string so that the bytes of two results compare as the strings do in the locale. Returns the
    /// length of the whole result, even if `room` is too small for it.
    fn strxfrm_l(to: *mut c_char, from: *const c_char, capacity: usize, locale: libc::locale_t) -> usize;
}

/// The collation order of a locale.
#[derive(Debug)]
pub struct Collation(libc::locale_t);

// SAFETY: rule 6: a locale is only read once it was created.
unsafe impl Send for Collation {}
// SAFETY: rule 6.
unsafe impl Sync for Collation {}

impl Collation {
    /// Opens the collation order of the locale with this name, such as `en_US.UTF-8`. An empty name means the locale
    /// that the environment specifies. Returns `None` if the system has no such locale.
    #[must_use]
    pub fn for_locale(name: &[u8]) -> Option<Collation> {
        let name = CString::new(name).ok()?;
        // SAFETY: rule 6: the name is a C string, and there is no locale to start from.
        let locale = unsafe { libc::newlocale(libc::LC_COLLATE_MASK, name.as_ptr(), ptr::null_mut()) };
        // Built lazily: an eagerly built value would free the null locale when dropped.
        (!locale.is_null()).then(|| Collation(locale))
    }

    /// Appends the sort key of `text`: the keys of two texts compare as the texts do in the locale.
    pub fn append_sort_key(&self, text: &CStr, to: &mut Vec<u8>) {
        let start = to.len();
        // Enough for most locales. If it is not, the call returns the required length.
        let mut capacity = 4 * text.count_bytes() + 16;
        loop {
            to.resize(start + capacity, 0);
            // SAFETY: rule 6: there is room for `room` bytes from `start` on, and the text ends with a zero byte.
            let length = unsafe { strxfrm_l(to[start..].as_mut_ptr().cast(), text.as_ptr(), capacity, self.0) };
            if length < capacity {
                return to.truncate(start + length);
            }
            capacity = length + 1;
        }
    }
}

impl Drop for Collation {
    fn drop(&mut self) {
        // SAFETY: rule 6: this value is the only owner of the locale.
        unsafe { libc::freelocale(self.0) };
    }
}

#[cfg(test)]
mod tests;
