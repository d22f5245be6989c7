//! Lists in the keyspace: their layout in an entry, and its changes.
//!
//! A list is packed in its entry while it reports `listpack` and its run is not too long; otherwise it is an object.
//! The reported encoding follows Valkey: a list that would outgrow `list-max-listpack-size` becomes a quicklist, and a
//! quicklist that shrank to one small node becomes a listpack. Before elements are added, [`prepare_for_addition`]
//! converts the entry to a layout that can take them. After elements were removed, [`shrink_layout`] converts it to a
//! smaller layout if possible.

use std::cell::RefCell;

use weft_table::{EntryRef, NewValue, PACKED_MAX_BYTES, ValueRef, packed_room};
use weft_values::Value;
use weft_values::list::packed::{HEADER_BYTES, MAX_RUN_BYTES, PackedList, PackedListMut, PackedListPlan};
use weft_values::list::{List, ListEnd, ListLimits, ListMut, ListRef};
use weft_values::listpack::{Element, ElementRun, listpack_bytes};
use weft_values::packed::PackedKind;

use crate::commands::error::CommandError;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use weft_config::{Config, id};

/// The size in bytes below which packed lists keep their free space.
const MIN_SHRINK_BYTES: usize = 64;

thread_local! {
    /// The buffer in which packed lists are built before they are stored in the table.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The configuration parameters of lists.
#[derive(Clone, Copy, Debug)]
pub struct ListSettings {
    /// `list-max-listpack-size`.
    pub fill: i64,
    /// `list-compress-depth`.
    pub depth: i64,
}

impl ListSettings {
    /// Returns the current settings.
    #[inline]
    pub fn from_config(config: &Config) -> Self {
        ListSettings {
            fill: config.integer(id::LIST_MAX_LISTPACK_SIZE),
            depth: config.integer(id::LIST_COMPRESS_DEPTH),
        }
    }

    fn limits(self) -> ListLimits {
        ListLimits::new(self.fill)
    }
}

/// Returns the list in a value.
///
/// # Errors
/// `WRONGTYPE` if it is not a list.
#[inline]
pub fn value_as_list(value: ValueRef<'_, Value>) -> Result<ListRef<'_>, CommandError> {
    match value {
        ValueRef::Packed(bytes) if PackedKind::of(bytes) == PackedKind::List => {
            Ok(ListRef::Packed(PackedList::new(bytes)))
        }
        ValueRef::Object(Value::List(list)) => Ok(ListRef::Large(list)),
        _ => Err(CommandError::WRONG_TYPE),
    }
}

/// Returns the list in an entry; `None` if there is no entry.
///
/// # Errors
/// `WRONGTYPE` if it holds another type.
#[inline]
pub fn entry_as_list(entry: Option<EntryRef<'_, Value>>) -> Result<Option<ListRef<'_>>, CommandError> {
    entry.map(|entry| value_as_list(entry.value())).transpose()
}

/// The number and size of the elements to be added to a list.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListAddition {
    count: usize,
    text_bytes: usize,
    run_bytes: usize,
}

impl ListAddition {
    /// Counts these elements.
    #[inline]
    pub fn from_elements<'e>(elements: impl Iterator<Item = &'e [u8]>) -> Self {
        elements.fold(Self::default(), |sum, element| ListAddition {
            count: sum.count + 1,
            text_bytes: sum.text_bytes + element.len(),
            run_bytes: sum.run_bytes + Element::of(element).run_bytes(),
        })
    }

    fn exceeds_limits(self, run_bytes: usize, count: usize, settings: ListSettings) -> bool {
        settings
            .limits()
            .is_exceeded(listpack_bytes(run_bytes) + self.text_bytes, count + self.count)
    }
}

/// The conversion of an entry before elements are added.
enum GrowthStep {
    None,
    Grow,
    BecomeLarge,
    BecomeQuicklist,
}

/// Converts an existing list to a form that can take an addition at `end`.
pub fn prepare_for_addition(key: &mut KeyWrite<'_>, end: ListEnd, addition: ListAddition, settings: ListSettings) {
    let Some(entry) = key.entry() else { return };
    let step = match entry.value() {
        ValueRef::Packed(bytes) => {
            let list = PackedList::new(bytes);
            let run_bytes = list.run().bytes().len();
            if addition.exceeds_limits(run_bytes, list.len(), settings) {
                GrowthStep::BecomeQuicklist
            } else if list.free_bytes() >= addition.run_bytes {
                GrowthStep::None
            } else if run_bytes + addition.run_bytes > MAX_RUN_BYTES {
                GrowthStep::BecomeLarge
            } else {
                GrowthStep::Grow
            }
        }
        ValueRef::Object(Value::List(list)) if !list.is_quicklist() => {
            let run_bytes = list.single_run().map_or(0, |run| run.bytes().len());
            if addition.exceeds_limits(run_bytes, list.len(), settings) {
                GrowthStep::BecomeQuicklist
            } else {
                GrowthStep::None
            }
        }
        _ => GrowthStep::None,
    };
    match step {
        GrowthStep::None => {}
        GrowthStep::Grow => reserve_free_space(key, addition, end),
        GrowthStep::BecomeLarge => unpack_list(key),
        GrowthStep::BecomeQuicklist => {
            unpack_list(key);
            change_large(key, |list| list.convert_to_quicklist(settings.fill, settings.depth));
        }
    }
}

/// Reserves free space in a packed list for an addition, and more if that costs no memory.
fn reserve_free_space(key: &mut KeyWrite<'_>, addition: ListAddition, free_at: ListEnd) {
    SCRATCH.with_borrow_mut(|scratch| {
        let Some(entry) = key.entry() else { return };
        let ValueRef::Packed(bytes) = entry.value() else { return };
        let list = PackedList::new(bytes);
        let plan = PackedListPlan {
            added_elements: addition.count,
            added_bytes: addition.run_bytes,
            free_end: free_at,
            ..PackedListPlan::of_run(list.run(), list.len())
        };
        let length = packed_room(plan.min_bytes(), entry.key().len(), entry.expire_at_ms());
        plan.build(scratch, length);
        key.reencode(NewValue::Packed(scratch));
    });
}

/// Converts a packed list to an object.
fn unpack_list(key: &mut KeyWrite<'_>) {
    let Some(entry) = key.entry() else { return };
    if let ValueRef::Packed(bytes) = entry.value() {
        let packed = PackedList::new(bytes);
        let list = List::listpack(packed.run().bytes(), packed.len());
        key.reencode(NewValue::Object(Value::List(list)));
    }
}

/// Changes an existing list.
#[inline]
pub fn change_list<R: Default>(key: &mut KeyWrite<'_>, change: impl FnOnce(&mut ListMut<'_>) -> R) -> R {
    let Some(mut entry) = key.entry_mut() else {
        return R::default();
    };
    if let Some(bytes) = entry.packed_mut() {
        return change(&mut ListMut::Packed(PackedListMut::new(bytes)));
    }
    match entry.object_mut() {
        Some(Value::List(list)) => change(&mut ListMut::Large(list)),
        _ => R::default(),
    }
}

