//! The crash report, written before the process dies of a fault or an abort.
//!
//! ```text
//!   fault ─▶ facts: signal, address, thread, registers   async-signal-safe, cannot hang
//!         ─▶ backtrace with names                        may allocate, lock or fault: so an alarm is
//!         ─▶ what modules add                            set; a second fault ends it with a
//!         ─▶ end line                                    shorter report
//!         ─▶ default action, the same signal again       core dump and exit status as without a handler
//! ```
//!
//! A failed assertion of a module begins the report itself ([`report_module_assertion`]), and then aborts.
//!
//! The backtrace needs more stack than std's own signal stacks have. A thread that needs a backtrace holds an
//! [`AlternateStack`]. Without it, the report states where the code was and omits the backtrace, unless the handler
//! runs on the thread's normal stack (mostly for aborts and panics).

use std::backtrace::Backtrace;
use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::io;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};

use crate::emergency::EmergencyLog;
use crate::signal_action;

const FATAL_SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGABRT, "SIGABRT"),
];

/// The size of an alternate signal stack: enough for looking up the names of frames.
const ALTERNATE_STACK_BYTES: usize = 512 * 1024;

/// The minimum size of an alternate stack on which a backtrace is attempted.
const MIN_BACKTRACE_STACK_BYTES: usize = 256 * 1024;

/// The time limit of the backtrace, and of what modules add, in seconds. After it, the process dies without them.
const BACKTRACE_TIMEOUT_SECONDS: u32 = 5;

const START_LINE: &[u8] = b"\n\n=== WEFT BUG REPORT START: Cut & paste starting from here ===\n";
const END_LINE: &[u8] = b"\n=== WEFT BUG REPORT END. Make sure to include from START to END. ===\n\n";

/// What the thread that writes the report has done.
mod progress {
    /// The report has not begun.
    pub const NONE: u8 = 0;
    /// A failed assertion has begun it: a signal follows.
    pub const ASSERTED: u8 = 1;
    /// The facts and the backtrace are being written.
    pub const WRITING: u8 = 2;
    /// Modules add to it.
    pub const MODULES: u8 = 3;
    /// An assertion of a module has failed while it was to add to the report: a signal follows.
    pub const ASSERTED_AGAIN: u8 = 4;
    /// The shorter report of a second crash is being written.
    pub const WRITING_AGAIN: u8 = 5;
}

/// One of [`progress`].
static PROGRESS: AtomicU8 = AtomicU8::new(progress::NONE);

static REPORT_FIELDS: OnceLock<&'static [(&'static str, &'static str)]> = OnceLock::new();
/// The id of the thread that writes the report; 0 before a crash.
static REPORTING_THREAD: AtomicI32 = AtomicI32::new(0);
/// The signal that caused the crash.
static CRASH_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// `true` if crash reports are enabled.
static REPORTS_ENABLED: AtomicBool = AtomicBool::new(true);

/// Enables or disables crash reports. If they are disabled, the process dies of the signal as if no handler were
/// installed.
pub fn set_crash_reports(enabled: bool) {
    REPORTS_ENABLED.store(enabled, Ordering::Relaxed);
}

/// Shows the name of the module whose code the calling thread runs, if it runs any. It is called by a signal handler:
/// it allocates nothing and takes no lock.
pub type ShowModule = fn(&mut dyn FnMut(&str));

static SHOW_MODULE: OnceLock<ShowModule> = OnceLock::new();

/// Calls modules for what they add to the report of a crash, and passes it on. It is called after the backtrace, and
/// may do what a signal handler must not.
pub type CollectModuleInfo = fn(&mut dyn FnMut(&[u8]));

static COLLECT_MODULE_INFO: OnceLock<CollectModuleInfo> = OnceLock::new();

/// Lets modules add to crash reports. Later calls have no effect.
pub fn set_module_info_of_crash(collect: CollectModuleInfo) {
    let _ = COLLECT_MODULE_INFO.set(collect);
}

