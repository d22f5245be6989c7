//! Tests of integers inside strings against a model that processes single bits.

use super::*;

fn signed(bits: i64) -> IntegerType {
    IntegerType::new(true, bits).unwrap()
}

fn unsigned(bits: i64) -> IntegerType {
    IntegerType::new(false, bits).unwrap()
}

fn model_read(form: IntegerType, bytes: &[u8], offset: u64) -> i64 {
    let bit = |at: u64| {
        let byte = bytes.get((at / 8) as usize).copied().unwrap_or(0);
        u64::from(byte >> (7 - at % 8) & 1)
    };
    let raw = (0..u64::from(form.bits)).fold(0, |raw, index| raw << 1 | bit(offset + index));
    let negative = form.signed && raw >> (form.bits - 1) & 1 == 1;
    let filling = if negative && form.bits < 64 {
        u64::MAX << form.bits
    } else {
        0
    };
    (raw | filling) as i64
}

fn model_write(form: IntegerType, bytes: &mut [u8], offset: u64, number: i64) {
    for index in 0..form.bits {
        let at = offset + u64::from(index);
        let Some(byte) = bytes.get_mut((at / 8) as usize) else {
            return;
        };
        let mask = 0x80 >> (at % 8);
        if number >> (form.bits - 1 - index) & 1 == 1 {
            *byte |= mask;
        } else {
            *byte &= !mask;
        }
    }
}

#[test]
fn only_supported_widths_are_accepted() {
    for bits in [-1, 0, 65, i64::MAX, i64::MIN] {
        assert_eq!(IntegerType::new(true, bits), None);
        assert_eq!(IntegerType::new(false, bits), None);
    }
    assert_eq!(IntegerType::new(false, 64), None);
    assert_eq!(signed(64).bits(), 64);
    assert_eq!(unsigned(63).bits(), 63);
}

#[test]
fn reading_and_writing_agree_with_the_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random.usize(0..24)).map(|_| random.u8(..)).collect();
        let is_signed = random.bool();
        let form = IntegerType::new(is_signed, random.i64(1..=if is_signed { 64 } else { 63 })).unwrap();
        let offset = random.u64(0..200);
        assert_eq!(
            form.read(&bytes, offset),
            model_read(form, &bytes, offset),
            "{form:?} at {offset} of {bytes:?}"
        );
        let number = random.i64(..);
        let mut wanted = bytes.clone();
        model_write(form, &mut wanted, offset, number);
        form.write(&mut bytes, offset, number);
        assert_eq!(bytes, wanted, "{form:?} at {offset} := {number}");
    }
}

#[test]
fn bits_far_beyond_the_end_read_as_zero() {
    assert_eq!(signed(64).read(b"abc", u64::MAX), 0);
    let mut bytes = *b"abc";
    signed(64).write(&mut bytes, u64::MAX, -1);
    assert_eq!(&bytes, b"abc");
}

#[test]
fn results_that_do_not_fit_wrap_saturate_or_fail() {
    use OverflowBehavior::{Fail, Saturate, Wrap};
    // Type, value, increment; results of WRAP and SAT (FAIL gives none).
    let overflows = [
        (unsigned(8), 255, 1, 0, 255),
        (unsigned(8), 0, -1, 255, 0),
        (unsigned(8), 200, 1000, 176, 255),
        (unsigned(1), 1, 1, 0, 1),
        (unsigned(63), i64::MAX, 1, 0, i64::MAX),
        (unsigned(63), 0, i64::MIN, 0, 0),
        (signed(8), 127, 1, -128, 127),
        (signed(8), -128, -1, 127, -128),
        (signed(8), 0, 300, 44, 127),
        (signed(1), 0, 1, -1, 0),
        (signed(64), i64::MAX, 1, i64::MIN, i64::MAX),
        (signed(64), i64::MIN, -1, i64::MAX, i64::MIN),
        (signed(64), i64::MAX, i64::MAX, -2, i64::MAX),
    ];
    for (form, value, increment, wrapped, saturated) in overflows {
        assert_eq!(
            form.value_to_increment(value, increment, Wrap),
            Some(wrapped),
            "{form:?} {value} + {increment}"
        );
        assert_eq!(
            form.value_to_increment(value, increment, Saturate),
            Some(saturated),
            "{form:?} {value} + {increment}"
        );
        assert_eq!(
            form.value_to_increment(value, increment, Fail),
            None,
            "{form:?} {value} + {increment}"
        );
    }
    for overflow in [Wrap, Saturate, Fail] {
        assert_eq!(unsigned(8).value_to_increment(254, 1, overflow), Some(255));
        assert_eq!(signed(64).value_to_increment(i64::MAX, i64::MIN, overflow), Some(-1));
        assert_eq!(signed(8).value_to_set(-128, overflow), Some(-128));
    }
}

#[test]
fn set_values_overflow_as_in_valkey() {
    use OverflowBehavior::{Fail, Saturate, Wrap};
    // Type, value; results of WRAP and SAT.
    let overflows = [
        (unsigned(8), 256, 0, 255),
        (unsigned(8), -1, 255, 255),
        (unsigned(63), -1, i64::MAX, i64::MAX),
        (signed(8), 128, -128, 127),
        (signed(8), -129, 127, -128),
        (signed(8), i64::MIN, 0, 127),
        (signed(8), i64::MIN + 127, 127, 127),
        (signed(8), i64::MIN + 128, -128, -128),
        (signed(63), i64::MAX, -1, (1 << 62) - 1),
    ];
    for (form, value, wrapped, saturated) in overflows {
        assert_eq!(form.value_to_set(value, Wrap), Some(wrapped), "{form:?} {value}");
        assert_eq!(form.value_to_set(value, Saturate), Some(saturated), "{form:?} {value}");
        assert_eq!(form.value_to_set(value, Fail), None, "{form:?} {value}");
    }
    assert_eq!(signed(64).value_to_set(i64::MIN, Saturate), Some(i64::MIN));
}
