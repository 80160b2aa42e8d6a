//! Finds the exception that ended a program in the last lines of its stderr.
//!
//! This module does not interpret exceptions and knows no framework: a framework has to strip its own line prefixes
//! first.

/// First line of a Python traceback; the tracebacks of the causes, printed before it, begin in the same way.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// Message of libstdc++ when an uncaught exception ends a program, on any thread.
const TERMINATE: &str = "terminate called after throwing an instance of '";

/// Start of the C++ stack in an exception's text.
const WHERE: &str = "Exception raised from ";

/// Maximum number of lines taken from an exception's text.
const LINES_MAX: usize = 20;

/// Returns the last exception that ended the program according to these lines: its type, a colon and its text.
///
/// The lines may start in the middle of the output.
#[must_use]
pub fn exception_in(stderr_tail: &str) -> Option<String> {
    let lines: Vec<&str> = stderr_tail.lines().map(shown).collect();
    let last = |text: &'static str| lines.iter().rposition(|line| begins(line, text));
    match (last(TRACEBACK), last(TERMINATE)) {
        (python, Some(native)) if python.is_none_or(|python| python < native) => of_terminate(lines.get(native..)?),
        (Some(python), _) => of_traceback(lines.get(python + 1..)?),
        (None, _) => of_cut_traceback(&lines),
    }
}

/// Returns true if a line begins with the text, or has it directly after an unterminated progress bar. After white
/// space the text is part of a sentence, such as a traceback that is quoted in an exception's text.
fn begins(line: &str, text: &str) -> bool {
    line.find(text).is_some_and(|at| !line[..at].ends_with(char::is_whitespace))
}

/// Returns what a terminal shows of a line in the end: a progress bar returns to the start of the line and overwrites
/// it. The program's next output may follow a bar that was not terminated.
fn shown(line: &str) -> &str {
    line.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or_default()
}

/// Returns the exception at the end of a traceback. Below the header, frames are indented; the exception is the first
/// line that is not, with all lines after it.
fn of_traceback(lines: &[&str]) -> Option<String> {
    let start = lines.iter().position(|line| !line.starts_with([' ', '\t']) && !line.is_empty())?;
    Some(lines.get(start..)?.iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Parses `terminate called after throwing an instance of 'TYPE'` and `  what():  TEXT`, which may have several lines.
/// Some libraries then print the C++ stack of the exception, which is not part of the text.
fn of_terminate(lines: &[&str]) -> Option<String> {
    let kind = lines.first()?.split_once(TERMINATE)?.1.split('\'').next()?.rsplit("::").next()?;
    let what = |line: &&str| line.trim_start().starts_with("what():");
    let Some(start) = lines.iter().position(what) else { return Some(kind.to_owned()) };
    let text = lines.get(start..)?.iter().take(LINES_MAX).take_while(|line| !line.starts_with(WHERE));
    let text = text.copied().collect::<Vec<_>>().join("\n");
    Some(format!("{kind}: {}", text.split_once("what():").map_or("", |(_, text)| text).trim()))
}

/// For a traceback whose header is cut off: returns the last line that looks like `some.module.NameError: text`.
fn of_cut_traceback(lines: &[&str]) -> Option<String> {
    let names_error = |line: &&&str| {
        let name = line.split(": ").next().unwrap_or_default().trim_end_matches(':');
        let last = name.rsplit('.').next().unwrap_or_default();
        ["Error", "Exception", "Interrupt"].iter().any(|end| last.ends_with(end))
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'))
    };
    lines.iter().rev().find(names_error).map(|line| (*line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exception_is_found_in_every_form() {
        let cases = [
            (
                "Traceback (most recent call last):\n  File \"a\", line 1\n    x\nValueError: boom\n",
                Some("ValueError: boom"),
            ),
            // A cause, then the exception; a text of several lines; trailing noise of its own.
            (
                "Traceback (most recent call last):\n  File\nKeyError: 1\n\nDuring handling of the above exception, another \
                 exception occurred:\n\nTraceback (most recent call last):\n  File\nRuntimeError: two\nlines\n\n",
                Some("RuntimeError: two\nlines"),
            ),
            (
                "    return f()\nsome.module.DistNetworkError: Broken pipe\n",
                Some("some.module.DistNetworkError: Broken pipe"),
            ),
            ("KeyboardInterrupt\n", Some("KeyboardInterrupt")),
            (
                "Traceback (most recent call last):\nOSError: old\n\nterminate called after throwing an instance of \
                 'some::DistBackendError'\n  what():  [Rank 1] Watchdog caught\n",
                Some("DistBackendError: [Rank 1] Watchdog caught"),
            ),
            ("terminate called after throwing an instance of 'int'\n", Some("int")),
            (
                "terminate called after throwing an instance of 'some::DistBackendError'\n  what():  NCCL error in: x.cpp:1\n\
                 ncclInvalidUsage: invalid usage\nLast error:\nDuplicate GPU\nException raised from x (most recent call first):\n\
                 frame #0: y\n",
                Some(
                    "DistBackendError: NCCL error in: x.cpp:1\nncclInvalidUsage: invalid usage\nLast error:\nDuplicate GPU",
                ),
            ),
            // A traceback within the text.
            (
                "Traceback (most recent call last):\n  File\nKeyError: Caught KeyError in worker 0.\nOriginal Traceback (most recent \
                 call last):\n  File\nKeyError: 1\n",
                Some(
                    "KeyError: Caught KeyError in worker 0.\nOriginal Traceback (most recent call last):\n  File\nKeyError: 1",
                ),
            ),
            // Behind a progress bar.
            (
                "\r 46%|####      | 46/100\r 47%|####      | 47/100Traceback (most recent call last):\n  File\nValueError: two\nlines\n",
                Some("ValueError: two\nlines"),
            ),
            (
                "\r 47%|####      | 47/100terminate called after throwing an instance of 'some::Error'\n  what():  x\n",
                Some("Error: x"),
            ),
            ("Traceback (most recent call last):\n  File\nOSError: a\r\nand b\r\n", Some("OSError: a\nand b")),
            ("[W1121] Warning: this is not one\nepoch 3: loss 0.5\n: x", None),
            ("Error: of some shell\n", Some("Error: of some shell")),
            ("Traceback (most recent call last):\n  File \"cut", None),
            ("", None),
        ];
        for (tail, exception) in cases {
            assert_eq!(exception_in(tail).as_deref(), exception, "{tail}");
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let tail = format!("{TRACEBACK}\nE: x\n{}", "more\n".repeat(1000));
        assert_eq!(exception_in(&tail).unwrap().lines().count(), LINES_MAX);
    }
}
