//! Descriptors that this process keeps, and those that an executed program inherits.
//!
//! This module never reads from a descriptor.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;

/// Reduces this process's descriptors to `/dev/null` as standard streams and one socket, which was its standard input.
/// All others that its parent had open without `O_CLOEXEC` are closed.
///
/// Must be called before anything is opened, since every other descriptor is closed.
pub(in crate::launch::guard) fn keep_only_stdin() -> io::Result<OwnedFd> {
    const SOCKET: libc::c_int = 3;
    // SAFETY: descriptor 3 is replaced or new, and has no other owner after `close_from`.
    let socket = unsafe {
        if libc::dup3(0, SOCKET, libc::O_CLOEXEC) == -1 {
            return Err(io::Error::last_os_error());
        }
        close_from(SOCKET + 1)?;
        OwnedFd::from_raw_fd(SOCKET)
    };
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for standard in 0..3 {
        // SAFETY: replaces a standard stream; it stays open, as `/dev/null`.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(socket)
}

/// Closes all descriptors from `first` on.
///
/// # Safety
/// None of them may be used afterwards.
unsafe fn close_from(first: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call without pointers; the caller guarantees that the descriptors are not used.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    let listed = std::fs::read_dir("/proc/self/fd")?; // Linux before 5.9
    let numbers: Vec<i32> = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|n| *n >= first) {
        // SAFETY: as above. The number of the listing's own descriptor is closed already, which is a harmless error.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Marks all descriptors from 3 on to be closed at exec. Kernels before Linux 5.11 cannot; there, only descriptors that
/// other code has opened without `O_CLOEXEC` are inherited.
pub(super) fn close_descriptors_at_exec() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}
