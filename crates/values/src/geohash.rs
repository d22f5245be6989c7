//! Positions on Earth as 52-bit numbers, and shapes that are searched through ranges of such numbers.
//!
//! The ranges of longitude and latitude are halved 26 times each, and the resulting bits are interleaved. So positions
//! with the same leading bits are in one cell, a cell of any size is a range of numbers, and a shape is covered by the
//! cell of its centre and the eight cells around it.
//!
//! ```text
//!    +----+----+----+
//!    | NW | N  | NE |        a cell is as large as the shape, or somewhat larger:
//!    +----+----+----+        cells outside the bounds of the shape are left out
//!    | W  | *  |  E |
//!    +----+----+----+
//!    | SW | S  | SE |
//!    +----+----+----+
//! ```
//!
//! The numbers, the order of the cells and the results of floating-point operations are those of Valkey, because
//! clients can see them.
/// The maximum longitude in degrees. The minimum is its negative.
pub const LONGITUDE_MAX: f64 = 180.0;
/// The maximum latitude in degrees. The minimum is its negative. The poles are outside the map.
pub const LATITUDE_MAX: f64 = 85.051_128_78;
/// The number of times each coordinate of a stored position is halved.
const STEPS: u32 = 26;
/// The quadratic mean radius of Earth in metres.
const EARTH_RADIUS_M: f64 = 6_372_797.560_856;
/// Half the width of the map in metres.
const MAP_MAX_M: f64 = 20_037_726.37;
const RADIANS_PER_DEGREE: f64 = std::f64::consts::PI / 180.0;
/// The digits of a standard geohash string.
const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// A position in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeoPosition {
    /// The longitude; east is positive.
    pub longitude: f64,
    /// The latitude; north is positive.
    pub latitude: f64,
}

impl GeoPosition {
    /// Returns `true` if the position is within the limits of the map.
    pub fn is_on_map(self) -> bool {
        self.longitude.abs() <= LONGITUDE_MAX && self.latitude.abs() <= LATITUDE_MAX
    }

    /// Returns the score under which the position is stored.
    pub fn score(self) -> f64 {
        Cell::of(self, STEPS, LATITUDE_MAX).bits as f64
    }

    /// Returns the position stored under a score, which is the middle of its cell.
    pub fn from_score(score: f64) -> Self {
        // The bits of a score that is not a position are also used as they are.
        let bits = if score < 0.0 { score as i64 as u64 } else { score as u64 };
        let area = Cell { bits, steps: STEPS }.area();
        let middle = |low: f64, high: f64, max: f64| f64::clamp((low + high) / 2.0, -max, max);
        Self {
            longitude: middle(area.west, area.east, LONGITUDE_MAX),
            latitude: middle(area.south, area.north, LATITUDE_MAX),
        }
    }

    /// Returns the standard geohash of 11 digits, whose map extends to the poles. The last digit is always 0, because
    /// 52 bits only give ten digits.
    pub fn geohash(self) -> [u8; 11] {
        let bits = Cell::of(self, STEPS, 90.0).bits;
        std::array::from_fn(|digit| match digit {
            10 => ALPHABET[0],
            _ => ALPHABET[(bits >> (52 - (digit + 1) * 5) & 0x1F) as usize],
        })
    }

    /// Returns the distance to another position along the surface, in metres.
    pub fn distance_m(self, other: Self) -> f64 {
        let from_east = (radians(other.longitude) - radians(self.longitude)) / 2.0;
        let v = from_east.sin();
        if v == 0.0 {
            return latitude_distance_m(self.latitude, other.latitude);
        }
        let (from, to) = (radians(self.latitude), radians(other.latitude));
        let u = ((to - from) / 2.0).sin();
        let a = u * u + from.cos() * to.cos() * v * v;
        2.0 * EARTH_RADIUS_M * a.sqrt().asin()
    }
}

fn radians(degrees: f64) -> f64 {
    degrees * RADIANS_PER_DEGREE
}

fn degrees(radians: f64) -> f64 {
    radians / RADIANS_PER_DEGREE
}

fn latitude_distance_m(one: f64, other: f64) -> f64 {
    EARTH_RADIUS_M * (radians(other) - radians(one)).abs()
}

/// The bounds of an area, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Area {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

/// A cell, identified by the leading bits of its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    steps: u32,
}

const LATITUDE_BITS: u64 = 0x5555_5555_5555_5555;
const LONGITUDE_BITS: u64 = !LATITUDE_BITS;

/// Moves the bits of a number to the even bit positions.
fn spread_bits(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_FFFF_0000_FFFF),
        (8, 0x00FF_00FF_00FF_00FF),
        (4, 0x0F0F_0F0F_0F0F_0F0F),
        (2, 0x3333_3333_3333_3333),
        (1, LATITUDE_BITS),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Returns the number formed by the bits at the even bit positions.
