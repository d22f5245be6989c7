//! An entry: header, key, expiry and value of one key in one allocation.
//!
//! ```text
//!   0        4      5 (or 13)     +0, 6 or 8      +key length
//!   +--------+------+--------------+------- ... ---+--------- ... --+
//!   | meta   | key  | expiry, ms   | key           | value part     |
//!   | atomic | len  | since epoch  |               |                |
//!   +--------+------+--------------+------- ... ---+--------- ... --+
//!
//!   meta:     bits 0..24 LRU/LFU clock | 24..28 kind | 28 raw | 29, 30 width of the expiry | 31 packed
//!   key len:  one byte below 255, else 255 and eight bytes
//!   value:    Int1, Int2, Int4, Int8    the number in so many bytes
//!             Inline1, Inline2          length in one or two bytes, then the bytes
//!             Exact                     48-bit pointer to size_class(length) bytes, 16-bit length
//!             Blob                      a `Blob`, at a multiple of 8
//!             Object                    the pointer of a `Shared<V>`
//! ```
//!
//! A packed collection is stored like a string, inline or exact; a bit of the meta word distinguishes them.
//!
//! The allocation is `entry_class` of the sum, aligned to 8. So the header alone determines how to free it (rule 2),
//! and a 16-byte key with an 8-byte value takes 32 bytes.
//!
//! *Inline or exact?* Inline saves a cache miss, exact saves memory when the string fills a size class of its own (512
//! bytes and a header would take 640). Inline is used unless it costs more than 16 bytes. An integer takes the widest
//! form for which the smallest possible size class has room, so that a counter seldom changes its form.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[cfg(feature = "jemalloc-memory")]
use crate::cells;
use crate::shape::{
    ALIGNMENT, CLOCK_MASK, EXACT_MAX_BYTES, EXPIRES, EXPIRES_WIDE, KIND_SHIFT, KINDS, Kind, LONG_KEY, META_BYTES,
    PACKED, POINTER_BYTES, Shape,
};
use crate::size_class::size_class;
use crate::value::{Blob, NewValue, Shared, ValueRef};

/// The number of address bits in an external string's pointer; its length is above them.
const EXACT_ADDRESS_BITS: u32 = 48;

const RAW: u32 = 1 << 28;

const _: () = assert!(size_of::<Blob>() == POINTER_BYTES && align_of::<Blob>() == POINTER_BYTES);
const _: () = assert!(EXACT_MAX_BYTES <= u16::MAX as usize);

fn entry_layout(class: usize) -> Layout {
    Layout::from_size_align(class, ALIGNMENT).expect("keys and values fit the address space")
}

/// Allocates memory for an entry of this class: a cell, or its own allocation.
#[inline]
pub(crate) fn allocate_class(class: usize) -> NonNull<u8> {
    #[cfg(feature = "jemalloc-memory")]
    if let Some(cell_class) = cells::CellClass::of_size_class(class) {
        return cells::allocate(cell_class);
    }
    let layout = entry_layout(class);
    // SAFETY: the layout is not empty.
    match NonNull::new(unsafe { alloc(layout) }) {
        Some(allocation) => allocation,
        None => handle_alloc_error(layout),
    }
}

/// Returns the layout of an external string of `len` bytes.
fn exact_layout(len: usize) -> Layout {
    Layout::from_size_align(size_class(len), 1).expect("external strings are short")
}

/// A handle of a live entry. Its user is responsible for rule 1: the entry is alive, no thread changes it while it is
/// read, and only its exclusive holder calls the methods that change it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry(NonNull<u8>);

impl Entry {
    /// # Safety
    /// `entry` came from [`Entry::into_raw`] and rule 1 holds while the handle is used.
    #[inline]
    pub(crate) unsafe fn from_raw(entry: *mut u8) -> Self {
        // SAFETY: rule 1, by the caller; entries are not null.
        Self(unsafe { NonNull::new_unchecked(entry) })
    }

    #[inline]
    pub(crate) fn into_raw(self) -> *mut u8 {
        self.0.as_ptr()
    }

    #[inline]
    fn at(self, offset: usize) -> *mut u8 {
        // SAFETY: rule 2: offsets come from the entry's shape and lie in its allocation.
        unsafe { self.0.as_ptr().add(offset) }
    }

