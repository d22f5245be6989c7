//! `weft-top`: a dashboard for the terminal that shows what a Weft, Valkey or Redis server does.
//!
//! The thread of [`poller`] speaks to the server over [`connection`]; [`sampling`] turns replies into a [`model`]. The
//! main thread translates keys into actions ([`input`]), applies them to the [`state`], and draws it ([`view`]).
#![forbid(unsafe_code)]

mod columns;
mod connection;
mod error;
mod escape;
mod format;
mod history;
mod input;
mod json_output;
mod model;
mod options;
mod panel;
mod poller;
mod sampling;
mod state;
mod terminal;
mod view;

use std::process::ExitCode;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};

use connection::Connector;
use error::{Result, TopError};
use json_output::CostlyParts;
use options::{OutputMode, ParsedCommandLine, TopOptions};
use poller::{PollRequest, Poller};
use state::DashboardState;
use terminal::{DashboardTerminal, TerminationSignals};

/// The longest time until an event of the connection is shown.
const DRAW_DELAY: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let variable = |name: &str| std::env::var(name).ok();
    let result = options::parse(&words, variable).and_then(|parsed| match parsed {
        ParsedCommandLine::Print(text) => {
            print!("{text}");
            Ok(())
        }
        ParsedCommandLine::Run(options) => run(*options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-top: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(options: TopOptions) -> Result<()> {
    let connector = Connector::new(options.connection)?;
    match options.mode {
        OutputMode::Json { count, pretty } => {
            let parts = CostlyParts {
                sample_keys: options.sample_keys,
                hot_keys: options.hot_keys,
            };
            json_output::run(connector, options.interval, count, pretty, parts)
        }
        OutputMode::Dashboard => {
            let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let state = DashboardState::new(has_colors, options.sample_keys).with_hot_keys(options.hot_keys);
            run_dashboard(connector, options.interval, state)
        }
    }
}

fn run_dashboard(connector: Connector, interval: Duration, mut state: DashboardState) -> Result<()> {
    let signals = TerminationSignals::register()?;
    let mut terminal = DashboardTerminal::open()?;
    let mut wanted = state.wanted_parts();
    let poller = poller::start(connector, interval, wanted)?;
    let mut needs_drawing = true;
    while !state.is_done && !signals.arrived() {
        if needs_drawing {
            let mut page_rows = 0;
            let drawn = terminal.screen.draw(|frame| page_rows = view::draw(frame, &state));
            drawn.map_err(TopError::system("drawing"))?;
            state.page_rows = page_rows;
        }
        needs_drawing = handle_terminal_events(&mut state, &poller)?;
        // While the server is slow, the queue may be full: the next turn tries again.
        if state.wanted_parts() != wanted && send(&poller, PollRequest::Want(state.wanted_parts())) {
            wanted = state.wanted_parts();
        }
        needs_drawing |= handle_poll_events(&mut state, &poller)?;
    }
    Ok(())
}

/// Waits for keys and handles all that have arrived. Returns `true` if the screen may have changed.
fn handle_terminal_events(state: &mut DashboardState, poller: &Poller) -> Result<bool> {
    let mut delay = DRAW_DELAY;
    let mut has_changed = false;
    while !state.is_done && event::poll(delay).map_err(TopError::system("reading the keyboard"))? {
        delay = Duration::ZERO;
        has_changed = true;
        let Event::Key(key) = event::read().map_err(TopError::system("reading the keyboard"))? else {
            continue;
        };
        if let Some(action) = input::action(key, state.input_mode())
            && let Some(client) = state.apply_action(action)
            && !send(poller, PollRequest::KillClient(client))
        {
            state.message = Some("the server is slow; try again later".to_owned());
        }
    }
    Ok(has_changed)
}

/// Sends a request without waiting. Returns `false` if the queue is full.
fn send(poller: &Poller, request: PollRequest) -> bool {
    poller.requests.try_send(request).is_ok()
}

/// Applies the events of the connection. Returns `true` if there were some.
fn handle_poll_events(state: &mut DashboardState, poller: &Poller) -> Result<bool> {
    let mut has_changed = false;
    loop {
        match poller.events.try_recv() {
            Ok(event) => {
                has_changed = true;
                state.apply_event(event);
            }
            Err(TryRecvError::Empty) => return Ok(has_changed),
            Err(TryRecvError::Disconnected) => {
                return Err(TopError::Server("the thread of the connection ended".to_owned()));
            }
        }
    }
}