fn compact_bits(bits: u64) -> u32 {
    let mut number = bits & LATITUDE_BITS;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0F0F_0F0F_0F0F_0F0F),
        (4, 0x00FF_00FF_00FF_00FF),
        (8, 0x0000_FFFF_0000_FFFF),
        (16, 0x0000_0000_FFFF_FFFF),
    ] {
        number = (number | number >> shift) & mask;
    }
    number as u32
}

impl Cell {
    /// Returns the cell of a position on a map that extends to `latitude_max`.
    fn of(position: GeoPosition, steps: u32, latitude_max: f64) -> Self {
        let share = |coordinate: f64, max: f64| {
            let share = (coordinate + max) / (max + max);
            (share * (1u64 << steps) as f64) as u32
        };
        let latitude = share(position.latitude, latitude_max);
        let longitude = share(position.longitude, LONGITUDE_MAX);
        Self {
            bits: spread_bits(latitude) | spread_bits(longitude) << 1,
            steps,
        }
    }

    fn area(self) -> Area {
        let parts = (1u64 << self.steps) as f64;
        let edge = |number: f64, max: f64| -max + (number / parts) * (max - -max);
        let (latitude, longitude) = (compact_bits(self.bits), compact_bits(self.bits >> 1));
        // The number of the next cell wraps around in 32 bits, which matters for scores that are not positions.
        let after = |number: u32| f64::from(number.wrapping_add(1));
        Area {
            south: edge(f64::from(latitude), LATITUDE_MAX),
            north: edge(after(latitude), LATITUDE_MAX),
            west: edge(f64::from(longitude), LONGITUDE_MAX),
            east: edge(after(longitude), LONGITUDE_MAX),
        }
    }

    /// Returns the cell at this distance to the east and to the north, in cells (-1, 0 or 1). The map wraps around in
    /// both directions.
    fn neighbour(self, east: i64, north: i64) -> Self {
        let unused = 64 - self.steps * 2;
        let step = |bits: u64, all: u64, by: i64| {
            let (own, fill) = (all >> unused, !all >> unused);
            match by {
                // The bits of the other coordinate are set, so that a carry passes over them.
                1 => (bits & own).wrapping_add(fill.wrapping_add(1)) & own,
                -1 => (bits & own | fill).wrapping_sub(fill.wrapping_add(1)) & own,
                // The easternmost longitude has a cell of its own, outside the map.
                _ => bits & all,
            }
        };
        Self {
            bits: step(self.bits, LONGITUDE_BITS, east) | step(self.bits, LATITUDE_BITS, north),
            steps: self.steps,
        }
    }

    /// Returns the range of scores of the positions in the cell: from the first (inclusive) to the second (exclusive).
    fn score_range(self) -> (f64, f64) {
        let shift = 2 * (STEPS - self.steps);
        ((self.bits << shift) as f64, ((self.bits + 1) << shift) as f64)
    }
}

/// The outline of a search area.
#[derive(Clone, Debug, PartialEq)]
pub enum GeoOutline {
    /// All positions up to a distance from the centre.
    Circle {
        /// The distance in metres.
        radius_m: f64,
    },
    /// A box around the centre.
    Box {
        /// The extent from west to east in metres.
        width_m: f64,
        /// The extent from south to north in metres.
        height_m: f64,
    },
    /// The interior of the polygon with these corners, of which there are at least three.
    Polygon(Vec<GeoPosition>),
}

/// An outline and its centre, from which distances are measured.
#[derive(Clone, Debug, PartialEq)]
pub struct GeoShape {
    centre: GeoPosition,
    outline: GeoOutline,
}

impl GeoShape {
    /// Creates a shape from an outline and its centre.
    pub fn new(centre: GeoPosition, outline: GeoOutline) -> Self {
        Self { centre, outline }
    }

    /// Creates a polygon. Its centre is the mean of its corners on the sphere.
    pub fn polygon(corners: Vec<GeoPosition>) -> Self {
        let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
        for corner in &corners {
            let (longitude, latitude) = (radians(corner.longitude), radians(corner.latitude));
            x += latitude.cos() * longitude.cos();
            y += latitude.cos() * longitude.sin();
            z += latitude.sin();
        }
        // The sum of the vectors has the same direction as their mean.
        let centre = GeoPosition {
            longitude: degrees(f64::atan2(y, x)),
            latitude: degrees(f64::atan2(z, (x * x + y * y).sqrt())),
        };
        Self::new(centre, GeoOutline::Polygon(corners))
    }

