//! What a source says of a key, and where: data that every reader gives in one form.

use super::Key;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Most characters of a value that a message shows.
const SHOWN_MAX: usize = 120;

/// Where something was read. Of two the lesser one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The job's specification: its annotations, or its program's environment and arguments.
    JobSpec,
    /// A job as it is given to the cluster, in YAML or JSON.
    JobFile(Arc<PathBuf>),
    /// A file that Kubernetes makes of the pod's labels or annotations.
    Downward(Arc<PathBuf>),
    /// The environment of this process.
    Environment,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::JobSpec => f.write_str("the job's specification"),
            Source::JobFile(path) => write!(f, "the job file {}", path.display()),
            Source::Downward(path) => write!(f, "the downward-API file {}", path.display()),
            Source::Environment => f.write_str("the environment"),
        }
    }
}

/// One key's value in one source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The key.
    pub key: Key,
    /// Its value, without the white space around it, and with U+FFFD for NUL.
    pub value: String,
    /// Where it stands.
    pub source: Source,
    /// Where in there, if that helps: `$.metadata.labels`.
    pub at: Option<String>,
}

impl Setting {
    pub(super) fn new(key: Key, value: &str, source: &Source) -> Setting {
        let value = value.trim().replace('\0', "\u{fffd}"); // it may go into an environment, which has no NUL
        Setting { key, value, source: source.clone(), at: None }
    }

    pub(super) fn at(self, at: impl Into<String>) -> Setting {
        Setting { at: Some(at.into()), ..self }
    }

    /// The source, and where in there.
    pub(super) fn place(&self) -> String {
        match &self.at {
            Some(at) => format!("{} ({at})", self.source),
            None => self.source.to_string(),
        }
    }
}

/// `PROCESS_RECOVER is "off" in the environment`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} in {}", self.key, shown(&self.value), self.place())
    }
}

/// How a place is marked that a program is to fill in: by Helm and Jinja, and by shells, envsubst and Kubernetes.
const PLACES: [&str; 4] = ["{{", "{%", "${", "$("];

/// Whether a value is to be filled in by a program that makes files of templates. No value of a key has these characters.
pub(super) fn is_unrendered(value: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphabetic() || c == '_';
    PLACES.iter().any(|place| value.contains(place))
        || value.trim().strip_prefix('$').is_some_and(|name| name.starts_with(is_name))
}

/// A value in quotes, on one line, not longer than people read.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{:?} and more", &value[..end]),
        None => format!("{value:?}"),
    }
}

/// Something about a job's configuration that somebody should look at. The job can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// Of which kind.
    pub kind: WarningKind,
    /// What is to be looked at, where, and what comes of it.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WarningKind {
    /// A value that the key does not have.
    UnknownValue,
    /// A strategy that nobody knows.
    UnknownStrategy,
    /// A strategy that is allowed, and that the runtime was not given.
    NotAdded,
    /// A strategy that a script takes part in only with a flag, which is not there.
    MissingFlag,
    /// Two places say different things.
    Overruled,
    /// A setting that keeps an allowed strategy from working.
    Hinders,
    /// A setting that changes nothing here.
    NoEffect,
}

/// Warnings in the order in which they were found, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Warnings(Vec<Warning>, usize);

impl Warnings {
    /// Most that are kept: further ones are counted.
    const MAX: usize = 100;

    pub(super) fn add(&mut self, kind: WarningKind, text: impl Into<String>) {
        let warning = Warning { kind, text: text.into() };
        if self.0.contains(&warning) {
            return;
        }
        if self.0.len() < Warnings::MAX {
            self.0.push(warning);
        } else {
            self.1 += 1;
        }
    }

    pub(super) fn unknown_value(&mut self, setting: &Setting, expected: &str) {
        self.add(WarningKind::UnknownValue, format!("{setting}, and is to be {expected}"));
    }

    pub(super) fn kept(&self) -> &[Warning] {
        &self.0
    }

    pub(super) fn more(&self) -> usize {
        self.1
    }
}
