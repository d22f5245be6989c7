//! The argument trees that COMMAND DOCS prints.

/// The type of an argument in COMMAND DOCS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgType {
    /// Any bytes.
    String,
    /// A decimal integer.
    Integer,
    /// A floating point number.
    Double,
    /// A key name.
    Key,
    /// A glob-style pattern.
    Pattern,
    /// A point in time, in seconds or milliseconds since the Unix epoch.
    UnixTime,
    /// A keyword without a value.
    PureToken,
    /// Exactly one of the nested arguments.
    OneOf,
    /// All nested arguments in their order.
    Block,
}

impl ArgType {
    /// Returns the name as COMMAND DOCS prints it.
    pub const fn name(self) -> &'static str {
        match self {
            ArgType::String => "string",
            ArgType::Integer => "integer",
            ArgType::Double => "double",
            ArgType::Key => "key",
            ArgType::Pattern => "pattern",
            ArgType::UnixTime => "unix-time",
            ArgType::PureToken => "pure-token",
            ArgType::OneOf => "oneof",
            ArgType::Block => "block",
        }
    }

    /// Returns `true` if arguments of this type contain other arguments.
    pub const fn is_nested(self) -> bool {
        matches!(self, ArgType::OneOf | ArgType::Block)
    }
}

/// One argument in the tree that COMMAND DOCS prints. Texts that do not apply are empty.
#[derive(Clone, Copy, Debug)]
pub struct ArgSpec {
    /// The name, unique among its siblings.
    pub name: &'static str,
    /// The type.
    pub kind: ArgType,
    /// The text that a synopsis shows instead of the name.
    pub display_text: &'static str,
    /// The index of the key spec that finds this key; -1 if there is none.
    pub key_spec_index: i32,
    /// The keyword before the argument.
    pub token: &'static str,
    /// A remark.
    pub summary: &'static str,
    /// The version that added the argument, if later than the command's.
    pub since: &'static str,
    /// The version that deprecated the argument.
    pub deprecated_since: &'static str,
    /// `true` if the argument may be omitted.
    pub is_optional: bool,
    /// `true` if the argument may be repeated.
    pub is_multiple: bool,
    /// `true` if the keyword is repeated with the argument.
    pub repeats_token: bool,
    /// The nested arguments.
    pub args: &'static [ArgSpec],
}

/// Returns an argument without any attribute.
const fn plain(name: &'static str, kind: ArgType) -> ArgSpec {
    ArgSpec {
        name,
        kind,
        display_text: name,
        key_spec_index: -1,
        token: "",
        summary: "",
        since: "",
        deprecated_since: "",
        is_optional: false,
        is_multiple: false,
        repeats_token: false,
        args: &[],
    }
}

/// Returns a key argument that the key spec with this index finds.
pub const fn key(name: &'static str, key_spec_index: i32) -> ArgSpec {
    let mut arg = plain(name, ArgType::Key);
    arg.key_spec_index = key_spec_index;
    arg
}

/// Returns an argument of any bytes.
pub const fn string(name: &'static str) -> ArgSpec {
    plain(name, ArgType::String)
}

/// Returns a decimal integer argument.
pub const fn integer(name: &'static str) -> ArgSpec {
    plain(name, ArgType::Integer)
}

/// Returns a floating point argument.
pub const fn double(name: &'static str) -> ArgSpec {
    plain(name, ArgType::Double)
}

/// Returns a glob-style pattern argument.
pub const fn pattern(name: &'static str) -> ArgSpec {
    plain(name, ArgType::Pattern)
}

/// Returns an argument that is a point in time.
pub const fn unix_time(name: &'static str) -> ArgSpec {
    plain(name, ArgType::UnixTime)
}

/// Returns a keyword without a value.
pub const fn token(name: &'static str, token: &'static str) -> ArgSpec {
    plain(name, ArgType::PureToken).with_token(token)
}

/// Returns an argument that is exactly one of `args`.
pub const fn one_of(name: &'static str, args: &'static [ArgSpec]) -> ArgSpec {
    let mut arg = plain(name, ArgType::OneOf);
    arg.args = args;
    arg
}

/// Returns an argument that consists of all of `args` in their order.
pub const fn block(name: &'static str, args: &'static [ArgSpec]) -> ArgSpec {
    let mut arg = plain(name, ArgType::Block);
    arg.args = args;
    arg
}

impl ArgSpec {
    /// Sets the keyword before the argument.
    pub const fn with_token(mut self, token: &'static str) -> ArgSpec {
        self.token = token;
        self
    }

    /// Marks the argument as optional.
    pub const fn optional(mut self) -> ArgSpec {
        self.is_optional = true;
        self
    }

    /// Marks the argument as repeatable.
    pub const fn multiple(mut self) -> ArgSpec {
        self.is_multiple = true;
        self
    }

    /// Marks the argument as repeated together with its keyword.
    pub const fn multiple_token(mut self) -> ArgSpec {
        self.repeats_token = true;
        self
    }

    /// Sets the version that added the argument to the command.
    pub const fn since(mut self, version: &'static str) -> ArgSpec {
        self.since = version;
        self
    }

    /// Sets the version that deprecated the argument.
    pub const fn deprecated_since(mut self, version: &'static str) -> ArgSpec {
        self.deprecated_since = version;
        self
    }

    /// Sets the text that a synopsis shows instead of the name.
    pub const fn with_display_text(mut self, text: &'static str) -> ArgSpec {
        self.display_text = text;
        self
    }

    /// Sets the key spec of an argument that is not a key itself, such as the patterns of SORT.
    pub const fn with_key_spec(mut self, index: i32) -> ArgSpec {
        self.key_spec_index = index;
        self
    }

    /// Sets the remark.
    pub const fn summary(mut self, text: &'static str) -> ArgSpec {
        self.summary = text;
        self
    }
}
