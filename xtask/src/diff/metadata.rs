//! Commands from metadata: generates random commands from the arguments that COMMAND DOCS describes.
//!
//! Valkey describes the arguments of each command as a tree of keys, values, words, choices and blocks, some of them
//! optional or repeated. A random walk of that tree produces every option of every command in all combinations. The
//! words come from the [`vocabulary`](super::vocabulary). Three facts that the tree does not contain are encoded here.
//! A count precedes the counted arguments, and one number is used for all repetitions in a command. Options may come in
//! any order. The format of ZRANGE's bounds depends on BYSCORE and BYLEX.

use fastrand::Rng;

use super::reply::Reply;
use super::vocabulary::{CommandContext, word};

/// The arguments of one command.
#[derive(Debug)]
pub struct CommandSyntax {
    /// The command's name; the words of a subcommand are separated by `|`.
    pub name: String,
    arguments: Vec<ArgumentNode>,
}

#[derive(Debug)]
struct ArgumentNode {
    name: String,
    kind: ArgumentKind,
    token: Option<Vec<u8>>,
    optional: bool,
    multiple: bool,
    /// `true` if the token precedes each repetition.
    multiple_token: bool,
}

#[derive(Debug)]
enum ArgumentKind {
    /// A single word, which is the token.
    Token,
    /// A value; the name determines its kind.
    Value,
    /// One of these nodes.
    OneOf(Vec<ArgumentNode>),
    /// All of these nodes, in order.
    Block(Vec<ArgumentNode>),
}

/// Commands that are sometimes generated with very many arguments, so that collections outgrow their small encodings.
const GROWING_COMMANDS: &[&str] = &["hset", "hmset", "sadd", "zadd", "rpush", "lpush", "geoadd", "pfadd"];

impl CommandSyntax {
    /// Parses the reply of COMMAND DOCS for `name`; `None` if it has another form.
    pub fn parse(name: &str, documentation: &Reply) -> Option<Self> {
        let [_, description] = documentation.items() else {
            return None;
        };
        let arguments = map_value(description, "arguments").map_or(&[][..], Reply::items);
        Some(Self {
            name: name.to_string(),
            arguments: arguments.iter().map(parse_node).collect::<Option<_>>()?,
        })
    }

    /// Generates one random command. `theme` and `step`, the number of commands before it, determine its words.
    pub fn write_command(&self, theme: &str, step: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
        // A polygon has at least three corners.
        let few = if self.name.starts_with("geosearch") { 2..6 } else { 1..4 };
        let long = rng.u32(0..40) == 0 && GROWING_COMMANDS.contains(&self.name.as_str());
        let mut writer = CommandWriter {
            sentence: CommandContext {
                theme,
                command: &self.name,
                step,
                count: if long { rng.usize(60..700) } else { rng.usize(few) },
                is_long: long,
                bound_format: rng.u32(0..3),
            },
            rng,
            words: self
                .name
                .split('|')
                .map(|word| word.to_uppercase().into_bytes())
                .collect(),
        };
        writer.write_nodes(&self.arguments);
        writer.words
    }
}

/// Returns the value that belongs to `name` in a map, or in an array in which names and values alternate.
fn map_value<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let pairs = reply.items().chunks_exact(2);
    pairs
        .filter(|pair| pair[0].text() == name.as_bytes())
        .map(|pair| &pair[1])
        .next()
}

fn parse_node(argument: &Reply) -> Option<ArgumentNode> {
    let text = |name: &str| map_value(argument, name).map(Reply::text);
    let flags = map_value(argument, "flags").map_or(&[][..], Reply::items);
    let has = |flag: &str| flags.iter().any(|each| each.text() == flag.as_bytes());
    let children = || -> Option<Vec<ArgumentNode>> {
        map_value(argument, "arguments")?
            .items()
            .iter()
            .map(parse_node)
            .collect()
    };
    Some(ArgumentNode {
        name: String::from_utf8_lossy(text("name")?).into_owned(),
        kind: match text("type")? {
            b"pure-token" => ArgumentKind::Token,
            b"oneof" => ArgumentKind::OneOf(children()?),
            b"block" => ArgumentKind::Block(children()?),
            _ => ArgumentKind::Value,
        },
        token: text("token").map(<[u8]>::to_vec),
        optional: has("optional"),
        multiple: has("multiple"),
        multiple_token: has("multiple_token"),
    })
}

struct CommandWriter<'a> {
    sentence: CommandContext<'a>,
    rng: &'a mut Rng,
    words: Vec<Vec<u8>>,
}

impl CommandWriter<'_> {
    fn write_nodes(&mut self, nodes: &[ArgumentNode]) {
        let mut order: Vec<&ArgumentNode> = nodes.iter().collect();
        if self.rng.u32(0..3) == 0 {
            let is_option = |node: &&ArgumentNode| {
                node.optional && (node.token.is_some() || !matches!(node.kind, ArgumentKind::Value))
            };
            for run in order.chunk_by_mut(|a, b| is_option(a) && is_option(b)) {
                self.rng.shuffle(run);
            }
        }
        for node in order {
            if !node.optional || self.includes_optional(node) {
                self.node(node);
            }
        }
    }

    /// Chooses randomly if an optional argument appears.
    fn includes_optional(&mut self, node: &ArgumentNode) -> bool {
        if node.name == "sortby" {
            return self.sentence.bound_format > 0;
        }
        // The origin of a search is documented as optional, but a search without it finds nothing.
        node.name == "from" && self.rng.u32(0..10) > 0 || self.rng.u32(0..5) < 2
    }

    fn node(&mut self, node: &ArgumentNode) {
        let once = node.token.clone().filter(|_| !node.multiple_token);
        self.words.extend(once);
        let times = if node.multiple { self.sentence.count } else { 1 };
        for _ in 0..times {
            if node.multiple_token {
                self.words.extend(node.token.clone());
            }
            match &node.kind {
                ArgumentKind::Token => {}
                ArgumentKind::Value => self.words.push(word(&self.sentence, &node.name, self.rng)),
                ArgumentKind::Block(nodes) => self.write_nodes(nodes),
                ArgumentKind::OneOf(nodes) => self.write_one_of(node, nodes),
            }
        }
    }

    fn write_one_of(&mut self, node: &ArgumentNode, nodes: &[ArgumentNode]) {
        let mut index = self.rng.usize(0..nodes.len());
        if node.name == "sortby" && self.rng.u32(0..8) > 0 {
            index = (self.sentence.bound_format as usize - 1).min(nodes.len() - 1);
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
