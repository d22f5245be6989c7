//! ROLE, REPLICAOF, FAILOVER, and the replication commands that servers send to each other.

use weft_base::{ClientId, ThreadIndex};
use weft_resp::Protocol;
use weft_resp::number::parse_i64;

use crate::commands::context::{
    Binding, CommandResult, Context, NextStep, build_reply, count_late_error, exclusive, leased,
};
use crate::commands::error::CommandError;
use crate::net::client::{Client, ClientFlags, ReplicaHandshake};
use crate::observability::log;
use crate::replication::role;
use crate::replication::{
    CoordinatedFailover, CoordinatedFailoverState, Endpoint, LinkState, ReplicaInfo, ReplicaSyncState, ResumePosition,
};
use crate::state::{PermissionCheck, PermissionLoss, PrimaryThreadCommand, Server, SyncRequest};
use weft_config::id;
use weft_os::atomic::Ordering;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("failover", exclusive(failover).with_pause()),
    ("psync", exclusive(psync).with_exact_offset()),
    ("replconf", leased(replconf)),
    ("replicaof", exclusive(replicaof)),
    ("role", leased(role).with_exact_offset()),
    ("slaveof", exclusive(replicaof)),
    ("sync", leased(sync)),
];

fn role(ctx: &mut Context<'_, '_>) -> CommandResult {
    let repl = &ctx.server.replication;
    let state = repl.state();
    let reply = &mut ctx.reply;
    let Some(primary) = &state.primary else {
        let known = repl.replicas.infos();
        let online = |replica: &&ReplicaInfo| replica.is_online();
        reply.array(3);
        reply.bulk(b"master");
        reply.integer(repl.offset().get());
        reply.array(known.iter().filter(online).count());
        for replica in known.iter().filter(online) {
            reply.array(3);
            reply.bulk(replica.host.as_bytes());
            reply.bulk_integer(replica.port);
            reply.bulk_integer(replica.acknowledged_offset.get());
        }
        return Ok(());
    };
    reply.array(5);
    reply.bulk(b"slave");
    reply.bulk(primary.host.as_bytes());
    reply.integer(i64::from(primary.port));
    reply.bulk(state.phase.as_str().as_bytes());
    reply.integer(match state.phase {
        LinkState::Connected => repl.offset().get(),
        _ => -1,
    });
    Ok(())
}

fn sync(ctx: &mut Context<'_, '_>) -> CommandResult {
    if is_monitor(ctx.client) {
        return Ok(());
    }
    start_sync(ctx, None, false)
}

fn psync(ctx: &mut Context<'_, '_>) -> CommandResult {
    if is_monitor(ctx.client) {
        return Ok(());
    }
    let id = String::from_utf8_lossy(ctx.arg(1)).into_owned();
    if ctx.arg(3).eq_ignore_ascii_case(b"failover") {
        log::notice!("Failover request received for replid {id}.");
        start_takeover(ctx, &id)?;
    }
    let resume = parse_i64(ctx.arg(2)).map(|next_byte| ResumePosition { id, next_byte });
    start_sync(ctx, resume, true)
}

/// Returns `true` if a client is in MONITOR mode. As in Valkey, such a client gets no reply to SYNC and PSYNC.
fn is_monitor(client: &Client) -> bool {
    client.flags.contains(ClientFlags::MONITOR)
}

/// Makes this replica a primary, as its primary requested in a coordinated failover.
///
/// # Errors
/// If this server is not a replica, or has another replication id.
fn start_takeover(ctx: &mut Context<'_, '_>, id: &str) -> CommandResult {
    let repl = &ctx.server.replication;
    if !repl.is_replica() {
        return Err(CommandError::constant("ERR PSYNC FAILOVER can't be sent to a master."));
    }
    if !repl.state().history.id.eq_ignore_ascii_case(id) {
        return Err(CommandError::constant(
            "ERR PSYNC FAILOVER replid must match my replid.",
        ));
    }
    role::become_primary(ctx.server);
    log::notice!(
        "PRIMARY MODE enabled (failover request from '{}')",
        describe_client(ctx)
    );
    Ok(())
}

