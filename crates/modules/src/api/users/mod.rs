//! Functions about users, permissions and authentication.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use weft_acl::{AclAccount, ChannelUse, DenialReason, KeyAccess};
use weft_resp::quote;

use super::registry::{c_bytes, words_of};
use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::objects::context::Context;
use crate::objects::positions::channel_flag;
use crate::objects::string::ModuleString;
use crate::objects::user::{Authentication, ModuleUser, UserChangedFunction};
use crate::session::users::NotPermitted;
use crate::session::{current, host};

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("CreateModuleUser", create_user),
    ("FreeModuleUser", free_user),
    ("SetContextUser", set_context_user),
    ("SetModuleUserACL", set_user_rule),
    ("SetModuleUserACLString", set_user_rules),
    ("GetModuleUserACLString", user_rules),
    ("GetCurrentUserName", current_user_name),
    ("GetModuleUserFromUserName", user_of_server),
    ("ACLCheckCommandPermissions", check_command),
    ("ACLCheckKeyPermissions", check_key),
    ("ACLCheckKeyPrefixPermissions", check_key_prefix),
    ("ACLCheckChannelPermissions", check_channel),
    ("ACLCheckPermissions", check_permissions),
    ("ACLAddLogEntry", add_log_entry),
    ("ACLAddLogEntryByUserName", add_log_entry_by_name),
    ("AuthenticateClientWithUser", authenticate_with_user),
    ("AuthenticateClientWithACLUser", authenticate_with_user_of_server),
    ("DeauthenticateAndCloseClient", deauthenticate),
    ("RedactClientCommandArgument", redact_argument),
    ("GetClientCertificate", client_certificate),
];

/// The reasons of entries in the ACL log (`VALKEYMODULE_ACL_LOG_*`), in the order of their numbers.
const LOG_REASONS: [DenialReason; 5] = [
    DenialReason::Auth,
    DenialReason::Command,
    DenialReason::Key,
    DenialReason::Channel,
    DenialReason::Database,
];

/// The result of `SetModuleUserACL` for a wrong rule, which is another one than elsewhere, as in Valkey.
const WRONG_RULE: c_int = -1;

/// The uses of a key that a user may be asked about (`VALKEYMODULE_CMD_KEY_*`).
mod key_use {
    pub const ACCESS: u32 = 1 << 4;
    pub const UPDATE: u32 = 1 << 5;
    pub const INSERT: u32 = 1 << 6;
    pub const DELETE: u32 = 1 << 7;
    pub const WRITE: u32 = UPDATE | INSERT | DELETE;
    pub const ALL: u32 = ACCESS | WRITE;
}

/// Returns the user behind a module's pointer.
///
/// # Safety
/// The pointer is null or that of a user, which lives for `'a` (rule 1).
unsafe fn account_of<'a>(user: *const ModuleUser) -> Option<&'a Arc<AclAccount>> {
    // SAFETY: the caller promises it.
    unsafe { user.as_ref() }.map(|user| &user.account)
}

/// Creates a string that belongs to the context, if it has automatic memory.
fn new_string(context: Option<&Context>, bytes: &[u8]) -> *mut ModuleString {
    let string = ModuleString::create(bytes);
    if let Some(context) = context {
        context.own(string);
    }
    string
}

// ---- users ---------------------------------------------------------------------------------------------------------

unsafe extern "C" fn create_user(name: *const c_char) -> *mut ModuleUser {
    // SAFETY: rule 1.
    let name = unsafe { c_bytes(name) }.unwrap_or_default();
    let Some(host) = host() else { return null_mut() };
    Box::into_raw(Box::new(ModuleUser {
        account: host.create_user(name),
        is_own: true,
    }))
}

unsafe extern "C" fn user_of_server(name: *const ModuleString) -> *mut ModuleUser {
    // SAFETY: rule 1.
    let name = unsafe { ModuleString::bytes_of(name) };
    match host().and_then(|host| host.user(name)) {
        Some(account) => Box::into_raw(Box::new(ModuleUser { account, is_own: false })),
        None => null_mut(),
    }
}

