//! Figures as short text.

#[cfg(test)]
mod tests;

/// The text of a figure that is not known.
const UNKNOWN: &str = "-";

/// A number with at most four significant digits, such as `12.3K`.
pub fn count(value: Option<f64>) -> String {
    scaled(value, 1000.0, &["", "K", "M", "G", "T", "P"], "")
}

/// A number of bytes, such as `1.2 MiB`.
pub fn bytes(value: Option<f64>) -> String {
    scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"], "")
}

/// Bytes per second.
pub fn bytes_per_s(value: Option<f64>) -> String {
    scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"], "/s")
}

/// A whole number as it is.
pub fn integer(value: Option<u64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// A share as a percentage.
pub fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{:.1} %", value * 100.0))
}

/// A number with this many decimals.
pub fn decimal(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value:.decimals$}"))
}

/// Microseconds.
pub fn microseconds(value: Option<f64>) -> String {
    match value {
        None => UNKNOWN.to_owned(),
        Some(value) if value < 1e3 => format!("{value:.1} µs"),
        Some(value) if value < 1e6 => format!("{:.1} ms", value / 1e3),
        Some(value) => format!("{:.1} s", value / 1e6),
    }
}

/// A duration in its two largest units, such as `3d 4h`.
pub fn duration(seconds: Option<u64>) -> String {
    let Some(seconds) = seconds else {
        return UNKNOWN.to_owned();
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

fn scaled(value: Option<f64>, step: f64, units: &[&str], suffix: &str) -> String {
    let Some(mut value) = value else {
        return UNKNOWN.to_owned();
    };
    let mut unit = 0;
    // A value that rounds to the next unit is shown in it.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = match unit {
        0 if value.fract() == 0.0 || value >= 100.0 => 0,
        _ if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}{suffix}", units[unit])
}
