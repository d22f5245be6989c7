//! Reproducible random choices: the draws of request number `i` of a connection.
//!
//! When a reply arrives, a load generator must know which keys the request named. Storing the keys of every outstanding
//! request would cost memory traffic. Here, nothing is stored. Every request draws from a counter-based generator
//! (SplitMix64) that is a pure function of the connection's seed and the request's index. The reply side draws the same
//! numbers again, and only for the replies whose content it compares.

#[cfg(test)]
mod tests;

/// The step of the SplitMix64 sequence (2^64 divided by the golden ratio).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Scrambles `bits` so that neighbouring inputs have unrelated outputs (the SplitMix64 finalizer).
#[inline]
pub fn scramble(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// The random numbers of one request.
#[derive(Debug, Clone)]
pub struct Draw {
    state: u64,
}

impl Draw {
    /// Creates the generator of request `index` on the connection with `seed`.
    #[inline]
    pub fn new(seed: u64, index: u64) -> Draw {
        Draw {
            state: scramble(seed.wrapping_add(index.wrapping_mul(STEP))),
        }
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        scramble(self.state)
    }

    /// Returns a number below `bound` (0 when `bound` is 0).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in [0, 1).
    #[inline]
    pub fn unit_float(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// The order in which a load visits the keyspace.
#[derive(Debug, Clone)]
pub enum KeyOrder {
    /// Every key is equally likely.
    Uniform {
        /// The number of keys in the keyspace.
        keys: u64,
    },
    /// A few keys receive most requests.
    Zipf(Zipf),
    /// Every key is visited once: request `index` names key `seed + index` (used to fill).
    Sequential,
    /// Every connection uses the key with its own number, which is its seed.
    OwnKey,
}

/// The keys and numbers that one request draws, in the order in which its template names them.
#[derive(Debug, Clone)]
pub struct RequestDraw<'a> {
    order: &'a KeyOrder,
    draw: Draw,
    seed: u64,
    index: u64,
}

impl<'a> RequestDraw<'a> {
    /// Creates the draws of request `index` on the connection with `seed`.
    #[inline]
    pub fn new(order: &'a KeyOrder, seed: u64, index: u64) -> RequestDraw<'a> {
        RequestDraw {
            order,
            draw: Draw::new(seed, index),
            seed,
            index,
        }
    }

    /// The request's number on its connection.
    #[inline]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Draws the number of the next key.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        match self.order {
            KeyOrder::Uniform { keys } => self.draw.below(*keys),
            KeyOrder::Zipf(zipf) => zipf.key(&mut self.draw),
            KeyOrder::Sequential => self.new_key(),
            KeyOrder::OwnKey => self.seed,
        }
    }

    /// Returns the number of a key that no other request names. The connection's seed is the first of its new keys.
    #[inline]
    pub fn new_key(&self) -> u64 {
        self.seed.wrapping_add(self.index)
    }

    /// Draws a number below `bound` that is not a key.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw.below(bound)
    }
}

/// Zipf-distributed keys: the key of rank `r` (from 1) is drawn with weight `r^-exponent`.
///
/// Sampling is by rejection-inversion (Hörmann and Derflinger, 1996). It takes constant time and no table, for any size
/// of the keyspace. The integral of the weight function bounds the histogram from above. A uniform point under it is
/// mapped back by the inverse integral, and accepted if it is under the bar of the nearest rank.
#[derive(Debug, Clone)]
pub struct Zipf {
    keys: u64,
    exponent: f64,
    first_area: f64,
    last_area: f64,
    accept_distance: f64,
    stride: u64,
}

impl Zipf {
    /// Creates a distribution over `keys` keys (at least 1) with a positive exponent.
    pub fn new(keys: u64, exponent: f64) -> Zipf {
        let keys = keys.max(1);
        let mut zipf = Zipf {
            keys,
            exponent,
            first_area: 0.0,
            last_area: 0.0,
            accept_distance: 0.0,
            stride: stride_coprime_to(keys),
        };
        zipf.first_area = zipf.area_to(1.5) - 1.0;
        zipf.last_area = zipf.area_to(keys as f64 + 0.5);
        zipf.accept_distance = 2.0 - zipf.rank_at(zipf.area_to(2.5) - zipf.weight(2.0));
        zipf
    }

    /// The number of keys in the keyspace.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Draws a key number. Ranks are spread over the keyspace, so hot keys are not adjacent.
    #[inline]
    pub fn key(&self, draw: &mut Draw) -> u64 {
        let rank = self.rank(draw) - 1;
        ((u128::from(rank) * u128::from(self.stride)) % u128::from(self.keys)) as u64
    }

    /// Draws a rank from 1 (the most popular) to the number of keys.
    fn rank(&self, draw: &mut Draw) -> u64 {
        loop {
            let area = self.last_area + draw.unit_float() * (self.first_area - self.last_area);
            let position = self.rank_at(area);
            let nearest = position.round().clamp(1.0, self.keys as f64);
            let is_certainly_inside = nearest - position <= self.accept_distance;
            if is_certainly_inside || area >= self.area_to(nearest + 0.5) - self.weight(nearest) {
                return nearest as u64;
            }
        }
    }

    fn weight(&self, rank: f64) -> f64 {
        (-self.exponent * rank.ln()).exp()
    }

    /// Returns the integral of the weight from 1 to `rank`; also correct for the exponent 1.
    fn area_to(&self, rank: f64) -> f64 {
        let logarithm = rank.ln();
        let scaled = (1.0 - self.exponent) * logarithm;
        let growth = if scaled.abs() > 1e-8 {
            scaled.exp_m1() / scaled
        } else {
            1.0 + scaled / 2.0
        };
        growth * logarithm
    }

    /// The inverse of [`Zipf::area_to`].
    fn rank_at(&self, area: f64) -> f64 {
        let scaled = (area * (1.0 - self.exponent)).max(-1.0);
        let growth = if scaled.abs() > 1e-8 {
            scaled.ln_1p() / scaled
        } else {
            1.0 - scaled / 2.0
        };
        (growth * area).exp()
    }
}

/// Returns a multiplier without a common factor with `keys`, so that multiplying modulo `keys` permutes the keys.
pub fn stride_coprime_to(keys: u64) -> u64 {
    let mut stride = (keys as f64 * 0.618_033_988_75) as u64 | 1;
    while greatest_common_divisor(stride, keys) != 1 {
        stride += 2;
    }
    stride
}

fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
