//! Configuration of a recorder: its size, and the kinds that it records at the start.
//!
//! The current switches are not here but in the recorder's file.

use super::layout::{Layout, RINGS_MAX, SLOTS_MAX, SLOTS_MIN};
use super::record::{Kind, USER_KINDS_MAX};
use super::ring::WhenFull;
use super::sys;
use std::fs::File;
use std::io;

/// Configuration of a recorder: its size, and the trace kinds that it records from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Maximum number of threads that record at one time, 1 to 64. Records of further threads are dropped and counted.
    /// Default: 16.
    pub threads_max: usize,
    /// Number of records in each thread's ring buffer, a power of two from 1,024 to 1,048,576. A record takes 64 bytes.
    /// Default: 4,096.
    pub records_per_thread: usize,
    /// What happens to a new record when its thread's ring buffer is full. Default: [`WhenFull::DropOldest`].
    pub when_full: WhenFull,
    /// Kinds that are recorded from the start. Default: [`Switches::USUAL`].
    pub kinds: Switches,
}

impl Default for RecorderConfig {
    /// Returns the default: 16 threads with 4,096 records each, 4 MiB, of which each thread takes 256 KiB when it
    /// starts to record.
    fn default() -> RecorderConfig {
        RecorderConfig {
            threads_max: 16,
            records_per_thread: 4096,
            when_full: WhenFull::DropOldest,
            kinds: Switches::USUAL,
        }
    }
}

impl RecorderConfig {
    /// Reads the recorder's configuration from the process's environment. The guard reads it as well, to size the
    /// recorder's memory:
    /// - `TASKD_TRACE_THREADS`: maximum number of threads that record at one time;
    /// - `TASKD_TRACE_RECORDS`: records per thread's ring, rounded up to an allowed number;
    /// - `TASKD_TRACE_FULL`: which records are dropped when a ring is full, `oldest` or `newest`;
    /// - `TASKD_TRACE`: the kinds recorded from the start: `on` (the default, [`Switches::USUAL`]), `all`, `off`, or a
    ///   comma-separated list of `step`, `dataloader`, `save_checkpoint`, `forward`, `communication`, `kernel`, `copy`,
    ///   `api`, `marker` and `user`; the names in a [switch document](crate::trace::switches) are accepted as well.
    ///
    /// Unset and invalid variables get the default: a bad environment must not stop training.
    #[must_use]
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> RecorderConfig {
        let usual = RecorderConfig::default();
        let number = |name| variable(name).and_then(|text| text.trim().parse::<usize>().ok());
        let records = number("TASKD_TRACE_RECORDS").filter(|records| (1..=SLOTS_MAX).contains(records));
        RecorderConfig {
            threads_max: number("TASKD_TRACE_THREADS")
                .filter(|threads| (1..=RINGS_MAX).contains(threads))
                .unwrap_or(usual.threads_max),
            records_per_thread: records
                .map_or(usual.records_per_thread, |records| records.next_power_of_two().max(SLOTS_MIN)),
            when_full: match variable("TASKD_TRACE_FULL").as_deref().map(str::trim) {
                Some("newest") => WhenFull::DropNewest,
                _ => usual.when_full,
            },
            kinds: variable("TASKD_TRACE").and_then(|text| Switches::of_text(&text)).unwrap_or(usual.kinds),
        }
    }

    /// Returns the length in bytes of the memory file that a recorder of this configuration needs.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        Layout::bytes(self.threads_max, self.records_per_thread)
    }

    /// Creates the memory of a recorder with this configuration: an anonymous file that cannot be shortened. A process
    /// that has to read the records after this process died must hold a descriptor of this file.
    ///
    /// # Errors
    /// Returns an error if the system cannot provide the memory.
    pub fn memory(&self) -> io::Result<File> {
        sys::sealed_memory(c"taskd-recorder", self.bytes())
    }
}

/// Set of the trace kinds that are to be recorded, with one bit per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches(u64);

impl Switches {
    /// The set of all trace kinds.
    pub const ALL: Switches = Switches(u64::MAX);
    /// The set of the trace kinds of negligible cost: all but those that need a vendor's trace interface
    /// ([`Kind::Kernel`], [`Kind::Copy`], [`Kind::Api`] and [`Kind::Marker`]).
    pub const USUAL: Switches =
        Switches::ALL.without(Kind::Kernel).without(Kind::Copy).without(Kind::Api).without(Kind::Marker);
    /// The empty set, without any trace kind.
    pub const NONE: Switches = Switches(0);

    /// Returns the set with this kind added.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Switches {
        Switches(self.0 | bit(kind))
    }

    /// Returns the set without this kind.
    #[must_use]
    pub const fn without(self, kind: Kind) -> Switches {
        Switches(self.0 & !bit(kind))
    }

    /// Returns true if the set contains the kind.
    #[must_use]
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & bit(kind) != 0
    }

    /// Parses a text such as `step,communication`; `None` if it has an unknown word.
    fn of_text(text: &str) -> Option<Switches> {
        match text.trim() {
            "on" => return Some(Switches::USUAL),
            "all" => return Some(Switches::ALL),
            "off" => return Some(Switches::NONE),
            _ => (),
        }
        text.split(',').try_fold(Switches::NONE, |so_far, word| {
            // The names of this variable, or those of a switch document.
            let word = word.trim().to_ascii_lowercase();
            Some(match word.as_str() {
                "step" => so_far.with(Kind::Step),
                "dataloader" => so_far.with(Kind::DataLoader),
                "save_checkpoint" | "savecheckpoint" => so_far.with(Kind::SaveCheckpoint),
                "forward" | "fp" => so_far.with(Kind::Forward),
                "communication" | "communicationoperator" => so_far.with(Kind::Communication),
                "kernel" => so_far.with(Kind::Kernel),
                "copy" => so_far.with(Kind::Copy),
                "api" => so_far.with(Kind::Api),
                "marker" => so_far.with(Kind::Marker),
                "user" => (0..USER_KINDS_MAX).fold(so_far, |all, which| all.with(Kind::User(which))),
                _ => return None,
            })
        })
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn of_bits(bits: u64) -> Switches {
        Switches(bits)
    }
}

/// Returns the bit of a kind in the switches.
#[inline]
pub(super) const fn bit(kind: Kind) -> u64 {
    1 << kind.number()
}
