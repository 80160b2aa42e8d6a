//! Interprets a rank's failure: its error file, the end of its stderr, and the kind of the error.
//!
//! This module only classifies: it makes no recovery decision and looks at no process.

mod kind;
mod memory;

pub use kind::{ErrorKind, classify};
pub use taskd_core::launch::python::{ErrorFileError, ErrorRecord, FAMILY, RECORD_BYTES_MAX, read_error_file};

use taskd_core::job::ErrorReport;
use taskd_core::launch::python;

/// Returns the exception that ended a program, as the program's stderr shows it: the exception's type, a colon and its
/// text. Returns `None` if stderr shows no such exception.
///
/// `stderr_tail` is the end of stderr and may begin in the middle of a line. Lines may have torch's prefix `[rank3]: `.
#[must_use]
pub fn exception_in(stderr_tail: &str) -> Option<String> {
    let lines: Vec<&str> = stderr_tail.lines().map(without_rank).collect();
    python::exception_in(&lines.join("\n"))
}

/// First line of a Python traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// Removes the prefix that torch puts before every line of an uncaught exception once a process group exists.
///
/// The first of these lines may follow a progress bar on the same line.
fn without_rank(line: &str) -> &str {
    let behind = if line.ends_with(TRACEBACK) { line.find("[rank") } else { Some(0) };
    let rest = behind.and_then(|at| line[at..].strip_prefix("[rank")).and_then(|rest| rest.split_once("]: "));
    rest.filter(|(rank, _)| rank.bytes().all(|byte| byte.is_ascii_digit())).map_or(line, |(_, text)| text)
}

/// Returns the error report of a rank's failure. The report describes the exception in `record`, the error record that
/// the rank wrote; if there is none, the exception in `stderr_tail`, the end of the rank's stderr. Returns `None` if
/// neither contains an exception.
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
    Some(
        python::report_of(&exception)
            .with_follow_up(kind == ErrorKind::PeerLost)
            .with_retry_free(kind == ErrorKind::PortInUse)
            .with_step(record.and_then(|record| record.step)),
    )
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
    fn an_interrupt_is_no_consequence_of_another_ranks_failure() {
        for message in [
            "KeyboardInterrupt",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
        ] {
            let record = ErrorRecord { message: message.into(), ..ErrorRecord::default() };
            let report = report(Some(&record), "").unwrap();
            assert!(report.is_interrupt() && !report.follow_up && !report.retry_free, "{message}");
        }
    }

    #[test]
    fn an_empty_record_and_a_silent_stderr_report_nothing() {
        assert_eq!(report(Some(&ErrorRecord::default()), "bye\n"), None);
        assert_eq!(report(None, ""), None);
    }

    #[test]
    fn torch_rank_prefix_is_removed_from_the_exception() {
        let cases = [
            (
                "KeyError: 1\n\n[rank0]: Traceback (most recent call last):\n[rank0]:   File\n[rank0]: RuntimeError: two\n\
                 [rank0]: lines\n\n",
                Some("RuntimeError: two\nlines"),
            ),
            (
                "    return f()\n[rank12]: torch.distributed.DistNetworkError: Broken pipe\n",
                Some("torch.distributed.DistNetworkError: Broken pipe"),
            ),
            ("epoch 3: loss 0.5\n[rank]: x", None),
            (
                " 47%|####      | 47/100 [00:05<00:05][rank1]: Traceback (most recent call last):\n[rank1]:   File\n\
                 [rank1]: RuntimeError: one\n[rank1]: more\n",
                Some("RuntimeError: one\nmore"),
            ),
        ];
        for (tail, exception) in cases {
            assert_eq!(exception_in(tail).as_deref(), exception, "{tail}");
        }
    }
}
