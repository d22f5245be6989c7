//! Scans of collections that keep no order by hash: each call sorts the elements that are left.

/// Visits elements in the order of their positions, at least `at_least` of them if available. `elements` are all
/// elements that are left, each with its position. Returns the position of the first element that was not visited, or
/// `None` at the end. Elements with the same position are visited together.
pub(crate) fn visit_page<T: Copy + Ord>(
    elements: &mut [(u64, T)],
    at_least: usize,
    mut visit: impl FnMut(T),
) -> Option<u64> {
    elements.sort_unstable();
    let mut previous = None;
    for (index, (position, element)) in elements.iter().enumerate() {
        if index >= at_least.max(1) && previous != Some(position) {
            return Some(*position);
        }
        visit(*element);
        previous = Some(position);
    }
    None
}
