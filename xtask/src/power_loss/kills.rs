//! Kills: the server is killed under load, and what the operating system has is loaded again.
//!
//! Nothing that a process has written is lost when it ends. So a server that writes before it replies loses no
//! acknowledged write with any `appendfsync`.

use std::fs;
use std::time::Duration;

use super::check::Checker;
use super::disk::{Image, read_image, write_image};
use super::history::{Failure, History, LoadedFile};
use super::losses::{Series, first_contents, load_arguments};
use super::operations::SHORT_EXPIRY_MS;
use super::readback::read_contents;
use super::recording::Recording;
use super::run::{RunSettings, perform, unix_ms};
use super::server::{Preload, Server};

/// The number of kills after which a series begins with an empty directory again.
const KILLS_PER_DIRECTORY: u64 = 10;

/// The counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct KillCounts {
    pub kills: u64,
    pub acknowledged: usize,
}

/// Kills the server `kills` times.
///
/// # Errors
/// Says which acknowledged write is lost.
pub fn run_kills(series: &Series<'_>, kills: u64) -> Result<KillCounts, String> {
    let mut counts = KillCounts::default();
    let mut before: Option<(RunSettings, Image)> = None;
    for run in 0..kills {
        let chained = before.take().filter(|_| run % KILLS_PER_DIRECTORY != 0);
        let (settings, image) = kill(series, run, chained, &mut counts)?;
        before = Some((settings, image));
        counts.kills += 1;
    }
    Ok(counts)
}

fn kill(
    series: &Series<'_>,
    run: u64,
    before: Option<(RunSettings, Image)>,
    counts: &mut KillCounts,
) -> Result<(RunSettings, Image), String> {
    let mut settings = RunSettings::draw(series.seed, run, before.as_ref().map(|(before, _)| before), unix_ms());
    settings.has_aof = true;
    settings.is_weft = series.is_weft();
    settings.base_ms -= SHORT_EXPIRY_MS;
    let mut rng = fastrand::Rng::with_seed(series.seed ^ run);
    settings.duration = Duration::from_millis(rng.u64(30..700));
    let initial = before.map_or_else(Image::new, |(_, image)| image);
    let first = first_contents(series, &settings, &initial)?;
    let directory = series.directory.join("run");
    write_image(&initial, &directory)?;
    let recording = series.directory.join("recording");
    // Neither file exists before the first run.
    let _ = fs::remove_file(&recording);
    let _ = fs::remove_file(directory.with_extension("log"));
    let preload = Preload {
        library: series.library.to_owned(),
        recording: Some(recording.clone()),
        sync_us: settings.sync_us,
        ..Preload::default()
    };
    perform(series.binary, &settings, &first.states, &directory, &preload)
        .map_err(|why| format!("kill {run} ({settings:?}): {why}"))?;
    let image = read_image(&directory)?;
    let recording = Recording::read(&recording)?;
    let history = History::new(&recording.records, &settings, &first.states)?;
    counts.acknowledged += history.acknowledged();
    let checker = Checker::new(&history, run, first.journals, settings.base_ms + SHORT_EXPIRY_MS + 1);
    let bounds = history.bounds(
        (recording.records.len(), u64::MAX),
        LoadedFile::AppendOnly,
        Failure::Kill,
    );
    let server = Server::start(series.binary, &directory, &load_arguments(LoadedFile::AppendOnly), None)?;
    let contents = read_contents(&server, settings.writers)?;
    checker.check(&contents, &bounds).map_err(|why| {
        let phases = history.last_phases();
        let records = recording.records.len();
        format!(
            "kill {run}, appendfsync {}, {records} records, {phases}: {why}",
            settings.policy
        )
    })?;
    Ok((settings, image))
}
