//! Tests of the state of the dashboard.

use super::DashboardState;
use crate::input::{InputMode, UserAction};
use crate::model::{ClientRow, ClientsFigures, TopReport};
use crate::panel::Panel;
use crate::poller::PollEvent;
use crate::sampling::hot_keys::HotKeysMode;

fn client(id: u64, name: &str) -> ClientRow {
    ClientRow {
        id,
        name: name.to_owned(),
        ..ClientRow::default()
    }
}

fn report(clients: Vec<ClientRow>) -> PollEvent {
    let clients = Some(ClientsFigures {
        total: clients.len(),
        rows: clients,
    });
    PollEvent::Report(Box::new(TopReport {
        clients,
        ..TopReport::default()
    }))
}

fn on_clients() -> DashboardState {
    let mut state = DashboardState::new(false, false);
    state.apply_event(report(vec![client(1, "alpha"), client(2, "beta"), client(3, "gamma")]));
    state.apply_action(UserAction::Show(Panel::Clients));
    state
}

#[test]
fn a_client_is_killed_after_a_confirmation_only() {
    let mut state = on_clients();
    state.apply_action(UserAction::Move(1));
    assert_eq!(state.apply_action(UserAction::AskKill), None);
    assert_eq!(state.input_mode(), InputMode::Confirmation);
    assert_eq!(state.apply_action(UserAction::Decline), None);
    assert_eq!(state.apply_action(UserAction::Confirm), None);
    state.apply_action(UserAction::AskKill);
    // The question is about the client that was selected, whatever arrives meanwhile.
    state.apply_event(report(vec![client(9, "other")]));
    assert_eq!(state.apply_action(UserAction::Confirm), Some(2));
}

#[test]
fn sampling_and_searching_are_switched_on_in_their_tables_only() {
    let mut state = on_clients();
    state.apply_action(UserAction::ToggleHotKeys);
    state.apply_action(UserAction::ToggleKeySearch);
    assert_eq!(state.wanted_parts().hot_keys, HotKeysMode::Hidden);
    state.apply_action(UserAction::Show(Panel::Keys));
    assert_eq!(state.wanted_parts().hot_keys, HotKeysMode::Hidden);
    state.apply_action(UserAction::NextSortColumn);
    state.apply_action(UserAction::ToggleHotKeys);
    assert_eq!(state.table().order.column, None, "the other table has other columns");
    let parts = state.wanted_parts();
    assert_eq!((parts.hot_keys, parts.keys), (HotKeysMode::Shown, false));
    state.apply_action(UserAction::ToggleKeySearch);
    // The server goes on sampling while another panel is shown.
    state.apply_action(UserAction::Show(Panel::Overview));
    let parts = state.wanted_parts();
    assert_eq!((parts.hot_keys, parts.keys), (HotKeysMode::Sampled, false));
    state.apply_action(UserAction::Show(Panel::Keys));
    state.apply_action(UserAction::ToggleKeySearch);
    state.apply_action(UserAction::ToggleHotKeys);
    state.apply_action(UserAction::ToggleKeySearch);
    let parts = state.wanted_parts();
    assert_eq!((parts.hot_keys, parts.keys), (HotKeysMode::Hidden, true));
}

#[test]
fn the_filter_limits_the_selection() {
    let mut state = on_clients();
    state.apply_action(UserAction::EditFilter);
    for character in "GAM".chars() {
        state.apply_action(UserAction::FilterCharacter(character));
    }
    state.apply_action(UserAction::FilterDone);
    state.apply_action(UserAction::Last);
    assert_eq!(state.table().selected, 0);
    state.apply_action(UserAction::AskKill);
    assert_eq!(state.question.as_ref().map(|question| question.id), Some(3));
    state.apply_action(UserAction::Decline);
    state.apply_action(UserAction::ClearFilter);
    state.apply_action(UserAction::Last);
    assert_eq!(state.table().selected, 2);
}

#[test]
fn nothing_is_killed_on_other_panels_or_without_clients() {
    let mut state = on_clients();
    state.apply_action(UserAction::Show(Panel::Commands));
    state.apply_action(UserAction::AskKill);
    assert_eq!(state.question, None);
    let mut empty = DashboardState::new(false, false);
    empty.apply_action(UserAction::Show(Panel::Clients));
    empty.apply_action(UserAction::AskKill);
    assert_eq!(empty.question, None);
}

#[test]
fn a_frozen_display_keeps_its_report() {
    let mut state = on_clients();
    state.apply_action(UserAction::TogglePause);
    state.apply_event(report(Vec::new()));
    let total = |state: &DashboardState| state.report.as_ref()?.clients.as_ref().map(|clients| clients.total);
    assert_eq!(total(&state), Some(3));
    state.apply_action(UserAction::TogglePause);
    state.apply_event(report(Vec::new()));
    assert_eq!(total(&state), Some(0));
}

#[test]
fn expensive_parts_are_wanted_only_while_they_are_shown() {
    let mut state = on_clients();
    assert!(state.wanted_parts().clients);
    state.apply_action(UserAction::NextPanel);
    assert!(!state.wanted_parts().clients && state.wanted_parts().slots.is_some());
    state.apply_action(UserAction::ToggleKeySearch);
    assert!(!state.wanted_parts().keys);
    state.apply_action(UserAction::NextPanel);
    state.apply_action(UserAction::ToggleKeySearch);
    assert!(state.wanted_parts().keys);
}

#[test]
fn the_columns_of_the_order_form_a_circle() {
    let mut state = on_clients();
    let columns = crate::columns::CLIENT_COLUMNS.len();
    state.apply_action(UserAction::PreviousSortColumn);
    assert_eq!(state.table().order.column, Some(columns - 1));
    state.apply_action(UserAction::NextSortColumn);
    assert_eq!(state.table().order.column, None);
    state.apply_action(UserAction::NextSortColumn);
    assert_eq!(state.table().order.column, Some(0));
}
