//! The events of the server that modules subscribe to.
//!
//! An event whose data the module may look at meanwhile (a database that is emptied, a key that is removed, the end of
//! a command) is delivered where it happens, on the home worker in exclusive mode. All others are jobs of the home
//! worker. They are sent before the client that has caused the event gets its reply. So a module that a client calls
//! after that has had the event.

mod event;
mod layout;

pub use event::{
    AsyncLoadingStep, CommandResult, EventKind, KINDS, KeyRemoval, LoadingStep, PersistenceStep, ReplicationInfo,
    ReportedEnd, ServerEvent, SlotMigrationStep,
};
pub use layout::{ClientLayout, EventHeader, VERSION as LAYOUT_VERSION};

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use weft_os::atomic::{AtomicU32, AtomicUsize, Ordering};
use weft_os::sync::Mutex;

use super::Module;
use super::home_commands::{self, HomeReason};
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::objects::key::{KeyMode, ModuleKey};
use crate::objects::string::ModuleString;
use crate::session::keys::SessionKey;
use crate::session::{self, Session, with_session};
use layout::{
    AuthenticationLayout, CommandTexts, ConfigLayout, CronLayout, FlushLayout, KeyLayout, ModuleLayout, ProgressLayout,
    ReplicationTexts, SlotMigrationLayout, SlotRangeLayout, SwapLayout, VERSION, c_string,
};

/// A function that gets events (`ValkeyModuleEventCallback`).
pub type EventCallback = unsafe extern "C" fn(*mut Context, EventHeader, u64, *mut c_void);

/// A subscription. A module has at most one to each kind.
struct Subscription {
    module: Arc<Module>,
    kind: EventKind,
    version: u64,
    /// The address of the function, which the module may replace.
    callback: AtomicUsize,
}

static SUBSCRIPTIONS: Mutex<Vec<Arc<Subscription>>> = Mutex::new(Vec::new());
/// The kinds that some module has subscribed to, as bits.
static KINDS_SUBSCRIBED: AtomicU32 = AtomicU32::new(0);

/// Returns `true` if some module has subscribed to events of this kind.
#[inline]
pub fn is_subscribed(kind: EventKind) -> bool {
    KINDS_SUBSCRIBED.load(Ordering::Acquire) & (1 << kind as u32) != 0
}

/// Returns `true` if some module has subscribed to anything.
pub fn are_any() -> bool {
    KINDS_SUBSCRIBED.load(Ordering::Acquire) != 0
}

/// Returns `true` if some module looks at databases that are emptied or swapped.
pub fn are_databases_observed() -> bool {
    is_subscribed(EventKind::FlushDb) || is_subscribed(EventKind::SwapDb)
}

/// Returns the kind with a number, if events of it exist.
pub fn kind_of_number(number: u64) -> Option<EventKind> {
    EventKind::ALL.into_iter().find(|kind| *kind as u64 == number)
}

/// Publishes what is subscribed to.
fn update(subscriptions: &[Arc<Subscription>]) {
    let kinds = subscriptions
        .iter()
        .fold(0, |kinds, one| kinds | (1 << one.kind as u32));
    KINDS_SUBSCRIBED.store(kinds, Ordering::Release);
    let ends = [
        EventKind::CommandSucceeded,
        EventKind::CommandFailed,
        EventKind::CommandRejected,
        EventKind::CommandDenied,
    ];
    home_commands::set(HomeReason::CommandResults, ends.into_iter().any(is_subscribed));
    home_commands::set(HomeReason::RemovedKeys, is_subscribed(EventKind::Key));
    if let Some(host) = session::host() {
        host.note_server_event_subscriptions();
    }
}

/// Subscribes a module to events of a kind, or replaces the function that gets them. Without a function, it ends the
/// subscription.
pub fn subscribe(module: &Arc<Module>, kind: EventKind, version: u64, callback: Option<EventCallback>) {
    let mut subscriptions = SUBSCRIPTIONS.lock();
    let index = subscriptions
        .iter()
        .position(|one| one.kind == kind && Arc::ptr_eq(&one.module, module));
    match (index, callback) {
        (Some(index), Some(callback)) => subscriptions[index]
            .callback
            .store(callback as usize, Ordering::Release),
        (Some(index), None) => {
            subscriptions.remove(index);
            update(&subscriptions);
        }
        (None, None) => {}
        (None, Some(callback)) => {
            let is_first = !subscriptions.iter().any(|one| Arc::ptr_eq(&one.module, module));
            subscriptions.push(Arc::new(Subscription {
                module: module.clone(),
                kind,
                version,
                callback: AtomicUsize::new(callback as usize),
            }));
            update(&subscriptions);
            drop(subscriptions);
            if is_first {
                let owner = module.clone();
                module.add_cleanup(move || end_all(&owner));
            }
        }
    }
}

