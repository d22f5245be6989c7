//! Tests of the table of powers, and of the digits against the shortest ones.

use super::*;

/// Returns the power of ten as a truncated 64-bit fraction and its exponent, computed in 113-bit precision.
fn rounded_power(power: i32) -> (u64, i32) {
    use rustc_apfloat::Float;
    use rustc_apfloat::ieee::Quad;
    // 113 bits are far more than the required 64, and no power of the table is close to a tie.
    let quad = format!("1e{power}").parse::<Quad>().unwrap();
    let exponent = quad.ilogb() - 63;
    let fraction = quad.scalbn(-exponent).to_u128(128).value;
    (fraction as u64, exponent)
}

#[test]
fn powers_of_ten_are_exact_to_the_last_bit() {
    for (index, entry) in POWERS.iter().enumerate() {
        let power = FIRST_POWER + index as i32 * POWER_STEP;
        let (floor, exponent) = rounded_power(power);
        assert_eq!(entry.exponent, exponent, "1e{power}");
        assert!(entry.fraction.wrapping_sub(floor) <= 1, "1e{power}: {floor:x}");
    }
}

#[test]
fn digits_are_nearly_always_the_shortest() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut longer = 0;
    const COUNT: usize = 100_000;
    for _ in 0..COUNT {
        let number = f64::from_bits(random.u64(..)).abs();
        if !number.is_finite() || number == 0.0 {
            continue;
        }
        let decimal = shortest_digits(number);
        let digits = std::str::from_utf8(&decimal.digits[..decimal.count]).unwrap();
        let back: f64 = format!("{digits}e{}", decimal.exponent).parse().unwrap();
        assert_eq!(back, number);
        let shortest = format!("{number:e}");
        let shortest = shortest.split('e').next().unwrap().replace('.', "").len();
        longer += usize::from(digits.trim_end_matches('0').len() > shortest);
    }
    assert!(longer < COUNT / 100, "{longer} of {COUNT} are not the shortest");
}