    #[inline]
    fn meta(&self) -> &AtomicU32 {
        // SAFETY: rule 3: the first word is accessed only as this atomic; it is aligned to 8.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast()) }
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        KINDS[(self.meta().load(Relaxed) >> KIND_SHIFT & 15) as usize]
    }

    /// Returns `true` if the value owns an allocation outside the entry.
    pub(crate) fn is_external(self) -> bool {
        matches!(self.kind(), Kind::Exact | Kind::Blob | Kind::Object)
    }

    #[inline]
    pub(crate) fn clock(self) -> u32 {
        self.meta().load(Relaxed) & CLOCK_MASK
    }

    #[inline]
    pub(crate) fn set_clock(self, clock: u32) {
        let meta = self.meta().load(Relaxed);
        self.meta().store(meta & !CLOCK_MASK | clock & CLOCK_MASK, Relaxed);
    }

    #[inline]
    pub(crate) fn is_raw(self) -> bool {
        self.meta().load(Relaxed) & RAW != 0
    }

    pub(crate) fn set_raw(self) {
        self.meta().store(self.meta().load(Relaxed) | RAW, Relaxed);
    }

    /// Returns `true` if the bytes are a packed collection instead of a string.
    #[inline]
    pub(crate) fn is_packed(self) -> bool {
        self.meta().load(Relaxed) & PACKED != 0
    }

    #[inline]
    fn expiry_bytes(self) -> usize {
        match self.meta().load(Relaxed) & (EXPIRES | EXPIRES_WIDE) {
            0 => 0,
            EXPIRES => 6,
            _ => 8,
        }
    }

    #[inline]
    fn key_len(self) -> usize {
        // SAFETY: rule 2: the header is initialised.
        unsafe {
            match *self.at(META_BYTES) {
                LONG_KEY => self.at(META_BYTES + 1).cast::<u64>().read_unaligned() as usize,
                short => usize::from(short),
            }
        }
    }

    /// Returns the entry's shape, except the length of an inline string.
    #[inline]
    fn shape_without_length(self) -> Shape {
        Shape {
            kind: self.kind(),
            expiry_bytes: self.expiry_bytes(),
            key_len: self.key_len(),
            inline_len: 0,
            packed: self.is_packed(),
        }
    }

    #[inline]
    pub(crate) fn shape(self) -> Shape {
        let mut shape = self.shape_without_length();
        let value = self.at(shape.value_at());
        // SAFETY: rule 2: an inline string starts with its length.
        shape.inline_len = unsafe {
            match shape.kind {
                Kind::Inline1 => usize::from(*value),
                Kind::Inline2 => usize::from(value.cast::<u16>().read_unaligned()),
                _ => 0,
            }
        };
        shape
    }

    #[inline]
    pub(crate) fn key<'a>(self) -> &'a [u8] {
        let shape = self.shape_without_length();
        // SAFETY: rules 1 and 2: the key is initialised and lives as long as the holder's access.
        unsafe { slice::from_raw_parts(self.at(shape.key_at()), shape.key_len) }
    }

    #[inline]
    pub(crate) fn expire_at_ms(self) -> Option<u64> {
        let bytes = self.expiry_bytes();
        if bytes == 0 {
            return None;
        }
        let at = META_BYTES + if self.key_len() < usize::from(LONG_KEY) { 1 } else { 9 };
        let mut expiry = [0; 8];
        // SAFETY: rule 2: this many bytes of expiry follow the key's length.
        unsafe { ptr::copy_nonoverlapping(self.at(at), expiry.as_mut_ptr(), bytes) };
        Some(u64::from_le_bytes(expiry))
    }

    /// Returns the start of the value part.
    #[inline]
    pub(crate) fn value_part(self) -> *mut u8 {
        self.at(self.shape_without_length().value_at())
    }

    #[inline]
    pub(crate) fn int(self) -> Option<i64> {
        let bytes = match self.kind() {
            Kind::Int1 => 1,
            Kind::Int2 => 2,
            Kind::Int4 => 4,
            Kind::Int8 => 8,
            _ => return None,
        };
        let mut number = [0; 8];
        // SAFETY: rule 2: the number's bytes are the value part.
        unsafe { ptr::copy_nonoverlapping(self.value_part(), number.as_mut_ptr(), bytes) };
        let unused = 64 - 8 * bytes as u32;
        Some(i64::from_le_bytes(number) << unused >> unused)
    }

