//! Runs the code of libraries for FUNCTION LOAD and FUNCTION RESTORE, in some cases before the command itself runs
//! ([`crate::net::library_loads`]).

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_base::{ParkedClient, RoleEpoch};
use weft_resp::Args;

use crate::commands::context::Context;
use crate::net::client::ClientFlags;
use crate::net::library_loads::{LibraryLoads, LibrarySource, LoadedLibraries};
use crate::observability::slow_library::SlowLibraryReport;
use crate::state::{BackgroundJob, Message, Server};
use weft_config::id;
use weft_os::time::Instant;
use weft_rdb::{dump_payload, functions};
use weft_scripting::{Library, load_library, repeat_library_load};

/// Returns what a command loads; `None` for a command that loads no libraries.
pub fn source_of_command(full_name: &str, args: Args<'_>) -> Option<LibrarySource> {
    match full_name {
        "function|load" => Some(LibrarySource::Code(args.argument(args.len() - 1).to_vec())),
        "function|restore" => Some(LibrarySource::Payload(args.argument(2).to_vec())),
        _ => None,
    }
}

/// Returns `true` if a command loads libraries.
pub fn loads_libraries(full_name: &str) -> bool {
    matches!(full_name, "function|load" | "function|restore")
}

/// The error of a command that the end of the process has stopped.
const PROCESS_ENDS: &[u8] = b"ERR The server is about to end";

/// Runs the code of a library. Returns the library, or an error text.
type LoadLibrary<'l> = dyn FnMut(&[u8]) -> Result<Arc<Library>, Vec<u8>> + 'l;

/// The libraries of a source whose code runs one after the other. A payload may have very many of them.
pub struct SourceLoad {
    /// The code that has not run yet, or the error of a source that is not valid.
    codes: Result<VecDeque<Vec<u8>>, Vec<u8>>,
    libraries: Vec<Arc<Library>>,
    /// The time that the code has taken so far.
    time: Duration,
}

impl SourceLoad {
    /// Decodes a source, whose code is to run.
    pub fn new(server: &Server, source: &LibrarySource) -> Self {
        SourceLoad {
            codes: match source {
                LibrarySource::Code(code) => Ok(VecDeque::from([code.clone()])),
                LibrarySource::Payload(payload) => decode_payload(server, payload),
            },
            libraries: Vec::new(),
            time: Duration::ZERO,
        }
    }

    /// Runs the code of the next library, which may take half a second. Returns the libraries once all of them are
    /// loaded, or an error.
    pub fn load_next(&mut self, server: &Server) -> Option<LoadedLibraries> {
        let start = Instant::now();
        let loaded = self.load_next_with(&mut |code| load_library(&server.scripting, code));
        self.time += start.elapsed();
        loaded
    }

    fn load_next_with(&mut self, load: &mut LoadLibrary<'_>) -> Option<LoadedLibraries> {
        let codes = match &mut self.codes {
            Ok(codes) => codes,
            Err(error) => return Some(Err(std::mem::take(error))),
        };
        if let Some(code) = codes.pop_front() {
            match load(&code) {
                Ok(library) => self.libraries.push(library),
                Err(text) => return Some(Err(with_code(&text))),
            }
        }
        codes.is_empty().then(|| Ok(std::mem::take(&mut self.libraries)))
    }
}

fn with_code(text: &[u8]) -> Vec<u8> {
    [b"ERR ", text].concat()
}

/// Returns the code of each library in the payload of FUNCTION RESTORE.
fn decode_payload(server: &Server, payload: &[u8]) -> Result<VecDeque<Vec<u8>>, Vec<u8>> {
    let relaxed = server.config.choice(id::RDB_VERSION_CHECK) == "relaxed";
    if !dump_payload::is_valid(payload, relaxed) {
        return Err(b"ERR DUMP payload version or checksum are wrong".to_vec());
    }
    let codes = functions::load(payload).map_err(|reason| with_code(reason.as_bytes()))?;
    Ok(codes.into())
}

/// Runs the code of a source. Each library may take half a second.
fn load_source(server: &Server, source: &LibrarySource) -> LoadedLibraries {
    load_each(server, source, &mut |code| load_library(&server.scripting, code))
}

/// Runs the code of a source that another server, or another process, has loaded, without a limit. Returns `None` if
/// the process is about to end, or once `is_obsolete` returns `true`.
fn repeat_source(
    server: &Server,
    source: &LibrarySource,
    is_obsolete: impl Fn() -> bool + Clone + 'static,
) -> Option<LoadedLibraries> {
    let mut is_stopped = false;
    let loaded = load_each(server, source, &mut |code| {
        let loaded = repeat_library_load(&server.scripting, code, is_obsolete.clone());
        is_stopped |= loaded.is_none();
        loaded.unwrap_or_else(|| Err(Vec::new()))
    });
    (!is_stopped).then_some(loaded)
}

