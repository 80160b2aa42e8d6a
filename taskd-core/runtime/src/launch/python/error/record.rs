//! Reader of the error file that a Python program leaves, written by taskd's helper or by another tool in the same
//! form.
//!
//! The content is untrusted: the program writes the file, which may be cut short or contain anything.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::job::{document_text, printable};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

/// Maximum size of an error file in bytes. A larger file is not read at all, since a part of an error record cannot be
/// parsed: [`ErrorFileError::TooLarge`].
pub const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Content of an error file: a failure as the program recorded it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecord {
    /// The exception that was recorded: its type, a colon and its text.
    pub message: String,
    /// The formatted Python traceback, if the error file has one.
    pub callstack: Option<String>,
    /// Time at which the error file was written, in whole seconds since 1970, so that it cannot order events within one
    /// second.
    pub timestamp_s: Option<u64>,
    /// Exit code of the program, if a nested launcher added it to the error file.
    pub error_code: Option<i32>,
    /// Number of the last completed training step, counted as on the lifeline page; `None` if the error file was not
    /// written by taskd's helper or no step is known.
    pub step: Option<u64>,
    /// True if taskd's helper recorded the exception as uncaught: the exception ends the process, although the end may
    /// never complete.
    pub uncaught: bool,
    /// True if taskd's helper recorded an exception that was only printed: the program went on, and may have ended for
    /// another reason.
    pub printed: bool,
}

impl ErrorRecord {
    /// Parses the content of an error file: an object whose `message` is a string, or an object with its own `message`
    /// string. Every other field may be missing or malformed.
    ///
    /// # Errors
    /// Returns one line that states why the content is not a record.
    pub fn parse(content: &[u8]) -> Result<ErrorRecord, String> {
        let content = document_text(content).map_err(|why| format!("it {why}"))?;
        let content: Value = serde_json::from_str(content).map_err(|error| format!("it is not JSON: {error}"))?;
        let message = content.get("message").ok_or("it has no `message`")?;
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
        if let Some(text) = message.as_str() {
            return Ok(ErrorRecord {
                message: printable(text).into_owned(),
                timestamp_s: content.get("timestamp").and_then(number),
                ..ErrorRecord::default()
            });
        }
        let text = message.get("message").and_then(Value::as_str).ok_or("its `message` holds no text")?;
        let extra = |key: &str| message.get("extraInfo").and_then(|extra| extra.get(key));
        let uncaught = extra("taskd_uncaught").and_then(number) == Some(1);
        Ok(ErrorRecord {
            message: printable(text).into_owned(),
            callstack: extra("py_callstack").and_then(Value::as_str).map(|text| printable(text).into_owned()),
            timestamp_s: extra("timestamp").and_then(number),
            error_code: message.get("errorCode").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok()),
            step: extra("taskd_step").and_then(number).filter(|step| *step > 0),
            uncaught,
            printed: !uncaught && extra("taskd_step").and_then(number).is_some(),
        })
    }
}

/// Reason why an existing error file is unusable. The failure itself is known without the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorFileError {
    /// The file could not be read.
    #[error("the error file {} cannot be read: {source}", path.display())]
    Unreadable {
        /// Path of the error file.
        path: PathBuf,
        /// I/O error of the attempt to read the file.
        source: io::Error,
    },
    /// The file is larger than [`RECORD_BYTES_MAX`].
    #[error("the error file {} is larger than {RECORD_BYTES_MAX} bytes and is not read", path.display())]
    TooLarge {
        /// Path of the error file.
        path: PathBuf,
    },
    /// The content of the file is not an error record.
    #[error("the error file {} is no error record: {why}", path.display())]
    Malformed {
        /// Path of the error file.
        path: PathBuf,
        /// Description of the defect of the content.
        why: String,
    },
}

