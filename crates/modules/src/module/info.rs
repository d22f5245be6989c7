//! The sections that modules add to INFO.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Module, listed, loading};
use crate::invoke;
use crate::objects::info::InfoContext;
use crate::session::{Session, with_session, without_session};

/// A function that adds sections. The number is not 0 in the report of a crash.
pub type InfoFunction = unsafe extern "C" fn(*mut InfoContext, c_int);

/// Returns `true` if a loaded module adds sections.
pub fn has_sections() -> bool {
    loading::loaded().iter().any(|module| module.info.get().is_some())
}

/// Returns the sections that modules add. `wanted` are the names of sections, or modules, that the client has asked
/// for; `None` for all.
pub fn collect(session: &mut dyn Session, wanted: Option<&[Vec<u8>]>) -> Vec<u8> {
    with_session(session, || modulesCollectInfo(wanted, false))
}

/// Returns the sections that modules add to the report of a crash, on the thread that has crashed. They get no access
/// to the data.
pub fn collect_for_crash() -> Vec<u8> {
    match listed::generation() {
        0 => Vec::new(),
        _ => without_session(|| modulesCollectInfo(None, true)),
    }
}

/// Does the same with the session that the thread has. In stack traces it has the name of its counterpart in Valkey, by
/// which reports of crashes of modules are read.
#[expect(non_snake_case, reason = "its name in stack traces is that of Valkey")]
#[inline(never)]
fn modulesCollectInfo(wanted: Option<&[Vec<u8>]>, is_for_crash: bool) -> Vec<u8> {
    let mut text = Vec::new();
    for module in loading::loaded() {
        if let Some(function) = module.info.get().copied() {
            let section = call(&module, function, wanted, is_for_crash);
            if !text.is_empty() && !section.is_empty() {
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(&section);
        }
    }
    text
}

fn call(module: &Arc<Module>, function: InfoFunction, wanted: Option<&[Vec<u8>]>, is_for_crash: bool) -> Vec<u8> {
    let context = InfoContext::new(module.clone(), wanted.map(<[_]>::to_vec));
    invoke::name_module(module, || {
        // SAFETY: the context lives until the function has returned.
        unsafe { function(context.as_pointer(), c_int::from(is_for_crash)) }
    });
    context.into_text()
}