/// Changes a list that is an object.
fn change_large(key: &mut KeyWrite<'_>, change: impl FnOnce(&mut List)) {
    if let Some(mut entry) = key.entry_mut()
        && let Some(Value::List(list)) = entry.object_mut()
    {
        change(list);
    }
}

/// Adds elements one after the other at an end of a list, which is created if the key is missing. Returns its length.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type.
pub fn push_elements<'e>(
    key: &mut KeyWrite<'_>,
    end: ListEnd,
    elements: impl Iterator<Item = &'e [u8]> + Clone,
    settings: ListSettings,
) -> Result<usize, CommandError> {
    let addition = ListAddition::from_elements(elements.clone());
    if entry_as_list(key.entry())?.is_some() {
        prepare_for_addition(key, end, addition, settings);
    } else {
        create_list(key, end, addition, settings);
    }
    Ok(change_list(key, |list| {
        elements.for_each(|element| list.push(end, element));
        list.len()
    }))
}

/// Creates an empty list that can take an addition.
fn create_list(key: &mut KeyWrite<'_>, end: ListEnd, addition: ListAddition, settings: ListSettings) {
    if addition.exceeds_limits(0, 0, settings) {
        let list = List::quicklist(settings.fill, settings.depth);
        key.set(NewValue::Object(Value::List(list)), ExpiryUpdate::Remove);
    } else if addition.run_bytes > MAX_RUN_BYTES {
        key.set(
            NewValue::Object(Value::List(List::listpack(&[], 0))),
            ExpiryUpdate::Remove,
        );
    } else {
        SCRATCH.with_borrow_mut(|scratch| {
            let plan = PackedListPlan {
                added_elements: addition.count,
                added_bytes: addition.run_bytes,
                free_end: end,
                ..PackedListPlan::of_run(ElementRun::new(&[]), 0)
            };
            plan.build(scratch, packed_room(plan.min_bytes(), key.name().len(), None));
            key.set(NewValue::Packed(scratch), ExpiryUpdate::Remove);
        });
    }
}

