//! Plots as SVG: bars, percentiles, and curves.
//!
//! Text has no colour of its own: the document around a plot gives it one that can be read on its background.

use std::io;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
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

/// The highest number of a point. The library takes long for a long axis of integers.
const MOST_WORKERS: i32 = 1_000_000;

/// The space for the names of rows, left of the plot.
const NAMES_WIDTH: i32 = 300;

/// The width that is allowed for a character of text. Most are narrower.
const CHARACTER_WIDTH: i32 = 7;

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

/// A chart with rows, in each of which every series has one value, or none.
#[derive(Debug)]
pub struct RowChart<V> {
    /// The figure that the values are of, with its unit.
    pub title: String,
    /// The names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// The values of each row.
    pub series: Vec<PlotSeries<Option<V>>>,
    /// Formats a number.
    pub format: fn(f64) -> String,
}

/// Bars in rows: one for each series.
pub type BarChart = RowChart<f64>;

/// Percentiles in rows, on a logarithmic axis: a dot at the first one, a ring at the second, and a line up to the
/// third.
pub type PercentileChart = RowChart<[f64; 3]>;

/// The plot beside the names of rows. `X` is its horizontal axis.
type RowPlot<'p, 'a, X> = ChartContext<'p, SVGBackend<'a>, Cartesian2d<X, RangedCoordf64>>;

/// The most labels and light lines of a horizontal axis.
#[derive(Debug, Clone, Copy)]
struct AxisDensity {
    labels: usize,
    light_lines: usize,
}

/// A value with its place in a chart with rows.
#[derive(Debug)]
struct RowMark<V> {
    colour: RGBColor,
    /// The upper and the lower edge, in rows.
    top: f64,
    bottom: f64,
    value: V,
}

impl<V> RowMark<V> {
    /// The middle between both edges, in rows.
    fn middle(&self) -> f64 {
        f64::midpoint(self.top, self.bottom)
    }
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

impl<V: Copy> RowChart<V> {
    /// Returns the values that can be drawn, in the order of the series.
    fn marks(&self, drawable: fn(Option<V>) -> Option<V>) -> Vec<RowMark<V>> {
        let mut marks = Vec::new();
        for (index, series) in self.series.iter().enumerate() {
            for (row, value) in series.values.iter().enumerate() {
                if let Some(value) = drawable(*value) {
                    let (top, bottom) = bar_edges(row, index, self.series.len());
                    marks.push(RowMark {
                        colour: colour(index),
                        top,
                        bottom,
                        value,
                    });
                }
            }
        }
        marks
    }

    /// The vertical axis: the rows from top to bottom.
    fn rows_range(&self) -> Range<f64> {
        self.rows.len() as f64..0.0
    }

    /// Draws an SVG element that has space for all rows.
    fn draw_svg(&self, draw: impl FnOnce(&Canvas<'_>) -> DrawOutcome) -> Result<String> {
        let height = rows_height(self.rows.len(), self.series.len());
        draw_svg(height, &self.title, draw)
    }

    /// Draws what both charts with rows have: the legend, the horizontal axis with its lines, and the names of the
    /// rows.
    fn draw_frame<X>(&self, canvas: &Canvas<'_>, plot: &mut RowPlot<'_, '_, X>, density: AxisDensity) -> DrawOutcome
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        draw_legend(canvas, &self.series)?;
        let format = |value: &f64| (self.format)(*value);
        plot.configure_mesh()
            .disable_y_mesh()
            .x_labels(density.labels)
            .y_labels(0)
            .max_light_lines(density.light_lines)
            .bold_line_style(GRID.mix(0.5))
            .light_line_style(GRID.mix(0.2))
            .axis_style(GRID)
            .label_style(("sans-serif", TEXT_SIZE))
            .set_all_tick_mark_size(TICK_LENGTH)
            .x_label_formatter(&format)
            .x_desc(self.title.as_str())
            .draw()?;
        let left = plot.x_range().start;
        for (row, name) in self.rows.iter().enumerate() {
            let (_, y) = plot.backend_coord(&(left, row as f64 + 0.5));
            let style = text_style(canvas, HPos::Right);
            canvas.draw_text(&shortened(name), &style, (NAMES_WIDTH - 8, y))?;
        }
        Ok(())
    }
}

impl RowChart<f64> {
    /// Draws the bars as an SVG element.
    ///
    /// # Errors
    /// Fails if the plotting library does.
    pub fn svg(&self) -> Result<String> {
        self.draw_svg(|canvas| self.draw(canvas))
    }

