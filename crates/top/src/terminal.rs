//! The terminal and the signals that end the program.
//!
//! The terminal is restored on every way out: on return, because the guard is dropped; on a panic of any thread, by the
//! hook that ratatui installs; on a signal, because the main loop looks at [`TerminationSignals`].

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{Result, TopError};

/// The signals that end the program.
#[derive(Debug)]
pub struct TerminationSignals(Arc<AtomicBool>);

impl TerminationSignals {
    /// Replaces the immediate end of the process by a flag.
    ///
    /// # Errors
    /// Fails if the operating system refuses.
    pub fn register() -> Result<TerminationSignals> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(TopError::system("handling signals"))?;
        }
        Ok(TerminationSignals(flag))
    }

    /// Returns `true` if a signal arrived.
    pub fn arrived(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The terminal in raw mode, with the alternate screen. Dropping it restores the terminal.
#[derive(Debug)]
pub struct DashboardTerminal {
    /// Draws frames.
    pub screen: DefaultTerminal,
}

impl DashboardTerminal {
    /// Prepares the terminal, and the hook that restores it on a panic.
    ///
    /// # Errors
    /// Fails if there is no terminal.
    pub fn open() -> Result<DashboardTerminal> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            let text = "the dashboard needs a terminal; --json does without";
            return Err(TopError::Usage(text.to_owned()));
        }
        let screen = ratatui::try_init().map_err(TopError::system("preparing the terminal"))?;
        Ok(DashboardTerminal { screen })
    }
}

impl Drop for DashboardTerminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
