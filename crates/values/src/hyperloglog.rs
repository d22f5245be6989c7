//! HyperLogLog: estimates the number of distinct elements from 16384 registers. The stored form equals that of Valkey
//! bit for bit.
//!
//! A HyperLogLog is a string. Every element is hashed. 14 bits of the hash select a register, which stores the maximum
//! number of trailing zeros (plus one) in the other bits of any hash.
//!
//! ```text
//! "HYLL"  encoding (1)  zeros (3)  cardinality (8, little-endian; top bit set if it is stale)  registers
//!
//! dense (0)    6 bits per register, from the lowest bit of each byte upwards: 12288 bytes
//! sparse (1)   runs of registers, as long as no register is above 32 and the string is below a limit
//!              00LLLLLL            L+1 registers of 0
//!              01LLLLLL LLLLLLLL   L+1 registers of 0, up to all of them
//!              1VVVVVLL            L+1 registers of V+1
//! ```
//!
//! Clients and other servers read and compare these strings. The points at which sparse runs are split and merged are
//! therefore part of the format: an update replaces the run that contains the register by up to three runs. Then it
//! merges equal neighbours among five runs, starting with the run before. Clients can write such strings themselves, so
//! nothing in this module trusts their contents.

use std::fmt;

/// The number of bytes before the registers.
pub const HEADER_BYTES: usize = 16;
/// The number of registers.
pub const REGISTERS: usize = 1 << INDEX_BITS;
/// The length of every dense HyperLogLog in bytes.
pub const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * REGISTER_BITS / 8;

const INDEX_BITS: u32 = 14;
/// The number of bits of a hash in which zeros are counted.
const COUNTED_BITS: u32 = 64 - INDEX_BITS;
const REGISTER_BITS: usize = 6;
const REGISTER_MAX: u8 = (1 << REGISTER_BITS) - 1;
const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING_OFFSET: usize = 4;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
/// The offset of the highest byte of the cardinality, and its bit that marks the cardinality as stale.
const STALE_BYTE_OFFSET: usize = 15;
const STALE_BIT: u8 = 0x80;

const VALUE_MAX: u8 = 32;
const VALUE_RUN_MAX: usize = 4;
const SHORT_RUN_MAX: usize = 64;
/// The number of runs that are checked for merging after an update.
const MERGED_RUNS: usize = 5;

/// The encoding of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HyperLogLogEncoding {
    /// Six bits per register.
    Dense,
    /// Runs of equal registers.
    Sparse,
}

impl HyperLogLogEncoding {
    /// The name of the encoding.
    pub const fn name(self) -> &'static str {
        match self {
            HyperLogLogEncoding::Dense => "dense",
            HyperLogLogEncoding::Sparse => "sparse",
        }
    }
}

/// The error for a sparse HyperLogLog whose runs do not cover its registers exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptedHyperLogLog;

impl fmt::Display for CorruptedHyperLogLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("corrupted HyperLogLog")
    }
}

impl std::error::Error for CorruptedHyperLogLog {}

/// Returns a HyperLogLog without elements.
pub fn empty() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[ENCODING_OFFSET] = SPARSE;
    RegisterRun::Zero(REGISTERS).write(&mut bytes);
    bytes
}

/// Returns the encoding of a string whose header is that of a HyperLogLog, and `None` for any other string. The runs
/// are not checked.
pub fn encoding(bytes: &[u8]) -> Option<HyperLogLogEncoding> {
    if bytes.len() < HEADER_BYTES || !bytes.starts_with(MAGIC) {
        return None;
    }
    match bytes[ENCODING_OFFSET] {
        DENSE if bytes.len() == DENSE_BYTES => Some(HyperLogLogEncoding::Dense),
        SPARSE => Some(HyperLogLogEncoding::Sparse),
        _ => None,
    }
}