fn load_each(server: &Server, source: &LibrarySource, load: &mut LoadLibrary<'_>) -> LoadedLibraries {
    let mut libraries = SourceLoad::new(server, source);
    loop {
        if let Some(loaded) = libraries.load_next_with(load) {
            return loaded;
        }
    }
}

/// Returns the libraries of a client's command that runs now. Returns `None` if the command has to run again, once its
/// thread has run the code.
pub fn take_libraries(ctx: &mut Context<'_, '_>, source: LibrarySource) -> Option<LoadedLibraries> {
    let flags = ctx.client.flags;
    let prepared = ctx.client.library_loads.as_mut().and_then(|loads| loads.take(&source));
    if prepared.is_some() {
        return prepared;
    }
    // In exclusive mode, and in a script, the command could not run again.
    let can_run_again = ctx.pass.is_some() && !flags.contains(ClientFlags::SCRIPT);
    if flags.contains(ClientFlags::PRIMARY) && can_run_again {
        let wanted = VecDeque::from([source]);
        ctx.client.library_loads = Some(Box::new(LibraryLoads::new(wanted)));
        return None;
    }
    // What a primary or a file has must not be refused because this machine is slower. The source of a slot migration
    // keeps its data if it is refused.
    let is_repeated = flags.intersects(ClientFlags::PRIMARY.union(ClientFlags::REPLAY));
    if weft_modules::module::engines::any_exist() {
        // The code may be for an engine of a module, which is called at home.
        let server = ctx.server.clone();
        let loaded = ctx.call_modules(|| match is_repeated {
            true => repeat_source(&server, &source, || false).unwrap_or_else(|| Err(PROCESS_ENDS.to_vec())),
            false => load_source(&server, &source),
        });
        return Some(loaded.unwrap_or_else(|error| Err(error.0.into_owned())));
    }
    if !is_repeated {
        return Some(load_source(ctx.server, &source));
    }
    let report = Rc::new(SlowLibraryReport::new("A replayed command"));
    let is_obsolete = move || {
        report.write_if_due();
        false
    };
    Some(repeat_source(ctx.server, &source, is_obsolete).unwrap_or_else(|| Err(PROCESS_ENDS.to_vec())))
}

/// Runs the code of all sources, for the thread of a primary's stream. It is outside of the gate. The sources that are
/// left are those that the end of the process, or of the role epoch, has stopped. Code that takes long is reported in
/// the log, since the stream stands still meanwhile.
pub fn prepare_for_stream(server: &Arc<Server>, loads: &mut LibraryLoads, role_epoch: RoleEpoch) {
    let of_epoch = server.clone();
    let report = Rc::new(SlowLibraryReport::new("The replication stream of the primary"));
    let is_obsolete = move || {
        report.write_if_due();
        of_epoch.replication.role_epoch() != role_epoch
    };
    while let Some(source) = loads.next_wanted() {
        let start = Instant::now();
        let Some(loaded) = repeat_source(server, source, is_obsolete.clone()) else {
            return;
        };
        loads.add(loaded, start.elapsed());
    }
}

/// Lets background threads run the code of all sources for the transaction of a parked client. Returns `false` if the
/// threads have ended.
pub fn send_preparation(server: &Server, loads: Box<LibraryLoads>, requester: ParkedClient) -> bool {
    server
        .background
        .long_commands
        .send(preparation_job(loads, None, requester))
}

/// Creates a job that runs the code of one library, and sends the job for the next one: other work of the queue does
/// not wait for all of them. `begun` is the first source of those whose code has not run, if some of it has.
fn preparation_job(mut loads: Box<LibraryLoads>, begun: Option<SourceLoad>, requester: ParkedClient) -> BackgroundJob {
    Box::new(move |server, _| {
        let is_gone = server.clients.directory.worker_of(requester.client).is_none();
        if is_gone || server.scripting.running.is_shutting_down() {
            return;
        }
        let mut unfinished = None;
        if let Some(source) = loads.next_wanted() {
            let mut load = begun.unwrap_or_else(|| SourceLoad::new(server, source));
            match load.load_next(server) {
                Some(loaded) => loads.add(loaded, load.time),
                None => unfinished = Some(load),
            }
        }
        if loads.next_wanted().is_some() {
            let next = preparation_job(loads, unfinished, requester);
            // Sending fails only while the process ends.
            let _ = server.background.long_commands.send(next);
            return;
        }
        server.worker(requester.worker).send(Message::LibrariesPrepared {
            client: requester.client,
            park_id: requester.park_id,
            loads,
        });
    })
}

#[cfg(test)]
mod tests;
