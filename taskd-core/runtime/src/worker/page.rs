//! The lifeline page: the first page of the file that guard, supervisor and training process share for one rank. The
//! rest of the file belongs to the [recorder](crate::trace::recorder).
//!
//! This module defines the layout of the fields and maps them; their meaning is defined elsewhere. Every access is one
//! atomic word, so a writer that dies at any point leaves no partial write.
//!
//! # Layout, version 1 (4,096 bytes, native endianness)
//! | offset | type | field | written by |
//! |---|---|---|---|
//! | 0 | `[u8; 8]` | magic `TASKDPG1` | guard, before the rank starts |
//! | 8 | `u32` | layout version, 1 | guard |
//! | 12 | `u32` | length of the page in bytes, 4096 | guard |
//! | 16 | `u32` | pid of the rank | the forked child, before exec |
//! | 20 | `u32` | state of the lifeline: 0 never taken, 1 held, 2 given up, 3 unavailable | rank (0 to 1 or 3), guard (to 2) |
//! | 24 | `u64` | start time of the rank: field 22 of `/proc/PID/stat` | the forked child, before exec |
//! | 32 | `u32` | rank, `u32::MAX` for a service | guard |
//! | 36 | `u32` | incarnation | guard |
//! | 40 | `u64` | generation | guard; a worker that continues in a later world |
//! | 48 | `u64` | number of the last completed training step, 0 for none | rank |
//! | 56 | `u64` | `CLOCK_MONOTONIC` ns of the last completed step, 0 for none | rank |
//! | 64 | `u64` | `CLOCK_MONOTONIC` ns of the last heartbeat, 0 for never | rank |
//! | 72 | `u32` | offset in the page of the lock's futex word | rank, before the state becomes 1 |
//! | 76 | `u32` | 1 while the rank is in a taskd step loop | rank |
//! | 80 | `u32` | pid of the process that was started, once another process has claimed the page; 0 before | the claiming process |
//! | 88 | `u64` | start time of that process | the claiming process |
//! | 128 | `pthread_mutex_t` | the lifeline: a robust, process-shared mutex, locked permanently by the rank's main thread | rank |
//!
//! Stores release, loads acquire; progress is written as step, then its time. The process that sets the state to 1
//! should then wake the state's word with `FUTEX_WAKE` (shared): otherwise the guard notices up to a second later.
//! State 3 means that the rank would hold the lock, but its system releases no lock when the holder dies: deaths are
//! then known from exits.
//!
//! # Claims
//! If the process that was started is a wrapper, one of its descendants may claim the page, under an exclusive `flock`
//! of its file, provided that the started process has never used the page and any earlier claimant has ended. The
//! claimant copies the values at 16 and 24 to 80 and 88, clears 48 to 71 and 76, and writes its own values at 24 and
//! then 16. It does not take the lock: the guard waits for the end of the process that it started. The started process
//! may take the page back.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Length of the page in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Version of the layout.
pub(crate) const LAYOUT_VERSION: u32 = 1;
/// Offset of the lock.
pub(crate) const LOCK_OFFSET: usize = 128;
const MAGIC: u64 = u64::from_ne_bytes(*b"TASKDPG1");
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The fields of the page.
#[repr(C)]
pub(crate) struct Fields {
    magic: AtomicU64,
    version: AtomicU32,
    length: AtomicU32,
    pub(crate) pid: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) start_time: AtomicU64,
    pub(crate) rank: AtomicU32,
    pub(crate) incarnation: AtomicU32,
    pub(crate) generation: AtomicU64,
    pub(crate) step: AtomicU64,
    pub(crate) step_at: AtomicU64,
    pub(crate) beat_at: AtomicU64,
    pub(crate) lock_at: AtomicU32,
    pub(crate) in_loop: AtomicU32,
    pub(crate) started_pid: AtomicU32,
    reserved: AtomicU32,
    pub(crate) started_time: AtomicU64,
    reserved_too: [AtomicU32; 8],
    lock: [AtomicU32; (PAGE_BYTES - LOCK_OFFSET) / 4],
}

