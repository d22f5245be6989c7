//! Calling commands, their replies, and propagating commands.

use std::ffi::{CStr, c_char, c_double, c_int, c_longlong, c_void};

use weft_os::atomic::Ordering;

use crate::api::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::module::Module;
use crate::objects::arguments::{CallFlags, CommandWords, RawArgument};
use crate::objects::call_reply::{CallReply, ReplyType};
use crate::objects::context::Context;
use crate::objects::promise::OnUnblocked;
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::calls::{CallErrno, CallOutcome, CallRefusal, CallRequest, NO_USER, PropagationTarget};

unsafe extern "C" {
    // These have a variable number of arguments, which only C can define. They call the functions below.
    fn weft_modules_native_call();
    fn weft_modules_native_replicate();
}

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("Call", weft_modules_native_call),
    ("Replicate", weft_modules_native_replicate),
    ("ReplicateVerbatim", replicate_verbatim),
    ("FreeCallReply", free_call_reply),
    ("CallReplyProto", call_reply_proto),
    ("CallReplyType", call_reply_type),
    ("CallReplyLength", call_reply_length),
    ("CallReplyInteger", call_reply_integer),
    ("CallReplyDouble", call_reply_double),
    ("CallReplyBool", call_reply_bool),
    ("CallReplyBigNumber", call_reply_big_number),
    ("CallReplyVerbatim", call_reply_verbatim),
    ("CallReplyStringPtr", call_reply_string_ptr),
    ("CallReplyArrayElement", call_reply_array_element),
    ("CallReplySetElement", call_reply_set_element),
    ("CallReplyMapElement", call_reply_map_element),
    ("CallReplyAttribute", call_reply_attribute),
    ("CallReplyAttributeElement", call_reply_attribute_element),
    (
        "CallReplyPromiseSetUnblockHandler",
        call_reply_promise_set_unblock_handler
    ),
    ("CallReplyPromiseAbort", call_reply_promise_abort),
    ("CreateStringFromCallReply", create_string_from_call_reply),
    ("ReplyWithCallReply", reply_with_call_reply),
];

/// Calls a command (`Call`). Returns its reply, or null with an error number.
///
/// # Safety
/// The context is one (rule 1), and the arguments are those of [`CommandWords::from_format`].
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_call(
    context: *mut Context,
    name: *const c_char,
    format: *const c_char,
    arguments: *const RawArgument,
) -> *mut CallReply {
    // SAFETY: the caller promises it.
    let (context, command) = unsafe {
        (
            Context::from_pointer(context),
            CommandWords::from_format(name, format, arguments),
        )
    };
    let Some(context) = context else {
        errno::set(libc::EBADF);
        return std::ptr::null_mut();
    };
    let (words, flags) = match command {
        Ok(command) => command,
        Err(flags) => return refuse_format(context, flags),
    };
    match call_command(context, &words, flags) {
        CallOutcome::Replied(bytes) => {
            let is_exact = flags.contains(CallFlags::REPLY_EXACT);
            CallReply::new(bytes, is_exact).into_pointer(Some(context))
        }
        CallOutcome::Blocked(promise) => CallReply::of_promise(promise).into_pointer(Some(context)),
        CallOutcome::Refused(refusal) => match refusal_reply(refusal.text) {
            Some(bytes) => CallReply::new(bytes, false).into_pointer(Some(context)),
            None => std::ptr::null_mut(),
        },
    }
}

/// Refuses a call with an unknown letter behind these flags. As in Valkey, the user is asked for first.
fn refuse_format(context: &Context, flags: CallFlags) -> *mut CallReply {
    let needs_user = flags.contains(CallFlags::RUN_AS_USER);
    let has_user = !needs_user || session::current(|session| session.has_user(context)) == Some(true);
    if has_user {
        errno::set(libc::EBADF);
        return std::ptr::null_mut();
    }
    errno::set(CallErrno::NoUser.number());
    let text = flags.contains(CallFlags::ERRORS_AS_REPLIES).then(|| NO_USER.into());
    let reply = refusal_reply(text).map(|bytes| CallReply::new(bytes, false).into_pointer(Some(context)));
    reply.unwrap_or(std::ptr::null_mut())
}

