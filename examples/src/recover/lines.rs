//! What the script writes of its steps: one file for each process, a line for each step that it has completed.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A completed step.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    /// When, on the machine's monotonic clock, in seconds.
    pub(crate) t: f64,
    /// Which.
    pub(crate) step: u64,
    /// What its forward pass came to, if this process has computed it: one that is new has not.
    pub(crate) loss: Option<f64>,
    /// What the next step depends on: model, optimizer and random numbers. Not for large ones.
    pub(crate) sha256: Option<String>,
}

/// The completed steps of each rank, in the order of their times.
pub(crate) fn read(dir: &Path) -> BTreeMap<u32, Vec<Line>> {
    let mut ranks: BTreeMap<u32, Vec<Line>> = BTreeMap::new();
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let rank = name.strip_prefix("steps.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let (Some(rank), Ok(text)) = (rank, fs::read_to_string(file.path())) else { continue };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        ranks.entry(rank).or_default().extend(lines);
    }
    ranks.values_mut().for_each(|lines| lines.sort_by(|a, b| a.t.total_cmp(&b.t)));
    ranks
}

/// The machine's monotonic clock, in seconds, as Python tells it.
pub(crate) fn now() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