/// Ends all subscriptions of a module.
fn end_all(module: &Arc<Module>) {
    let mut subscriptions = SUBSCRIPTIONS.lock();
    subscriptions.retain(|one| !Arc::ptr_eq(&one.module, module));
    update(&subscriptions);
}

/// Calls the subscribers of an event with a session.
pub fn deliver(session: &mut dyn Session, event: &ServerEvent) {
    if is_subscribed(event.number().0) {
        with_session(session, || deliver_here(event));
    }
}

/// Has the home worker call the subscribers of an event, soon.
pub fn send(kind: EventKind, event: impl FnOnce() -> ServerEvent) {
    if is_subscribed(kind)
        && let Some(host) = session::host()
    {
        let event = event();
        host.run_with_session_soon(Box::new(move |session| deliver(session, &event)));
    }
}

/// Calls the subscribers of an event with the session that this thread has.
pub fn deliver_here(event: &ServerEvent) {
    let (kind, sub_event) = event.number();
    let subscriptions = SUBSCRIPTIONS.lock().clone();
    for subscription in subscriptions.iter().filter(|one| one.kind == kind) {
        let module = &subscription.module;
        let is_own =
            matches!(event, ServerEvent::ModuleChanged { module: changed, .. } if Arc::ptr_eq(changed, module));
        if module.is_unloaded() || is_own {
            continue;
        }
        // A callback before this one may have ended the subscription.
        if !SUBSCRIPTIONS.lock().iter().any(|one| Arc::ptr_eq(one, subscription)) {
            continue;
        }
        invoke::name_module(module, || {
            let context = Context::new(module.clone(), caller_of(event));
            context.reply_state.discard();
            with_data(event, &context, |data| {
                let header = EventHeader {
                    kind: kind as u64,
                    version: subscription.version,
                };
                // SAFETY: the address is that of a function of the module, which is loaded. The context and the data
                // live until the function has returned.
                unsafe {
                    let callback = subscription.callback.load(Ordering::Acquire);
                    let callback = std::mem::transmute::<usize, EventCallback>(callback);
                    callback(context.as_pointer(), header, sub_event, data);
                }
            });
        });
    }
}

/// Returns for whom the module acts.
fn caller_of(event: &ServerEvent) -> Caller {
    let mut caller = Caller::none();
    match event {
        ServerEvent::ClientChanged { client, .. } => {
            caller.client_id = client.id;
            caller.db = u32::from(client.db);
        }
        ServerEvent::Flush { db: Some(db), .. } | ServerEvent::KeyRemoved { db, .. } => caller.db = *db,
        _ => {}
    }
    caller
}

