//! Tests of the plots: every value is drawn, and values that cannot be drawn are left out.

use super::*;
use crate::report::format_thousands;
use crate::sets::PUBLISHED;

fn plain(value: f64) -> String {
    format!("{value}")
}

fn series<T>(name: &str, values: Vec<T>) -> PlotSeries<T> {
    PlotSeries {
        name: name.to_string(),
        values,
    }
}

/// The number of elements `name` with the fill of series `index`.
fn filled(svg: &str, name: &str, index: usize) -> usize {
    let RGBColor(red, green, blue) = colour(index);
    let fill = format!("fill=\"#{red:02X}{green:02X}{blue:02X}\"");
    let elements = svg.split('<').filter(|element| element.starts_with(name));
    elements.filter(|element| element.contains(&fill)).count()
}

#[test]
fn bars_have_the_names_and_numbers_of_their_rows() {
    let chart = BarChart {
        title: "requests/s".to_string(),
        rows: vec!["get".to_string(), "<set & \"more\">".to_string()],
        series: vec![
            series("Weft", vec![Some(1234.0), Some(777.0)]),
            series("Valkey", vec![Some(555.0), None]),
        ],
        format: plain,
    };
    let svg = chart.svg().expect("a plot");
    for text in [
        "aria-label=\"requests/s\"",
        "get\n",
        "&lt;set &amp; &quot;more&quot;&gt;\n",
        "Weft\n",
        "Valkey\n",
        "1234\n",
        "777\n",
        "555\n",
    ] {
        assert!(svg.contains(text), "{text:?} is missing in\n{svg}");
    }
    assert!(!svg.contains("<set"));
    // One rectangle of each colour is in the legend.
    assert_eq!((filled(&svg, "rect ", 0), filled(&svg, "rect ", 1)), (3, 2));
    assert!(svg.trim_end().ends_with("</svg>"));
}

#[test]
fn bars_of_no_values_or_wrong_ones_are_an_empty_plot() {
    for values in [
        vec![None],
        vec![Some(f64::NAN)],
        vec![Some(f64::INFINITY)],
        vec![Some(0.0)],
    ] {
        let chart = BarChart {
            title: "requests/s".to_string(),
            rows: vec!["get".to_string()],
            series: vec![series("Weft", values)],
            format: plain,
        };
        assert_eq!(filled(&chart.svg().expect("a plot"), "rect ", 0), 1);
    }
}

#[test]
fn bars_of_all_series_are_within_their_row() {
    for count in 1..=4 {
        let mut last = 3.0;
        for index in 0..count {
            let (top, bottom) = bar_edges(3, index, count);
            assert!(
                last <= top && top < bottom && bottom < 4.0,
                "{count}: {top} to {bottom}"
            );
            last = bottom;
        }
    }
}

#[test]
fn percentiles_are_between_powers_of_ten() {
    let chart = |values: Vec<Option<[f64; 3]>>| PercentileChart {
        title: "latency in µs".to_string(),
        rows: vec!["get".to_string(); values.len()],
        series: vec![series("Weft", values)],
        format: plain,
    };
    let cases = [
        (vec![Some([250.0, 900.0, 4000.0])], (100.0, 10_000.0)),
        (vec![Some([3.0, 4.0, 5.0]), Some([20.0, 30.0, 40.0])], (1.0, 100.0)),
        (vec![Some([10.0, 10.0, 10.0])], (10.0, 100.0)),
        (vec![None, Some([0.0, 1.0, 2.0])], (1.0, 10.0)),
    ];
    for (values, expected) in cases {
        let drawn = values
            .iter()
            .filter(|value| positive_percentiles(**value).is_some())
            .count();
        let chart = chart(values);
        let (start, end) = chart.decades();
        assert!(
            (start - expected.0).abs() < 1e-6 && (end - expected.1).abs() < 1e-6,
            "{start} to {end}"
        );
        let svg = chart.svg().expect("a plot");
        assert_eq!(filled(&svg, "circle ", 0), drawn, "{svg}");
        assert!(svg.contains("latency in µs\n"));
    }
}

#[test]
fn curves_have_a_dot_per_point() {
    for most in [1, 2, 16] {
        let points: Vec<(i32, f64)> = (1..=most).map(|workers| (workers, f64::from(workers) * 1e6)).collect();
        let count = points.len();
        let chart = CurveChart {
            title: "requests/s".to_string(),
            horizontal: "workers".to_string(),
            series: vec![series("Weft", points), series("Valkey", vec![(1, 1e6), (2, f64::NAN)])],
            format: plain,
        };
        assert_eq!(
            chart.numbers(),
            1..most.max(2),
            "the axis has the numbers of the points"
        );
        let svg = chart.svg().expect("a plot");
        assert_eq!((filled(&svg, "circle ", 0), filled(&svg, "circle ", 1)), (count, 1));
        assert!(svg.contains("workers\n"));
    }
    let empty = CurveChart {
        title: "requests/s".to_string(),
        horizontal: "workers".to_string(),
        series: Vec::new(),
        format: plain,
    };
    assert!(empty.svg().expect("a plot").contains("requests/s"));
}

/// The place of a text: left, top, right and bottom.
#[derive(Debug, Clone, Copy)]
struct TextBox([f64; 4]);