    fn draw(&self, canvas: &Canvas<'_>) -> DrawOutcome {
        let marks = self.marks(positive);
        let largest = marks.iter().map(|mark| mark.value).fold(0.0, f64::max);
        let end = if largest > 0.0 { largest * 1.02 } else { 1.0 };
        let mut plot = beside_row_names(canvas).build_cartesian_2d(0.0..end, self.rows_range())?;
        let density = AxisDensity {
            labels: 6,
            light_lines: 0,
        };
        self.draw_frame(canvas, &mut plot, density)?;
        for mark in marks {
            let corners = [(0.0, mark.top), (mark.value, mark.bottom)];
            plot.draw_series(std::iter::once(Rectangle::new(corners, mark.colour.filled())))?;
            let (x, y) = plot.backend_coord(&(mark.value, mark.middle()));
            let style = text_style(canvas, HPos::Left);
            canvas.draw_text(&(self.format)(mark.value), &style, (x + 5, y))?;
        }
        Ok(())
    }
}

impl RowChart<[f64; 3]> {
    /// Draws the percentiles as an SVG element.
    ///
    /// # Errors
    /// Fails if the plotting library does.
    pub fn svg(&self) -> Result<String> {
        self.draw_svg(|canvas| self.draw(canvas))
    }

    fn draw(&self, canvas: &Canvas<'_>) -> DrawOutcome {
        let (start, end) = self.decades();
        let range = (start..end).log_scale();
        let mut plot = beside_row_names(canvas).build_cartesian_2d(range, self.rows_range())?;
        // With ten labels or more the library would add some between the powers of ten, which would overlap.
        let density = AxisDensity {
            labels: 9,
            light_lines: 10,
        };
        self.draw_frame(canvas, &mut plot, density)?;
        for mark in self.marks(positive_percentiles) {
            let ([first, second, third], y) = (mark.value, mark.middle());
            let line = mark.colour.stroke_width(2);
            plot.draw_series([
                PathElement::new(vec![(first, y), (third, y)], line),
                PathElement::new(vec![(third, mark.top), (third, mark.bottom)], line),
            ])?;
            plot.draw_series([
                Circle::new((first, y), 4, mark.colour.filled()),
                Circle::new((second, y), 5, line),
            ])?;
        }
        Ok(())
    }

    /// Returns the powers of ten between which all percentiles are.
    fn decades(&self) -> (f64, f64) {
        let marks = self.marks(positive_percentiles);
        let percentiles: Vec<f64> = marks.iter().flat_map(|mark| mark.value).collect();
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
        let all_points = self.series.iter().flat_map(drawable_points);
        let largest = all_points.map(|(_, value)| value).fold(0.0, f64::max);
        let end = if largest > 0.0 { largest * 1.08 } else { 1.0 };
        let mut plot = ChartBuilder::on(canvas)
            .margin_top(LEGEND_HEIGHT)
            .margin_right(20)
            .x_label_area_size(AXIS_HEIGHT)
            .y_label_area_size(VERTICAL_AXIS_WIDTH)
            .build_cartesian_2d(self.numbers(), 0.0..end)?;
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
            let points: Vec<(i32, f64)> = drawable_points(series).collect();
            let dots = points
                .iter()
                .map(|point| Circle::new(*point, 4, colour(index).filled()));
            plot.draw_series(dots)?;
            let line = PathElement::new(points, colour(index).stroke_width(2));
            plot.draw_series(std::iter::once(line))?;
        }
        Ok(())
    }

    /// The horizontal axis: from the lowest to the highest number of a point.
    fn numbers(&self) -> Range<i32> {
        let numbers = || self.series.iter().flat_map(drawable_points).map(|(number, _)| number);
        let lowest = numbers().min().unwrap_or(0);
        let highest = numbers().max().unwrap_or(lowest);
        // The library misplaces the points of an axis without a length.
        lowest..highest.max(lowest + 1)
    }
}

/// Returns the points of a curve that can be drawn.
fn drawable_points(series: &PlotSeries<(i32, f64)>) -> impl Iterator<Item = (i32, f64)> {
    let is_drawable =
        |(number, value): &(i32, f64)| (0..=MOST_WORKERS).contains(number) && positive(Some(*value)).is_some();
    series.values.iter().copied().filter(is_drawable)
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
        x += 44 + CHARACTER_WIDTH * series.name.chars().count() as i32;
    }
    Ok(())
}

/// Begins a plot that leaves space for the legend, the names of rows, and numbers to the right of bars.
fn beside_row_names<'c, 'a>(canvas: &'c Canvas<'a>) -> ChartBuilder<'c, 'c, SVGBackend<'a>> {
    let mut builder = ChartBuilder::on(canvas);
    builder
        .margin_top(LEGEND_HEIGHT)
        .margin_left(NAMES_WIDTH)
        .margin_right(NUMBERS_WIDTH)
        .x_label_area_size(AXIS_HEIGHT);
    builder
}

/// Returns the name of a row, without its middle if there is no space for all of it.
fn shortened(name: &str) -> String {
    let most = ((NAMES_WIDTH - 12) / CHARACTER_WIDTH) as usize;
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= most {
        return name.to_string();
    }
    let (first, last) = (most / 2, most - most / 2 - 1);
    let begin = characters.iter().take(first);
    let end = characters.iter().skip(characters.len() - last);
    begin.chain(['…'].iter()).chain(end).collect()
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
