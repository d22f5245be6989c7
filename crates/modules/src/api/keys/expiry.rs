//! Functions on the expiry of keys, and on what eviction knows about them.

use std::ffi::{c_int, c_longlong};

use crate::api::{ERR, Functions, OK};
use crate::functions;
use crate::objects::key::ModuleKey;
use crate::session::keys::KeyKind;

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("GetExpire", remaining_time),
    ("SetExpire", set_expire),
    ("GetAbsExpire", expiry_time),
    ("SetAbsExpire", set_abs_expire),
    ("SetLRU", set_lru),
    ("GetLRU", idle_time),
    ("SetLFU", set_lfu),
    ("GetLFU", use_frequency),
];

/// The time of a key that does not expire (`VALKEYMODULE_NO_EXPIRE`).
const NO_EXPIRY: c_longlong = -1;

/// Returns a key with a value.
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn key_with_value<'a>(key: *mut ModuleKey) -> Option<&'a ModuleKey> {
    // SAFETY: the caller promises it.
    unsafe { ModuleKey::from_pointer(key) }.filter(|key| key.kind() != KeyKind::Empty)
}

/// Returns the time at which a key expires, and the time of the command, in milliseconds since the Unix epoch.
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn expiry(key: *mut ModuleKey) -> Option<(u64, u64)> {
    // SAFETY: the caller promises it.
    let key = unsafe { key_with_value(key) }?;
    key.with_keys(|session, key| Some((session.expiry_ms(key)?, session.command_time_ms())))?
}

/// `GetExpire`: returns the time until a key expires, in milliseconds; -1 if it does not expire.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn remaining_time(key: *mut ModuleKey) -> c_longlong {
    // SAFETY: the caller promises it.
    match unsafe { expiry(key) } {
        Some((at_ms, now_ms)) => at_ms.saturating_sub(now_ms) as c_longlong,
        None => NO_EXPIRY,
    }
}

/// `GetAbsExpire`: returns the time at which a key expires, in milliseconds since the Unix epoch; -1 if it does not.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn expiry_time(key: *mut ModuleKey) -> c_longlong {
    // SAFETY: the caller promises it.
    match unsafe { expiry(key) } {
        Some((at_ms, _)) => at_ms as c_longlong,
        None => NO_EXPIRY,
    }
}

/// Sets the expiry of a key to a time, or to a time from now.
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn set_expiry(key: *mut ModuleKey, time_ms: c_longlong, is_relative: bool) -> c_int {
    let time_ms = match time_ms {
        NO_EXPIRY => None,
        0.. => Some(time_ms as u64),
        _ => return ERR,
    };
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { key_with_value(key) }).filter(|key| key.is_writable()) else {
        return ERR;
    };
    let is_set = key.with_keys(|session, key| {
        let start_ms = if is_relative { session.command_time_ms() } else { 0 };
        session.set_expiry_ms(key, time_ms.map(|time_ms| start_ms.saturating_add(time_ms)));
    });
    match is_set {
        Some(()) => OK,
        None => ERR,
    }
}

/// `SetExpire`: sets the time until a key expires, in milliseconds; -1 removes it.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn set_expire(key: *mut ModuleKey, time_ms: c_longlong) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { set_expiry(key, time_ms, true) }
}

/// `SetAbsExpire`: sets the time at which a key expires, in milliseconds since the Unix epoch; -1 removes it.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn set_abs_expire(key: *mut ModuleKey, at_ms: c_longlong) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { set_expiry(key, at_ms, false) }
}

/// Sets what eviction knows of a key, by its use if `counts_uses`, and by its last use otherwise. Returns [`ERR`] if
/// eviction goes by the other.
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn set_use(
    key: *mut ModuleKey,
    counts_uses: bool,
    set: impl FnOnce(&mut dyn crate::session::keys::KeySession, crate::session::keys::SessionKey<'_>),
) -> c_int {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { key_with_value(key) }) else {
        return ERR;
    };
    let is_set = key.with_keys(|session, key| {
        let fits = session.counts_uses() == counts_uses;
        if fits {
            set(session, key);
        }
        fits
    });
    match is_set {
        Some(true) => OK,
        _ => ERR,
    }
}

/// `SetLRU`: sets the time since the last use of a key, in milliseconds.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn set_lru(key: *mut ModuleKey, idle_ms: c_longlong) -> c_int {
    let Ok(idle_ms) = u64::try_from(idle_ms) else {
        return ERR;
    };
    // SAFETY: the caller promises it.
    unsafe { set_use(key, false, |session, key| session.set_idle_seconds(key, idle_ms / 1000)) }
}

/// `GetLRU`: stores the time since the last use of a key, in milliseconds; -1 if eviction does not go by that.
///
/// # Safety
/// The key is null or open, and `idle_ms` a place for a number (rule 1).
unsafe extern "C" fn idle_time(key: *mut ModuleKey, idle_ms: *mut c_longlong) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        idle_ms.write(-1);
        let Some(key) = key_with_value(key) else {
            return ERR;
        };
        let idle = key.with_keys(|session, key| (!session.counts_uses()).then(|| session.idle_seconds(key)));
        if let Some(seconds) = idle.flatten() {
            idle_ms.write((seconds * 1000) as c_longlong);
        }
    }
    OK
}

/// `SetLFU`: sets the frequency of a key's use, on a logarithmic scale up to 255.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn set_lfu(key: *mut ModuleKey, frequency: c_longlong) -> c_int {
    let Ok(frequency) = u8::try_from(frequency) else {
        return ERR;
    };
    // SAFETY: the caller promises it.
    unsafe { set_use(key, true, |session, key| session.set_frequency(key, frequency)) }
}

/// `GetLFU`: stores the frequency of a key's use; -1 if eviction does not go by that.
///
/// # Safety
/// The key is null or open, and `frequency` a place for a number (rule 1).
unsafe extern "C" fn use_frequency(key: *mut ModuleKey, frequency: *mut c_longlong) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        frequency.write(-1);
        let Some(key) = key_with_value(key) else {
            return ERR;
        };
        let found = key.with_keys(|session, key| session.counts_uses().then(|| session.frequency(key)));
        if let Some(found) = found.flatten() {
            frequency.write(c_longlong::from(found));
        }
    }
    OK
}
