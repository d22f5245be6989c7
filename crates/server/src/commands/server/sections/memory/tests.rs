//! Tests that the parts of the memory section add up.

use super::*;
use crate::start::create_idle_server;
use weft_base::ReplicationOffset;
use weft_config::Config;

#[test]
fn overhead_and_data_are_the_used_memory() {
    let mut figures = MemoryFigures {
        server_overhead_bytes: 60,
        ..MemoryFigures::default()
    };
    figures.allocator.used = 100;
    for (client_bytes, overhead, dataset) in [(0, 60, 40), (30, 90, 10), (40, 100, 0), (1000, 100, 0)] {
        let figures = figures.with_clients(client_bytes);
        let shown = (figures.overhead_bytes(), figures.dataset_bytes());
        assert_eq!(shown, (overhead, dataset), "{client_bytes}");
    }
}

#[test]
fn the_backlog_and_the_copies_of_it_are_overhead_once() {
    const IN_FLIGHT_BYTES: u64 = 5000;
    let server = create_idle_server(Config::defaults());
    let before = MemoryFigures::from_server(&server);
    let replicas = &server.replication.replicas;
    replicas.backlog().open(ReplicationOffset::ZERO);
    assert!(replicas.backlog().append(&[0; 100_000], 1 << 20).is_some());
    replicas.raise_in_flight_bytes(IN_FLIGHT_BYTES);
    let figures = MemoryFigures::from_server(&server);
    let held = replicas.backlog_bytes();
    assert!(held >= 100_000);
    assert_eq!((figures.backlog_bytes, figures.excess_backlog_bytes), (held, 0));
    assert_eq!(figures.replica_stream_bytes(), IN_FLIGHT_BYTES);
    let grown = figures.server_overhead_bytes - before.server_overhead_bytes;
    assert_eq!(grown, held + IN_FLIGHT_BYTES);
}

#[test]
fn the_memory_of_replicas_is_a_part_of_the_overhead() {
    let server = create_idle_server(Config::defaults());
    let mut figures = MemoryFigures {
        server_overhead_bytes: 60_000,
        backlog_bytes: 10_000,
        excess_backlog_bytes: 4000,
        replica_output_bytes: 500,
        loading_stream_bytes: 7,
        ..MemoryFigures::default()
    };
    figures.allocator.used = 100_000;
    let clients = ClientFigures {
        memory_bytes: 9000,
        allocated_bytes: 300,
        replica_bytes: 20,
        ..ClientFigures::default()
    };
    let mut lines = InfoLines(Vec::new());
    memory_lines(&server, &figures, &clients, &mut lines);
    let text = String::from_utf8(lines.0).expect("INFO is text");
    for line in [
        "used_memory:100000",
        "used_memory_overhead:60320",
        "used_memory_dataset:39680",
        "mem_replication_backlog:10000",
        "mem_total_replication_buffers:14007",
        "mem_clients_slaves:4520",
        "mem_clients_normal:9000",
    ] {
        assert!(text.lines().any(|shown| shown == line), "no {line} in\n{text}");
    }
}
