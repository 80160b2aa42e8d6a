//! The files of one rank in one format, written one after the other.
//!
//! A batch is appended completely or not at all; if a failed write cannot be undone either, the file is closed with a
//! torn end. No error is permanent: the next batch is tried again.

use super::compatible::CompatibleWriter;
use super::files::{self, Format, RankFiles};
use super::native::{NativeHead, NativeWriter};
use super::quota::Quota;
use crate::trace::RecordBatch;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Writer of one rank's records in one format.
#[derive(Debug)]
pub(super) struct Lane {
    dir: RankDir,
    open: Option<Open>,
    /// Records lost since the last successful write.
    lost: u64,
}

/// State of the store that a lane needs.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) task: &'a str,
    /// A file longer than this takes no more records.
    pub(super) file_bytes: u64,
    /// Current time in seconds since 1970.
    pub(super) now: u64,
    pub(super) quota: &'a mut Quota,
}

/// A rank's directory, for one format.
#[derive(Debug)]
struct RankDir {
    format: Format,
    path: PathBuf,
    /// True if the directory was listed.
    is_known: bool,
    /// Seconds in the name of the newest file.
    newest: Option<u64>,
}

/// A file that takes records.
#[derive(Debug)]
struct Open {
    seconds: u64,
    path: PathBuf,
    /// Length before this writer opened it.
    before: u64,
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    Native(Box<NativeWriter<File>>),
    Compatible(CompatibleWriter<File>),
}

/// Result of a write.
#[derive(Debug, Default)]
pub(super) struct Appended {
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// True if a file was created for it.
    pub(super) is_new_file: bool,
    /// True if the previous file was deleted by another process.
    pub(super) was_removed: bool,
    /// Error that prevented the write, and the number of records lost by it.
    pub(super) error: Option<io::Error>,
    pub(super) lost: u64,
}

impl Lane {
    pub(super) const fn new(format: Format, dir: PathBuf) -> Lane {
        let dir = RankDir { format, path: dir, is_known: false, newest: None };
        Lane { dir, open: None, lost: 0 }
    }

    /// Appends a batch. Earlier losses are recorded in it.
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

    fn write(&mut self, batch: &RecordBatch, context: &mut Context<'_>, appended: &mut Appended) -> io::Result<()> {
        if let Some(open) = self.open.take_if(|open| open.is_removed()) {
            context.quota.lose(open.bytes());
            appended.was_removed = true;
        }
        if self.open.as_ref().is_some_and(|open| open.bytes() > context.file_bytes) {
            self.close(context.quota);
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let open = none.insert(self.dir.begin(batch, context)?);
                appended.is_new_file = open.before == 0;
                appended.bytes = open.writer.written();
                open
            }
        };
        let before = open.bytes();
        let written = open.writer.append(batch);
        appended.bytes += open.bytes() - before;
        if written.is_err() && open.writer.file().set_len(open.bytes()).is_err() {
            self.close(context.quota); // leaves a torn end, which readers report
        }
        written
    }

    /// Closes the current file, which is then complete.
    pub(super) fn close(&mut self, quota: &mut Quota) {
        if let Some(open) = self.open.take() {
            let bytes = open.bytes();
            quota.close(open.seconds, open.path, bytes);
        }
    }
}

impl RankDir {
    /// Opens the next file. In the compatible format, the first one is the newest file of an earlier start if it has
    /// room.
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
            let _ = std::fs::remove_file(&path); // no file rather than an empty one without a head
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

/// Opens a compatible file of an earlier start, if it has room.
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
            file.write_all(b"\n")?; // so that a torn line invalidates no other line
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