/// Returns the cached cardinality unless it is stale.
pub fn cached_cardinality(bytes: &[u8]) -> Option<u64> {
    let cardinality: [u8; 8] = bytes.get(8..HEADER_BYTES)?.try_into().ok()?;
    (cardinality[7] & STALE_BIT == 0).then(|| u64::from_le_bytes(cardinality))
}

/// Stores the cached cardinality and marks it as valid.
pub fn cache_cardinality(bytes: &mut [u8], cardinality: u64) {
    if let Some(place) = bytes.get_mut(8..HEADER_BYTES) {
        place.copy_from_slice(&cardinality.to_le_bytes());
    }
}

/// Marks the cached cardinality as stale.
pub fn invalidate_cardinality(bytes: &mut [u8]) {
    if let Some(byte) = bytes.get_mut(STALE_BYTE_OFFSET) {
        *byte |= STALE_BIT;
    }
}

// ---- elements ---------------------------------------------------------------------------------------
/// The effect of an element: the register at `index` becomes at least `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterUpdate {
    /// The index of the register.
    pub index: usize,
    /// The number of trailing zeros, plus one.
    pub count: u8,
}

impl RegisterUpdate {
    /// Computes the mark of an element.
    pub fn of(element: &[u8]) -> Self {
        let hash = murmur2(element);
        let zeros = (hash >> INDEX_BITS | 1 << COUNTED_BITS).trailing_zeros();
        RegisterUpdate {
            index: hash as usize & (REGISTERS - 1),
            count: zeros as u8 + 1,
        }
    }
}

/// MurmurHash2 in its 64-bit variant A, with the seed that all HyperLogLogs use.
fn murmur2(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    const SEED: u64 = 0xadc8_3b19;
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut mixed = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        mixed ^= mixed >> 47;
        hash = (hash ^ mixed.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(FACTOR);
    hash ^ hash >> 47
}

// ---- dense ------------------------------------------------------------------------------------------
/// Returns the first byte of a register, for a prefetch: no memory is read. `None` if the length is not that of a dense
/// HyperLogLog, or if there is no such register.
#[inline]
pub fn register_memory(bytes: &[u8], index: usize) -> Option<&[u8]> {
    if bytes.len() != DENSE_BYTES || index >= REGISTERS {
        return None;
    }
    bytes.get(register_position(index).0..)?.get(..1)
}

/// Reads a register of a dense HyperLogLog.
///
/// # Panics
///
/// Panics if the length of `dense` is not [`DENSE_BYTES`] or the index is out of range.
#[inline]
pub fn dense_register(dense: &[u8], index: usize) -> u8 {
    let (at, shift) = register_position(index);
    let low = u16::from(dense[at]);
    // The last register is contained in one byte.
    let high = dense.get(at + 1).map_or(0, |byte| u16::from(*byte));
    ((low | high << 8) >> shift) as u8 & REGISTER_MAX
}

/// Raises a register of a dense HyperLogLog. Returns `true` if it was lower before. The cached cardinality is not
/// changed.
///
/// # Panics
///
/// Panics under the same conditions as [`dense_register`].
#[inline]
pub fn raise_dense_register(dense: &mut [u8], mark: RegisterUpdate) -> bool {
    let raised = mark.count > dense_register(dense, mark.index);
    if raised {
        let (at, shift) = register_position(mark.index);
        let mask = u16::from(REGISTER_MAX) << shift;
        let value = u16::from(mark.count & REGISTER_MAX) << shift;
        dense[at] = dense[at] & !(mask as u8) | value as u8;
        if mask > 0xff {
            dense[at + 1] = dense[at + 1] & !((mask >> 8) as u8) | (value >> 8) as u8;
        }
    }
    raised
}

/// Returns the index of the first byte that contains bits of a register, and the position of its lowest bit in that
/// byte.
#[inline]
const fn register_position(index: usize) -> (usize, usize) {
    let bit = index * REGISTER_BITS;
    (HEADER_BYTES + bit / 8, bit % 8)
}

/// Unpacks sixteen registers from twelve bytes.
#[inline]
fn unpack_sixteen(bytes: &[u8; 12]) -> [u8; 16] {
    let mut registers = [0; 16];
    for (group, four) in bytes.as_chunks::<3>().0.iter().zip(registers.as_chunks_mut::<4>().0) {
        let bits = u32::from_le_bytes([group[0], group[1], group[2], 0]);
        *four = [0, 6, 12, 18].map(|shift| (bits >> shift) as u8 & REGISTER_MAX);
    }
    registers
}

// ---- sparse -----------------------------------------------------------------------------------------

/// A run of registers with the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterRun {
    /// This number of registers of 0.
    Zero(usize),
    /// A register value, and the number of registers that have it.
    Value(u8, usize),
}

