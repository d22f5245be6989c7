//! Samples the server: sends the commands, and turns two samples into a report.

pub mod clients;
mod commands;
pub mod hot_keys;
pub mod info;
pub mod keys;
pub mod latency;
mod memory;
mod overview;
mod replication;
mod server_scan;
pub mod slots;
#[cfg(test)]
mod tests;
mod workers;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::connection::reply::RespValue;
use crate::connection::{ServerConnection, accepted};
use crate::error::{Result, TopError};
use crate::model::{KeysFigures, SlotsFigures, TopReport};
use clients::CountersById;
use hot_keys::{HotKeySampling, HotKeysMode};
use info::{InfoFields, InfoPair};
use keys::KeySearch;
use latency::LatencySampling;
use server_scan::ServerScan;
use slots::SlotOrder;

/// Returns a random number, by which a server knows what this program has started.
fn random_id() -> String {
    // The keys of each hash function are random.
    let number = RandomState::new().build_hasher().finish();
    // A positive number of 63 bits.
    ((number >> 1) | 1).to_string()
}

/// The parts of a report that cost the server more than INFO, and are sampled only if asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedParts {
    /// The list of clients.
    pub clients: bool,
    /// The hottest slots, by this figure.
    pub slots: Option<SlotOrder>,
    /// The search for big keys.
    pub keys: bool,
    /// The most used keys.
    pub hot_keys: HotKeysMode,
}

/// The time for which a refused order of slots is not asked for again, so that errors are not counted at each sample.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);

/// The server's refusal to order slots by anything but their number of keys.
#[derive(Debug)]
struct SlotOrderRefusal {
    time: Instant,
    text: String,
}

/// The state between samples of one server.
#[derive(Debug)]
pub struct ServerSampler {
    address: String,
    info: Option<InfoFields>,
    latency: LatencySampling,
    clients: Option<(Instant, CountersById)>,
    slots: Option<(Instant, HashMap<u64, u64>)>,
    refusal: Option<SlotOrderRefusal>,
    search: Option<KeySearch>,
    /// The reason why the search ended.
    search_error: Option<String>,
    /// The search by the server itself.
    server_scan: Option<ServerScan>,
    /// `true` once the server has refused to search.
    refuses_scan: bool,
    hot_keys: HotKeySampling,
}

impl ServerSampler {
    /// Creates the state for the server at `address`.
    pub fn new(address: String) -> ServerSampler {
        ServerSampler {
            address,
            info: None,
            latency: LatencySampling::default(),
            clients: None,
            slots: None,
            refusal: None,
            search: None,
            search_error: None,
            server_scan: None,
            refuses_scan: false,
            hot_keys: HotKeySampling::default(),
        }
    }

    /// Takes a sample.
    ///
    /// # Errors
    /// Fails if the connection breaks, or if the server refuses INFO because of a missing password.
    pub fn sample(&mut self, connection: &mut ServerConnection, wanted: WantedParts) -> Result<TopReport> {
        let reply = connection.call(&["INFO", "everything"])?;
        let now = Instant::now();
        let mut report = TopReport {
            time_ms: unix_ms(),
            ..TopReport::default()
        };
        match accepted(reply) {
            Err(text) if text.starts_with("NOAUTH") => return Err(TopError::Server(text)),
            Err(text) => {
                for part in ["overview", "workers", "commands", "replication", "memory"] {
                    report.unavailable.insert(part, text.clone());
                }
                report.server.address.clone_from(&self.address);
            }
            Ok(reply) => {
                let info = InfoFields::parse(reply.bytes().unwrap_or_default(), now);
                self.fill_from_info(&info, &mut report);
                self.info = Some(info);
            }
        }
        let run_id = self.info.as_ref().and_then(|info| info.text("run_id"));
        self.latency.sample(connection, run_id, &mut report)?;
        if wanted.clients {
            self.sample_clients(connection, &mut report)?;
        }
        if let Some(order) = wanted.slots {
            self.sample_slots(connection, order, &mut report)?;
        }
        if !self.scan_by_server(connection, wanted.keys, now, &mut report)? {
            self.fill_keys(wanted.keys, now, &mut report);
        }
        self.sample_hot_keys(connection, wanted.hot_keys, &mut report)?;
        Ok(report)
    }

