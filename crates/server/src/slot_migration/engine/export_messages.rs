//! The answers and messages of the targets of exports.

use weft_base::clock::unix_ms;
use weft_resp::{ArgRange, Args, ParseOutcome, Parser, RequestLimits};

use super::export::start_streaming;
use super::state::{Export, MigrationEngine, message, message_name};
use crate::observability::log;
use crate::slot_migration::job::JobState;

/// The maximum length of an answer or a message in bytes.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// The reason of an end by a message that does not fit the state.
pub(super) const UNEXPECTED_TRANSITION: &str = "Unexpected state machine transition";
/// The reason of an end by a command that failed.
pub(super) const COMMAND_FAILED: &str =
    "Failed to process command during slot migration. Check logs for more information";

impl MigrationEngine {
    /// Receives from a target.
    pub(super) fn receive_from_target(&mut self, token: usize) {
        let has_token = |export: &Export| export.link.as_ref().is_some_and(|link| link.token == token);
        let Some(index) = self.exports.iter().position(has_token) else {
            return;
        };
        let tls = self.exports[index].link.as_ref().and_then(|link| link.tls.clone());
        let mut input = std::mem::take(&mut self.exports[index].input);
        let received = self.receive(token, tls.as_ref(), &mut input);
        let export = &mut self.exports[index];
        export.input = input;
        match received {
            Ok(count) => {
                export.client.net_input_bytes += count as u64;
                export.client.last_interaction_ms = unix_ms();
            }
            Err(error) => return self.on_target_lost(token, Some(&error)),
        }
        self.process_target_input(index);
    }

    fn process_target_input(&mut self, index: usize) {
        loop {
            let progress = self.exports[index].progress.clone();
            let state = self.with_job(&progress, |job| job.state);
            let has_advanced = match state {
                None => return,
                Some(JobState::ReadingAuthReply | JobState::ReadingEstablishReply) => {
                    let Some(line) = self.take_line(index) else {
                        break;
                    };
                    self.process_reply(index, state, &line);
                    true
                }
                Some(_) => self.process_next_message(index),
            };
            if !has_advanced {
                break;
            }
        }
        if self.exports[index].input.len() > MAX_MESSAGE_BYTES {
            let progress = self.exports[index].progress.clone();
            self.fail(&progress, "Response to establish job is larger than buffer limit");
        }
    }

    /// Removes the next line from the input of a target.
    fn take_line(&mut self, index: usize) -> Option<String> {
        let input = &mut self.exports[index].input;
        let end = input.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = input.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Processes the answer to AUTH or ESTABLISH.
    fn process_reply(&mut self, index: usize, state: Option<JobState>, line: &str) {
        let progress = self.exports[index].progress.clone();
        let is_auth = state == Some(JobState::ReadingAuthReply);
        if line.starts_with('-') || !line.starts_with('+') {
            let text = match is_auth {
                true => format!("Failed to AUTH to target node: {line}"),
                false => format!("Received error during handshake to target: {line}"),
            };
            return self.fail(&progress, &text);
        }
        self.with_job(&progress, |job| match is_auth {
            true => {
                log::notice!("Successfully authenticated slot migration {}", job.description());
                job.set_state(JobState::SendingEstablish);
            }
            false => job.set_state(JobState::WaitingToSnapshot),
        });
        if !is_auth {
            // The target sends acknowledgements from now on.
            self.send_to_target(index, message(b"ACK"));
        }
        self.is_urgent = true;
    }

    /// Processes the next message in the input of a target. Returns `false` if there is no complete one.
    fn process_next_message(&mut self, index: usize) -> bool {
        let export = &mut self.exports[index];
        let limits = RequestLimits {
            max_bulk_len: MAX_MESSAGE_BYTES as u64,
            is_authenticated: true,
        };
        let mut ranges: Vec<ArgRange> = Vec::new();
        let outcome = Parser::default().parse(&export.input, &mut ranges, &limits);
        let ParseOutcome::Request { consumed, argc } = outcome else {
            if !matches!(outcome, ParseOutcome::Incomplete { .. }) {
                let progress = export.progress.clone();
                log::warning!("The target of a slot migration has sent bytes that are not a message");
                self.fail(&progress, COMMAND_FAILED);
            }
            return false;
        };
        let request: Vec<u8> = export.input.drain(..consumed).collect();
        if argc > 0 {
            let words: Vec<Vec<u8>> = Args::new(&request, &ranges).iter().map(<[u8]>::to_vec).collect();
            export.client.commands += 1;
            export.client.last_command = "cluster|syncslots";
            self.process_message(index, &words);
        }
        true
    }

    fn process_message(&mut self, index: usize, words: &[Vec<u8>]) {
        let progress = self.exports[index].progress.clone();
        let is = |at: usize, name: &[u8]| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(name));
        if !is(0, b"cluster") || !is(1, b"syncslots") || words.len() < 3 {
            log::warning!("The target of a slot migration has sent a command that is not a message");
            return self.fail(&progress, COMMAND_FAILED);
        }
        match message_name(words).as_slice() {
            b"ack" => {
                self.with_job(&progress, |job| job.acknowledged_s = unix_ms() / 1000);
            }
            b"request-pause" => self.on_pause_requested(index),
            b"request-failover" => self.on_failover_requested(index),
            b"capa" => {}
            // Messages of sources.
            b"snapshot-eof" | b"paused" | b"failover-granted" => self.refuse_message(&progress),
            _ => {
                self.with_job(&progress, |job| {
                    log::warning!(
                        "Received unknown SYNCSLOTS subcommand from slot migration {}. Failing the migration.",
                        job.description()
                    );
                });
                self.fail(&progress, "Unknown SYNCSLOTS subcommand used");
            }
        }
    }

    fn on_pause_requested(&mut self, index: usize) {
        let progress = self.exports[index].progress.clone();
        // The target may have the whole snapshot before the snapshot's thread has ended.
        let is_snapshot_taken = self.exports[index].feed.is_snapshot_taken();
        let fits = self.with_job(&progress, |job| match job.state {
            JobState::Streaming => true,
            JobState::Snapshotting if is_snapshot_taken => {
                start_streaming(job);
                true
            }
            _ => {
                log::warning!(
                    "Received CLUSTER SYNCSLOTS REQUEST-PAUSE for slot migration {}, but the client was not streaming \
                     incremental updates. Failing migration.",
                    job.description()
                );
                false
            }
        });
        if fits == Some(false) {
            return self.fail(&progress, UNEXPECTED_TRANSITION);
        }
        self.exports[index].is_snapshotting = false;
        if !self.try_pause(index) {
            self.with_job(&progress, |job| job.set_state(JobState::WaitingToPause));
            self.is_urgent = true;
        }
    }

    fn on_failover_requested(&mut self, index: usize) {
        let progress = self.exports[index].progress.clone();
        let is_over = self.exports[index].is_pause_over();
        let refusal = self.with_job(&progress, |job| {
            let description = job.description();
            if job.state != JobState::FailoverPaused {
                log::warning!(
                    "Received CLUSTER SYNCSLOTS REQUEST-FAILOVER for slot migration {description}, but the client was \
                     not in the paused state. Failing migration."
                );
                return Some(UNEXPECTED_TRANSITION);
            }
            is_over.then(|| {
                log::warning!(
                    "Received CLUSTER SYNCSLOTS REQUEST-FAILOVER on slot migration {description}, but we are not \
                     paused. Denying failover."
                );
                "Unpaused before failover completed"
            })
        });
        match refusal {
            None => {}
            Some(None) => self.grant_failover(index),
            Some(Some(text)) => self.fail(&progress, text),
        }
    }
}
