//! Reading of a stored file in either format.

use super::compatible::CompatibleReader;
use super::files::{self, Format, StoredFile};
use super::native::NativeReader;
use super::skipped::Skipped;
use crate::job::Rank;
use crate::trace::RecordBatch;
use std::fs::File;
use std::io;

/// Iterator over the batches of one stored file.
#[derive(Debug)]
pub struct StoredReader(Reader);

#[derive(Debug)]
enum Reader {
    Native(NativeReader<File>),
    Compatible(CompatibleReader<File>),
}

impl StoredFile {
    /// Opens the file to read its trace records as records of `rank`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or is not a regular file. [`StoredReader::skipped`] lists
    /// problems in the contents of the file.
    pub fn read(&self, rank: Rank) -> io::Result<StoredReader> {
        let file = files::open_to_read(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a file", self.path.display())));
        }
        Ok(StoredReader(match self.format {
            Format::Native => Reader::Native(NativeReader::new(file)),
            Format::Compatible => Reader::Compatible(CompatibleReader::new(file, rank)),
        }))
    }
}

impl StoredReader {
    /// Returns the parts of the file that this reader has skipped so far; complete once there are no more batches.
    #[must_use]
    pub const fn skipped(&self) -> &Skipped {
        match &self.0 {
            Reader::Native(reader) => reader.skipped(),
            Reader::Compatible(reader) => reader.skipped(),
        }
    }
}

impl Iterator for StoredReader {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        match &mut self.0 {
            Reader::Native(reader) => reader.next(),
            Reader::Compatible(reader) => reader.next(),
        }
    }
}