/// Counts a call of a module while it is under way.
struct CallUnderWay<'m>(&'m Module);

impl<'m> CallUnderWay<'m> {
    fn new(module: &'m Module) -> Self {
        module.calls_under_way.fetch_add(1, Ordering::Relaxed);
        CallUnderWay(module)
    }
}

impl Drop for CallUnderWay<'_> {
    fn drop(&mut self) {
        self.0.calls_under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a command in the thread's session, and sets the error number.
pub(super) fn call_command(context: &Context, words: &CommandWords, flags: CallFlags) -> CallOutcome {
    let request = CallRequest { context, words, flags };
    // The command may read a string that the module has written by a pointer.
    crate::objects::key::store_direct_changes();
    let _under_way = CallUnderWay::new(&context.module);
    let outcome = session::current(|session| session.call(&request)).unwrap_or_else(|| {
        CallOutcome::Refused(CallRefusal {
            errno: CallErrno::ForeignKey,
            text: None,
        })
    });
    errno::set(match &outcome {
        CallOutcome::Refused(refusal) => refusal.errno.number(),
        CallOutcome::Replied(_) | CallOutcome::Blocked(_) => 0,
    });
    outcome
}

/// Returns the error reply with the text of a refusal, which has a code if it begins with a hyphen.
pub(super) fn refusal_reply(text: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let text = text?;
    let mut reply = match text.starts_with(b"-") {
        true => Vec::with_capacity(text.len() + 2),
        false => b"-ERR ".to_vec(),
    };
    let line = text.iter().map(|byte| match byte {
        b'\r' | b'\n' => b' ',
        other => *other,
    });
    reply.extend(line);
    reply.extend_from_slice(b"\r\n");
    Some(reply)
}

/// Propagates a command (`Replicate`). Returns a pointer that is not null, or null if there is no such command or the
/// format is wrong.
///
/// # Safety
/// As for [`weft_modules_call`].
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_replicate(
    context: *mut Context,
    name: *const c_char,
    format: *const c_char,
    arguments: *const RawArgument,
) -> *const c_void {
    // SAFETY: the caller promises it.
    let (context_of_call, command, name) = unsafe {
        (
            Context::from_pointer(context),
            CommandWords::from_format(name, format, arguments),
            CStr::from_ptr(name),
        )
    };
    let (Some(context_of_call), Ok((words, flags))) = (context_of_call, command) else {
        return std::ptr::null();
    };
    let is_known = session::host().is_some_and(|host| host.has_command(name.to_bytes()));
    if !is_known && !context_of_call.module.skips_command_validation() {
        return std::ptr::null();
    }
    let db = context_of_call.caller.borrow().db;
    let target = PropagationTarget::from_flags(flags);
    match session::current(|session| session.replicate(db, &words, target)) {
        Some(()) => context.cast_const().cast(),
        None => std::ptr::null(),
    }
}

/// Propagates the command of the context's client as it is.
///
/// # Safety
/// The context is one (rule 1).
unsafe extern "C" fn replicate_verbatim(context: *mut Context) -> c_int {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        session::current(|session| session.replicate_verbatim(context));
    }
    OK
}

// ---- replies -------------------------------------------------------------------------------------------------------

/// Frees a reply.
///
/// # Safety
/// The pointer is null or that of a reply, which is not used after this call (rule 1).
unsafe extern "C" fn free_call_reply(reply: *mut CallReply) {
    if !reply.is_null() {
        // SAFETY: the caller promises it.
        unsafe { CallReply::free_by_module(reply) };
    }
}

/// Stores a length, unless the module does not ask for it.
///
/// # Safety
/// The target is null or a place for a length.
unsafe fn store_length(target: *mut usize, length: usize) {
    if !target.is_null() {
        // SAFETY: the caller promises it.
        unsafe { target.write(length) };
    }
}

/// Returns the address of bytes, and stores their length; null if there are none.
///
/// # Safety
/// As for [`store_length`].
unsafe fn return_bytes(bytes: Option<&[u8]>, length: *mut usize) -> *const c_char {
    match bytes {
        Some(bytes) => {
            // SAFETY: the caller promises it.
            unsafe { store_length(length, bytes.len()) };
            bytes.as_ptr().cast()
        }
        None => std::ptr::null(),
    }
}

