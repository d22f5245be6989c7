//! Tests of the page: it is well-formed, complete, escaped and needs nothing else.

use serde_json::json;

use super::*;
use crate::environment::RunEnvironment;
use crate::report::{MemoryRow, WorkerPoint};
use crate::run::Measurement;

/// A text that would break the page if it were not escaped.
const HOSTILE: &str = "</code><script>alert(\"1\")</script>&'";

fn measurement(requests_per_s: f64) -> Measurement {
    Measurement {
        requests_per_s,
        server_cpu_us: Some(1e6 / requests_per_s),
        server_busy_cores: Some(1.0),
        server_cpu_us_per_delivery: None,
        client_cpu_us: 0.2,
        p50_us: 150.0,
        p99_us: 2000.0,
        p999_us: 3500.0,
        max_us: 9000.0,
        replies: 1000,
        all_replies: 1300,
        misses: 0,
        unanswered: 0,
        server_rss_bytes: None,
    }
}

fn load_row(load: &str, requests_per_s: &[f64]) -> LoadRow {
    LoadRow {
        load: load.to_string(),
        value_size: 512,
        pipeline: 16,
        notes: Vec::new(),
        sides: requests_per_s
            .iter()
            .map(|requests| vec![measurement(*requests); 3])
            .collect(),
    }
}

fn section(title: &str, loads: Vec<LoadRow>) -> Section {
    Section {
        title: title.to_string(),
        labels: vec!["Weft".to_string(), "Valkey".to_string()],
        commands: vec![
            "weft-server --save \"\"".to_string(),
            format!("valkey-server {HOSTILE}"),
        ],
        remarks: vec!["A remark".to_string()],
        pinned: true,
        loads,
        memory: Vec::new(),
        worker_points: Vec::new(),
    }
}

fn sample_report() -> Report {
    let environment = RunEnvironment {
        date: "2026-11-29 12:00 UTC".to_string(),
        processor: format!("CPU {HOSTILE}"),
        processors: 2,
        memory_bytes: Some(24 << 30),
        kernel: "6.1".to_string(),
    };
    let mut report = Report::new(environment, format!("weft-bench report --weft {HOSTILE}"), json!({}));
    report.versions.push((format!("Weft {HOSTILE}"), HOSTILE.to_string()));
    let mut noted = load_row("mixed", &[700_000.0, 350_000.0]);
    noted.notes.push(format!("2 of 3 rounds {HOSTILE}"));
    let mut strings = section("Strings", vec![load_row("get", &[2_000_000.0, 1_000_000.0]), noted]);
    strings.memory.push(MemoryRow {
        what: "",
        value_size: 512,
        ttl: false,
        keys: 3_000_000,
        bytes_per_key: vec![557.6, 699.4],
    });
    let mut workers = section(
        &format!("Workers {HOSTILE}"),
        vec![load_row("mget100", &[10_000.0, 8000.0, 19_000.0, 9000.0])],
    );
    workers.labels = ["Weft, 1", "Valkey, 1", "Weft, 2", "Valkey, 2"]
        .map(String::from)
        .to_vec();
    for (server, workers_of_it) in [("Weft", 1), ("Valkey", 1), ("Weft", 2), ("Valkey", 2)] {
        workers.worker_points.push(WorkerPoint {
            server,
            workers: workers_of_it,
        });
    }
    report.sections = vec![strings, section("Unfinished", Vec::new()), workers];
    report
}

fn facts() -> PageFacts {
    PageFacts {
        pinning: "servers on CPU 0, client on CPU 1".to_string(),
        rounds: 3,
        window_s: 0.3,
        warmup_s: 0.09,
        early_end: None,
    }
}

/// Checks that every element is closed in the right order, and that attributes are quoted.
fn assert_well_formed(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("the end of a tag");
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<'), "a tag within the tag {tag:?}");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of {tag:?}");
        rest = &rest[end + 1..];
        if tag.starts_with('!') || tag.ends_with('/') {
            continue;
        }
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name.trim()), "before {rest:.80}"),
            None => open.push(tag.split_whitespace().next().expect("a name")),
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
}

#[test]
fn the_page_is_well_formed_and_escaped() {
    let mut facts = facts();
    facts.early_end = Some(format!("interrupted {HOSTILE}"));
    let html = page(&sample_report(), &facts).expect("a page");
    assert_well_formed(&html);
    assert!(!html.contains("<script") && !html.contains("alert(\""));
    let escaped = escape(HOSTILE);
    let texts = [
        "CPU",
        "weft-bench report --weft",
        "valkey-server",
        "2 of 3 rounds",
        "Workers",
        "interrupted",
    ];
    for text in texts {
        assert!(html.contains(&format!("{text} {escaped}")), "{text} is missing");
    }
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let html = page(&sample_report(), &facts()).expect("a page");
    let without_namespaces = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for outside in [
        "http:", "https:", "//", "src=", "url(", "@import", "<link", "<script", "<iframe", "<img",
    ] {
        assert!(
            !without_namespaces.contains(outside),
            "{outside} refers to something else"
        );
    }
    let links = html.split("href=\"").skip(1);
    assert!(links.clone().count() > 2);
    for link in links {
        let target = link.strip_prefix('#').and_then(|link| link.split('"').next());
        let id = format!("id=\"{}\"", target.expect("a link within the page"));
        assert_eq!(html.matches(&id).count(), 1, "{id}");
    }
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("svg text { fill: var(--text); }"));
}

