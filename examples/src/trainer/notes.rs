//! Messages of a rank on stderr.
//!
//! Printing never fails and never stops a rank: if stderr is closed, the messages are lost and training continues.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use super::error::TrainerError;

/// Prints one sentence on stderr. (`eprintln!` would panic if stderr is a closed pipe or a full disk.)
pub(super) fn say(rank: u32, sentence: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "rank {rank}: {sentence}");
}

/// Prints the error that ended a rank, with its causes, as one sentence on stderr. The rank may be unknown.
pub(super) fn say_error(rank: Option<u32>, error: &TrainerError) {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        sentence = format!("{sentence}: {error}");
        cause = error.source();
    }
    match rank {
        Some(rank) => say(rank, format_args!("{sentence}")),
        None => drop(writeln!(io::stderr(), "{sentence}")),
    }
}

/// Counts failures that training survives. Each kind is printed once and counted every time.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    counts: BTreeMap<(&'static str, io::ErrorKind), u64>,
}

impl Setbacks {
    /// Counts that rank 0 could not do `doing` ("write checkpoint") with `path`, and continues without it.
    pub(super) fn note(&mut self, doing: &'static str, path: &Path, error: &io::Error) {
        let count = self.counts.entry((doing, error.kind())).or_insert(0);
        *count += 1;
        if *count == 1 {
            say(0, format_args!("{}", setback(doing, path, error)));
        }
    }

    /// Returns the number of failures of all kinds.
    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// Returns the message: what failed, why, what to do about it, and how training continues.
fn setback(doing: &str, path: &Path, error: &io::Error) -> String {
    let way_out = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space there",
        io::ErrorKind::FileTooLarge => "raise the limit on file sizes (ulimit -f)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "make it writable",
        io::ErrorKind::NotFound => "create its directory again",
        _ => "check the disk",
    };
    let path = path.display();
    format!("cannot {doing} {path}: {error}; {way_out}: training continues, and counts further failures of this kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_kind_names_the_way_out() {
        let sentence =
            |errno| setback("write checkpoint", Path::new("/out/step-1.ckpt"), &io::Error::from_raw_os_error(errno));
        assert_eq!(
            sentence(libc::ENOSPC),
            "cannot write checkpoint /out/step-1.ckpt: No space left on device (os error 28); free some space there: \
             training continues, and counts further failures of this kind"
        );
        for (errno, way_out) in
            [(libc::EDQUOT, "free some space"), (libc::EROFS, "make it writable"), (libc::EIO, "check the disk")]
        {
            assert!(sentence(errno).contains(way_out), "{}", sentence(errno));
        }
    }

    #[test]
    fn every_failure_is_counted() {
        let mut setbacks = Setbacks::default();
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let gone = io::Error::from(io::ErrorKind::NotFound);
        for error in [&full, &full, &gone] {
            setbacks.note("write checkpoint", Path::new("step-1.ckpt"), error);
        }
        assert_eq!((setbacks.total(), setbacks.counts.len()), (3, 2));
    }
}