/// Reads the error file of a process. Returns `None` if there is no file or the file is empty, that is, if the program
/// recorded no error.
///
/// # Errors
/// Fails if the file exists but is unusable; then only the program's exit code and stderr are available.
pub fn read_error_file(path: &Path) -> Result<Option<ErrorRecord>, ErrorFileError> {
    let unreadable = |source| ErrorFileError::Unreadable { path: path.to_owned(), source };
    // Non-blocking, since the program may have put anything there, for example a pipe.
    let file = match rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        opened => File::from(opened.map_err(|error| unreadable(error.into()))?),
    };
    let mut content = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.is_empty() {
        return Ok(None);
    }
    if content.len() as u64 > RECORD_BYTES_MAX {
        return Err(ErrorFileError::TooLarge { path: path.to_owned() });
    }
    let malformed = |why| ErrorFileError::Malformed { path: path.to_owned(), why };
    ErrorRecord::parse(&content).map(Some).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_of_the_message_are_read() {
        let by_record = br#"{"message": {"message": "ValueError: boom", "errorCode": 1,
            "extraInfo": {"py_callstack": "Traceback", "timestamp": "1795248366", "taskd_step": "41", "taskd_uncaught": "1"}}}"#;
        assert_eq!(
            ErrorRecord::parse(by_record),
            Ok(ErrorRecord {
                message: "ValueError: boom".into(),
                callstack: Some("Traceback".into()),
                timestamp_s: Some(1_795_248_366),
                error_code: Some(1),
                step: Some(41),
                uncaught: true,
                printed: false,
            })
        );
        let plain = br#"{"message": "it broke", "timestamp": 1795248366}"#;
        let expected =
            ErrorRecord { message: "it broke".into(), timestamp_s: Some(1_795_248_366), ..ErrorRecord::default() };
        assert_eq!(ErrorRecord::parse(plain), Ok(expected));
    }

    #[test]
    fn odd_fields_are_left_out_and_odd_contents_refused() {
        let odd =
            br#"{"message": {"message": "E", "errorCode": 1e99, "extraInfo": {"timestamp": [], "taskd_step": "x"}}}"#;
        assert_eq!(ErrorRecord::parse(odd), Ok(ErrorRecord { message: "E".into(), ..ErrorRecord::default() }));
        for content in ["[]", "{}", "null", "{\"message\": 3}", "{\"message\": {}}", "{\"message\": \"cut of", "\u{0}"]
        {
            assert!(ErrorRecord::parse(content.as_bytes()).is_err(), "{content}");
        }
    }

    #[test]
    fn whatever_bytes_there_are_none_of_them_panics() {
        let whole =
            br#"{"message": {"message": "ValueError: boom", "extraInfo": {"timestamp": "1", "taskd_step": "2"}}}"#;
        for end in 0..whole.len() {
            let _ = ErrorRecord::parse(&whole[..end]);
            for byte in [0, b'"', b'{', b'9', 0xff] {
                let mut mutated = whole.to_vec();
                mutated[end] = byte;
                let _ = ErrorRecord::parse(&mutated);
            }
        }
        assert!(ErrorRecord::parse("[".repeat(100_000).as_bytes()).is_err(), "depth is bounded");
    }

    #[test]
    fn a_missing_an_empty_and_a_huge_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("error.json");
        assert_eq!(read_error_file(&path).unwrap(), None);
        std::fs::write(&path, "").unwrap();
        assert_eq!(read_error_file(&path).unwrap(), None);
        std::fs::write(&path, "x".repeat(usize::try_from(RECORD_BYTES_MAX).unwrap() + 1)).unwrap();
        assert!(matches!(read_error_file(&path), Err(ErrorFileError::TooLarge { .. })));
        assert!(matches!(read_error_file(dir.path()), Err(ErrorFileError::Unreadable { .. })));
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read_error_file(&path).unwrap(), None, "no process writes into the pipe, and none waits for it");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "half").unwrap();
        let message = read_error_file(&path).unwrap_err().to_string();
        assert!(message.contains("error.json is no error record: it is not JSON"), "{message}");
    }
}