impl RegisterRun {
    /// Reads the run at `at`. Returns it and its length in bytes, or `None` at the end or if the run is truncated.
    #[inline]
    fn read(bytes: &[u8], at: usize) -> Option<(RegisterRun, usize)> {
        let mark = *bytes.get(at)?;
        let low = usize::from(mark & 0x3f);
        match mark >> 6 {
            0 => Some((RegisterRun::Zero(low + 1), 1)),
            1 => {
                let more = usize::from(*bytes.get(at + 1)?);
                Some((RegisterRun::Zero((low << 8 | more) + 1), 2))
            }
            _ => Some((RegisterRun::Value((mark >> 2 & 0x1f) + 1, usize::from(mark & 3) + 1), 1)),
        }
    }

    #[inline]
    const fn len(self) -> usize {
        match self {
            RegisterRun::Zero(len) | RegisterRun::Value(_, len) => len,
        }
    }

    /// Returns the run with another length.
    const fn with_len(self, len: usize) -> RegisterRun {
        match self {
            RegisterRun::Zero(_) => RegisterRun::Zero(len),
            RegisterRun::Value(value, _) => RegisterRun::Value(value, len),
        }
    }

    /// Appends the run to `out`, unless it is empty.
    fn write(self, out: &mut Vec<u8>) {
        match self {
            RegisterRun::Zero(0) | RegisterRun::Value(_, 0) => {}
            RegisterRun::Zero(len @ ..=SHORT_RUN_MAX) => out.push((len - 1) as u8),
            RegisterRun::Zero(len) => out.extend([0x40 | ((len - 1) >> 8) as u8, (len - 1) as u8]),
            RegisterRun::Value(value, len) => out.push(0x80 | (value - 1) << 2 | (len - 1) as u8),
        }
    }
}

/// Iterates over the runs of a sparse HyperLogLog in order. A truncated run at the end gives `Err`.
pub fn runs(sparse: &[u8]) -> impl Iterator<Item = Result<RegisterRun, CorruptedHyperLogLog>> + '_ {
    let mut at = HEADER_BYTES;
    std::iter::from_fn(move || {
        if at >= sparse.len() {
            return None;
        }
        match RegisterRun::read(sparse, at) {
            Some((run, bytes)) => {
                at += bytes;
                Some(Ok(run))
            }
            None => {
                at = sparse.len();
                Some(Err(CorruptedHyperLogLog))
            }
        }
    })
}

/// Returns the runs of a sparse HyperLogLog as text for PFDEBUG DECODE: `z` and `Z` for zeros in one and two bytes, `v`
/// for a value. The runs need not cover all registers. In a long run of zeros that is truncated, the second byte counts
/// as 0, because Valkey's strings are followed by a zero byte.
pub fn format_runs(sparse: &[u8]) -> String {
    let padded = [sparse, &[0]].concat();
    let mut words = Vec::new();
    let mut at = HEADER_BYTES;
    while at < sparse.len()
        && let Some((run, bytes)) = RegisterRun::read(&padded, at)
    {
        words.push(match run {
            RegisterRun::Zero(len) if bytes == 1 => format!("z:{len}"),
            RegisterRun::Zero(len) => format!("Z:{len}"),
            RegisterRun::Value(value, len) => format!("v:{value},{len}"),
        });
        at += bytes;
    }
    words.join(" ")
}

