//! Draws the dashboard. The drawing depends on nothing but the state, so tests compare whole screens.

mod overview;
mod panels;
mod table;
mod theme;

#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use crate::format;
use crate::model::TopReport;
use crate::panel::Panel;
use crate::state::DashboardState;
use theme::Theme;

/// The width of the titles of all panels.
const FULL_TABS_WIDTH: u16 = 79;

const HELP: &str = "\
1..8 Tab ← →  choose a panel
↑ ↓ PgUp PgDn Home End  select a row
< >           sort by another column
r             reverse the order
/             filter rows, Esc removes it
space         freeze the display
k             kill the selected client
o             order slots by another figure
s             search for big keys (costs up
              to 1 % of the server's time)
h             show the most used keys
q             quit";

/// Draws a frame. Returns the number of rows of the shown table that there is space for.
pub fn draw(frame: &mut Frame<'_>, state: &DashboardState) -> usize {
    let theme = Theme::new(state.has_colors);
    let [header, tabs, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(header_line(state, theme), header);
    frame.render_widget(tabs_line(state, tabs.width, theme), tabs);
    draw_body(frame, body, state, theme);
    frame.render_widget(footer_line(state, theme), footer);
    if state.shows_help {
        draw_box(frame, " Keys ", HELP, 46);
    }
    if let Some(question) = &state.question {
        let text = format!(
            "Kill client {}?\n{}\n\ny: kill, any other key: do not",
            question.id, question.description
        );
        draw_box(frame, " Kill ", &text, 44);
    }
    usize::from(body.height.saturating_sub(panels::HEAD_LINES + 1))
}

fn header_line(state: &DashboardState, theme: Theme) -> Line<'static> {
    let mut spans = vec![Span::styled("weft-top", theme.title())];
    if let Some(TopReport { server, .. }) = &state.report {
        let text = format!(
            "  {} {}  {}  {}  up {}",
            server.name,
            server.version,
            server.address,
            server.mode,
            format::duration(server.uptime_s)
        );
        spans.push(Span::raw(text));
    }
    if state.is_paused {
        spans.push(Span::styled("  PAUSED", theme.warning()));
    }
    if state.connection_error.is_some() {
        spans.push(Span::styled("  CONNECTION LOST", theme.warning()));
    }
    Line::from(spans)
}

fn tabs_line(state: &DashboardState, width: u16, theme: Theme) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, panel) in Panel::ALL.into_iter().enumerate() {
        // A narrow screen has no space for all titles.
        let is_short = width < FULL_TABS_WIDTH && panel != state.panel;
        let style = if panel == state.panel {
            theme.selected()
        } else {
            theme.dim()
        };
        let title = if is_short { "" } else { panel.title() };
        spans.push(Span::styled(
            format!("{} {title}", index + 1).trim_end().to_owned(),
            style,
        ));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn footer_line(state: &DashboardState, theme: Theme) -> Line<'static> {
    let filter = &state.table().order.filter;
    if state.edits_filter {
        return Line::from(format!("filter: {filter}_  (Enter: keep, Esc: remove)"));
    }
    if let Some(text) = &state.message {
        return Line::styled(text.clone(), theme.warning());
    }
    if let Some(text) = &state.connection_error {
        return Line::styled(format!("{text}; connecting again"), theme.warning());
    }
    if !filter.is_empty() {
        return Line::from(format!("filter: {filter}  (Esc: remove)"));
    }
    let keys = match state.panel {
        Panel::Overview => "? help  q quit  space freeze  Tab next panel",
        Panel::Clients => "? help  q quit  space freeze  < > r sort  / filter  k kill",
        Panel::Slots => "? help  q quit  space freeze  < > r sort  / filter  o other figure",
        Panel::Keys if state.shows_hot_keys => {
            "? help  q quit  space freeze  < > r sort  / filter  s start or stop  h biggest"
        }
        Panel::Keys => "? help  q quit  space freeze  < > r sort  / filter  s start or stop  h hottest",
        _ => "? help  q quit  space freeze  < > r sort  / filter",
    };
    Line::styled(keys, theme.dim())
}

fn draw_body(frame: &mut Frame<'_>, area: Rect, state: &DashboardState, theme: Theme) {
    let Some(report) = &state.report else {
        let text = match &state.connection_error {
            None => "Waiting for the first reply…".to_owned(),
            Some(error) => format!("No connection: {error}"),
        };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    };
    match state.panel {
        Panel::Overview => overview::draw(frame, area, report, &state.history, theme),
        _ => panels::draw(frame, area, report, state, theme),
    }
}

/// Draws a box with text in the middle of the screen.
fn draw_box(frame: &mut Frame<'_>, title: &str, text: &str, width: u16) {
    let screen = frame.area();
    let lines = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
    let (width, height) = (width.min(screen.width), lines.saturating_add(2).min(screen.height));
    let area = Rect {
        x: screen.x + (screen.width - width) / 2,
        y: screen.y + (screen.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), area);
}
