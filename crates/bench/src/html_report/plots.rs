//! Plots as SVG: bars, percentiles, and curves.
//!
//! Text has no colour of its own: the document around a plot gives it one that can be read on its background.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::markup::escape;
use crate::error::{ErrorContext, Result};

#[cfg(test)]
mod tests;

/// The width of all plots in pixels.
const WIDTH: u32 = 940;

/// The height of a plot of curves.
const CURVES_HEIGHT: u32 = 340;

/// The space for the names of rows, left of the plot.
const NAMES_WIDTH: i32 = 260;

/// The space for the numbers of the longest bars, right of the plot.
const NUMBERS_WIDTH: i32 = 110;

/// The space for the names of series, above the plot.
const LEGEND_HEIGHT: i32 = 30;

/// The space for the numbers and the unit of the horizontal axis.
const AXIS_HEIGHT: i32 = 46;

/// The space for the numbers of the vertical axis.
const VERTICAL_AXIS_WIDTH: i32 = 110;

/// The height of a bar.
const BAR_HEIGHT: u32 = 13;

/// The space between the bars of two rows.
const ROW_GAP: u32 = 9;

/// The font size. The backend divides it by 1.24.
const TEXT_SIZE: i32 = 15;

/// The length of the marks on the axes.
const TICK_LENGTH: i32 = 4;

/// The colours of series. Each can be seen on a light and on a dark background, and each has another lightness.
const COLOURS: [RGBColor; 4] = [
    RGBColor(31, 119, 190),
    RGBColor(227, 135, 50),
    RGBColor(120, 150, 60),
    RGBColor(160, 100, 170),
];

/// The colour of axes and grids.
const GRID: RGBColor = RGBColor(128, 128, 128);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type DrawOutcome = std::result::Result<(), DrawingAreaErrorKind<io::Error>>;

/// Values with a name. In bars and percentiles it has one value per row.
#[derive(Debug)]
pub struct PlotSeries<T> {
    /// The name in the legend.
    pub name: String,
    /// The values.
    pub values: Vec<T>,
}

/// Bars in rows: one for each series.
#[derive(Debug)]
pub struct BarChart {
    /// The figure that the bars show, with its unit.
    pub title: String,
    /// The names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// The lengths of the bars.
    pub series: Vec<PlotSeries<Option<f64>>>,
    /// Formats a number.
    pub format: fn(f64) -> String,
}

/// Percentiles in rows, on a logarithmic axis: a dot at the first one, a ring at the second, and a line up to the
/// third.
#[derive(Debug)]
pub struct PercentileChart {
    /// The figure that the percentiles are of, with its unit.
    pub title: String,
    /// The names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// The three percentiles of each row.
    pub series: Vec<PlotSeries<Option<[f64; 3]>>>,
    /// Formats a number.
    pub format: fn(f64) -> String,
}

/// Curves over a small number, such as that of workers.
#[derive(Debug)]
pub struct CurveChart {
    /// The figure that the curves show, with its unit.
    pub title: String,
    /// The name of the number on the horizontal axis.
    pub horizontal: String,
    /// The points of the curves.
    pub series: Vec<PlotSeries<(i32, f64)>>,
    /// Formats a number of the vertical axis.
    pub format: fn(f64) -> String,
}

impl BarChart {
    /// Draws the bars as an SVG element.
    ///
    /// # Errors
    /// Fails if the plotting library does.
    pub fn svg(&self) -> Result<String> {
        let height = rows_height(self.rows.len(), self.series.len());
        draw_svg(height, &self.title, |canvas| self.draw(canvas))
    }

