//! The state of the dashboard: what is shown, and how actions and events change it.

use crate::columns::{self, Column, RowOrder, arrange};
use crate::history::FigureHistory;
use crate::input::{InputMode, UserAction};
use crate::model::{ClientRow, TopReport};
use crate::panel::Panel;
use crate::poller::PollEvent;
use crate::sampling::WantedParts;
use crate::sampling::hot_keys::HotKeysMode;
use crate::sampling::slots::SlotOrder;

#[cfg(test)]
mod tests;

/// The longest filter.
const MAX_FILTER_CHARACTERS: usize = 100;

/// The state of one table.
#[derive(Debug, Clone, Default)]
pub struct PanelTable {
    /// The order and the filter of rows.
    pub order: RowOrder,
    /// The selected row, among those that pass the filter.
    pub selected: usize,
}

/// The client that the user is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillQuestion {
    /// The id of the client.
    pub id: u64,
    /// The client as text.
    pub description: String,
}

/// The whole state of the dashboard.
#[derive(Debug, Default)]
pub struct DashboardState {
    /// The shown panel.
    pub panel: Panel,
    /// The newest report, or the one that is frozen.
    pub report: Option<TopReport>,
    /// The figures of the charts. They go on while the display is frozen.
    pub history: FigureHistory,
    /// Why there is no connection; `None` while there is one.
    pub connection_error: Option<String>,
    /// The display is frozen.
    pub is_paused: bool,
    /// The help is shown.
    pub shows_help: bool,
    /// The filter is being written.
    pub edits_filter: bool,
    /// The question that waits for an answer.
    pub question: Option<KillQuestion>,
    /// A message for the user, until the next key.
    pub message: Option<String>,
    /// The figure by which slots are ordered.
    pub slot_order: SlotOrder,
    /// The search for big keys runs.
    pub searches_keys: bool,
    /// The panel of keys shows the most used ones.
    pub shows_hot_keys: bool,
    /// The server is to sample the keys of commands.
    pub samples_hot_keys: bool,
    /// The user wants to end the program.
    pub is_done: bool,
    /// The number of rows that the last frame had space for.
    pub page_rows: usize,
    /// `true` for colours.
    pub has_colors: bool,
    tables: [PanelTable; Panel::ALL.len()],
}

impl DashboardState {
    /// Creates the state before the first report.
    pub fn new(has_colors: bool, searches_keys: bool) -> DashboardState {
        DashboardState {
            has_colors,
            searches_keys,
            ..DashboardState::default()
        }
    }

    /// Lets the server sample the keys of commands from the start.
    pub fn with_hot_keys(self, samples_hot_keys: bool) -> DashboardState {
        DashboardState {
            samples_hot_keys,
            shows_hot_keys: samples_hot_keys,
            ..self
        }
    }

    /// The table of the shown panel.
    pub fn table(&self) -> &PanelTable {
        &self.tables[self.panel as usize]
    }

    fn table_mut(&mut self) -> &mut PanelTable {
        &mut self.tables[self.panel as usize]
    }

    /// What the next key is for.
    pub fn input_mode(&self) -> InputMode {
        if self.question.is_some() {
            InputMode::Confirmation
        } else if self.shows_help {
            InputMode::Help
        } else if self.edits_filter {
            InputMode::Filter
        } else {
            InputMode::Normal
        }
    }

    /// The parts that the shown panel needs.
    pub fn wanted_parts(&self) -> WantedParts {
        WantedParts {
            clients: self.panel == Panel::Clients,
            slots: (self.panel == Panel::Slots).then_some(self.slot_order),
            keys: self.searches_keys,
            hot_keys: match self.samples_hot_keys {
                true => HotKeysMode::Sampled,
                false if self.panel == Panel::Keys && self.shows_hot_keys => HotKeysMode::Shown,
                false => HotKeysMode::Hidden,
            },
        }
    }

    /// The clients that pass the filter, in order.
    fn shown_clients(&self) -> Vec<&ClientRow> {
        let clients = self.report.as_ref().and_then(|report| report.clients.as_ref());
        let rows = clients.map(|clients| clients.rows.as_slice()).unwrap_or_default();
        arrange(rows, columns::CLIENT_COLUMNS, &self.table().order)
    }

    /// The number of rows that pass the filter, and the number of columns, of the shown panel.
    fn table_size(&self) -> (usize, usize) {
        let order = &self.table().order;
        let Some(report) = &self.report else {
            return (0, 0);
        };
        fn size<T>(rows: Option<&[T]>, columns: &[Column<T>], order: &RowOrder) -> (usize, usize) {
            (arrange(rows.unwrap_or_default(), columns, order).len(), columns.len())
        }
        match self.panel {
            Panel::Overview => (0, 0),
            Panel::Workers => {
                let rows = report.workers.as_ref().map(|part| part.threads.as_slice());
                size(rows, columns::WORKER_COLUMNS, order)
            }
            Panel::Commands => size(report.commands.as_deref(), columns::COMMAND_COLUMNS, order),
            Panel::Clients => (self.shown_clients().len(), columns::CLIENT_COLUMNS.len()),
            Panel::Slots => {
                let rows = report.slots.as_ref().map(|part| part.rows.as_slice());
                size(rows, columns::SLOT_COLUMNS, order)
            }
            Panel::Keys if self.shows_hot_keys => {
                let rows = report.hot_keys.as_ref().map(|part| part.rows.as_slice());
                size(rows, columns::HOT_KEY_COLUMNS, order)
            }
            Panel::Keys => {
                let rows = report.keys.as_ref().map(|part| part.rows.as_slice());
                size(rows, columns::KEY_COLUMNS, order)
            }
            Panel::Replication => {
                let rows = report.replication.as_ref().map(|part| part.replicas.as_slice());
                size(rows, columns::REPLICA_COLUMNS, order)
            }
            Panel::Memory => {
                let rows = report.memory.as_ref().map(|part| part.consumers.as_slice());
                size(rows, columns::MEMORY_COLUMNS, order)
            }
        }
    }

