//! Tests of the text format.

use super::*;

static PLAIN: Metric = Metric::gauge("weft_plain", "A plain figure.");
static LABELLED: Metric = Metric::counter("weft_labelled_total", "Labelled figures.").labelled(&["one", "other"]);
static TIMES: Metric = Metric::histogram("weft_times_seconds", "Times.").labelled(&["command"]);

fn text(write: impl FnOnce(&mut Exposition)) -> String {
    let mut out = Exposition::default();
    write(&mut out);
    String::from_utf8(out.into_text()).expect("the text is UTF-8")
}

#[test]
fn help_and_type_come_once_before_the_samples() {
    let text = text(|out| {
        out.single(&PLAIN, 7u64);
        let mut family = out.family(&LABELLED);
        family.add(&["a", "b"], -1i64);
        family.add(&["c", "d"], 0.5);
    });
    assert_eq!(
        text,
        "# HELP weft_plain A plain figure.\n\
         # TYPE weft_plain gauge\n\
         weft_plain 7\n\
         # HELP weft_labelled_total Labelled figures.\n\
         # TYPE weft_labelled_total counter\n\
         weft_labelled_total{one=\"a\",other=\"b\"} -1\n\
         weft_labelled_total{one=\"c\",other=\"d\"} 0.5\n"
    );
}

#[test]
fn a_family_without_samples_is_not_written() {
    let text = text(|out| {
        let _ = out.family(&LABELLED);
    });
    assert_eq!(text, "");
}

#[test]
fn values_of_labels_are_escaped() {
    let cases = [
        ("", ""),
        ("get", "get"),
        (r#"say "hi""#, r#"say \"hi\""#),
        (r"back\slash", r"back\\slash"),
        ("two\nlines", r"two\nlines"),
        ("\\\"\n", r#"\\\"\n"#),
        ("carriage\rreturn, {}=", "carriage\rreturn, {}="),
        ("Grüße", "Grüße"),
    ];
    for (value, escaped) in cases {
        let text = text(|out| out.family(&LABELLED).add(&[value, "x"], 1u64));
        let line = text.split_inclusive('\n').nth(2).expect("a sample");
        assert_eq!(
            line,
            format!("weft_labelled_total{{one=\"{escaped}\",other=\"x\"}} 1\n")
        );
    }
}

#[test]
fn numbers_have_no_exponent_and_infinity_is_a_word() {
    for (value, expected) in [
        (SampleValue::from(u64::MAX), "18446744073709551615"),
        (SampleValue::from(i64::MIN), "-9223372036854775808"),
        (SampleValue::from(true), "1"),
        (SampleValue::from(2.56e-7), "0.000000256"),
        (SampleValue::from(1e9), "1000000000"),
        (SampleValue::from(f64::INFINITY), "+Inf"),
        (SampleValue::from(f64::NEG_INFINITY), "-Inf"),
        (SampleValue::from(f64::NAN), "NaN"),
    ] {
        let text = text(|out| out.single(&PLAIN, value));
        assert!(text.ends_with(&format!("\nweft_plain {expected}\n")), "{text}");
    }
}

#[test]
fn a_histogram_is_cumulative_and_its_last_bucket_is_its_count() {
    let text = text(|out| {
        let distribution = Distribution {
            limits: &[0.001, 0.002, 0.004],
            // The last number was read after the total, while a sample arrived.
            counts: &[1, 3, 6],
            total: 5,
            sum: 0.0105,
        };
        out.family(&TIMES).add_histogram(&["get"], &distribution);
    });
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        samples,
        [
            "weft_times_seconds_bucket{command=\"get\",le=\"0.001\"} 1",
            "weft_times_seconds_bucket{command=\"get\",le=\"0.002\"} 3",
            "weft_times_seconds_bucket{command=\"get\",le=\"0.004\"} 5",
            "weft_times_seconds_bucket{command=\"get\",le=\"+Inf\"} 5",
            "weft_times_seconds_sum{command=\"get\"} 0.0105",
            "weft_times_seconds_count{command=\"get\"} 5",
        ]
    );
}