    /// Returns the address and the length of an inline or external string.
    #[inline]
    pub(crate) fn string(self) -> Option<(*mut u8, usize)> {
        let value = self.value_part();
        // SAFETY: rules 2 and 5: the value part has the form of its kind.
        unsafe {
            match self.kind() {
                Kind::Inline1 => Some((value.add(1), usize::from(*value))),
                Kind::Inline2 => Some((value.add(2), usize::from(value.cast::<u16>().read_unaligned()))),
                Kind::Exact => {
                    let packed = value.cast::<*mut u8>().read_unaligned();
                    let bytes = packed.map_addr(|a| a & ((1 << EXACT_ADDRESS_BITS) - 1));
                    Some((bytes, packed.addr() >> EXACT_ADDRESS_BITS))
                }
                _ => None,
            }
        }
    }

    #[inline]
    pub(crate) fn blob(self) -> Option<*mut Blob> {
        (self.kind() == Kind::Blob).then(|| self.value_part().cast())
    }

    #[inline]
    pub(crate) fn object<V>(self) -> Option<NonNull<V>> {
        if self.kind() != Kind::Object {
            return None;
        }
        // SAFETY: rules 2 and 5: the value part is the pointer of an object.
        NonNull::new(unsafe { self.value_part().cast::<*mut V>().read_unaligned() })
    }

    #[inline]
    pub(crate) fn value<'a, V>(self) -> ValueRef<'a, V> {
        if let Some((bytes, len)) = self.string() {
            // SAFETY: rules 1 and 5: the string is initialised and lives as long as the entry.
            let bytes = unsafe { slice::from_raw_parts(bytes, len) };
            return if self.is_packed() {
                ValueRef::Packed(bytes)
            } else {
                ValueRef::Bytes(bytes)
            };
        }
        if let Some(number) = self.int() {
            return ValueRef::Int(number);
        }
        // SAFETY: rules 1 and 5: blob and object are initialised and live as long as the entry.
        unsafe {
            match self.object::<V>() {
                Some(object) => ValueRef::Object(object.as_ref()),
                None => ValueRef::Blob(&*self.value_part().cast::<Blob>()),
            }
        }
    }

    pub(crate) fn allocated_bytes<V>(self) -> usize {
        let external = match (self.kind(), self.value::<V>()) {
            (Kind::Exact, ValueRef::Bytes(bytes) | ValueRef::Packed(bytes)) => size_class(bytes.len()),
            (_, ValueRef::Blob(blob)) => blob.allocated_bytes(),
            (_, ValueRef::Object(_)) => Shared::<V>::allocated_bytes(),
            _ => 0,
        };
        self.shape().class() + external
    }

    /// Allocates an entry, which the caller owns.
    pub(crate) fn create<V>(key: &[u8], value: NewValue<'_, V>, expire_at_ms: Option<u64>, clock: u32) -> Self {
        let shape = Shape::of_value(&value, key.len(), expire_at_ms);
        let entry = Self::allocate(shape);
        entry.write_head(shape, expire_at_ms, clock);
        // SAFETY: rule 2: the allocation was made for this shape, and no other handle exists.
        unsafe {
            ptr::copy_nonoverlapping(key.as_ptr(), entry.at(shape.key_at()), key.len());
            entry.write_value(shape, value);
        }
        entry
    }

    fn allocate(shape: Shape) -> Self {
        Self(allocate_class(shape.class()))
    }

    fn write_head(self, shape: Shape, expire_at_ms: Option<u64>, clock: u32) {
        // SAFETY: rule 2: header and expiry lie in an allocation made for this shape; rule 3: this
        // is the exclusive holder.
        unsafe {
            self.0.as_ptr().cast::<u32>().write(shape.meta(clock));
            if shape.key_len < usize::from(LONG_KEY) {
                *self.at(META_BYTES) = shape.key_len as u8;
            } else {
                *self.at(META_BYTES) = LONG_KEY;
                self.at(META_BYTES + 1)
                    .cast::<u64>()
                    .write_unaligned(shape.key_len as u64);
            }
        }
        self.write_expiry(shape, expire_at_ms);
    }

