//! Ends and directions of a list, and the decision about an element.

/// The order in which elements are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first element to the last.
    Forward,
    /// From the last element to the first.
    Backward,
}

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// The left end, with the first element.
    Head,
    /// The right end, with the last element.
    Tail,
}

/// The decision to keep or remove an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementAction {
    /// Keep the element.
    Keep,
    /// Remove the element.
    Remove,
    /// Remove the element and stop.
    RemoveAndStop,
}
