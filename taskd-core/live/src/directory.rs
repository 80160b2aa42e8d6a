//! The run of a supervisor that stores its records: the trace store of its ranks, and its logs.

use crate::reading::{ReadError, RunSource};
use crate::{incidents, stores};
use std::path::PathBuf;
use taskd_analysis::document::Analysis;
use taskd_analysis::model::Missing;
use taskd_analysis::{Settings, analyze};

/// Bytes of a trace store that one reading takes by default: about three million records.
pub const BYTES_MAX: u64 = 64 << 20;

/// Reads a run from the files of its supervisor, while that writes them.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    title: String,
    stores: Vec<PathBuf>,
    logs: Vec<PathBuf>,
    bytes_max: u64,
}

impl RunDirectory {
    /// Returns a run without files. `title`: name of the run on the page.
    #[must_use]
    pub fn new(title: impl Into<String>) -> RunDirectory {
        RunDirectory { title: title.into(), stores: Vec::new(), logs: Vec::new(), bytes_max: BYTES_MAX }
    }

    /// Adds the directory of a task in a trace store: `root` and `task` of
    /// [`StoreConfig`](taskd_runtime::trace::store::StoreConfig), joined. It need not exist yet.
    #[must_use]
    pub fn with_store(mut self, task: impl Into<PathBuf>) -> RunDirectory {
        self.stores.push(task.into());
        self
    }

    /// Adds the directory of a supervisor's journal, from which the incidents are read.
    #[must_use]
    pub fn with_log(mut self, dir: impl Into<PathBuf>) -> RunDirectory {
        self.logs.push(dir.into());
        self
    }

    /// Sets the bytes of the store that one reading takes, the newest files first. Default: [`BYTES_MAX`].
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> RunDirectory {
        self.bytes_max = bytes_max;
        self
    }
}

impl RunSource for RunDirectory {
    fn read(&mut self) -> Result<Analysis, ReadError> {
        let mut ranks = std::collections::BTreeMap::new();
        for task in &self.stores {
            let found =
                stores::ranks_of(task).map_err(|error| format!("{} cannot be read: {error}", task.display()))?;
            for (rank, mut dirs) in found {
                ranks.entry(rank).or_insert_with(Vec::new).append(&mut dirs);
            }
        }
        let mut trace = stores::read_running(&ranks, &self.title, self.bytes_max)?;
        let mut sources = vec!["taskd store".to_owned()];
        let mut found = Vec::new();
        for dir in &self.logs {
            let of_log = incidents::read(dir)?;
            found.extend(of_log.incidents);
            trace.missing.extend(of_log.missing.into_iter().map(|what| Missing { rank: None, what }));
        }
        if !self.logs.is_empty() {
            sources.push("logs of a supervisor".to_owned());
        }
        incidents::on_axis(&mut found, &mut trace);
        Ok(analyze(&trace, &Settings { sources, incidents: found, ..Settings::default() }))
    }
}
