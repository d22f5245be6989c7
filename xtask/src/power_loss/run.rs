//! A recorded run: writers, and an administrator who saves, rewrites, switches and restarts.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::model::State;
use super::operations::{DATABASES, Operations};
use super::recording::MarkerWriter;
use super::server::{PATIENCE, Preload, Server, info_field};
use crate::save_refusals::is_already_saving;
use crate::stress::client::{CallError, StressClient, StressReply};

/// The settings of a run, drawn from the seed.
#[derive(Clone, Debug)]
pub struct RunSettings {
    pub seed: u64,
    pub run: u64,
    pub writers: usize,
    /// `appendfsync`.
    pub policy: &'static str,
    /// `true` if the server has Weft's parameters.
    pub is_weft: bool,
    /// `true` if there is an append-only file; otherwise RDB files only.
    pub has_aof: bool,
    pub sync_us: u32,
    pub duration: Duration,
    /// Further parameters of the server.
    pub parameters: Vec<(&'static str, &'static str)>,
    /// The time around which short times of expiry lie, in ms since the Unix epoch.
    pub base_ms: u64,
}

impl RunSettings {
    /// Draws the settings of a run. `chained` are those of the run whose image it continues.
    pub fn draw(seed: u64, run: u64, chained: Option<&RunSettings>, base_ms: u64) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed ^ run.wrapping_mul(0x2545_F491_4F6C_DD1D));
        let has_aof = chained.map_or_else(|| rng.u32(0..100) < 85, |before| before.has_aof);
        let policy = match rng.u32(0..100) {
            0..60 => "always",
            60..92 => "everysec",
            _ => "no",
        };
        let mut either = |name, first, second| (name, if rng.bool() { first } else { second });
        let parameters = vec![
            either("aof-use-rdb-preamble", "yes", "no"),
            either("aof-timestamp-enabled", "yes", "no"),
            either("auto-aof-rewrite-min-size", "64kb", "64mb"),
            either("rdb-save-incremental-fsync", "yes", "no"),
            either("rdbcompression", "yes", "no"),
        ];
        RunSettings {
            seed,
            run,
            writers: 6,
            policy,
            is_weft: true,
            has_aof,
            sync_us: [1, 300, 2000, 10_000][rng.usize(0..4)],
            duration: duration(policy),
            parameters,
            base_ms,
        }
    }

    /// Makes this a run with an append-only file and this `appendfsync`.
    pub fn set_policy(&mut self, policy: &'static str) {
        self.has_aof = true;
        self.policy = policy;
        self.duration = duration(policy);
    }

    /// The arguments of the server during the run.
    fn arguments(&self) -> Vec<&str> {
        let aof = if self.has_aof { "yes" } else { "no" };
        // With a save point there is a save at the end of the process.
        let save = if self.has_aof { "" } else { "3600 1000000" };
        let mut all = vec!["--appendonly", aof, "--appendfsync", self.policy, "--save", save];
        all.extend(["--io-threads", "4"]);
        // On a busy machine a script could be overdue. Then the server would answer BUSY, which is a failure here.
        all.extend(["--busy-reply-threshold", "0"]);
        if self.is_weft {
            all.extend(["--io-threads-always-active", "yes"]);
        }
        all
    }
}

/// Returns how long a run lasts. With `everysec` it must be longer than what may be lost.
fn duration(policy: &str) -> Duration {
    Duration::from_millis(if policy == "always" { 2500 } else { 4500 })
}

/// The current time in ms since the Unix epoch.
pub fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

/// The state that the threads of a run share.
struct Control {
    socket: PathBuf,
    markers: MarkerWriter,
    stop: AtomicBool,
    pause: AtomicBool,
    /// The number of writers that wait for the end of the pause, or have no connection after it yet.
    paused: AtomicUsize,
    failure: Mutex<Option<String>>,
}

impl Control {
    fn fail(&self, story: String) {
        self.stop.store(true, Ordering::SeqCst);
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert(story);
        }
    }
}