impl TextBox {
    fn overlaps(&self, other: &TextBox) -> bool {
        let ([left, top, right, bottom], [other_left, other_top, other_right, other_bottom]) = (self.0, other.0);
        left < other_right && other_left < right && top < other_bottom && other_top < bottom
    }
}

/// Returns all horizontal texts of a plot with their places. Digits and letters of a sans-serif font are about 0.56
/// times as wide as the font is high; capitals and digits reach about 0.73 above the line.
fn texts(svg: &str) -> Vec<(String, TextBox)> {
    let mut texts = Vec::new();
    for element in svg.split("<text ").skip(1) {
        let (attributes, rest) = element.split_once('>').expect("the end of a tag");
        if attributes.contains("rotate(") {
            continue;
        }
        let attribute = |name: &str| {
            let (_, rest) = attributes.split_once(&format!("{name}=\"")).expect(name);
            rest.split('"').next().expect("a value")
        };
        let number = |name: &str| -> f64 { attribute(name).parse().expect("a number") };
        let content = rest.split("</text>").next().expect("a text").trim().to_string();
        let (x, y, size) = (number("x"), number("y"), number("font-size"));
        let width = content.chars().count() as f64 * 0.56 * size;
        let left = match attribute("text-anchor") {
            "start" => x,
            "middle" => x - width / 2.0,
            _ => x - width,
        };
        let baseline = match attribute("dy") {
            "0.76em" => y + 0.76 * size,
            "0.5ex" => y + 0.26 * size,
            _ => y - 0.26 * size,
        };
        texts.push((content, TextBox([left, baseline - 0.73 * size, left + width, baseline])));
    }
    texts
}

fn assert_no_text_overlaps(svg: &str, texts_at_least: usize) {
    let (_, height) = svg.split_once("height=\"").expect("a height");
    let height: f64 = height
        .split('"')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("a number");
    let texts = texts(svg);
    assert!(texts.len() >= texts_at_least, "{texts:?}");
    for (index, (text, place)) in texts.iter().enumerate() {
        let TextBox([left, top, right, bottom]) = *place;
        let is_inside = left >= 0.0 && top >= 0.0 && right <= f64::from(WIDTH) && bottom <= height;
        assert!(is_inside, "{text:?} at {place:?} leaves the plot of height {height}");
        for (other, other_place) in &texts[..index] {
            assert!(!place.overlaps(other_place), "{text:?} and {other:?} overlap");
        }
    }
}

/// The names of all rows of the published loads, and of their memory.
fn published_names() -> Vec<String> {
    let mut names = Vec::new();
    for dataset in PUBLISHED.comparisons.iter().flat_map(|comparison| comparison.datasets) {
        names.push(format!("3000000 x {}, {} B", dataset.item_name, dataset.value_size));
        let loads = dataset.cases.iter();
        names.extend(loads.map(|case| format!("{} {} B P{}", case.load, dataset.value_size, case.pipeline)));
    }
    names
}

#[test]
fn no_text_overlaps_another_one_in_plots_of_the_published_loads() {
    let names = published_names();
    assert!(names.iter().all(|name| shortened(name) == *name), "{names:?}");
    let format = |value| format_thousands(Some(value));
    let rows = (0..names.len()).map(|row| row as f64);
    let rising: Vec<Option<f64>> = rows.clone().map(|row| Some(30_000.0 + 150_000.0 * row)).collect();
    let falling: Vec<Option<f64>> = rows.map(|row| Some(1_900_000.0 / (row + 1.0))).collect();
    let chart = BarChart {
        title: "requests/s".to_string(),
        rows: names.clone(),
        series: vec![series("Weft", rising), series("Valkey", falling)],
        format,
    };
    assert_no_text_overlaps(&chart.svg().expect("a plot"), 3 * names.len());
    let percentiles = |median: f64| vec![Some([median, 12.0 * median, 90.0 * median]); names.len()];
    let chart = PercentileChart {
        title: "latency in µs, logarithmic".to_string(),
        rows: names.clone(),
        series: vec![series("Weft", percentiles(40.0)), series("Valkey", percentiles(900.0))],
        format,
    };
    assert_no_text_overlaps(&chart.svg().expect("a plot"), names.len() + 4);
    let points = |factor: f64| {
        [1, 2, 4, 8, 16]
            .map(|workers| (workers, factor * f64::from(workers)))
            .to_vec()
    };
    let chart = CurveChart {
        title: "evalsha-loop1000 64 B P1, requests/s".to_string(),
        horizontal: "workers (I/O threads)".to_string(),
        series: vec![series("Weft", points(900_000.0)), series("Valkey", points(300_000.0))],
        format,
    };
    assert_no_text_overlaps(&chart.svg().expect("a plot"), 10);
}

#[test]
fn long_names_of_rows_are_shortened_in_their_middle() {
    assert_eq!(shortened("get 512 B P16"), "get 512 B P16");
    let long = "a".repeat(60) + "P16";
    let short = shortened(&long);
    assert!(short.starts_with("aaa") && short.ends_with("aP16") && short.contains('…'));
    assert!(short.chars().count() as i32 * CHARACTER_WIDTH <= NAMES_WIDTH - 12);
}
