//! Compares whole screens with the files in tests/screens. `WEFT_WRITE_SCREENS=1` writes them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw;
use crate::error::TopError;
use crate::input::UserAction;
use crate::model::{PrimaryLinkFigures, TopReport};
use crate::panel::Panel;
use crate::poller::PollEvent;
use crate::sampling::sample_report;
use crate::state::DashboardState;

/// INFO of a server whose counters have advanced by `step` times what one second adds.
fn info_text(step: u64) -> String {
    format!(
        "weft_version:0.1.0\nrun_id:a\nserver_mode:cluster\nprocess_id:17\nuptime_in_seconds:{}\n\
         connected_clients:51\nblocked_clients:2\nmaxclients:10000\ncluster_enabled:1\n\
         used_memory:1503238553\nused_memory_peak:1610612736\nused_memory_rss:1717986918\n\
         used_memory_dataset:1400000000\nused_memory_startup:2971248\nused_memory_overhead:103238553\n\
         mem_clients_normal:3500000\nmem_replication_backlog:10485760\nallocator_frag_bytes:52428800\n\
         allocator_allocated:1503238553\nallocator_active:1555667353\nallocator_resident:1650000000\n\
         allocator_frag_ratio:1.03\nmem_fragmentation_ratio:1.14\nmem_allocator:jemalloc\n\
         number_of_cached_scripts:3\nnumber_of_functions:0\nmaxmemory:4294967296\nmaxmemory_policy:allkeys-lru\n\
         loading:0\nrdb_bgsave_in_progress:0\nrdb_changes_since_last_save:1234\nrdb_last_save_time:1700000000\n\
         rdb_last_bgsave_status:ok\naof_enabled:1\naof_rewrite_in_progress:0\naof_last_write_status:ok\n\
         aof_current_size:734003200\ntotal_connections_received:{}\ntotal_commands_processed:{}\n\
         total_net_input_bytes:{}\ntotal_net_output_bytes:{}\nrejected_connections:0\nexpired_keys:{}\n\
         evicted_keys:0\nkeyspace_hits:{}\nkeyspace_misses:{}\ntotal_error_replies:0\nsync_full:1\n\
         sync_partial_ok:4\nsync_partial_err:0\nrole:master\nconnected_slaves:1\n\
         slave0:ip=10.0.0.7,port=6379,state=online,offset={},lag=1,type=replica\n\
         master_replid:dc2f\nmaster_repl_offset:{}\nrepl_backlog_size:10485760\nrepl_backlog_histlen:10485760\n\
         used_cpu_sys:{}\nused_cpu_user:{}\n\
         cmdstat_get:calls={},usec={},usec_per_call=0.90,rejected_calls=0,failed_calls=0\n\
         cmdstat_config|get:calls=7,usec=70,usec_per_call=10.00,rejected_calls=1,failed_calls=2\n\
         latency_percentiles_usec_get:p50=0.895,p99=3.007,p99.9=1502.5\n\
         weft_workers:4\nweft_workers_active:2\nweft_batches:{}\nweft_deferrals:0\n\
         weft_worker0:connections=25,requests={},busy_ms={}\nweft_worker1:connections=26,requests={},busy_ms={}\n\
         db0:keys=1200000,expires=300,avg_ttl=0\n",
        3600 + step,
        10 * step,
        120_000 * step,
        5_000_000 * step,
        42_000_000 * step,
        3 * step,
        90_000 * step,
        10_000 * step,
        1_000_000 * step,
        1_000_500 * step,
        step as f64 * 0.3,
        step as f64 * 0.9,
        100_000 * step,
        90_000 * step,
        40_000 * step,
        60_000 * step,
        400 * step,
        60_000 * step,
        600 * step,
    )
}

