//! The names and classes of keyspace events.
//!
//! See Valkey's documentation, "Keyspace notifications": a class is one letter of `notify-keyspace-events`.
/// A class of events. Each class but `Silent` is one letter of `notify-keyspace-events`. Events of
/// modules have flags instead, of one or several classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventClass {
    /// `g`: commands that work on keys of any type.
    Generic,
    /// `$`: string commands.
    String,
    /// `h`: hash commands.
    Hash,
    /// `s`: set commands.
    Set,
    /// `z`: sorted set commands.
    SortedSet,
    /// `l`: list commands.
    List,
    /// `t`: stream commands.
    Stream,
    /// `x`: a key expired.
    Expired,
    /// `e`: a key was evicted.
    Evicted,
    /// `n`: a key was created.
    New,
    /// `m`: a reader did not find a key.
    Missed,
    /// No letter: the value changed, but nothing is published.
    Silent,
}

/// An event: a change of a key that can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyspaceEvent {
    /// The class of the event.
    pub class: EventClass,
    /// The name of the event, as published.
    pub name: &'static str,
}

impl KeyspaceEvent {
    /// Creates an event of class `g`.
    pub const fn generic(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::Generic,
            name,
        }
    }

    /// Creates an event of class `$`.
    pub const fn string(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::String,
            name,
        }
    }

    /// Creates an event of class `h`.
    pub const fn hash(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::Hash,
            name,
        }
    }

    /// Creates an event of class `s`.
    pub const fn set(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::Set,
            name,
        }
    }

    /// Creates an event of class `z`.
    pub const fn sorted_set(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::SortedSet,
            name,
        }
    }

    /// Creates an event of class `l`.
    pub const fn list(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::List,
            name,
        }
    }

    /// Creates an event of class `t`.
    pub const fn stream(name: &'static str) -> Self {
        KeyspaceEvent {
            class: EventClass::Stream,
            name,
        }
    }

    /// The event of a key that was created.
    pub const NEW: KeyspaceEvent = KeyspaceEvent {
        class: EventClass::New,
        name: "new",
    };

    /// A change without an event, such as a change of a value's internal metadata.
    pub const NO_EVENT: KeyspaceEvent = KeyspaceEvent {
        class: EventClass::Silent,
        name: "",
    };

    /// The event of a key that a reader did not find.
    pub const MISSED: KeyspaceEvent = KeyspaceEvent {
        class: EventClass::Missed,
        name: "keymiss",
    };

    /// The event of an expired key.
    pub const EXPIRED: KeyspaceEvent = KeyspaceEvent {
        class: EventClass::Expired,
        name: "expired",
    };

    /// The event of a key that was evicted.
    pub const EVICTED: KeyspaceEvent = KeyspaceEvent {
        class: EventClass::Evicted,
        name: "evicted",
    };
}