/// Performs a run on `directory`, and records it. It ends with SIGKILL.
///
/// # Errors
/// Fails if a command is refused or the server does not do what it is told.
pub fn perform(
    binary: &Path,
    settings: &RunSettings,
    states: &[State],
    directory: &Path,
    preload: &Preload,
) -> Result<(), String> {
    let recording = preload.recording.as_ref().ok_or("no recording")?;
    let mut arguments = settings.arguments();
    let names: Vec<String> = settings
        .parameters
        .iter()
        .map(|(name, _)| format!("--{name}"))
        .collect();
    for (name, (_, value)) in names.iter().zip(&settings.parameters) {
        arguments.extend([name.as_str(), *value]);
    }
    let server = Server::start(binary, directory, &arguments, Some(preload))?;
    let control = Control {
        socket: server.socket().to_owned(),
        markers: MarkerWriter::open(recording)?,
        stop: AtomicBool::new(false),
        pause: AtomicBool::new(false),
        paused: AtomicUsize::new(0),
        failure: Mutex::new(None),
    };
    let control = &control;
    // Before the run begins: its end could come between a writer's start and its connection.
    let clients: Vec<StressClient> = (0..states.len())
        .map(|writer| connect(control, writer))
        .collect::<Result<_, _>>()?;
    let restart = || Server::start(binary, directory, &arguments, Some(preload));
    let mut administrator = Administrator {
        control,
        settings,
        rng: fastrand::Rng::with_seed(settings.seed ^ settings.run),
        server,
        restart: &restart,
        is_on: settings.has_aof,
    };
    thread::scope(|scope| {
        for ((writer, state), client) in states.iter().enumerate().zip(clients) {
            scope.spawn(move || {
                if let Err(story) = write(control, settings, (writer, client), state.clone()) {
                    control.fail(format!("writer {writer}: {story}"));
                }
            });
        }
        if let Err(story) = administrator.work() {
            control.fail(format!("administrator: {story}"));
        }
        control.stop.store(true, Ordering::SeqCst);
        administrator.server.kill_between_calls();
    });
    let mut failure = control.failure.lock().map_err(|error| error.to_string())?;
    let log = |story| format!("{story}\n{}", administrator.server.log_tail(20));
    failure.take().map(log).map_or(Ok(()), Err)
}

/// Runs one writer until the end of the run.
fn write(
    control: &Control,
    settings: &RunSettings,
    (writer, mut client): (usize, StressClient),
    state: State,
) -> Result<(), String> {
    let mut operations = Operations::new((settings.seed, settings.run), writer, settings.base_ms, state);
    let mut rng = fastrand::Rng::with_seed(settings.seed ^ writer as u64);
    let prefix = Operations::prefix(writer);
    while !control.stop.load(Ordering::SeqCst) {
        if control.pause.load(Ordering::SeqCst) {
            control.paused.fetch_add(1, Ordering::SeqCst);
            while control.pause.load(Ordering::SeqCst) && !control.stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            if control.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            client = connect(control, writer)?;
            control.paused.fetch_sub(1, Ordering::SeqCst);
        }
        let batch = if rng.u32(0..3) == 0 { rng.usize(2..8) } else { 1 };
        let mut commands = Vec::new();
        for _ in 0..batch {
            commands.extend(operations.advance().commands(&prefix));
        }
        control.markers.mark(&format!("s {writer} {}", operations.count))?;
        match client.pipeline(&commands) {
            Ok(replies) => {
                if let Some(error) = replies.iter().flat_map(with_items).find(|reply| is_error(reply)) {
                    return Err(format!("{error:?} after {commands:?}"));
                }
            }
            Err(_) if control.stop.load(Ordering::SeqCst) => return Ok(()),
            Err(CallError::Closed) => {
                // The end of the run comes with the connection's end.
                thread::sleep(Duration::from_millis(200));
                return match control.stop.load(Ordering::SeqCst) {
                    true => Ok(()),
                    false => Err("the server closed the connection".to_owned()),
                };
            }
            Err(error) => return Err(error.into()),
        }
        control.markers.mark(&format!("a {writer} {}", operations.count))?;
        if settings.policy != "always" {
            thread::sleep(Duration::from_micros(rng.u64(500..6000)));
        }
    }
    Ok(())
}

fn with_items(reply: &StressReply) -> impl Iterator<Item = &StressReply> {
    std::iter::once(reply).chain(reply.items())
}

fn is_error(reply: &StressReply) -> bool {
    matches!(reply, StressReply::Error(_))
}

fn connect(control: &Control, writer: usize) -> Result<StressClient, String> {
    let mut client = StressClient::connect_unix(&control.socket, PATIENCE)?;
    client.execute(&format!("SELECT {}", writer % DATABASES))?;
    Ok(client)
}

/// Disturbs the writers.
struct Administrator<'r> {
    control: &'r Control,
    settings: &'r RunSettings,
    rng: fastrand::Rng,
    server: Server,
    restart: &'r dyn Fn() -> Result<Server, String>,
    /// `true` if the append-only file is on.
    is_on: bool,
}

