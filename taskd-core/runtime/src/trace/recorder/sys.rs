//! The system calls that the recorder needs, without the libc crate: the recorder is also compiled into a library of
//! its own.
//!
//! Functions here handle addresses and lengths, not contents.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanos: c_long,
}

unsafe extern "C" {
    fn mmap(at: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, from: c_long) -> *mut c_void;
    fn munmap(at: *mut c_void, length: usize) -> c_int;
    fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn fcntl(file: c_int, command: c_int, ...) -> c_int;
    fn fallocate(file: c_int, mode: c_int, from: c_long, length: c_long) -> c_int;
    fn clock_gettime(clock: c_int, now: *mut Timespec) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    #[cfg(target_arch = "x86_64")]
    fn prctl(what: c_int, ...) -> c_int;
    fn getauxval(what: c_ulong) -> usize; // a C long is as long as an address
}

const CLOCK_REALTIME: c_int = 0;
const CLOCK_MONOTONIC: c_int = 1;
const CLOCK_THREAD_CPUTIME_ID: c_int = 3;
const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_ANONYMOUS: c_int = 0x20;
const MADV_WIPEONFORK: c_int = 18;
const MFD_CLOEXEC: c_uint = 1;
const MFD_ALLOW_SEALING: c_uint = 2;
const F_ADD_SEALS: c_int = 1033;
const F_GET_SEALS: c_int = 1034;
const F_SEAL_SEAL: c_int = 1;
const F_SEAL_SHRINK: c_int = 2;
const F_SEAL_GROW: c_int = 4;
const AT_RANDOM: c_ulong = 25;
#[cfg(target_arch = "x86_64")]
const SYS_GETTID: c_long = 186;
#[cfg(not(target_arch = "x86_64"))]
const SYS_GETTID: c_long = 178;

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
#[inline]
pub(super) fn monotonic_nanos() -> u64 {
    nanos(CLOCK_MONOTONIC)
}

/// Returns nanoseconds since 1970: for display and for files, not for measuring.
pub(super) fn unix_nanos() -> u64 {
    nanos(CLOCK_REALTIME)
}

/// Returns the CPU time of this thread, in nanoseconds.
pub(super) fn thread_cpu_nanos() -> u64 {
    nanos(CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn nanos(clock: c_int) -> u64 {
    let mut now = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: `now` is valid for writing. Neither clock can fail on Linux; if one did, it would read 0.
    unsafe { clock_gettime(clock, &raw mut now) };
    now.seconds.unsigned_abs() * 1_000_000_000 + now.nanos.unsigned_abs()
}

/// Returns the id of this thread.
pub(super) fn thread_id() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    let id = unsafe { syscall(SYS_GETTID) };
    u32::try_from(id).unwrap_or(0)
}

/// Returns true if this process may read the time-stamp counter, which `PR_SET_TSC` can forbid.
#[cfg(target_arch = "x86_64")]
pub(super) fn may_read_counter() -> bool {
    const PR_GET_TSC: c_int = 25;
    const PR_TSC_ENABLE: c_int = 1;
    let mut state: c_int = 0;
    // SAFETY: `state` is valid for writing an int.
    let known = unsafe { prctl(PR_GET_TSC, &raw mut state) } == 0;
    !known || state == PR_TSC_ENABLE
}

/// Returns a number that differs between the programs that a process executes one after the other: the system gives
/// each other random bytes. They are a secret of the program, so the number is a hash of them.
pub(super) fn image() -> u64 {
    // SAFETY: passes no address.
    let random = ptr::with_exposed_provenance::<[u8; 16]>(unsafe { getauxval(AT_RANDOM) });
    // SAFETY: if not null, it points to 16 bytes that exist as long as the program runs.
    let Some(random) = (unsafe { random.as_ref() }) else { return 0 };
    random.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Creates memory as an anonymous file whose length can no longer be changed.
pub(super) fn sealed_memory(name: &CStr, length: usize) -> io::Result<File> {
    // SAFETY: `name` is a C string.
    let made = unsafe { memfd_create(name.as_ptr(), MFD_CLOEXEC | MFD_ALLOW_SEALING) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so it has no other owner.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(made) });
    file.set_len(length as u64)?;
    // SAFETY: passes no address.
    match unsafe { fcntl(file.as_raw_fd(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true if the file cannot be shortened: accessing a page that was cut off would kill the process.
pub(super) fn cannot_shrink(file: &File) -> bool {
    // SAFETY: passes no address.
    let seals = unsafe { fcntl(file.as_raw_fd(), F_GET_SEALS) };
    seals >= 0 && seals & F_SEAL_SHRINK != 0
}

/// Reserves memory for a part of a file, so that writing there cannot fail.
pub(super) fn reserve(file: &File, from: usize, length: usize) -> io::Result<()> {
    let number = |n: usize| c_long::try_from(n).map_err(io::Error::other);
    for part in (from..from + length).step_by(RESERVED_AT_ONCE) {
        let (at, bytes) = (number(part)?, number(RESERVED_AT_ONCE.min(from + length - part))?);
        // SAFETY: passes no address.
        while unsafe { fallocate(file.as_raw_fd(), 0, at, bytes) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Bytes reserved per call: a signal undoes the reservation of one call, so small parts preserve progress.
const RESERVED_AT_ONCE: usize = 256 << 10;

/// A part of a file in memory, shared with all processes that map it; unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is an address and a length; code that creates references into it is responsible for their use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from offset `from`, a multiple of the page size. The file must have them: access beyond its
    /// end is fatal.
    pub(super) fn new(file: &File, from: usize, length: usize, writable: bool) -> io::Result<Mapping> {
        let from = c_long::try_from(from).map_err(io::Error::other)?;
        let protection = if writable { PROT_READ | PROT_WRITE } else { PROT_READ };
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let at = unsafe { mmap(ptr::null_mut(), length, protection, MAP_SHARED, file.as_raw_fd(), from) };
        Mapping::of(at, length)
    }

    /// Maps memory private to this process, all zero, and zero again in every process forked from it.
    pub(super) fn wiped_on_fork(length: usize) -> io::Result<Mapping> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: as in `new`.
        let at = unsafe { mmap(ptr::null_mut(), length, PROT_READ | PROT_WRITE, flags, -1, 0) };
        let mapping = Mapping::of(at, length)?;
        // SAFETY: our mapping; the advice changes nothing in this process.
        match unsafe { madvise(at, length, MADV_WIPEONFORK) } {
            0 => Ok(mapping),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn of(at: *mut c_void, length: usize) -> io::Result<Mapping> {
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().addr() != usize::MAX => Ok(Mapping { at, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(super) const fn start(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// Returns the length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is our mapping, and no reference into it outlives `self`.
        unsafe { munmap(self.at.as_ptr().cast(), self.length) };
    }
}
