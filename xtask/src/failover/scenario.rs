//! A round of a scenario: writers, failovers meanwhile, and the checks afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::group::Group;
use super::history::{Guarantee, Observation, Outcome, WriterEvent};
use super::planted::{Record, plant_all};
use super::session::{PROGRESS_BOUND, REFUSALS, RoundState, Session};
use super::writers::{KINDS, Keys, Log, WriterKind, observe};

/// A kind of failover.
pub struct FailoverScenario {
    pub name: &'static str,
    pub about: &'static str,
    /// The data that the failover must keep.
    pub guarantee: Guarantee,
    /// The number of replicas whose confirmation counts. It is 1 if the promoted replica is the only one or has the
    /// best offset, and otherwise the number of all replicas.
    pub replicas: usize,
    /// Causes failovers and returns how many there were.
    pub fail_over: fn(&mut Group, &mut Rng) -> Result<u64, String>,
}

/// What a round does besides the failovers.
pub struct RoundPlan {
    pub number: u64,
    /// The data that must be kept.
    pub guarantee: Guarantee,
    /// The number of replicas whose confirmation counts.
    pub replicas: usize,
    /// `true` if the writers pause between their commands.
    pub has_pauses: bool,
    /// The kinds of writers that every tag gets.
    pub kinds: &'static [WriterKind],
    /// The beginnings of the errors that writers may see.
    pub allowed_errors: &'static [&'static str],
    /// `true` if the checker is checked with planted faults.
    pub plants_faults: bool,
    /// Makes the group whole after the round.
    pub heal: fn(&mut Group) -> Result<(), String>,
}

/// The progress of the writers of a round.
pub struct RoundProgress<'a> {
    pub run: &'a RoundState,
    kinds: &'static [WriterKind],
    /// The number of acknowledgements of each writer.
    counts: &'a [AtomicU64],
}

/// What happens to the servers of a round while its writers run. Returns the number of failovers.
pub type RoundAction<'a> = dyn FnMut(&mut Group, &RoundProgress<'_>, &mut Rng) -> Result<u64, String> + 'a;

/// The sums over the rounds of a scenario.
#[derive(Default)]
pub struct Tally {
    pub rounds: u64,
    pub failovers: u64,
    pub acknowledged: u64,
    pub confirmed: u64,
    pub unknown: u64,
    pub longest_reply_ms: u64,
    /// The longest time without success of a writer, and between CLUSTERDOWN and its next success.
    pub longest_outage_ms: u64,
    pub longest_down_ms: u64,
    /// What writers have seen instead of a reply, with its number.
    pub errors: BTreeMap<String, u64>,
    /// The number of times that each planted fault was reported.
    pub planted: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Adds the sums of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.rounds += other.rounds;
        self.failovers += other.failovers;
        self.acknowledged += other.acknowledged;
        self.confirmed += other.confirmed;
        self.unknown += other.unknown;
        self.longest_reply_ms = self.longest_reply_ms.max(other.longest_reply_ms);
        self.longest_outage_ms = self.longest_outage_ms.max(other.longest_outage_ms);
        self.longest_down_ms = self.longest_down_ms.max(other.longest_down_ms);
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        for (name, count) in &other.planted {
            *self.planted.entry(name).or_default() += count;
        }
    }
}

/// Runs one round of a scenario.
///
/// # Errors
/// Fails like [`run_planned`].
pub fn run_round(
    scenario: &FailoverScenario,
    group: &mut Group,
    heal: fn(&mut Group) -> Result<(), String>,
    number: u64,
    rng: &mut Rng,
) -> Result<Tally, String> {
    let plan = RoundPlan {
        number,
        guarantee: scenario.guarantee,
        replicas: scenario.replicas,
        has_pauses: rng.bool(),
        kinds: KINDS,
        allowed_errors: REFUSALS,
        plants_faults: true,
        heal,
    };
    run_planned(&plan, group, rng, &mut |group, progress, rng| {
        fail_over(scenario, group, progress, rng)
    })
}

/// Runs one round: its writers, `action` meanwhile, and the checks afterwards.
///
/// # Errors
/// Fails if a rule does not hold, a request is not answered in time, the data of primary and replicas differ, or the
/// action fails.
pub fn run_planned(
    plan: &RoundPlan,
    group: &mut Group,
    rng: &mut Rng,
    action: &mut RoundAction<'_>,
) -> Result<Tally, String> {
    let run = RoundState::new(group.router.clone(), plan.number, plan.replicas, plan.has_pauses)
        .with_allowed_errors(plan.allowed_errors);
    let tags = group.tags.clone();
    let (result, logs) = run_writers(plan, group, &run, rng, action);
    let failovers = result?;
    if let [first, ..] = run.failures().as_slice() {
        return Err(first.clone());
    }
    (plan.heal)(group)?;
    group.settle()?;
    let mut observation = Observation::default();
    for ((_, slot), events) in &logs {
        observe(&mut Session::new(&run, *slot, rng.fork()), events, &mut observation)?;
    }
    let record = Record {
        history: logs.into_iter().flat_map(|(_, events)| events).collect(),
        observation,
        guarantee: plan.guarantee,
    };
    let broken = record.broken_rules();
    if !broken.is_empty() {
        let count = broken.len();
        return Err(format!(
            "{count} rules are broken:\n  {}",
            broken[..count.min(12)].join("\n  ")
        ));
    }
    let mut tally = tally_of(&record, failovers, &run);
    if plan.plants_faults {
        plant_all(&record, &mut tally.planted)?;
    }
    forget_keys(group, &tags, plan.number)?;
    Ok(tally)
}

