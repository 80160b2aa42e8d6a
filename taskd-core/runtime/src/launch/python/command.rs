//! Parser of a Python interpreter's command line: separates the interpreter's arguments from the program's.
//!
//! This module only reads arguments: it starts no process and looks up no file.

use std::path::Path;

/// Options that take an argument, either as the next word or attached.
const WITH_ARGUMENT: [char; 4] = ['c', 'm', 'W', 'X'];
/// Options with which an interpreter ignores PYTHONPATH or `site`, reads from a terminal, or runs no program.
const OTHERWISE: [char; 7] = ['E', 'I', 'S', 'i', 'V', 'h', '?'];
const LONG_WITH_ARGUMENT: &str = "--check-hash-based-pycs";

/// A command line that runs a program with the launcher's helper in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::launch) struct PythonCommand {
    /// Command line of the same interpreter with the same options that does nothing.
    pub(in crate::launch) probe: Vec<String>,
    /// Number of arguments before the program's own.
    pub(in crate::launch) fixed: usize,
    /// The script file; `None` for a module or a command.
    pub(in crate::launch) script: Option<String>,
}

impl PythonCommand {
    /// Returns true if a command line runs a Python interpreter with an option that ignores PYTHONPATH or `site` (`-E`,
    /// `-I`, `-S`).
    pub(in crate::launch) fn ignores_path(argv: &[String]) -> bool {
        let is_python = argv.first().is_some_and(|program| is_python(program));
        let options = argv.iter().skip(1).take_while(|word| word.starts_with('-'));
        let ignores = |word: &String| {
            word.chars().skip(1).take_while(|flag| !WITH_ARGUMENT.contains(flag)).any(|flag| "EIS".contains(flag))
        };
        is_python && options.filter(|word| !word.starts_with("--")).any(ignores)
    }

    /// Parses a command line; returns `None` if it is not that of a Python interpreter, or runs no program as usual.
    pub(in crate::launch) fn of(argv: &[String]) -> Option<PythonCommand> {
        if !is_python(argv.first()?) {
            return None;
        }
        let mut at = 1;
        loop {
            let word = argv.get(at)?;
            let options_end = at;
            at += 1;
            let Some(flags) = word.strip_prefix('-') else {
                return Some(PythonCommand::new(argv, options_end, at, Some(word.clone())));
            };
            if word == LONG_WITH_ARGUMENT {
                at += 1;
                continue;
            }
            if flags.is_empty() || flags.starts_with('-') {
                return None; // program from standard input, or help
            }
            for (place, flag) in flags.char_indices() {
                if OTHERWISE.contains(&flag) {
                    return None;
                }
                if WITH_ARGUMENT.contains(&flag) {
                    at += usize::from(place + 1 == flags.len());
                    if matches!(flag, 'c' | 'm') {
                        // Flags before it in the same word belong to the probe as well.
                        let probe = PythonCommand::new(argv, options_end, at, None);
                        return (at <= argv.len()).then(|| probe.with_flags(&flags[..place]));
                    }
                    break;
                }
            }
        }
    }

    fn new(argv: &[String], options_end: usize, fixed: usize, script: Option<String>) -> PythonCommand {
        let nothing = ["-c", "pass"].map(str::to_owned);
        PythonCommand { probe: argv[..options_end].iter().cloned().chain(nothing).collect(), fixed, script }
    }

    fn with_flags(mut self, flags: &str) -> PythonCommand {
        if !flags.is_empty() {
            self.probe.insert(self.probe.len() - 2, format!("-{flags}"));
        }
        self
    }
}

fn is_python(program: &str) -> bool {
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    let version = name.and_then(|name| name.strip_prefix("python")).map(|version| version.trim_end_matches(['t', 'd']));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(String, usize, Option<String>)> {
        let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
        PythonCommand::of(&argv).map(|command| (command.probe.join(" "), command.fixed, command.script))
    }

    #[test]
    fn the_interpreters_part_ends_where_the_programs_begins() {
        let script = |probe: &str, fixed, script: &str| Some((probe.to_owned(), fixed, Some(script.to_owned())));
        let other = |probe: &str, fixed| Some((probe.to_owned(), fixed, None));
        assert_eq!(of("python3 train.py --lr 1"), script("python3 -c pass", 2, "train.py"));
        assert_eq!(of("/a/python3.11 -u -X dev a/b -c"), script("/a/python3.11 -u -X dev -c pass", 5, "a/b"));
        assert_eq!(of("python -uBWignore t.py"), script("python -uBWignore -c pass", 3, "t.py"));
        assert_eq!(of("python -uBW ignore t.py"), script("python -uBW ignore -c pass", 4, "t.py"));
        assert_eq!(
            of("python --check-hash-based-pycs never t.py"),
            script("python --check-hash-based-pycs never -c pass", 4, "t.py")
        );
        assert_eq!(of("python -m pkg.train a"), other("python -c pass", 3));
        assert_eq!(of("python -um pkg.train a"), other("python -u -c pass", 3));
        assert_eq!(of("python -O -cprint(1) a"), other("python -O -c pass", 3));
    }

    #[test]
    fn options_by_which_python_ignores_its_path_are_known() {
        let ignores = |line: &str| PythonCommand::ignores_path(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(["python -I t.py", "/a/python3.11 -u -sE t.py", "python -S -c x"].into_iter().all(ignores));
        assert!(!["python t.py -I", "python -u t.py", "python -cE", "sh -E x", "python", ""].into_iter().any(ignores));
    }

    #[test]
    fn commands_that_run_no_ordinary_python_program_are_none() {
        let lines = [
            "sh -c x",
            "python",
            "python -",
            "python -i t.py",
            "python -I t.py",
            "python -sE t.py",
            "python -V",
            "python --version",
            "python -c",
            "python -u -m",
            "python -X",
            "pythonista t.py",
            "",
        ];
        for line in lines {
            assert_eq!(of(line), None, "{line}");
        }
        assert_eq!(PythonCommand::of(&[]), None);
    }
}