/// Moves the replica's connection to the thread that serves replicas, once its earlier replies are sent. What the
/// replica has sent is looked at only then ([`reply_instead_of_sync`]). PSYNC without a position to resume from has an
/// invalid offset.
///
/// # Errors
/// If this server cannot serve replicas now.
fn start_sync(ctx: &mut Context<'_, '_>, resume: Option<ResumePosition>, is_psync: bool) -> CommandResult {
    check_serves_replicas(ctx.server)?;
    let command = ctx.command.id as usize;
    let request = SyncRequest {
        has_invalid_offset: is_psync && resume.is_none(),
        resume,
        is_psync,
        command,
        disconnection_count: ctx.server.replication.replicas.disconnection_count(),
    };
    let check = with_sync_check(ctx.permission_check(), command);
    ctx.next_step = NextStep::Sync(Box::new((request, check)));
    Ok(())
}

/// Returns the reply to SYNC or PSYNC of a connection that stays with its worker, or `None` if the connection is to
/// move to the thread that serves replicas. `has_pending_output` is `true` if the client has not read its earlier
/// replies. An error is counted for the command, which counts as done. The caller has made the check of
/// [`with_sync_check`]: the order is that of Valkey's `syncCommand`.
pub fn reply_instead_of_sync(
    server: &Server,
    thread_index: ThreadIndex,
    client: &Client,
    request: &SyncRequest,
    has_pending_output: bool,
) -> Option<Vec<u8>> {
    if let Err(error) = check_sync_request(client, request, has_pending_output) {
        count_late_error(server, thread_index, request.command, error.code());
        return Some(build_reply(Protocol::Resp2, |reply| reply.error_bytes(&error.0)));
    }
    must_use_dual_channel(server, client, request)
        .then(|| build_reply(Protocol::Resp2, |reply| reply.simple("DUALCHANNELSYNC")))
}

/// Checks if a replica can be served as it requests.
///
/// # Errors
/// If its connection has pending output, if its capabilities do not suffice, or if its offset is invalid.
fn check_sync_request(client: &Client, request: &SyncRequest, has_pending_output: bool) -> CommandResult {
    if has_pending_output {
        // The thread that writes a dump to the socket has its own handle of it, and would not wait for this output.
        return Err(CommandError::constant(
            "ERR SYNC and PSYNC are invalid with pending output",
        ));
    }
    let handshake = client.handshake.as_deref();
    if handshake.is_some_and(|handshake| handshake.excludes_data && !handshake.supports_eof_mark) {
        return Err(CommandError::constant("ERR Filtered replica requires EOF capability"));
    }
    if request.has_invalid_offset {
        let name = handshake.cloned().unwrap_or_default().name(client.ip());
        log::notice!("Replica {name} asks for synchronization");
        log::warning!("Replica {name} asks for synchronization but with a wrong offset");
        return Err(CommandError::NOT_AN_INTEGER);
    }
    Ok(())
}

/// Returns `true` if a replica needs a full synchronisation, and can take it over a second connection.
fn must_use_dual_channel(server: &Server, client: &Client, request: &SyncRequest) -> bool {
    let (Some(handshake), Some(resume)) = (client.handshake.as_deref(), &request.resume) else {
        return false;
    };
    if !handshake.supports_dual_channel {
        return false;
    }
    let Err(refusal) = server.replication.check_partial_sync(resume) else {
        return false;
    };
    let name = handshake.name(client.ip());
    log::notice!("Replica {name} asks for synchronization");
    refusal.log(&name, &server.replication.replicas);
    log::notice!(
        "Dual channel replication: Replica {name} is capable of dual channel synchronization, and partial sync isn't \
         possible. Full sync will continue with dedicated RDB channel."
    );
    true
}

/// Checks if this server can serve replicas now.
///
/// # Errors
/// If it is failing over, or has no link to its primary.
fn check_serves_replicas(server: &Server) -> CommandResult {
    let repl = &server.replication;
    if repl.is_failing_over() {
        return Err(CommandError::constant("NOMASTERLINK Can't SYNC while failing over"));
    }
    if repl.is_replica() && repl.state().phase != LinkState::Connected {
        return Err(CommandError::constant(
            "NOMASTERLINK Can't SYNC while not connected with my master",
        ));
    }
    Ok(())
}