/// Reports that an assertion of a module has failed, and ends the process.
pub fn report_module_assertion(expression: &[u8], file: &[u8], line: i32) -> ! {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let log = EmergencyLog::open();
    match REPORTING_THREAD.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            PROGRESS.store(progress::ASSERTED, Ordering::Release);
            log.write(START_LINE);
            log.write(b"=== ASSERTION FAILED ===\n");
        }
        Err(reporter) if reporter == thread => {
            PROGRESS.store(progress::ASSERTED_AGAIN, Ordering::Release);
            log.write(b"\n=== RECURSIVE ASSERTION FAILED ===\n");
        }
        Err(_) => wait_for_termination(),
    }
    log.write(b"==> ");
    log.write(file);
    log.write(b":");
    log.write_decimal(line.into());
    log.write(b" '");
    log.write(expression);
    log.write(b"' is not true\n");
    std::process::abort();
}

/// Lets crash reports name the module whose code has crashed. Later calls have no effect.
pub fn set_module_of_crash(show: ShowModule) {
    let _ = SHOW_MODULE.set(show);
}

/// Installs handlers that write a crash report to the emergency log (see
/// [`set_emergency_log`](crate::set_emergency_log)) when the process receives SIGSEGV, SIGBUS, SIGFPE, SIGILL or
/// SIGABRT. The process then dies of the signal. `report_fields` (version, build, process id, …) are printed in the
/// report as `name:value` lines.
///
/// # Errors
/// Fails with `AlreadyExists` on the second call, or if the system refuses a handler.
pub fn install_crash_handler(report_fields: &'static [(&'static str, &'static str)]) -> io::Result<()> {
    REPORT_FIELDS
        .set(report_fields)
        .map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
    for (signal, _) in FATAL_SIGNALS {
        // SAFETY: rule 2; see `report_crash`.
        unsafe { signal_action::handle(signal, report_crash, 0)? };
    }
    Ok(())
}

/// A signal stack for the calling thread that is large enough for a backtrace, in service until dropped. The thread's
/// main function holds it.
#[derive(Debug)]
pub struct AlternateStack {
    base: *mut c_void,
    /// The value belongs to the thread that created it.
    _not_send: PhantomData<*mut ()>,
}

impl AlternateStack {
    /// Puts a new stack into service.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn install() -> io::Result<Self> {
        // SAFETY: rule 4; a fresh private mapping that is not shared.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
            libc::mmap(std::ptr::null_mut(), ALTERNATE_STACK_BYTES, protection, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let new = libc::stack_t {
            ss_sp: base,
            ss_flags: 0,
            ss_size: ALTERNATE_STACK_BYTES,
        };
        let installed = Self {
            base,
            _not_send: PhantomData,
        };
        exchange_stack(Some(new))?;
        Ok(installed)
    }
}

impl Drop for AlternateStack {
    /// Leaves the thread without a signal stack. The previous stack is not restored: std may have unmapped it.
    fn drop(&mut self) {
        let in_service = exchange_stack(None).is_ok_and(|current| current.ss_sp == self.base);
        let none = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        if !in_service || exchange_stack(Some(none)).is_ok() {
            // SAFETY: rule 4; the stack is out of service, and only this thread used it.
            unsafe { libc::munmap(self.base, ALTERNATE_STACK_BYTES) };
        }
    }
}

