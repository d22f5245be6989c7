//! Translates keys into actions.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::panel::Panel;

#[cfg(test)]
mod tests;

/// What the keys are for at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputMode {
    /// Commands.
    Normal,
    /// Text of the filter.
    Filter,
    /// The answer to a question.
    Confirmation,
    /// Any key closes the help.
    Help,
}

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserAction {
    /// End the program.
    Quit,
    /// Show a panel.
    Show(Panel),
    /// Show the next panel.
    NextPanel,
    /// Show the previous panel.
    PreviousPanel,
    /// Show or hide the help.
    ToggleHelp,
    /// Freeze the display, or let it run.
    TogglePause,
    /// Move the selection by so many rows.
    Move(i32),
    /// Move the selection by so many pages.
    MovePages(i32),
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Sort by the next column.
    NextSortColumn,
    /// Sort by the previous column.
    PreviousSortColumn,
    /// Reverse the order.
    ReverseSort,
    /// Start to write a filter.
    EditFilter,
    /// Append a character to the filter.
    FilterCharacter(char),
    /// Remove the last character of the filter.
    FilterBackspace,
    /// End writing the filter.
    FilterDone,
    /// Remove the filter.
    ClearFilter,
    /// Ask whether to kill the selected client.
    AskKill,
    /// Do what was asked.
    Confirm,
    /// Do not do what was asked.
    Decline,
    /// Start or stop the search for big keys, or the sampling of used keys.
    ToggleKeySearch,
    /// Show the most used keys instead of the biggest ones, or the other way round.
    ToggleHotKeys,
    /// Choose the next figure by which slots are ordered.
    NextSlotOrder,
}

/// Returns the action of a key; `None` if it has none.
pub fn action(key: KeyEvent, mode: InputMode) -> Option<UserAction> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c')).then_some(UserAction::Quit);
    }
    match mode {
        InputMode::Help => Some(match key.code {
            KeyCode::Char('q') => UserAction::Quit,
            _ => UserAction::ToggleHelp,
        }),
        InputMode::Confirmation => Some(match key.code {
            KeyCode::Char('y' | 'Y') => UserAction::Confirm,
            _ => UserAction::Decline,
        }),
        InputMode::Filter => match key.code {
            KeyCode::Enter => Some(UserAction::FilterDone),
            KeyCode::Esc => Some(UserAction::ClearFilter),
            KeyCode::Backspace => Some(UserAction::FilterBackspace),
            KeyCode::Char(character) => Some(UserAction::FilterCharacter(character)),
            _ => None,
        },
        InputMode::Normal => normal_action(key.code),
    }
}

fn normal_action(code: KeyCode) -> Option<UserAction> {
    Some(match code {
        KeyCode::Char('q') => UserAction::Quit,
        KeyCode::Char('?') | KeyCode::F(1) => UserAction::ToggleHelp,
        KeyCode::Char(digit @ '1'..='8') => UserAction::Show(Panel::from_digit(digit)?),
        KeyCode::Tab | KeyCode::Right => UserAction::NextPanel,
        KeyCode::BackTab | KeyCode::Left => UserAction::PreviousPanel,
        KeyCode::Char(' ') => UserAction::TogglePause,
        KeyCode::Up => UserAction::Move(-1),
        KeyCode::Down => UserAction::Move(1),
        KeyCode::PageUp => UserAction::MovePages(-1),
        KeyCode::PageDown => UserAction::MovePages(1),
        KeyCode::Home => UserAction::First,
        KeyCode::End => UserAction::Last,
        KeyCode::Char('>' | '.') => UserAction::NextSortColumn,
        KeyCode::Char('<' | ',') => UserAction::PreviousSortColumn,
        KeyCode::Char('r') => UserAction::ReverseSort,
        KeyCode::Char('/') => UserAction::EditFilter,
        KeyCode::Esc => UserAction::ClearFilter,
        KeyCode::Char('k') => UserAction::AskKill,
        KeyCode::Char('s') => UserAction::ToggleKeySearch,
        KeyCode::Char('h') => UserAction::ToggleHotKeys,
        KeyCode::Char('o') => UserAction::NextSlotOrder,
        _ => return None,
    })
}
