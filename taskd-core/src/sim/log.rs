//! The log of a job, as bytes: the meta-test compares two of them, the replay test reads one back. It has the form that decisions
//! have in a journal, by name.

use super::{PluginMaker, SimConfig, with_saboteur};
use crate::job::JobTime;
use crate::kernel::{Command, Input, Kernel};
use serde::{Deserialize, Serialize};

/// What happened to the kernel.
#[derive(Deserialize)]
enum Entry {
    /// It took an input. Its commands stand behind it.
    Step(JobTime, Input),
    /// It went on in another process.
    Restored,
}

/// The same, borrowed.
#[derive(Serialize)]
enum EntryRef<'a> {
    Step(JobTime, &'a Input),
    Restored,
}

/// How much of a job is kept.
#[derive(Debug)]
pub(super) enum Log {
    /// Nothing: the seed brings it back.
    Off,
    /// All of it, as bytes.
    Bytes(Vec<u8>),
    /// Its last lines, for people.
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

    /// Notes what was done to the world.
    pub(super) fn note(&mut self, now: JobTime, what: impl FnOnce() -> String) {
        if let Log::Lines(lines, _) = self {
            lines.push(format!("{now} ** {}", what()));
        }
    }

    pub(super) fn restored(&mut self) {
        match self {
            Log::Off => {}
            Log::Bytes(bytes) => append(bytes, &EntryRef::Restored),
            Log::Lines(lines, _) => lines.push("the supervisor was killed and another one goes on".into()),
        }
    }
}

fn append(bytes: &mut Vec<u8>, entry: &(impl Serialize + ?Sized)) {
    let written = entry.serialize(&mut rmp_serde::Serializer::new(bytes).with_struct_map());
    written.expect("a vector takes all that is written, and inputs and commands can be written");
}

/// Gives what was logged to a kernel of its own. Returns the first step at which it commands something else.
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
