//! Finds the exception that ended a program in the last lines of its stderr.
//!
//! It judges no exception, and knows no framework: what one puts in front of lines it has to take away first.

/// Python's first line of a traceback, also of the causes that come before the exception itself.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// libstdc++'s words when an exception that nobody caught ends a program, on whatever thread.
const TERMINATE: &str = "terminate called after throwing an instance of '";

/// How many lines of an exception's text are taken.
const LINES_MAX: usize = 20;

/// The last exception that these lines show to have ended the program: its type, a colon and its text.
///
/// The lines may begin anywhere.
#[must_use]
pub fn exception_in(stderr_tail: &str) -> Option<String> {
    let lines: Vec<&str> = stderr_tail.lines().collect();
    let starts = |text: &'static str| lines.iter().rposition(|line| line.starts_with(text));
    match (starts(TRACEBACK), starts(TERMINATE)) {
        (python, Some(native)) if python.is_none_or(|python| python < native) => of_terminate(lines.get(native..)?),
        (Some(python), _) => of_traceback(lines.get(python + 1..)?),
        (None, _) => of_cut_traceback(&lines),
    }
}

/// Below the header frames are indented; the exception is the first line that is not, and what follows it.
fn of_traceback(lines: &[&str]) -> Option<String> {
    let start = lines.iter().position(|line| !line.starts_with([' ', '\t']) && !line.is_empty())?;
    Some(lines.get(start..)?.iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// `terminate called after throwing an instance of 'TYPE'`, then `  what():  TEXT`.
fn of_terminate(lines: &[&str]) -> Option<String> {
    let kind = lines.first()?.strip_prefix(TERMINATE)?.split('\'').next()?.rsplit("::").next()?;
    let text = lines.iter().skip(1).find_map(|line| line.trim_start().strip_prefix("what():"));
    Some(text.map_or_else(|| kind.to_owned(), |text| format!("{kind}: {}", text.trim())))
}

/// Where the header is above the first line: the last line that looks like `some.module.NameError: text`.
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
