//! GEOSEARCH, GEOSEARCHSTORE and the older GEORADIUS and GEORADIUSBYMEMBER: members inside a shape.

use weft_resp::Reply;
use weft_resp::number::{parse_f64, parse_i64};
use weft_values::geohash::{GeoOutline, GeoPosition, GeoShape};
use weft_values::listpack::Element;
use weft_values::sorted_set::{MemberBuilder, ScoreRange, SortedSetView};

use super::{member_position, parse_position, parse_unit, reply_distance, reply_position};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::{CommandError, c_string_prefix};
use crate::commands::sorted_set::{reply_member, store_result_with_changes, value_as_sorted_set};
use crate::keyspace::encoding_limits::EncodingParameters;

/// The time to examine a member, in nanoseconds.
const EXAMINE_MEMBER_NS: u64 = 100;
const TOO_FEW_VERTICES: CommandError = CommandError::constant("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
const MIN_VERTICES: usize = 3;

/// The command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeoSearchCommand {
    /// GEOSEARCH.
    Search,
    /// GEOSEARCHSTORE.
    SearchStore,
    /// GEORADIUS; `true` if it may store.
    Radius(bool),
    /// GEORADIUSBYMEMBER; `true` if it may store.
    RadiusByMember(bool),
}

impl GeoSearchCommand {
    const fn is_search(self) -> bool {
        matches!(self, GeoSearchCommand::Search | GeoSearchCommand::SearchStore)
    }

    /// Returns the index of the first option among the arguments.
    const fn options_index(self) -> usize {
        match self {
            GeoSearchCommand::Search => 2,
            GeoSearchCommand::SearchStore => 3,
            GeoSearchCommand::RadiusByMember(_) => 5,
            GeoSearchCommand::Radius(_) => 6,
        }
    }

    const fn store_event(self) -> &'static str {
        if self.is_search() {
            "geosearchstore"
        } else {
            "georadiusstore"
        }
    }
}

/// GEORADIUS key longitude latitude radius unit [option ...]
pub fn georadius(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, GeoSearchCommand::Radius(true))
}

/// GEORADIUS_RO key longitude latitude radius unit [option ...]
pub fn georadius_ro(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, GeoSearchCommand::Radius(false))
}

/// GEORADIUSBYMEMBER key member radius unit [option ...]
pub fn georadiusbymember(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, GeoSearchCommand::RadiusByMember(true))
}

/// GEORADIUSBYMEMBER_RO key member radius unit [option ...]
pub fn georadiusbymember_ro(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, GeoSearchCommand::RadiusByMember(false))
}

/// GEOSEARCH key FROMMEMBER member|FROMLONLAT longitude latitude BYRADIUS radius unit|BYBOX width height unit [option
/// ...], or GEOSEARCH key BYPOLYGON corners longitude latitude ... [option ...]
pub fn geosearch(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, GeoSearchCommand::Search)
}

/// GEOSEARCHSTORE destination, and as GEOSEARCH
pub fn geosearchstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, GeoSearchCommand::SearchStore)
}

/// The order of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DistanceOrder {
    /// The order in which members are found.
    Unsorted,
    Nearest,
    Farthest,
}

/// The value stored as the score of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredScore {
    Position,
    Distance,
}

/// A search area as it was given, and the length of its unit in metres.
struct OutlineWithUnit {
    outline: GeoOutline,
    unit_m: f64,
}

/// The parameters of a search.
struct GeoQuery {
    centre: Option<GeoPosition>,
    /// `true` if a centre was given, even if it is a member of a missing key.
    has_centre: bool,
    shape: Option<OutlineWithUnit>,
    should_reply_distance: bool,
    should_reply_score: bool,
    should_reply_position: bool,
    order: DistanceOrder,
    /// The maximum number of members; 0 for no limit.
    count: usize,
    accepts_any: bool,
    store: Option<StoredScore>,
}