    fn fill_from_info(&self, info: &InfoFields, report: &mut TopReport) {
        let pair = InfoPair::new(self.info.as_ref(), info);
        report.interval_s = pair.seconds();
        report.server = overview::identity(info, &self.address);
        report.overview = overview::figures(&pair);
        let missing = &mut report.unavailable;
        report.workers = keep("workers", workers::figures(&pair), missing);
        report.commands = keep("commands", commands::figures(&pair), missing);
        report.replication = keep("replication", replication::figures(&pair), missing);
        report.memory = keep("memory", memory::figures(info), missing);
    }

    fn sample_clients(&mut self, connection: &mut ServerConnection, report: &mut TopReport) -> Result<()> {
        let reply = connection.call(&["CLIENT", "LIST"])?;
        let now = Instant::now();
        let figures = match accepted(reply) {
            Err(text) => Err(text),
            Ok(reply) => {
                let (before, counters) = self.clients.take().unwrap_or((now, CountersById::new()));
                let (figures, counters) =
                    clients::figures(reply.bytes().unwrap_or_default(), &counters, seconds(before, now));
                self.clients = Some((now, counters));
                Ok(figures)
            }
        };
        report.clients = keep("clients", figures, &mut report.unavailable);
        Ok(())
    }

    fn sample_slots(
        &mut self,
        connection: &mut ServerConnection,
        order: SlotOrder,
        report: &mut TopReport,
    ) -> Result<()> {
        let mut ask = |order: SlotOrder| -> Result<std::result::Result<RespValue, String>> {
            let words = [
                "CLUSTER",
                "SLOT-STATS",
                "ORDERBY",
                order.name(),
                "LIMIT",
                slots::LIMIT,
                "DESC",
            ];
            connection.call(&words).map(accepted)
        };
        if self.info.as_ref().and_then(|info| info.flag("cluster_enabled")) == Some(false) {
            let reason = "the server is not a node of a cluster".to_owned();
            report.unavailable.insert("slots", reason);
            return Ok(());
        }
        // All figures but the number of keys need cluster-slot-stats-enabled.
        let recent = |refusal: &&SlotOrderRefusal| refusal.time.elapsed() < REFUSAL_KEPT;
        let mut note = self.refusal.as_ref().filter(recent).map(|refusal| refusal.text.clone());
        let mut used = order;
        if order != SlotOrder::KeyCount && note.is_some() {
            used = SlotOrder::KeyCount;
        }
        let mut reply = ask(used)?;
        if let (Err(text), true) = (&reply, used != SlotOrder::KeyCount) {
            note = Some(text.clone());
            let (time, text) = (Instant::now(), text.clone());
            self.refusal = Some(SlotOrderRefusal { time, text });
            used = SlotOrder::KeyCount;
            reply = ask(used)?;
        }
        let note = note.filter(|_| used != order);
        let now = Instant::now();
        let figures = reply.map(|reply| {
            let (before, totals) = self.slots.take().unwrap_or((now, HashMap::new()));
            let rows = slots::rows(&reply, &totals, seconds(before, now));
            let totals = rows.iter().filter_map(|row| Some((row.slot, row.cpu_us?))).collect();
            self.slots = Some((now, totals));
            SlotsFigures {
                ordered_by: used.name().to_owned(),
                note,
                rows,
            }
        });
        report.slots = keep("slots", figures, &mut report.unavailable);
        Ok(())
    }

    /// Returns `true` if the server is Weft.
    fn is_weft(&self) -> bool {
        self.info
            .as_ref()
            .is_some_and(|info| info.text("weft_version").is_some())
    }

    /// Lets the server search for big keys. Returns `false` if it cannot.
    fn scan_by_server(
        &mut self,
        connection: &mut ServerConnection,
        is_wanted: bool,
        now: Instant,
        report: &mut TopReport,
    ) -> Result<bool> {
        if !is_wanted || self.refuses_scan || !self.is_weft() {
            if let Some(scan) = self.server_scan.take() {
                scan.stop(connection)?;
            }
            return Ok(false);
        }
        let scan = self.server_scan.get_or_insert_with(|| ServerScan::new(now));
        report.keys = scan.sample(connection, report.overview.keys, now)?;
        self.refuses_scan = report.keys.is_none();
        Ok(!self.refuses_scan)
    }

    fn sample_hot_keys(
        &mut self,
        connection: &mut ServerConnection,
        mode: HotKeysMode,
        report: &mut TopReport,
    ) -> Result<()> {
        if mode != HotKeysMode::Hidden && !self.is_weft() {
            let reason = "only a Weft server samples its keys".to_owned();
            report.unavailable.insert("hot_keys", reason);
            return Ok(());
        }
        if let Some(figures) = self.hot_keys.sample(connection, mode)? {
            report.hot_keys = keep("hot_keys", figures, &mut report.unavailable);
        }
        Ok(())
    }

