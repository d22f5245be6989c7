//! A strict reader of the text format of Prometheus, version 0.0.4.

use std::collections::{BTreeMap, BTreeSet};

/// The labels of a series, by name.
pub type Labels = BTreeMap<String, String>;

/// A sample: the name and labels of its series, and its value.
struct Sample {
    name: String,
    labels: Labels,
    value: f64,
}

/// A family that is being read.
struct Family {
    name: String,
    kind: String,
    samples: Vec<Sample>,
}

/// The metrics of one scrape.
pub struct Scrape {
    series: BTreeMap<(String, Labels), f64>,
    kinds: BTreeMap<String, String>,
}

impl Scrape {
    /// Reads a text, and fails at the first line that does not conform to the format.
    pub fn parse(text: &str) -> Scrape {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut scrape = Scrape {
            series: BTreeMap::new(),
            kinds: BTreeMap::new(),
        };
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let name = head(line, "HELP").0;
            let type_line = lines.next().unwrap_or_else(|| panic!("no TYPE after {line}"));
            let (typed, kind) = head(type_line, "TYPE");
            assert_eq!(typed, name, "TYPE of another metric");
            let mut family = Family {
                name: name.to_owned(),
                kind: kind.to_owned(),
                samples: Vec::new(),
            };
            while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
                family.samples.push(parse_sample(sample));
            }
            scrape.add(family);
        }
        scrape
    }

    fn add(&mut self, family: Family) {
        let Family { name, kind, samples } = family;
        assert!(!samples.is_empty(), "{name} has no samples");
        assert!(self.kinds.insert(name.clone(), kind.clone()).is_none(), "{name} twice");
        match kind.as_str() {
            "histogram" => check_histogram(&name, &samples),
            "counter" => {
                assert!(name.ends_with("_total"), "{name}");
                let is_counter = |sample: &Sample| sample.value >= 0.0 && sample.value.is_finite();
                assert!(samples.iter().all(is_counter), "{name}");
            }
            "gauge" => {}
            other => panic!("{name} is a {other}"),
        }
        for sample in samples {
            assert!(
                kind == "histogram" || sample.name == name,
                "{} in the family {name}",
                sample.name
            );
            let labels = format!("{:?}", sample.labels);
            let before = self.series.insert((sample.name.clone(), sample.labels), sample.value);
            assert!(before.is_none(), "{} {labels} twice", sample.name);
        }
    }

    /// Returns the value of a series, or `None` if there is no such series.
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.series.get(&(name.to_owned(), labels.collect())).copied()
    }

    /// Returns the value of a series that must exist.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels)
            .unwrap_or_else(|| panic!("no series {name} {labels:?}"))
    }

    /// Returns the sum of all series with this name.
    pub fn sum(&self, name: &str) -> f64 {
        self.all(name).map(|(_, value)| value).sum()
    }

    /// Returns all series with this name.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = (&'s Labels, f64)> {
        let named = self.series.iter().filter(move |((series, _), _)| series == name);
        named.map(|((_, labels), value)| (labels, *value))
    }

    /// Returns the names of all metrics.
    pub fn metrics(&self) -> BTreeSet<String> {
        self.kinds.keys().cloned().collect()
    }

    /// Returns the names of all series: those of metrics, and those of the parts of histograms.
    pub fn series_names(&self) -> BTreeSet<String> {
        self.series.keys().map(|(name, _)| name.clone()).collect()
    }

    /// Checks that no counter is lower than in an earlier scrape, and that all of its series are still there.
    pub fn assert_not_before(&self, earlier: &Scrape) {
        for ((name, labels), before) in &earlier.series {
            if !name.ends_with("_total") && !name.ends_with("_bucket") && !name.ends_with("_count") {
                continue;
            }
            let now = self.series.get(&(name.clone(), labels.clone()));
            let now = now.unwrap_or_else(|| panic!("{name} {labels:?} is gone"));
            assert!(now >= before, "{name} {labels:?}: {now} after {before}");
        }
    }
}

/// Returns the name and the rest of a `# HELP` or `# TYPE` line.
fn head<'l>(line: &'l str, word: &str) -> (&'l str, &'l str) {
    let rest = line.strip_prefix(&format!("# {word} "));
    let rest = rest.unwrap_or_else(|| panic!("no {word}: {line}"));
    let (name, text) = rest
        .split_once(' ')
        .unwrap_or_else(|| panic!("nothing follows: {line}"));
    assert!(is_name(name, true), "{line}");
    assert!(!text.is_empty() && !text.contains('\\'), "{line}");
    (name, text)
}

fn is_name(name: &str, may_have_colon: bool) -> bool {
    let is_inner =
        |character: char| character.is_ascii_alphanumeric() || character == '_' || (may_have_colon && character == ':');
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.chars().all(is_inner)
}

