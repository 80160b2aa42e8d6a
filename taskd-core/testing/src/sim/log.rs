//! The log of a job, as bytes: the meta-test compares two logs, the replay test reads one back. Its format is that of
//! decisions in a journal, with names.

use super::{PluginMaker, SimConfig, with_saboteur};
use crate::job::JobTime;
use crate::kernel::{Command, Input, Kernel};
use serde::{Deserialize, Serialize};

/// An event of the kernel.
#[derive(Deserialize)]
enum Entry {
    /// The kernel received an input. Its commands follow.
    Step(JobTime, Input),
    /// The kernel was restored in another process.
    Restored,
}

/// The same, borrowed.
#[derive(Serialize)]
enum EntryRef<'a> {
    Step(JobTime, &'a Input),
    Restored,
}

/// The part of a job that is kept.
#[derive(Debug)]
pub(super) enum Log {
    /// Nothing is kept: the seed reproduces the log.
    Off,
    /// The whole log, as bytes.
    Bytes(Vec<u8>),
    /// The last lines, in readable form, and the maximum number of lines that are kept.
    Lines(Vec<String>, usize),
}

impl Log {
    pub(super) fn entry(&mut self, now: JobTime, input: &Input, commands: &[Command]) {
        match self {
            Log::Off => {}
            Log::Bytes(bytes) => {
                append(bytes, &EntryRef::Step(now, input));
                append(bytes, commands);
            }
            Log::Lines(lines, most) => super::narrate::step(lines, *most, now, input, commands),
        }
    }

    /// Records what was done to the world.
    pub(super) fn note(&mut self, now: JobTime, what: impl FnOnce() -> String) {
        if let Log::Lines(lines, _) = self {
            lines.push(format!("{now} ** {}", what()));
        }
    }

    pub(super) fn restored(&mut self) {
        match self {
            Log::Off => {}
            Log::Bytes(bytes) => append(bytes, &EntryRef::Restored),
            Log::Lines(lines, _) => lines.push("the supervisor was killed and another one continues".into()),
        }
    }
}

fn append(bytes: &mut Vec<u8>, entry: &(impl Serialize + ?Sized)) {
    let written = entry.serialize(&mut rmp_serde::Serializer::new(bytes).with_struct_map());
    written.expect("a vector takes all that is written, and inputs and commands can be written");
}

/// Passes the logged inputs to a new kernel. Returns the first step at which its commands differ.
pub(super) fn replay(bytes: &[u8], config: &SimConfig, plugins: &PluginMaker<'_>) -> Result<(), String> {
    let mut kernel = Kernel::new(with_saboteur(plugins)).with_checks(config.checks.clone());
    let mut rest = bytes;
    while !rest.is_empty() {
        let entry = Entry::deserialize(&mut rmp_serde::Deserializer::new(&mut rest));
        match entry.map_err(|e| format!("the log is not readable: {e}"))? {
            Entry::Step(now, input) => {
                let mut again = Vec::new();
                append(&mut again, &kernel.step(now, &input));
                let differs = || format!("{} at {now} gives other commands", kernel.seq());
                rest = rest.strip_prefix(&again[..]).ok_or_else(differs)?;
            }
            Entry::Restored => {
                let (restored, _cold) =
                    Kernel::restore(with_saboteur(plugins), &kernel.snapshot()).map_err(|(e, _)| e.to_string())?;
                kernel = restored.with_checks(config.checks.clone());
            }
        }
    }
    Ok(())
}