/// Extends the check of a client's permission: this server must still be able to serve replicas. The check is made
/// right before the client's connection leaves its worker. `command` is the index of the command, which counts as done
/// by then.
pub fn with_sync_check(mut permission: PermissionCheck, command: usize) -> PermissionCheck {
    Box::new(move |server, thread_index| {
        permission(server, thread_index)?;
        check_serves_replicas(server).map_err(|error| {
            count_late_error(server, thread_index, command, error.code());
            PermissionLoss::Denied(build_reply(Protocol::Resp2, |reply| reply.error_bytes(&error.0)))
        })
    })
}

fn replicaof(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.server.config.boolean(id::CLUSTER_ENABLED) {
        return Err(CommandError::constant("ERR REPLICAOF not allowed in cluster mode."));
    }
    if ctx.server.replication.failover().state != CoordinatedFailoverState::None {
        return Err(CommandError::constant("ERR REPLICAOF not allowed while failing over."));
    }
    if ctx.arg(1).eq_ignore_ascii_case(b"no") && ctx.arg(2).eq_ignore_ascii_case(b"one") {
        become_primary(ctx);
        ctx.reply.ok();
        return Ok(());
    }
    if ctx.client.flags.contains(ClientFlags::REPLICA) {
        return Err(CommandError::constant(
            "ERR Command is not valid when client is a replica.",
        ));
    }
    let port = parse_i64(ctx.arg(2))
        .and_then(|port| u16::try_from(port).ok())
        .ok_or(CommandError::constant("ERR Invalid master port"))?;
    let host = String::from_utf8_lossy(ctx.arg(1)).into_owned();
    let followed = ctx.server.replication.state().primary.clone();
    if followed.is_some_and(|primary| primary.host.eq_ignore_ascii_case(&host) && primary.port == port) {
        log::notice!(
            "REPLICAOF would result into synchronization with the primary we are already connected with. No operation \
             performed."
        );
        ctx.reply.simple("OK Already connected to specified master");
        return Ok(());
    }
    follow_primary(
        ctx,
        Endpoint {
            host: host.into(),
            port,
        },
    );
    ctx.reply.ok();
    Ok(())
}

fn follow_primary(ctx: &mut Context<'_, '_>, primary: Endpoint) {
    let (host, port) = (primary.host.clone(), primary.port);
    role::become_replica(ctx.server, primary, false);
    log::notice!(
        "REPLICAOF {host}:{port} enabled (user request from '{}')",
        describe_client(ctx)
    );
}

fn become_primary(ctx: &mut Context<'_, '_>) {
    if role::become_primary(ctx.server) {
        log::notice!("PRIMARY MODE enabled (user request from '{}')", describe_client(ctx));
    }
}

/// Returns the client's description for the log.
fn describe_client(ctx: &Context<'_, '_>) -> String {
    let hides_user_data = ctx.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
    ctx.client.short_log_line(hides_user_data)
}

fn replconf(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc().is_multiple_of(2) {
        return Err(CommandError::SYNTAX);
    }
    let args = ctx.args;
    let mut names_dump = false;
    for index in (1..args.len()).step_by(2) {
        let value = args.argument(index + 1);
        match args.argument(index).to_ascii_lowercase().as_slice() {
            b"ack" => return Ok(()),
            b"getack" => {
                if ctx.client.flags.contains(ClientFlags::PRIMARY) {
                    ctx.server.replication.ack_requested.store(true, Ordering::Release);
                }
                return Ok(());
            }
            option => record_option(ctx.server, ctx.client.handshake.get_or_insert_default(), option, value)?,
        }
        names_dump |= args.argument(index).eq_ignore_ascii_case(b"set-rdb-client-id");
    }
    let dump = ctx
        .client
        .handshake
        .as_deref()
        .and_then(|known| known.rdb_channel_client);
    let must_wait = names_dump && ctx.may_block && ctx.server.replication.do_links_sleep();
    if let Some(dump) = dump.filter(|_| must_wait) {
        // Tests stop the thread that serves replicas. The replica waits for that thread, and this worker does not.
        ctx.next_step = NextStep::AwaitBackground(Box::new(Box::new(move |requester| {
            Box::new(move |server, _| {
                let confirm = PrimaryThreadCommand::ConfirmDump { requester, dump };
                server.background.send_to_primary_thread(confirm);
            })
        })));
        return Ok(());
    }
    ctx.reply.ok();
    Ok(())
}