unsafe extern "C" fn free_user(user: *mut ModuleUser) -> c_int {
    if !user.is_null() {
        // SAFETY: rule 1: the pointer is that of a user, which the module does not use any more.
        let user = unsafe { Box::from_raw(user) };
        if user.is_own {
            current(|session| session.delete_user(&user.account));
        }
    }
    OK
}

unsafe extern "C" fn set_context_user(ctx: *mut Context, user: *const ModuleUser) {
    // SAFETY: rule 1.
    let (context, account) = unsafe { (Context::from_pointer(ctx), account_of(user)) };
    if let Some(context) = context {
        *context.users.chosen.borrow_mut() = account.cloned();
    }
}

/// Changes a user.
fn change_user(account: &Arc<AclAccount>, rules: &[Vec<u8>]) -> Result<(), Vec<u8>> {
    let without_session = || Err(b"The rules of users change only while code of a module runs".to_vec());
    current(|session| session.change_user(account, rules)).unwrap_or_else(without_session)
}

unsafe extern "C" fn set_user_rule(user: *mut ModuleUser, rule: *const c_char) -> c_int {
    // SAFETY: rule 1.
    let (account, rule) = unsafe { (account_of(user), c_bytes(rule)) };
    let (Some(account), Some(rule)) = (account, rule) else {
        return ERR;
    };
    match change_user(account, &[rule.to_vec()]) {
        Ok(()) => OK,
        Err(_) => WRONG_RULE,
    }
}

unsafe extern "C" fn set_user_rules(
    ctx: *mut Context,
    user: *mut ModuleUser,
    rules: *const c_char,
    error: *mut *mut ModuleString,
) -> c_int {
    // SAFETY: rule 1.
    let (context, account, rules) = unsafe { (Context::from_pointer(ctx), account_of(user), c_bytes(rules)) };
    let Some(account) = account else { return ERR };
    let rules = quote::split_arguments(&[rules.unwrap_or_default(), b"\n"].concat()).unwrap_or_default();
    match change_user(account, &rules) {
        Ok(()) => OK,
        Err(text) => {
            if !error.is_null() {
                // SAFETY: rule 1: it is a place for a pointer.
                unsafe { error.write(new_string(context, &text)) };
            }
            ERR
        }
    }
}

unsafe extern "C" fn user_rules(user: *mut ModuleUser) -> *mut ModuleString {
    // SAFETY: rule 1.
    match unsafe { account_of(user) } {
        Some(account) => ModuleString::create(&account.rules().describe()),
        None => null_mut(),
    }
}

unsafe extern "C" fn current_user_name(ctx: *mut Context) -> *mut ModuleString {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(ctx) };
    let client_id = context.map_or(0, |context| context.caller.borrow().client_id);
    match current(|session| session.user_of_client(client_id)).flatten() {
        Some(account) if client_id != 0 => new_string(context, account.name()),
        _ => {
            errno::set(libc::EINVAL);
            null_mut()
        }
    }
}

// ---- permissions ---------------------------------------------------------------------------------------------------

/// Sets the error number and returns an error.
fn fail(error: c_int) -> c_int {
    errno::set(error);
    ERR
}

unsafe extern "C" fn check_command(user: *const ModuleUser, words: *const *const ModuleString, count: c_int) -> c_int {
    // SAFETY: rule 1.
    let (account, words) = unsafe { (account_of(user), words_of(words, count)) };
    let (Some(account), Some(host)) = (account, host()) else {
        return fail(libc::EINVAL);
    };
    match host.check_permissions(account, &words, None) {
        Ok(()) => OK,
        Err(NotPermitted::NoSuchCommand) => fail(libc::ENOENT),
        Err(NotPermitted::Denied(_)) => fail(libc::EACCES),
    }
}