    /// The databases with keys, by INFO.
    fn databases(&self) -> Vec<u64> {
        let Some(info) = &self.info else { return vec![0] };
        info.with_prefix("db")
            .filter_map(|(index, _)| index.parse().ok())
            .collect()
    }

    fn fill_keys(&mut self, is_wanted: bool, now: Instant, report: &mut TopReport) {
        if !is_wanted {
            self.search = None;
            self.search_error = None;
            return;
        }
        let databases = self.databases();
        let figures = match (&self.search_error, &mut self.search) {
            (Some(text), _) => Err(text.clone()),
            (None, Some(search)) => {
                search.set_databases(databases);
                Ok(search.figures(report.overview.keys, now))
            }
            (None, None) => {
                self.search = Some(KeySearch::new(databases, now));
                Ok(KeysFigures {
                    total: report.overview.keys,
                    ..KeysFigures::default()
                })
            }
        };
        report.keys = keep("keys", figures, &mut report.unavailable);
    }

    /// The time at which the search for big keys wants its next page; `None` if there is no search.
    pub fn next_page(&self) -> Option<Instant> {
        self.search.as_ref().map(KeySearch::next_page)
    }

    /// Reads the next page of the search for big keys.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn read_page(&mut self, connection: &mut ServerConnection) -> Result<()> {
        if let Some(search) = &mut self.search
            && let Err(text) = search.read_page(connection)?
        {
            self.search_error = Some(text);
            self.search = None;
        }
        Ok(())
    }
}

/// Keeps the figures, or records the reason why there are none.
fn keep<T>(
    part: &'static str,
    figures: std::result::Result<T, String>,
    missing: &mut std::collections::BTreeMap<&'static str, String>,
) -> Option<T> {
    figures
        .map_err(|reason| {
            missing.insert(part, reason);
        })
        .ok()
}

fn seconds(before: Instant, now: Instant) -> Option<f64> {
    let seconds = now.saturating_duration_since(before).as_secs_f64();
    (seconds > 0.001).then_some(seconds)
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Builds a report from two replies to INFO and one to CLIENT LIST, for tests of the display.
#[cfg(test)]
pub fn sample_report(earlier: &(Instant, String), later: &(Instant, String), client_list: &str) -> TopReport {
    let mut sampler = ServerSampler::new("127.0.0.1:6379".to_owned());
    sampler.info = Some(InfoFields::parse(earlier.1.as_bytes(), earlier.0));
    let mut report = TopReport::default();
    sampler.fill_from_info(&InfoFields::parse(later.1.as_bytes(), later.0), &mut report);
    latency::tests::fill_example(&mut report);
    let (_, counters) = clients::figures(client_list.as_bytes(), &CountersById::new(), None);
    report.clients = Some(clients::figures(client_list.as_bytes(), &counters, Some(1.0)).0);
    let slot = crate::model::SlotRow {
        slot: 5474,
        keys: Some(73),
        cpu_us: Some(1_234_567),
        cpu_us_per_s: Some(950.0),
        in_bytes: Some(5_000_000),
        out_bytes: Some(42_000_000),
    };
    report.slots = Some(SlotsFigures {
        ordered_by: "cpu-usec".to_owned(),
        note: None,
        rows: vec![slot],
    });
    let key = crate::model::KeyRow {
        name: "session:\\u{1b}[2J".to_owned(),
        database: 0,
        kind: "hash".to_owned(),
        memory_bytes: 104_857_600,
        elements: Some(120_000),
    };
    report.keys = Some(KeysFigures {
        sampled: 4500,
        total: Some(1_200_000),
        passes: 0,
        cost_share: 0.0093,
        rows: vec![key],
    });
    let hot_key = crate::model::HotKeyRow {
        name: "user:\\u{1b}[31m".to_owned(),
        database: 0,
        uses: 192_000,
        uses_per_s: Some(16_000.0),
        error: 640,
        share: 0.667,
        write_share: 0.25,
        time_share: 0.5,
    };
    report.hot_keys = Some(crate::model::HotKeysFigures {
        is_sampling: true,
        sample_ratio: 64,
        duration_s: 12.0,
        samples: 4500,
        rows: vec![hot_key],
    });
    report
}
