//! The last act of some runs: SHUTDOWN while clients send, wait for lists, run endless scripts and are paused. The
//! threads of the server must end soon.

use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread::{self, JoinHandle};

use crate::bound::Bound;
use crate::client::{Client, ClientEnd, connect, spawn};
use crate::mix::OperationSource;
use crate::scenario::RunPlan;

/// The bound within which the server must have ended. It gives slow clients half a second.
const MAX_END: Bound = Bound::of_ms(1500);

/// Scripts without an end.
const SCRIPTS: [&str; 4] = [
    "while true do end",
    "while true do redis.call('GET',KEYS[1]) end",
    "redis.call('SET',KEYS[1],'w') while true do redis.call('GET',KEYS[1]) end",
    "redis.call('SET',KEYS[1],'w') while true do end",
];

/// The request, and what it meets.
struct Plan {
    request: &'static str,
    clients: usize,
    blocked: usize,
    scripts: Vec<String>,
    is_paused: bool,
    /// `busy-reply-threshold`, in milliseconds.
    busy_threshold_ms: Option<u32>,
}

impl Plan {
    fn draw(random: &mut Rng) -> Plan {
        let scripts: Vec<String> = (0..random.usize(..6).saturating_sub(2))
            .map(|_| {
                // Words of requests are separated by blanks.
                let script = SCRIPTS[random.usize(..SCRIPTS.len())].replace(' ', "\t");
                format!("EVAL {script} 1 s{}", random.usize(..4))
            })
            .collect();
        let busy_threshold_ms = random.bool().then(|| random.u32(1..5));
        // Beside an overdue script, a server accepts nothing else.
        let requests = match scripts.is_empty() && busy_threshold_ms.is_none() {
            true => &["SHUTDOWN NOSAVE", "SHUTDOWN NOSAVE NOW", "SHUTDOWN SAVE", "SHUTDOWN"][..],
            false => &["SHUTDOWN NOSAVE"],
        };
        Plan {
            request: requests[random.usize(..requests.len())],
            clients: random.usize(..4),
            blocked: random.usize(..3),
            scripts,
            is_paused: random.u32(..3) == 0,
            busy_threshold_ms,
        }
    }
}

/// Shuts the server down, and waits for its end. Returns how long that took.
///
/// # Errors
/// If the server does not end in time, or in another way than it should.
pub fn end_server(server: JoinHandle<bool>, random: &mut Rng, run: &RunPlan) -> Result<String, String> {
    let plan = Plan::draw(random);
    let mut waiting = Vec::new();
    let mut clients = Vec::new();
    let mut send = |request: &str| -> Result<(), String> {
        let mut client = connect("primary.sock", 1)?;
        client.request(request).map_err(|end| format!("{request}: {end:?}"))?;
        waiting.push(client);
        Ok(())
    };
    if let Some(threshold_ms) = plan.busy_threshold_ms {
        let request = format!("CONFIG SET busy-reply-threshold {threshold_ms}");
        let answer = connect("primary.sock", 1)?.ask_text(&request);
        answer.map_err(|end| format!("{request}: {end:?}"))?;
    }
    if run.has_replica && !plan.scripts.is_empty() {
        // Otherwise the server waits for the writes of scripts for so long, to send them to the replica.
        let request = "CONFIG SET shutdown-timeout 0";
        let answer = connect("primary.sock", 1)?.ask_text(request);
        answer.map_err(|end| format!("{request}: {end:?}"))?;
    }
    for index in 0..plan.clients {
        let source = OperationSource::new(run.mix.clone(), index as u64);
        let seed = random.u64(..);
        clients.push(spawn("last-client", move || send_until_closed(seed, source)));
    }
    for _ in 0..plan.blocked {
        send("BLPOP never 0")?;
    }
    let has_pause_first = random.bool();
    if plan.is_paused && has_pause_first {
        send("CLIENT PAUSE 100000 WRITE")?;
    }
    for script in &plan.scripts {
        send(script)?;
    }
    if plan.is_paused && !has_pause_first {
        send("CLIENT PAUSE 100000 WRITE")?;
    }
    thread::sleep(Duration::from_micros(random.u64(..5000)));
    let start = scheduler::figures();
    let mut requester = connect("primary.sock", 1)?;
    requester
        .request(plan.request)
        .map_err(|end| format!("{}: {end:?}", plan.request))?;
    let describe = || {
        format!(
            "{} beside {} clients, {} blocked ones, scripts {:?}, paused {}, busy-reply-threshold {:?}",
            plan.request, plan.clients, plan.blocked, plan.scripts, plan.is_paused, plan.busy_threshold_ms
        )
    };
    while !server.is_finished() {
        MAX_END
            .check(&start)
            .map_err(|passed| format!("the server has not ended {passed} after {}", describe()))?;
        thread::sleep(Duration::from_millis(2));
    }
    let nanoseconds = scheduler::figures().now_ns - start.now_ns;
    if !server.join().map_err(|_| "the server panicked".to_owned())? {
        return Err(format!("the server has not ended in order after {}", describe()));
    }
    expect_no_reply(requester, plan.request)?;
    // A socket that no worker had taken over yet is closed with the process only.
    drop((waiting, clients));
    Ok(format!(
        "{} ended the server in {} us",
        plan.request,
        nanoseconds / 1000
    ))
}

/// Sends pipelines until the connection ends.
fn send_until_closed(seed: u64, mut source: OperationSource) {
    let mut random = Rng::with_seed(seed);
    // The server may have gone already.
    let Ok(mut client) = connect("primary.sock", random.u64(..)) else {
        return;
    };
    loop {
        match client.run(source.draw_pipeline(&mut random)) {
            Ok(()) => thread::sleep(Duration::from_micros(random.u64(..500))),
            Err(_) => return,
        }
    }
}

fn expect_no_reply(mut client: Client, request: &str) -> Result<(), String> {
    match client.receive_message() {
        Err(ClientEnd::Closed) => Ok(()),
        other => Err(format!("{request} ended the server, and its client got {other:?}")),
    }
}