/// Records an option of REPLCONF in the replica's handshake.
///
/// # Errors
/// If the option is unknown or its value is invalid.
fn record_option(server: &Server, handshake: &mut ReplicaHandshake, option: &[u8], value: &[u8]) -> CommandResult {
    let is_on = || match parse_i64(value) {
        Some(number @ (0 | 1)) => Ok(number == 1),
        Some(_) => Err(CommandError::constant(
            "ERR value is out of range, value must between 0 and 1",
        )),
        None => Err(CommandError::NOT_AN_INTEGER),
    };
    match option {
        b"listening-port" => handshake.port = parse_i64(value).ok_or(CommandError::NOT_AN_INTEGER)?,
        b"ip-address" if value.len() < MAX_ADDRESS_LEN => {
            handshake.address = String::from_utf8_lossy(value).into_owned();
        }
        b"ip-address" => {
            return Err(CommandError::from_text(format!(
                "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                value.len()
            )));
        }
        // Unknown capabilities are ignored.
        b"capa" => match value.to_ascii_lowercase().as_slice() {
            b"eof" => handshake.supports_eof_mark = true,
            b"psync2" => handshake.supports_psync2 = true,
            b"dual-channel" => record_dual_channel(server, handshake),
            _ => {}
        },
        b"rdb-channel" => handshake.is_rdb_channel = is_on()?,
        b"set-rdb-client-id" => {
            let id = parse_i64(value).ok_or(CommandError::NOT_AN_INTEGER)?;
            let client = u64::try_from(id).ok().map(ClientId::new);
            let is_known = |client: &ClientId| {
                // While the links sleep, the thread that serves replicas checks the dump later.
                server.replication.do_links_sleep() || server.replication.replicas.awaited_dumps().contains(client)
            };
            let client = client.filter(is_known);
            handshake.rdb_channel_client =
                Some(client.ok_or_else(|| CommandError::from_text(format!("ERR Unrecognized RDB client id {id}")))?);
        }
        b"rdb-only" => handshake.wants_rdb_only = is_on()?,
        b"rdb-filter-only" => {
            (handshake.excludes_data, handshake.excludes_functions) = (true, true);
            for word in value.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
                if !word.eq_ignore_ascii_case(b"functions") {
                    return Err(CommandError::with_word(
                        "ERR Unsupported rdb-filter-only option: ",
                        word,
                        "",
                    ));
                }
                handshake.excludes_functions = false;
            }
        }
        b"set-cluster-node-id" => return record_cluster_node(server, handshake, value),
        b"version" => {
            handshake.version = parse_version(value)
                .ok_or_else(|| CommandError::with_word("ERR Unrecognized version format: ", value, ""))?;
        }
        _ => {
            return Err(CommandError::with_word(
                "ERR Unrecognized REPLCONF option: ",
                option,
                "",
            ));
        }
    }
    Ok(())
}

/// Records that a replica can receive the dump over a second connection, if the configuration allows it.
fn record_dual_channel(server: &Server, handshake: &mut ReplicaHandshake) {
    if !server.config.boolean(id::DUAL_CHANNEL_REPLICATION_ENABLED) {
        return;
    }
    match server.config.boolean(id::REPL_DISKLESS_SYNC) {
        true => handshake.supports_dual_channel = true,
        false => log::warning!("Dual channel capability ignored: repl-diskless-sync disabled"),
    }
}

/// Records the cluster node that a replica is.
///
/// # Errors
/// If cluster mode is off or the node is unknown.
fn record_cluster_node(server: &Server, handshake: &mut ReplicaHandshake, name: &[u8]) -> CommandResult {
    let Some(cluster) = &server.cluster else {
        return Err(CommandError::constant("ERR This instance has cluster support disabled"));
    };
    let node = cluster.lock(&server.config).node_by_id(name).map(|node| node.id);
    let node = node.ok_or_else(|| CommandError::with_word("ERR Unknown node ", name, ""))?;
    handshake.cluster_node = node.as_str().to_owned();
    Ok(())
}

/// The maximum length of a replica's address in bytes, plus one.
const MAX_ADDRESS_LEN: usize = 256;

