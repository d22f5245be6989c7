//! The shortest decimal digits of an `f64`, by Florian Loitsch's Grisu2 algorithm.
//!
//! In about one of a thousand cases, Grisu2 finds one digit more than necessary, or digits that are not the closest of
//! the shortest ones. Valkey prints scores with Grisu2 and clients see the result, so an algorithm without that flaw
//! would print different bytes. For the same reason, the choice among several usable powers of ten (see
//! [`cached_power`]) is part of the format.
//!
//! All numbers between the two midpoints to the neighbouring `f64`s parse back to the same `f64`. The algorithm scales
//! the number and both midpoints (as 64-bit fractions) by a power of ten such that the binary exponent falls into a
//! small range. The integer part of the upper midpoint then fits in 32 bits, and divisions give its decimal digits. The
//! algorithm stops as soon as the remainder is within the interval, and then decrements the last digit towards the
//! exact number.

use super::DecimalDigits;

/// A floating-point number: `fraction` times two to the power of `exponent`.
#[derive(Clone, Copy)]
struct Scaled {
    fraction: u64,
    exponent: i32,
}

const FRACTION_BITS: u32 = 52;
const HIDDEN_BIT: u64 = 1 << FRACTION_BITS;
const EXPONENT_BIAS: i32 = 1023 + FRACTION_BITS as i32;

/// Returns the decimal digits of `number`, which must be positive and finite.
pub(super) fn shortest_digits(number: f64) -> DecimalDigits {
    debug_assert!(number.is_finite() && number > 0.0);
    let exact = unpack(number);
    let (lower, upper) = midpoints(exact);
    let (power, power_of_ten) = cached_power(upper.exponent);
    let exact = multiply(normalize(exact), power);
    // Shrinks the interval by one unit on both sides to account for the rounding of the products.
    let upper = multiply(upper, power);
    let upper = Scaled {
        fraction: upper.fraction - 1,
        ..upper
    };
    let lower = multiply(lower, power).fraction + 1;
    generate_digits(exact.fraction, lower, upper, -power_of_ten)
}

fn unpack(number: f64) -> Scaled {
    let bits = number.to_bits();
    let fraction = bits & (HIDDEN_BIT - 1);
    match (bits >> FRACTION_BITS) as i32 {
        0 => Scaled {
            fraction,
            exponent: 1 - EXPONENT_BIAS,
        },
        biased => Scaled {
            fraction: fraction | HIDDEN_BIT,
            exponent: biased - EXPONENT_BIAS,
        },
    }
}

fn normalize(number: Scaled) -> Scaled {
    let shift = number.fraction.leading_zeros();
    Scaled {
        fraction: number.fraction << shift,
        exponent: number.exponent - shift as i32,
    }
}

/// Returns the midpoints to the next smaller and the next larger `f64`, both with the exponent of the latter.
fn midpoints(number: Scaled) -> (Scaled, Scaled) {
    let upper = normalize(Scaled {
        fraction: (number.fraction << 1) + 1,
        exponent: number.exponent - 1,
    });
    // The distance to the next smaller `f64` is half as large below a power of two.
    let shift = if number.fraction == HIDDEN_BIT { 2 } else { 1 };
    let lower = Scaled {
        fraction: (number.fraction << shift) - 1,
        exponent: number.exponent - shift,
    };
    let fraction = lower.fraction << (lower.exponent - upper.exponent);
    (
        Scaled {
            fraction,
            exponent: upper.exponent,
        },
        upper,
    )
}

/// Returns the rounded product.
fn multiply(a: Scaled, b: Scaled) -> Scaled {
    let product = u128::from(a.fraction) * u128::from(b.fraction) + (1 << 63);
    Scaled {
        fraction: (product >> 64) as u64,
        exponent: a.exponent + b.exponent + 64,
    }
}

