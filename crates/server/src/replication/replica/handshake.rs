//! The replication handshake, from the replica's side: the requests before the stream, and the primary's answers.
//!
//! ```text
//!   PING ─▶ AUTH ─▶ REPLCONF listening-port, ip-address, capa, version ─▶ PSYNC id offset
//!                                                     +CONTINUE [id] ◀─┤
//!                                                +FULLRESYNC id offset ◀─┘
//! ```

use weft_base::{ClientId, ReplicationOffset};
use weft_resp::number::parse_i64;

use super::link::{LinkFailure, PrimaryLink};
use crate::observability::log;
use crate::replication::CoordinatedFailoverState;
use weft_config::{COMPATIBLE_VERSION, Config, id};

/// The answer of a primary to PSYNC.
pub enum PsyncReply {
    /// A partial synchronisation, with the new replication ID if it has changed.
    Continue(Option<String>),
    /// A full synchronisation.
    FullResync {
        /// The replication ID of the primary.
        id: String,
        /// The replication offset of the dump.
        offset: ReplicationOffset,
    },
    /// A full synchronisation whose dump uses another connection.
    DualChannelSync,
}

/// The replication position of a dump that uses a separate connection.
pub struct DumpPosition {
    /// The replication ID.
    pub id: String,
    /// The replication offset of the dump.
    pub offset: ReplicationOffset,
    /// The id of that connection's client at the primary.
    client: ClientId,
}