    /// Returns the distance of a position from the centre in metres, or `None` if it is outside the shape.
    pub fn distance_m(&self, position: GeoPosition) -> Option<f64> {
        let inside = match &self.outline {
            GeoOutline::Circle { radius_m } => {
                let distance = self.centre.distance_m(position);
                return (distance <= *radius_m).then_some(distance);
            }
            GeoOutline::Box { width_m, height_m } => {
                let beside = GeoPosition {
                    latitude: position.latitude,
                    ..self.centre
                };
                latitude_distance_m(position.latitude, self.centre.latitude) <= height_m / 2.0
                    && position.distance_m(beside) <= width_m / 2.0
            }
            GeoOutline::Polygon(corners) => is_inside(corners, position),
        };
        inside.then(|| self.centre.distance_m(position))
    }

    /// Returns half the height and half the width of the outline in metres.
    fn half_extent_m(&self) -> (f64, f64) {
        match &self.outline {
            GeoOutline::Circle { radius_m } => (*radius_m, *radius_m),
            GeoOutline::Box { width_m, height_m } => (height_m / 2.0, width_m / 2.0),
            GeoOutline::Polygon(_) => (0.0, 0.0),
        }
    }

    fn bounds(&self) -> Area {
        if let GeoOutline::Polygon(corners) = &self.outline {
            return bounds_of(corners);
        }
        let GeoPosition { longitude, latitude } = self.centre;
        let (height, width) = self.half_extent_m();
        let latitude_delta = degrees(height / EARTH_RADIUS_M);
        // A degree of longitude is shorter closer to a pole, so the edge closer to the pole is used: the lower edge on
        // the southern half.
        let edge = if latitude < 0.0 {
            latitude - latitude_delta
        } else {
            latitude + latitude_delta
        };
        let longitude_delta = degrees(width / EARTH_RADIUS_M / radians(edge).cos());
        Area {
            west: longitude - longitude_delta,
            east: longitude + longitude_delta,
            south: latitude - latitude_delta,
            north: latitude + latitude_delta,
        }
    }

    /// Returns the approximate maximum distance of the outline from its centre, in metres.
    fn max_distance_m(&self, bounds: &Area) -> f64 {
        match &self.outline {
            GeoOutline::Circle { radius_m } => *radius_m,
            GeoOutline::Box { width_m, height_m } => {
                let (half_width, half_height) = (width_m / 2.0, height_m / 2.0);
                (half_width * half_width + half_height * half_height).sqrt()
            }
            GeoOutline::Polygon(_) => {
                let far = |longitude, latitude| self.centre.distance_m(GeoPosition { longitude, latitude });
                // The mean of the corners can be anywhere within their bounds, or even outside if those go around
                // Earth.
                [
                    far(bounds.west, bounds.north),
                    far(bounds.east, bounds.north),
                    far(bounds.west, bounds.south),
                    far(bounds.east, bounds.south),
                ]
                .into_iter()
                .fold(0.0, f64::max)
            }
        }
    }

    /// Returns ranges of scores, from the first (inclusive) to the second (exclusive), that contain all positions
    /// inside the shape. The ranges are in search order and do not overlap.
    ///
    /// A polygon whose centre is outside the map, close to a pole, gives no ranges.
    pub fn score_ranges(&self) -> Vec<(f64, f64)> {
        if !self.centre.is_on_map() {
            return Vec::new();
        }
        let bounds = self.bounds();
        let mut steps = steps_for_distance(self.max_distance_m(&bounds), self.centre.latitude);
        if steps > 1 && !self.neighbours_cover(&bounds, steps) {
            steps -= 1;
        }
        let cell = Cell::of(self.centre, steps, LATITUDE_MAX);
        let area = cell.area();
        // On a map of four cells, each cell can be reached from either side.
        let narrow = steps < 2;
        let wanted = |east: i64, north: i64| {
            narrow
                || !(north < 0 && area.south < bounds.south
                    || north > 0 && area.north > bounds.north
                    || east < 0 && area.west < bounds.west
                    || east > 0 && area.east > bounds.east)
        };
        let around = [
            (0, 0),
            (0, 1),
            (0, -1),
            (1, 0),
            (-1, 0),
            (1, 1),
            (-1, 1),
            (1, -1),
            (-1, -1),
        ];
        let mut cells: Vec<Cell> = Vec::with_capacity(around.len());
        for (east, north) in around {
            let neighbour = cell.neighbour(east, north);
            if wanted(east, north) && !cells.contains(&neighbour) {
                cells.push(neighbour);
            }
        }
        cells.into_iter().map(Cell::score_range).collect()
    }

    /// Returns `true` if the cells around the cell of the centre extend beyond the bounds on all sides, with this
    /// number of steps.
    fn neighbours_cover(&self, bounds: &Area, steps: u32) -> bool {
        let cell = Cell::of(self.centre, steps, LATITUDE_MAX);
        let area = |east, north| cell.neighbour(east, north).area();
        area(0, 1).north >= bounds.north
            && area(0, -1).south <= bounds.south
            && area(1, 0).east >= bounds.east
            && area(-1, 0).west <= bounds.west
    }
}

