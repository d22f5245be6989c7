//! What a module adds to INFO (`ValkeyModuleInfoCtx`), and the figures of the server that modules read
//! (`ValkeyModuleServerInfoData`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::automatic::AutomaticObject;
use crate::module::Module;

/// The sections that a module adds, while its function runs.
pub struct InfoContext {
    module: Arc<Module>,
    /// The sections and modules that the client has asked for; `None` for all.
    wanted: Option<Vec<Vec<u8>>>,
    text: RefCell<InfoText>,
}

#[derive(Default)]
struct InfoText {
    bytes: Vec<u8>,
    sections: usize,
    /// `true` while fields may be added: the client has asked for the section.
    is_in_section: bool,
    /// `true` while fields are added to a field that has several parts.
    is_in_dictionary: bool,
}

impl InfoText {
    fn end_dictionary(&mut self) {
        if std::mem::take(&mut self.is_in_dictionary) {
            if self.bytes.last() == Some(&b',') {
                self.bytes.pop();
            }
            self.bytes.extend_from_slice(b"\r\n");
        }
    }
}

/// Returns a name without the characters that separate fields and lines.
fn safe_name(name: &[u8]) -> impl Iterator<Item = u8> {
    let is_separator = |byte: u8| matches!(byte, b'#' | b':' | b'\n' | b'\r');
    name.iter()
        .map(move |byte| if is_separator(*byte) { b'_' } else { *byte })
}

impl InfoContext {
    /// Creates the context of a call.
    pub fn new(module: Arc<Module>, wanted: Option<Vec<Vec<u8>>>) -> Self {
        InfoContext {
            module,
            wanted,
            text: RefCell::default(),
        }
    }

    /// Returns the pointer that the module gets.
    pub fn as_pointer(&self) -> *mut InfoContext {
        std::ptr::from_ref(self).cast_mut()
    }

    /// Begins a section. Returns `false` if the client has not asked for it. A section without a name has that of the
    /// module.
    pub fn add_section(&self, name: &[u8]) -> bool {
        let module_name = self.module.name();
        let mut full_name = module_name.as_bytes().to_vec();
        if !name.is_empty() {
            full_name.push(b'_');
            full_name.extend_from_slice(name);
        }
        let text = &mut *self.text.borrow_mut();
        text.end_dictionary();
        let is_wanted = |wanted: &Vec<u8>| {
            wanted.eq_ignore_ascii_case(&full_name) || wanted.eq_ignore_ascii_case(module_name.as_bytes())
        };
        text.is_in_section = self.wanted.as_ref().is_none_or(|wanted| wanted.iter().any(is_wanted));
        if !text.is_in_section {
            return false;
        }
        if text.sections > 0 {
            text.bytes.extend_from_slice(b"\r\n");
        }
        text.sections += 1;
        text.bytes.extend_from_slice(b"# ");
        text.bytes.extend_from_slice(&full_name);
        text.bytes.extend_from_slice(b"\r\n");
        true
    }

    /// Begins a field of several parts. Returns `false` outside of a section.
    pub fn begin_dictionary(&self, name: &[u8]) -> bool {
        let text = &mut *self.text.borrow_mut();
        if !text.is_in_section {
            return false;
        }
        text.end_dictionary();
        text.bytes.extend_from_slice(self.module.name().as_bytes());
        text.bytes.push(b'_');
        text.bytes.extend(safe_name(name));
        text.bytes.push(b':');
        text.is_in_dictionary = true;
        true
    }

    /// Ends a field of several parts. Returns `false` outside of one.
    pub fn end_dictionary(&self) -> bool {
        let text = &mut *self.text.borrow_mut();
        let is_in_dictionary = text.is_in_dictionary;
        text.end_dictionary();
        is_in_dictionary
    }

    /// Adds a field, or a part of one. Returns `false` outside of a section.
    pub fn add_field(&self, name: &[u8], value: impl Iterator<Item = u8>) -> bool {
        let text = &mut *self.text.borrow_mut();
        if !text.is_in_section {
            return false;
        }
        if text.is_in_dictionary {
            text.bytes.extend(safe_name(name));
            text.bytes.push(b'=');
            text.bytes.extend(value);
            text.bytes.push(b',');
        } else {
            text.bytes.extend_from_slice(self.module.name().as_bytes());
            text.bytes.push(b'_');
            text.bytes.extend(safe_name(name));
            text.bytes.push(b':');
            text.bytes.extend(value);
            text.bytes.extend_from_slice(b"\r\n");
        }
        true
    }

    /// Adds a field whose value is a text of the module.
    pub fn add_text_field(&self, name: &[u8], value: &[u8]) -> bool {
        self.add_field(name, safe_name(value))
    }

    /// Returns the sections.
    pub fn into_text(self) -> Vec<u8> {
        let mut text = self.text.into_inner();
        text.end_dictionary();
        text.bytes
    }
}

/// The fields of a section of INFO, as a module reads them.
pub struct ServerInfo {
    /// The values by field, each with a zero byte behind it.
    fields: HashMap<Vec<u8>, Vec<u8>>,
}

impl ServerInfo {
    /// Reads the text of INFO. Lines that are no fields are ignored.
    pub fn from_text(text: &[u8]) -> Self {
        let mut fields = HashMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.starts_with(b"#") {
                continue;
            }
            if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                let mut value = line[colon + 1..].to_vec();
                value.push(0);
                fields.insert(line[..colon].to_vec(), value);
            }
        }
        ServerInfo { fields }
    }

    /// Returns the value of a field with a zero byte behind it.
    pub fn terminated(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.get(name).map(Vec::as_slice)
    }

    /// Returns the value of a field.
    pub fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.terminated(name).map(|value| &value[..value.len() - 1])
    }
}

impl AutomaticObject for ServerInfo {
    unsafe fn free(pointer: *mut Self) {
        // SAFETY: the caller promises that nothing uses it any more; it was created as a box.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

#[cfg(test)]
mod tests;