unsafe extern "C" fn check_permissions(
    user: *const ModuleUser,
    words: *const *const ModuleString,
    count: c_int,
    db: c_int,
    reason: *mut c_int,
) -> c_int {
    // SAFETY: rule 1.
    let (account, words) = unsafe { (account_of(user), words_of(words, count)) };
    let (Some(account), Some(host)) = (account, host()) else {
        return fail(libc::EINVAL);
    };
    let Some(db) = u32::try_from(db)
        .ok()
        .filter(|db| (*db as usize) < host.database_count())
    else {
        return fail(libc::EINVAL);
    };
    match host.check_permissions(account, &words, Some(db)) {
        Ok(()) => OK,
        Err(NotPermitted::NoSuchCommand) => fail(libc::EINVAL),
        Err(NotPermitted::Denied(denied)) => {
            if !reason.is_null() {
                let number = LOG_REASONS.iter().position(|known| *known == denied);
                // SAFETY: rule 1: it is a place for a number.
                unsafe { reason.write(number.unwrap_or(1) as c_int) };
            }
            fail(libc::EACCES)
        }
    }
}

/// Returns the access that flags of the API name; `None` if they name something else.
fn access_of(flags: u32) -> Option<KeyAccess> {
    let mut access = KeyAccess::empty();
    if flags & key_use::ACCESS != 0 {
        access |= KeyAccess::READ;
    }
    if flags & key_use::WRITE != 0 {
        access |= KeyAccess::WRITE;
    }
    (flags & !key_use::ALL == 0).then_some(access)
}

/// Returns the result of a check, and sets the error number if it has failed.
fn permission(is_allowed: bool) -> c_int {
    if is_allowed { OK } else { fail(libc::EACCES) }
}

unsafe extern "C" fn check_key(user: *const ModuleUser, key: *const ModuleString, flags: c_int) -> c_int {
    // SAFETY: rule 1.
    let (account, key) = unsafe { (account_of(user), ModuleString::bytes_of(key)) };
    let (Some(account), Some(access)) = (account, access_of(flags as u32)) else {
        return fail(libc::EINVAL);
    };
    permission(account.rules().allows_key(access, key))
}

unsafe extern "C" fn check_key_prefix(
    user: *const ModuleUser,
    prefix: *const c_char,
    length: usize,
    flags: u32,
) -> c_int {
    // SAFETY: rule 1.
    let account = unsafe { account_of(user) };
    let (Some(account), Some(access)) = (account, access_of(flags)) else {
        return fail(libc::EINVAL);
    };
    let prefix: &[u8] = match prefix.is_null() {
        true => &[],
        // SAFETY: rule 1: there are as many bytes.
        false => unsafe { std::slice::from_raw_parts(prefix.cast(), length) },
    };
    permission(account.rules().allows_keys_with_prefix(access, prefix))
}

unsafe extern "C" fn check_channel(user: *const ModuleUser, channel: *const ModuleString, flags: c_int) -> c_int {
    // SAFETY: rule 1.
    let (account, channel) = unsafe { (account_of(user), ModuleString::bytes_of(channel)) };
    let flags = flags as u32;
    let Some(account) = account.filter(|_| flags & !channel_flag::ALL == 0) else {
        return fail(libc::EINVAL);
    };
    let usage = match flags & channel_flag::PATTERN != 0 {
        true => ChannelUse::Pattern,
        false => ChannelUse::Name,
    };
    // To end a subscription is always allowed.
    let is_allowed = flags & channel_flag::UNSUBSCRIBE != 0 || account.rules().allows_channel(usage, channel);
    if is_allowed { OK } else { ERR }
}

/// Adds an entry to the ACL log.
fn log_denial(user: &[u8], object: &[u8], reason: c_int) -> c_int {
    let reason = usize::try_from(reason).ok().and_then(|reason| LOG_REASONS.get(reason));
    let Some(reason) = reason else { return ERR };
    match current(|session| session.log_denied_access(*reason, user, object)) {
        Some(()) => OK,
        None => ERR,
    }
}

unsafe extern "C" fn add_log_entry(
    _: *mut Context,
    user: *const ModuleUser,
    object: *const ModuleString,
    reason: c_int,
) -> c_int {
    // SAFETY: rule 1.
    let (account, object) = unsafe { (account_of(user), ModuleString::bytes_of(object)) };
    account.map_or(ERR, |account| log_denial(account.name(), object, reason))
}