#[test]
fn the_page_has_every_row_with_units_and_the_facts_of_the_run() {
    let html = page(&sample_report(), &facts()).expect("a page");
    for text in [
        "<th scope=\"row\">get 512 B P16</th><td>2,000,000</td><td>1,000,000</td><td>2.00x</td><td>0.50</td>",
        "<th scope=\"row\">mixed 512 B P16</th><td>700,000</td><td>350,000</td>",
        "<th scope=\"row\">3000000 keys, 512 B</th><td>557.6</td><td>699.4</td><td>0.80x</td>",
        "<th scope=\"row\">mget100 512 B P16</th><td>2</td><td>19,000</td><td>9,000</td><td>2.11x</td>",
        "<th scope=\"row\">Strings</th><td>2.00x (2.00x to 2.00x)</td><td>0.50x (0.50x to 0.50x)</td>",
        "<th scope=\"col\">Weft req/s</th>",
        "<th scope=\"col\">Valkey CPU-µs/req</th>",
        "<th scope=\"col\">Weft p50 / p99 / p99.9 µs</th>",
        "<th scope=\"col\">Weft bytes each</th>",
        "<td>24.0 GiB</td>",
        "<td>Linux 6.1</td>",
        "<td>2026-11-29 12:00 UTC</td>",
        "<td>3 interleaved rounds of 0.3 s, after 0.09 s of the same load</td>",
        "<code>weft-server --save &quot;&quot;</code>",
        "No load was finished.",
    ] {
        assert!(html.contains(text), "{text} is missing in\n{html}");
    }
    // Three plots of the strings, a curve of the only load over workers, and the memory.
    assert_eq!(html.matches("<svg ").count(), 5);
    assert_eq!(html.matches("</svg>").count(), 5);
    assert!(!html.contains("ended early"));
}

#[test]
fn a_report_without_results_is_a_page_too() {
    let report = Report::new(RunEnvironment::default(), "weft-bench report".to_string(), json!({}));
    let html = page(&report, &PageFacts::default()).expect("a page");
    assert_well_formed(&html);
    assert!(html.contains("No memory was measured."));
}

#[test]
fn a_single_round_is_not_interleaved_and_equal_versions_are_listed_once() {
    let mut report = sample_report();
    report.versions = ["Weft", "Valkey", "Weft, 2 workers"]
        .map(|label| (label.to_string(), format!("version {}", label.starts_with("Weft"))))
        .to_vec();
    let html = page(&report, &PageFacts { rounds: 1, ..facts() }).expect("a page");
    assert!(
        html.contains("<td>1 round of 0.3 s, after 0.09 s of the same load</td>"),
        "{html}"
    );
    assert!(
        html.contains("<dt>Weft; Weft, 2 workers</dt><dd><code>version true</code></dd>"),
        "{html}"
    );
    assert_eq!(html.matches("version true").count(), 1);
    assert!(
        report
            .head_markdown()
            .contains("- Weft; Weft, 2 workers: version true.\n- Valkey: version false.\n")
    );
}

#[test]
fn one_server_alone_has_no_ratios() {
    let mut report = sample_report();
    report.sections.truncate(1);
    let strings = &mut report.sections[0];
    strings.labels.pop();
    for row in &mut strings.loads {
        row.sides.pop();
    }
    strings.memory[0].bytes_per_key.pop();
    let html = page(&report, &facts()).expect("a page");
    assert_well_formed(&html);
    assert!(!html.contains(">ratio") && !html.contains(">Valkey "));
}

#[test]
fn the_figure_is_a_document_of_its_own() {
    let mut report = sample_report();
    report.sections[0].loads.push(LoadRow {
        pipeline: 1,
        ..load_row("ping", &[1.0, 2.0])
    });
    let svg = figure(&report).expect("a figure");
    assert_well_formed(&svg);
    assert!(svg.starts_with("<svg ") && svg.contains("prefers-color-scheme: dark"));
    assert!(svg.contains("get 512 B P16") && svg.contains("Valkey\n"));
    assert!(!svg.contains("ping") && !svg.contains("mget100"), "{svg}");
}

#[test]
fn loads_of_the_same_name_are_told_apart_in_the_figure() {
    let mut report = sample_report();
    let titles = [PUBLISHED.comparisons[3].title, PUBLISHED.comparisons[4].title];
    let of_title = |title| {
        section(
            &format!("{title}, 50 connections"),
            vec![load_row("mixed", &[2.0, 1.0])],
        )
    };
    report.sections = titles.into_iter().map(of_title).collect();
    report.sections[0].loads.push(load_row("set", &[2.0, 1.0]));
    let svg = figure(&report).expect("a figure");
    for name in [
        "mixed 512 B P16, append-only\n",
        "mixed 512 B P16, replica\n",
        "set 512 B P16\n",
    ] {
        assert_eq!(svg.matches(name).count(), 1, "{name} in\n{svg}");
    }
}
