//! The figures of INFO that modules read, and what they add to it.

use weft_modules::module::info as sections_of_modules;
use weft_modules::session::current;
use weft_modules::session::info::InfoHost;

use super::ModuleHost;
use crate::commands::server::info::wanted_from_modules;
use crate::commands::server::sections::{self, InfoSection, KeyspaceSamples};

impl InfoHost for ModuleHost {
    /// Returns the sections without the figures that only workers know: those of their clients are 0. The sections of
    /// modules are there if the thread has a session.
    fn info_text(&self, section: &[u8]) -> Vec<u8> {
        let section = section.to_ascii_lowercase();
        let wanted: Vec<InfoSection> = match section.as_slice() {
            b"" | b"default" => InfoSection::DEFAULT.to_vec(),
            b"all" | b"everything" => InfoSection::ALL.to_vec(),
            name => InfoSection::from_name(name).into_iter().collect(),
        };
        let render =
            |section: &InfoSection| sections::render_section(&self.server, *section, &KeyspaceSamples::default());
        let mut texts: Vec<Vec<u8>> = wanted.iter().map(render).collect();
        let names = wanted_from_modules(std::iter::once(section.as_slice()).filter(|name| !name.is_empty()));
        if let Some(names) = names
            && let Some(added) = current(|session| sections_of_modules::collect(session, names.as_deref()))
        {
            texts.push(added);
        }
        texts.join(&b"\r\n"[..])
    }
}
