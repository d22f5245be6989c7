//! Functions about clients, by their ids.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::module::server_events::{ClientLayout, LAYOUT_VERSION};
use crate::objects::context::Context;
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::clients::{KnownClient, RenameError};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("GetClientInfoById", client_info),
    ("GetClientNameById", client_name),
    ("SetClientNameById", set_client_name),
    ("GetClientUserNameById", client_user_name),
];

fn known_client(id: u64) -> Option<KnownClient> {
    session::current(|session| session.known_client(id)).flatten()
}

/// Describes a client, in the version of the layout that the module has written to its first word.
unsafe extern "C" fn client_info(target: *mut c_void, id: u64) -> c_int {
    let Some(client) = known_client(id) else {
        return ERR;
    };
    if target.is_null() {
        return OK;
    }
    // SAFETY: rule 1: it is a place for a description, which begins with its version.
    unsafe {
        if target.cast::<u64>().read_unaligned() != LAYOUT_VERSION {
            return ERR;
        }
        target
            .cast::<ClientLayout>()
            .write_unaligned(ClientLayout::of(&client.info));
    }
    OK
}

/// Returns a string that the context owns, if it has automatic memory.
///
/// # Safety
/// The context is null or lives (rule 1).
unsafe fn owned_string(context: *mut Context, bytes: &[u8]) -> *mut ModuleString {
    let string = ModuleString::create(bytes);
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.own(string);
    }
    string
}

unsafe extern "C" fn client_name(context: *mut Context, id: u64) -> *mut ModuleString {
    match known_client(id) {
        // SAFETY: rule 1.
        Some(client) if !client.name.is_empty() => unsafe { owned_string(context, &client.name) },
        _ => null_mut(),
    }
}

unsafe extern "C" fn client_user_name(context: *mut Context, id: u64) -> *mut ModuleString {
    match known_client(id) {
        // SAFETY: rule 1.
        Some(client) => unsafe { owned_string(context, &client.user) },
        None => {
            errno::set(libc::ENOENT);
            null_mut()
        }
    }
}

unsafe extern "C" fn set_client_name(id: u64, name: *mut ModuleString) -> c_int {
    // SAFETY: rule 1.
    let name = unsafe { ModuleString::bytes_of(name) };
    let renamed = session::current(|session| session.rename_client(id, name));
    errno::set(match renamed.unwrap_or(Err(RenameError::NoClient)) {
        Ok(()) => return OK,
        Err(RenameError::NoClient) => libc::ENOENT,
        Err(RenameError::InvalidName) => libc::EINVAL,
    });
    ERR
}
