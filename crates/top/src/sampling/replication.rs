//! The replication, from INFO.

use crate::model::{PrimaryLinkFigures, ReplicaRow, ReplicationFigures};
use crate::sampling::info::{InfoFields, InfoPair, part, part_count};

/// The largest number of replicas that are kept.
const MAX_REPLICAS: usize = 1000;

/// Computes the figures of the replication.
///
/// # Errors
/// Fails if INFO says nothing of it.
pub fn figures(pair: &InfoPair<'_>) -> Result<ReplicationFigures, String> {
    let info = pair.later;
    let Some(role) = info.text("role") else {
        return Err("INFO of this server has no section replication".to_owned());
    };
    let offset = info.count("master_repl_offset");
    Ok(ReplicationFigures {
        role: role.to_owned(),
        offset,
        replication_id: info.text("master_replid").map(str::to_owned),
        primary: primary_link(info),
        replicas: replicas(info, offset),
        backlog_size_bytes: info.count("repl_backlog_size"),
        backlog_used_bytes: info.count("repl_backlog_histlen"),
        stream_bytes_per_s: pair.rate("master_repl_offset"),
        full_syncs: info.count("sync_full"),
        partial_syncs: info.count("sync_partial_ok"),
        partial_syncs_refused: info.count("sync_partial_err"),
    })
}

fn primary_link(info: &InfoFields) -> Option<PrimaryLinkFigures> {
    let host = info.text("master_host")?;
    let port = info.text("master_port").unwrap_or("?");
    let read = info.count("slave_read_repl_offset");
    let applied = info.count("slave_repl_offset");
    Some(PrimaryLinkFigures {
        address: format!("{host}:{port}"),
        status: info.text("master_link_status").unwrap_or("unknown").to_owned(),
        last_io_s: info
            .text("master_last_io_seconds_ago")
            .and_then(|text| text.parse().ok()),
        sync_in_progress: info.flag("master_sync_in_progress").unwrap_or(false),
        behind_bytes: read.zip(applied).map(|(read, applied)| read.saturating_sub(applied)),
    })
}

/// Parses the lines `slave0:ip=..,port=..,state=..,offset=..,lag=..`.
fn replicas(info: &InfoFields, offset: Option<u64>) -> Vec<ReplicaRow> {
    let mut rows: Vec<(u64, ReplicaRow)> = Vec::new();
    for (index, value) in info.with_prefix("slave").take(MAX_REPLICAS) {
        let Ok(index) = index.parse() else { continue };
        let text = |name: &str| part(value, name).unwrap_or("?");
        let acknowledged = part_count(value, "offset");
        let row = ReplicaRow {
            address: format!("{}:{}", text("ip"), text("port")),
            state: text("state").to_owned(),
            offset: acknowledged,
            behind_bytes: offset
                .zip(acknowledged)
                .map(|(own, acknowledged)| own.saturating_sub(acknowledged)),
            lag_s: part_count(value, "lag"),
        };
        rows.push((index, row));
    }
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}
