//! Registers that are read and written by all suitable commands. One order of all operations must explain the
//! observations of all clients, in which each operation is between its request and its reply (linearizability).
//!
//! Every value is written once. The operations of a value, which are its write and all reads that returned it, are
//! therefore known. An order exists if and only if these conditions hold for each key separately (Gibbons and Korach,
//! "Testing Shared Memories", 1997; an object of several keys is linearizable if each of them is):
//!
//! ```text
//! no read ends before the write of its value begins
//! a value's zone is between the first end and the last begin of its operations
//!   first end < last begin:   the register certainly had the value during the whole zone  (forward)
//!   otherwise:                it had the value at some moment of the zone                 (backward)
//! no two forward zones overlap, and no backward zone is within a forward one
//! ```

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use fastrand::Rng;

use super::client::StressReply;
use super::connections::KILLED;
use super::run::{ReconnectingClient, StressRun};

const REGISTERS: usize = 6;
/// The number of threads. Thread `n` writes values that are `n + 1` modulo this.
pub const THREADS: usize = 24;
/// The end of a write whose time is unknown and that may not have run.
const UNKNOWN_END: u64 = u64::MAX;

/// The operations of all threads of a run that have ended.
static OBSERVED: Mutex<Vec<RegisterOperation>> = Mutex::new(Vec::new());

/// A read or write of a register. Times are in nanoseconds after the start of the run.
#[derive(Clone, Copy, Debug)]
struct RegisterOperation {
    register: usize,
    value: u64,
    is_write: bool,
    begin: u64,
    end: u64,
}

fn key(register: usize) -> String {
    format!("register:{register}")
}

/// Sets the first value of every register.
pub fn prepare(run: &StressRun) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    for register in 0..REGISTERS {
        client.execute(&format!("SET {} 0", key(register)))?;
    }
    lock_observed()?.clear();
    Ok(())
}

fn lock_observed() -> Result<std::sync::MutexGuard<'static, Vec<RegisterOperation>>, String> {
    OBSERVED.lock().map_err(|error| error.to_string())
}

/// Reads and writes registers, and records its observations.
pub fn registers(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut observer = RecordingClient {
        client: ReconnectingClient::new(run, 0)?,
        origin: run.begin(),
        seen: Vec::new(),
    };
    let mut value = (thread + 1) as u64;
    while run.is_running() {
        let one = rng.usize(..REGISTERS);
        let other = (one + rng.usize(1..REGISTERS)) % REGISTERS;
        let (one_key, other_key) = (key(one), key(other));
        match rng.usize(..10) {
            0..3 => observer.read(&format!("GET {one_key}"), &[one])?,
            3 => observer.read(&format!("GETRANGE {one_key} 0 -1"), &[one])?,
            4 => observer.read(&format!("MGET {one_key} {other_key}"), &[one, other])?,
            5 => observer.read(&format!("EVAL return{{redis.call('get',KEYS[1])}} 1 {one_key}"), &[one])?,
            6 | 7 => observer.write(&format!("SET {one_key} {value}"), &[one], value)?,
            8 => observer.write(
                &format!("MSET {one_key} {value} {other_key} {value}"),
                &[one, other],
                value,
            )?,
            _ => observer.write_and_read_previous(&format!("SET {one_key} {value} GET"), one, value)?,
        }
        value += THREADS as u64;
    }
    lock_observed()?.append(&mut observer.seen);
    Ok(())
}

/// A client that records its operations and their times.
struct RecordingClient<'a> {
    client: ReconnectingClient<'a>,
    origin: Instant,
    seen: Vec<RegisterOperation>,
}

impl RecordingClient<'_> {
    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Sends a command. Returns its reply, and the times of sending and of the reply.
    fn timed_call(&mut self, command: &str) -> Result<(Option<StressReply>, u64, u64), String> {
        let begin = self.now();
        let reply = self.client.call(command)?;
        Ok((reply, begin, self.now()))
    }

    fn read(&mut self, command: &str, registers: &[usize]) -> Result<(), String> {
        let (Some(reply), begin, end) = self.timed_call(command)? else {
            return Ok(());
        };
        // The scenario `scripts` kills scripts, among them those that read registers.
        if matches!(&reply, StressReply::Error(error) if error.contains(KILLED)) {
            return Ok(());
        }
        self.client.run.succeed();
        let items = match reply.items() {
            [] => std::slice::from_ref(&reply),
            items => items,
        };
        if items.len() != registers.len() {
            return Err(format!("{command} answered {reply:?}"));
        }
        for (item, &register) in items.iter().zip(registers) {
            self.record(register, parse(item)?, false, (begin, end));
        }
        Ok(())
    }

    fn write(&mut self, command: &str, registers: &[usize], value: u64) -> Result<(), String> {
        let (reply, begin, end) = self.timed_call(command)?;
        let end = match reply {
            Some(StressReply::Simple(_)) => end,
            None => UNKNOWN_END,
            Some(other) => return Err(format!("{command} was answered by {other:?}")),
        };
        for &register in registers {
            self.record(register, value, true, (begin, end));
        }
        Ok(())
    }

    /// Writes a value with a command that returns the previous value.
    fn write_and_read_previous(&mut self, command: &str, register: usize, value: u64) -> Result<(), String> {
        let (reply, begin, end) = self.timed_call(command)?;
        if let Some(reply) = &reply {
            self.record(register, parse(reply)?, false, (begin, end));
        }
        self.record(register, value, true, (begin, reply.map_or(UNKNOWN_END, |_| end)));
        Ok(())
    }

    fn record(&mut self, register: usize, value: u64, writes: bool, (begin, end): (u64, u64)) {
        self.seen.push(RegisterOperation {
            register,
            value,
            is_write: writes,
            begin,
            end,
        });
    }
}

