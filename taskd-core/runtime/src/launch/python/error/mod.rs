//! The traces of a Python program's failure: its error record, and the exception at the end of its stderr.
//!
//! This module does not interpret exceptions; the framework does.

mod record;
mod stderr;

pub use record::{ErrorFileError, ErrorRecord, RECORD_BYTES_MAX, read_error_file};
pub use stderr::exception_in;

use crate::job::{ErrorReport, Name, ProcId};

/// Family of the error reports about Python exceptions.
pub const FAMILY: Name = Name::new("python");

/// Maximum length of the exception's text in a report, in characters.
const TEXT_CHARS_MAX: usize = 1000;

/// Traces that a failed process has left: its error file and its standard error.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// Id of the failed process.
    pub proc: &'a ProcId,
    /// Content of the error file of the process, if it wrote one.
    pub record: Option<&'a ErrorRecord>,
    /// Last lines of the standard error of the process.
    pub stderr_tail: &'a str,
}

impl<'a> Failure<'a> {
    /// Creates a failure from its parts, as the launcher does when a process has failed. Meant for tests of a
    /// [`Framework`](super::Framework).
    #[must_use]
    pub const fn new(proc: &'a ProcId, record: Option<&'a ErrorRecord>, stderr_tail: &'a str) -> Failure<'a> {
        Failure { proc, record, stderr_tail }
    }

    /// Returns the exception that ended the process, as its type, a colon and its text: from the error file, otherwise
    /// from stderr.
    #[must_use]
    pub fn exception(&self) -> Option<String> {
        self.recorded().or_else(|| exception_in(self.stderr_tail))
    }

    /// Returns the exception in the error file, as its type, a colon and its text; `None` if there is no error file, or
    /// if the file contains no exception.
    #[must_use]
    pub fn recorded(&self) -> Option<String> {
        self.record.map(|record| record.message.clone()).filter(|text| !text.is_empty())
    }
}

/// Creates the error report of an exception, which is passed as its type, a colon and its text. The report states that
/// the process itself is at fault, not another process, and names no step.
///
/// ```
/// use taskd_core::launch::python::report_of;
///
/// let report = report_of("some.module.OutOfMemoryError: no more");
/// assert_eq!((report.code.as_str(), report.follow_up), ("OutOfMemoryError", false));
/// ```
#[must_use]
pub fn report_of(exception: &str) -> ErrorReport {
    ErrorReport::new(
        FAMILY,
        Name::from(type_name(exception).to_owned()),
        exception.chars().take(TEXT_CHARS_MAX).collect::<String>(),
    )
}

/// Returns `OutOfMemoryError` for `some.module.OutOfMemoryError: no more`, and the whole text if it contains no type.
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
