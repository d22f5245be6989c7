//! The layouts of events that modules see. Each begins with its version.

use std::ffi::{CString, c_char, c_int, c_longlong};

use super::event::{CommandResult, ReplicationInfo};
use crate::objects::key::ModuleKey;
use crate::objects::string::ModuleString;
use crate::session::clients::ClientInfo;

/// The version of all layouts.
pub const VERSION: u64 = 1;

/// The length of the text of an address, with the zero byte.
const ADDRESS_BYTES: usize = 46;

/// The kind of an event (`ValkeyModuleEvent`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventHeader {
    /// The number of the kind.
    pub kind: u64,
    /// The version of the layout.
    pub version: u64,
}

/// A client (`ValkeyModuleClientInfoV1`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClientLayout {
    /// The version.
    pub version: u64,
    flags: u64,
    id: u64,
    address: [u8; ADDRESS_BYTES],
    port: u16,
    db: u16,
}

const _: () = assert!(size_of::<ClientLayout>() == 80);

impl ClientLayout {
    /// Describes a client.
    pub fn of(client: &ClientInfo) -> ClientLayout {
        let mut address = [0; ADDRESS_BYTES];
        let length = client.address.len().min(ADDRESS_BYTES - 1);
        address[..length].copy_from_slice(&client.address.as_bytes()[..length]);
        ClientLayout {
            version: VERSION,
            flags: client.flags,
            id: client.id,
            address,
            port: client.port,
            db: client.db,
        }
    }
}

/// Returns a C string; empty if the text has a zero byte.
pub(super) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The texts of [`ReplicationLayout`].
pub(super) struct ReplicationTexts {
    primary: CString,
    id: CString,
    second_id: CString,
}

/// The replication of this server (`ValkeyModuleReplicationInfoV1`).
#[repr(C)]
pub(super) struct ReplicationLayout {
    version: u64,
    is_primary: c_int,
    primary: *const c_char,
    port: c_int,
    id: *const c_char,
    second_id: *const c_char,
    offset: u64,
    second_offset: u64,
}

impl ReplicationTexts {
    pub fn of(info: &ReplicationInfo) -> ReplicationTexts {
        let primary = info.primary.as_ref().map_or("", |(name, _)| name);
        ReplicationTexts {
            primary: c_string(primary),
            id: c_string(info.id.as_str()),
            second_id: c_string(info.second_id.as_str()),
        }
    }

    /// Returns the layout, which points to these texts.
    pub fn layout(&self, info: &ReplicationInfo) -> ReplicationLayout {
        ReplicationLayout {
            version: VERSION,
            is_primary: c_int::from(info.is_primary),
            primary: self.primary.as_ptr(),
            port: info.primary.as_ref().map_or(0, |(_, port)| c_int::from(*port)),
            id: self.id.as_ptr(),
            second_id: self.second_id.as_ptr(),
            offset: info.offset,
            second_offset: info.second_offset as u64,
        }
    }
}

/// A database that is emptied (`ValkeyModuleFlushInfoV1`).
#[repr(C)]
pub(super) struct FlushLayout {
    pub version: u64,
    pub is_sync: i32,
    pub db: i32,
}

/// A module (`ValkeyModuleModuleChangeV1`).
#[repr(C)]
pub(super) struct ModuleLayout {
    pub version: u64,
    pub name: *const c_char,
    pub module_version: i32,
}

/// Parameters of the configuration (`ValkeyModuleConfigChangeV1`).
#[repr(C)]
pub(super) struct ConfigLayout {
    pub version: u64,
    pub count: u32,
    pub names: *const *const c_char,
}

/// The regular tasks (`ValkeyModuleCronLoopV1`).
#[repr(C)]
pub(super) struct CronLayout {
    pub version: u64,
    pub hz: i32,
}

/// A part of the data (`ValkeyModuleLoadingProgressV1`).
#[repr(C)]
pub(super) struct ProgressLayout {
    pub version: u64,
    pub hz: i32,
    pub progress: i32,
}

/// Two databases (`ValkeyModuleSwapDbInfoV1`).
#[repr(C)]
pub(super) struct SwapLayout {
    pub version: u64,
    pub first: i32,
    pub second: i32,
}

/// A key (`ValkeyModuleKeyInfoV1`).
#[repr(C)]
pub(super) struct KeyLayout {
    pub version: u64,
    pub key: *mut ModuleKey,
}

/// An attempt to authenticate (`ValkeyModuleAuthenticationInfoV1`).
#[repr(C)]
pub(super) struct AuthenticationLayout {
    pub version: u64,
    pub client_id: u64,
    pub user: *const c_char,
    pub module: *const c_char,
    /// 0 if it has succeeded.
    pub result: c_int,
}

/// A range of slots (`ValkeyModuleSlotRange`).
#[repr(C)]
pub(super) struct SlotRangeLayout {
    pub first: c_int,
    pub last: c_int,
}

/// A slot migration (`ValkeyModuleAtomicSlotMigrationInfoV1`).
#[repr(C)]
pub(super) struct SlotMigrationLayout {
    pub version: u64,
    pub name: [u8; 41],
    pub ranges: *const SlotRangeLayout,
    pub count: u32,
}

/// The end of a command (`ValkeyModuleCommandResultInfoV1`).
#[repr(C)]
pub(super) struct CommandLayout {
    version: u64,
    name: *const c_char,
    duration_us: c_longlong,
    changes: c_longlong,
    client_id: u64,
    is_from_module: c_int,
    count: c_int,
    words: *const *mut ModuleString,
    context: *const c_char,
}

/// What [`CommandLayout`] points to.
pub(super) struct CommandTexts {
    name: Option<CString>,
    context: Option<CString>,
    words: Vec<*mut ModuleString>,
}

impl CommandTexts {
    pub fn of(result: &CommandResult, context: Option<&[u8]>) -> CommandTexts {
        CommandTexts {
            name: result.name.map(c_string),
            context: context.map(c_string),
            words: result.words.iter().map(|word| ModuleString::create(word)).collect(),
        }
    }

    /// Returns the layout, which points to these texts.
    pub fn layout(&self, result: &CommandResult) -> CommandLayout {
        let pointer_of = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        CommandLayout {
            version: VERSION,
            name: pointer_of(&self.name),
            duration_us: c_longlong::try_from(result.duration_us).unwrap_or(c_longlong::MAX),
            changes: c_longlong::try_from(result.changes).unwrap_or(c_longlong::MAX),
            client_id: result.client_id,
            is_from_module: c_int::from(result.is_from_module),
            count: self.words.len() as c_int,
            words: self.words.as_ptr(),
            context: pointer_of(&self.context),
        }
    }
}

impl Drop for CommandTexts {
    fn drop(&mut self) {
        for word in self.words.drain(..) {
            // SAFETY: this is a holder of each word.
            unsafe { ModuleString::release(word) };
        }
    }
}
