//! GEOSEARCH, GEOSEARCHSTORE and their older kin GEORADIUS and GEORADIUSBYMEMBER: members inside a shape.

use weft_resp::Reply;
use weft_resp::number::{parse_f64, parse_i64};
use weft_values::geohash::{GeoOutline, GeoPosition, GeoShape};
use weft_values::listpack::Element;
use weft_values::sorted_set::{MemberBuilder, ScoreRange, SortedSetView};

use super::{parse_position, parse_unit, position_of, reply_distance, reply_position};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::{CommandError, shown};
use crate::commands::sorted_set::{reply_member, store_result_of, view_of};
use crate::keyspace::encoding_limits::EncodingParameters;

/// The time to examine a member, in ns.
const LOOK_NS: u64 = 100;
const FEW_CORNERS: CommandError = CommandError::constant("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
const FEWEST_CORNERS: usize = 3;

/// The command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// GEOSEARCH.
    Search,
    /// GEOSEARCHSTORE.
    SearchStore,
    /// GEORADIUS; whether it may store.
    Radius(bool),
    /// GEORADIUSBYMEMBER; whether it may store.
    RadiusByMember(bool),
}

impl Kind {
    const fn is_search(self) -> bool {
        matches!(self, Kind::Search | Kind::SearchStore)
    }

    /// Index of the first option among the arguments.
    const fn options_index(self) -> usize {
        match self {
            Kind::Search => 2,
            Kind::SearchStore => 3,
            Kind::RadiusByMember(_) => 5,
            Kind::Radius(_) => 6,
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
    search(ctx, Kind::Radius(true))
}

/// GEORADIUS_RO key longitude latitude radius unit [option ...]
pub fn georadius_ro(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, Kind::Radius(false))
}

/// GEORADIUSBYMEMBER key member radius unit [option ...]
pub fn georadiusbymember(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, Kind::RadiusByMember(true))
}

/// GEORADIUSBYMEMBER_RO key member radius unit [option ...]
pub fn georadiusbymember_ro(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, Kind::RadiusByMember(false))
}

/// GEOSEARCH key FROMMEMBER member|FROMLONLAT longitude latitude BYRADIUS radius unit|BYBOX width height unit [option
/// ...], or GEOSEARCH key BYPOLYGON corners longitude latitude ... [option ...]
pub fn geosearch(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, Kind::Search)
}

/// GEOSEARCHSTORE destination, and as GEOSEARCH
pub fn geosearchstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    search(ctx, Kind::SearchStore)
}

/// The order of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DistanceOrder {
    /// Those that are found first.
    Found,
    Nearest,
    Farthest,
}

/// The value that is stored as the score of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredScore {
    Position,
    Distance,
}

/// An outline as it was given, and the metres of the unit it was given in.
struct GivenShape {
    outline: GeoOutline,
    unit_m: f64,
}

/// The parameters of a search.
struct Query {
    centre: Option<GeoPosition>,
    /// `true` if a centre was given, even if it is a member of a missing key.
    has_centre: bool,
    given: Option<GivenShape>,
    with_distance: bool,
    with_score: bool,
    with_position: bool,
    order: DistanceOrder,
    /// 0: no limit.
    count: usize,
    any: bool,
    store: Option<StoredScore>,
}