fn bounds_of(corners: &[GeoPosition]) -> Area {
    let start = Area {
        west: f64::INFINITY,
        east: f64::NEG_INFINITY,
        south: f64::INFINITY,
        north: f64::NEG_INFINITY,
    };
    corners.iter().fold(start, |area, corner| Area {
        west: area.west.min(corner.longitude),
        east: area.east.max(corner.longitude),
        south: area.south.min(corner.latitude),
        north: area.north.max(corner.latitude),
    })
}

/// Returns `true` if a position is inside a polygon, that is, if a line from it to the east crosses an odd number of
/// edges.
fn is_inside(corners: &[GeoPosition], position: GeoPosition) -> bool {
    let mut inside = false;
    let mut before = corners.last();
    for corner in corners {
        if let Some(other) = before {
            let crosses = (corner.latitude > position.latitude) != (other.latitude > position.latitude);
            let at = (other.longitude - corner.longitude) * (position.latitude - corner.latitude)
                / (other.latitude - corner.latitude)
                + corner.longitude;
            inside ^= crosses && position.longitude < at;
        }
        before = Some(corner);
    }
    inside
}

/// Returns the number of times the map must be halved so that the nine cells around a centre contain everything within
/// a distance of it.
fn steps_for_distance(reach_m: f64, latitude: f64) -> u32 {
    if reach_m == 0.0 {
        return STEPS;
    }
    let mut steps = 1i32;
    let mut reach_m = reach_m;
    while reach_m < MAP_MAX_M {
        reach_m *= 2.0;
        steps += 1;
    }
    steps -= 2;
    // Cells are narrower towards the poles.
    steps -= i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    steps.clamp(1, STEPS as i32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(longitude: f64, latitude: f64) -> GeoPosition {
        GeoPosition { longitude, latitude }
    }

    #[test]
    fn known_positions_have_their_known_scores() {
        let palermo = at(13.361389, 38.115556);
        let catania = at(15.087269, 37.502669);
        assert_eq!(palermo.score(), 3479099956230698.0);
        assert_eq!(catania.score(), 3479447370796909.0);
        assert_eq!(&GeoPosition::from_score(palermo.score()).geohash(), b"sqc8b49rny0");
        let distance = GeoPosition::from_score(palermo.score()).distance_m(GeoPosition::from_score(catania.score()));
        assert_eq!((distance * 10_000.0).round(), 1_662_741_516.0);
    }

    /// The mean of corners on both sides of the date line is between them, far from the middle of their bounds. Half
    /// the diagonal of the bounds is then too short to reach the positions inside.
    #[test]
    fn a_polygon_whose_edges_go_around_earth_is_searched_as_far_as_its_bounds() {
        let shape = GeoShape::polygon(vec![
            at(179.5, 41.902782),
            at(180.0, 37.502669),
            at(-180.0, 38.115556),
            at(180.0, 59.91),
        ]);
        let palermo = at(13.361389, 38.115556);
        assert!(shape.distance_m(GeoPosition::from_score(palermo.score())).is_some());
        let score = palermo.score();
        let holds = |(from, to): &(f64, f64)| (*from..*to).contains(&score);
        assert_eq!(shape.score_ranges().iter().filter(|range| holds(range)).count(), 1);
    }

    #[test]
    fn every_position_inside_a_shape_is_in_one_of_its_ranges() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut inside = 0;
        for _ in 0..3000 {
            let centre = at(random.f64() * 340.0 - 170.0, random.f64() * 120.0 - 60.0);
            let reach = 10f64.powf(random.f64() * 5.0 + 1.0);
            let shape = match random.u8(..3) {
                0 => GeoShape::new(centre, GeoOutline::Circle { radius_m: reach }),
                1 => GeoShape::new(
                    centre,
                    GeoOutline::Box {
                        width_m: reach * random.f64(),
                        height_m: reach,
                    },
                ),
                _ => {
                    let size = reach / 150_000.0;
                    let mut near = || random.f64() * size;
                    let corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)];
                    GeoShape::polygon(
                        corners
                            .map(|(x, y)| at(centre.longitude + x * near(), centre.latitude + y * near()))
                            .to_vec(),
                    )
                }
            };
            let ranges = shape.score_ranges();
            for _ in 0..20 {
                let mut near = || (random.f64() - 0.5) * reach / 50_000.0;
                let place = at(centre.longitude + near(), centre.latitude + near());
                let stored = GeoPosition::from_score(place.score());
                if place.is_on_map() && shape.distance_m(stored).is_some() {
                    inside += 1;
                    let score = place.score();
                    assert!(
                        ranges.iter().any(|(from, to)| (*from..*to).contains(&score)),
                        "{shape:?} {place:?}"
                    );
                }
            }
        }
        assert!(inside > 1000, "{inside} places were inside");
    }
}