impl Administrator<'_> {
    fn work(&mut self) -> Result<(), String> {
        let end = Instant::now() + self.settings.duration;
        while Instant::now() < end && !self.control.stop.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(self.rng.u64(5..200)));
            match (self.rng.u32(0..100), self.settings.has_aof) {
                (0..35, true) => self.rewrite()?,
                (35..45, true) => self.switch()?,
                (45..55, true) => {
                    let value = if self.rng.bool() { "yes" } else { "no" };
                    self.expect_ok(&format!("CONFIG SET aof-use-rdb-preamble {value}"))?;
                }
                (55..65, _) if self.is_on || !self.settings.has_aof => self.restart_server()?,
                (65..75, _) => self.save()?,
                (75.., _) | (0..55, false) => self.background_save()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn call(&self, command: &str) -> Result<StressReply, String> {
        let reply = self.server.connect()?.call(command)?;
        Ok(reply)
    }

    fn expect_ok(&self, command: &str) -> Result<(), String> {
        match self.call(command)? {
            StressReply::Simple(_) => Ok(()),
            other => Err(format!("{command}: {other:?}")),
        }
    }

    /// Sends SAVE, BGSAVE or BGREWRITEAOF. Returns `false` if the server refuses it because it is saving already.
    fn begin_saving(&self, command: &str) -> Result<bool, String> {
        match self.call(command)? {
            StressReply::Simple(_) => Ok(true),
            StressReply::Error(error) if is_already_saving(command, &error) => Ok(false),
            other => Err(format!("{command}: {other:?}")),
        }
    }

    fn mark(&self, text: &str) -> Result<(), String> {
        self.control.markers.mark(text)
    }

    /// Waits until fields of INFO have these values. Returns `false` if the run ends first.
    fn wait_for(&self, fields: &[(&str, &str)]) -> Result<bool, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut client = self.server.connect()?;
        while Instant::now() < deadline {
            // All from one reply: fields of two replies could be of two moments.
            let text = client.call("INFO persistence")?.text();
            if fields
                .iter()
                .all(|(field, value)| info_field(&text, field) == Some(value))
            {
                return Ok(true);
            }
            if self.control.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(3));
        }
        Err(format!("INFO does not become {fields:?}"))
    }

    /// BGREWRITEAOF, with and without waiting for its end.
    fn rewrite(&mut self) -> Result<(), String> {
        self.begin_saving("BGREWRITEAOF")?;
        if self.rng.bool() {
            self.wait_for(&[("aof_rewrite_in_progress", "0"), ("aof_rewrite_scheduled", "0")])?;
        }
        Ok(())
    }

    /// CONFIG SET appendonly.
    fn switch(&mut self) -> Result<(), String> {
        if self.is_on {
            self.mark("p off")?;
            self.expect_ok("CONFIG SET appendonly no")?;
            self.is_on = false;
            return Ok(());
        }
        self.expect_ok("CONFIG SET appendonly yes")?;
        let done = [
            ("aof_enabled", "1"),
            ("aof_rewrite_in_progress", "0"),
            ("aof_rewrite_scheduled", "0"),
            ("aof_last_bgrewrite_status", "ok"),
        ];
        if self.wait_for(&done)? {
            self.mark("p on")?;
            self.is_on = true;
        }
        Ok(())
    }

    /// SIGTERM and a new start, while no operation is under way.
    fn restart_server(&mut self) -> Result<(), String> {
        self.control.pause.store(true, Ordering::SeqCst);
        if !self.wait_for_paused(self.settings.writers) {
            return Ok(());
        }
        self.mark("p save-begin")?;
        let status = self.server.terminate()?;
        if !status.success() {
            return Err(format!("the server has ended with {status} after SIGTERM"));
        }
        if !self.settings.has_aof {
            self.mark("p saved")?;
        }
        self.server = (self.restart)()?;
        self.control.pause.store(false, Ordering::SeqCst);
        // Until all have new connections: the next pause or the end of the run must not come before.
        self.wait_for_paused(0);
        Ok(())
    }

    /// Waits until this many writers are paused. Returns `false` if the run ends first.
    fn wait_for_paused(&self, writers: usize) -> bool {
        while self.control.paused.load(Ordering::SeqCst) != writers {
            if self.control.stop.load(Ordering::SeqCst) {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// SAVE, unless a background save is running.
    fn save(&mut self) -> Result<(), String> {
        self.mark("p save-begin")?;
        match self.begin_saving("SAVE")? {
            true => self.mark("p saved"),
            false => Ok(()),
        }
    }

    /// BGSAVE, unless the server is saving already, with and without waiting for its end.
    fn background_save(&mut self) -> Result<(), String> {
        self.mark("p save-begin")?;
        if !self.begin_saving("BGSAVE")? {
            return Ok(());
        }
        if self.rng.bool() && self.wait_for(&[("rdb_bgsave_in_progress", "0"), ("rdb_last_bgsave_status", "ok")])? {
            self.mark("p saved")?;
        }
        Ok(())
    }
}