/// A radius and its unit.
fn parse_circle(radius: &[u8], unit: &[u8]) -> Result<GivenShape, CommandError> {
    let radius = parse_f64(radius).ok_or(CommandError::constant("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(CommandError::constant("ERR radius cannot be negative"));
    }
    let unit_m = parse_unit(unit)?;
    Ok(GivenShape {
        outline: GeoOutline::Circle {
            radius_m: radius * unit_m,
        },
        unit_m,
    })
}

fn parse_box(width: &[u8], height: &[u8], unit: &[u8]) -> Result<GivenShape, CommandError> {
    let width = parse_f64(width).ok_or(CommandError::constant("ERR need numeric width"))?;
    let height = parse_f64(height).ok_or(CommandError::constant("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(CommandError::constant("ERR height or width cannot be negative"));
    }
    let unit_m = parse_unit(unit)?;
    Ok(GivenShape {
        outline: GeoOutline::Box {
            width_m: width * unit_m,
            height_m: height * unit_m,
        },
        unit_m,
    })
}

fn position_of_member(view: Option<&SortedSetView<'_>>, member: &[u8]) -> Result<GeoPosition, CommandError> {
    position_of(view, member).ok_or_else(|| CommandError::about("ERR member ", member, " does not exist"))
}

/// Walks over the options of a command.
struct Parser<'c, 'a, 'p> {
    ctx: &'c Context<'a, 'p>,
    kind: Kind,
    index: usize,
    query: Query,
}

impl Parser<'_, '_, '_> {
    /// Returns `true` if the current option has this name and enough arguments.
    fn is(&self, name: &[u8], words: usize) -> bool {
        self.ctx.arg(self.index).eq_ignore_ascii_case(name) && self.index + words < self.ctx.argc()
    }

    fn word(&self, number: usize) -> &[u8] {
        self.ctx.arg(self.index + number)
    }

    /// Returns `true` if the shape is a polygon, which defines its own centre.
    fn has_polygon(&self) -> bool {
        matches!(&self.query.given, Some(given) if matches!(given.outline, GeoOutline::Polygon(_)))
    }

    fn has_circle(&self) -> bool {
        matches!(&self.query.given, Some(given) if matches!(given.outline, GeoOutline::Circle { .. }))
    }

    fn has_box(&self) -> bool {
        matches!(&self.query.given, Some(given) if matches!(given.outline, GeoOutline::Box { .. }))
    }

    fn parse(&mut self, view: Option<&SortedSetView<'_>>) -> CommandResult {
        let mut from_member = false;
        while self.index < self.ctx.argc() {
            let words = if self.simple_option()? {
                0
            } else if self.is(b"count", 1) {
                self.parse_count()?
            } else if self.store_option() {
                1
            } else if self.kind.is_search() {
                self.search_option(view, &mut from_member)?
            } else {
                return Err(CommandError::SYNTAX);
            };
            self.index += 1 + words;
        }
        Ok(())
    }

    /// Takes an option without words behind it.
    fn simple_option(&mut self) -> Result<bool, CommandError> {
        if self.is(b"withdist", 0) {
            self.query.with_distance = true;
        } else if self.is(b"withhash", 0) {
            self.query.with_score = true;
        } else if self.is(b"withcoord", 0) {
            self.query.with_position = true;
        } else if self.is(b"any", 0) {
            self.query.any = true;
        } else if self.is(b"asc", 0) {
            self.query.order = DistanceOrder::Nearest;
        } else if self.is(b"desc", 0) {
            self.query.order = DistanceOrder::Farthest;
        } else if self.kind == Kind::SearchStore && self.is(b"storedist", 0) {
            self.query.store = Some(StoredScore::Distance);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn parse_count(&mut self) -> Result<usize, CommandError> {
        let count = parse_i64(self.word(1)).ok_or(CommandError::NOT_AN_INTEGER)?;
        let positive = usize::try_from(count).ok().filter(|count| *count > 0);
        self.query.count = positive.ok_or(CommandError::constant("ERR COUNT must be > 0"))?;
        Ok(1)
    }

    /// Parses STORE or STOREDIST with its key; the key walker knows which key that is.
    fn store_option(&mut self) -> bool {
        if !matches!(self.kind, Kind::Radius(true) | Kind::RadiusByMember(true)) {
            return false;
        }
        if self.is(b"store", 1) {
            self.query.store = Some(StoredScore::Position);
        } else if self.is(b"storedist", 1) {
            self.query.store = Some(StoredScore::Distance);
        } else {
            return false;
        }
        true
    }

    /// Takes a centre or an outline; returns the number of words behind it.
    fn search_option(
        &mut self,
        view: Option<&SortedSetView<'_>>,
        from_member: &mut bool,
    ) -> Result<usize, CommandError> {
        let from_position = self.query.has_centre && !*from_member;
        let polygon = self.has_polygon();
        if self.is(b"frommember", 1) && !from_position && !polygon {
            if view.is_some() {
                self.query.centre = Some(position_of_member(view, self.word(1))?);
            }
            self.query.has_centre = true;
            *from_member = true;
            Ok(1)
        } else if self.is(b"fromlonlat", 2) && !*from_member && !polygon {
            self.query.centre = Some(parse_position(self.word(1), self.word(2))?);
            self.query.has_centre = true;
            Ok(2)
        } else if self.is(b"byradius", 2) && !self.has_box() && !polygon {
            self.query.given = Some(parse_circle(self.word(1), self.word(2))?);
            Ok(2)
        } else if self.is(b"bybox", 3) && !self.has_circle() && !polygon {
            self.query.given = Some(parse_box(self.word(1), self.word(2), self.word(3))?);
            Ok(3)
        } else if self.is(b"bypolygon", 2) && !self.has_box() && !self.has_circle() && !self.query.has_centre {
            self.parse_polygon()
        } else {
            Err(CommandError::SYNTAX)
        }
    }

    fn parse_polygon(&mut self) -> Result<usize, CommandError> {
        let invalid = CommandError::constant("ERR invalid number of vertices");
        let count = parse_i64(self.word(1)).and_then(|count| i32::try_from(count).ok());
        let count = usize::try_from(count.ok_or(invalid)?).unwrap_or(0);
        let left = self.ctx.argc() - self.index - 2;
        if count < FEWEST_CORNERS || left < 2 * count {
            return Err(FEW_CORNERS);
        }
        let corner = |number: usize| parse_position(self.word(2 + 2 * number), self.word(3 + 2 * number));
        let corners: Result<Vec<GeoPosition>, CommandError> = (0..count).map(corner).collect();
        self.query.given = Some(GivenShape {
            outline: GeoOutline::Polygon(corners?),
            unit_m: 1.0,
        });
        Ok(1 + 2 * count)
    }
}

/// Parses all arguments; `view` is the sorted set that is searched, if there is one.
fn parse(ctx: &Context<'_, '_>, kind: Kind, view: Option<&SortedSetView<'_>>) -> Result<Query, CommandError> {
    let (mut centre, mut given) = (None, None);
    match kind {
        Kind::Radius(_) => {
            centre = Some(parse_position(ctx.arg(2), ctx.arg(3))?);
            given = Some(parse_circle(ctx.arg(4), ctx.arg(5))?);
        }
        Kind::RadiusByMember(_) if view.is_some() => {
            centre = Some(position_of_member(view, ctx.arg(2))?);
            given = Some(parse_circle(ctx.arg(3), ctx.arg(4))?);
        }
        _ => {}
    }
    let mut parser = Parser {
        ctx,
        kind,
        index: kind.options_index(),
        query: Query {
            centre,
            has_centre: false,
            given,
            with_distance: false,
            with_score: false,
            with_position: false,
            order: DistanceOrder::Found,
            count: 0,
            any: false,
            store: (kind == Kind::SearchStore).then_some(StoredScore::Position),
        },
    };
    parser.parse(view)?;
    let polygon = parser.has_polygon();
    check(ctx, kind, &parser.query, polygon)?;
    Ok(parser.query)
}

fn check(ctx: &Context<'_, '_>, kind: Kind, query: &Query, polygon: bool) -> CommandResult {
    if query.store.is_some() && (query.with_distance || query.with_score || query.with_position) {
        let who = if kind == Kind::SearchStore {
            "GEOSEARCHSTORE"
        } else {
            "STORE option in GEORADIUS"
        };
        return Err(CommandError::text(format!(
            "ERR {who} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
        )));
    }
    let name = shown(ctx.arg(0));
    if kind.is_search() && !query.has_centre && !polygon {
        let before = "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for ";
        return Err(CommandError::about(before, name, ""));
    }
    if kind.is_search() && query.given.is_none() {
        let before = "ERR exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for ";
        return Err(CommandError::about(before, name, ""));
    }
    if query.any && query.count == 0 {
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

fn search(ctx: &mut Context<'_, '_>, kind: Kind) -> CommandResult {
    // GEOSEARCHSTORE has its destination first; the others may have one behind their key.
    let (source, destination) = if kind == Kind::SearchStore { (1, 0) } else { (0, 1) };
    if let Some(entry) = ctx.keys.read(source) {
        view_of(entry.value())?;
    }
    let view = match ctx.keys.peek(source) {
        Some(entry) => Some(view_of(entry.value())?),
        None => None,
    };
    let mut query = parse(ctx, kind, view.as_ref())?;
    let mut found = Vec::new();
    let unit_m = query.given.as_ref().map_or(1.0, |given| given.unit_m);
    if let (Some(view), Some(shape)) = (view, shape_of(&mut query)) {
        let ranges = ranks_of(&view, &shape);
        let members: usize = ranges.iter().map(std::ops::Range::len).sum();
        if members as u64 * LOOK_NS > ctx.in_place_ns() {
            ctx.leave();
            return Ok(());
        }
        found = collect(&view, &shape, ranges, &query);
        arrange(&mut found, &query);
    }
    let Some(stored) = query.store else {
        reply_found(&mut ctx.reply, &found, &query, unit_m);
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
    let count = store_result_of(ctx.keys.write(destination), draft, kind.store_event(), times);
    ctx.reply.integer(count as i64);
    Ok(())
}

fn shape_of(query: &mut Query) -> Option<GeoShape> {
    match (query.given.take()?.outline, query.centre) {
        (GeoOutline::Polygon(corners), _) => Some(GeoShape::polygon(corners)),
        (outline, Some(centre)) => Some(GeoShape::new(centre, outline)),
        (_, None) => None,
    }
}

/// The ranks of the members in the cells around the shape, cell by cell.
fn ranks_of(view: &SortedSetView<'_>, shape: &GeoShape) -> Vec<std::ops::Range<usize>> {
    let range = |(min, max)| ScoreRange {
        min,
        min_exclusive: false,
        max,
        max_exclusive: true,
    };
    let ranges = shape.score_ranges().into_iter().map(range);
    ranges.map(|range| view.ranks_of_scores(&range)).collect()
}

fn collect<'v>(
    view: &SortedSetView<'v>,
    shape: &GeoShape,
    ranges: Vec<std::ops::Range<usize>>,
    query: &Query,
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
    let most = if query.any { query.count } else { usize::MAX };
    inside.take(most).collect()
}

/// Sorts what was found, and keeps as much as is wanted.
fn arrange(found: &mut Vec<FoundMember<'_>>, query: &Query) {
    let order = match query.order {
        // The first of no order would be any.
        DistanceOrder::Found if query.count > 0 && !query.any => DistanceOrder::Nearest,
        order => order,
    };
    match order {
        DistanceOrder::Found => {}
        DistanceOrder::Nearest => found.sort_by(|a, b| a.distance_m.total_cmp(&b.distance_m)),
        DistanceOrder::Farthest => found.sort_by(|a, b| b.distance_m.total_cmp(&a.distance_m)),
    }
    if query.count > 0 {
        found.truncate(query.count);
    }
}

fn reply_found(reply: &mut Reply<'_>, found: &[FoundMember<'_>], query: &Query, unit_m: f64) {
    let parts = [query.with_distance, query.with_score, query.with_position];
    let parts = parts.into_iter().filter(|wanted| *wanted).count();
    reply.array(found.len());
    for found in found {
        if parts > 0 {
            reply.array(1 + parts);
        }
        reply_member(reply, found.member);
        if query.with_distance {
            reply_distance(reply, found.distance_m / unit_m);
        }
        if query.with_score {
            reply.integer(found.score as i64);
        }
        if query.with_position {
            reply_position(reply, found.position);
        }
    }
}