const _: () = {
    assert!(size_of::<Fields>() == PAGE_BYTES);
    assert!(offset_of!(Fields, state) == 20 && offset_of!(Fields, start_time) == 24);
    assert!(offset_of!(Fields, generation) == 40 && offset_of!(Fields, beat_at) == 64);
    assert!(offset_of!(Fields, lock_at) == 72 && offset_of!(Fields, in_loop) == 76);
    assert!(offset_of!(Fields, started_pid) == 80 && offset_of!(Fields, started_time) == 88);
    assert!(offset_of!(Fields, lock) == LOCK_OFFSET);
};

/// Values of [`Fields::state`].
pub(crate) mod state {
    pub(crate) const NEVER_TAKEN: u32 = 0;
    pub(crate) const HELD: u32 = 1;
    pub(crate) const GIVEN_UP: u32 = 2;
    pub(crate) const UNAVAILABLE: u32 = 3;
}

impl Fields {
    /// Returns true if this is a page of this layout.
    pub(crate) fn is_valid(&self) -> bool {
        self.magic.load(Ordering::Acquire) == MAGIC
            && self.version.load(Ordering::Acquire) == LAYOUT_VERSION
            && self.length.load(Ordering::Acquire) as usize == PAGE_BYTES
    }

    /// Returns true if the page belongs to the process that was started with this pid, even if another process has
    /// claimed it.
    pub(crate) fn is_of(&self, started: u32) -> bool {
        self.started().0 == started
    }

    /// Returns pid and start time of the process that was started.
    pub(crate) fn started(&self) -> (u32, u64) {
        match self.started_pid.load(Ordering::Acquire) {
            0 => self.named(),
            pid => (pid, self.started_time.load(Ordering::Acquire)),
        }
    }

    /// Returns pid and start time of the process that is the rank.
    pub(crate) fn named(&self) -> (u32, u64) {
        let pid = self.pid.load(Ordering::Acquire);
        (pid, self.start_time.load(Ordering::Acquire))
    }

    /// Returns the process that has claimed the page from the started one.
    pub(crate) fn claimant(&self) -> Option<(u32, u64)> {
        Some(self.named()).filter(|named| *named != self.started())
    }

    /// Returns the name of the lifeline's state.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state.load(Ordering::Acquire) {
            state::NEVER_TAKEN => "never-taken",
            state::HELD => "held",
            state::GIVEN_UP => "given-up",
            state::UNAVAILABLE => "unavailable",
            _ => "unknown",
        }
    }

    /// Returns the number of the last completed step, if there was one.
    pub(crate) fn last_step(&self) -> Option<u64> {
        Some(self.step.load(Ordering::Acquire)).filter(|step| *step != 0)
    }

    /// Returns the futex word of the lock; `None` if the rank wrote an invalid offset.
    pub(crate) fn lock_word(&self) -> Option<&AtomicU32> {
        let at = self.lock_at.load(Ordering::Acquire) as usize;
        self.lock.get(at.checked_sub(LOCK_OFFSET)? / 4).filter(|_| at.is_multiple_of(4))
    }

    /// Returns the current values of the first words of the lock.
    pub(crate) fn lock_words(&self, count: usize) -> impl Iterator<Item = u32> {
        self.lock.iter().take(count).map(|word| word.load(Ordering::Acquire))
    }

    /// Returns the address of the lock, for the process that creates it.
    pub(crate) fn lock_address(&self) -> *mut libc::c_void {
        self.lock.as_ptr().cast_mut().cast()
    }
}

/// A mapped page; unmapped when dropped.
pub(crate) struct Page(NonNull<Fields>);

