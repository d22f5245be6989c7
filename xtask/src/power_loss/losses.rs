//! Power losses: records runs, cuts each at many points, and checks what a server loads from the disk of each cut.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::check::{ACKNOWLEDGED_LOST, Checker};
use super::disk::{DataFate, Disk, Fate, Image, write_image};
use super::history::{Bounds, Failure, History, LoadedFile};
use super::model::State;
use super::operations::{DATABASES, SHORT_EXPIRY_MS};
use super::planted::Plant;
use super::readback::{Contents, read_contents};
use super::recording::{FileEvent, Recording};
use super::run::{RunSettings, perform, unix_ms};
use super::server::{Preload, Server};

/// The number of images that are checked at the same time.
const CHECKERS: usize = 2;
/// The distance in records from an operation on names within which every second cut lies.
const NEAR_RECORDS: usize = 8;
/// The percentage of cuts whose image is loaded from the dump file of a run with an append-only file.
const DUMP_PERCENT: u32 = 10;
/// The percentage of runs that continue from an image of the run before.
const CHAIN_PERCENT: u32 = 60;

/// The beginning of the error of [`Server::start`] if the server refuses the files that it finds.
const REFUSED_START: &str = "the server does not start (exit status: 1)";
/// The exit code of `valkey-check-aof` for a file that it cannot repair.
const CHECK_FAILED: i32 = 1;

/// The counters of a run.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub runs: usize,
    pub losses: usize,
    pub acknowledged: usize,
    pub records: usize,
    pub aof_loads: usize,
    pub dump_loads: usize,
    pub truncated_loads: usize,
    pub chained_runs: usize,
    /// Images with missing blocks before later ones.
    pub holes: usize,
    /// Those of them that the server refused until `valkey-check-aof --fix` had truncated the file.
    pub holes_fixed: usize,
    /// Those of them that the server refused after that.
    pub holes_refused: usize,
    /// Those of them in which a value that was not acknowledged is damaged.
    pub holes_damaged: usize,
}

/// The settings of a series of losses.
pub struct Series<'s> {
    pub binary: &'s Path,
    pub library: &'s Path,
    /// The directory for everything, in memory if possible.
    pub directory: &'s Path,
    pub seed: u64,
    pub losses: usize,
    pub losses_per_run: usize,
    pub plant: Option<Plant>,
    /// The only fate of data, instead of any.
    pub data_fate: Option<DataFate>,
    /// The only `appendfsync`, instead of any. Every run then has an append-only file, from which every image is
    /// loaded.
    pub policy: Option<&'static str>,
}

impl Series<'_> {
    /// Returns `true` if the server has Weft's parameters.
    pub fn is_weft(&self) -> bool {
        self.binary.file_name().is_none_or(|name| name != "valkey-server")
    }
}

/// An image with what is expected of it.
struct Job {
    image: Image,
    bounds: Vec<Bounds>,
    file: LoadedFile,
    fate: Fate,
    cut: usize,
    /// `true` if the next run continues from it.
    is_next: bool,
}

/// A recorded run on the disk.
struct Recorded {
    settings: RunSettings,
    initial: Image,
    first: Contents,
    recording: Recording,
}

/// Performs a series of losses.
///
/// # Errors
/// Says which image does not hold what it must, and where it is kept.
pub fn run_series(series: &Series<'_>) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut rng = fastrand::Rng::with_seed(series.seed);
    let mut next: Option<(RunSettings, Image)> = None;
    let mut run = 0;
    while counts.losses < series.losses {
        let chained = next.take().filter(|_| rng.u32(0..100) < CHAIN_PERCENT);
        let recorded = record(series, run, chained)?;
        counts.runs += 1;
        counts.chained_runs += usize::from(!recorded.initial.is_empty());
        counts.records += recorded.recording.records.len();
        let losses = series.losses_per_run.min(series.losses - counts.losses);
        next = cut(series, &recorded, losses, &mut counts)?.map(|image| (recorded.settings, image));
        run += 1;
    }
    Ok(counts)
}

