//! The panels of the dashboard.

/// A panel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Panel {
    /// The figures of the whole server.
    #[default]
    Overview,
    /// The threads of the server.
    Workers,
    /// The commands.
    Commands,
    /// The clients.
    Clients,
    /// The hottest slots.
    Slots,
    /// The biggest keys.
    Keys,
    /// The replication.
    Replication,
    /// The memory.
    Memory,
}

impl Panel {
    /// All panels in their order.
    pub const ALL: [Panel; 8] = [
        Panel::Overview,
        Panel::Workers,
        Panel::Commands,
        Panel::Clients,
        Panel::Slots,
        Panel::Keys,
        Panel::Replication,
        Panel::Memory,
    ];

    /// The title.
    pub fn title(self) -> &'static str {
        match self {
            Panel::Overview => "Overview",
            Panel::Workers => "Workers",
            Panel::Commands => "Commands",
            Panel::Clients => "Clients",
            Panel::Slots => "Slots",
            Panel::Keys => "Keys",
            Panel::Replication => "Replication",
            Panel::Memory => "Memory",
        }
    }

    /// The panel of a key `1` to `8`.
    pub fn from_digit(digit: char) -> Option<Panel> {
        let number = digit.to_digit(10)? as usize;
        Panel::ALL.get(number.checked_sub(1)?).copied()
    }

    /// The panel `steps` further, in a circle.
    pub fn step(self, steps: usize) -> Panel {
        Panel::ALL[(self as usize + steps) % Panel::ALL.len()]
    }
}