/// Returns a power of ten that scales a number with this exponent to an exponent in -60..=-32, and its decimal
/// exponent.
fn cached_power(exponent: i32) -> (Scaled, i32) {
    const LOG10_OF_2: f64 = 0.301_029_995_663_981_14;
    let estimate = (f64::from(-(exponent + POWERS.len() as i32)) * LOG10_OF_2) as i32;
    let mut index = (estimate - FIRST_POWER) / POWER_STEP;
    loop {
        let power = POWERS[index as usize];
        match exponent + power.exponent + 64 {
            ..-60 => index += 1,
            -31.. => index -= 1,
            _ => return (power, FIRST_POWER + index * POWER_STEP),
        }
    }
}

/// Generates the digits of a number between `lower` and `upper` that is close to `exact`.
fn generate_digits(exact: u64, lower: u64, upper: Scaled, exponent: i32) -> DecimalDigits {
    let mut decimal = DecimalDigits {
        digits: [0; 18],
        count: 0,
        exponent,
    };
    let point = -upper.exponent as u32;
    let one = 1u64 << point;
    let mut distance = upper.fraction - exact;
    let mut interval = upper.fraction - lower;
    let mut whole = upper.fraction >> point;
    let mut fraction = upper.fraction & (one - 1);

    for place in (0..10).rev() {
        let unit = 10u64.pow(place);
        decimal.push((whole / unit) as u8);
        whole %= unit;
        let left = (whole << point) + fraction;
        if left <= interval {
            decimal.exponent += place as i32;
            decimal.step_towards_exact(interval, left, unit << point, distance);
            return decimal;
        }
    }
    loop {
        fraction = fraction.wrapping_mul(10);
        interval = interval.wrapping_mul(10);
        distance = distance.wrapping_mul(10);
        decimal.exponent -= 1;
        decimal.push((fraction >> point) as u8);
        fraction &= one - 1;
        if fraction < interval {
            decimal.step_towards_exact(interval, fraction, one, distance);
            return decimal;
        }
    }
}

impl DecimalDigits {
    /// Appends a digit, unless it is a leading zero.
    fn push(&mut self, digit: u8) {
        if digit != 0 || self.count != 0 {
            self.digits[self.count] = b'0' + digit;
            self.count += 1;
        }
    }

    /// Decrements the last digit while the number stays in the interval and gets closer to the exact number. The digits
    /// are `left` below the upper end of the interval, the exact number is `distance` below it, and the last digit is
    /// worth `unit`.
    fn step_towards_exact(&mut self, interval: u64, mut left: u64, unit: u64, distance: u64) {
        let Some(last) = self.digits[..self.count].last_mut() else {
            return;
        };
        while left < distance
            && interval - left >= unit
            && (left + unit < distance || distance - left > left + unit - distance)
        {
            *last -= 1;
            left += unit;
        }
    }
}

/// The decimal exponent of the first entry of [`POWERS`].
const FIRST_POWER: i32 = -348;
/// The difference between the decimal exponents of neighbouring entries of [`POWERS`].
const POWER_STEP: i32 = 8;

