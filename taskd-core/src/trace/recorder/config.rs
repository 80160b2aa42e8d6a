//! How a recorder is laid out, and what it records.
//!
//! It has no state: the switches of a recorder stand in its file.

use super::layout::{Layout, RINGS_MAX, SLOTS_MAX, SLOTS_MIN};
use super::record::{Kind, USER_KINDS_MAX};
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
            kinds: Switches::USUAL,
        }
    }
}

impl RecorderConfig {
    /// As the environment of the process says, which the guard reads before it starts it:
    /// - `TASKD_TRACE_THREADS`: threads that can record at one time;
    /// - `TASKD_TRACE_RECORDS`: records that a thread's ring holds, or the next more that it can;
    /// - `TASKD_TRACE_FULL`: which records go when a ring is full, the `oldest` or the `newest`;
    /// - `TASKD_TRACE`: what is recorded from the start: `on` (as by default: [`Switches::USUAL`]), `all`, `off`, or some of
    ///   `step`, `dataloader`, `save_checkpoint`, `forward`, `communication`, `kernel`, `copy`, `api`, `marker` and `user`,
    ///   with commas; the words of a [switch document](crate::trace::switches) mean the same.
    ///
    /// What is not set, or not understood, is as by default: an environment stops no training.
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
    /// Those that cost next to nothing: all but what a vendor's trace interface has to be asked for ([`Kind::Kernel`],
    /// [`Kind::Copy`], [`Kind::Api`] and [`Kind::Marker`]).
    pub const USUAL: Switches =
        Switches::ALL.without(Kind::Kernel).without(Kind::Copy).without(Kind::Api).without(Kind::Marker);
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

    /// Whether a kind is among them.
    #[must_use]
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & bit(kind) != 0
    }

    /// Those of a text such as `step,communication`; `None` if a word of it is not understood.
    fn of_text(text: &str) -> Option<Switches> {
        match text.trim() {
            "on" => return Some(Switches::USUAL),
            "all" => return Some(Switches::ALL),
            "off" => return Some(Switches::NONE),
            _ => (),
        }
        text.split(',').try_fold(Switches::NONE, |so_far, word| {
            // As they are written here, or as in a switch document.
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

/// A kind's bit in the switches.
#[inline]
pub(super) const fn bit(kind: Kind) -> u64 {
    1 << kind.number()
}
