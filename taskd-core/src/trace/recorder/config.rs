//! How a recorder is laid out, and what it records.
//!
//! It has no state: the switches of a recorder stand in its file.

use super::layout::Layout;
use super::record::Kind;
use super::ring::WhenFull;
use super::sys;
use std::fs::File;
use std::io;

/// How a recorder is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Threads that can record at one time, 1 to 64.
    pub threads_max: usize,
    /// Records that a thread's ring holds, a power of two from 1,024 to 1,048,576. Each takes 64 bytes.
    pub records_per_thread: usize,
    /// What becomes of a record for which there is no room.
    pub when_full: WhenFull,
    /// Kinds that are recorded from the start.
    pub kinds: Switches,
}

impl Default for RecorderConfig {
    /// 16 threads with 4,096 records each: 4 MiB, of which a thread takes a quarter of one when it begins.
    fn default() -> RecorderConfig {
        RecorderConfig {
            threads_max: 16,
            records_per_thread: 4096,
            when_full: WhenFull::DropOldest,
            kinds: Switches::ALL,
        }
    }
}

impl RecorderConfig {
    /// How long the file must be.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        Layout::bytes(self.threads_max, self.records_per_thread)
    }

    /// Memory for such a recorder: a file without a name, which nobody can make shorter. Whoever is to read what it holds
    /// when this process has died keeps a descriptor of it.
    ///
    /// # Errors
    /// When the system has none.
    pub fn memory(&self) -> io::Result<File> {
        sys::sealed_memory(c"taskd-recorder", self.bytes())
    }
}

/// Which kinds are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches(u64);

impl Switches {
    /// All of them.
    pub const ALL: Switches = Switches(u64::MAX);
    /// None.
    pub const NONE: Switches = Switches(0);

    /// These and another kind.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Switches {
        Switches(self.0 | bit(kind))
    }

    /// These without a kind.
    #[must_use]
    pub const fn without(self, kind: Kind) -> Switches {
        Switches(self.0 & !bit(kind))
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn of_bits(bits: u64) -> Switches {
        Switches(bits)
    }
}

/// A kind's bit in the switches.
#[inline]
pub(super) const fn bit(kind: Kind) -> u64 {
    1 << kind.number()
}
