//! The table of names: each name is in the file once, and records carry its number.
//!
//! The table is append-only. A reader does not trust its contents.

use super::layout::Layout;
use super::record::NameId;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// Maximum length of a recorded name in bytes; longer names are cut.
pub const NAME_BYTES_MAX: usize = 255;

/// The recording process's index of the table.
#[derive(Debug)]
pub(super) struct Names(Mutex<BTreeMap<Box<str>, NameId>>);

impl Names {
    /// Reads the names that a file already contains.
    pub(super) fn of(layout: &Layout) -> Names {
        let mut reader = NameReader::default();
        reader.read(layout);
        let known = (1..).map(NameId).zip(reader.names).map(|(id, name)| (name.into_boxed_str(), id));
        Names(Mutex::new(known.collect()))
    }

    /// Returns the number of a name, and appends the name if it is new. `None`: no room, which is counted.
    pub(super) fn intern(&self, layout: &Layout, name: &str) -> Option<NameId> {
        let name = cut(name);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = known.get(name) {
            return Some(*id);
        }
        let Some(id) = append(layout, name) else {
            layout.header().names_refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        known.insert(name.into(), id);
        Some(id)
    }
}

/// Writes a name behind the others, then increments the count.
fn append(layout: &Layout, name: &str) -> Option<NameId> {
    let header = layout.header();
    let (count, at) = (header.names.load(Ordering::Relaxed), header.names_bytes.load(Ordering::Relaxed));
    let length = u8::try_from(name.len()).ok()?;
    let after = at.checked_add(u32::from(length) + 1)?;
    let room = layout.names().get(at as usize..after as usize)?;
    for (to, byte) in room.iter().zip(std::iter::once(length).chain(name.bytes())) {
        to.store(byte, Ordering::Relaxed);
    }
    let id = count.checked_add(1)?;
    header.names_bytes.store(after, Ordering::Relaxed);
    header.names.store(id, Ordering::Release);
    Some(NameId(id))
}

/// Cuts a name to the maximum length of a name, at a character boundary.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// The names of a file that were read so far.
#[derive(Debug, Default)]
pub(super) struct NameReader {
    names: Vec<String>,
    bytes: usize,
}

impl NameReader {
    /// Returns the name of a number.
    pub(super) fn get(&self, id: NameId) -> Option<&str> {
        self.names.get((id.0 as usize).checked_sub(1)?).map(String::as_str)
    }

    /// Reads the names that were added since the last call.
    pub(super) fn read(&mut self, layout: &Layout) {
        let count = layout.header().names.load(Ordering::Acquire) as usize;
        let bytes = layout.names();
        while self.names.len() < count {
            let Some(length) = bytes.get(self.bytes).map(|byte| usize::from(byte.load(Ordering::Relaxed))) else {
                return; // the count exceeds the size of the table
            };
            let from = self.bytes + 1;
            let Some(name) = bytes.get(from..from + length) else { return };
            let name: Vec<u8> = name.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
            self.names.push(String::from_utf8_lossy(&name).into_owned());
            self.bytes = from + length;
        }
    }
}