// SAFETY: the mapping is shared memory that is only touched through atomics, from any thread.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Creates a page with its identity written, and the sealed memory that it begins; the memory has `bytes` bytes, at
    /// least a page.
    ///
    /// # Errors
    /// The name of the failed call and the system's error.
    pub(crate) fn create(
        rank: u32,
        incarnation: u32,
        generation: u64,
        bytes: usize,
    ) -> Result<(OwnedFd, Page), (&'static str, io::Error)> {
        let of = |call: &'static str| move |error: rustix::io::Errno| (call, error.into());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("taskd-rank", flags).map_err(of("memfd_create"))?;
        rustix::fs::ftruncate(&memory, bytes.max(PAGE_BYTES) as u64).map_err(of("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&memory, SEALS | SealFlags::SEAL).map_err(of("fcntl(F_ADD_SEALS)"))?;
        let page = Page::map(&memory, ProtFlags::READ | ProtFlags::WRITE).map_err(|error| ("mmap", error))?;
        page.rank.store(rank, Ordering::Relaxed);
        page.incarnation.store(incarnation, Ordering::Relaxed);
        page.generation.store(generation, Ordering::Relaxed);
        page.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        page.length.store(u32::try_from(PAGE_BYTES).unwrap_or(u32::MAX), Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
        Ok((memory, page))
    }

    /// Opens the page of another process for reading.
    pub(crate) fn open_to_read(path: &Path) -> io::Result<Page> {
        Page::open(path, OFlags::RDONLY, ProtFlags::READ)
    }

    /// Opens the page of this process for writing.
    pub(crate) fn open_to_write(path: &Path) -> io::Result<Page> {
        Page::open(path, OFlags::RDWR, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn open(path: &Path, access: OFlags, protection: ProtFlags) -> io::Result<Page> {
        let memory = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?;
        let page = Page::map(&memory, protection)?;
        if page.is_valid() { Ok(page) } else { Err(io::Error::other("not a lifeline page of version 1")) }
    }

    /// Maps the first page of memory that is sealed against shrinking.
    fn map(memory: impl AsFd, protection: ProtFlags) -> io::Result<Page> {
        let sealed = rustix::fs::fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(&memory)?.st_size < PAGE_BYTES as i64 {
            return Err(io::Error::other("not a lifeline page: its length is not sealed"));
        }
        // SAFETY: a new shared mapping, at an address that the kernel chooses, of memory that is long enough and sealed
        // against shrinking, so no access can fault.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), PAGE_BYTES, protection, MapFlags::SHARED, memory, 0)? };
        NonNull::new(base.cast()).map(Page).ok_or_else(|| io::Error::other("the page was mapped at address 0"))
    }

    /// Returns the fields for the rest of the process's life: the page is never unmapped.
    pub(crate) fn leak(self) -> &'static Fields {
        let fields = self.0;
        std::mem::forget(self);
        // SAFETY: the mapping is valid for reads of `Fields`, whose bytes are all atomics, and is never unmapped from
        // now on.
        unsafe { fields.as_ref() }
    }
}

impl Deref for Page {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and `PAGE_BYTES` long; every field is an atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this is our mapping, and no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping fails only for bad arguments");
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, state) = (self.pid.load(Ordering::Relaxed), self.state.load(Ordering::Relaxed));
        write!(f, "Page {{ pid: {pid}, state: {state} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn each_page_field_is_at_its_layout_offset() {
        let (memory, page) = Page::create(7, 3, 9, 3 * PAGE_BYTES).unwrap();
        let longs = [(&page.start_time, 24), (&page.step, 48), (&page.step_at, 56), (&page.beat_at, 64)];
        let words = [(&page.pid, 16), (&page.state, 20), (&page.lock_at, 72)];
        longs.iter().for_each(|(field, at)| field.store(1 << 40 | at, Ordering::Release));
        words.iter().for_each(|(field, at)| field.store(1 << 20 | at, Ordering::Release));

        let memory = std::fs::File::from(memory);
        let long = |at: u64| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, at).map(|()| u64::from_ne_bytes(bytes)).unwrap()
        };
        let word = |at: u32| {
            let mut bytes = [0; 4];
            memory.read_exact_at(&mut bytes, at.into()).map(|()| u32::from_ne_bytes(bytes)).unwrap()
        };
        assert_eq!(long(0).to_ne_bytes(), *b"TASKDPG1");
        assert_eq!([word(8), word(12), word(32), word(36)], [1, 4096, 7, 3]);
        assert_eq!(long(40), 9);
        longs.iter().for_each(|(_, at)| assert_eq!(long(*at), 1 << 40 | at));
        words.iter().for_each(|(_, at)| assert_eq!(word(*at), 1 << 20 | at));
        assert_eq!(memory.metadata().unwrap().len(), 3 * 4096);
        assert_eq!((page.started(), page.claimant()), (page.named(), None));
        page.started_time.store(77, Ordering::Release);
        page.started_pid.store(7, Ordering::Release);
        assert_eq!((word(80), long(88), page.started(), page.claimant()), (7, 77, (7, 77), Some(page.named())));
        assert!(page.is_of(7) && !page.is_of(page.named().0));
        assert_eq!(page.lock_address() as usize - &raw const *page as usize, 128);
        assert!(align_of::<libc::pthread_mutex_t>() <= LOCK_OFFSET);
        assert!(size_of::<libc::pthread_mutex_t>() <= PAGE_BYTES - LOCK_OFFSET);
    }

    #[test]
    fn an_offset_of_the_lock_that_cannot_be_is_refused() {
        let (_memory, page) = Page::create(0, 1, 1, PAGE_BYTES).unwrap();
        for (offset, is_one) in [(0, false), (127, false), (128, true), (130, false), (4092, true), (4096, false)] {
            page.lock_at.store(offset, Ordering::Release);
            assert_eq!(page.lock_word().is_some(), is_one, "{offset}");
        }
    }

    /// Python writes into the page by its own copy of the offsets (`sitecustomize.py`).
    #[test]
    fn python_has_the_same_layout() {
        let names = "MAGIC.decode(), PAGE_BYTES, VERSION, NEVER_TAKEN, HELD, UNAVAILABLE, AT_VERSION, AT_PID, AT_STATE, \
                     AT_START_TIME, AT_GENERATION, AT_STEP, AT_STEP_TIME, AT_BEAT_TIME, AT_WORD_OFFSET, AT_IN_LOOP, AT_LOCK";
        let program = format!("from _taskd_rank import *\nprint(json.dumps([{names}]))");
        let theirs = taskd_core::testing::python::evaluated(&[], &program);
        let ours = serde_json::json!([
            "TASKDPG1",
            PAGE_BYTES,
            LAYOUT_VERSION,
            state::NEVER_TAKEN,
            state::HELD,
            state::UNAVAILABLE,
            offset_of!(Fields, version),
            offset_of!(Fields, pid),
            offset_of!(Fields, state),
            offset_of!(Fields, start_time),
            offset_of!(Fields, generation),
            offset_of!(Fields, step),
            offset_of!(Fields, step_at),
            offset_of!(Fields, beat_at),
            offset_of!(Fields, lock_at),
            offset_of!(Fields, in_loop),
            LOCK_OFFSET,
        ]);
        assert_eq!(theirs, ours);
    }

    #[test]
    fn memory_that_could_become_shorter_is_refused() {
        let memory = rustix::fs::memfd_create("taskd-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&memory, PAGE_BYTES as u64).unwrap();
        assert!(Page::map(&memory, ProtFlags::READ).unwrap_err().to_string().contains("not sealed"));
        rustix::fs::ftruncate(&memory, PAGE_BYTES as u64 - 1).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        assert!(Page::map(&memory, ProtFlags::READ).is_err(), "less than a page");
        rustix::fs::ftruncate(&memory, PAGE_BYTES as u64).unwrap();
        assert!(!Page::map(&memory, ProtFlags::READ).unwrap().is_valid());
    }
}
