//! Commands from metadata: generates random commands from the arguments that COMMAND DOCS describes.
//!
//! Valkey describes the arguments of each command as a tree of keys, values, words, choices and blocks, some of them
//! optional or repeated. A random walk of that tree produces every option of every command in all combinations. The
//! words come from the [`vocabulary`](super::vocabulary). Three facts that the tree does not contain are encoded here.
//! A count precedes the counted arguments, and one number is used for all repetitions in a command. Options may come in
//! any order. The format of ZRANGE's bounds depends on BYSCORE and BYLEX.

use fastrand::Rng;

use super::reply::Reply;
use super::vocabulary::{Sentence, word};

/// The arguments of one command.
#[derive(Debug)]
pub struct Syntax {
    /// The command's name; the words of a subcommand are separated by `|`.
    pub name: String,
    arguments: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    name: String,
    kind: Kind,
    token: Option<Vec<u8>>,
    optional: bool,
    multiple: bool,
    /// `true` if the token precedes each repetition.
    multiple_token: bool,
}

#[derive(Debug)]
enum Kind {
    /// A single word, which is the token.
    Token,
    /// A value; the name determines its kind.
    Value,
    /// One of these nodes.
    OneOf(Vec<Node>),
    /// All of these nodes, in order.
    Block(Vec<Node>),
}

/// Commands that are sometimes generated with very many arguments, so that collections outgrow their small encodings.
const GROWING: &[&str] = &["hset", "hmset", "sadd", "zadd", "rpush", "lpush", "geoadd", "pfadd"];

impl Syntax {
    /// Parses the reply of COMMAND DOCS for `name`; `None` if it has another form.
    pub fn parse(name: &str, documentation: &Reply) -> Option<Self> {
        let [_, description] = documentation.items() else {
            return None;
        };
        let arguments = entry(description, "arguments").map_or(&[][..], Reply::items);
        Some(Self {
            name: name.to_string(),
            arguments: arguments.iter().map(node).collect::<Option<_>>()?,
        })
    }

    /// Generates one random command. `theme` and `step`, the number of commands before it, determine its words.
    pub fn sentence(&self, theme: &str, step: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
        // A polygon has at least three corners.
        let few = if self.name.starts_with("geosearch") { 2..6 } else { 1..4 };
        let long = rng.u32(0..40) == 0 && GROWING.contains(&self.name.as_str());
        let mut writer = Writer {
            sentence: Sentence {
                theme,
                command: &self.name,
                step,
                count: if long { rng.usize(60..700) } else { rng.usize(few) },
                wide: long,
                borders: rng.u32(0..3),
            },
            rng,
            words: self
                .name
                .split('|')
                .map(|word| word.to_uppercase().into_bytes())
                .collect(),
        };
        writer.all(&self.arguments);
        writer.words
    }
}

/// Returns the value that belongs to `name` in a map, or in an array in which names and values alternate.
fn entry<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let pairs = reply.items().chunks_exact(2);
    pairs
        .filter(|pair| pair[0].text() == name.as_bytes())
        .map(|pair| &pair[1])
        .next()
}

fn node(argument: &Reply) -> Option<Node> {
    let text = |name: &str| entry(argument, name).map(Reply::text);
    let flags = entry(argument, "flags").map_or(&[][..], Reply::items);
    let has = |flag: &str| flags.iter().any(|each| each.text() == flag.as_bytes());
    let children = || -> Option<Vec<Node>> { entry(argument, "arguments")?.items().iter().map(node).collect() };
    Some(Node {
        name: String::from_utf8_lossy(text("name")?).into_owned(),
        kind: match text("type")? {
            b"pure-token" => Kind::Token,
            b"oneof" => Kind::OneOf(children()?),
            b"block" => Kind::Block(children()?),
            _ => Kind::Value,
        },
        token: text("token").map(<[u8]>::to_vec),
        optional: has("optional"),
        multiple: has("multiple"),
        multiple_token: has("multiple_token"),
    })
}

struct Writer<'a> {
    sentence: Sentence<'a>,
    rng: &'a mut Rng,
    words: Vec<Vec<u8>>,
}

impl Writer<'_> {
    fn all(&mut self, nodes: &[Node]) {
        let mut order: Vec<&Node> = nodes.iter().collect();
        if self.rng.u32(0..3) == 0 {
            let is_option = |node: &&Node| node.optional && (node.token.is_some() || !matches!(node.kind, Kind::Value));
            for run in order.chunk_by_mut(|a, b| is_option(a) && is_option(b)) {
                self.rng.shuffle(run);
            }
        }
        for node in order {
            if !node.optional || self.wants(node) {
                self.node(node);
            }
        }
    }

    /// Chooses randomly if an optional argument appears.
    fn wants(&mut self, node: &Node) -> bool {
        if node.name == "sortby" {
            return self.sentence.borders > 0;
        }
        // The origin of a search is documented as optional, but a search without it finds nothing.
        node.name == "from" && self.rng.u32(0..10) > 0 || self.rng.u32(0..5) < 2
    }

    fn node(&mut self, node: &Node) {
        let once = node.token.clone().filter(|_| !node.multiple_token);
        self.words.extend(once);
        let times = if node.multiple { self.sentence.count } else { 1 };
        for _ in 0..times {
            if node.multiple_token {
                self.words.extend(node.token.clone());
            }
            match &node.kind {
                Kind::Token => {}
                Kind::Value => self.words.push(word(&self.sentence, &node.name, self.rng)),
                Kind::Block(nodes) => self.all(nodes),
                Kind::OneOf(nodes) => self.one_of(node, nodes),
            }
        }
    }

    fn one_of(&mut self, node: &Node, nodes: &[Node]) {
        let mut index = self.rng.usize(0..nodes.len());
        if node.name == "sortby" && self.rng.u32(0..8) > 0 {
            index = (self.sentence.borders as usize - 1).min(nodes.len() - 1);
        }
        // An id chosen by the server differs between servers, and later replies could not be compared.
        if nodes[index].name == "auto-id" && self.rng.u32(0..10) > 0 {
            index = nodes.len() - 1;
        }
        self.node(&nodes[index]);
    }
}

#[cfg(test)]
mod tests;