fn parse_sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, rest) = line.split_at(end);
    assert!(is_name(name, true), "{line}");
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(labels) => parse_labels(labels, line),
        None => (Labels::new(), rest),
    };
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no value: {line}"));
    assert!(!value.contains(' '), "a time follows the value: {line}");
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => {
            let is_number = |character: char| character.is_ascii_digit() || "+-.eE".contains(character);
            assert!(number.chars().all(is_number), "{line}");
            number.parse().unwrap_or_else(|_| panic!("no number: {line}"))
        }
    };
    Sample {
        name: name.to_owned(),
        labels,
        value,
    }
}

/// Reads labels up to the closing brace. Returns them, and the rest of the line.
fn parse_labels<'l>(mut text: &'l str, line: &str) -> (Labels, &'l str) {
    let mut labels = Labels::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
        assert!(is_name(name, false), "{line}");
        let (value, rest) = parse_label_value(rest, line);
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice: {line}");
        if let Some(rest) = rest.strip_prefix('}') {
            return (labels, rest);
        }
        text = rest.strip_prefix(',').unwrap_or_else(|| panic!("no comma: {line}"));
    }
}

/// Reads the value of a label behind its opening quote. Returns it, and the rest behind the closing quote.
fn parse_label_value<'l>(text: &'l str, line: &str) -> (String, &'l str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (value, &text[index + 1..]),
            '\\' => match characters.next() {
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                Some((_, 'n')) => value.push('\n'),
                other => panic!("escaped {other:?}: {line}"),
            },
            other => value.push(other),
        }
    }
    panic!("no closing quote: {line}")
}

/// Checks the samples of a histogram: buckets in ascending order with counts that do not fall, the last of which equals
/// the count.
fn check_histogram(name: &str, samples: &[Sample]) {
    let mut groups: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let (mut sums, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for sample in samples {
        let mut labels = sample.labels.clone();
        match sample.name.strip_prefix(name) {
            Some("_bucket") => {
                let limit = labels.remove("le").unwrap_or_else(|| panic!("{name} without le"));
                let limit = match limit.as_str() {
                    "+Inf" => f64::INFINITY,
                    number => number.parse().unwrap_or_else(|_| panic!("{name}: {number}")),
                };
                groups.entry(labels).or_default().push((limit, sample.value));
            }
            Some("_sum") => drop(sums.insert(labels, sample.value)),
            Some("_count") => drop(counts.insert(labels, sample.value)),
            _ => panic!("{} in the family {name}", sample.name),
        }
    }
    assert!(
        groups.keys().eq(sums.keys()) && groups.keys().eq(counts.keys()),
        "{name}"
    );
    let limits = |buckets: &[(f64, f64)]| -> Vec<f64> { buckets.iter().map(|(limit, _)| *limit).collect() };
    let first = groups.values().next().map(|buckets| limits(buckets));
    for (labels, buckets) in &groups {
        let pairs = || buckets.iter().zip(&buckets[1..]);
        assert!(pairs().all(|(one, next)| one.0 < next.0), "{name} {labels:?}: limits");
        assert!(pairs().all(|(one, next)| one.1 <= next.1), "{name} {labels:?}: counts");
        assert_eq!(Some(limits(buckets)), first, "{name} {labels:?}: other limits");
        let last = buckets.last().expect("it has buckets");
        assert_eq!(*last, (f64::INFINITY, counts[labels]), "{name} {labels:?}");
        assert!(sums[labels] >= 0.0, "{name} {labels:?}");
        // The samples lie below the limits of their buckets.
        let highest = buckets.iter().find(|(_, count)| *count == counts[labels]);
        let highest = highest.map_or(f64::INFINITY, |(limit, _)| *limit);
        assert!(sums[labels] <= highest * counts[labels], "{name} {labels:?}: the sum");
    }
}

#[test]
fn the_reader_refuses_what_is_wrong() {
    let wrong = [
        "a_total 1\n",
        "# HELP a A.\na 1\n",
        "# HELP a A.\n# TYPE a gauge\n",
        "# HELP a A.\n# TYPE a gauge\na 1",
        "# HELP a A.\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a A.\n# TYPE a gauge\nb 1\n",
        "# HELP a A.\n# TYPE a gauge\na 1 1700000000\n",
        "# HELP a A.\n# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n",
        "# HELP a A.\n# TYPE a gauge\na{b=\"c\\d\"} 1\n",
        "# HELP a A.\n# TYPE a gauge\na one\n",
        "# HELP a A.\n# TYPE a counter\na 1\n",
        "# HELP a_total A.\n# TYPE a_total counter\na_total -1\n",
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 1\n",
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 2\na_sum 3\na_count 2\n",
    ];
    for text in wrong {
        let result = std::panic::catch_unwind(|| Scrape::parse(text));
        assert!(result.is_err(), "{text}");
    }
    let right = "# HELP a A.\n# TYPE a gauge\na{b=\"\\\\\\\"\\n,}\"} -1.5e3\n";
    assert_eq!(Scrape::parse(right).value("a", &[("b", "\\\"\n,}")]), -1500.0);
}
