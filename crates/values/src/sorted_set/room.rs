//! Growth of vectors in steps of the allocator's size classes, so that their capacity equals the memory that they
//! really take.

use crate::size_class::size_class;

/// Ensures capacity for `more` elements by growing to the size class that holds them, and no further.
#[inline]
pub(super) fn reserve<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        grow(vec, more);
    }
}

#[cold]
fn grow<T>(vec: &mut Vec<T>, more: usize) {
    let wanted = (vec.len() + more) * size_of::<T>();
    vec.reserve_exact(size_class(wanted) / size_of::<T>() - vec.len());
}

/// Shrinks the capacity to the size class of the contents.
pub(super) fn shrink<T>(vec: &mut Vec<T>) {
    let class = size_class(vec.len() * size_of::<T>());
    if class < vec.capacity() * size_of::<T>() {
        vec.shrink_to(class / size_of::<T>());
    }
}

/// Halves the capacity of a vector of which less than a quarter is used.
pub(super) fn shrink_if_sparse<T>(vec: &mut Vec<T>) {
    if vec.len() < vec.capacity() / 4 {
        vec.shrink_to(vec.capacity() / 2);
    }
}

/// The number of bytes that a vector allocates.
#[inline]
pub(super) const fn allocated_bytes<T>(vec: &Vec<T>) -> usize {
    vec.capacity() * size_of::<T>()
}
