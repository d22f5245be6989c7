//! Functions on streams.

use std::ffi::{c_int, c_long, c_longlong};

use weft_values::stream::{StreamId, TrimTarget};

use super::{fail, key_of_kind, writable_key};
use crate::api::{Functions, OK};
use crate::errno;
use crate::functions;
use crate::objects::key::{KeyCursor, KeyMode, ModuleKey, StreamCursor};
use crate::objects::string::ModuleString;
use crate::session::keys::{KeyKind, StreamAddError};

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("StreamAdd", stream_add),
    ("StreamDelete", stream_delete),
    ("StreamIteratorStart", stream_iterator_start),
    ("StreamIteratorStop", stream_iterator_stop),
    ("StreamIteratorNextID", stream_iterator_next_id),
    ("StreamIteratorNextField", stream_iterator_next_field),
    ("StreamIteratorDelete", stream_iterator_delete),
    ("StreamTrimByLength", stream_trim_by_length),
    ("StreamTrimByID", stream_trim_by_id),
];

/// The flag of `StreamAdd` by which the entry gets an id by the time.
const ADD_AUTO_ID: c_int = 1;
/// The flag of `StreamIteratorStart` by which the ends of the range are excluded.
const ITERATOR_EXCLUSIVE: c_int = 1;
/// The flag of `StreamIteratorStart` by which the iteration begins at the end.
const ITERATOR_REVERSE: c_int = 1 << 1;
/// The flag of the functions that trim, by which they may keep more entries if that is cheaper.
const TRIM_APPROXIMATELY: c_int = 1;

/// An id as modules know it (`ValkeyModuleStreamID`).
#[repr(C)]
#[derive(Clone, Copy)]
struct ForeignStreamId {
    ms: u64,
    seq: u64,
}

impl From<ForeignStreamId> for StreamId {
    fn from(id: ForeignStreamId) -> StreamId {
        StreamId::new(id.ms, id.seq)
    }
}

impl From<StreamId> for ForeignStreamId {
    fn from(id: StreamId) -> ForeignStreamId {
        ForeignStreamId { ms: id.ms, seq: id.seq }
    }
}

/// Returns the id behind a pointer; `None` for null.
///
/// # Safety
/// The pointer is null or that of an id.
unsafe fn read_id(id: *const ForeignStreamId) -> Option<StreamId> {
    // SAFETY: the caller promises it.
    unsafe { id.as_ref() }.map(|id| StreamId::from(*id))
}

/// `StreamAdd`: adds an entry, and stores its id. A missing stream is created.
///
/// # Safety
/// The arguments are null or an open key, null or an id, and null or `2 * count` strings (rule 1).
unsafe extern "C" fn stream_add(
    key: *mut ModuleKey,
    flags: c_int,
    id: *mut ForeignStreamId,
    words: *const *mut ModuleString,
    count: c_long,
) -> c_int {
    let has_auto_id = flags & ADD_AUTO_ID != 0;
    let Ok(count) = usize::try_from(count) else {
        return fail(libc::EINVAL);
    };
    if key.is_null() || count != 0 && words.is_null() || flags & !ADD_AUTO_ID != 0 || !has_auto_id && id.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller promises it.
    let (key, given) = unsafe { (writable_key(key, KeyKind::Stream), read_id(id)) };
    let key = match key {
        Ok(key) => key,
        Err(error) => return fail(error),
    };
    let given = given.filter(|_| !has_auto_id);
    if given == Some(StreamId::MIN) {
        return fail(libc::EDOM);
    }
    // SAFETY: the caller promises it; the strings are not changed during this call.
    let word = |index: usize| unsafe { ModuleString::bytes_of(*words.add(index)) };
    let fields: Vec<(&[u8], &[u8])> = (0..count).map(|pair| (word(2 * pair), word(2 * pair + 1))).collect();
    let added = key.with_keys(|session, key| session.add_entry(key, given, &fields));
    match added.unwrap_or(Err(StreamAddError::WrongType)) {
        Ok(added) => {
            key.set_kind(KeyKind::Stream);
            if !id.is_null() {
                // SAFETY: the caller promises it.
                unsafe { id.write(added.into()) };
            }
            OK
        }
        Err(error) => fail(match error {
            StreamAddError::WrongType => libc::ENOTSUP,
            StreamAddError::IdTooSmall => libc::EDOM,
            StreamAddError::NoFurtherId => libc::EFBIG,
            StreamAddError::TooLarge => libc::ERANGE,
        }),
    }
}