    fn write_expiry(self, shape: Shape, expire_at_ms: Option<u64>) {
        let expiry = expire_at_ms.unwrap_or(0).to_le_bytes();
        // SAFETY: rule 2: this many bytes of expiry lie there.
        unsafe {
            ptr::copy_nonoverlapping(expiry.as_ptr(), self.at(shape.expiry_at()), shape.expiry_bytes);
        }
    }

    /// # Safety
    /// The allocation has the shape's class, and the value part owns nothing.
    unsafe fn write_value<V>(self, shape: Shape, value: NewValue<'_, V>) {
        let at = self.at(shape.value_at());
        // SAFETY: rules 2 and 5: the value part has room for what the shape's kind stores.
        unsafe {
            match value {
                NewValue::Int(number) => {
                    let bytes = number.to_le_bytes();
                    ptr::copy_nonoverlapping(bytes.as_ptr(), at, shape.value_bytes());
                }
                NewValue::Bytes(bytes) if shape.kind == Kind::Blob => {
                    at.cast::<Blob>().write(Blob::from_slice(bytes));
                }
                NewValue::Bytes(bytes) | NewValue::Packed(bytes) if shape.kind == Kind::Exact => {
                    write_exact(at, new_exact(bytes), bytes.len());
                }
                NewValue::Bytes(bytes) | NewValue::Packed(bytes) => {
                    write_inline_len(at, shape);
                    let start = shape.value_bytes() - bytes.len();
                    ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(start), bytes.len());
                }
                NewValue::Blob(blob) => at.cast::<Blob>().write(blob),
                NewValue::Object(object) => write_object(at, Shared::new(object)),
                NewValue::Shared(object) => write_object(at, object),
            }
        }
    }

    /// Gives the entry a new value in its own allocation if that has the right size, and returns the old external
    /// value. The error is the value that did not fit.
    pub(crate) fn overwrite<'v, V>(
        self,
        value: NewValue<'v, V>,
        expire_at_ms: Option<u64>,
        clock: u32,
    ) -> Result<External<V>, NewValue<'v, V>> {
        let old = self.shape();
        let new = Shape::of_value(&value, old.key_len, expire_at_ms);
        if old.class() != new.class() {
            return Err(value);
        }
        let mut external = External::None;
        let mut reusable = None;
        match (&value, self.string()) {
            (NewValue::Bytes(bytes) | NewValue::Packed(bytes), Some((buffer, len)))
                if old.kind == Kind::Exact && new.kind == Kind::Exact && size_class(bytes.len()) == size_class(len) =>
            {
                reusable = Some(buffer);
            }
            // SAFETY: rule 5: the value part is overwritten below.
            _ => external = unsafe { self.take_external() },
        }
        // SAFETY: rule 2: the allocation has the new shape's class; the key moves first, while the old shape describes
        // its position, and nothing owned is left in the value part.
        unsafe {
            if old.key_at() != new.key_at() {
                ptr::copy(self.at(old.key_at()), self.at(new.key_at()), old.key_len);
            }
            self.write_head(new, expire_at_ms, clock);
            match (value, reusable) {
                (NewValue::Bytes(bytes) | NewValue::Packed(bytes), Some(buffer)) => {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len());
                    write_exact(self.at(new.value_at()), buffer, bytes.len());
                }
                (value, _) => self.write_value(new, value),
            }
        }
        Ok(external)
    }

    /// Returns the object for changing. If other handles share it, the entry gets a copy first, and its old handle is
    /// returned. By rule 8 the exclusive holder may change the returned object.
    #[inline]
    pub(crate) fn unique_object<V: Clone>(self) -> Option<(NonNull<V>, Option<Shared<V>>)> {
        let object = self.object::<V>()?;
        // SAFETY: rules 5 and 8: the entry owns a reference.
        if unsafe { Shared::is_unique_raw(object) } {
            return Some((object, None));
        }
        Some(self.copy_object(object))
    }

    #[cold]
    fn copy_object<V: Clone>(self, object: NonNull<V>) -> (NonNull<V>, Option<Shared<V>>) {
        // SAFETY: rule 8: the object lives, and it is not changed while it is shared.
        let copy = Shared::new(unsafe { object.as_ref() }.clone()).into_raw();
        // SAFETY: rules 2, 5 and 8: the value part is an object's pointer; the reference that it owned is taken out.
        unsafe {
            self.value_part().cast::<NonNull<V>>().write_unaligned(copy);
            (copy, Some(Shared::from_raw(object)))
        }
    }

    /// Overwrites a number with one that fits the same bytes: the fast path of counters.
    #[inline]
    pub(crate) fn overwrite_int(self, number: i64) -> bool {
        let fits = match self.kind() {
            Kind::Int1 => i8::try_from(number).is_ok(),
            Kind::Int2 => i16::try_from(number).is_ok(),
            Kind::Int4 => i32::try_from(number).is_ok(),
            Kind::Int8 => true,
            _ => false,
        };
        if fits {
            let shape = self.shape_without_length();
            // SAFETY: rule 2: the value part keeps its kind.
            unsafe { self.write_value::<()>(shape, NewValue::Int(number)) };
        }
        fits
    }

    /// Overwrites a string with one of the same length: the fast path for values of constant size. The string is no
    /// longer raw.
    #[inline]
    pub(crate) fn overwrite_string(self, bytes: &[u8]) -> bool {
        let meta = self.meta().load(Relaxed);
        let Some((at, len)) = self.string().filter(|_| meta & PACKED == 0) else {
            return false;
        };
        if len != bytes.len() {
            return false;
        }
        // SAFETY: rules 2 and 5: the string has this many bytes; rule 3: this is the exclusive holder.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, len) };
        self.meta().store(meta & !RAW, Relaxed);
        true
    }

    /// Changes the expiry in place if its field has the right width already.
    pub(crate) fn overwrite_expiry(self, expire_at_ms: Option<u64>) -> bool {
        let shape = self.shape_without_length();
        let fits = shape.with_expiry(expire_at_ms).expiry_bytes == shape.expiry_bytes;
        if fits {
            self.write_expiry(shape, expire_at_ms);
        }
        fits
    }

    /// Moves the value, with what it owns, into a new entry. The old entry is left as an empty allocation of the
    /// returned class, which only [`free_allocation`] may access.
    pub(crate) fn rebuild(self, key: &[u8], expire_at_ms: Option<u64>) -> (Self, usize) {
        let old = self.shape();
        let new = old.with_expiry(expire_at_ms).with_key_len(key.len());
        let entry = Self::allocate(new);
        entry.write_head(new, expire_at_ms, self.clock());
        if self.is_raw() {
            entry.set_raw();
        }
        // SAFETY: rules 2 and 5: value parts of one kind are moved as plain bytes, and the old entry's value part is
        // never used again.
        unsafe {
            ptr::copy_nonoverlapping(key.as_ptr(), entry.at(new.key_at()), key.len());
            ptr::copy_nonoverlapping(self.at(old.value_at()), entry.at(new.value_at()), old.value_bytes());
        }
        (entry, old.class())
    }

    /// Copies the entry to another allocation, which owns its value from then on.
    ///
    /// # Safety
    /// Rules 1, 2 and 13: the caller owns the entry, and the other allocation has its class. Only
    /// [`free_relocated`] may access the old one afterwards.
    pub(crate) unsafe fn copy_to(self, target: NonNull<u8>) -> Self {
        // SAFETY: rule 2: this many bytes are initialised, and there is room for them; rule 3: the caller is the
        // exclusive holder.
        unsafe { ptr::copy_nonoverlapping(self.0.as_ptr(), target.as_ptr(), self.shape().bytes()) };
        Self(target)
    }

    /// Replaces the key by one of the same length.
    pub(crate) fn overwrite_key(self, key: &[u8]) -> bool {
        let shape = self.shape_without_length();
        let fits = shape.key_len == key.len();
        if fits {
            // SAFETY: rule 2: the key keeps its position and length.
            unsafe { ptr::copy_nonoverlapping(key.as_ptr(), self.at(shape.key_at()), key.len()) };
        }
        fits
    }

    /// Extends an inline or external string with zeros to `len` bytes if its allocation has room.
    pub(crate) fn extend_in_place(self, len: usize) -> bool {
        let shape = self.shape();
        let Some((bytes, old_len)) = self.string() else {
            return false;
        };
        debug_assert!(len >= old_len);
        if shape.kind == Kind::Exact {
            if size_class(len) != size_class(old_len) || len > EXACT_MAX_BYTES {
                return false;
            }
            // SAFETY: rules 2 and 5: the external allocation has the same class for both lengths.
            unsafe { write_exact(self.at(shape.value_at()), bytes, len) };
        } else {
            match shape.with_inline_len(len) {
                // SAFETY: rule 2: the length field has room for the new length.
                Some(longer) if longer.class() == shape.class() => unsafe {
                    write_inline_len(self.at(shape.value_at()), longer);
                },
                _ => return false,
            }
        }
        // SAFETY: rule 2: the class of the new length is that of the allocation.
        unsafe { ptr::write_bytes(bytes.add(old_len), 0, len - old_len) };
        true
    }

    /// Takes out what the value owns.
    ///
    /// # Safety
    /// Rule 5: the value part is not used again before it is overwritten.
    pub(crate) unsafe fn take_external<V>(self) -> External<V> {
        // SAFETY: rule 5: what the value part owned is owned by the result now.
        unsafe {
            match self.kind() {
                Kind::Exact => match self.string() {
                    Some((bytes, len)) => External::Exact(ExactString { bytes, len }),
                    None => External::None,
                },
                Kind::Blob => External::Blob(self.value_part().cast::<Blob>().read()),
                Kind::Object => match self.object::<V>() {
                    Some(object) => External::Object(Shared::from_raw(object)),
                    None => External::None,
                },
                _ => External::None,
            }
        }
    }

    /// Frees the entry and all that it owns.
    ///
    /// # Safety
    /// Rule 1: the caller owns the entry; no handle is used again.
    pub(crate) unsafe fn free<V>(self) {
        let class = self.shape().class();
        // SAFETY: rules 1, 2 and 5: the owner gives up the entry, external value first.
        unsafe {
            drop(self.take_external::<V>());
            free_allocation(self.into_raw(), class);
        }
    }
}

