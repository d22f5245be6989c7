//! Room for growth that follows the allocator's size classes, so that nothing allocated lies idle unknown.

use crate::size_class::size_class;

/// Makes room for `more` elements: the size class that holds them, and no more.
#[inline]
pub(super) fn make_room<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        grow(vec, more);
    }
}

#[cold]
fn grow<T>(vec: &mut Vec<T>, more: usize) {
    let wanted = (vec.len() + more) * size_of::<T>();
    vec.reserve_exact(size_class(wanted) / size_of::<T>() - vec.len());
}

/// Gives back what a smaller size class would not have.
pub(super) fn trim<T>(vec: &mut Vec<T>) {
    let class = size_class(vec.len() * size_of::<T>());
    if class < vec.capacity() * size_of::<T>() {
        vec.shrink_to(class / size_of::<T>());
    }
}

/// Bytes that a vector takes from the allocator.
#[inline]
pub(super) const fn allocated<T>(vec: &Vec<T>) -> usize {
    vec.capacity() * size_of::<T>()
}