/// `StreamDelete`: removes an entry.
///
/// # Safety
/// The arguments are null, or an open key and an id (rule 1).
unsafe extern "C" fn stream_delete(key: *mut ModuleKey, id: *const ForeignStreamId) -> c_int {
    // SAFETY: the caller promises it.
    let (key, id) = unsafe { (key_of_kind(key, KeyKind::Stream, KeyMode::WRITE), read_id(id)) };
    let Some(id) = id else {
        return fail(libc::EINVAL);
    };
    let key = match key {
        Ok(key) => key,
        Err(error) => return fail(error),
    };
    if matches!(*key.cursor.borrow(), KeyCursor::Stream(_)) {
        return fail(libc::EBADF);
    }
    match key.with_keys(|session, key| session.remove_entry(key, id)) {
        Some(true) => OK,
        _ => fail(libc::ENOENT),
    }
}

/// `StreamIteratorStart`: begins an iteration over the entries between two ids.
///
/// # Safety
/// The arguments are null, or an open key and ids (rule 1).
unsafe extern "C" fn stream_iterator_start(
    key: *mut ModuleKey,
    flags: c_int,
    start: *const ForeignStreamId,
    end: *const ForeignStreamId,
) -> c_int {
    if flags & !(ITERATOR_EXCLUSIVE | ITERATOR_REVERSE) != 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller promises it.
    let (key, mut start, mut end) = unsafe {
        let key = key_of_kind(key, KeyKind::Stream, KeyMode::empty());
        (key, read_id(start), read_id(end))
    };
    let key = match key {
        Ok(key) => key,
        Err(error) => return fail(error),
    };
    if matches!(*key.cursor.borrow(), KeyCursor::Stream(_)) {
        return fail(libc::EBADF);
    }
    if flags & ITERATOR_EXCLUSIVE != 0 {
        let has_ends = (start.is_some(), end.is_some());
        start = start.and_then(StreamId::next);
        end = end.and_then(StreamId::previous);
        if has_ends != (start.is_some(), end.is_some()) {
            return fail(libc::EDOM);
        }
    }
    key.cursor.replace(KeyCursor::Stream(Box::new(StreamCursor {
        start: start.unwrap_or(StreamId::MIN),
        end: end.unwrap_or(StreamId::MAX),
        has_ended: false,
        is_reverse: flags & ITERATOR_REVERSE != 0,
        current: None,
        fields: Vec::new(),
        fields_read: 0,
    })));
    OK
}

/// Calls `run` with a key and its iteration over a stream.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe fn with_cursor(
    key: *mut ModuleKey,
    mode: KeyMode,
    run: impl FnOnce(&ModuleKey, &mut StreamCursor) -> Result<(), c_int>,
) -> c_int {
    // SAFETY: the caller promises it.
    let result =
        unsafe { key_of_kind(key, KeyKind::Stream, mode) }.and_then(|key| match &mut *key.cursor.borrow_mut() {
            KeyCursor::Stream(cursor) => run(key, cursor),
            _ => Err(libc::EBADF),
        });
    match result {
        Ok(()) => OK,
        Err(error) => fail(error),
    }
}

/// `StreamIteratorStop`: ends the iteration.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn stream_iterator_stop(pointer: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        let result = with_cursor(pointer, KeyMode::empty(), |_, _| Ok(()));
        if result == OK
            && let Some(key) = ModuleKey::from_pointer(pointer)
        {
            key.cursor.replace(KeyCursor::None);
        }
        result
    }
}