/// Frees an entry's allocation, but nothing that its value owns.
///
/// # Safety
/// Rules 1 and 2: the caller owns the allocation, and it has this class.
pub(crate) unsafe fn free_allocation(entry: *mut u8, class: usize) {
    #[cfg(feature = "jemalloc-memory")]
    if let Some(cell_class) = cells::CellClass::of_size_class(class) {
        // SAFETY: rules 2 and 10: entries of this class are cells, and the owner gives this one up.
        return unsafe { cells::free(entry, cell_class) };
    }
    // SAFETY: rule 2: allocated with this layout.
    unsafe { dealloc(entry, entry_layout(class)) }
}

/// Frees an entry's allocation after its contents were moved, but nothing that its value owns. A cell goes to its pool,
/// so that its run becomes empty.
///
/// # Safety
/// Rules 1 and 2: the caller owns the allocation, and it has this class.
pub(crate) unsafe fn free_relocated(entry: *mut u8, class: usize) {
    #[cfg(feature = "jemalloc-memory")]
    if let Some(cell_class) = cells::CellClass::of_size_class(class) {
        // SAFETY: rules 2 and 10: entries of this class are cells, and the owner gives this one up.
        return unsafe { cells::free_to_pool(entry, cell_class) };
    }
    // SAFETY: rules 1 and 2, by the caller.
    unsafe { free_allocation(entry, class) }
}