/// Calls `visit` for each run with the index of its first register. Fails if the runs do not cover all registers
/// exactly.
fn try_for_each_run(sparse: &[u8], mut visit: impl FnMut(usize, RegisterRun)) -> Result<(), CorruptedHyperLogLog> {
    let mut first = 0;
    for run in runs(sparse) {
        let run = run?;
        if first + run.len() > REGISTERS {
            return Err(CorruptedHyperLogLog);
        }
        visit(first, run);
        first += run.len();
    }
    if first == REGISTERS {
        Ok(())
    } else {
        Err(CorruptedHyperLogLog)
    }
}

/// A boundary between two runs. From here, registers with higher indexes are found without a scan from the start.
#[derive(Clone, Copy)]
struct RunPosition {
    /// The offset of the next run.
    at: usize,
    /// The index of the first register of that run.
    first: usize,
}

const START: RunPosition = RunPosition {
    at: HEADER_BYTES,
    first: 0,
};

/// A writer that updates a HyperLogLog of either encoding.
///
/// Registers may be updated in any order. In ascending order, they are found without scanning all runs again.
pub struct HyperLogLogWriter<'a> {
    bytes: &'a mut Vec<u8>,
    encoding: HyperLogLogEncoding,
    sparse_max_bytes: usize,
    /// The run before the last one that was changed. Merging does not move its start.
    resume: RunPosition,
    scratch: Vec<u8>,
}

impl<'a> HyperLogLogWriter<'a> {
    /// Creates a writer for a string that [`encoding`] accepts, and returns `None` for any other string. A sparse
    /// HyperLogLog that would grow above `sparse_max_bytes` (`hll-sparse-max-bytes`) becomes dense.
    pub fn new(bytes: &'a mut Vec<u8>, sparse_max_bytes: usize) -> Option<Self> {
        let encoding = encoding(bytes)?;
        Some(HyperLogLogWriter {
            bytes,
            encoding,
            sparse_max_bytes,
            resume: START,
            scratch: Vec::new(),
        })
    }

    /// Raises a register. Returns `true` if it was lower before; the cached cardinality is then marked as stale.
    ///
    /// # Errors
    ///
    /// Returns an error if the register is not found. The HyperLogLog is then unchanged.
    pub fn raise(&mut self, mark: RegisterUpdate) -> Result<bool, CorruptedHyperLogLog> {
        let raised = match self.encoding {
            HyperLogLogEncoding::Dense => raise_dense_register(self.bytes, mark),
            HyperLogLogEncoding::Sparse => self.raise_sparse(mark)?,
        };
        if raised {
            invalidate_cardinality(self.bytes);
        }
        Ok(raised)
    }

    /// Converts the HyperLogLog to the dense encoding. Returns `true` if it was sparse.
    ///
    /// # Errors
    ///
    /// Returns an error if the runs do not cover the registers exactly.
    pub fn make_dense(&mut self) -> Result<bool, CorruptedHyperLogLog> {
        if self.encoding == HyperLogLogEncoding::Dense {
            return Ok(false);
        }
        let mut dense = vec![0; DENSE_BYTES];
        dense[..HEADER_BYTES].copy_from_slice(&self.bytes[..HEADER_BYTES]);
        dense[ENCODING_OFFSET] = DENSE;
        try_for_each_run(self.bytes, |first, run| {
            if let RegisterRun::Value(count, len) = run {
                for index in first..first + len {
                    raise_dense_register(&mut dense, RegisterUpdate { index, count });
                }
            }
        })?;
        *self.bytes = dense;
        self.encoding = HyperLogLogEncoding::Dense;
        Ok(true)
    }

