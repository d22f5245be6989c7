//! Draws a table: as many columns as fit, and the rows around the selected one.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use super::theme::Theme;
use crate::columns::{Column, SortKey, arrange};
use crate::state::PanelTable;

/// Draws the rows that pass the filter.
pub fn draw<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    rows: &[T],
    columns: &'static [Column<T>],
    table: &PanelTable,
    theme: Theme,
) {
    let arranged = arrange(rows, columns, &table.order);
    let space = usize::from(area.height.saturating_sub(1));
    let selected = table.selected.min(arranged.len().saturating_sub(1));
    let first = selected.saturating_sub(space.saturating_sub(1));
    let shown = fitting_columns(columns, area.width);
    let is_numeric = |column: &Column<T>| {
        rows.first()
            .is_some_and(|row| matches!((column.key)(row), SortKey::Number(_)))
    };
    let cell = |column: &Column<T>, index: usize, text: String| {
        let line = Line::from(text);
        // The first column is the name of the row, so it stays at the left.
        Cell::from(if index > 0 && is_numeric(column) {
            line.right_aligned()
        } else {
            line
        })
    };
    let header = shown.iter().enumerate().map(|(index, column)| {
        let mark = match (table.order.column == Some(index), table.order.reversed) {
            (false, _) => "",
            (true, false) => "↓",
            (true, true) => "↑",
        };
        cell(column, index, format!("{}{mark}", column.title))
    });
    let header = Row::new(header.collect::<Vec<_>>()).style(theme.title());
    let body = arranged
        .iter()
        .enumerate()
        .skip(first)
        .take(space)
        .map(|(position, row)| {
            let cells = shown
                .iter()
                .enumerate()
                .map(|(index, column)| cell(column, index, (column.text)(row)));
            let style = if position == selected {
                theme.selected()
            } else {
                ratatui::style::Style::new()
            };
            Row::new(cells.collect::<Vec<_>>()).style(style)
        });
    let widths = shown.iter().enumerate().map(|(index, column)| match index {
        0 => Constraint::Min(column.width),
        _ => Constraint::Length(column.width),
    });
    frame.render_widget(Table::new(body, widths).header(header), area);
}

/// The columns from the left that fit into the width, with a space between two of them.
fn fitting_columns<T>(columns: &'static [Column<T>], width: u16) -> &'static [Column<T>] {
    let mut used = 0;
    let count = columns
        .iter()
        .take_while(|column| {
            used += column.width + 1;
            used <= width.saturating_add(1)
        })
        .count();
    &columns[..count.max(1).min(columns.len())]
}
