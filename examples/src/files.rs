//! The records of a training in files: stored while it runs, and exported into one file for ui.perfetto.dev afterwards.
//!
//! It does not interpret records.

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
/// Time limit for writing the last records to disk.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// A store that writes records below a directory.
#[derive(Debug)]
pub struct Files {
    store: Arc<TraceStore>,
    dir: PathBuf,
}

/// The written files.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Records in the native format.
    pub records: u64,
    /// Bytes of a record in the native format.
    pub bytes_per_record: f64,
    /// Bytes of a record as a line of JSON.
    pub jsonl_bytes_per_record: f64,
    /// Records that were dropped because there was no room.
    pub dropped: u64,
    /// Ranges in the file for Perfetto.
    pub ranges: u64,
    /// The path of that file.
    pub perfetto: PathBuf,
}

impl Files {
    /// Starts to store in both formats below a directory.
    ///
    /// # Errors
    /// The store's thread cannot be started.
    pub fn begin(dir: &Path) -> Result<Files, Failure> {
        let config = StoreConfig { formats: Format::ALL.to_vec(), ..StoreConfig::new(dir.join("records"), TASK) };
        Ok(Files { store: Arc::new(TraceStore::open(config)?), dir: dir.to_owned() })
    }

    /// Returns the sink that passes records to the store.
    #[must_use]
    pub fn sink(&self) -> impl TraceSink + use<> {
        let store = Arc::clone(&self.store);
        move |batch: &Arc<RecordBatch>| {
            store.append(Arc::clone(batch)); // the store counts what it drops
        }
    }

    /// Returns the directory in which each rank has a directory of records.
    #[must_use]
    pub fn records(&self) -> PathBuf {
        self.dir.join("records").join(TASK)
    }

    /// Waits for the disk, and exports the stored records into the file for Perfetto.
    ///
    /// # Errors
    /// The records cannot be written or read.
    pub fn finish(self) -> Result<Written, Failure> {
        if !self.store.flush(WRITTEN_WITHIN) {
            return Err(format!("the records were not written within {WRITTEN_WITHIN:?}").into());
        }
        let perfetto = self.dir.join("trace.pftrace");
        let ranges = export(&self.records(), &perfetto)?;
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

/// Exports all native files of a task's ranks into one for Perfetto. Returns the number of ranges in it.
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
