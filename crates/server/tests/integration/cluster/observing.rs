//! Tests what the log and INFO of a node say about changes of the cluster and about slots that migrate.

use super::failover::{KEY, Node, weft_with};
use super::migration::{migrate, set_debug, wait_for_state};
use super::wait_until;

fn number(node: &mut Node, field: &str) -> u64 {
    node.client.info(field).parse().expect("a number")
}

/// Returns what a node has logged.
pub fn log_of(node: &mut Node) -> String {
    let path = node.server().directory.join("log");
    std::fs::read_to_string(path).expect("reads the log")
}

/// Returns the client in the line of the log that begins like this.
fn requester(node: &mut Node, line: &str) -> String {
    let log = log_of(node);
    let (_, rest) = log
        .split_once(&format!("{line} (user request from '"))
        .unwrap_or_else(|| panic!("{line} is not in the log:\n{log}"));
    rest.split('\'').next().unwrap_or_default().to_owned()
}

#[test]
fn the_log_names_the_clients_that_change_the_cluster() {
    let mut nodes = weft_with(3, &["--logfile", "log"]);
    let [second, third] = [1, 2].map(|index: usize| (nodes[index].port, nodes[index].id.clone()));
    let hidden = requester(&mut nodes[0], &format!("Cluster meet 127.0.0.1:{}", second.0));
    assert!(hidden.starts_with("id="), "{hidden}");
    assert!(
        hidden.contains(" laddr=127.0.0.1:") && hidden.contains(" name=*redacted* user=*redacted* lib-name="),
        "{hidden}"
    );
    let show = ["CONFIG", "SET", "hide-user-data-from-log", "no"];
    assert_eq!(nodes[0].call(&show), "OK");
    assert_eq!(nodes[0].call(&["CLIENT", "SETNAME", "admin"]), "OK");
    for repetition in 0..2 {
        // The second time, it is forgotten already.
        assert_eq!(nodes[0].call(&["CLUSTER", "FORGET", &third.1]), "OK", "{repetition}");
    }
    let line = format!("Cluster forget {}", third.1);
    let shown = requester(&mut nodes[0], &line);
    assert!(shown.contains(" name=admin user=default lib-name="), "{shown}");
    assert_eq!(log_of(&mut nodes[0]).matches(&line).count(), 1);
}

#[test]
fn info_counts_the_bytes_of_migrations() {
    const VALUE_BYTES: u64 = 4 << 20;
    let mut nodes = weft_with(3, &["--logfile", "log"]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    // What arrives during a pause is executed after it.
    assert_eq!(nodes[1].call(&["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    let value = "v".repeat(VALUE_BYTES as usize);
    assert_eq!(nodes[0].call(&["SET", KEY, &value]), "OK");
    wait_until("the value has arrived", || {
        number(&mut nodes[1], "mem_cluster_slot_import") >= VALUE_BYTES
    });
    assert!(number(&mut nodes[1], "total_net_cluster_slot_import_bytes") >= VALUE_BYTES);
    assert!(number(&mut nodes[0], "total_net_cluster_slot_export_bytes") >= VALUE_BYTES);
    for node in &mut nodes[..2] {
        assert_eq!(node.call(&["CONFIG", "RESETSTAT"]), "OK");
    }
    assert!(number(&mut nodes[1], "total_net_cluster_slot_import_bytes") < VALUE_BYTES);
    assert!(number(&mut nodes[0], "total_net_cluster_slot_export_bytes") < VALUE_BYTES);
    assert_eq!(nodes[1].call(&["CLIENT", "UNPAUSE"]), "OK");
    wait_until("the value is stored", || {
        number(&mut nodes[1], "mem_cluster_slot_import") == 0
    });
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    for index in [1, 0] {
        wait_for_state(&mut nodes[index], "success");
        assert!(log_of(&mut nodes[index]).contains(" finished. State: success, Message: none"));
    }
    assert_eq!(nodes[1].call(&["STRLEN", KEY]), VALUE_BYTES.to_string());
}
