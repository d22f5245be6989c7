//! Tests of blocked clients with a session in memory.

use std::cell::RefCell;

use super::*;
use crate::api::ERR;
use crate::objects::reply::Collection;
use crate::session::fake::FakeSession;

thread_local! {
    /// What the callbacks have noted.
    static NOTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(text: impl Into<String>) {
    NOTED.with_borrow_mut(|noted| noted.push(text.into()));
}

fn noted() -> Vec<String> {
    NOTED.take()
}

unsafe extern "C" fn reply(context: *mut Context, argv: *mut *mut ModuleString, argc: c_int) -> c_int {
    // SAFETY: the context and the strings are those of the callback.
    let (context, first) = unsafe { (&*context, ModuleString::bytes_of(*argv)) };
    note(format!(
        "reply {} of {argc}: {:?}",
        String::from_utf8_lossy(first),
        context.blocked.kind.get()
    ));
    context.write_reply(|reply| reply.integer(context.blocked.data.get() as i64));
    // SAFETY: as above.
    let key = unsafe { ModuleString::bytes_of(context.blocked.ready_key.get()) };
    if key == b"refused" { ERR } else { OK }
}

unsafe extern "C" fn free(context: *mut Context, data: *mut c_void) {
    // SAFETY: the context is that of the callback.
    let kind = unsafe { &*context }.blocked.kind.get();
    note(format!("free {}: {kind:?}", data as usize));
}

unsafe extern "C" fn disconnect(_context: *mut Context, _client: *mut BlockedClient) {
    note("disconnect");
}

fn block(reason: BlockReason) -> Arc<BlockedClient> {
    let blocked = BlockedClient::create(BlockedClientParameters {
        module: Module::new(String::new()),
        caller: Caller {
            client_id: 7,
            ..Caller::none()
        },
        reason,
        words: vec![b"get".to_vec(), b"k".to_vec()],
        attempt: None,
        callbacks: Callbacks {
            reply: Some(reply),
            timeout: Some(reply),
            free: Some(free),
            disconnect: Some(disconnect),
            authentication: None,
        },
        data: std::ptr::without_provenance_mut(match reason {
            BlockReason::Keys => 9,
            _ => 0,
        }),
    });
    blocked.set_waiting(Waiting::Connection(1));
    blocked
}

fn is_counted(blocked: &BlockedClient) -> bool {
    blocked.module.usage.blocked_clients.load(Ordering::Relaxed) == 1
}

#[test]
fn unblocked_client_gets_the_reply_and_ends() {
    let blocked = block(BlockReason::Module);
    let pointer = blocked.as_pointer();
    assert!(is_counted(&blocked) && BlockedClient::find(pointer).is_some());
    assert!(blocked.note_unblocked(std::ptr::without_provenance_mut(5)));
    assert!(!blocked.note_unblocked(std::ptr::null_mut()), "only once");
    let mut session = FakeSession::default();
    assert!(
        blocked.time_out(&mut session).is_none(),
        "it does not time out any more"
    );
    let ended = blocked.end(&mut session).expect("a client waits");
    assert_eq!(ended.reply.bytes, b":5\r\n");
    assert_eq!(noted(), ["reply get of 2: Reply", "free 5: None"]);
    assert!(!is_counted(&blocked) && BlockedClient::find(pointer).is_none());
}

#[test]
fn timed_out_client_stays_until_the_module_unblocks_it() {
    let blocked = block(BlockReason::Module);
    let mut session = FakeSession::default();
    let ended = blocked.time_out(&mut session).expect("a client waits");
    assert_eq!(ended.reply.bytes, b":0\r\n");
    assert_eq!(noted(), ["reply get of 2: Timeout"]);
    assert!(is_counted(&blocked), "the module has the address");
    blocked.disconnect(&mut session);
    assert!(noted().is_empty(), "nobody waits any more");
    assert!(blocked.note_unblocked(std::ptr::without_provenance_mut(3)));
    assert!(blocked.end(&mut session).is_none());
    assert_eq!(noted(), ["free 3: Disconnected"]);
    assert!(!is_counted(&blocked));
}

#[test]
fn client_that_goes_after_it_was_unblocked_is_noted_and_freed() {
    for reason in [BlockReason::Module, BlockReason::Keys] {
        let blocked = block(reason);
        let mut session = FakeSession::default();
        assert!(blocked.note_unblocked(std::ptr::without_provenance_mut(9)));
        blocked.disconnect(&mut session);
        assert_eq!(noted(), ["disconnect"]);
        assert!(
            is_counted(&blocked),
            "the event of the module's call is still to be handled"
        );
        assert!(blocked.end(&mut session).is_none());
        assert_eq!(noted(), ["free 9: Disconnected"]);
        assert!(!is_counted(&blocked));
    }
}

#[test]
fn disconnection_is_noted_once() {
    let blocked = block(BlockReason::Module);
    let mut session = FakeSession::default();
    blocked.disconnect(&mut session);
    blocked.disconnect(&mut session);
    assert_eq!(noted(), ["disconnect"]);
    assert!(is_counted(&blocked));
    let keys = block(BlockReason::Keys);
    keys.disconnect(&mut session);
    assert_eq!(noted(), ["disconnect", "free 9: Disconnected"]);
    assert!(!is_counted(&keys), "what waits for keys ends by itself");
}

#[test]
fn module_decides_if_a_ready_key_serves_the_client() {
    let blocked = block(BlockReason::Keys);
    let mut session = FakeSession::default();
    assert!(blocked.serve(&mut session, b"refused").is_none());
    assert!(is_counted(&blocked));
    let ended = blocked.serve(&mut session, b"k").expect("the module serves it");
    assert_eq!(ended.reply.bytes, b":9\r\n", "the refused reply is gone");
    assert_eq!(noted().len(), 3);
    assert!(blocked.serve(&mut session, b"k").is_none(), "it has ended");
    assert!(!is_counted(&blocked));
}

#[test]
fn replies_of_thread_safe_contexts_follow_that_of_the_callback() {
    let blocked = block(BlockReason::Module);
    let mut contexts = Vec::new();
    for number in 1..=2 {
        let context = Box::new(Context::new(blocked.module.clone(), blocked.caller.clone()));
        *context.blocked.receiver.borrow_mut() = Some(blocked.clone());
        blocked.add_context(&raw const *context);
        context.begin_collection(Collection::Array, Some(1));
        context.write_reply(|reply| reply.integer(number));
        contexts.push(context);
    }
    drop(contexts.remove(0));
    blocked.remove_reply_callbacks();
    blocked.note_unblocked(std::ptr::null_mut());
    let ended = blocked.end(&mut FakeSession::default()).expect("a client waits");
    assert_eq!(ended.reply.bytes, b"*1\r\n:1\r\n*1\r\n:2\r\n");
    drop(contexts);
    assert!(noted().is_empty(), "without data there is nothing to free");
}

#[test]
fn measured_time_counts() {
    let blocked = block(BlockReason::Module);
    assert!(!blocked.stop_measuring(), "it was not started");
    blocked.start_measuring();
    std::thread::sleep(Duration::from_millis(2));
    assert!(blocked.stop_measuring());
    let ended = blocked.time_out(&mut FakeSession::default()).expect("a client waits");
    assert!(ended.nanoseconds >= 2_000_000);
    noted();
}