/// Powers of ten, each rounded to a 64-bit fraction.
static POWERS: [Scaled; 87] = [
    Scaled {
        fraction: 0xfa8fd5a0081c0288,
        exponent: -1220,
    },
    Scaled {
        fraction: 0xbaaee17fa23ebf76,
        exponent: -1193,
    },
    Scaled {
        fraction: 0x8b16fb203055ac76,
        exponent: -1166,
    },
    Scaled {
        fraction: 0xcf42894a5dce35ea,
        exponent: -1140,
    },
    Scaled {
        fraction: 0x9a6bb0aa55653b2d,
        exponent: -1113,
    },
    Scaled {
        fraction: 0xe61acf033d1a45df,
        exponent: -1087,
    },
    Scaled {
        fraction: 0xab70fe17c79ac6ca,
        exponent: -1060,
    },
    Scaled {
        fraction: 0xff77b1fcbebcdc4f,
        exponent: -1034,
    },
    Scaled {
        fraction: 0xbe5691ef416bd60c,
        exponent: -1007,
    },
    Scaled {
        fraction: 0x8dd01fad907ffc3c,
        exponent: -980,
    },
    Scaled {
        fraction: 0xd3515c2831559a83,
        exponent: -954,
    },
    Scaled {
        fraction: 0x9d71ac8fada6c9b5,
        exponent: -927,
    },
    Scaled {
        fraction: 0xea9c227723ee8bcb,
        exponent: -901,
    },
    Scaled {
        fraction: 0xaecc49914078536d,
        exponent: -874,
    },
    Scaled {
        fraction: 0x823c12795db6ce57,
        exponent: -847,
    },
    Scaled {
        fraction: 0xc21094364dfb5637,
        exponent: -821,
    },
    Scaled {
        fraction: 0x9096ea6f3848984f,
        exponent: -794,
    },
    Scaled {
        fraction: 0xd77485cb25823ac7,
        exponent: -768,
    },
    Scaled {
        fraction: 0xa086cfcd97bf97f4,
        exponent: -741,
    },
    Scaled {
        fraction: 0xef340a98172aace5,
        exponent: -715,
    },
    Scaled {
        fraction: 0xb23867fb2a35b28e,
        exponent: -688,
    },
    Scaled {
        fraction: 0x84c8d4dfd2c63f3b,
        exponent: -661,
    },
    Scaled {
        fraction: 0xc5dd44271ad3cdba,
        exponent: -635,
    },
    Scaled {
        fraction: 0x936b9fcebb25c996,
        exponent: -608,
    },
    Scaled {
        fraction: 0xdbac6c247d62a584,
        exponent: -582,
    },
    Scaled {
        fraction: 0xa3ab66580d5fdaf6,
        exponent: -555,
    },
    Scaled {
        fraction: 0xf3e2f893dec3f126,
        exponent: -529,
    },
    Scaled {
        fraction: 0xb5b5ada8aaff80b8,
        exponent: -502,
    },
    Scaled {
        fraction: 0x87625f056c7c4a8b,
        exponent: -475,
    },
    Scaled {
        fraction: 0xc9bcff6034c13053,
        exponent: -449,
    },
    Scaled {
        fraction: 0x964e858c91ba2655,
        exponent: -422,
    },
    Scaled {
        fraction: 0xdff9772470297ebd,
        exponent: -396,
    },
    Scaled {
        fraction: 0xa6dfbd9fb8e5b88f,
        exponent: -369,
    },
    Scaled {
        fraction: 0xf8a95fcf88747d94,
        exponent: -343,
    },
    Scaled {
        fraction: 0xb94470938fa89bcf,
        exponent: -316,
    },
    Scaled {
        fraction: 0x8a08f0f8bf0f156b,
        exponent: -289,
    },
    Scaled {
        fraction: 0xcdb02555653131b6,
        exponent: -263,
    },
    Scaled {
        fraction: 0x993fe2c6d07b7fac,
        exponent: -236,
    },
    Scaled {
        fraction: 0xe45c10c42a2b3b06,
        exponent: -210,
    },
    Scaled {
        fraction: 0xaa242499697392d3,
        exponent: -183,
    },
    Scaled {
        fraction: 0xfd87b5f28300ca0e,
        exponent: -157,
    },
    Scaled {
        fraction: 0xbce5086492111aeb,
        exponent: -130,
    },
    Scaled {
        fraction: 0x8cbccc096f5088cc,
        exponent: -103,
    },
    Scaled {
        fraction: 0xd1b71758e219652c,
        exponent: -77,
    },
    Scaled {
        fraction: 0x9c40000000000000,
        exponent: -50,
    },
    Scaled {
        fraction: 0xe8d4a51000000000,
        exponent: -24,
    },
    Scaled {
        fraction: 0xad78ebc5ac620000,
        exponent: 3,
    },
    Scaled {
        fraction: 0x813f3978f8940984,
        exponent: 30,
    },
    Scaled {
        fraction: 0xc097ce7bc90715b3,
        exponent: 56,
    },
    Scaled {
        fraction: 0x8f7e32ce7bea5c70,
        exponent: 83,
    },
    Scaled {
        fraction: 0xd5d238a4abe98068,
        exponent: 109,
    },
    Scaled {
        fraction: 0x9f4f2726179a2245,
        exponent: 136,
    },
    Scaled {
        fraction: 0xed63a231d4c4fb27,
        exponent: 162,
    },
    Scaled {
        fraction: 0xb0de65388cc8ada8,
        exponent: 189,
    },
    Scaled {
        fraction: 0x83c7088e1aab65db,
        exponent: 216,
    },
    Scaled {
        fraction: 0xc45d1df942711d9a,
        exponent: 242,
    },
    Scaled {
        fraction: 0x924d692ca61be758,
        exponent: 269,
    },
    Scaled {
        fraction: 0xda01ee641a708dea,
        exponent: 295,
    },
    Scaled {
        fraction: 0xa26da3999aef774a,
        exponent: 322,
    },
    Scaled {
        fraction: 0xf209787bb47d6b85,
        exponent: 348,
    },
    Scaled {
        fraction: 0xb454e4a179dd1877,
        exponent: 375,
    },
    Scaled {
        fraction: 0x865b86925b9bc5c2,
        exponent: 402,
    },
    Scaled {
        fraction: 0xc83553c5c8965d3d,
        exponent: 428,
    },
    Scaled {
        fraction: 0x952ab45cfa97a0b3,
        exponent: 455,
    },
    Scaled {
        fraction: 0xde469fbd99a05fe3,
        exponent: 481,
    },
    Scaled {
        fraction: 0xa59bc234db398c25,
        exponent: 508,
    },
    Scaled {
        fraction: 0xf6c69a72a3989f5c,
        exponent: 534,
    },
    Scaled {
        fraction: 0xb7dcbf5354e9bece,
        exponent: 561,
    },
    Scaled {
        fraction: 0x88fcf317f22241e2,
        exponent: 588,
    },
    Scaled {
        fraction: 0xcc20ce9bd35c78a5,
        exponent: 614,
    },
    Scaled {
        fraction: 0x98165af37b2153df,
        exponent: 641,
    },
    Scaled {
        fraction: 0xe2a0b5dc971f303a,
        exponent: 667,
    },
    Scaled {
        fraction: 0xa8d9d1535ce3b396,
        exponent: 694,
    },
    Scaled {
        fraction: 0xfb9b7cd9a4a7443c,
        exponent: 720,
    },
    Scaled {
        fraction: 0xbb764c4ca7a44410,
        exponent: 747,
    },
    Scaled {
        fraction: 0x8bab8eefb6409c1a,
        exponent: 774,
    },
    Scaled {
        fraction: 0xd01fef10a657842c,
        exponent: 800,
    },
    Scaled {
        fraction: 0x9b10a4e5e9913129,
        exponent: 827,
    },
    Scaled {
        fraction: 0xe7109bfba19c0c9d,
        exponent: 853,
    },
    Scaled {
        fraction: 0xac2820d9623bf429,
        exponent: 880,
    },
    Scaled {
        fraction: 0x80444b5e7aa7cf85,
        exponent: 907,
    },
    Scaled {
        fraction: 0xbf21e44003acdd2d,
        exponent: 933,
    },
    Scaled {
        fraction: 0x8e679c2f5e44ff8f,
        exponent: 960,
    },
    Scaled {
        fraction: 0xd433179d9c8cb841,
        exponent: 986,
    },
    Scaled {
        fraction: 0x9e19db92b4e31ba9,
        exponent: 1013,
    },
    Scaled {
        fraction: 0xeb96bf6ebadf77d9,
        exponent: 1039,
    },
    Scaled {
        fraction: 0xaf87023b9bf0ee6b,
        exponent: 1066,
    },
];

#[cfg(test)]
mod tests;