/// Returns a nested reply as the module sees it.
fn return_reply(reply: Option<&CallReply>) -> *mut CallReply {
    reply.map_or(std::ptr::null_mut(), |reply| std::ptr::from_ref(reply).cast_mut())
}

/// Returns the bytes in which the command has replied.
///
/// # Safety
/// The pointer is null or that of a reply (rule 1); `length` is a place for a length.
unsafe extern "C" fn call_reply_proto(reply: *const CallReply, length: *mut usize) -> *const c_char {
    // SAFETY: the caller promises it.
    unsafe { return_bytes(reply.as_ref().map(CallReply::proto), length) }
}

/// Returns the type of a reply.
///
/// # Safety
/// The pointer is null or that of a reply (rule 1).
unsafe extern "C" fn call_reply_type(reply: *const CallReply) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { reply.as_ref() }.map_or(ReplyType::Unknown, CallReply::reply_type) as c_int
}

/// Returns the length of a reply.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_length(reply: *const CallReply) -> usize {
    // SAFETY: the caller promises it.
    unsafe { reply.as_ref() }.map_or(0, CallReply::length)
}

/// Returns the number of an integer reply.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_integer(reply: *const CallReply) -> c_longlong {
    // SAFETY: the caller promises it.
    unsafe { reply.as_ref() }
        .and_then(CallReply::integer)
        .unwrap_or(c_longlong::MIN)
}

/// Returns the number of a floating-point reply. For other types this is the lowest integer, as in Valkey.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_double(reply: *const CallReply) -> c_double {
    // SAFETY: the caller promises it.
    let number = unsafe { reply.as_ref() }.and_then(CallReply::double);
    number.unwrap_or(c_longlong::MIN as c_double)
}

/// Returns the value of a boolean reply.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_bool(reply: *const CallReply) -> c_int {
    // SAFETY: the caller promises it.
    let value = unsafe { reply.as_ref() }.and_then(CallReply::boolean);
    value.map_or(c_int::MIN, c_int::from)
}

/// Returns the digits of a big number.
///
/// # Safety
/// As for [`call_reply_proto`].
unsafe extern "C" fn call_reply_big_number(reply: *const CallReply, length: *mut usize) -> *const c_char {
    // SAFETY: the caller promises it.
    unsafe { return_bytes(reply.as_ref().and_then(CallReply::big_number), length) }
}

/// Returns the text of a verbatim string, and stores the address of the three bytes of its format.
///
/// # Safety
/// As for [`call_reply_proto`]; `format` is null or a place for a pointer.
unsafe extern "C" fn call_reply_verbatim(
    reply: *const CallReply,
    length: *mut usize,
    format: *mut *const c_char,
) -> *const c_char {
    // SAFETY: the caller promises it.
    let Some((format_bytes, text)) = unsafe { reply.as_ref() }.and_then(CallReply::verbatim) else {
        return std::ptr::null();
    };
    if !format.is_null() {
        // SAFETY: the caller promises it.
        unsafe { format.write(format_bytes.as_ptr().cast()) };
    }
    // SAFETY: the caller promises it.
    unsafe { return_bytes(Some(text), length) }
}

/// Returns the text of a string or an error.
///
/// # Safety
/// As for [`call_reply_proto`]; `length` may be null.
unsafe extern "C" fn call_reply_string_ptr(reply: *const CallReply, length: *mut usize) -> *const c_char {
    // SAFETY: the caller promises it.
    unsafe { return_bytes(reply.as_ref().and_then(CallReply::text), length) }
}

/// Returns an element of an array.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_array_element(reply: *const CallReply, index: usize) -> *mut CallReply {
    // SAFETY: the caller promises it.
    return_reply(unsafe { reply.as_ref() }.and_then(|reply| reply.array_element(index)))
}

/// Returns an element of a set.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_set_element(reply: *const CallReply, index: usize) -> *mut CallReply {
    // SAFETY: the caller promises it.
    return_reply(unsafe { reply.as_ref() }.and_then(|reply| reply.set_element(index)))
}