/// # Safety
/// `at` is the value part of an entry with the inline shape `shape`.
unsafe fn write_inline_len(at: *mut u8, shape: Shape) {
    // SAFETY: rule 2: an inline string starts with its length.
    unsafe {
        if shape.kind == Kind::Inline1 {
            *at = shape.inline_len as u8;
        } else {
            at.cast::<u16>().write_unaligned(shape.inline_len as u16);
        }
    }
}

/// Allocates an external string with these bytes.
pub(crate) fn new_exact(bytes: &[u8]) -> *mut u8 {
    let layout = exact_layout(bytes.len());
    // SAFETY: size classes are not empty.
    let buffer = unsafe { alloc(layout) };
    if buffer.is_null() {
        handle_alloc_error(layout);
    }
    assert!(buffer.addr() >> EXACT_ADDRESS_BITS == 0, "addresses have 48 bits");
    // SAFETY: the allocation is new and has room for the bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
    buffer
}

/// Frees an external string of `len` bytes.
///
/// # Safety
/// Rule 5: [`new_exact`] or [`Vec`] allocated it with the class of this length, and the caller owns it.
pub(crate) unsafe fn free_exact(bytes: *mut u8, len: usize) {
    // SAFETY: rule 5, by the caller.
    unsafe { dealloc(bytes, exact_layout(len)) }
}