/// Parses a radius and its unit.
fn parse_circle(radius: &[u8], unit: &[u8]) -> Result<OutlineWithUnit, CommandError> {
    let radius = parse_f64(radius).ok_or(CommandError::constant("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(CommandError::constant("ERR radius cannot be negative"));
    }
    let unit_m = parse_unit(unit)?;
    Ok(OutlineWithUnit {
        outline: GeoOutline::Circle {
            radius_m: radius * unit_m,
        },
        unit_m,
    })
}

fn parse_box(width: &[u8], height: &[u8], unit: &[u8]) -> Result<OutlineWithUnit, CommandError> {
    let width = parse_f64(width).ok_or(CommandError::constant("ERR need numeric width"))?;
    let height = parse_f64(height).ok_or(CommandError::constant("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(CommandError::constant("ERR height or width cannot be negative"));
    }
    let unit_m = parse_unit(unit)?;
    Ok(OutlineWithUnit {
        outline: GeoOutline::Box {
            width_m: width * unit_m,
            height_m: height * unit_m,
        },
        unit_m,
    })
}

fn position_of_member(view: Option<&SortedSetView<'_>>, member: &[u8]) -> Result<GeoPosition, CommandError> {
    member_position(view, member).ok_or_else(|| CommandError::with_word("ERR member ", member, " does not exist"))
}

/// Parses the options of a command one after the other.
struct GeoSearchParser<'c, 'a, 'p> {
    ctx: &'c Context<'a, 'p>,
    kind: GeoSearchCommand,
    index: usize,
    query: GeoQuery,
}

impl GeoSearchParser<'_, '_, '_> {
    /// Returns `true` if the current option has this name and enough arguments.
    fn matches_option(&self, name: &[u8], argument_count: usize) -> bool {
        self.ctx.arg(self.index).eq_ignore_ascii_case(name) && self.index + argument_count < self.ctx.argc()
    }

    fn argument_after_option(&self, number: usize) -> &[u8] {
        self.ctx.arg(self.index + number)
    }

    /// Returns `true` if the shape is a polygon, which defines its own centre.
    fn has_polygon(&self) -> bool {
        matches!(&self.query.shape, Some(given) if matches!(given.outline, GeoOutline::Polygon(_)))
    }

    fn has_circle(&self) -> bool {
        matches!(&self.query.shape, Some(given) if matches!(given.outline, GeoOutline::Circle { .. }))
    }

    fn has_box(&self) -> bool {
        matches!(&self.query.shape, Some(given) if matches!(given.outline, GeoOutline::Box { .. }))
    }

    fn parse_options(&mut self, view: Option<&SortedSetView<'_>>) -> CommandResult {
        let mut from_member = false;
        while self.index < self.ctx.argc() {
            let words = if self.parse_flag()? {
                0
            } else if self.matches_option(b"count", 1) {
                self.parse_count()?
            } else if self.parse_store_option() {
                1
            } else if self.kind.is_search() {
                self.parse_search_option(view, &mut from_member)?
            } else {
                return Err(CommandError::SYNTAX);
            };
            self.index += 1 + words;
        }
        Ok(())
    }

    /// Parses an option without further words.
    fn parse_flag(&mut self) -> Result<bool, CommandError> {
        if self.matches_option(b"withdist", 0) {
            self.query.should_reply_distance = true;
        } else if self.matches_option(b"withhash", 0) {
            self.query.should_reply_score = true;
        } else if self.matches_option(b"withcoord", 0) {
            self.query.should_reply_position = true;
        } else if self.matches_option(b"any", 0) {
            self.query.accepts_any = true;
        } else if self.matches_option(b"asc", 0) {
            self.query.order = DistanceOrder::Nearest;
        } else if self.matches_option(b"desc", 0) {
            self.query.order = DistanceOrder::Farthest;
        } else if self.kind == GeoSearchCommand::SearchStore && self.matches_option(b"storedist", 0) {
            self.query.store = Some(StoredScore::Distance);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn parse_count(&mut self) -> Result<usize, CommandError> {
        let count = parse_i64(self.argument_after_option(1)).ok_or(CommandError::NOT_AN_INTEGER)?;
        let positive = usize::try_from(count).ok().filter(|count| *count > 0);
        self.query.count = positive.ok_or(CommandError::constant("ERR COUNT must be > 0"))?;
        Ok(1)
    }

    /// Parses STORE or STOREDIST with its key. The key walker has determined the key.
    fn parse_store_option(&mut self) -> bool {
        if !matches!(
            self.kind,
            GeoSearchCommand::Radius(true) | GeoSearchCommand::RadiusByMember(true)
        ) {
            return false;
        }
        if self.matches_option(b"store", 1) {
            self.query.store = Some(StoredScore::Position);
        } else if self.matches_option(b"storedist", 1) {
            self.query.store = Some(StoredScore::Distance);
        } else {
            return false;
        }
        true
    }

    /// Parses a centre or an area; returns the number of further words.
    fn parse_search_option(
        &mut self,
        view: Option<&SortedSetView<'_>>,
        is_from_member: &mut bool,
    ) -> Result<usize, CommandError> {
        let from_position = self.query.has_centre && !*is_from_member;
        let polygon = self.has_polygon();
        if self.matches_option(b"frommember", 1) && !from_position && !polygon {
            if view.is_some() {
                self.query.centre = Some(position_of_member(view, self.argument_after_option(1))?);
            }
            self.query.has_centre = true;
            *is_from_member = true;
            Ok(1)
        } else if self.matches_option(b"fromlonlat", 2) && !*is_from_member && !polygon {
            self.query.centre = Some(parse_position(
                self.argument_after_option(1),
                self.argument_after_option(2),
            )?);
            self.query.has_centre = true;
            Ok(2)
        } else if self.matches_option(b"byradius", 2) && !self.has_box() && !polygon {
            self.query.shape = Some(parse_circle(
                self.argument_after_option(1),
                self.argument_after_option(2),
            )?);
            Ok(2)
        } else if self.matches_option(b"bybox", 3) && !self.has_circle() && !polygon {
            self.query.shape = Some(parse_box(
                self.argument_after_option(1),
                self.argument_after_option(2),
                self.argument_after_option(3),
            )?);
            Ok(3)
        } else if self.matches_option(b"bypolygon", 2)
            && !self.has_box()
            && !self.has_circle()
            && !self.query.has_centre
        {
            self.parse_polygon()
        } else {
            Err(CommandError::SYNTAX)
        }
    }

    fn parse_polygon(&mut self) -> Result<usize, CommandError> {
        let invalid = CommandError::constant("ERR invalid number of vertices");
        let count = parse_i64(self.argument_after_option(1)).and_then(|count| i32::try_from(count).ok());
        let count = usize::try_from(count.ok_or(invalid)?).unwrap_or(0);
        let left = self.ctx.argc() - self.index - 2;
        if count < MIN_VERTICES || left < 2 * count {
            return Err(TOO_FEW_VERTICES);
        }
        let corner = |number: usize| {
            parse_position(
                self.argument_after_option(2 + 2 * number),
                self.argument_after_option(3 + 2 * number),
            )
        };
        let corners: Result<Vec<GeoPosition>, CommandError> = (0..count).map(corner).collect();
        self.query.shape = Some(OutlineWithUnit {
            outline: GeoOutline::Polygon(corners?),
            unit_m: 1.0,
        });
        Ok(1 + 2 * count)
    }
}

/// Parses all arguments. `view` is the sorted set that is searched, if there is one.
fn parse_query(
    ctx: &Context<'_, '_>,
    kind: GeoSearchCommand,
    view: Option<&SortedSetView<'_>>,
) -> Result<GeoQuery, CommandError> {
    let (mut centre, mut given) = (None, None);
    match kind {
        GeoSearchCommand::Radius(_) => {
            centre = Some(parse_position(ctx.arg(2), ctx.arg(3))?);
            given = Some(parse_circle(ctx.arg(4), ctx.arg(5))?);
        }
        GeoSearchCommand::RadiusByMember(_) if view.is_some() => {
            centre = Some(position_of_member(view, ctx.arg(2))?);
            given = Some(parse_circle(ctx.arg(3), ctx.arg(4))?);
        }
        _ => {}
    }
    let mut parser = GeoSearchParser {
        ctx,
        kind,
        index: kind.options_index(),
        query: GeoQuery {
            centre,
            has_centre: false,
            shape: given,
            should_reply_distance: false,
            should_reply_score: false,
            should_reply_position: false,
            order: DistanceOrder::Unsorted,
            count: 0,
            accepts_any: false,
            store: (kind == GeoSearchCommand::SearchStore).then_some(StoredScore::Position),
        },
    };
    parser.parse_options(view)?;
    let polygon = parser.has_polygon();
    check_query(ctx, kind, &parser.query, polygon)?;
    Ok(parser.query)
}

fn check_query(ctx: &Context<'_, '_>, kind: GeoSearchCommand, query: &GeoQuery, is_polygon: bool) -> CommandResult {
    if query.store.is_some() && (query.should_reply_distance || query.should_reply_score || query.should_reply_position)
    {
        let who = if kind == GeoSearchCommand::SearchStore {
            "GEOSEARCHSTORE"
        } else {
            "STORE option in GEORADIUS"
        };
        return Err(CommandError::from_text(format!(
            "ERR {who} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
        )));
    }
    let name = c_string_prefix(ctx.arg(0));
    if kind.is_search() && !query.has_centre && !is_polygon {
        let before = "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for ";
        return Err(CommandError::with_word(before, name, ""));
    }
    if kind.is_search() && query.shape.is_none() {
        let before = "ERR exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for ";
        return Err(CommandError::with_word(before, name, ""));
    }
    if query.accepts_any && query.count == 0 {
        return Err(CommandError::constant("ERR the ANY argument requires COUNT argument"));
    }
    Ok(())
}

/// A member inside the shape.
struct FoundMember<'v> {
    member: Element<'v>,
    score: f64,
    position: GeoPosition,
    distance_m: f64,
}

fn search(ctx: &mut Context<'_, '_>, kind: GeoSearchCommand) -> CommandResult {
    // GEOSEARCHSTORE has its destination first; the other commands may have one after their key.
    let (source, destination) = if kind == GeoSearchCommand::SearchStore {
        (1, 0)
    } else {
        (0, 1)
    };
    if let Some(entry) = ctx.keys.read(source) {
        value_as_sorted_set(entry.value())?;
    }
    let view = match ctx.keys.peek(source) {
        Some(entry) => Some(value_as_sorted_set(entry.value())?),
        None => None,
    };
    let mut query = parse_query(ctx, kind, view.as_ref())?;
    let mut found = Vec::new();
    let unit_m = query.shape.as_ref().map_or(1.0, |given| given.unit_m);
    if let (Some(view), Some(shape)) = (view, take_shape(&mut query)) {
        let ranges = candidate_ranks(&view, &shape);
        let members: usize = ranges.iter().map(std::ops::Range::len).sum();
        if members as u64 * EXAMINE_MEMBER_NS > ctx.max_worker_ns() {
            ctx.detach();
            return Ok(());
        }
        found = collect_members(&view, &shape, ranges, &query);
        sort_and_limit(&mut found, &query);
    }
    let Some(stored) = query.store else {
        reply_members(&mut ctx.reply, &found, &query, unit_m);
        return Ok(());
    };
    let mut gathering = MemberBuilder::with_capacity(found.len());
    for found in &found {
        let score = match stored {
            StoredScore::Position => found.score,
            StoredScore::Distance => found.distance_m / unit_m,
        };
        gathering.push_element(found.member, score);
    }
    let limits = ctx.server.config.sorted_set_limits();
    let times = gathering.len() as u64;
    let draft = (!gathering.is_empty()).then(|| gathering.build(limits));
    let count = store_result_with_changes(&mut ctx.keys, destination, draft, kind.store_event(), times);
    ctx.reply.integer(count as i64);
    Ok(())
}

fn take_shape(query: &mut GeoQuery) -> Option<GeoShape> {
    match (query.shape.take()?.outline, query.centre) {
        (GeoOutline::Polygon(corners), _) => Some(GeoShape::polygon(corners)),
        (outline, Some(centre)) => Some(GeoShape::new(centre, outline)),
        (_, None) => None,
    }
}

/// Returns the ranks of the members in the cells around the shape, cell by cell.
fn candidate_ranks(view: &SortedSetView<'_>, shape: &GeoShape) -> Vec<std::ops::Range<usize>> {
    let range = |(min, max)| ScoreRange {
        min,
        min_exclusive: false,
        max,
        max_exclusive: true,
    };
    let ranges = shape.score_ranges().into_iter().map(range);
    ranges.map(|range| view.ranks_of_scores(&range)).collect()
}

fn collect_members<'v>(
    view: &SortedSetView<'v>,
    shape: &GeoShape,
    ranges: Vec<std::ops::Range<usize>>,
    query: &GeoQuery,
) -> Vec<FoundMember<'v>> {
    let members = ranges.into_iter().flat_map(|ranks| view.iter_ranks(ranks, false));
    let inside = members.filter_map(|(member, score)| {
        let position = GeoPosition::from_score(score);
        let distance_m = shape.distance_m(position)?;
        Some(FoundMember {
            member,
            score,
            position,
            distance_m,
        })
    });
    let most = if query.accepts_any { query.count } else { usize::MAX };
    inside.take(most).collect()
}