/// Stores a key and its value.
///
/// # Safety
/// The targets are null or places for pointers.
unsafe fn store_pair(
    pair: Option<(&CallReply, &CallReply)>,
    key: *mut *mut CallReply,
    value: *mut *mut CallReply,
) -> c_int {
    let Some((found_key, found_value)) = pair else {
        return ERR;
    };
    for (target, reply) in [(key, found_key), (value, found_value)] {
        if !target.is_null() {
            // SAFETY: the caller promises it.
            unsafe { target.write(return_reply(Some(reply))) };
        }
    }
    OK
}

/// Stores a key of a map and its value.
///
/// # Safety
/// As for [`call_reply_type`]; the targets are null or places for pointers.
unsafe extern "C" fn call_reply_map_element(
    reply: *const CallReply,
    index: usize,
    key: *mut *mut CallReply,
    value: *mut *mut CallReply,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { store_pair(reply.as_ref().and_then(|reply| reply.map_element(index)), key, value) }
}

/// Returns the attributes of a reply.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn call_reply_attribute(reply: *const CallReply) -> *mut CallReply {
    // SAFETY: the caller promises it.
    return_reply(unsafe { reply.as_ref() }.and_then(CallReply::attribute))
}

/// Stores the name of an attribute and its value.
///
/// # Safety
/// As for [`call_reply_map_element`].
unsafe extern "C" fn call_reply_attribute_element(
    reply: *const CallReply,
    index: usize,
    key: *mut *mut CallReply,
    value: *mut *mut CallReply,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        store_pair(
            reply.as_ref().and_then(|reply| reply.attribute_element(index)),
            key,
            value,
        )
    }
}

/// Sets the function that is called when a blocked command replies.
///
/// # Safety
/// As for [`call_reply_type`]; the function may be called with the data.
unsafe extern "C" fn call_reply_promise_set_unblock_handler(
    reply: *const CallReply,
    function: Option<OnUnblocked>,
    data: *mut c_void,
) {
    // SAFETY: the caller promises it.
    if let Some(promise) = unsafe { reply.as_ref() }.and_then(CallReply::promise) {
        promise.set_handler(function, data);
    }
}

/// Takes back a blocked command, and stores the data of the function that was set for its reply.
///
/// # Safety
/// As for [`call_reply_type`]; `data` is null or a place for a pointer.
unsafe extern "C" fn call_reply_promise_abort(reply: *const CallReply, data: *mut *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    let Some(promise) = unsafe { reply.as_ref() }.and_then(CallReply::promise) else {
        return ERR;
    };
    if !promise.is_pending() || session::current(|session| session.abort_call(promise)) != Some(true) {
        return ERR;
    }
    let Some(data_of_handler) = promise.end() else {
        return ERR;
    };
    if !data.is_null() {
        // SAFETY: the caller promises it.
        unsafe { data.write(data_of_handler) };
    }
    OK
}

/// Creates a string from a string, an error or an integer; null for other types.
///
/// # Safety
/// As for [`call_reply_type`].
unsafe extern "C" fn create_string_from_call_reply(reply: *const CallReply) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let Some(reply) = (unsafe { reply.as_ref() }) else {
        return std::ptr::null_mut();
    };
    let mut digits = itoa::Buffer::new();
    let integer = reply.integer().map(|number| digits.format(number).as_bytes());
    let Some(text) = reply.text().or(integer) else {
        return std::ptr::null_mut();
    };
    let string = ModuleString::create(text);
    // SAFETY: the context of a reply with an owner lives.
    if let Some(context) = unsafe { reply.owner() } {
        context.own(string);
    }
    string
}

/// Replies to the client as a command has replied.
///
/// # Safety
/// The context is one, and the reply is null or one (rule 1).
unsafe extern "C" fn reply_with_call_reply(context: *mut Context, reply: *const CallReply) -> c_int {
    // SAFETY: the caller promises it.
    let (Some(context), Some(reply)) = (unsafe { (Context::from_pointer(context), reply.as_ref()) }) else {
        return ERR;
    };
    context.reply_with_proto(reply.proto(), reply.is_known_as_resp3())
}