/// Calls `run` with the data of an event in the layout of modules.
fn with_data(event: &ServerEvent, context: &Context, run: impl FnOnce(*mut c_void)) {
    match event {
        ServerEvent::RoleChanged(info) => {
            let texts = ReplicationTexts::of(info);
            pass(texts.layout(info), run);
        }
        ServerEvent::Flush { is_sync, db, .. } => pass(
            FlushLayout {
                version: VERSION,
                is_sync: i32::from(*is_sync),
                db: db.map_or(-1, |db| db as i32),
            },
            run,
        ),
        ServerEvent::ClientChanged { client, .. } => pass(ClientLayout::of(client), run),
        ServerEvent::CronLoop { hz } => pass(
            CronLayout {
                version: VERSION,
                hz: *hz,
            },
            run,
        ),
        ServerEvent::ModuleChanged { module, .. } => pass(
            ModuleLayout {
                version: VERSION,
                name: module.c_name().as_ptr(),
                module_version: module.version.load(Ordering::Relaxed),
            },
            run,
        ),
        ServerEvent::LoadingProgress { hz, progress, .. } => pass(
            ProgressLayout {
                version: VERSION,
                hz: *hz,
                progress: *progress,
            },
            run,
        ),
        ServerEvent::Swapped(first, second) => pass(
            SwapLayout {
                version: VERSION,
                first: *first as i32,
                second: *second as i32,
            },
            run,
        ),
        ServerEvent::ConfigChanged(names) => with_config(names, run),
        ServerEvent::KeyRemoved { db, key, .. } => with_key(context, *db, key, run),
        ServerEvent::Authenticated { .. } => with_authentication(event, run),
        ServerEvent::SlotMigration { name, ranges, .. } => with_migration(name, ranges, run),
        ServerEvent::CommandEnded(result) => with_result(result, run),
        ServerEvent::Persistence(_)
        | ServerEvent::Loading(_)
        | ServerEvent::Shutdown
        | ServerEvent::ReplicaChanged { .. }
        | ServerEvent::PrimaryLinkChanged { .. }
        | ServerEvent::ForkChild { .. }
        | ServerEvent::AsyncLoading(_)
        | ServerEvent::EventLoop { .. } => run(std::ptr::null_mut()),
    }
}

/// Calls `run` with a pointer to `data`.
fn pass<T>(mut data: T, run: impl FnOnce(*mut c_void)) {
    run(std::ptr::from_mut(&mut data).cast());
}

fn with_config(names: &[String], run: impl FnOnce(*mut c_void)) {
    let names: Vec<_> = names.iter().map(|name| c_string(name.as_str())).collect();
    let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let layout = ConfigLayout {
        version: VERSION,
        count: pointers.len() as u32,
        names: pointers.as_ptr(),
    };
    pass(layout, run);
}

/// Calls `run` with an open key. Without the key, or without a session, it is not called.
fn with_key(context: &Context, db: u32, name: &[u8], run: impl FnOnce(*mut c_void)) {
    let opened = session::current(|session| {
        let identity = session.locate_key(db, name, false)?;
        let key = SessionKey {
            name,
            identity: &identity,
            has_value: true,
        };
        Some((identity, session.stored_kind(key)))
    });
    let Some((identity, kind)) = opened.flatten() else {
        return;
    };
    let string = ModuleString::create(name);
    // SAFETY: the context outlives the key, and the string lives until it is released.
    unsafe {
        let mut key = ModuleKey::new(context.as_pointer(), string, identity, KeyMode::READ, kind);
        pass(
            KeyLayout {
                version: VERSION,
                key: &raw mut key,
            },
            run,
        );
        drop(key);
        ModuleString::release(string);
    }
}

fn with_authentication(event: &ServerEvent, run: impl FnOnce(*mut c_void)) {
    let ServerEvent::Authenticated {
        client_id,
        user,
        module,
        is_granted,
    } = event
    else {
        return;
    };
    let user = c_string(user.as_slice());
    let module = module.as_ref().map(|module| c_string(&**module));
    let layout = AuthenticationLayout {
        version: VERSION,
        client_id: *client_id,
        user: user.as_ptr(),
        module: module.as_ref().map_or(std::ptr::null(), |module| module.as_ptr()),
        result: i32::from(!is_granted),
    };
    pass(layout, run);
}

fn with_migration(name: &[u8; 40], ranges: &[(u16, u16)], run: impl FnOnce(*mut c_void)) {
    let ranges: Vec<SlotRangeLayout> = ranges
        .iter()
        .map(|(first, last)| SlotRangeLayout {
            first: i32::from(*first),
            last: i32::from(*last),
        })
        .collect();
    let mut terminated = [0; 41];
    terminated[..40].copy_from_slice(name);
    let layout = SlotMigrationLayout {
        version: VERSION,
        name: terminated,
        ranges: ranges.as_ptr(),
        count: ranges.len() as u32,
    };
    pass(layout, run);
}

fn with_result(result: &CommandResult, run: impl FnOnce(*mut c_void)) {
    let context = match &result.end {
        ReportedEnd::Rejected(error) => error.as_deref(),
        ReportedEnd::Denied(_, object) => object.as_deref(),
        ReportedEnd::Succeeded | ReportedEnd::Failed => None,
    };
    let texts = CommandTexts::of(result, context);
    pass(texts.layout(result), run);
}

#[cfg(test)]
mod tests;