/// Sorts the members that were found, and keeps the requested number.
fn sort_and_limit(members: &mut Vec<FoundMember<'_>>, query: &GeoQuery) {
    let order = match query.order {
        // Without an order the first members would be arbitrary.
        DistanceOrder::Unsorted if query.count > 0 && !query.accepts_any => DistanceOrder::Nearest,
        order => order,
    };
    match order {
        DistanceOrder::Unsorted => {}
        DistanceOrder::Nearest => members.sort_by(|a, b| a.distance_m.total_cmp(&b.distance_m)),
        DistanceOrder::Farthest => members.sort_by(|a, b| b.distance_m.total_cmp(&a.distance_m)),
    }
    if query.count > 0 {
        members.truncate(query.count);
    }
}

fn reply_members(reply: &mut Reply<'_>, members: &[FoundMember<'_>], query: &GeoQuery, unit_m: f64) {
    let parts = [
        query.should_reply_distance,
        query.should_reply_score,
        query.should_reply_position,
    ];
    let parts = parts.into_iter().filter(|wanted| *wanted).count();
    reply.array(members.len());
    for found in members {
        if parts > 0 {
            reply.array(1 + parts);
        }
        reply_member(reply, found.member);
        if query.should_reply_distance {
            reply_distance(reply, found.distance_m / unit_m);
        }
        if query.should_reply_score {
            reply.integer(found.score as i64);
        }
        if query.should_reply_position {
            reply_position(reply, found.position);
        }
    }
}