/// Puts `new` into service, if given, and returns the previous stack. Async-signal-safe.
fn exchange_stack(new: Option<libc::stack_t>) -> io::Result<libc::stack_t> {
    // SAFETY: rule 1; stack_t consists of integers and a pointer.
    let mut before: libc::stack_t = unsafe { std::mem::zeroed() };
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: rules 1 and 4; both pointers are null or live, and callers give stacks that are mapped.
    match unsafe { libc::sigaltstack(new, &raw mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes the report and ends the process. Rule 2 holds up to the backtrace, which is its exception.
extern "C" fn report_crash(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if !REPORTS_ENABLED.load(Ordering::Relaxed) {
        terminate_with_signal(signal);
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let log = EmergencyLog::open();
    match REPORTING_THREAD.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => log.write(START_LINE),
        Err(reporter) if reporter == thread => match PROGRESS.load(Ordering::Acquire) {
            progress::ASSERTED => {}
            before @ (progress::MODULES | progress::ASSERTED_AGAIN) => report_again(log, before, context),
            // The report itself crashed: stop reporting.
            _ => terminate_with_signal(CRASH_SIGNAL.load(Ordering::Acquire)),
        },
        // Another thread crashed first and will end the process.
        Err(_) => wait_for_termination(),
    }
    CRASH_SIGNAL.store(signal, Ordering::Release);
    PROGRESS.store(progress::WRITING, Ordering::Release);
    write_report_fields(log, signal, info, thread);
    write_instruction(log, context);
    write_registers(log, context);
    write_backtrace(log);
    write_module_info(log);
    log.write(END_LINE);
    terminate_with_signal(signal);
}

/// Writes the shorter report of a crash in code of a module that was to add to the report, and ends the process.
fn report_again(log: EmergencyLog, before: u8, context: *const c_void) -> ! {
    PROGRESS.store(progress::WRITING_AGAIN, Ordering::Release);
    if before == progress::MODULES {
        log.write(b"\nCrashed running signal handler. Providing reduced version of recursive crash report.\n");
    }
    write_running_module(log);
    write_instruction(log, context);
    write_backtrace(log);
    log.write(END_LINE);
    terminate_with_signal(CRASH_SIGNAL.load(Ordering::Acquire));
}

/// Lets modules add to the report. They may crash, too, and that is reported.
fn write_module_info(log: EmergencyLog) {
    let Some(collect) = COLLECT_MODULE_INFO.get() else {
        return;
    };
    for (signal, _) in FATAL_SIGNALS {
        if signal_action::unblock(signal).is_err() {
            return;
        }
    }
    PROGRESS.store(progress::MODULES, Ordering::Release);
    // SAFETY: rule 2; `on_backtrace_timeout` obeys it.
    if unsafe { signal_action::handle(libc::SIGALRM, on_backtrace_timeout, 0) }.is_err() {
        return;
    }
    // SAFETY: rule 2; `alarm` touches no memory.
    unsafe { libc::alarm(BACKTRACE_TIMEOUT_SECONDS) };
    collect(&mut |text| log.write(text));
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
    PROGRESS.store(progress::WRITING, Ordering::Release);
}

fn write_report_fields(log: EmergencyLog, signal: c_int, info: *const libc::siginfo_t, thread: i32) {
    // SAFETY: rule 3.
    let code = unsafe { (*info).si_code };
    let name = FATAL_SIGNALS
        .iter()
        .find(|(number, _)| *number == signal)
        .map_or("?", |(_, name)| name);
    log.write(b"Weft crashed by signal: ");
    log.write_decimal(signal.into());
    log.write(b" (");
    log.write(name.as_bytes());
    log.write(b"), si_code: ");
    log.write_decimal(code.into());
    if code <= 0 {
        // SAFETY: rule 3; a signal sent by a process (code 0 or less) carries its sender.
        let (process, user) = unsafe { ((*info).si_pid(), (*info).si_uid()) };
        log.write(b"\nKilled by PID: ");
        log.write_decimal(process.into());
        log.write(b", UID: ");
        log.write_decimal(user.into());
    } else {
        // SAFETY: rule 3; a fault (code above 0) carries its address.
        let address = unsafe { (*info).si_addr() };
        log.write(b"\nAccessing address: 0x");
        log.write_hexadecimal(address as u64);
    }
    log.write(b"\nThread: ");
    write_thread_name(log);
    log.write(b" (");
    log.write_decimal(thread.into());
    log.write(b")\n");
    write_running_module(log);
    for (name, value) in REPORT_FIELDS.get().copied().unwrap_or_default() {
        log.write(name.as_bytes());
        log.write(b":");
        log.write(value.as_bytes());
        log.write(b"\n");
    }
}

/// Writes the name of the module whose code the thread runs, if it runs any.
fn write_running_module(log: EmergencyLog) {
    if let Some(show) = SHOW_MODULE.get() {
        show(&mut |module| {
            log.write(b"Crashed in the code of module: ");
            log.write(module.as_bytes());
            log.write(b"\n");
        });
    }
}

/// Writes the address of the instruction at which the signal has arrived.
fn write_instruction(log: EmergencyLog, context: *const c_void) {
    if let Some(address) = instruction_address(context) {
        log.write(b"Crashed running the instruction at: 0x");
        log.write_hexadecimal(address);
        log.write(b"\n");
    }
}

#[cfg(target_arch = "x86_64")]
fn instruction_address(context: *const c_void) -> Option<u64> {
    // SAFETY: rule 3.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    Some(registers[libc::REG_RIP as usize] as u64)
}

#[cfg(target_arch = "aarch64")]
fn instruction_address(context: *const c_void) -> Option<u64> {
    // SAFETY: rule 3.
    Some(unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instruction_address(_: *const c_void) -> Option<u64> {
    None
}

fn write_thread_name(log: EmergencyLog) {
    let mut name = [0u8; 16];
    // SAFETY: rule 1; PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    log.write(name.split(|&byte| byte == 0).next().unwrap_or_default());
}

#[cfg(target_arch = "x86_64")]
fn write_registers(log: EmergencyLog, context: *const c_void) {
    const NAMES: [(&str, c_int); 18] = [
        ("RIP", libc::REG_RIP),
        ("RSP", libc::REG_RSP),
        ("RBP", libc::REG_RBP),
        ("RAX", libc::REG_RAX),
        ("RBX", libc::REG_RBX),
        ("RCX", libc::REG_RCX),
        ("RDX", libc::REG_RDX),
        ("RSI", libc::REG_RSI),
        ("RDI", libc::REG_RDI),
        ("R8 ", libc::REG_R8),
        ("R9 ", libc::REG_R9),
        ("R10", libc::REG_R10),
        ("R11", libc::REG_R11),
        ("R12", libc::REG_R12),
        ("R13", libc::REG_R13),
        ("R14", libc::REG_R14),
        ("R15", libc::REG_R15),
        ("EFL", libc::REG_EFL),
    ];
    // SAFETY: rule 3.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    log.write(b"\n------ REGISTERS ------\n");
    for (at, (name, register)) in NAMES.into_iter().enumerate() {
        log.write(name.as_bytes());
        log.write(b":");
        log.write_hexadecimal(registers[register as usize] as u64);
        log.write(if at % 3 == 2 { b"\n" } else { b" " });
    }
}

#[cfg(target_arch = "aarch64")]
fn write_registers(log: EmergencyLog, context: *const c_void) {
    // SAFETY: rule 3.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    log.write(b"\n------ REGISTERS ------\npc:");
    log.write_hexadecimal(machine.pc);
    log.write(b" sp:");
    log.write_hexadecimal(machine.sp);
    for (number, &value) in (0..).zip(&machine.regs) {
        log.write(if number % 3 == 0 { b"\nx" } else { b" x" });
        log.write_decimal(number);
        log.write(b":");
        log.write_hexadecimal(value);
    }
    log.write(b"\n");
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write_registers(log: EmergencyLog, _: *const c_void) {
    log.write(b"\nRegisters are not available on this architecture.\n");
}

fn write_backtrace(log: EmergencyLog) {
    log.write(b"\n------ STACK TRACE ------\n");
    let Ok(stack) = exchange_stack(None) else {
        return;
    };
    if stack.ss_flags & libc::SS_ONSTACK != 0 && stack.ss_size < MIN_BACKTRACE_STACK_BYTES {
        log.write(b"(omitted: this thread's signal stack is too small)\n");
        return;
    }
    // SAFETY: rule 2; `on_backtrace_timeout` obeys it.
    if unsafe { signal_action::handle(libc::SIGALRM, on_backtrace_timeout, 0) }.is_err() {
        return;
    }
    // SAFETY: rule 2; `alarm` touches no memory.
    unsafe { libc::alarm(BACKTRACE_TIMEOUT_SECONDS) };
    let mut log = log;
    // Writing to this log cannot fail.
    let _ = write!(log, "{}", Backtrace::force_capture());
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
}

/// Ends the process when the backtrace hangs, for example on a lock that the crashed thread holds. Rule 2 holds.
extern "C" fn on_backtrace_timeout(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let log = EmergencyLog::open();
    log.write(b"\n(the backtrace, or a module, took too long)\n");
    log.write(b"=== WEFT BUG REPORT END. ===\n\n");
    terminate_with_signal(CRASH_SIGNAL.load(Ordering::Acquire));
}

/// Dies of `signal` immediately. The handler that calls this may run inside another handler, which must not continue.
/// Therefore the signal is unblocked first.
fn terminate_with_signal(signal: c_int) -> ! {
    if signal_action::reset(signal).is_ok() && signal_action::unblock(signal).is_ok() {
        signal_action::raise(signal);
    }
    // SAFETY: rule 2; `_exit` is async-signal-safe and does not return.
    unsafe { libc::_exit(1) };
}

fn wait_for_termination() -> ! {
    loop {
        // SAFETY: rule 2; `pause` is async-signal-safe.
        unsafe { libc::pause() };
    }
}

#[cfg(test)]
mod tests;
