//! The ordinary build: everything comes from the standard library and from `parking_lot`.

/// Atomic integers.
pub mod atomic {
    pub use std::sync::atomic::*;
}

/// Locks, condition variables and channels.
pub mod sync {
    pub use parking_lot::{
        Condvar, Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        WaitTimeoutResult,
    };
    pub use std::sync::{OnceLock, mpsc};
}

/// Threads.
pub mod thread {
    pub use std::thread::*;

    /// Returns the number of the calling thread in a simulation, otherwise `None`.
    #[inline]
    pub fn simulated_id() -> Option<i32> {
        None
    }
}

/// Clocks.
pub mod time {
    pub use std::time::*;

    /// Returns the monotonic time in microseconds if a simulation decides about it.
    #[inline]
    pub fn simulated_monotonic_us() -> Option<u64> {
        None
    }

    /// Returns the time since the Unix epoch in microseconds if a simulation decides about it.
    #[inline]
    pub fn simulated_unix_us() -> Option<u64> {
        None
    }
}

/// Waiting for sockets. In an ordinary build the system call itself waits.
pub mod descriptor {
    use std::os::fd::AsFd;
    use std::time::Duration;

    pub use crate::Interest;

    /// Called before a system call that waits for `descriptor` at most for `timeout` (`None`: without a limit). Returns
    /// the timeout for the system call. A simulation waits here, and the system call must not wait.
    #[inline]
    pub fn before_wait(_descriptor: impl AsFd, _interest: Interest, timeout: Option<Duration>) -> Option<Duration> {
        timeout
    }

    /// Called before a read or write of a blocking socket. A simulation waits here for as long as the socket would.
    ///
    /// # Errors
    /// With `WouldBlock` if a simulation has waited for the socket's timeout.
    #[inline]
    pub fn before_blocking(_socket: impl AsFd, _interest: Interest) -> std::io::Result<()> {
        Ok(())
    }

    /// Returns the part of `bytes` that may be written to a blocking socket at once after [`before_blocking`]. In a
    /// simulation it is so short that the write does not wait.
    #[inline]
    pub fn writable_part(bytes: &[u8]) -> &[u8] {
        bytes
    }

    /// Called around an operation on a socket that another thread may wait for, such as sending.
    #[inline]
    pub fn activity() {}
}

/// Connections over loopback addresses. In an ordinary build they are those of the kernel.
pub mod net {
    use std::io;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    /// Listens on an address inside a simulation. Returns `None` if the kernel is to listen.
    ///
    /// # Errors
    /// If the port is in use, or descriptors are exhausted.
    #[inline]
    pub fn simulated_listener(_address: SocketAddr, _backlog: u32) -> Option<io::Result<TcpListener>> {
        None
    }

    /// Connects to an address inside a simulation. Returns `None` if the kernel is to make the connection.
    ///
    /// # Errors
    /// If no server listens there, or descriptors are exhausted.
    #[inline]
    pub fn simulated_connection(_to: SocketAddr) -> Option<io::Result<TcpStream>> {
        None
    }

    /// Returns the address of this end of a connection.
    ///
    /// # Errors
    /// Those of the system call.
    #[inline]
    pub fn local_addr(stream: &TcpStream) -> io::Result<SocketAddr> {
        stream.local_addr()
    }

    /// Returns the address of the other end of a connection.
    ///
    /// # Errors
    /// If the connection has ended.
    #[inline]
    pub fn peer_addr(stream: &TcpStream) -> io::Result<SocketAddr> {
        stream.peer_addr()
    }

    /// Returns the address on which a socket listens.
    ///
    /// # Errors
    /// Those of the system call.
    #[inline]
    pub fn listener_addr(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    /// Returns `true` if the socket has the options of TCP. Those of a simulation have none.
    #[inline]
    pub fn is_tcp(_socket: &impl AsFd) -> bool {
        true
    }
}

/// Syncing files.
pub mod disk {
    use std::fs::File;
    use std::io;

    /// Syncs the data of a file, and what is needed to read it.
    ///
    /// # Errors
    /// Those of the system call.
    #[inline]
    pub fn sync_data(file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Syncs a file with all its metadata, or a directory.
    ///
    /// # Errors
    /// Those of the system call.
    #[inline]
    pub fn sync_all(file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

/// Hints to the processor.
pub mod hint {
    pub use std::hint::spin_loop;
}
