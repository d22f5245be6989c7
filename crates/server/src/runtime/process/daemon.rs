//! `daemonize`: detaching from the terminal.

/// Continues as a child in a session of its own, with standard input and output on `/dev/null`; the calling process
/// exits with 0. The working directory stays the same. No thread may have been started before, because only the calling
/// one continues in the child.
///
/// # Errors
/// If the system refuses a process or a session.
pub fn leave_terminal() -> std::io::Result<()> {
    Ok(nix::unistd::daemon(true, false)?)
}