fn record(series: &Series<'_>, run: u64, chained: Option<(RunSettings, Image)>) -> Result<Recorded, String> {
    let mut settings = RunSettings::draw(series.seed, run, chained.as_ref().map(|(before, _)| before), unix_ms());
    if let Some(policy) = series.policy {
        settings.set_policy(policy);
    }
    let initial = chained.map_or_else(Image::new, |(_, image)| image);
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
        control: None,
        sync_us: settings.sync_us,
        ignored: series.plant.and_then(Plant::ignored_sync),
    };
    perform(series.binary, &settings, &first.states, &directory, &preload)
        .map_err(|why| format!("run {run} ({settings:?}): {why}"))?;
    Ok(Recorded {
        recording: Recording::read(&recording)?,
        settings,
        initial,
        first,
    })
}

/// Reads what the first image of a run contains.
///
/// # Errors
/// Fails if the server does not load the image.
pub fn first_contents(series: &Series<'_>, settings: &RunSettings, initial: &Image) -> Result<Contents, String> {
    if initial.is_empty() {
        return Ok(Contents {
            states: vec![State::new(); settings.writers],
            journals: vec![Vec::new(); DATABASES],
        });
    }
    let directory = series.directory.join("first");
    write_image(initial, &directory)?;
    let file = match settings.has_aof {
        true => LoadedFile::AppendOnly,
        false => LoadedFile::Dump,
    };
    let server = Server::start(series.binary, &directory, &load_arguments(file), None)?;
    let mut contents = read_contents(&server, settings.writers)?;
    for state in &mut contents.states {
        state.retain(|_, entry| super::operations::is_durable(entry));
    }
    Ok(contents)
}

/// The arguments of a server that loads an image.
pub fn load_arguments(file: LoadedFile) -> [&'static str; 6] {
    let appendonly = match file {
        LoadedFile::AppendOnly => "yes",
        LoadedFile::Dump => "no",
    };
    ["--appendonly", appendonly, "--save", "", "--aof-load-truncated", "yes"]
}

/// Draws the points at which the power fails, in ascending order.
fn draw_cuts(recording: &Recording, losses: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    let is_special = |event: &FileEvent| {
        matches!(
            event,
            FileEvent::Rename { .. }
                | FileEvent::Unlink { .. }
                | FileEvent::MakeDirectory { .. }
                | FileEvent::Open { .. }
        )
    };
    let records = &recording.records;
    let special: Vec<usize> = (0..records.len())
        .filter(|index| is_special(&records[*index].event))
        .collect();
    let mut cuts: Vec<usize> = (0..losses)
        .map(|_| match special.is_empty() || rng.bool() {
            true => rng.usize(0..=records.len()),
            false => {
                let near = special[rng.usize(0..special.len())] + rng.usize(0..=2 * NEAR_RECORDS);
                near.saturating_sub(NEAR_RECORDS).min(records.len())
            }
        })
        .collect();
    cuts.sort_unstable();
    cuts
}

