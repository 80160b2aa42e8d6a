//! What a rank says about its failure: its error file, the end of its stderr, and what kind of error that is.
//!
//! It never decides what follows from an error, and looks at no process.

mod kind;
mod record;
mod stderr;

pub use kind::{ErrorKind, classify};
pub use record::{ErrorFileError, ErrorRecord, RECORD_BYTES_MAX, read_error_file};
pub use stderr::exception_in;

use taskd_core::job::{ErrorReport, Name};

/// The family of the reports made here.
pub const FAMILY: Name = Name::new("python");

/// How much of an exception's text a report carries, in characters.
const TEXT_CHARS_MAX: usize = 1000;

/// The report of a failure, from the record that the program wrote or else from the end of its stderr; `None` where
/// neither names an exception.
///
/// ```
/// use taskd_pytorch::error::report;
///
/// let tail = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nValueError: boom\n";
/// let report = report(None, tail).unwrap();
/// assert_eq!((report.code.as_str(), report.follow_up), ("ValueError", false));
/// ```
#[must_use]
pub fn report(record: Option<&ErrorRecord>, stderr_tail: &str) -> Option<ErrorReport> {
    let from_stderr = || exception_in(stderr_tail);
    let exception = record.map(|record| record.message.clone()).filter(|text| !text.is_empty()).or_else(from_stderr)?;
    let kind = classify(&exception);
    Some(ErrorReport {
        family: FAMILY,
        code: Name::from(type_name(&exception).to_owned()),
        text: exception.chars().take(TEXT_CHARS_MAX).collect(),
        follow_up: matches!(kind, ErrorKind::PeerLost | ErrorKind::Interrupted),
        retry_free: kind == ErrorKind::PortInUse,
        step: record.and_then(|record| record.step),
    })
}

/// `OutOfMemoryError` of `torch.OutOfMemoryError: CUDA out of memory`; the whole text where it names no type.
fn type_name(exception: &str) -> &str {
    let name = exception.split([':', '\n']).next().unwrap_or(exception).trim();
    name.rsplit('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_wins_over_stderr_and_carries_its_step() {
        let record = ErrorRecord { message: "ValueError: boom".into(), step: Some(7), ..ErrorRecord::default() };
        let report = report(Some(&record), "Traceback (most recent call last):\nKeyError: 'other'").unwrap();
        assert_eq!(
            (report.code.as_str(), report.text.as_str(), report.step),
            ("ValueError", "ValueError: boom", Some(7))
        );
        assert!(!report.follow_up && !report.retry_free);
    }

    #[test]
    fn a_lost_port_is_retried_free_and_a_lost_peer_is_a_follow_up() {
        let of = |message: &str| {
            let record = ErrorRecord { message: message.into(), ..ErrorRecord::default() };
            report(Some(&record), "").unwrap()
        };
        let port =
            of("DistNetworkError: The server socket has failed to listen on any local network address. port: 1, \
                       useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use");
        assert!(port.retry_free && !port.follow_up);
        let peer =
            of("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer");
        assert!(peer.follow_up && !peer.retry_free);
    }

    #[test]
    fn an_empty_record_and_a_silent_stderr_report_nothing() {
        assert_eq!(report(Some(&ErrorRecord::default()), "bye\n"), None);
        assert_eq!(report(None, ""), None);
    }

    #[test]
    fn the_type_is_the_last_part_of_its_path() {
        for (text, name) in [
            ("torch.OutOfMemoryError: CUDA out of memory", "OutOfMemoryError"),
            ("KeyboardInterrupt", "KeyboardInterrupt"),
            ("AssertionError\n", "AssertionError"),
            ("", ""),
        ] {
            assert_eq!(type_name(text), name);
        }
    }
}
