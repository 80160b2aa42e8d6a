//! The buffers that a vendor's library fills: a bounded number of them.
//!
//! What the vendor calls here takes no lock, waits for nobody, and calls nothing of the vendor's. In a forked process there are none.

use super::BUFFERS_MAX;
use std::alloc::{Layout, alloc};
use std::ptr::null_mut;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

/// Bytes of a buffer: the least that vendors recommend.
pub(super) const BUFFER_BYTES: usize = 2 << 20;

const LAYOUT: Layout = match Layout::from_size_align(BUFFER_BYTES, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("64 is a power of two"),
};

/// States of a place: it has no memory yet, nobody has its buffer, the vendor has it, it waits to be read.
const EMPTY: u8 = 0;
const FREE: u8 = 1;
const OUT: u8 = 2;
const FULL: u8 = 3;

struct Place {
    state: AtomicU8,
    bytes: AtomicPtr<u8>,
    valid: AtomicUsize,
    /// Buffers are read in the order in which they came back.
    order: AtomicU64,
}

static PLACES: [Place; BUFFERS_MAX] = [const {
    Place {
        state: AtomicU8::new(EMPTY),
        bytes: AtomicPtr::new(null_mut()),
        valid: AtomicUsize::new(0),
        order: AtomicU64::new(0),
    }
}; BUFFERS_MAX];
static NEXT: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// The process that reads them.
static OWNER: AtomicU32 = AtomicU32::new(0);
static READER: OnceLock<Thread> = OnceLock::new();

/// Says which thread reads them, before the vendor is told of the two functions below.
pub(super) fn begin(reader: Thread) {
    OWNER.store(std::process::id(), Ordering::Release);
    let _ = READER.set(reader);
}

/// The vendor needs a buffer. `records_max` may be null; it is set to as many as fit.
pub(super) unsafe extern "C" fn request(bytes: *mut *mut u8, size: *mut usize, records_max: *mut usize) {
    let place = PLACES.iter().find_map(Place::take);
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

/// The vendor gives a buffer back, of which so many bytes are valid.
pub(super) fn given_back(bytes: *mut u8, valid: usize) {
    let is_it = |place: &&Place| {
        place.state.load(Ordering::Acquire) == OUT && place.bytes.load(Ordering::Relaxed) == bytes
    };
    let Some(place) = PLACES.iter().find(is_it).filter(|_| !bytes.is_null()) else { return };
    place.valid.store(valid.min(BUFFER_BYTES), Ordering::Relaxed);
    place.order.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    place.state.store(if valid == 0 { FREE } else { FULL }, Ordering::Release);
    if let Some(reader) = READER.get() {
        reader.unpark();
    }
}

impl Place {
    /// Its memory, if it is free.
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

/// A buffer that is to be read. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Full {
    place: usize,
}

impl Full {
    /// The one that has waited for longest. For one thread.
    pub(super) fn next() -> Option<Full> {
        let full = |(_, place): &(usize, &Place)| place.state.load(Ordering::Acquire) == FULL;
        let waiting = PLACES.iter().enumerate().filter(full);
        let (place, _) = waiting.min_by_key(|(_, place)| place.order.load(Ordering::Relaxed))?;
        Some(Full { place })
    }

    /// What is valid of it.
    pub(super) fn bytes(&self) -> &[u8] {
        let place = &PLACES[self.place];
        // SAFETY: the place has memory of at least so many bytes, which the vendor has filled and has no more; nobody gets it before
        // `self` is dropped.
        unsafe { slice::from_raw_parts(place.bytes.load(Ordering::Relaxed), place.valid.load(Ordering::Relaxed)) }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        PLACES[self.place].state.store(FREE, Ordering::Release);
    }
}

/// Buffers that the vendor has or that wait to be read.
pub(super) fn out() -> u64 {
    PLACES.iter().filter(|place| place.state.load(Ordering::Relaxed) >= OUT).count() as u64
}

/// Buffers that the vendor has asked for in vain: as long as it does, it drops what it records.
pub(super) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}
