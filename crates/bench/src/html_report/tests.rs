//! Tests of what happens to the results when a run ends early.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::compare::DataSize;
use crate::environment::RunEnvironment;
use crate::folder_for_tests::TestFolder;
use crate::report::{MemoryRow, Section};

fn options(weft: PathBuf, folder: &TestFolder) -> ReportOptions {
    ReportOptions {
        compare: CompareOptions {
            weft,
            valkey: None,
            rounds: Some(1),
            window: Some(Duration::from_millis(10)),
            warmup: Some(Duration::ZERO),
            data_size: DataSize::Scaled {
                keys: 100,
                full: 3_000_000,
            },
            settle_interval: Duration::from_millis(1),
            workers: vec![1],
            connections: 2,
            server_cores: Vec::new(),
            ..CompareOptions::for_tests("weft-bench report")
        },
        parts: vec![&PUBLISHED.comparisons[0]],
        page: folder.0.join("report.html"),
        figure: Some(folder.0.join("figure.svg")),
    }
}

/// A report with one finished row of memory.
fn report_with_a_row() -> Report {
    let mut report = Report::new(RunEnvironment::default(), "weft-bench".to_string(), json!({}));
    report.sections.push(Section {
        title: "Strings".to_string(),
        labels: vec!["Weft".to_string()],
        commands: vec!["weft-server".to_string()],
        remarks: Vec::new(),
        pinned: true,
        loads: Vec::new(),
        memory: vec![MemoryRow {
            what: "",
            value_size: 512,
            ttl: false,
            keys: 100,
            bytes_per_key: vec![557.6],
        }],
        worker_points: Vec::new(),
    });
    report
}

#[test]
fn an_interrupted_run_writes_its_finished_rows_and_stays_interrupted() {
    let folder = TestFolder::create("interrupted");
    let options = options(PathBuf::from("weft-server"), &folder);
    let facts = PageFacts {
        early_end: Some(Error::Interrupted.to_string()),
        ..PageFacts::default()
    };
    let outcome = finish(&options, &report_with_a_row(), &facts, Err(Error::Interrupted));
    assert!(matches!(outcome, Err(Error::Interrupted)));
    let html = fs::read_to_string(&options.page).expect("a page");
    assert!(html.contains("The run ended early: interrupted."));
    assert!(html.contains("100 keys, 512 B"));
    assert!(fs::read_to_string(folder.0.join("figure.svg")).is_ok());
}

#[test]
fn a_run_without_rows_writes_nothing() {
    let folder = TestFolder::create("empty");
    let options = options(PathBuf::from("weft-server"), &folder);
    let mut report = report_with_a_row();
    report.sections[0].memory.clear();
    let outcome = finish(&options, &report, &PageFacts::default(), Err(Error::Interrupted));
    assert!(matches!(outcome, Err(Error::Interrupted)));
    assert!(!options.page.exists());
}

#[test]
fn missing_files_and_folders_are_found_before_the_run() {
    let folder = TestFolder::create("missing");
    let missing = options(folder.0.join("no-server"), &folder);
    assert!(matches!(run(&missing), Err(Error::Usage(_))));
    let server = folder.0.join("server");
    fs::write(&server, "").expect("a file");
    let mut elsewhere = options(server, &folder);
    elsewhere.page = folder.0.join("no-folder/report.html");
    assert!(matches!(run(&elsewhere), Err(Error::Usage(_))));
    assert!(check_folder(Path::new("report.html")).is_ok());
}

#[test]
fn a_request_before_the_first_server_ends_the_run() {
    let folder = TestFolder::create("early");
    // A program that ends at once, as a server does that a signal has reached.
    let options = options(PathBuf::from("/bin/true"), &folder);
    options.compare.interruption.request();
    assert!(matches!(run(&options), Err(Error::Interrupted)));
    assert!(!options.page.exists());
}
