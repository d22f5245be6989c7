//! The most used keys, from WEFT HOTKEYS of a Weft server.
//!
//! At the user's request, the server samples the keys of commands. It does so for a minute at a time, so that it stops
//! by itself when this program has ended, and so that the figures are recent ones. Sampling that another client has
//! started is shown and not stopped, even if that client has stopped ours meanwhile: the server stops what has our id.

use super::random_id;
use crate::connection::reply::RespValue;
use crate::connection::{ServerConnection, accepted};
use crate::error::Result;
use crate::escape::printable;
use crate::model::{HotKeyRow, HotKeysFigures};

#[cfg(test)]
mod tests;

/// The seconds for which the server samples at a time.
const DURATION_S: &str = "60";
/// The number of keys asked for.
const COUNT: &str = "100";
/// The longest name that is kept, in characters.
const MAX_CHARACTERS: usize = 256;

/// How the most used keys are obtained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HotKeysMode {
    /// They are not requested.
    #[default]
    Hidden,
    /// The report of the server is read, whether it samples or not.
    Shown,
    /// The server is made to sample, and its report is read.
    Sampled,
}

/// The state between samples.
#[derive(Debug)]
pub struct HotKeySampling {
    /// The id of the sampling that this program starts.
    id: String,
    /// `true` if this program has started sampling and not stopped it.
    is_own: bool,
}

impl Default for HotKeySampling {
    fn default() -> Self {
        HotKeySampling {
            id: random_id(),
            is_own: false,
        }
    }
}

impl HotKeySampling {
    /// Asks the server, and starts or stops its sampling. Returns `None` if they are not requested, and the text of an
    /// error of the server.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn sample(
        &mut self,
        connection: &mut ServerConnection,
        mode: HotKeysMode,
    ) -> Result<Option<std::result::Result<HotKeysFigures, String>>> {
        if mode != HotKeysMode::Sampled && self.is_own {
            self.is_own = false;
            // An error has no consequence: the sampling ends by itself, or has ended already.
            connection.call(&["WEFT", "HOTKEYS", "STOP", "ID", &self.id])?;
        }
        if mode == HotKeysMode::Hidden {
            return Ok(None);
        }
        let reply = match accepted(connection.call(&["WEFT", "HOTKEYS", "GET", "COUNT", COUNT])?) {
            Err(text) => return Ok(Some(Err(text))),
            Ok(reply) => reply,
        };
        let Some(figures) = parse(&reply) else {
            let text = "the server's reply to WEFT HOTKEYS is not a report".to_owned();
            return Ok(Some(Err(text)));
        };
        if mode == HotKeysMode::Sampled && !figures.is_sampling {
            let words = ["WEFT", "HOTKEYS", "START", "DURATION", DURATION_S, "ID", &self.id];
            match accepted(connection.call(&words)?) {
                Ok(_) => self.is_own = true,
                Err(text) => return Ok(Some(Err(text))),
            }
        }
        Ok(Some(Ok(figures)))
    }
}

/// Parses a report; `None` if it has another form.
pub fn parse(reply: &RespValue) -> Option<HotKeysFigures> {
    let number = |value: &RespValue, name: &str| u64::try_from(value.field(name)?.integer()?).ok();
    let duration_s = number(reply, "duration-ms")? as f64 / 1000.0;
    let row = |key: &RespValue| {
        let uses = number(key, "uses")?;
        Some(HotKeyRow {
            name: printable(key.field("key")?.bytes()?, MAX_CHARACTERS),
            database: number(key, "database")?,
            uses,
            uses_per_s: (duration_s > 0.0).then(|| uses as f64 / duration_s),
            error: number(key, "error")?,
            share: key.field("share")?.number()?,
            write_share: key.field("write-share")?.number()?,
            time_share: key.field("time-share")?.number()?,
        })
    };
    Some(HotKeysFigures {
        is_sampling: reply.field("state")?.bytes()? == b"on",
        sample_ratio: number(reply, "sample-ratio")?,
        duration_s,
        samples: number(reply, "samples")?,
        rows: reply.field("keys")?.elements()?.iter().filter_map(row).collect(),
    })
}