/// The conversion of an entry after elements were removed.
enum ShrinkStep {
    Keep,
    Delete,
    Shrink,
    BecomeListpack,
    Pack,
}

/// Adapts a list after elements were removed: deletes the key if it is empty, and returns `true`; otherwise converts it
/// to a smaller layout if possible.
pub fn shrink_layout(key: &mut KeyWrite<'_>, settings: ListSettings) -> bool {
    shrink_layout_with(key, settings, true)
}

/// Replaces the value by a list of these elements, at least one. Its layout is that of a list that grew as a quicklist,
/// element by element, and then became a listpack if possible.
pub fn replace_list<'e>(key: &mut KeyWrite<'_>, elements: impl Iterator<Item = &'e [u8]>, settings: ListSettings) {
    let mut list = List::quicklist(settings.fill, settings.depth);
    elements.for_each(|element| list.push(ListEnd::Tail, element));
    debug_assert!(!list.is_empty());
    key.set(NewValue::Object(Value::List(list)), ExpiryUpdate::Remove);
    shrink_layout_with(key, settings, false);
}

/// Like [`shrink_layout`]; with `is_shrinking` the list becomes a listpack later than a new one.
fn shrink_layout_with(key: &mut KeyWrite<'_>, settings: ListSettings, is_shrinking: bool) -> bool {
    let Some(entry) = key.entry() else { return false };
    let rest = match entry.value() {
        ValueRef::Packed(bytes) => {
            let list = PackedList::new(bytes);
            if list.is_empty() {
                ShrinkStep::Delete
            } else if list.free_bytes() > MIN_SHRINK_BYTES + list.run().bytes().len() {
                ShrinkStep::Shrink
            } else {
                ShrinkStep::Keep
            }
        }
        ValueRef::Object(Value::List(list)) if list.is_empty() => ShrinkStep::Delete,
        ValueRef::Object(Value::List(list)) => {
            let listpack = !list.is_quicklist() || list.fits_listpack(settings.limits(), is_shrinking);
            // With hysteresis, so that a list near the limit is not converted at every step.
            let longest = if is_shrinking { MAX_RUN_BYTES / 2 } else { MAX_RUN_BYTES };
            let short = list.single_run().is_some_and(|run| run.bytes().len() <= longest);
            match (listpack, short) {
                (true, true) => ShrinkStep::Pack,
                (true, false) if list.is_quicklist() => ShrinkStep::BecomeListpack,
                _ => ShrinkStep::Keep,
            }
        }
        _ => ShrinkStep::Keep,
    };
    match rest {
        ShrinkStep::Keep => {}
        ShrinkStep::Delete => {
            key.delete_emptied();
            return true;
        }
        ShrinkStep::Shrink => reserve_free_space(key, ListAddition::default(), ListEnd::Tail),
        ShrinkStep::BecomeListpack => change_large(key, List::convert_to_listpack),
        ShrinkStep::Pack => pack_into_entry(key),
    }
    false
}

/// Packs a list of one short run into its entry.
fn pack_into_entry(key: &mut KeyWrite<'_>) {
    SCRATCH.with_borrow_mut(|scratch| {
        let Some(entry) = key.entry() else { return };
        let ValueRef::Object(Value::List(list)) = entry.value() else {
            return;
        };
        let Some(run) = list.single_run() else { return };
        let plan = PackedListPlan::of_run(run, list.len());
        let length = packed_room(plan.min_bytes(), entry.key().len(), entry.expire_at_ms());
        plan.build(scratch, length);
        key.reencode(NewValue::Packed(scratch));
    });
}

const _: () = assert!(HEADER_BYTES + MAX_RUN_BYTES <= PACKED_MAX_BYTES);
