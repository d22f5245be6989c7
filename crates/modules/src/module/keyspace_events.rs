//! The keyspace events that modules subscribe to.
//!
//! A module gets an event while the command runs that has caused it, on the home worker: what it writes is a part of
//! the command's unit. Subscriptions change only in exclusive mode, so a command finds the same ones from its start to
//! its end.
//!
//! A slot-safe subscription is different: its function is called on the thread that has caused the event, under the
//! leases of the command, at the same time as on other threads. It has no session, so it uses no keys.
//!
//! The function of a module may write, and so cause events. It does not get those itself, but all other functions do. A
//! module may ask for them with `ALLOW_NESTED_KEYSPACE_NOTIFICATIONS`.

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;

use weft_os::atomic::{AtomicBool, AtomicI32, Ordering};
use weft_os::sync::{Mutex, RwLock};

use super::{Module, options};
use crate::invoke;
use crate::objects::blocked_client::CallbackKind;
use crate::objects::context::{Caller, Context};
use crate::objects::string::ModuleString;
use crate::session::{self, Session};

/// The classes of events, as modules name them.
pub mod classes {
    /// Commands that work on keys of any type.
    pub const GENERIC: i32 = 1 << 2;
    /// String commands.
    pub const STRING: i32 = 1 << 3;
    /// List commands.
    pub const LIST: i32 = 1 << 4;
    /// Set commands.
    pub const SET: i32 = 1 << 5;
    /// Hash commands.
    pub const HASH: i32 = 1 << 6;
    /// Sorted set commands.
    pub const SORTED_SET: i32 = 1 << 7;
    /// A key expired.
    pub const EXPIRED: i32 = 1 << 8;
    /// A key was evicted.
    pub const EVICTED: i32 = 1 << 9;
    /// Stream commands.
    pub const STREAM: i32 = 1 << 10;
    /// A reader did not find a key.
    pub const MISSED: i32 = 1 << 11;
    /// A key was loaded from a file. Only for modules.
    pub const LOADED: i32 = 1 << 12;
    /// An event of a module.
    pub const MODULE: i32 = 1 << 13;
    /// A key was created.
    pub const NEW: i32 = 1 << 14;
    /// All bits, with those of the two channels, which come first.
    pub const ALL_BITS: i32 = (1 << 15) - 1;
}

/// A function that gets events (`ValkeyModuleNotificationFunc`).
pub type EventFunction = unsafe extern "C" fn(*mut Context, c_int, *const c_char, *mut ModuleString) -> c_int;

/// A subscription.
struct Subscription {
    module: Arc<Module>,
    classes: i32,
    function: EventFunction,
    /// `true` while the function runs.
    is_running: AtomicBool,
}

static SUBSCRIPTIONS: Mutex<Vec<Arc<Subscription>>> = Mutex::new(Vec::new());
/// The classes that some module has subscribed to.
static CLASSES: AtomicI32 = AtomicI32::new(0);
/// The slot-safe subscriptions.
static SLOT_SAFE: RwLock<Vec<Arc<Subscription>>> = RwLock::new(Vec::new());
/// The classes of these.
static SLOT_SAFE_CLASSES: AtomicI32 = AtomicI32::new(0);

/// An event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEvent<'a> {
    /// Its class, one of [`classes`].
    pub class: i32,
    /// Its name.
    pub name: &'a str,
    /// The database of the key.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
}

/// Ends the run of a subscription's function.
struct EndedRun<'a> {
    subscription: &'a Subscription,
    /// `true` if the function was running already.
    was_running: bool,
}

impl Drop for EndedRun<'_> {
    fn drop(&mut self) {
        self.subscription.is_running.store(self.was_running, Ordering::Release);
    }
}

/// Returns the classes that some module has subscribed to.
#[inline]
pub fn subscribed_classes() -> i32 {
    CLASSES.load(Ordering::Acquire)
}

/// Returns the classes that some module has a slot-safe subscription to.
#[inline]
pub fn slot_safe_classes() -> i32 {
    SLOT_SAFE_CLASSES.load(Ordering::Acquire)
}

