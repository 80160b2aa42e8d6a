//! What a Python program leaves behind when it fails: its error record, and the exception at the end of its stderr.
//!
//! It judges no exception: what one is a sign of is the framework's knowledge.

mod record;
mod stderr;

pub use record::{ErrorFileError, ErrorRecord, RECORD_BYTES_MAX, read_error_file};
pub use stderr::exception_in;

use crate::job::{ErrorReport, Name, ProcId};

/// The family of reports about Python exceptions.
pub const FAMILY: Name = Name::new("python");

/// How much of an exception's text a report carries, in characters.
const TEXT_CHARS_MAX: usize = 1000;

/// What a failed process has left.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// The process.
    pub proc: &'a ProcId,
    /// What it wrote to its error file, if it did.
    pub record: Option<&'a ErrorRecord>,
    /// The last lines that it wrote to stderr.
    pub stderr_tail: &'a str,
}

impl<'a> Failure<'a> {
    /// A failure as the launcher tells of it, for tests of a framework.
    #[must_use]
    pub const fn new(proc: &'a ProcId, record: Option<&'a ErrorRecord>, stderr_tail: &'a str) -> Failure<'a> {
        Failure { proc, record, stderr_tail }
    }

    /// The exception that ended it, as its type, a colon and its text: as the record has it, else as stderr shows it.
    #[must_use]
    pub fn exception(&self) -> Option<String> {
        self.recorded().or_else(|| exception_in(self.stderr_tail))
    }

    /// The exception as the record has it; `None` also for a record that names none.
    #[must_use]
    pub fn recorded(&self) -> Option<String> {
        self.record.map(|record| record.message.clone()).filter(|text| !text.is_empty())
    }
}

/// The report of an exception, given as its type, a colon and its text: nobody else's fault, and nothing about its step.
///
/// ```
/// use taskd_core::launch::python::report_of;
///
/// let report = report_of("some.module.OutOfMemoryError: no more");
/// assert_eq!((report.code.as_str(), report.follow_up), ("OutOfMemoryError", false));
/// ```
#[must_use]
pub fn report_of(exception: &str) -> ErrorReport {
    ErrorReport {
        family: FAMILY,
        code: Name::from(type_name(exception).to_owned()),
        text: exception.chars().take(TEXT_CHARS_MAX).collect(),
        follow_up: false,
        retry_free: false,
        step: None,
    }
}

/// `OutOfMemoryError` of `some.module.OutOfMemoryError: no more`; the whole text where it names no type.
#[must_use]
pub fn type_name(exception: &str) -> &str {
    let name = exception.split([':', '\n']).next().unwrap_or(exception).trim();
    name.rsplit('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_wins_over_stderr_unless_it_is_empty() {
        let proc = ProcId::rank(0, 1);
        let empty = ErrorRecord::default();
        let record = ErrorRecord { message: "ValueError: boom".into(), ..ErrorRecord::default() };
        let tail = "Traceback (most recent call last):\nKeyError: 'other'";
        let left = |record| Failure::new(&proc, record, tail).exception();
        assert_eq!(left(Some(&record)).as_deref(), Some("ValueError: boom"));
        assert_eq!(left(Some(&empty)).as_deref(), Some("KeyError: 'other'"));
        assert_eq!(left(None).as_deref(), Some("KeyError: 'other'"));
    }

    #[test]
    fn the_type_is_the_last_part_of_its_path() {
        for (text, name) in [
            ("some.module.OutOfMemoryError: no more", "OutOfMemoryError"),
            ("KeyboardInterrupt", "KeyboardInterrupt"),
            ("AssertionError\n", "AssertionError"),
            ("", ""),
        ] {
            assert_eq!(type_name(text), name);
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(report_of(&"é".repeat(5000)).text.chars().count(), TEXT_CHARS_MAX);
    }
}
