//! Tests of imports that begin.

use super::*;
use crate::start::create_idle_server;
use weft_config::Config;

#[test]
fn an_import_fails_if_its_source_is_closed_on_its_way() {
    for has_arrived in [true, false] {
        let server = create_idle_server(Config::defaults());
        let nodes = JobNodes {
            source: NodeId::random(),
            target: NodeId::random(),
            other_name: String::new(),
        };
        let slot = SlotIndex::from_index(5);
        let job = MigrationJob::new([1; 40], JobKind::Import, vec![(slot, slot)], Some(nodes));
        let progress = job.progress.clone();
        server.slot_migrations.lock().add(job);
        drop(ArrivingImport {
            server: server.clone(),
            progress: progress.clone(),
            has_arrived,
        });
        assert_eq!(progress.has_ended(), !has_arrived);
        let jobs = server.slot_migrations.lock();
        let states: Vec<JobState> = jobs.iter().map(|job| job.state).collect();
        let expected = match has_arrived {
            true => JobState::WaitingForAck,
            false => JobState::CleaningUp,
        };
        assert_eq!(states, [expected]);
    }
}
