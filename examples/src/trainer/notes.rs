//! What a rank says on stderr.
//!
//! Saying something never fails and never stops a rank: a rank whose stderr leads nowhere trains on in silence.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use super::error::TrainerError;

/// One sentence on stderr. (`eprintln!` would panic where stderr is a closed pipe or a full disk.)
pub(super) fn say(rank: u32, sentence: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "rank {rank}: {sentence}");
}

/// What ended a rank, with its causes, as one sentence on stderr. The rank may be unknown.
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

/// Failures that training survives. Each kind is said once and counted every time.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    counts: BTreeMap<(&'static str, io::ErrorKind), u64>,
}

impl Setbacks {
    /// Rank 0 could not do what `doing` says ("write checkpoint") with `path`, and goes on without.
    pub(super) fn note(&mut self, doing: &'static str, path: &Path, error: &io::Error) {
        let count = self.counts.entry((doing, error.kind())).or_insert(0);
        *count += 1;
        if *count == 1 {
            let path = path.display();
            say(0, format_args!("cannot {doing} {path}: {error}; training goes on and counts failures of this kind"));
        }
    }

    /// How often something failed, whatever it was.
    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