    fn raise_sparse(&mut self, mark: RegisterUpdate) -> Result<bool, CorruptedHyperLogLog> {
        if mark.count > VALUE_MAX {
            return self.raise_as_dense(mark);
        }
        let RegisterLocation {
            before,
            place,
            run,
            bytes,
        } = self.find_run(mark.index)?;
        if matches!(run, RegisterRun::Value(value, _) if value >= mark.count) {
            return Ok(false);
        }
        self.scratch.clear();
        run.with_len(mark.index - place.first).write(&mut self.scratch);
        RegisterRun::Value(mark.count, 1).write(&mut self.scratch);
        run.with_len(place.first + run.len() - 1 - mark.index)
            .write(&mut self.scratch);
        let grows = self.scratch.len() > bytes;
        if grows && self.bytes.len() + self.scratch.len() - bytes > self.sparse_max_bytes {
            return self.raise_as_dense(mark);
        }
        self.bytes
            .splice(place.at..place.at + bytes, self.scratch.iter().copied());
        self.resume = before.unwrap_or(START);
        self.merge_runs(self.resume.at);
        Ok(true)
    }

    fn raise_as_dense(&mut self, mark: RegisterUpdate) -> Result<bool, CorruptedHyperLogLog> {
        self.make_dense()?;
        Ok(raise_dense_register(self.bytes, mark))
    }

    /// Finds the run that contains the register at `index`.
    fn find_run(&self, index: usize) -> Result<RegisterLocation, CorruptedHyperLogLog> {
        // An update needs the run before the one that it changes, so the search must start at least one run earlier.
        let mut place = match RegisterRun::read(self.bytes, self.resume.at) {
            Some((run, _)) if self.resume.first + run.len() <= index => self.resume,
            _ => START,
        };
        let mut before = None;
        loop {
            let (run, bytes) = RegisterRun::read(self.bytes, place.at).ok_or(CorruptedHyperLogLog)?;
            if index < place.first + run.len() {
                return Ok(RegisterLocation {
                    before,
                    place,
                    run,
                    bytes,
                });
            }
            before = Some(place);
            place = RunPosition {
                at: place.at + bytes,
                first: place.first + run.len(),
            };
        }
    }

    /// Merges neighbouring runs of the same value, up to the maximum length of a run.
    fn merge_runs(&mut self, mut at: usize) {
        for _ in 0..MERGED_RUNS {
            let Some((run, bytes)) = RegisterRun::read(self.bytes, at) else {
                return;
            };
            let next = RegisterRun::read(self.bytes, at + bytes);
            match (run, next) {
                (RegisterRun::Value(value, len), Some((RegisterRun::Value(next_value, next_len), _)))
                    if value == next_value && len + next_len <= VALUE_RUN_MAX =>
                {
                    self.bytes.remove(at);
                    self.bytes[at] = 0x80 | (value - 1) << 2 | (len + next_len - 1) as u8;
                }
                _ => at += bytes,
            }
        }
    }
}

/// The position at which a register was found.
struct RegisterLocation {
    /// The run before it, or `None` if it is in the first run.
    before: Option<RunPosition>,
    place: RunPosition,
    run: RegisterRun,
    /// The length of the run in bytes.
    bytes: usize,
}

// ---- counting ---------------------------------------------------------------------------------------
/// The number of registers with each value.
struct Histogram([u32; REGISTER_MAX as usize + 1]);

impl Histogram {
    const EMPTY: Histogram = Histogram([0; REGISTER_MAX as usize + 1]);

    fn of_registers(registers: impl Iterator<Item = u8>) -> Self {
        let mut histogram = Self::EMPTY;
        for register in registers {
            histogram.0[usize::from(register & REGISTER_MAX)] += 1;
        }
        histogram
    }

