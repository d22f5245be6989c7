//! The figures of INFO that modules read, and what they add to it.

use weft_modules::session::info::InfoHost;

use super::ModuleHost;
use crate::commands::server::sections::{self, InfoSection, KeyspaceSamples};

impl InfoHost for ModuleHost {
    /// Returns the sections without the figures that only workers know: those of their clients are 0.
    fn info_text(&self, section: &[u8]) -> Vec<u8> {
        let section = section.to_ascii_lowercase();
        let wanted: Vec<InfoSection> = match section.as_slice() {
            b"" | b"default" => InfoSection::DEFAULT.to_vec(),
            b"all" | b"everything" => InfoSection::ALL.to_vec(),
            name => InfoSection::from_name(name).into_iter().collect(),
        };
        let render =
            |section: &InfoSection| sections::render_section(&self.server, *section, &KeyspaceSamples::default());
        wanted.iter().map(render).collect::<Vec<_>>().join(&b"\r\n"[..])
    }
}
