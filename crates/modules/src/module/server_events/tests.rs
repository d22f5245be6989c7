//! Tests of the layouts of events, and of subscriptions.

use std::ffi::{CStr, c_void};

use weft_os::atomic::{AtomicU64, Ordering};

use super::layout::{
    AuthenticationLayout, CommandLayout, ConfigLayout, CronLayout, FlushLayout, KeyLayout, ModuleLayout,
    ProgressLayout, ReplicationLayout, SlotMigrationLayout, SwapLayout,
};
use super::*;
use crate::session::fake::FakeSession;

/// The sizes of a C compiler on 64-bit machines.
#[test]
fn layouts_have_the_sizes_of_c() {
    let sizes = [
        (size_of::<EventHeader>(), 16),
        (size_of::<ClientLayout>(), 80),
        (size_of::<ReplicationLayout>(), 64),
        (size_of::<FlushLayout>(), 16),
        (size_of::<ModuleLayout>(), 24),
        (size_of::<ConfigLayout>(), 24),
        (size_of::<CronLayout>(), 16),
        (size_of::<ProgressLayout>(), 16),
        (size_of::<SwapLayout>(), 16),
        (size_of::<KeyLayout>(), 16),
        (size_of::<AuthenticationLayout>(), 40),
        (size_of::<SlotMigrationLayout>(), 72),
        (size_of::<CommandLayout>(), 64),
    ];
    for (index, (actual, expected)) in sizes.into_iter().enumerate() {
        assert_eq!(actual, expected, "layout {index}");
    }
}

static LAST: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn note(_: *mut Context, header: EventHeader, sub_event: u64, data: *mut c_void) {
    let count = match header.kind {
        // SAFETY: the event has this layout.
        9 => unsafe { CStr::from_ptr((*data.cast::<ModuleLayout>()).name).count_bytes() as u64 },
        _ => u64::from(data.is_null()),
    };
    LAST.store(header.kind * 10_000 + sub_event * 100 + count, Ordering::SeqCst);
}

#[test]
fn subscribers_get_events_until_they_end_the_subscription() {
    let (module, other) = (Module::new(String::new()), Module::new(String::new()));
    module.set_name("one");
    other.set_name("other");
    let mut session = FakeSession::default();
    let mut last = |event: &ServerEvent| {
        LAST.store(0, Ordering::SeqCst);
        deliver(&mut session, event);
        LAST.load(Ordering::SeqCst)
    };
    let up = ServerEvent::PrimaryLinkChanged { is_up: true };
    assert_eq!(last(&up), 0, "nobody has subscribed");
    subscribe(&module, EventKind::PrimaryLinkChange, 1, Some(note));
    assert_eq!(last(&up), 7_0001);
    assert_eq!(last(&ServerEvent::PrimaryLinkChanged { is_up: false }), 7_0101);
    subscribe(&module, EventKind::PrimaryLinkChange, 1, None);
    assert_eq!(last(&up), 0);
    subscribe(&module, EventKind::ModuleChange, 1, Some(note));
    let loaded = |module: &Arc<Module>| ServerEvent::ModuleChanged {
        is_loaded: true,
        module: module.clone(),
    };
    assert_eq!(last(&loaded(&other)), 9_0005);
    assert_eq!(last(&loaded(&module)), 0, "a module does not hear of itself");
    end_all(&module);
    assert_eq!(last(&loaded(&other)), 0);
}

#[test]
fn sub_events_are_those_of_the_header() {
    assert!(EventKind::Persistence.has_sub_event(5) && !EventKind::Persistence.has_sub_event(6));
    assert!(!EventKind::Shutdown.has_sub_event(0));
    assert!(!EventKind::AtomicSlotMigration.has_sub_event(0));
    assert!(EventKind::CommandDenied.has_sub_event(4) && !EventKind::CommandDenied.has_sub_event(5));
    assert_eq!(kind_of_number(12), None);
    assert_eq!(EventKind::ALL.len() as u64 + 1, KINDS);
}
