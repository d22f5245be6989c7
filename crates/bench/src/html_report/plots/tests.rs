//! Tests of the plots: every value is drawn, and values that cannot be drawn are left out.

use super::*;

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
