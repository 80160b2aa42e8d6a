//! Reads the output of Ascend's profilers: the directories `*_ascend_pt` of `torch_npu` and `*_ascend_ms` of MindSpore, one
//! for each rank.
//!
//! | file | content that is read |
//! |---|---|
//! | `profiler_info_{rank}.json` | the rank, from its name |
//! | `profiler_metadata.json` | process groups with their global ranks |
//! | `ASCEND_PROFILER_OUTPUT/step_trace_time.csv` | times of each step, in microseconds |
//! | `ASCEND_PROFILER_OUTPUT/kernel_details.csv` | kernels with their steps and streams |
//! | `ASCEND_PROFILER_OUTPUT/communication.json` | communication operators with waiting and transfer times |
//! | `ASCEND_PROFILER_OUTPUT/communication_matrix.json` | transfers over single links |
//! | `ASCEND_PROFILER_OUTPUT/memory_record.csv` | allocated memory over time; it is there if memory was profiled |
//!
//! A file that is absent or damaged is named among the missing parts of the trace; the others are still read. The
//! formats are those of msprof-analyze 26.2 and `torch_npu`; units stand with the functions.

mod communication;
mod dirs;
mod kernels;
mod matrix;
mod memory;
mod metadata;
mod step_trace;
#[cfg(test)]
mod tests;

pub use dirs::{RankDir, find};
pub use metadata::group_hash;
pub use step_trace::{ClusterRow, StepTimesRow, cluster_step_trace, read_step_trace};

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use taskd_core::analysis::model::{Event, Missing, RankTrace, StepSpan, Trace};

/// Maximum length in bytes of a JSON file that is read; a longer one is reported as missing.
pub const JSON_BYTES_MAX: u64 = 2 << 30;

/// Maximum number of events that are kept of one rank; further ones are counted, and reported as missing.
pub const EVENTS_MAX: usize = 4_000_000;

/// Reads the profiles of all ranks below a directory as one trace.
///
/// If a rank has several profiles, the newest counts, and the trace names the others as missing.
///
/// # Errors
/// Returns an error if the directory cannot be listed. Damaged files are no errors: see [`Trace::missing`].
pub fn read(dir: &Path) -> io::Result<Trace> {
    let (dirs, missing) = find(dir)?;
    let title = dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut trace = Trace { title, missing, ..Trace::default() };
    for of_rank in &dirs {
        let mut reading = Reading { rank: of_rank.rank, ..Reading::default() };
        reading.all(of_rank);
        trace.missing.append(&mut reading.missing);
        trace.ranks.insert(of_rank.rank, reading.trace);
    }
    trace.began_unix_ns = trace.ranks.values().filter_map(|rank| rank.events.first()).map(|e| e.start_ns).min();
    let began = trace.began_unix_ns.unwrap_or(0);
    for rank in trace.ranks.values_mut() {
        rank.events.iter_mut().for_each(|event| event.start_ns = event.start_ns.saturating_sub(began));
        rank.steps.iter_mut().for_each(|step| step.start_ns = step.start_ns.saturating_sub(began));
        rank.resources.shift(began.saturating_neg());
    }
    Ok(trace)
}

/// One rank while its files are read.
#[derive(Default)]
struct Reading {
    rank: u32,
    trace: RankTrace,
    missing: Vec<Missing>,
    /// First start and last end of the events of each step, in nanoseconds since 1970.
    steps: BTreeMap<u64, (i64, i64)>,
    /// The step of each of the trace's communications.
    steps_of_communications: Vec<Option<u64>>,
    left_out: u64,
}

impl Reading {
    fn all(&mut self, dir: &RankDir) {
        let output = dir.path.join(dirs::OUTPUT);
        self.part(&dir.path.join("profiler_metadata.json"), metadata::read);
        let known = self.part(&output.join("communication.json"), communication::read);
        self.part(&output.join("communication_matrix.json"), matrix::read);
        self.part(&output.join("kernel_details.csv"), |reading, file| kernels::read(reading, file, known));
        let memory = output.join("memory_record.csv");
        if memory.exists() {
            self.part(&memory, memory::read);
        }
        self.trace.events.sort_by_key(|event| event.start_ns);
        // A step lasts until the next one begins, so that no time of the device belongs to none.
        let starts: Vec<i64> = self.steps.values().map(|(start, _)| *start).skip(1).collect();
        for (at, (number, (start_ns, end))) in self.steps.iter().enumerate() {
            let end = starts.get(at).copied().unwrap_or(*end).max(*start_ns);
            let duration_ns = end.abs_diff(*start_ns);
            self.trace.steps.push(StepSpan { number: *number, start_ns: *start_ns, duration_ns });
        }
        if self.left_out > 0 {
            self.miss(format!("{} events were left out because the rank has too many", self.left_out));
        }
    }

    /// Reads one file. Returns true if it was read; otherwise its absence or damage is noted.
    fn part(&mut self, path: &Path, read: impl FnOnce(&mut Reading, File) -> Result<(), String>) -> bool {
        let opened = File::open(path).map_err(|error| error.to_string());
        match opened.and_then(|file| read(self, file)) {
            Ok(()) => true,
            Err(why) => {
                self.miss(format!("{} was not read: {why}", path.display()));
                false
            }
        }
    }

    fn miss(&mut self, what: String) {
        let what = format!("rank {}: {what}", self.rank);
        self.missing.push(Missing { rank: Some(self.rank), what });
    }

    /// Adds an event, and extends its step.
    fn add(&mut self, event: Event, step: Option<u64>) {
        if self.trace.events.len() >= EVENTS_MAX {
            self.left_out += 1;
            return;
        }
        if let Some(step) = step {
            let span = self.steps.entry(step).or_insert((event.start_ns, event.end_ns()));
            *span = (span.0.min(event.start_ns), span.1.max(event.end_ns()));
        }
        self.trace.events.push(event);
    }
}

/// Reads a JSON file into a type.
fn json<T: serde::de::DeserializeOwned>(file: File) -> Result<T, String> {
    let mut text = String::new();
    let read = file.take(JSON_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if read as u64 > JSON_BYTES_MAX {
        return Err(format!("it is longer than {JSON_BYTES_MAX} bytes"));
    }
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// Parses the number of a step, which is `3`, `step3` or `step 3`; a profile without steps has an empty field.
fn step_number(text: &str) -> Option<u64> {
    text.trim().trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}