/// Goes to the next entry.
fn next_entry(key: &ModuleKey, cursor: &mut StreamCursor) -> Result<StreamId, c_int> {
    cursor.current = None;
    cursor.fields.clear();
    cursor.fields_read = 0;
    if cursor.has_ended {
        return Err(libc::ENOENT);
    }
    let (range, is_reverse) = ((cursor.start, cursor.end), cursor.is_reverse);
    let fields = &mut cursor.fields;
    let found = key.with_keys(|session, key| {
        session.read_entry(key, range, is_reverse, &mut |name, value| {
            fields.push((name.to_vec(), value.to_vec()))
        })
    });
    let id = found.flatten().ok_or(libc::ENOENT)?;
    cursor.current = Some(id);
    let rest = match is_reverse {
        true => id.previous().map(|end| cursor.end = end),
        false => id.next().map(|start| cursor.start = start),
    };
    cursor.has_ended = rest.is_none();
    Ok(id)
}

/// `StreamIteratorNextID`: goes to the next entry, and stores its id and its number of fields.
///
/// # Safety
/// The key is null or open, the others are null or places (rule 1).
unsafe extern "C" fn stream_iterator_next_id(
    key: *mut ModuleKey,
    id: *mut ForeignStreamId,
    count: *mut c_long,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        with_cursor(key, KeyMode::empty(), |key, cursor| {
            let found = next_entry(key, cursor)?;
            if !id.is_null() {
                id.write(found.into());
            }
            if !count.is_null() {
                count.write(cursor.fields.len() as c_long);
            }
            Ok(())
        })
    }
}

/// `StreamIteratorNextField`: stores the next field of the current entry, and its value, as new strings.
///
/// # Safety
/// The key is null or open, the others are null or places (rule 1).
unsafe extern "C" fn stream_iterator_next_field(
    key: *mut ModuleKey,
    name: *mut *mut ModuleString,
    value: *mut *mut ModuleString,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        with_cursor(key, KeyMode::empty(), |key, cursor| {
            let field = cursor.fields.get(cursor.fields_read).ok_or(libc::ENOENT)?;
            cursor.fields_read += 1;
            if !name.is_null() {
                name.write(key.create_string(&field.0));
            }
            if !value.is_null() {
                value.write(key.create_string(&field.1));
            }
            Ok(())
        })
    }
}

/// `StreamIteratorDelete`: removes the current entry.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn stream_iterator_delete(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        with_cursor(key, KeyMode::WRITE, |key, cursor| {
            let id = cursor.current.take().ok_or(libc::ENOENT)?;
            cursor.fields.clear();
            key.with_keys(|session, key| session.remove_entry(key, id));
            Ok(())
        })
    }
}

/// Removes the first entries. Returns their number, or -1 and an error number.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe fn trim(key: *mut ModuleKey, flags: c_int, target: Option<TrimTarget>) -> c_longlong {
    let target = target.filter(|_| flags & !TRIM_APPROXIMATELY == 0);
    let Some(target) = target.filter(|_| !key.is_null()) else {
        errno::set(libc::EINVAL);
        return -1;
    };
    // SAFETY: the caller promises it.
    match unsafe { key_of_kind(key, KeyKind::Stream, KeyMode::WRITE) } {
        Ok(key) => {
            let is_approximate = flags & TRIM_APPROXIMATELY != 0;
            let removed = key.with_keys(|session, key| session.trim_stream(key, target, is_approximate));
            removed.unwrap_or(0) as c_longlong
        }
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// `StreamTrimByLength`: removes the first entries until a number of them is left. Returns the number of removed ones.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn stream_trim_by_length(key: *mut ModuleKey, flags: c_int, length: c_longlong) -> c_longlong {
    let target = u64::try_from(length).ok().map(TrimTarget::MaxLength);
    // SAFETY: the caller promises it.
    unsafe { trim(key, flags, target) }
}

/// `StreamTrimByID`: removes the entries before an id. Returns their number.
///
/// # Safety
/// The arguments are null, or an open key and an id (rule 1).
unsafe extern "C" fn stream_trim_by_id(key: *mut ModuleKey, flags: c_int, id: *const ForeignStreamId) -> c_longlong {
    // SAFETY: the caller promises it.
    unsafe { trim(key, flags, read_id(id).map(TrimTarget::MinId)) }
}