    /// Returns the estimate of algorithm 6 in Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog
    /// sketches".
    fn cardinality(&self) -> u64 {
        const REGISTER_COUNT: f64 = REGISTERS as f64;
        /// 0.5 / ln 2
        const ALPHA: f64 = 0.721_347_520_444_481_7;
        let (counted, histogram) = (COUNTED_BITS as usize, &self.0);
        let full = f64::from(histogram[counted + 1]);
        let mut sum = REGISTER_COUNT * tau((REGISTER_COUNT - full) / REGISTER_COUNT);
        for count in histogram[1..=counted].iter().rev() {
            sum = (sum + f64::from(*count)) * 0.5;
        }
        sum += REGISTER_COUNT * sigma(f64::from(histogram[0]) / REGISTER_COUNT);
        let estimate = (ALPHA * REGISTER_COUNT * REGISTER_COUNT / sum).round();
        // Registers that no elements can have set give infinity. Valkey's conversion makes it the smallest integer.
        if estimate < i64::MAX as f64 {
            estimate as u64
        } else {
            i64::MIN as u64
        }
    }
}

/// The contribution of the registers that are still zero.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * y;
        y += y;
        if sum == before {
            return sum;
        }
    }
}

/// The contribution of the registers that have the maximum value.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        y *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * y;
        if sum == before {
            return sum / 3.0;
        }
    }
}

/// Computes the cardinality of a HyperLogLog from its registers.
///
/// # Errors
///
/// Returns an error if the string is not a HyperLogLog or its runs do not cover the registers exactly.
pub fn cardinality(bytes: &[u8]) -> Result<u64, CorruptedHyperLogLog> {
    let histogram = match encoding(bytes).ok_or(CorruptedHyperLogLog)? {
        HyperLogLogEncoding::Dense => Histogram::of_registers(
            bytes[HEADER_BYTES..]
                .as_chunks::<12>()
                .0
                .iter()
                .flat_map(unpack_sixteen),
        ),
        HyperLogLogEncoding::Sparse => {
            let mut histogram = Histogram::EMPTY;
            try_for_each_run(bytes, |_, run| match run {
                RegisterRun::Zero(len) => histogram.0[0] += len as u32,
                RegisterRun::Value(value, len) => histogram.0[usize::from(value)] += len as u32,
            })?;
            histogram
        }
    };
    Ok(histogram.cardinality())
}

/// The registers of the union of several HyperLogLogs.
pub struct HyperLogLogUnion {
    registers: Box<[u8; REGISTERS]>,
}

impl Default for HyperLogLogUnion {
    fn default() -> Self {
        HyperLogLogUnion {
            registers: Box::new([0; REGISTERS]),
        }
    }
}

impl HyperLogLogUnion {
    /// Adds a HyperLogLog: each register becomes the maximum of both.
    ///
    /// # Errors
    ///
    /// Returns an error if the string is not a HyperLogLog or its runs do not cover the registers exactly. The union
    /// must not be used after that.
    pub fn merge(&mut self, bytes: &[u8]) -> Result<(), CorruptedHyperLogLog> {
        match encoding(bytes).ok_or(CorruptedHyperLogLog)? {
            HyperLogLogEncoding::Dense => {
                let packed = bytes[HEADER_BYTES..].as_chunks::<12>().0;
                for (registers, bytes) in self.registers.as_chunks_mut::<16>().0.iter_mut().zip(packed) {
                    for (register, other) in registers.iter_mut().zip(unpack_sixteen(bytes)) {
                        *register = (*register).max(other);
                    }
                }
                Ok(())
            }
            HyperLogLogEncoding::Sparse => try_for_each_run(bytes, |first, run| {
                if let RegisterRun::Value(value, len) = run {
                    for register in &mut self.registers[first..first + len] {
                        *register = (*register).max(value);
                    }
                }
            }),
        }
    }

    /// Returns the estimated cardinality of the union.
    pub fn cardinality(&self) -> u64 {
        Histogram::of_registers(self.registers.iter().copied()).cardinality()
    }

    /// Iterates over the registers that are not zero, as marks for another HyperLogLog, in ascending order of their
    /// index.
    pub fn register_updates(&self) -> impl Iterator<Item = RegisterUpdate> + '_ {
        self.registers
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| RegisterUpdate { index, count: *count })
    }
}

#[cfg(test)]
mod tests;
