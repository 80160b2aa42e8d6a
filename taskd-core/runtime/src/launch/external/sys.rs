//! System calls without a safe interface: the exit status of a process that another process has reaped, and waiting for
//! a descriptor.
//!
//! These calls only read. This is the only file of the module with `unsafe`.
#![allow(unsafe_code)]

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::ioctl::{Opcode, Updater, opcode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor so that a task can wait until it is readable; returns `None` if the runtime cannot register
/// it.
///
/// # Panics
/// Panics outside a tokio runtime with I/O enabled.
pub(super) fn awaitable(fd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, and stays open and the same until it is dropped, which the `AsyncFd` does after it
    // has left the reactor.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok()
}

/// `struct pidfd_info` of `linux/pidfd.h` in its first version: 64 bytes on every architecture.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// pid, tgid, ppid, and four pairs of user and group ids.
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// `PIDFD_GET_INFO`, Linux 6.13.
const GET_INFO: Opcode = opcode::read_write::<PidfdInfo>(0xff, 11);
/// `PIDFD_INFO_EXIT`, Linux 6.15: the exit status, available after the process was reaped.
const EXIT: u64 = 1 << 3;

/// Returns the wait status of the process behind a pidfd, which the kernel keeps for the holders of the pidfd. `None`
/// before the process is reaped, and on an older kernel.
pub(in crate::launch) fn wait_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the opcode carries the size of `PidfdInfo`, so that a kernel of any version reads and writes that much
    // and no more; a descriptor of another kind, or an older kernel, returns an error and leaves the struct unchanged.
    let asked = unsafe { rustix::ioctl::ioctl(pidfd, Updater::<GET_INFO, _>::new(&mut info)) };
    (asked.is_ok() && info.mask & EXIT != 0).then_some(info.exit_code)
}