fn lossy(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// Performs the handshake up to PSYNC.
///
/// # Errors
/// When the link breaks, or the primary rejects the connection.
pub fn perform_handshake(link: &mut PrimaryLink) -> Result<(), LinkFailure> {
    link.send(&[b"PING"])?;
    let pong = link.read_line()?;
    let wants_login = [&b"-NOAUTH"[..], b"-NOPERM", b"-ERR operation not permitted"];
    if !pong.starts_with(b"+") && !wants_login.iter().any(|error| pong.starts_with(error)) {
        return Err(LinkFailure::Other(format!(
            "Error reply to PING from primary: '{}'",
            lossy(&pong)
        )));
    }
    log::notice!("Primary replied to PING, replication can continue...");
    authenticate(link)?;
    let server = link.server().clone();
    let config = &server.config;
    send_replconf(
        link,
        &[b"listening-port", announced_port(config).as_bytes()],
        "REPLCONF listening-port",
    )?;
    let address = config.text(id::REPLICA_ANNOUNCE_IP);
    if !address.is_empty() {
        send_replconf(link, &[b"ip-address", &address], "REPLCONF ip-address")?;
    }
    let capabilities: [&[u8]; 6] = [b"capa", b"eof", b"capa", b"psync2", b"capa", b"dual-channel"];
    let known = match config.boolean(id::DUAL_CHANNEL_REPLICATION_ENABLED) {
        true => 6,
        false => 4,
    };
    send_replconf(link, &capabilities[..known], "REPLCONF capa")?;
    send_replconf(link, &[b"version", COMPATIBLE_VERSION.as_bytes()], "REPLCONF version")?;
    match &server.cluster {
        // A primary that shuts down may select this node to take over.
        Some(cluster) => {
            let node = cluster.lock(config).myself;
            send_replconf(
                link,
                &[b"set-cluster-node-id", node.as_bytes()],
                "REPLCONF set-cluster-node-id",
            )
        }
        None => Ok(()),
    }
}

/// Returns the port that the primary reports for this replica.
fn announced_port(config: &Config) -> String {
    let port = match config.integer(id::REPLICA_ANNOUNCE_PORT) {
        0 if config.boolean(id::TLS_REPLICATION) && config.integer(id::TLS_PORT) != 0 => config.integer(id::TLS_PORT),
        0 => config.integer(id::PORT),
        announced => announced,
    };
    port.to_string()
}

/// Requests a dump over a connection used only for the dump. Returns the position of the dump.
///
/// # Errors
/// When the link breaks, or the primary provides no such dump.
pub fn request_dump(link: &mut PrimaryLink) -> Result<DumpPosition, LinkFailure> {
    authenticate(link)?;
    let server = link.server().clone();
    let config = &server.config;
    let port = announced_port(config);
    let options: [&[u8]; 11] = [
        b"REPLCONF",
        b"capa",
        b"eof",
        b"rdb-only",
        b"1",
        b"rdb-channel",
        b"1",
        b"listening-port",
        port.as_bytes(),
        b"version",
        COMPATIBLE_VERSION.as_bytes(),
    ];
    send_required(
        link,
        &options,
        "Server does not support sync with offset, dual channel sync approach cannot be used",
    )?;
    let address = config.text(id::REPLICA_ANNOUNCE_IP);
    if !address.is_empty() {
        let told: [&[u8]; 3] = [b"REPLCONF", b"ip-address", &address];
        send_required(link, &told, "Primary rejected REPLCONF ip-address")?;
    }
    link.send_raw(b"SYNC\r\n")?;
    let line = link.read_nonempty_line()?;
    parse_endoff(&line).ok_or_else(|| {
        LinkFailure::Other(format!(
            "Dual channel replication: Received unexpected $ENDOFF response: {}",
            lossy(&line)
        ))
    })
}

/// Parses `$ENDOFF:offset id db client`.
fn parse_endoff(line: &[u8]) -> Option<DumpPosition> {
    let words: Vec<&[u8]> = line.strip_prefix(b"$ENDOFF:")?.split(|byte| *byte == b' ').collect();
    let [offset, id, _db, client] = words.as_slice() else {
        return None;
    };
    Some(DumpPosition {
        id: is_replication_id(id).then(|| lossy(id))?,
        offset: parse_i64(offset).and_then(ReplicationOffset::from_stated)?,
        client: ClientId::new(u64::try_from(parse_i64(client)?).ok()?),
    })
}

/// Requests, over the link, the stream that follows a dump on another connection.
///
/// # Errors
/// When the link breaks, or the primary does not have the stream.
pub fn request_stream_after_dump(link: &mut PrimaryLink, place: &DumpPosition) -> Result<(), LinkFailure> {
    let client = place.client.to_string();
    let words: [&[u8]; 3] = [b"REPLCONF", b"set-rdb-client-id", client.as_bytes()];
    send_required(link, &words, "Primary does not understand REPLCONF identify")?;
    let wanted = place.offset.next_byte().to_string();
    log::notice!(
        "Dual channel replication: Trying a partial resynchronization using main channel (request {}:{wanted}).",
        place.id
    );
    link.server().replication.pause_if_requested();
    link.send(&[b"PSYNC", place.id.as_bytes(), wanted.as_bytes()])?;
    let line = link.read_nonempty_line()?;
    if line != b"+CONTINUE" && !line.starts_with(b"+CONTINUE ") {
        return Err(LinkFailure::Other(format!(
            "Dual channel replication: Aborting dual channel sync. Main channel psync result {}",
            lossy(&line)
        )));
    }
    log::notice!(
        "Dual channel replication: PRIMARY <-> REPLICA sync: Primary accepted a Partial Resynchronization, RDB load in \
         background."
    );
    Ok(())
}

/// Sends the primary a request that it must accept.
fn send_required(link: &mut PrimaryLink, request: &[&[u8]], refused: &str) -> Result<(), LinkFailure> {
    link.send(request)?;
    let answer = link.read_nonempty_line()?;
    match answer.starts_with(b"-") {
        true => Err(LinkFailure::Other(format!(
            "Dual channel replication: {refused}: {}",
            lossy(&answer)
        ))),
        false => Ok(()),
    }
}

fn authenticate(link: &mut PrimaryLink) -> Result<(), LinkFailure> {
    let server = link.server().clone();
    let (user, password) = (server.config.text(id::PRIMARYUSER), server.config.text(id::PRIMARYAUTH));
    if password.is_empty() {
        return Ok(());
    }
    match user.is_empty() {
        true => link.send(&[b"AUTH", &password])?,
        false => link.send(&[b"AUTH", &user, &password])?,
    }
    let answer = link.read_line()?;
    if answer.starts_with(b"-") {
        return Err(LinkFailure::Other(format!(
            "Unable to AUTH to PRIMARY: {}",
            lossy(&answer)
        )));
    }
    Ok(())
}

/// Sends the primary a REPLCONF. A rejection is only logged.
fn send_replconf(link: &mut PrimaryLink, words: &[&[u8]], what: &str) -> Result<(), LinkFailure> {
    let mut request: Vec<&[u8]> = vec![b"REPLCONF"];
    request.extend_from_slice(words);
    link.send(&request)?;
    let answer = link.read_line()?;
    if answer.starts_with(b"-") {
        log::notice!("(Non critical) Primary does not understand {what}: {}", lossy(&answer));
    }
    Ok(())
}

/// Sends PSYNC: requests the stream from this server's offset if there is one, a full synchronisation otherwise.
///
/// # Errors
/// When the link breaks, or the primary cannot provide a stream at the moment.
pub fn send_psync(link: &mut PrimaryLink) -> Result<PsyncReply, LinkFailure> {
    let server = link.server().clone();
    let (history, resumable) = {
        let state = server.replication.state();
        (state.history.id.clone(), state.resumable)
    };
    let (id, offset) = if resumable {
        let offset = server.replication.offset().next_byte().to_string();
        log::notice!("Trying a partial resynchronization (request {history}:{offset}).");
        (history, offset)
    } else {
        log::notice!("Partial resynchronization not possible (no cached primary)");
        ("?".to_owned(), "-1".to_owned())
    };
    let hands_over = server.replication.failover().state == CoordinatedFailoverState::InProgress;
    let mut request: Vec<&[u8]> = vec![b"PSYNC", id.as_bytes(), offset.as_bytes()];
    if hands_over {
        request.push(b"FAILOVER");
    }
    link.send(&request)?;
    let line = link.read_nonempty_line()?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    match words.as_slice() {
        [b"+FULLRESYNC", id, offset] if is_replication_id(id) => {
            match parse_i64(offset).and_then(ReplicationOffset::from_stated) {
                Some(offset) => Ok(PsyncReply::FullResync { id: lossy(id), offset }),
                None => Err(unexpected_reply(&line)),
            }
        }
        [b"+DUALCHANNELSYNC"] => Ok(PsyncReply::DualChannelSync),
        [b"+CONTINUE"] if resumable => Ok(PsyncReply::Continue(None)),
        [b"+CONTINUE", id] if resumable && is_replication_id(id) => Ok(PsyncReply::Continue(Some(lossy(id)))),
        [b"-NOMASTERLINK" | b"-LOADING", ..] => Err(LinkFailure::Other(format!(
            "Primary is currently unable to PSYNC but should be in the future: {}",
            lossy(&line)
        ))),
        _ => Err(unexpected_reply(&line)),
    }
}

fn unexpected_reply(line: &[u8]) -> LinkFailure {
    LinkFailure::Other(format!("Unexpected reply to PSYNC from primary: {}", lossy(line)))
}

fn is_replication_id(word: &[u8]) -> bool {
    word.len() == 40 && word.iter().all(u8::is_ascii_alphanumeric)
}