/// Checks the images of one run. Returns one from which the next run can continue.
fn cut(series: &Series<'_>, recorded: &Recorded, losses: usize, counts: &mut Counts) -> Result<Option<Image>, String> {
    let Recorded {
        settings,
        initial,
        first,
        recording,
    } = recorded;
    // All keys with a short time of expiry have expired then.
    let over_ms = settings.base_ms + SHORT_EXPIRY_MS + 1;
    thread::sleep(Duration::from_millis(over_ms.saturating_sub(unix_ms())));
    let history = History::new(&recording.records, settings, &first.states)?;
    counts.acknowledged += history.acknowledged();
    let checker = Checker::new(&history, settings.run, first.journals.clone(), over_ms);
    let mut rng = fastrand::Rng::with_seed(series.seed ^ (settings.run << 32) ^ 1);
    let cuts = draw_cuts(recording, losses, &mut rng);
    let failure = match series.plant {
        Some(Plant::EarlyReply) => Failure::PowerAndEarlyReplies,
        _ => Failure::Power,
    };
    let next_index = rng.usize(0..cuts.len().max(1));
    let state = CheckState {
        series,
        checker: &checker,
        counts: Mutex::new(counts.clone()),
        next: Mutex::new(None),
        failure: Mutex::new(None),
        has_failed: AtomicBool::new(false),
    };
    let (send, receive) = mpsc::sync_channel::<Job>(CHECKERS);
    let receive = Mutex::new(receive);
    thread::scope(|scope| -> Result<(), String> {
        for number in 0..CHECKERS {
            let (state, receive) = (&state, &receive);
            scope.spawn(move || check_jobs(state, number, receive));
        }
        let mut disk = Disk::new(initial, Arc::clone(&recording.bytes));
        let mut applied = 0;
        for (index, cut) in cuts.iter().enumerate() {
            for record in &recording.records[applied..*cut] {
                disk.apply(&record.event)?;
            }
            applied = *cut;
            let mut fate = Fate::random(&mut rng);
            fate.data = series.data_fate.unwrap_or(fate.data);
            let may_want_dump = rng.u32(0..100) < DUMP_PERCENT && series.policy.is_none();
            let wants_dump = may_want_dump && history.has_dump(*cut);
            let file = match settings.has_aof && !wants_dump {
                true => LoadedFile::AppendOnly,
                false => LoadedFile::Dump,
            };
            let time_ns = cut.checked_sub(1).map_or(0, |last| recording.records[last].time_ns);
            let mut image = disk.lose_power(fate, &mut rng);
            if let Some(plant) = series.plant {
                plant.damage(&mut image, &mut rng);
            }
            let job = Job {
                image,
                bounds: history.bounds((*cut, time_ns), file, failure),
                file,
                fate,
                cut: *cut,
                is_next: index == next_index && settings.has_aof == (file == LoadedFile::AppendOnly),
            };
            if state.has_failed.load(Ordering::SeqCst) || send.send(job).is_err() {
                break;
            }
        }
        drop(send);
        Ok(())
    })?;
    *counts = state.counts.into_inner().map_err(|error| error.to_string())?;
    let failure = state.failure.into_inner().map_err(|error| error.to_string())?;
    if let Some((job, why)) = failure {
        return Err(keep_failure(series, recorded, &job, &why));
    }
    state.next.into_inner().map_err(|error| error.to_string())
}

/// The state that the checking threads share.
struct CheckState<'c> {
    series: &'c Series<'c>,
    checker: &'c Checker<'c>,
    counts: Mutex<Counts>,
    next: Mutex<Option<Image>>,
    failure: Mutex<Option<(Job, String)>>,
    has_failed: AtomicBool,
}

fn check_jobs(state: &CheckState<'_>, number: usize, jobs: &Mutex<mpsc::Receiver<Job>>) {
    let directory = state.series.directory.join(format!("image{number}"));
    loop {
        let job = match jobs.lock().map(|jobs| jobs.recv()) {
            Ok(Ok(job)) => job,
            _ => return,
        };
        // The jobs are taken to the end, because their sender would wait otherwise.
        if state.has_failed.load(Ordering::SeqCst) {
            continue;
        }
        match check_image(state, &directory, &job) {
            Ok(()) => {
                if job.is_next
                    && job.fate.data != DataFate::Holes
                    && let Ok(mut next) = state.next.lock()
                {
                    *next = Some(job.image);
                }
            }
            Err(why) => {
                state.has_failed.store(true, Ordering::SeqCst);
                if let Ok(mut failure) = state.failure.lock() {
                    failure.get_or_insert((job, why));
                }
            }
        }
    }
}

