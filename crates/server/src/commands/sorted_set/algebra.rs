//! Unions, intersections and differences of sorted sets. Sets may be sources too; each of their members has the score
//! 1.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use weft_resp::number::{parse_f64, parse_i64};
use weft_table::ValueRef;
use weft_values::Value;
use weft_values::listpack::{DECIMAL_MAX_BYTES, Element};
use weft_values::packed::PackedKind;
use weft_values::set::SetView;
use weft_values::sorted_set::{MemberBuilder, SortedSetView};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::set::value_as_set;
use crate::commands::sorted_set::{CHANGE_MEMBER_NS, reply_members, store_result, value_as_sorted_set};
use crate::keyspace::access::Keys;
use crate::keyspace::encoding_limits::EncodingParameters;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("zdiff", leased(zdiff)),
    ("zdiffstore", leased(zdiffstore)),
    ("zinter", leased(zinter)),
    ("zintercard", leased(zintercard)),
    ("zinterstore", leased(zinterstore)),
    ("zunion", leased(zunion)),
    ("zunionstore", leased(zunionstore)),
];

/// The operation on the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetOperation {
    Union,
    Intersection,
    Difference,
}

/// The function that combines the scores of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScoreAggregation {
    Sum,
    Min,
    Max,
}

impl ScoreAggregation {
    fn parse(word: &[u8]) -> Option<Self> {
        let words: [(&[u8], Self); 3] = [(b"sum", Self::Sum), (b"min", Self::Min), (b"max", Self::Max)];
        let found = words.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name));
        found.map(|(_, aggregate)| aggregate)
    }

    fn combine(self, score: f64, other: f64) -> f64 {
        match self {
            Self::Sum => number_or_zero(score + other),
            Self::Min if other < score => other,
            Self::Max if other > score => other,
            Self::Min | Self::Max => score,
        }
    }
}

/// Replaces NaN by 0. It results from adding opposite infinities, or from multiplying an infinite score by 0.
fn number_or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The members of a source.
#[derive(Clone, Copy)]
enum InputMembers<'a> {
    Missing,
    Set(SetView<'a>),
    Sorted(SortedSetView<'a>),
}

/// A source: a set or sorted set, and the weight by which its scores are multiplied.
#[derive(Clone, Copy)]
struct WeightedInput<'a> {
    members: InputMembers<'a>,
    weight: f64,
}

impl<'a> WeightedInput<'a> {
    fn len(&self) -> usize {
        match self.members {
            InputMembers::Missing => 0,
            InputMembers::Set(set) => set.len(),
            InputMembers::Sorted(set) => set.len(),
        }
    }

    /// Returns the weighted score of a member.
    fn weighted_score(&self, member: &[u8]) -> Option<f64> {
        let score = match self.members {
            InputMembers::Missing => None,
            InputMembers::Set(set) => set.contains(member).then_some(1.0),
            InputMembers::Sorted(set) => set.score(member),
        };
        score.map(|score| score * self.weight)
    }

    /// Calls `visit` with every member and its unweighted score until `visit` returns `false`.
    fn visit_members(&self, mut visit: impl FnMut(Element<'a>, f64) -> bool) {
        match self.members {
            InputMembers::Missing => {}
            InputMembers::Set(set) => {
                set.iter().all(|member| visit(member, 1.0));
            }
            InputMembers::Sorted(set) => {
                set.iter().all(|(member, score)| visit(member, score));
            }
        }
    }
}

fn value_as_members(value: ValueRef<'_, Value>) -> Result<InputMembers<'_>, CommandError> {
    let is_set = match value {
        ValueRef::Packed(packed) => PackedKind::of(packed) != PackedKind::SortedSet,
        other => !matches!(other, ValueRef::Object(Value::SortedSet(_))),
    };
    if is_set {
        value_as_set(value).map(InputMembers::Set)
    } else {
        value_as_sorted_set(value).map(InputMembers::Sorted)
    }
}

/// Returns the sources. The first is the key at index `first`.
fn read_inputs<'k>(
    keys: &'k Keys<'_, '_>,
    first: usize,
    weights: &[f64],
) -> Result<Vec<WeightedInput<'k>>, CommandError> {
    let source = |(index, weight): (usize, &f64)| {
        let members = match keys.peek(first + index) {
            Some(entry) => value_as_members(entry.value())?,
            None => InputMembers::Missing,
        };
        Ok(WeightedInput {
            members,
            weight: *weight,
        })
    };
    weights.iter().enumerate().map(source).collect()
}

/// Counts the uses of the keys and checks their types.
fn touch_inputs(keys: &mut Keys<'_, '_>, first: usize, count: usize) -> CommandResult {
    for index in first..first + count {
        keys.prefetch_ahead(index);
        if let Some(entry) = keys.read(index) {
            value_as_members(entry.value())?;
        }
    }
    Ok(())
}

/// The options after the keys.
struct SetOperationOptions {
    weights: Vec<f64>,
    aggregate: ScoreAggregation,
    should_reply_scores: bool,
    /// The limit of ZINTERCARD; 0 stands for no limit.
    limit: usize,
}

