//! PFSELFTEST: registers keep their values, and estimates are approximately correct.

use weft_values::hyperloglog::{
    self as hll, CorruptedHyperLogLog, DENSE_BYTES, HyperLogLogWriter, REGISTERS, RegisterUpdate,
};

/// The number of times that all registers are written and read.
const REGISTER_ROUNDS: usize = 1000;
/// The number of elements that are counted in total.
const ELEMENTS: u64 = 10_000_000;
/// The largest value of a register.
const VALUE_MAX: u8 = 63;

/// A fault that the self-test has found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelfTestFailure {
    /// The dense encoding of an empty HyperLogLog is malformed.
    #[error("an empty HyperLogLog is not well-formed")]
    EmptyMalformed,
    /// A HyperLogLog is malformed after elements were added.
    #[error("a HyperLogLog is not well-formed any more")]
    Malformed,
    /// A register does not keep its value.
    #[error("Register {index} should be {value} but is {found}")]
    Register {
        /// The number of the register.
        index: usize,
        /// The value that was stored.
        value: u8,
        /// The value that was read.
        found: u8,
    },
    /// Few elements are not kept in the sparse encoding.
    #[error("sparse encoding not used")]
    NotSparse,
    /// The estimate cannot be computed.
    #[error(transparent)]
    Corrupted(#[from] CorruptedHyperLogLog),
    /// The estimates of both encodings differ.
    #[error("dense/sparse disagree")]
    EncodingsDisagree,
    /// The estimate is far from the truth.
    #[error("Too big error. card:{cardinality} abserr:{error}")]
    Inaccurate {
        /// The true cardinality.
        cardinality: u64,
        /// The absolute error of the estimate.
        error: u64,
    },
}

/// Runs both tests; on failure, what is wrong.
pub fn run_self_test(sparse_max_bytes: usize) -> Result<(), SelfTestFailure> {
    test_registers()?;
    test_estimates(sparse_max_bytes)
}

fn new_dense() -> Result<Vec<u8>, SelfTestFailure> {
    let mut bytes = hll::empty();
    HyperLogLogWriter::new(&mut bytes, usize::MAX)
        .and_then(|mut writer| writer.make_dense().ok())
        .filter(|made| *made)
        .ok_or(SelfTestFailure::EmptyMalformed)?;
    Ok(bytes)
}

/// Registers grow round by round, in random steps, beside a plain copy.
fn test_registers() -> Result<(), SelfTestFailure> {
    let mut random = fastrand::Rng::new();
    for _ in 0..REGISTER_ROUNDS {
        let mut dense = new_dense()?;
        debug_assert_eq!(dense.len(), DENSE_BYTES);
        let mut plain = [0u8; REGISTERS];
        for (index, value) in plain.iter_mut().enumerate() {
            *value = random.u8(..=VALUE_MAX);
            hll::raise_dense_register(&mut dense, RegisterUpdate { index, count: *value });
        }
        for (index, value) in plain.iter().enumerate() {
            let found = hll::dense_register(&dense, index);
            if found != *value {
                let value = *value;
                return Err(SelfTestFailure::Register { index, value, found });
            }
        }
    }
    Ok(())
}

/// Counts ever more elements in both encodings, which must agree and be near the truth.
fn test_estimates(sparse_max_bytes: usize) -> Result<(), SelfTestFailure> {
    let standard_error = 1.04 / (REGISTERS as f64).sqrt();
    let (mut dense, mut sparse) = (new_dense()?, hll::empty());
    let seed = fastrand::u64(..);
    let mut checkpoint = 1;
    for number in 1..=ELEMENTS {
        let mark = RegisterUpdate::of(&(number ^ seed).to_le_bytes());
        hll::raise_dense_register(&mut dense, mark);
        let raised = HyperLogLogWriter::new(&mut sparse, sparse_max_bytes).map(|mut writer| writer.raise(mark));
        if !matches!(raised, Some(Ok(_))) {
            return Err(SelfTestFailure::Malformed);
        }
        if number != checkpoint {
            continue;
        }
        let is_small = number < sparse_max_bytes as u64 / 2;
        if is_small && hll::encoding(&sparse) != Some(hll::HyperLogLogEncoding::Sparse) {
            return Err(SelfTestFailure::NotSparse);
        }
        let estimate = hll::cardinality(&dense)?;
        if hll::cardinality(&sparse) != Ok(estimate) {
            return Err(SelfTestFailure::EncodingsDisagree);
        }
        let error = estimate.abs_diff(number);
        // Among ten elements a collision is rare, but its error exceeds the usual bound.
        let most = match number {
            10 => 1,
            _ => (standard_error * 6.0 * number as f64).ceil() as u64,
        };
        if error > most {
            let cardinality = number;
            return Err(SelfTestFailure::Inaccurate { cardinality, error });
        }
        checkpoint *= 10;
    }
    Ok(())
}