    /// Applies an event of the connection.
    pub fn apply_event(&mut self, event: PollEvent) {
        match event {
            PollEvent::Report(report) => {
                self.connection_error = None;
                self.history.push(&report);
                if !self.is_paused {
                    self.report = Some(*report);
                }
            }
            PollEvent::Disconnected(error) => self.connection_error = Some(error.to_string()),
            PollEvent::Message(text) => self.message = Some(text),
        }
    }

    /// Applies an action of the user. Returns the id of the client to kill, if the user confirmed that.
    pub fn apply_action(&mut self, action: UserAction) -> Option<u64> {
        self.message = None;
        match action {
            UserAction::Quit => self.is_done = true,
            UserAction::Show(panel) => self.show(panel),
            UserAction::NextPanel => self.show(self.panel.step(1)),
            UserAction::PreviousPanel => self.show(self.panel.step(Panel::ALL.len() - 1)),
            UserAction::ToggleHelp => self.shows_help = !self.shows_help,
            UserAction::TogglePause => self.is_paused = !self.is_paused,
            UserAction::Move(_)
            | UserAction::MovePages(_)
            | UserAction::First
            | UserAction::Last
            | UserAction::NextSortColumn
            | UserAction::PreviousSortColumn
            | UserAction::ReverseSort => self.apply_table_action(action),
            UserAction::EditFilter => self.edits_filter = self.panel != Panel::Overview,
            UserAction::FilterCharacter(character) => {
                let filter = &mut self.table_mut().order.filter;
                if filter.chars().count() < MAX_FILTER_CHARACTERS && !character.is_control() {
                    filter.push(character);
                }
            }
            UserAction::FilterBackspace => {
                self.table_mut().order.filter.pop();
            }
            UserAction::FilterDone => self.edits_filter = false,
            UserAction::ClearFilter => {
                self.edits_filter = false;
                self.table_mut().order.filter.clear();
            }
            UserAction::AskKill => self.ask_kill(),
            UserAction::Confirm => {
                return self.question.take().map(|question| question.id);
            }
            UserAction::Decline => self.question = None,
            UserAction::ToggleKeySearch if self.panel == Panel::Keys => {
                let toggled = match self.shows_hot_keys {
                    true => &mut self.samples_hot_keys,
                    false => &mut self.searches_keys,
                };
                *toggled = !*toggled;
            }
            UserAction::ToggleHotKeys if self.panel == Panel::Keys => {
                self.shows_hot_keys = !self.shows_hot_keys;
                // The other table has other columns.
                *self.table_mut() = PanelTable::default();
            }
            UserAction::NextSlotOrder if self.panel == Panel::Slots => {
                self.slot_order = self.slot_order.next();
            }
            UserAction::ToggleKeySearch | UserAction::ToggleHotKeys | UserAction::NextSlotOrder => {}
        }
        None
    }

    fn show(&mut self, panel: Panel) {
        self.panel = panel;
        self.edits_filter = false;
    }

    fn apply_table_action(&mut self, action: UserAction) {
        let (rows, columns) = self.table_size();
        let page = i32::try_from(self.page_rows.max(1)).unwrap_or(1);
        let last = rows.saturating_sub(1);
        let table = self.table_mut();
        let selected = table.selected.min(last);
        let moved = |by: i32| match by {
            0.. => selected.saturating_add(by as usize).min(last),
            _ => selected.saturating_sub(by.unsigned_abs() as usize),
        };
        let column = table.order.column;
        match action {
            UserAction::Move(by) => table.selected = moved(by),
            UserAction::MovePages(pages) => table.selected = moved(pages.saturating_mul(page)),
            UserAction::First => table.selected = 0,
            UserAction::Last => table.selected = last,
            // After the last column comes the order of the report.
            UserAction::NextSortColumn => {
                table.order.column = Some(column.map_or(0, |column| column + 1)).filter(|next| *next < columns);
            }
            UserAction::PreviousSortColumn => {
                table.order.column = match column {
                    None => columns.checked_sub(1),
                    Some(column) => column.checked_sub(1),
                };
            }
            UserAction::ReverseSort => table.order.reversed = !table.order.reversed,
            _ => {}
        }
    }

    fn ask_kill(&mut self) {
        if self.panel != Panel::Clients {
            return;
        }
        let clients = self.shown_clients();
        let selected = self.table().selected.min(clients.len().saturating_sub(1));
        self.question = clients.get(selected).map(|client| KillQuestion {
            id: client.id,
            description: format!("{} {}", client.address, client.name),
        });
    }
}
