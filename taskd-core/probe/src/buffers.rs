//! The buffers that a vendor's library fills: a bounded number of them.
//!
//! The functions that the vendor's library calls take no lock, do not wait, and call nothing of that library. A forked
//! process has no buffers.

use std::alloc::{Layout, alloc};
use std::ptr::null_mut;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

/// Size in bytes of one buffer that a vendor's library fills with trace records: the minimum that vendors
/// recommend.
pub const BUFFER_BYTES: usize = 2 << 20;

const LAYOUT: Layout = match Layout::from_size_align(BUFFER_BYTES, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("64 is a power of two"),
};

/// States of a place: it has no memory yet, its buffer is free, the vendor has it, it waits to be read.
const EMPTY: u8 = 0;
const FREE: u8 = 1;
const OUT: u8 = 2;
const FULL: u8 = 3;

struct Place {
    state: AtomicU8,
    bytes: AtomicPtr<u8>,
    valid: AtomicUsize,
    /// Sequence number of the buffer's return: buffers are read in the order in which they came back.
    order: AtomicU64,
}

/// Maximum number of buffers for trace records that a process can have at one time. If all buffers are in use, the
/// vendor's library gets none, and drops its records; [`refused`] counts such requests.
pub const BUFFERS_MAX: usize = 100;

static PLACES: [Place; BUFFERS_MAX] = [const {
    Place {
        state: AtomicU8::new(EMPTY),
        bytes: AtomicPtr::new(null_mut()),
        valid: AtomicUsize::new(0),
        order: AtomicU64::new(0),
    }
}; BUFFERS_MAX];
/// Number of places in use, from the first.
static LIMIT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// The process that reads them.
static OWNER: AtomicU32 = AtomicU32::new(0);
static READER: OnceLock<Thread> = OnceLock::new();

/// Sets the thread that reads the buffers, and the maximum number of buffers at one time, at most [`BUFFERS_MAX`]. Call
/// this function before the vendor's library receives the functions `request` and `given_back`.
pub fn begin(reader: Thread, buffers_max: usize) {
    LIMIT.store(buffers_max.min(BUFFERS_MAX), Ordering::Release);
    OWNER.store(std::process::id(), Ordering::Release);
    let _ = READER.set(reader);
}

/// Gives an empty buffer to the vendor's library, which calls this function when it needs one. If there is none, sets
/// the address to null and the size to zero. `records_max` may be null; otherwise it is set to zero, which allows the
/// library to write as many records as fit.
///
/// # Safety
/// `bytes` and `size`, and `records_max` unless it is null, must be addresses that can be written.
pub unsafe extern "C" fn request(bytes: *mut *mut u8, size: *mut usize, records_max: *mut usize) {
    let place = PLACES.iter().take(LIMIT.load(Ordering::Acquire)).find_map(Place::take);
    if place.is_none() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the vendor passes the addresses of three words that it reads afterwards.
    unsafe {
        bytes.write(place.unwrap_or(null_mut()));
        size.write(if place.is_some() { BUFFER_BYTES } else { 0 });
        if !records_max.is_null() {
            records_max.write(0);
        }
    }
}

/// Takes a buffer back from the vendor's library, which has filled its first `valid` bytes.
pub fn given_back(bytes: *mut u8, valid: usize) {
    let is_it =
        |place: &&Place| place.state.load(Ordering::Acquire) == OUT && place.bytes.load(Ordering::Relaxed) == bytes;
    let Some(place) = PLACES.iter().find(is_it).filter(|_| !bytes.is_null()) else { return };
    place.valid.store(valid.min(BUFFER_BYTES), Ordering::Relaxed);
    place.order.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    place.state.store(if valid == 0 { FREE } else { FULL }, Ordering::Release);
    if let Some(reader) = READER.get() {
        reader.unpark();
    }
}

impl Place {
    /// Returns the memory of this buffer, if it is free, and marks it as given to the vendor's library.
    fn take(&self) -> Option<*mut u8> {
        let from = self.state.load(Ordering::Acquire);
        let is_free = matches!(from, EMPTY | FREE) && OWNER.load(Ordering::Acquire) == std::process::id();
        if !is_free || self.state.compare_exchange(from, OUT, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return None;
        }
        if from == EMPTY {
            // SAFETY: the layout has a size.
            let bytes = unsafe { alloc(LAYOUT) };
            if bytes.is_null() {
                self.state.store(EMPTY, Ordering::Release);
                return None;
            }
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        Some(self.bytes.load(Ordering::Relaxed))
    }
}

/// A buffer that the vendor's library has filled and that waits to be read. Dropping this value frees the buffer.
#[derive(Debug)]
pub struct Full {
    place: usize,
}

impl Full {
    /// Returns the filled buffer that has waited for longest, if there is one. Call it from one thread only.
    pub fn next() -> Option<Full> {
        let full = |(_, place): &(usize, &Place)| place.state.load(Ordering::Acquire) == FULL;
        let waiting = PLACES.iter().enumerate().filter(full);
        let (place, _) = waiting.min_by_key(|(_, place)| place.order.load(Ordering::Relaxed))?;
        Some(Full { place })
    }

    /// Returns the bytes that the vendor's library has filled.
    pub fn bytes(&self) -> &[u8] {
        let place = &PLACES[self.place];
        // SAFETY: the memory of the place has at least `valid` bytes, which the vendor has filled and no longer uses;
        // no other thread gets the place before `self` is dropped.
        unsafe { slice::from_raw_parts(place.bytes.load(Ordering::Relaxed), place.valid.load(Ordering::Relaxed)) }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        PLACES[self.place].state.store(FREE, Ordering::Release);
    }
}

/// Returns the number of buffers in use: those that the vendor's library has, and those that wait to be read.
pub fn out() -> u64 {
    PLACES.iter().filter(|place| place.state.load(Ordering::Relaxed) >= OUT).count() as u64
}

/// Returns the number of times that the vendor's library requested a buffer and got none. Until it gets a buffer, the
/// library drops its records.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}
