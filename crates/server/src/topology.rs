//! Changes of who has which slot: from the cluster's state to the view that commands go by, and to the file.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::cluster::state::State;
use crate::cluster::view::View;
use crate::config::id;
use crate::keyspace::slot_drop;
use crate::keyspace::{Exclusive, Seat};
use crate::observe::log;
use crate::shutdown::Shutdown;
use crate::state::{Message, Server};

/// Between two looks whether a script still runs on a thread of its own.
const RETRY: Duration = Duration::from_millis(1);

/// Keys that slots have here, for who has closed the gate.
pub struct Keys<'a, 'p>(&'a Exclusive<'p>);

impl Keys<'_, '_> {
    /// Keys of a slot, in all databases.
    pub fn of_slot(&self, slot: u16) -> usize {
        slot_drop::count(self.0.cell(usize::from(slot)))
    }
}

/// Changes the state while no command runs, puts the new view into place and writes the file. The reply may be sent
/// after that.
pub fn change<R>(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    change: impl FnOnce(&mut State, &Keys<'_, '_>) -> R,
) -> R {
    let running = &server.scripts.running;
    while !running.try_keep_out() {
        std::thread::sleep(RETRY);
    }
    let all = seat.exclusive();
    let result = {
        let mut state = cluster.lock(&server.config);
        let result = change(&mut state, &Keys(&all));
        state.update_health(weft_reactor::unix_ms());
        result
    };
    let before = put_in_place(cluster);
    drop(all);
    running.let_in();
    save(server, cluster);
    tell(server, cluster, before);
    cluster.wake_bus();
    result
}

/// Puts into place what has changed without a command; whether it was possible: not while a script runs on a thread of
/// its own.
pub fn publish(server: &Server, cluster: &Cluster, seat: &mut Seat) -> bool {
    let running = &server.scripts.running;
    if !running.try_keep_out() {
        return false;
    }
    let all = seat.exclusive();
    let before = put_in_place(cluster);
    drop(all);
    running.let_in();
    tell(server, cluster, before);
    true
}

fn put_in_place(cluster: &Cluster) -> Option<Arc<View>> {
    cluster.next_view().map(|view| cluster.put_in_place(view))
}

/// Writes the file if it is not up to date. A node that cannot keep what it knows must not go on as if it did.
pub fn save(server: &Server, cluster: &Cluster) {
    if cluster.save(false).is_err() && server.config.choice(id::CLUSTER_CONFIG_SAVE_BEHAVIOR) == "sync" {
        log::warning!("Fatal: can't update cluster config file.");
        server.request_shutdown(Shutdown {
            save: crate::shutdown::Save::Never,
            now: true,
            force: true,
            ..Shutdown::default()
        });
    }
}

/// Has clients told that wait for keys, or listen to channels, of slots that have left.
fn tell(server: &Server, cluster: &Cluster, before: Option<Arc<View>>) {
    let Some(before) = before else {
        return;
    };
    let view = cluster.view();
    let went_down = before.up && !view.up;
    if went_down || view.lost_since(&before).next().is_some() {
        for worker in &server.workers {
            worker.send(Message::SlotsLeft);
        }
    }
}