/// The grammar of a command.
#[derive(Clone, Copy, Debug)]
struct SetOperationGrammar {
    operation: SetOperation,
    /// `true` if the result is stored. The first key is then the destination.
    is_store: bool,
    /// `true` if the reply is only the number of members.
    is_cardinality: bool,
}

impl SetOperationGrammar {
    /// Returns the index of the argument that is the number of keys.
    fn count_index(self) -> usize {
        if self.is_store { 2 } else { 1 }
    }

    fn parse_key_count(self, ctx: &Context<'_, '_>) -> Result<usize, CommandError> {
        let count = parse_i64(ctx.arg(self.count_index())).ok_or(CommandError::NOT_AN_INTEGER)?;
        if count < 1 {
            return Err(CommandError::from_text(format!(
                "ERR at least 1 input key is needed for '{}' command",
                ctx.command.full_name
            )));
        }
        let room = ctx.argc() - self.count_index() - 1;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= room)
            .ok_or(CommandError::SYNTAX)
    }

    fn parse_options(self, ctx: &Context<'_, '_>, keys: usize) -> Result<SetOperationOptions, CommandError> {
        let mut options = SetOperationOptions {
            weights: vec![1.0; keys],
            aggregate: ScoreAggregation::Sum,
            should_reply_scores: false,
            limit: 0,
        };
        let weighs = self.operation != SetOperation::Difference && !self.is_cardinality;
        let mut index = self.count_index() + 1 + keys;
        while index < ctx.argc() {
            let word = ctx.arg(index);
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            let left = ctx.argc() - index;
            if weighs && left > keys && is(b"weights") {
                for (weight, at) in options.weights.iter_mut().zip(index + 1..) {
                    let no_float = CommandError::constant("ERR weight value is not a float");
                    *weight = parse_f64(ctx.arg(at)).ok_or(no_float)?;
                }
                index += keys;
            } else if weighs && left >= 2 && is(b"aggregate") {
                options.aggregate = ScoreAggregation::parse(ctx.arg(index + 1)).ok_or(CommandError::SYNTAX)?;
                index += 1;
            } else if !self.is_store && !self.is_cardinality && is(b"withscores") {
                options.should_reply_scores = true;
            } else if self.is_cardinality && left >= 2 && is(b"limit") {
                let limit = parse_i64(ctx.arg(index + 1)).and_then(|limit| usize::try_from(limit).ok());
                options.limit = limit.ok_or(CommandError::constant("ERR LIMIT can't be negative"))?;
                index += 1;
            } else {
                return Err(CommandError::SYNTAX);
            }
            index += 1;
        }
        Ok(options)
    }
}

/// ZUNION numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]
fn zunion(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_result(ctx, SetOperation::Union)
}

/// ZINTER, with the arguments of ZUNION.
fn zinter(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_result(ctx, SetOperation::Intersection)
}

/// ZDIFF numkeys key [key ...] [WITHSCORES]
fn zdiff(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_result(ctx, SetOperation::Difference)
}

/// ZUNIONSTORE destination numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]
fn zunionstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    store_operation_result(ctx, SetOperation::Union, "zunionstore")
}

/// ZINTERSTORE, with the arguments of ZUNIONSTORE.
fn zinterstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    store_operation_result(ctx, SetOperation::Intersection, "zinterstore")
}

/// ZDIFFSTORE destination numkeys key [key ...]
fn zdiffstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    store_operation_result(ctx, SetOperation::Difference, "zdiffstore")
}

/// ZINTERCARD numkeys key [key ...] [LIMIT limit]
fn zintercard(ctx: &mut Context<'_, '_>) -> CommandResult {
    let grammar = SetOperationGrammar {
        operation: SetOperation::Intersection,
        is_store: false,
        is_cardinality: true,
    };
    let Some((sources, options)) = prepare_operation(ctx, grammar)? else {
        ctx.detach();
        return Ok(());
    };
    let limit = if options.limit == 0 { usize::MAX } else { options.limit };
    let mut count = 0;
    visit_intersection(&sources, ScoreAggregation::Sum, |_, _| {
        count += 1;
        count < limit
    });
    ctx.reply.integer(count as i64);
    Ok(())
}

/// Returns the sources and options of a command; `None` if the work takes too long for this worker.
fn prepare_operation<'k>(
    ctx: &'k mut Context<'_, '_>,
    grammar: SetOperationGrammar,
) -> Result<Option<(Vec<WeightedInput<'k>>, SetOperationOptions)>, CommandError> {
    let count = grammar.parse_key_count(ctx)?;
    let first = usize::from(grammar.is_store);
    touch_inputs(&mut ctx.keys, first, count)?;
    let options = grammar.parse_options(ctx, count)?;
    let in_place_ns = ctx.max_worker_ns();
    let sources = read_inputs(&ctx.keys, first, &options.weights)?;
    let members: usize = sources.iter().map(WeightedInput::len).sum();
    let leaves = members as u64 * CHANGE_MEMBER_NS > in_place_ns;
    Ok((!leaves).then_some((sources, options)))
}

