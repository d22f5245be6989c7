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
    /// A point in time, in seconds or milliseconds since 1970.
    UnixTime,
    /// A keyword that stands for itself.
    PureToken,
    /// Exactly one of the nested arguments.
    OneOf,
    /// All nested arguments in their order.
    Block,
}

impl ArgType {
    /// The name as COMMAND DOCS prints it.
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

    /// Whether arguments of this type contain others.
    pub const fn is_nested(self) -> bool {
        matches!(self, ArgType::OneOf | ArgType::Block)
    }
}

/// One argument in the tree that COMMAND DOCS prints. Texts that do not apply are empty.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// The name, unique among its siblings.
    pub name: &'static str,
    /// What it holds.
    pub kind: ArgType,
    /// What a synopsis shows instead of the name.
    pub display_text: &'static str,
    /// Which key spec finds this key; -1 if none does.
    pub key_spec_index: i32,
    /// The keyword that introduces it.
    pub token: &'static str,
    /// A remark.
    pub summary: &'static str,
    /// The version that introduced it, if later than the command.
    pub since: &'static str,
    /// The version that advised against it.
    pub deprecated_since: &'static str,
    /// May be left out.
    pub optional: bool,
    /// May be repeated.
    pub multiple: bool,
    /// Repeating it repeats the keyword too.
    pub multiple_token: bool,
    /// The nested arguments.
    pub args: &'static [Arg],
}

/// An argument without any attribute.
const fn plain(name: &'static str, kind: ArgType) -> Arg {
    Arg {
        name,
        kind,
        display_text: name,
        key_spec_index: -1,
        token: "",
        summary: "",
        since: "",
        deprecated_since: "",
        optional: false,
        multiple: false,
        multiple_token: false,
        args: &[],
    }
}

/// A key that the key spec with that index finds.
pub const fn key(name: &'static str, key_spec_index: i32) -> Arg {
    let mut arg = plain(name, ArgType::Key);
    arg.key_spec_index = key_spec_index;
    arg
}

/// Any bytes.
pub const fn string(name: &'static str) -> Arg {
    plain(name, ArgType::String)
}

/// A decimal integer.
pub const fn integer(name: &'static str) -> Arg {
    plain(name, ArgType::Integer)
}

/// A floating point number.
pub const fn double(name: &'static str) -> Arg {
    plain(name, ArgType::Double)
}

/// A glob-style pattern.
pub const fn pattern(name: &'static str) -> Arg {
    plain(name, ArgType::Pattern)
}

/// A point in time.
pub const fn unix_time(name: &'static str) -> Arg {
    plain(name, ArgType::UnixTime)
}

/// A keyword that stands for itself.
pub const fn token(name: &'static str, token: &'static str) -> Arg {
    plain(name, ArgType::PureToken).after(token)
}

/// Exactly one of `args`.
pub const fn one_of(name: &'static str, args: &'static [Arg]) -> Arg {
    let mut arg = plain(name, ArgType::OneOf);
    arg.args = args;
    arg
}

/// All of `args` in their order.
pub const fn block(name: &'static str, args: &'static [Arg]) -> Arg {
    let mut arg = plain(name, ArgType::Block);
    arg.args = args;
    arg
}

impl Arg {
    /// Introduced by the keyword `token`.
    pub const fn after(mut self, token: &'static str) -> Arg {
        self.token = token;
        self
    }

    /// May be left out.
    pub const fn optional(mut self) -> Arg {
        self.optional = true;
        self
    }

    /// May be repeated.
    pub const fn multiple(mut self) -> Arg {
        self.multiple = true;
        self
    }

    /// May be repeated together with its keyword.
    pub const fn multiple_token(mut self) -> Arg {
        self.multiple_token = true;
        self
    }

    /// Added to the command in that version.
    pub const fn since(mut self, version: &'static str) -> Arg {
        self.since = version;
        self
    }

    /// Advised against since that version.
    pub const fn deprecated_since(mut self, version: &'static str) -> Arg {
        self.deprecated_since = version;
        self
    }

    /// Shown in a synopsis as `text` instead of its name.
    pub const fn shown_as(mut self, text: &'static str) -> Arg {
        self.display_text = text;
        self
    }

    /// Bound to the key spec with that index without being a key itself, like the patterns of SORT.
    pub const fn key_spec(mut self, index: i32) -> Arg {
        self.key_spec_index = index;
        self
    }

    /// A remark.
    pub const fn summary(mut self, text: &'static str) -> Arg {
        self.summary = text;
        self
    }
}
