//! The records of a training in files: stored while it runs, and made into one for ui.perfetto.dev afterwards.
//!
//! It looks into no record.

use crate::program::Failure;
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::Rank;
use taskd_core::trace::export::perfetto::PerfettoWriter;
use taskd_core::trace::store::{Format, RankFiles, StoreConfig, TraceStore};
use taskd_core::trace::{RecordBatch, TraceSink};

const TASK: &str = "trace-pytorch";
/// How long what was recorded last may take to reach the disk.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// Records on their way to a directory.
#[derive(Debug)]
pub struct Files {
    store: Arc<TraceStore>,
    dir: PathBuf,
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Records in the native format.
    pub records: u64,
    /// What one of them takes there, in bytes.
    pub bytes_per_record: f64,
    /// What one of them takes as a line of JSON, in bytes.
    pub jsonl_bytes_per_record: f64,
    /// Records that found no room.
    pub dropped: u64,
    /// Ranges in the file for Perfetto.
    pub ranges: u64,
    /// That file.
    pub perfetto: PathBuf,
}

impl Files {
    /// Begins to store in both formats below a directory.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn begin(dir: &Path) -> Result<Files, Failure> {
        let config = StoreConfig { formats: Format::ALL.to_vec(), ..StoreConfig::new(dir.join("records"), TASK) };
        Ok(Files { store: Arc::new(TraceStore::open(config)?), dir: dir.to_owned() })
    }

    /// What gives it the records.
    #[must_use]
    pub fn sink(&self) -> impl TraceSink + use<> {
        let store = Arc::clone(&self.store);
        move |batch: &Arc<RecordBatch>| {
            store.append(Arc::clone(batch)); // what finds no room is counted there
        }
    }

    /// Waits for the disk, and makes the file for Perfetto of what it has.
    ///
    /// # Errors
    /// When the records cannot be written or read.
    pub fn finish(self) -> Result<Written, Failure> {
        if !self.store.flush(WRITTEN_WITHIN) {
            return Err(format!("the records were not written within {WRITTEN_WITHIN:?}").into());
        }
        let perfetto = self.dir.join("trace.pftrace");
        let ranges = export(&self.dir.join("records").join(TASK), &perfetto)?;
        let status = self.store.status();
        if let Some(trouble) = status.last_error {
            return Err(trouble.into());
        }
        let each = |bytes: u64, records: u64| bytes as f64 / records.max(1) as f64;
        Ok(Written {
            records: status.native.records,
            bytes_per_record: each(status.native.bytes, status.native.records),
            jsonl_bytes_per_record: each(status.compatible.bytes, status.compatible.records),
            dropped: status.dropped,
            ranges,
            perfetto,
        })
    }
}

/// All native files of a task's ranks, as one for Perfetto. Returns the ranges in it.
fn export(task: &Path, to: &Path) -> Result<u64, Failure> {
    let mut writer = PerfettoWriter::new(File::create(to)?);
    for entry in fs::read_dir(task)? {
        let entry = entry?;
        let Some(rank) = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(Rank) else { continue };
        for file in RankFiles::list(&entry.path())?.files.iter().filter(|file| file.format == Format::Native) {
            let mut batches = file.read(rank)?;
            batches.by_ref().try_for_each(|batch| writer.batch(&batch))?;
            if !batches.skipped().is_empty() {
                println!("{} is incomplete: {:?}", file.path.display(), batches.skipped());
            }
        }
    }
    Ok(writer.finish()?.1.ranges)
}
