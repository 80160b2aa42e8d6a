//! The files of one rank in one format, one after the other.
//!
//! It appends whole batches or nothing, as far as the disk lets it, and never fails for good: with the next batch it tries
//! again.

use super::compatible::CompatibleWriter;
use super::files::{self, Format, RankFiles};
use super::native::{NativeHead, NativeWriter};
use super::quota::Quota;
use crate::trace::RecordBatch;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where and how a rank's records are written.
#[derive(Debug)]
pub(super) struct Lane {
    dir: RankDir,
    open: Option<Open>,
    /// Records that were lost since one was last written.
    lost: u64,
}

/// What a lane needs to know of the store.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) task: &'a str,
    /// A longer file takes no more.
    pub(super) file_bytes: u64,
    /// Seconds since 1970.
    pub(super) now: u64,
    pub(super) quota: &'a mut Quota,
}

/// A rank's directory, as far as one format goes.
#[derive(Debug)]
struct RankDir {
    format: Format,
    path: PathBuf,
    /// Whether it was looked at.
    is_known: bool,
    /// The newest file's seconds.
    newest: Option<u64>,
}

/// A file that takes records.
#[derive(Debug)]
struct Open {
    seconds: u64,
    path: PathBuf,
    /// Its length before the writer got it.
    before: u64,
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    Native(Box<NativeWriter<File>>),
    Compatible(CompatibleWriter<File>),
}

/// What a write came to.
#[derive(Debug, Default)]
pub(super) struct Appended {
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// A file was begun for it.
    pub(super) is_new_file: bool,
    /// The file before was removed by somebody.
    pub(super) was_removed: bool,
    /// Why it was not written, and so many records are lost.
    pub(super) error: Option<io::Error>,
    pub(super) lost: u64,
}

impl Lane {
    pub(super) const fn new(format: Format, dir: PathBuf) -> Lane {
        let dir = RankDir { format, path: dir, is_known: false, newest: None };
        Lane { dir, open: None, lost: 0 }
    }

    /// Appends a batch. What was lost before is told in it.
    pub(super) fn append(&mut self, batch: &mut RecordBatch, context: &mut Context<'_>) -> Appended {
        let mut appended = Appended::default();
        let lost = batch.lost;
        batch.lost = lost.saturating_add(self.lost);
        let written = self.write(batch, context, &mut appended);
        batch.lost = lost;
        let records = batch.records.len() as u64;
        match written {
            Ok(()) => {
                self.lost = 0;
                appended.records = records;
            }
            Err(error) => {
                self.lost = self.lost.saturating_add(lost).saturating_add(records);
                (appended.lost, appended.error) = (records, Some(error));
            }
        }
        context.quota.add(appended.bytes);
        appended
    }

    fn write(&mut self, batch: &RecordBatch, context: &mut Context<'_>, told: &mut Appended) -> io::Result<()> {
        if let Some(open) = self.open.take_if(|open| open.is_removed()) {
            context.quota.lose(open.bytes());
            told.was_removed = true;
        }
        if self.open.as_ref().is_some_and(|open| open.bytes() > context.file_bytes) {
            self.close(context.quota);
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let open = none.insert(self.dir.begin(batch, context)?);
                told.is_new_file = open.before == 0;
                told.bytes = open.writer.written();
                open
            }
        };
        let before = open.bytes();
        let written = open.writer.append(batch);
        told.bytes += open.bytes() - before;
        if written.is_err() && open.writer.file().set_len(open.bytes()).is_err() {
            self.close(context.quota); // with a torn end, which readers tell
        }
        written
    }

    /// Takes no more records for now: the file is complete.
    pub(super) fn close(&mut self, quota: &mut Quota) {
        if let Some(open) = self.open.take() {
            let bytes = open.bytes();
            quota.close(open.seconds, open.path, bytes);
        }
    }
}

impl RankDir {
    /// The next file: in the compatible format at first the newest one of an earlier start, if it has room.
    fn begin(&mut self, batch: &RecordBatch, context: &mut Context<'_>) -> io::Result<Open> {
        if let Some(task) = self.path.parent() {
            files::make_dir(task)?;
        }
        files::make_dir(&self.path)?;
        if !self.is_known {
            self.look()?;
            if self.format == Format::Compatible
                && let Some(seconds) = self.newest
                && let Ok(Some(open)) = go_on(&self.path, seconds, context.file_bytes)
            {
                let known = context.quota.reopen(seconds, &open.path);
                context.quota.add(open.before.saturating_sub(known));
                return Ok(open);
            }
        }
        let none_left = || io::Error::other("the newest file has the greatest number that a name can have: remove it");
        let seconds = files::next_seconds(context.now, self.newest).ok_or_else(none_left)?;
        let path = self.path.join(self.format.name(seconds));
        let file = files::open_to_append(&path, true)?;
        let writer = match self.format {
            Format::Compatible => Ok(Writer::Compatible(CompatibleWriter::new(file))),
            Format::Native => {
                let head = NativeHead { job: context.task.to_owned(), origin: batch.origin };
                NativeWriter::create(file, &head).map(|writer| Writer::Native(Box::new(writer)))
            }
        };
        if writer.is_err() {
            let _ = std::fs::remove_file(&path); // not even its head: no file rather than an empty one
        }
        let open = Open { seconds, path, before: 0, writer: writer? };
        self.newest = Some(seconds);
        Ok(open)
    }

    fn look(&mut self) -> io::Result<()> {
        let files = RankFiles::list(&self.path)?.files;
        self.newest = files.iter().filter(|file| file.format == self.format).map(|file| file.seconds).max();
        self.is_known = true;
        Ok(())
    }
}

/// A file of lines from an earlier start, if it has room.
fn go_on(dir: &Path, seconds: u64, file_bytes: u64) -> io::Result<Option<Open>> {
    let path = dir.join(Format::Compatible.name(seconds));
    let mut file = files::open_to_append(&path, false)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > file_bytes {
        return Ok(None);
    }
    let mut before = metadata.len();
    if before > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?; // a torn line costs itself only
            before += 1;
        }
    }
    Ok(Some(Open { seconds, path, before, writer: Writer::Compatible(CompatibleWriter::new(file)) }))
}

impl Open {
    fn bytes(&self) -> u64 {
        self.before + self.writer.written()
    }

    fn is_removed(&self) -> bool {
        self.writer.file().metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
}

impl Writer {
    fn append(&mut self, batch: &RecordBatch) -> io::Result<()> {
        match self {
            Writer::Native(writer) => writer.append(batch),
            Writer::Compatible(writer) => writer.append(batch),
        }
    }

    const fn written(&self) -> u64 {
        match self {
            Writer::Native(writer) => writer.written(),
            Writer::Compatible(writer) => writer.written(),
        }
    }

    const fn file(&self) -> &File {
        match self {
            Writer::Native(writer) => writer.get_ref(),
            Writer::Compatible(writer) => writer.get_ref(),
        }
    }
}