fn tally_of(record: &Record, failovers: u64, run: &RoundState) -> Tally {
    let count = |wanted: fn(Outcome) -> bool| {
        let matching = record
            .history
            .iter()
            .filter(|event| event.outcome().is_some_and(wanted));
        matching.count() as u64
    };
    Tally {
        rounds: 1,
        failovers,
        acknowledged: count(|outcome| outcome >= Outcome::Acknowledged),
        confirmed: count(|outcome| outcome == Outcome::Confirmed),
        unknown: count(|outcome| outcome == Outcome::Unknown),
        longest_reply_ms: run.longest_reply_ms(),
        longest_outage_ms: run.longest_outage_ms(),
        longest_down_ms: run.longest_down_ms(),
        errors: run.errors(),
        planted: BTreeMap::new(),
    }
}

/// The events of a writer, and the tag and slot of its keys.
type WriterLog = ((String, u16), Vec<WriterEvent>);

/// Runs the writers, and the action meanwhile. Returns the number of failovers and the events.
fn run_writers(
    plan: &RoundPlan,
    group: &mut Group,
    run: &RoundState,
    rng: &mut Rng,
    action: &mut RoundAction<'_>,
) -> (Result<u64, String>, Vec<WriterLog>) {
    let (tags, kinds) = (group.tags.clone(), plan.kinds);
    let progress: Vec<AtomicU64> = (0..tags.len() * kinds.len()).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, progress) in progress.iter().enumerate() {
            let tag = tags[index / kinds.len()].clone();
            let (kind, work) = kinds[index % kinds.len()];
            let rng = rng.fork();
            threads.push(scope.spawn(move || {
                let keys = Keys {
                    prefix: format!("{}:{}", tag.0, run.number),
                    writer: index,
                };
                let mut log = Log {
                    events: Vec::new(),
                    progress,
                };
                if let Err(story) = work(&mut Session::new(run, tag.1, rng), &keys, &mut log) {
                    run.fail(format!("writer {index} ({kind}): {story}"));
                }
                (tag, log.events)
            }));
        }
        let progress = RoundProgress {
            run,
            kinds,
            counts: &progress,
        };
        let stop = run.stop_on_drop();
        let result = action(group, &progress, rng);
        drop(stop);
        let mut logs = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(log) => logs.push(log),
                Err(_) => run.fail("a writer panicked".to_owned()),
            }
        }
        (result, logs)
    })
}

/// Causes one or more failovers, each after some writes of every writer, and waits for writes after the last one.
fn fail_over(
    scenario: &FailoverScenario,
    group: &mut Group,
    progress: &RoundProgress<'_>,
    rng: &mut Rng,
) -> Result<u64, String> {
    // An unplanned failover is alone in its round: what was confirmed before a second one may be on too few nodes.
    let count = match scenario.guarantee {
        Guarantee::Acknowledged => rng.u64(1..5),
        Guarantee::Confirmed => 1,
    };
    let mut failovers = 0;
    for _ in 0..count {
        progress.wait()?;
        thread::sleep(Duration::from_millis(rng.u64(0..300)));
        let disturbance = rng.bool().then(|| rng.fork());
        *group.disturbance.lock().map_err(|error| error.to_string())? = disturbance;
        failovers += (scenario.fail_over)(group, rng)?;
        *group.disturbance.lock().map_err(|error| error.to_string())? = None;
    }
    progress.wait()?;
    Ok(failovers)
}

impl RoundProgress<'_> {
    /// Waits until every writer has had three more acknowledgements.
    ///
    /// # Errors
    /// Fails if a writer has failed, or if one has none within [`PROGRESS_BOUND`].
    pub fn wait(&self) -> Result<(), String> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let begin: Vec<u64> = self.counts.iter().map(count).collect();
        let deadline = Instant::now() + PROGRESS_BOUND;
        loop {
            if !self.run.is_running() {
                return Err(self.run.failures().first().cloned().unwrap_or_default());
            }
            let mut counts = begin.iter().zip(self.counts);
            let Some(late) = counts.position(|(begin, now)| count(now) < begin + 3) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                let (kind, seconds) = (self.kinds[late % self.kinds.len()].0, PROGRESS_BOUND.as_secs());
                return Err(format!(
                    "writer {late} ({kind}) had no write acknowledged within {seconds} s"
                ));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Deletes the keys of earlier rounds now and then, so that there is always some older data, but not more and more.
fn forget_keys(group: &Group, tags: &[(String, u16)], number: u64) -> Result<(), String> {
    if !number.is_multiple_of(6) {
        return Ok(());
    }
    let run = RoundState::new(group.router.clone(), number, 0, false);
    for (tag, slot) in tags {
        let mut session = Session::new(&run, *slot, Rng::with_seed(number));
        let keys = session.insist(&["KEYS", &format!("{tag}:*")])?;
        for key in keys.items() {
            session.insist(&["UNLINK", &key.text()])?;
        }
    }
    Ok(())
}