/// Parses a version such as `1.2.3` to a number with one byte for each part.
fn parse_version(text: &[u8]) -> Option<u32> {
    let parts: Vec<u32> = text
        .split(|byte| *byte == b'.')
        .map(|part| {
            parse_i64(part)
                .and_then(|number| u8::try_from(number).ok())
                .map(u32::from)
        })
        .collect::<Option<_>>()?;
    match parts.as_slice() {
        [major, minor, patch] => Some(major << 16 | minor << 8 | patch),
        _ => None,
    }
}

fn failover(ctx: &mut Context<'_, '_>) -> CommandResult {
    let refused = CommandError::constant;
    if ctx.server.config.boolean(id::CLUSTER_ENABLED) {
        return Err(refused(
            "ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.",
        ));
    }
    let server = ctx.server;
    if ctx.argc() == 2 && ctx.arg(1).eq_ignore_ascii_case(b"abort") {
        if !role::abort_failover(server, "Failover manually aborted") {
            return Err(refused("ERR No failover in progress."));
        }
        ctx.reply.ok();
        return Ok(());
    }
    let asked = FailoverArguments::parse(ctx)?;
    if server.replication.failover().state != CoordinatedFailoverState::None {
        return Err(refused("ERR FAILOVER already in progress."));
    }
    if server.replication.is_replica() {
        return Err(refused("ERR FAILOVER is not valid when server is a replica."));
    }
    let known = server.replication.replicas.connected();
    if known.is_empty() {
        return Err(refused("ERR FAILOVER requires connected replicas."));
    }
    if asked.is_forced && (asked.timeout_ms.is_none() || asked.target.is_none()) {
        return Err(refused(
            "ERR FAILOVER with force option requires both a timeout and target HOST and IP.",
        ));
    }
    let mut target = None;
    if let Some((host, port)) = &asked.target {
        let meant = |replica: &&ReplicaInfo| replica.host.as_bytes() == &host[..] && replica.port == *port;
        let replica = known.iter().find(meant);
        let replica = replica.ok_or(refused("ERR FAILOVER target HOST and PORT is not a replica."))?;
        if replica.progress != ReplicaSyncState::Online {
            return Err(refused("ERR FAILOVER target replica is not online."));
        }
        target = Some(Endpoint {
            host: replica.host.as_str().into(),
            port: u16::try_from(*port).unwrap_or(0),
        });
    }
    let until_ms = asked
        .timeout_ms
        .map(|timeout_ms| ctx.now_ms.saturating_add(timeout_ms as u64));
    role::begin_failover(
        server,
        CoordinatedFailover {
            state: CoordinatedFailoverState::WaitForSync,
            target,
            until_ms,
            is_forced: asked.is_forced,
        },
    );
    ctx.reply.ok();
    Ok(())
}

/// The arguments of FAILOVER.
#[derive(Default)]
struct FailoverArguments {
    timeout_ms: Option<i64>,
    target: Option<(Vec<u8>, i64)>,
    is_forced: bool,
}

impl FailoverArguments {
    fn parse(ctx: &Context<'_, '_>) -> Result<FailoverArguments, CommandError> {
        let mut asked = FailoverArguments::default();
        let mut index = 1;
        let number = |index: usize| parse_i64(ctx.arg(index)).ok_or(CommandError::NOT_AN_INTEGER);
        while index < ctx.argc() {
            let left = ctx.argc() - index - 1;
            match ctx.arg(index).to_ascii_lowercase().as_slice() {
                b"timeout" if left >= 1 && asked.timeout_ms.is_none() => {
                    let timeout_ms = number(index + 1)?;
                    if timeout_ms <= 0 {
                        return Err(CommandError::constant("ERR FAILOVER timeout must be greater than 0"));
                    }
                    asked.timeout_ms = Some(timeout_ms);
                    index += 1;
                }
                b"to" if left >= 2 && asked.target.is_none() => {
                    asked.target = Some((ctx.arg(index + 1).to_vec(), number(index + 2)?));
                    index += 2;
                }
                b"force" if !asked.is_forced => asked.is_forced = true,
                _ => return Err(CommandError::SYNTAX),
            }
            index += 1;
        }
        Ok(asked)
    }
}
