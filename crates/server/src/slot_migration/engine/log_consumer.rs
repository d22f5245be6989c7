//! Passes the writes to exported slots from the propagation log to the feeds of the exports.

use std::sync::Arc;
use std::time::Duration;

use weft_base::slots::cluster_slot;
use weft_base::{LogSequence, SlotIndex};
use weft_command_table::keys;
use weft_command_table::registry::Lookup;
use weft_resp::number::parse_i64;
use weft_resp::{ArgRange, Args, ParseOutcome, Parser, RequestLimits};

use crate::commands::registry;
use crate::propagation::{LogConsumer, LogTarget};
use crate::state::Server;

/// The name of the consumer in the propagation log.
pub const CONSUMER_NAME: &str = "slot exports";

/// The consumer of the propagation log, on the log thread.
pub struct ExportLogConsumer {
    server: Arc<Server>,
    parser: Parser,
    ranges: Vec<ArgRange>,
    db: u32,
    /// Set if a feed has got something since the last flush.
    has_appended: bool,
}

impl ExportLogConsumer {
    /// Creates the consumer.
    pub fn new(server: Arc<Server>) -> Self {
        ExportLogConsumer {
            server,
            parser: Parser::default(),
            ranges: Vec::new(),
            db: 0,
            has_appended: false,
        }
    }

    /// Passes one command to the feeds to whose slots it belongs. A command without keys belongs to none: transactions
    /// have no meaning for keys that no client sees.
    fn append_command(&mut self, args: Args<'_>, command: &[u8]) {
        if args.argument(0).eq_ignore_ascii_case(b"select") {
            let db = (args.len() > 1).then(|| parse_i64(args.argument(1))).flatten();
            self.db = db.and_then(|db| u32::try_from(db).ok()).unwrap_or(self.db);
            return;
        }
        let Some(slot) = slot_of_command(args) else {
            return;
        };
        for feed in self.server.slot_migrations.feeds.lock().iter() {
            if feed.contains(slot) {
                feed.append_write(self.db, command);
                self.has_appended = true;
            }
        }
    }
}

impl LogConsumer for ExportLogConsumer {
    fn target(&self) -> LogTarget {
        LogTarget::REPLICAS
    }

    fn append(&mut self, _offset: u64, bytes: &[u8]) {
        let limits = RequestLimits {
            max_bulk_len: i64::MAX as u64,
            is_authenticated: true,
        };
        let mut at = 0;
        while at < bytes.len() {
            let mut ranges = std::mem::take(&mut self.ranges);
            ranges.clear();
            let outcome = self.parser.parse(&bytes[at..], &mut ranges, &limits);
            let ParseOutcome::Request { consumed, argc } = outcome else {
                unreachable!("the propagation log consists of whole commands");
            };
            let command = &bytes[at..at + consumed];
            if argc > 0 {
                self.append_command(Args::new(command, &ranges), command);
            }
            self.ranges = ranges;
            at += consumed;
        }
    }

    fn flush(&mut self, _sequence: LogSequence) -> Option<Duration> {
        if std::mem::take(&mut self.has_appended) {
            self.server.background.wake_migration_thread();
        }
        None
    }
}

/// Returns the slot of a command's first key.
fn slot_of_command(args: Args<'_>) -> Option<SlotIndex> {
    let Lookup::Found(command) = registry().lookup(&args) else {
        return None;
    };
    let mut first = None;
    keys::walk_keys(command.spec, &args, &mut |position: keys::KeyPosition| {
        first.get_or_insert(cluster_slot(args.argument(position.index)));
    });
    first
}