const CLIENT_LIST: &str = "\
id=7 addr=10.0.0.1:50452 laddr=127.0.0.1:6379 fd=20 name=web\\x2d age=61 idle=0 flags=N db=0 tot-mem=22698 cmd=get \
user=default tot-net-in=130 tot-net-out=249 tot-cmds=3
id=8 addr=10.0.0.2:50453 name=\u{1b}[31m age=3720 idle=59 flags=b db=0 tot-mem=1698 cmd=blpop user=jobs tot-net-in=1 \
tot-net-out=2 tot-cmds=1
";

fn report(step: u64) -> TopReport {
    let now = Instant::now();
    let earlier = (now, info_text(step));
    let later = (now + Duration::from_secs(1), info_text(step + 1));
    let mut report = sample_report(&earlier, &later, CLIENT_LIST);
    report.time_ms = 1_700_000_060_000 + step * 1000;
    report
}

fn state(panel: Panel) -> DashboardState {
    let mut state = DashboardState::new(false, false);
    for step in 0..30 {
        let mut report = report(step);
        let share = (step % 10) as f64 / 10.0;
        report.overview.operations_per_s = report.overview.operations_per_s.map(|rate| rate * (0.5 + share));
        report.overview.latency_p99_us = report.overview.latency_p99_us.map(|us| us * (1.5 - share));
        state.apply_event(PollEvent::Report(Box::new(report)));
    }
    state.apply_action(UserAction::Show(panel));
    state
}

fn screen(state: &DashboardState, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("the backend is in memory");
    terminal
        .draw(|frame| _ = draw(frame, state))
        .expect("the backend is in memory");
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/screens")
        .join(format!("{name}.txt"));
    if std::env::var_os("WEFT_WRITE_SCREENS").is_some() {
        fs::create_dir_all(path.parent().expect("the path has a directory")).expect("the directory can be made");
        fs::write(&path, text).expect("the screen can be written");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}: WEFT_WRITE_SCREENS=1 writes the screens");
}

#[test]
fn panels_look_as_expected() {
    for panel in Panel::ALL {
        let name = panel.title().to_lowercase();
        compare(&name, &screen(&state(panel), 80, 24));
    }
}

#[test]
fn wide_and_narrow_screens_look_as_expected() {
    compare("clients-wide", &screen(&state(Panel::Clients), 140, 10));
    compare("commands-wide", &screen(&state(Panel::Commands), 120, 8));
    compare("overview-narrow", &screen(&state(Panel::Overview), 40, 12));
    compare("commands-tiny", &screen(&state(Panel::Commands), 20, 5));
}

#[test]
fn boxes_and_states_look_as_expected() {
    let mut help = state(Panel::Overview);
    help.apply_action(UserAction::ToggleHelp);
    compare("help", &screen(&help, 80, 24));

    let mut hot_keys = state(Panel::Keys);
    hot_keys.apply_action(UserAction::ToggleHotKeys);
    compare("keys-hot", &screen(&hot_keys, 80, 24));

    let mut kill = state(Panel::Clients);
    kill.apply_action(UserAction::AskKill);
    compare("kill", &screen(&kill, 80, 24));

    let mut sorted = state(Panel::Clients);
    sorted.apply_action(UserAction::NextSortColumn);
    sorted.apply_action(UserAction::ReverseSort);
    sorted.apply_action(UserAction::EditFilter);
    sorted.apply_action(UserAction::FilterCharacter('1'));
    sorted.apply_action(UserAction::TogglePause);
    compare("filter", &screen(&sorted, 80, 8));

    let mut lost = DashboardState::new(false, false);
    lost.apply_event(PollEvent::Disconnected(TopError::Server("no such host".to_owned())));
    compare("no-connection", &screen(&lost, 80, 6));
    let mut lost = state(Panel::Workers);
    lost.apply_event(PollEvent::Disconnected(TopError::Server("no such host".to_owned())));
    compare("connection-lost", &screen(&lost, 80, 10));
}

#[test]
fn a_refused_info_is_explained_on_every_panel() {
    let mut refused = DashboardState::new(false, false);
    let mut empty = TopReport::default();
    for part in [
        "overview",
        "workers",
        "commands",
        "clients",
        "slots",
        "keys",
        "replication",
        "memory",
    ] {
        empty.unavailable.insert(part, "NOPERM no permissions".to_owned());
    }
    refused.apply_event(PollEvent::Report(Box::new(empty)));
    for panel in Panel::ALL {
        refused.apply_action(UserAction::Show(panel));
        assert!(screen(&refused, 80, 24).contains("Not available: NOPERM"), "{panel:?}");
    }
}

#[test]
fn missing_latencies_are_explained_and_hide_nothing_else() {
    let mut refused = state(Panel::Overview);
    let mut without = report(30);
    without
        .unavailable
        .insert("latency", "NOPERM no permissions".to_owned());
    refused.apply_event(PollEvent::Report(Box::new(without)));
    let text = screen(&refused, 80, 24);
    assert!(
        text.contains("Latency is not available: NOPERM no permissions"),
        "{text}"
    );
    assert!(
        text.contains("Network out") && text.contains("Operations/s  120K"),
        "{text}"
    );
    assert!(screen(&refused, 40, 12).contains("p50 p99 p99.9 NOPERM no permissions"));
    refused.apply_action(UserAction::Show(Panel::Commands));
    let text = screen(&refused, 80, 24);
    assert!(text.contains("p50, p99, p99.9 are not available: NOPERM"), "{text}");
    assert!(text.contains("config|get"), "{text}");
}

#[test]
fn no_size_of_the_screen_panics() {
    for panel in Panel::ALL {
        let mut state = state(panel);
        for (width, height) in [(1, 1), (2, 2), (5, 3), (20, 5), (40, 1), (1, 40), (79, 7), (300, 100)] {
            screen(&state, width, height);
        }
        state.apply_action(UserAction::ToggleHelp);
        state.apply_action(UserAction::AskKill);
        for (width, height) in [(1, 1), (3, 2), (20, 5)] {
            screen(&state, width, height);
        }
    }
}

#[test]
fn no_control_character_reaches_the_screen() {
    for panel in Panel::ALL {
        let text = screen(&state(panel), 140, 40);
        assert!(
            !text
                .chars()
                .any(|character| character.is_control() && character != '\n')
        );
    }
}

#[test]
fn the_book_lists_every_field_of_json() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src/weft-top.md");
    let book = fs::read_to_string(book).expect("the book has a page about weft-top");
    let mut report = report(0);
    if let Some(replication) = &mut report.replication {
        replication.primary = Some(PrimaryLinkFigures::default());
    }
    let mut names = Vec::new();
    collect_names(
        &serde_json::to_value(report).expect("a report has a form in JSON"),
        &mut names,
    );
    assert!(names.len() > 100);
    for name in names {
        let is_listed = ["`{}`", ".{}`", "`{}[]`", "`{}."].map(|form| form.replace("{}", &name));
        assert!(
            is_listed.iter().any(|text| book.contains(text)),
            "{name} is not in the book"
        );
    }
}

/// Collects the names of all fields. The names below `fields` and `rates` are those of INFO.
fn collect_names(value: &serde_json::Value, names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                names.push(name.clone());
                if name != "fields" && name != "rates" {
                    collect_names(value, names);
                }
            }
        }
        serde_json::Value::Array(elements) => elements.iter().for_each(|element| collect_names(element, names)),
        _ => {}
    }
}
