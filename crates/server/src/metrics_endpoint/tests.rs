//! Tests of the declarations of the metrics, and of their list in `docs/metrics.md`.
//!
//! The list is generated: `WEFT_WRITE_DOCUMENTS=1 cargo test -p weft-server --lib metrics_endpoint` writes it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::exposition::{Metric, MetricKind};
use super::groups::GROUPS;

fn all() -> impl Iterator<Item = &'static Metric> {
    GROUPS.iter().flat_map(|group| group.table.iter().copied())
}

#[test]
fn names_are_unique_and_follow_the_conventions_of_prometheus() {
    let mut names = BTreeSet::new();
    for Metric { name, kind, .. } in all() {
        assert!(names.insert(*name), "{name} twice");
        assert!(name.starts_with("weft_"), "{name}");
        let is_word = |character: char| character.is_ascii_lowercase() || character == '_';
        assert!(name.chars().all(is_word), "{name}");
        assert_eq!(*kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
        // These endings belong to the series of histograms.
        for ending in ["_bucket", "_sum", "_count"] {
            assert!(!name.ends_with(ending), "{name}");
        }
    }
}

#[test]
fn descriptions_need_no_escaping_and_labels_have_valid_names() {
    for Metric { name, labels, help, .. } in all() {
        assert!(
            help.ends_with('.') && !help.contains(['\\', '\n', '|']),
            "{name}: {help}"
        );
        let is_word = |character: char| character.is_ascii_lowercase() || character == '_';
        for label in *labels {
            assert!(!label.is_empty() && label.chars().all(is_word), "{name}: {label}");
            assert!(!["le", "quantile"].contains(label), "{name}: {label}");
        }
    }
}

const BEGIN: &str = "<!-- metrics: begin -->\n";
const END: &str = "<!-- metrics: end -->\n";

fn list() -> String {
    let mut text = String::new();
    for group in GROUPS {
        text += &format!(
            "\n### {}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n",
            group.title
        );
        for metric in group.table {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            text += &format!(
                "| `{}` | {} | {} | {} |\n",
                metric.name,
                metric.kind.as_str(),
                labels.join(", "),
                metric.help
            );
        }
    }
    text + "\n"
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).expect("docs/metrics.md");
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the list");
    let (written, after) = rest.split_once(END).expect("the end of the list");
    if std::env::var_os("WEFT_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, [before, BEGIN, &list(), END, after].concat()).expect("docs/metrics.md");
        return;
    }
    assert_eq!(written, list(), "docs/metrics.md differs from the tables of metrics");
}