/// # Safety
/// `at` is the value part of an external string.
pub(crate) unsafe fn write_exact(at: *mut u8, buffer: *mut u8, len: usize) {
    let packed = buffer.map_addr(|address| address | len << EXACT_ADDRESS_BITS);
    // SAFETY: rule 2: the value part has room for a pointer.
    unsafe { at.cast::<*mut u8>().write_unaligned(packed) }
}

/// # Safety
/// `at` is the value part of an object, and owns nothing.
pub(crate) unsafe fn write_object<V>(at: *mut u8, object: Shared<V>) {
    // SAFETY: rule 2: the value part has room for a pointer.
    unsafe { at.cast::<NonNull<V>>().write_unaligned(object.into_raw()) }
}

/// A string in its own allocation of `size_class(len)` bytes.
#[derive(Debug)]
pub(crate) struct ExactString {
    bytes: *mut u8,
    len: usize,
}

// SAFETY: rule 5: the string is owned and plain bytes.
unsafe impl Send for ExactString {}
// SAFETY: rule 5: a shared reference only reads.
unsafe impl Sync for ExactString {}

impl ExactString {
    pub(crate) fn allocated_bytes(&self) -> usize {
        size_class(self.len)
    }

    /// Converts the string to a vector without copying.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        let string = std::mem::ManuallyDrop::new(self);
        // SAFETY: rule 5: allocated with `exact_layout`, which is a vector's for that capacity.
        unsafe { Vec::from_raw_parts(string.bytes, string.len, size_class(string.len)) }
    }
}

impl Drop for ExactString {
    fn drop(&mut self) {
        // SAFETY: rule 5: owned, and allocated with this layout.
        unsafe { free_exact(self.bytes, self.len) }
    }
}

/// The allocation or reference that a value owned outside its entry.
#[derive(Debug)]
pub(crate) enum External<V> {
    None,
    Exact(ExactString),
    Blob(Blob),
    Object(Shared<V>),
}

/// A key and its value, accessed under a lease of the table.
pub struct EntryRef<'a, V> {
    entry: Entry,
    lease: PhantomData<&'a V>,
}

impl<V> Clone for EntryRef<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for EntryRef<'_, V> {}

impl<'a, V> EntryRef<'a, V> {
    /// # Safety
    /// Rule 1: the entry stays alive and unchanged for `'a`.
    #[inline]
    pub(crate) unsafe fn new(entry: Entry) -> Self {
        Self {
            entry,
            lease: PhantomData,
        }
    }

    /// Returns the key.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.entry.key()
    }

    /// Returns the value.
    #[inline]
    #[must_use]
    pub fn value(&self) -> ValueRef<'a, V> {
        self.entry.value()
    }

    /// Returns a handle of the object, if the value is one.
    #[must_use]
    pub fn share(&self) -> Option<Shared<V>> {
        let object = self.entry.object::<V>()?;
        // SAFETY: rules 1, 5 and 8: the entry owns a reference and is borrowed.
        Some(unsafe { Shared::clone_raw(object) })
    }

    /// Returns `true` if another handle of the object or blob exists, so that changing it requires a copy.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        match self.value() {
            ValueRef::Blob(blob) => !blob.is_unique(),
            // SAFETY: rules 1, 5 and 8: the entry owns a reference and is borrowed.
            _ => (self.entry.object::<V>()).is_some_and(|object| unsafe { !Shared::is_unique_raw(object) }),
        }
    }

    /// Returns the time at which the key expires, in milliseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub fn expire_at_ms(&self) -> Option<u64> {
        self.entry.expire_at_ms()
    }

    /// Returns the 24-bit LRU or LFU clock.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> u32 {
        self.entry.clock()
    }

    /// Sets the clock to the low 24 bits of `clock`. Readers may do this concurrently: one of the values stays.
    #[inline]
    pub fn set_clock(&self, clock: u32) {
        self.entry.set_clock(clock);
    }

    /// Returns `true` if the string was modified in place, so that OBJECT ENCODING must call it raw.
    #[inline]
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.entry.is_raw()
    }

    /// Returns the bytes that entry and value take from the allocator; of an object only its own size, not what it
    /// owns.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.entry.allocated_bytes::<V>()
    }
}
