//! Tests of the choice of sections and of summing up the workers' figures.

use super::*;
use crate::net::client::{BufferFigures, Client};
use weft_base::{ClientId, ThreadIndex};

fn section_names(words: &[&str]) -> Vec<&'static str> {
    parse_sections(words.iter().map(|word| word.as_bytes()))
        .iter()
        .map(|section| section.name())
        .collect()
}

#[test]
fn sections_are_listed_once_in_a_fixed_order() {
    assert_eq!(section_names(&["clients", "SERVER", "server"]), ["server", "clients"]);
    assert_eq!(section_names(&["nosuch"]), [""; 0]);
    assert_eq!(section_names(&[]), section_names(&["default"]));
    assert_eq!(
        section_names(&["all", "server", "everything"]).len(),
        InfoSection::ALL.len()
    );
    assert!(!section_names(&[]).contains(&"commandstats"));
    assert!(!section_names(&["everything"]).contains(&"debug"));
    assert_eq!(section_names(&["Debug"]), ["debug"]);
    assert!(section_names(&["default", "commandstats"]).contains(&"commandstats"));
}

#[test]
fn figures_of_workers_are_summed() {
    let part = |numbers: [u64; 8]| numbers.into_iter().flat_map(u64::to_le_bytes).collect::<WorkerAnswer>();
    let total = sum_client_figures(&[part([1, 4, 1 << 40, 8, 9, 7, 3, 1]), part([2, 3, 5, 4, 2, 6, 300, 2])]);
    assert_eq!(
        total,
        ClientFigures {
            blocked: 3,
            watching: 7,
            memory_bytes: (1 << 40) + 5,
            allocated_bytes: 12,
            replica_bytes: 11,
            max_input_bytes: 7,
            max_output_bytes: 300,
            closing: 3,
        }
    );
}

/// A worker whose clients have these flags, and the memory that [`buffers`] returns.
struct ClientsWithFlags<'a>(&'a [ClientFlags]);

fn buffers() -> BufferFigures {
    BufferFigures {
        total: 1 << 20,
        allocated: 100,
        ..BufferFigures::default()
    }
}

impl ClientVisitor for ClientsWithFlags<'_> {
    fn visit_clients(&mut self, visit: &mut dyn FnMut(&mut Client, BufferFigures)) {
        for flags in self.0 {
            let mut client = Client::new(ClientId::new(1), 0, ThreadIndex::FIRST);
            client.flags.insert(*flags);
            visit(&mut client, buffers());
        }
    }

    fn unblock_client(&mut self, _: ClientId, _: bool) -> bool {
        false
    }
}

/// CLIENT LIST shows what each replica misses of the stream as its output. All of them miss the same bytes of the
/// backlog, whose memory counts once.
#[test]
fn the_stream_that_replicas_miss_is_no_memory_of_theirs() {
    let flags = [
        ClientFlags::REPLICA,
        ClientFlags::REPLICA,
        ClientFlags::PRIMARY,
        ClientFlags::empty(),
        ClientFlags::SLOT_EXPORT,
    ];
    let figures = sum_client_figures(&[encode_client_figures(&mut ClientsWithFlags(&flags))]);
    let memory = (figures.replica_bytes, figures.memory_bytes, figures.allocated_bytes);
    assert_eq!(memory, (200, 2 << 20, 200));
}
