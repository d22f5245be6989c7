//! The styles. Without colours (`NO_COLOR`), bold and reversed text remain.

use ratatui::style::{Color, Modifier, Style};

/// The styles of the dashboard.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    has_colors: bool,
}

impl Theme {
    /// Creates the styles, with or without colours.
    pub fn new(has_colors: bool) -> Theme {
        Theme { has_colors }
    }

    fn colored(self, color: Color) -> Style {
        match self.has_colors {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    /// Titles.
    pub fn title(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// What needs attention.
    pub fn warning(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The selected row or panel.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// What matters less.
    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The bars of charts.
    pub fn chart(self) -> Style {
        self.colored(Color::Green)
    }
}
