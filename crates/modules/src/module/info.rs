//! The sections that modules add to INFO.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Module, loading};
use crate::invoke;
use crate::objects::info::InfoContext;
use crate::session::Session;

/// A function that adds sections. The number is not 0 in the report of a crash.
pub type InfoFunction = unsafe extern "C" fn(*mut InfoContext, c_int);

/// Returns `true` if a loaded module adds sections.
pub fn has_sections() -> bool {
    loading::loaded().iter().any(|module| module.info.get().is_some())
}

/// Returns the sections that modules add. `wanted` are the names of sections, or modules, that the client has asked
/// for; `None` for all.
pub fn collect(session: &mut dyn Session, wanted: Option<&[Vec<u8>]>) -> Vec<u8> {
    let mut text = Vec::new();
    for module in loading::loaded() {
        if let Some(function) = module.info.get().copied() {
            let section = call(&module, function, session, wanted);
            if !text.is_empty() && !section.is_empty() {
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(&section);
        }
    }
    text
}

fn call(
    module: &Arc<Module>,
    function: InfoFunction,
    session: &mut dyn Session,
    wanted: Option<&[Vec<u8>]>,
) -> Vec<u8> {
    let context = InfoContext::new(module.clone(), wanted.map(<[_]>::to_vec));
    invoke::call_into(module, session, || {
        // SAFETY: the context lives until the function has returned.
        unsafe { function(context.as_pointer(), 0) }
    });
    context.into_text()
}