    fn draw(&self, canvas: &Canvas<'_>) -> DrawOutcome {
        draw_legend(canvas, &self.series)?;
        let all = self.series.iter().flat_map(|series| &series.values);
        let largest = all.filter_map(|value| positive(*value)).fold(0.0, f64::max);
        let end = if largest > 0.0 { largest * 1.02 } else { 1.0 };
        let mut plot = ChartBuilder::on(canvas)
            .margin_top(LEGEND_HEIGHT)
            .margin_left(NAMES_WIDTH)
            .margin_right(NUMBERS_WIDTH)
            .x_label_area_size(AXIS_HEIGHT)
            .build_cartesian_2d(0.0..end, self.rows.len() as f64..0.0)?;
        let format = |value: &f64| (self.format)(*value);
        plot.configure_mesh()
            .disable_y_mesh()
            .x_labels(6)
            .y_labels(0)
            .max_light_lines(0)
            .bold_line_style(GRID.mix(0.4))
            .axis_style(GRID)
            .label_style(("sans-serif", TEXT_SIZE))
            .set_all_tick_mark_size(TICK_LENGTH)
            .x_label_formatter(&format)
            .x_desc(self.title.as_str())
            .draw()?;
        for (index, series) in self.series.iter().enumerate() {
            for (row, value) in series.values.iter().enumerate() {
                let Some(value) = positive(*value) else { continue };
                let (top, bottom) = bar_edges(row, index, self.series.len());
                let bar = Rectangle::new([(0.0, top), (value, bottom)], colour(index).filled());
                plot.draw_series(std::iter::once(bar))?;
                let (x, y) = plot.backend_coord(&(value, f64::midpoint(top, bottom)));
                let style = text_style(canvas, HPos::Left);
                canvas.draw_text(&(self.format)(value), &style, (x + 5, y))?;
            }
        }
        draw_row_names(canvas, &self.rows, |row| plot.backend_coord(&(0.0, row)).1)
    }
}

impl PercentileChart {
    /// Draws the percentiles as an SVG element.
    ///
    /// # Errors
    /// Fails if the plotting library does.
    pub fn svg(&self) -> Result<String> {
        let height = rows_height(self.rows.len(), self.series.len());
        draw_svg(height, &self.title, |canvas| self.draw(canvas))
    }

    fn draw(&self, canvas: &Canvas<'_>) -> DrawOutcome {
        draw_legend(canvas, &self.series)?;
        let (start, end) = self.decades();
        let mut plot = ChartBuilder::on(canvas)
            .margin_top(LEGEND_HEIGHT)
            .margin_left(NAMES_WIDTH)
            .margin_right(NUMBERS_WIDTH)
            .x_label_area_size(AXIS_HEIGHT)
            .build_cartesian_2d((start..end).log_scale(), self.rows.len() as f64..0.0)?;
        let format = |value: &f64| (self.format)(*value);
        plot.configure_mesh()
            .disable_y_mesh()
            .x_labels(9)
            .y_labels(0)
            .bold_line_style(GRID.mix(0.6))
            .light_line_style(GRID.mix(0.2))
            .axis_style(GRID)
            .label_style(("sans-serif", TEXT_SIZE))
            .set_all_tick_mark_size(TICK_LENGTH)
            .x_label_formatter(&format)
            .x_desc(self.title.as_str())
            .draw()?;
        for (index, series) in self.series.iter().enumerate() {
            for (row, value) in series.values.iter().enumerate() {
                let Some([first, second, third]) = positive_percentiles(*value) else {
                    continue;
                };
                let (top, bottom) = bar_edges(row, index, self.series.len());
                let y = f64::midpoint(top, bottom);
                let line = colour(index).stroke_width(2);
                plot.draw_series([
                    PathElement::new(vec![(first, y), (third, y)], line),
                    PathElement::new(vec![(third, top), (third, bottom)], line),
                ])?;
                plot.draw_series([
                    Circle::new((first, y), 4, colour(index).filled()),
                    Circle::new((second, y), 5, line),
                ])?;
            }
        }
        draw_row_names(canvas, &self.rows, |row| plot.backend_coord(&(start, row)).1)
    }

    /// Returns the powers of ten between which all percentiles are.
    fn decades(&self) -> (f64, f64) {
        let all = self.series.iter().flat_map(|series| &series.values);
        let percentiles: Vec<f64> = all.filter_map(|value| positive_percentiles(*value)).flatten().collect();
        let smallest = percentiles.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let largest = percentiles.iter().copied().reduce(f64::max).unwrap_or(10.0);
        let (start, end) = (smallest.log10().floor(), largest.log10().ceil());
        (10f64.powf(start), 10f64.powf(end.max(start + 1.0)))
    }
}

impl CurveChart {
    /// Draws the curves as an SVG element.
    ///
    /// # Errors
    /// Fails if the plotting library does.
    pub fn svg(&self) -> Result<String> {
        draw_svg(CURVES_HEIGHT, &self.title, |canvas| self.draw(canvas))
    }

