//! The names and classes of keyspace events.
//!
//! See Valkey's documentation, "Keyspace notifications": a class is one letter of `notify-keyspace-events`.
/// A class of events. Each class but `Silent` is one letter of `notify-keyspace-events`.
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
    /// No letter: nothing is published, though the value changed.
    Silent,
}

/// An event: a change of a key that can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The class of the event.
    pub class: EventClass,
    /// The name of the event, as published.
    pub name: &'static str,
}

impl Event {
    /// An event of class `g`.
    pub const fn generic(name: &'static str) -> Self {
        Event {
            class: EventClass::Generic,
            name,
        }
    }

    /// An event of class `$`.
    pub const fn string(name: &'static str) -> Self {
        Event {
            class: EventClass::String,
            name,
        }
    }

    /// An event of class `h`.
    pub const fn hash(name: &'static str) -> Self {
        Event {
            class: EventClass::Hash,
            name,
        }
    }

    /// An event of class `s`.
    pub const fn set(name: &'static str) -> Self {
        Event {
            class: EventClass::Set,
            name,
        }
    }

    /// An event of class `z`.
    pub const fn sorted_set(name: &'static str) -> Self {
        Event {
            class: EventClass::SortedSet,
            name,
        }
    }

    /// An event of class `l`.
    pub const fn list(name: &'static str) -> Self {
        Event {
            class: EventClass::List,
            name,
        }
    }

    /// An event of class `t`.
    pub const fn stream(name: &'static str) -> Self {
        Event {
            class: EventClass::Stream,
            name,
        }
    }

    /// The event of a key that was created.
    pub const NEW: Event = Event {
        class: EventClass::New,
        name: "new",
    };

    /// A change without an event, such as a change of a value's internal metadata.
    pub const NO_EVENT: Event = Event {
        class: EventClass::Silent,
        name: "",
    };

    /// The event of a key that a reader did not find.
    pub const MISSED: Event = Event {
        class: EventClass::Missed,
        name: "keymiss",
    };

    /// The event of an expired key.
    pub const EXPIRED: Event = Event {
        class: EventClass::Expired,
        name: "expired",
    };

    /// The event of a key that was evicted.
    pub const EVICTED: Event = Event {
        class: EventClass::Evicted,
        name: "evicted",
    };
}