fn check_image(state: &CheckState<'_>, directory: &Path, job: &Job) -> Result<(), String> {
    let series = state.series;
    write_image(&job.image, directory)?;
    // It does not exist before the first image.
    let _ = fs::remove_file(directory.with_extension("log"));
    let has_holes = job.fate.data == DataFate::Holes;
    let arguments = load_arguments(job.file);
    let mut was_fixed = false;
    let server = match Server::start(series.binary, directory, &arguments, None) {
        Ok(server) => server,
        Err(why) if has_holes && job.file == LoadedFile::AppendOnly && why.starts_with(REFUSED_START) => {
            was_fixed = true;
            fix_aof(series, directory)?;
            match Server::start(series.binary, directory, &arguments, None) {
                Ok(server) => server,
                // A command without its first blocks may be another command, with a wrong name or number of arguments.
                Err(why) if why.starts_with(REFUSED_START) => {
                    let mut counts = state.counts.lock().map_err(|error| error.to_string())?;
                    counts.losses += 1;
                    counts.holes += 1;
                    counts.holes_refused += 1;
                    return Ok(());
                }
                Err(why) => return Err(why),
            }
        }
        Err(why) => return Err(why),
    };
    let checked =
        read_contents(&server, job.bounds.len()).and_then(|contents| state.checker.check(&contents, &job.bounds));
    let was_truncated = server.log().contains("!!! Truncating the AOF");
    let mut counts = state.counts.lock().map_err(|error| error.to_string())?;
    counts.losses += 1;
    counts.truncated_loads += usize::from(was_truncated);
    match job.file {
        LoadedFile::AppendOnly => counts.aof_loads += 1,
        LoadedFile::Dump => counts.dump_loads += 1,
    }
    counts.holes += usize::from(has_holes);
    counts.holes_fixed += usize::from(was_fixed);
    counts.holes_damaged += usize::from(has_holes && checked.is_err());
    match checked {
        // The format has no checksums, so a missing block within a value that was not synced cannot be detected. The
        // server must serve clients nevertheless.
        Err(why) if has_holes && !why.contains(ACKNOWLEDGED_LOST) => {
            let is_serving = server.connect().and_then(|mut client| Ok(client.execute("PING")?));
            is_serving.map(drop).map_err(|end| format!("{why}; then: {end}"))
        }
        other => other,
    }
}

/// Runs `valkey-check-aof --fix`.
///
/// # Errors
/// Fails if the program does not end as one that has checked a file, whatever it has found.
fn fix_aof(series: &Series<'_>, directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("valkey-check-aof: {error}");
    let program = series.directory.join("valkey-check-aof");
    if !program.exists() {
        // Another thread may have made it meanwhile.
        let _ = std::os::unix::fs::symlink(series.binary, &program);
    }
    let mut child = Command::new(&program)
        .arg("--fix")
        .arg(directory.join("appendonlydir/appendonly.aof.manifest"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // It asks only if there is something to truncate.
        let _ = input.write_all(b"y\ny\n");
    }
    let status = child.wait().map_err(failed)?;
    match status.code() {
        Some(0 | CHECK_FAILED) => Ok(()),
        _ => Err(format!("valkey-check-aof has ended with {status}")),
    }
}

/// Keeps everything that belongs to a failed check. Returns the story.
fn keep_failure(series: &Series<'_>, recorded: &Recorded, job: &Job, why: &str) -> String {
    let run = recorded.settings.run;
    let kept = crate::workspace::root().join(format!("target/power-loss/{}-{run}", series.seed));
    let keep = || -> Result<(), String> {
        write_image(&recorded.initial, &kept.join("initial"))?;
        write_image(&job.image, &kept.join("image"))?;
        fs::write(kept.join("recording"), recorded.recording.bytes.as_slice()).map_err(|error| error.to_string())?;
        fs::write(kept.join("settings"), format!("{:#?}\n", recorded.settings)).map_err(|error| error.to_string())
    };
    let place = match (series.plant, keep()) {
        (Some(_), _) => String::new(),
        (None, Ok(())) => format!("\nkept in {}", kept.display()),
        (None, Err(error)) => format!("\ncannot keep it: {error}"),
    };
    let Job { cut, fate, file, .. } = job;
    let settings = &recorded.settings;
    format!(
        "run {run}, appendfsync {}, power loss before record {cut}, {file:?}, {fate:?}: {why}{place}",
        settings.policy
    )
}

/// Returns a new directory for a series, in memory if possible.
///
/// # Errors
/// Fails if it cannot be created.
pub fn new_directory() -> Result<PathBuf, String> {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let directory = parent.join(format!("weft-power-loss-{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}