unsafe extern "C" fn add_log_entry_by_name(
    _: *mut Context,
    user: *const ModuleString,
    object: *const ModuleString,
    reason: c_int,
) -> c_int {
    // SAFETY: rule 1.
    let (user, object) = unsafe { (ModuleString::bytes_of(user), ModuleString::bytes_of(object)) };
    log_denial(user, object, reason)
}

// ---- authentication ------------------------------------------------------------------------------------------------

/// Logs the client of a context in.
///
/// # Safety
/// `client_id` is null or a place for a number (rule 1).
unsafe fn authenticate(
    context: Option<&Context>,
    account: Option<Arc<AclAccount>>,
    callback: Option<UserChangedFunction>,
    data: *mut c_void,
    client_id: *mut u64,
) -> c_int {
    let (Some(context), Some(account)) = (context, account) else {
        return ERR;
    };
    let id = context.caller.borrow().client_id;
    if id == 0 || !account.rules().is_enabled() {
        return ERR;
    }
    // The callback of the authentication before may call functions of the API, so it runs outside of `current`.
    if let Some(before) = current(|session| session.attached_authentication(id)).flatten() {
        before.end();
    }
    let authentication = callback.map(|callback| Authentication::begin(context.module.clone(), id, callback, data));
    let is_logged_in = current(|session| session.log_in_client(id, &account, authentication.clone()));
    context.users.has_authenticated.set(true);
    if is_logged_in != Some(true) {
        *context.users.authenticated.borrow_mut() = Some((account, authentication));
    }
    if !client_id.is_null() {
        // SAFETY: the caller promises it.
        unsafe { client_id.write(id) };
    }
    OK
}

unsafe extern "C" fn authenticate_with_user(
    ctx: *mut Context,
    user: *const ModuleUser,
    callback: Option<UserChangedFunction>,
    data: *mut c_void,
    client_id: *mut u64,
) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        let account = account_of(user).cloned();
        authenticate(Context::from_pointer(ctx), account, callback, data, client_id)
    }
}

unsafe extern "C" fn authenticate_with_user_of_server(
    ctx: *mut Context,
    name: *const c_char,
    length: usize,
    callback: Option<UserChangedFunction>,
    data: *mut c_void,
    client_id: *mut u64,
) -> c_int {
    if name.is_null() {
        return ERR;
    }
    // SAFETY: rule 1: there are as many bytes.
    let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), length) };
    let account = host().and_then(|host| host.user(name));
    // SAFETY: rule 1.
    unsafe { authenticate(Context::from_pointer(ctx), account, callback, data, client_id) }
}

unsafe extern "C" fn deauthenticate(_: *mut Context, client_id: u64) -> c_int {
    if let Some(before) = current(|session| session.attached_authentication(client_id)).flatten() {
        before.end();
    }
    match current(|session| session.deauthenticate(client_id)) {
        Some(true) => OK,
        _ => ERR,
    }
}

unsafe extern "C" fn redact_argument(ctx: *mut Context, position: c_int) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(ctx) };
    let client_id = context.map_or(0, |context| context.caller.borrow().client_id);
    let count = context.map_or(0, |context| context.strings.count());
    let Some(position) = usize::try_from(position)
        .ok()
        .filter(|position| (1..count).contains(position))
    else {
        return ERR;
    };
    match current(|session| session.redact_argument(client_id, position)) {
        Some(true) if client_id != 0 => OK,
        _ => ERR,
    }
}

unsafe extern "C" fn client_certificate(ctx: *mut Context, client_id: u64) -> *mut ModuleString {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(ctx) };
    match host().and_then(|host| host.certificate(client_id)) {
        Some(certificate) => new_string(context, &as_pem(&certificate)),
        None => null_mut(),
    }
}

/// Returns a certificate in the PEM format (RFC 7468).
fn as_pem(der: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = Vec::with_capacity(der.len().div_ceil(3) * 4);
    for group in der.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for letter in 0..4 {
            encoded.push(match letter <= group.len() {
                true => LETTERS[(bits >> (18 - 6 * letter) & 0x3f) as usize],
                false => b'=',
            });
        }
    }
    let mut text = b"-----BEGIN CERTIFICATE-----\n".to_vec();
    for line in encoded.chunks(64) {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text.extend_from_slice(b"-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests;