    fn draw(&self, canvas: &Canvas<'_>) -> DrawOutcome {
        draw_legend(canvas, &self.series)?;
        let all = || self.series.iter().flat_map(|series| &series.values);
        let largest = all()
            .filter_map(|(_, value)| positive(Some(*value)))
            .fold(0.0, f64::max);
        let end = if largest > 0.0 { largest * 1.08 } else { 1.0 };
        let most = all().map(|(number, _)| *number).max().unwrap_or(1).clamp(1, 1_000_000);
        let mut plot = ChartBuilder::on(canvas)
            .margin_top(LEGEND_HEIGHT)
            .margin_right(20)
            .x_label_area_size(AXIS_HEIGHT)
            .y_label_area_size(VERTICAL_AXIS_WIDTH)
            .build_cartesian_2d(0..most + 1, 0.0..end)?;
        let format = |value: &f64| (self.format)(*value);
        // The horizontal axis must have light lines: the library does not end if it looks for none among integers.
        plot.configure_mesh()
            .x_labels(10)
            .y_labels(6)
            .max_light_lines(1)
            .bold_line_style(GRID.mix(0.4))
            .light_line_style(GRID.mix(0.2))
            .axis_style(GRID)
            .label_style(("sans-serif", TEXT_SIZE))
            .set_all_tick_mark_size(TICK_LENGTH)
            .y_label_formatter(&format)
            .x_desc(self.horizontal.as_str())
            .y_desc(self.title.as_str())
            .draw()?;
        for (index, series) in self.series.iter().enumerate() {
            let points: Vec<(i32, f64)> = series
                .values
                .iter()
                .copied()
                .filter(|(number, value)| *number <= most && positive(Some(*value)).is_some())
                .collect();
            let dots = points
                .iter()
                .map(|point| Circle::new(*point, 4, colour(index).filled()));
            plot.draw_series(dots)?;
            let line = PathElement::new(points, colour(index).stroke_width(2));
            plot.draw_series(std::iter::once(line))?;
        }
        Ok(())
    }
}

/// Draws an SVG element with a name for readers who do not see it.
fn draw_svg(height: u32, name: &str, draw: impl FnOnce(&Canvas<'_>) -> DrawOutcome) -> Result<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let outcome = draw(&canvas).and_then(|()| canvas.present());
        outcome
            .map_err(|error| io::Error::other(error.to_string()))
            .context(format!("drawing {name}"))?;
    }
    let named = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(name));
    Ok(svg.replacen("<svg ", &named, 1))
}

/// Draws the names of the series beside their colours.
fn draw_legend<T>(canvas: &Canvas<'_>, all: &[PlotSeries<T>]) -> DrawOutcome {
    let mut x = NAMES_WIDTH;
    for (index, series) in all.iter().enumerate() {
        canvas.draw(&Rectangle::new([(x, 7), (x + 12, 19)], colour(index).filled()))?;
        canvas.draw_text(&series.name, &text_style(canvas, HPos::Left), (x + 18, 13))?;
        x += 50 + 8 * series.name.chars().count() as i32;
    }
    Ok(())
}

/// Draws the names of rows. `middle` returns the vertical position of a number of rows.
fn draw_row_names(canvas: &Canvas<'_>, rows: &[String], middle: impl Fn(f64) -> i32) -> DrawOutcome {
    for (row, name) in rows.iter().enumerate() {
        let y = middle(row as f64 + 0.5);
        canvas.draw_text(name, &text_style(canvas, HPos::Right), (NAMES_WIDTH - 8, y))?;
    }
    Ok(())
}

/// The style of text whose anchor is at its side `side`.
fn text_style(canvas: &Canvas<'_>, side: HPos) -> TextStyle<'static> {
    let style: TextStyle<'static> = ("sans-serif", TEXT_SIZE).into_text_style(canvas);
    style.pos(Pos::new(side, VPos::Center))
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn rows_height(rows: usize, series: usize) -> u32 {
    let row_height = BAR_HEIGHT * series as u32 + ROW_GAP;
    (LEGEND_HEIGHT + AXIS_HEIGHT) as u32 + row_height * rows.max(1) as u32
}

/// Returns the upper and the lower edge of the bar of a series, in rows.
fn bar_edges(row: usize, index: usize, series: usize) -> (f64, f64) {
    let row_height = f64::from(BAR_HEIGHT) * series as f64 + f64::from(ROW_GAP);
    let top = row as f64 * row_height + f64::from(ROW_GAP) / 2.0 + index as f64 * f64::from(BAR_HEIGHT);
    (top / row_height, (top + f64::from(BAR_HEIGHT)) / row_height)
}

fn positive(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite() && *value > 0.0)
}

fn positive_percentiles(values: Option<[f64; 3]>) -> Option<[f64; 3]> {
    values.filter(|values| values.iter().all(|value| positive(Some(*value)).is_some()))
}