fn update_classes(subscriptions: &[Arc<Subscription>], of_all: &AtomicI32) {
    let classes = subscriptions
        .iter()
        .fold(0, |classes, subscription| classes | subscription.classes);
    of_all.store(classes, Ordering::Release);
    if let Some(host) = session::host() {
        host.note_event_subscriptions();
    }
}

/// Subscribes a module to the events of these classes.
pub fn subscribe(module: &Arc<Module>, classes: i32, function: EventFunction) {
    let mut subscriptions = SUBSCRIPTIONS.lock();
    subscriptions.push(Subscription::new(module, classes, function));
    update_classes(&subscriptions, &CLASSES);
    drop(subscriptions);
    let owner = module.clone();
    module.add_cleanup(move || {
        let mut subscriptions = SUBSCRIPTIONS.lock();
        subscriptions.retain(|subscription| !Arc::ptr_eq(&subscription.module, &owner));
        update_classes(&subscriptions, &CLASSES);
    });
}

/// Subscribes a module to the events of these classes, for a function that several threads may call at the same time.
pub fn subscribe_slot_safe(module: &Arc<Module>, classes: i32, function: EventFunction) {
    let mut subscriptions = SLOT_SAFE.write();
    subscriptions.push(Subscription::new(module, classes, function));
    update_classes(&subscriptions, &SLOT_SAFE_CLASSES);
    drop(subscriptions);
    let owner = module.clone();
    module.add_cleanup(move || {
        let mut subscriptions = SLOT_SAFE.write();
        subscriptions.retain(|subscription| !Arc::ptr_eq(&subscription.module, &owner));
        update_classes(&subscriptions, &SLOT_SAFE_CLASSES);
    });
}

/// Calls the functions of slot-safe subscriptions, on the thread that has caused the event. The caller holds the leases
/// under which that was, so no module is loaded or unloaded meanwhile.
pub fn deliver_slot_safe(event: &KeyEvent<'_>, caller: &Caller) {
    for subscription in SLOT_SAFE.read().iter() {
        if subscription.classes & event.class != 0 && !subscription.module.is_unloaded() {
            let module = &subscription.module;
            subscription.call(event, caller, |run| invoke::call_without_session(module, run));
        }
    }
}

/// Calls the subscribers of an event. `caller` is the client whose command has caused it.
pub fn deliver(session: &mut dyn Session, event: &KeyEvent<'_>, caller: &Caller) {
    let subscriptions = SUBSCRIPTIONS.lock().clone();
    for subscription in subscriptions {
        let module = &subscription.module;
        if subscription.classes & event.class == 0 || module.is_unloaded() {
            continue;
        }
        let was_running = subscription.is_running.load(Ordering::Acquire);
        if was_running && !module.has_option(options::ALLOW_NESTED_KEYSPACE_NOTIFICATIONS) {
            continue;
        }
        subscription.is_running.store(true, Ordering::Release);
        let _ended = EndedRun {
            subscription: &subscription,
            was_running,
        };
        subscription.call(event, caller, |run| invoke::call_into(module, session, run));
    }
}

impl Subscription {
    fn new(module: &Arc<Module>, classes: i32, function: EventFunction) -> Arc<Subscription> {
        Arc::new(Subscription {
            module: module.clone(),
            classes,
            function,
            is_running: AtomicBool::new(false),
        })
    }

    /// Calls the function through `invoke`.
    fn call(&self, event: &KeyEvent<'_>, caller: &Caller, invoke: impl FnOnce(&mut dyn FnMut())) {
        let caller = Caller {
            db: event.db,
            ..caller.clone()
        };
        let mut context = Some(Context::new(self.module.clone(), caller));
        let name = CString::new(event.name).unwrap_or_default();
        invoke(&mut || {
            let Some(context) = context.take() else { return };
            context.reply_state.discard();
            context.blocked.kind.set(CallbackKind::KeyEvent);
            let key = ModuleString::create(event.key);
            // SAFETY: the context, the name and the string live until the function has returned.
            unsafe {
                (self.function)(context.as_pointer(), event.class, name.as_ptr(), key);
                ModuleString::release(key);
            }
        });
    }
}