fn parse(reply: &StressReply) -> Result<u64, String> {
    reply.text().parse().map_err(|_| format!("a register holds {reply:?}"))
}

/// Checks that the observations have an order.
pub fn check(_: &StressRun) -> Result<(), String> {
    let seen = std::mem::take(&mut *lock_observed()?);
    if seen.is_empty() {
        return Err("no thread recorded an operation".to_owned());
    }
    (0..REGISTERS).try_for_each(|register| check_register(register, &seen))
}

fn check_register(register: usize, seen: &[RegisterOperation]) -> Result<(), String> {
    let mut values: HashMap<u64, ValueOperations> = HashMap::new();
    values.insert(0, ValueOperations::written(0, 0));
    for operation in seen
        .iter()
        .filter(|operation| operation.register == register && operation.is_write)
    {
        values.insert(
            operation.value,
            ValueOperations::written(operation.begin, operation.end),
        );
    }
    for read in seen
        .iter()
        .filter(|operation| operation.register == register && !operation.is_write)
    {
        let value = read.value;
        let Some(belonging) = values.get_mut(&value) else {
            return Err(format!("register {register} had {value}, which was never written"));
        };
        if read.end < belonging.write_begin {
            return Err(format!("register {register} had {value} before it was written"));
        }
        belonging.first_end = belonging.first_end.min(read.end);
        belonging.last_begin = belonging.last_begin.max(read.begin);
    }
    // A write that may not have run, and that no client observed, gives no information.
    values.retain(|_, belonging| belonging.first_end != UNKNOWN_END);
    check_zones(register, &values)
}

/// The begin of a value's write, and the first end and last begin of its write and reads.
struct ValueOperations {
    write_begin: u64,
    first_end: u64,
    last_begin: u64,
}

impl ValueOperations {
    fn written(begin: u64, end: u64) -> Self {
        ValueOperations {
            write_begin: begin,
            first_end: end,
            last_begin: begin,
        }
    }
}

fn check_zones(register: usize, values: &HashMap<u64, ValueOperations>) -> Result<(), String> {
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (value, belonging) in values {
        if belonging.first_end < belonging.last_begin {
            forward.push((belonging.first_end, belonging.last_begin, *value));
        } else {
            backward.push((belonging.last_begin, belonging.first_end, *value));
        }
    }
    forward.sort_unstable();
    for pair in forward.windows(2) {
        if let [(_, end, one), (begin, _, other)] = pair
            && begin < end
        {
            return Err(format!("register {register} had {one} and {other} at the same time"));
        }
    }
    for (begin, end, value) in backward {
        let before = forward.partition_point(|(from, _, _)| *from < begin);
        if let Some((_, until, other)) = before.checked_sub(1).map(|last| forward[last])
            && end < until
        {
            return Err(format!("register {register} had {value} while it had {other}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(writes: bool, value: u64, begin: u64, end: u64) -> RegisterOperation {
        RegisterOperation {
            register: 0,
            value,
            is_write: writes,
            begin,
            end,
        }
    }

    fn verdict(seen: &[RegisterOperation]) -> bool {
        check_register(0, seen).is_ok()
    }

    const WRITE: bool = true;
    const READ: bool = false;

    #[test]
    fn linearizable_observations_pass() {
        let seen = [
            operation(READ, 0, 1, 5),
            operation(WRITE, 1, 2, 10),
            operation(READ, 1, 4, 6),
            operation(READ, 1, 11, 12),
            operation(WRITE, 2, 11, 20),
            operation(WRITE, 3, 13, UNKNOWN_END),
            operation(READ, 2, 21, 22),
            operation(READ, 3, 40, 41),
        ];
        assert!(verdict(&seen));
        assert!(verdict(&[
            operation(WRITE, 1, 2, UNKNOWN_END),
            operation(READ, 0, 50, 51)
        ]));
    }

    #[test]
    fn observations_without_an_order_are_found() {
        // Stale read: the value 1 was already observed.
        assert!(!verdict(&[
            operation(WRITE, 1, 2, 3),
            operation(READ, 1, 4, 5),
            operation(READ, 0, 6, 7),
        ]));
        // Value 2 was written while 1 was in the register throughout.
        assert!(!verdict(&[
            operation(WRITE, 1, 2, 3),
            operation(WRITE, 2, 5, 6),
            operation(READ, 1, 8, 9),
        ]));
        // Two readers disagree about the order.
        assert!(!verdict(&[
            operation(WRITE, 1, 1, 100),
            operation(WRITE, 2, 1, 100),
            operation(READ, 1, 10, 11),
            operation(READ, 2, 12, 13),
            operation(READ, 1, 14, 15),
        ]));
        // The value was read before it was written, or was never written.
        assert!(!verdict(&[operation(READ, 1, 1, 2), operation(WRITE, 1, 3, 4)]));
        assert!(!verdict(&[operation(READ, 7, 1, 2)]));
    }
}