fn reply_with_result(ctx: &mut Context<'_, '_>, operation: SetOperation) -> CommandResult {
    let grammar = SetOperationGrammar {
        operation,
        is_store: false,
        is_cardinality: false,
    };
    let Some((sources, options)) = prepare_operation(ctx, grammar)? else {
        ctx.detach();
        return Ok(());
    };
    let with_scores = options.should_reply_scores;
    let result = compute_result(operation, sources, options.aggregate);
    let members = result.sorted();
    let shown = members.iter().map(|(member, score)| (Element::Bytes(member), *score));
    reply_members(&mut ctx.reply, members.len(), shown, with_scores);
    Ok(())
}

fn store_operation_result(ctx: &mut Context<'_, '_>, operation: SetOperation, event: &'static str) -> CommandResult {
    let grammar = SetOperationGrammar {
        operation,
        is_store: true,
        is_cardinality: false,
    };
    let limits = ctx.server.config.sorted_set_limits();
    let Some((sources, options)) = prepare_operation(ctx, grammar)? else {
        ctx.detach();
        return Ok(());
    };
    let result = compute_result(operation, sources, options.aggregate);
    let draft = (!result.is_empty()).then(|| result.build(limits));
    let count = store_result(&mut ctx.keys, 0, draft, event);
    ctx.reply.integer(count as i64);
    Ok(())
}

fn compute_result(
    operation: SetOperation,
    mut sources: Vec<WeightedInput<'_>>,
    aggregate: ScoreAggregation,
) -> MemberBuilder {
    match operation {
        SetOperation::Union => {
            // Sums of floating point numbers depend on the order of the summands. As in Valkey, it is from the smallest
            // source to the largest.
            sources.sort_by_key(WeightedInput::len);
            compute_union(&sources, aggregate)
        }
        SetOperation::Intersection => {
            let mut result = MemberBuilder::default();
            visit_intersection(&sources, aggregate, |member, score| {
                result.push_element(member, score);
                true
            });
            result
        }
        SetOperation::Difference => compute_difference(&sources),
    }
}

/// A member in its canonical form, which does not depend on the encoding of its source.
#[derive(PartialEq, Eq, Hash)]
enum MemberKey<'a> {
    Number(i64),
    Bytes(&'a [u8]),
}

impl<'a> MemberKey<'a> {
    fn from_member(member: Element<'a>) -> Self {
        let normal = match member {
            Element::Bytes(bytes) => Element::of(bytes),
            number => number,
        };
        match normal {
            Element::Int(number) => MemberKey::Number(number),
            Element::Bytes(bytes) => MemberKey::Bytes(bytes),
        }
    }
}

fn compute_union(sources: &[WeightedInput<'_>], aggregate: ScoreAggregation) -> MemberBuilder {
    let largest = sources.iter().map(WeightedInput::len).max().unwrap_or(0);
    let mut result = MemberBuilder::with_capacity(largest);
    let mut numbers: HashMap<MemberKey<'_>, usize, ahash::RandomState> =
        HashMap::with_capacity_and_hasher(largest, ahash::RandomState::default());
    for source in sources {
        source.visit_members(|member, score| {
            let score = number_or_zero(score * source.weight);
            match numbers.entry(MemberKey::from_member(member)) {
                Entry::Vacant(vacant) => {
                    vacant.insert(result.len());
                    result.push_element(member, score);
                }
                Entry::Occupied(number) => {
                    let sum = result.score_mut(*number.get());
                    *sum = aggregate.combine(*sum, score);
                }
            }
            true
        });
    }
    result
}

/// Calls `visit` with every member that is in all sources and its score until `visit` returns `false`.
fn visit_intersection<'a>(
    sources: &[WeightedInput<'a>],
    aggregate: ScoreAggregation,
    mut visit: impl FnMut(Element<'a>, f64) -> bool,
) {
    let mut sources = sources.to_vec();
    sources.sort_by_key(WeightedInput::len);
    let Some((smallest, others)) = sources.split_first() else {
        return;
    };
    let mut scratch = [0; DECIMAL_MAX_BYTES];
    smallest.visit_members(|member, score| {
        let text = member.text(&mut scratch);
        let first = number_or_zero(score * smallest.weight);
        let score = others.iter().try_fold(first, |score, other| {
            Some(aggregate.combine(score, other.weighted_score(text)?))
        });
        score.is_none_or(|score| visit(member, score))
    });
}

fn compute_difference(sources: &[WeightedInput<'_>]) -> MemberBuilder {
    let mut result = MemberBuilder::default();
    let Some((first, others)) = sources.split_first() else {
        return result;
    };
    let mut scratch = [0; DECIMAL_MAX_BYTES];
    first.visit_members(|member, score| {
        let text = member.text(&mut scratch);
        if others.iter().all(|other| other.weighted_score(text).is_none()) {
            result.push(text, score);
        }
        true
    });
    result
}
