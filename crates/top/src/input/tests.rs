//! Tests of the keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{InputMode, UserAction, action};
use crate::panel::Panel;

fn press(code: KeyCode, mode: InputMode) -> Option<UserAction> {
    action(KeyEvent::new(code, KeyModifiers::NONE), mode)
}

#[test]
fn digits_and_tab_choose_the_panel() {
    let shown = |digit| press(KeyCode::Char(digit), InputMode::Normal);
    assert_eq!(shown('1'), Some(UserAction::Show(Panel::Overview)));
    assert_eq!(shown('8'), Some(UserAction::Show(Panel::Memory)));
    assert_eq!(shown('9'), None);
    assert_eq!(press(KeyCode::Tab, InputMode::Normal), Some(UserAction::NextPanel));
}

#[test]
fn only_y_confirms() {
    assert_eq!(
        press(KeyCode::Char('y'), InputMode::Confirmation),
        Some(UserAction::Confirm)
    );
    for code in [KeyCode::Enter, KeyCode::Esc, KeyCode::Char('k'), KeyCode::Char('n')] {
        assert_eq!(press(code, InputMode::Confirmation), Some(UserAction::Decline));
    }
}

#[test]
fn the_filter_takes_all_characters() {
    let typed = |code| press(code, InputMode::Filter);
    assert_eq!(typed(KeyCode::Char('q')), Some(UserAction::FilterCharacter('q')));
    assert_eq!(typed(KeyCode::Enter), Some(UserAction::FilterDone));
    assert_eq!(typed(KeyCode::Esc), Some(UserAction::ClearFilter));
}

#[test]
fn control_c_ends_the_program_in_every_mode() {
    let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for mode in [
        InputMode::Normal,
        InputMode::Filter,
        InputMode::Confirmation,
        InputMode::Help,
    ] {
        assert_eq!(action(key, mode), Some(UserAction::Quit));
    }
}
