//! Tests of takeovers that are given up after they were stored.

use std::ffi::OsString;
use std::path::PathBuf;

use super::*;
use weft_cluster::node::{Node, NodeFlags};
use weft_config::{Config, StartAction};

/// The cluster configuration file of a test; it is removed at the end.
pub(crate) struct NodesConf(PathBuf);

impl NodesConf {
    pub(crate) fn create() -> NodesConf {
        let name = format!("weft-takeover-{}-{:x}.conf", std::process::id(), fastrand::u64(..));
        NodesConf(std::env::temp_dir().join(name))
    }

    /// Returns `true` if the file says that this node owns the slots 3 and 4.
    fn claims_slots(&self) -> bool {
        let text = std::fs::read_to_string(&self.0).expect("is there");
        let mine = text.lines().find(|line| line.contains("myself"));
        mine.expect("this node is in it").ends_with(" 3-4")
    }
}

impl Drop for NodesConf {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn start_node(file: &NodesConf) -> Arc<Server> {
    let path = file.0.display().to_string();
    let options = [
        "weft-server",
        "--cluster-enabled",
        "yes",
        "--cluster-config-file",
        &path,
    ];
    let arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
    let config = match StartAction::parse(&arguments) {
        Ok(StartAction::RunServer(command_line)) => Config::load(&command_line).expect("the options are fine"),
        other => panic!("{other:?}"),
    };
    crate::start::create_idle_server(config)
}

#[test]
fn a_takeover_that_is_stored_too_late_leaves_no_trace() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut slots = SlotSet::default();
    for slot in [3, 4] {
        slots.set(SlotIndex::from_index(slot), true);
    }
    let source = Node::new(NodeId::random(), NodeFlags::PRIMARY, 1);
    let source_id = source.id;
    change_state(&server, cluster, &mut seat, |state, keys| {
        state.nodes.insert(source_id, source);
        for slot in slots.iter() {
            assert!(state.add_slot(source_id, slot));
            keys.all.header(slot.index()).set_importing(true);
        }
    });
    let check = |state: &ClusterState| state.owner_of_slots(&slots).ok_or("no owner");
    let mut take_over = |confirm: &dyn Fn(bool) -> Result<(), &'static str>| {
        let takeover = Takeover {
            slots: &slots,
            check: &check,
            confirm,
        };
        try_take_over(&server, cluster, &mut seat, &takeover)
    };
    let is_mine = || slots.iter().all(|slot| cluster.view().is_mine(slot));
    let is_importing = || {
        slots
            .iter()
            .all(|slot| server.keyspace.slots.header(slot.index()).is_importing())
    };
    let late = take_over(&|is_saved| {
        assert!(
            is_saved && file.claims_slots() && !is_mine(),
            "it is stored at this point"
        );
        Err("too late")
    });
    assert_eq!(late, Some(Err("too late")));
    assert!(!is_mine() && is_importing() && !file.claims_slots());
    assert_eq!(cluster.lock(&server.config).owner_of_slots(&slots), Some(source_id));
    // A script on a script thread is not waited for.
    assert!(server.scripting.running.try_begin_on_script_thread());
    assert_eq!(take_over(&|_| Ok(())), None);
    server.scripting.running.end_on_script_thread();
    assert_eq!(take_over(&|_| Ok(())), Some(Ok(())));
    assert!(is_mine() && !is_importing() && file.claims_slots());
    drop(seat);
}

#[test]
fn a_shutdown_that_must_not_wait_gives_a_replica_little_time_to_answer() {
    let seconds = Duration::from_secs;
    let steps = |timeouts: HandoverTimeouts| (timeouts.takeovers, timeouts.acknowledgement, timeouts.notice);
    let (takeovers, acknowledgement, notice) = steps(HandoverTimeouts::new(Duration::ZERO));
    assert!(takeovers.max(acknowledgement).max(notice) <= Duration::from_millis(100));
    assert_eq!(
        steps(HandoverTimeouts::new(seconds(10))),
        (seconds(5), seconds(10), seconds(1))
    );
    let report_period = seconds(1);
    assert!(HandoverTimeouts::new(seconds(1)).acknowledgement > report_period);
}
