//! Settings: the value that a source has for a key, in the common form of all readers; and warnings.

use super::Key;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of characters of a value in a message.
const SHOWN_MAX: usize = 120;

/// Source of a setting of a job's configuration. Each variant takes precedence over the variants that are declared
/// after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The job's specification: its annotations, or its program's environment and arguments.
    JobSpec,
    /// A job file as submitted to the cluster, in YAML or JSON; the field is its path.
    JobFile(Arc<PathBuf>),
    /// A downward-API file, which Kubernetes creates from the pod's labels or annotations; the field is its path.
    Downward(Arc<PathBuf>),
    /// Environment variables, usually those of the process that reads the configuration.
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

/// The value that one source of a job's configuration has for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The key that has this value.
    pub key: Key,
    /// Value of the key, without white space around it, and with U+FFFD in the place of NUL.
    pub value: String,
    /// Source of the job's configuration that contains this value.
    pub source: Source,
    /// Place of the value inside its source, such as `$.metadata.labels`; `None` if the source and the key suffice to
    /// find the value.
    pub at: Option<String>,
}

impl Setting {
    pub(super) fn new(key: Key, value: &str, source: &Source) -> Setting {
        let value = value.trim().replace('\0', "\u{fffd}"); // environment variables cannot contain NUL
        Setting { key, value, source: source.clone(), at: None }
    }

    pub(super) fn at(self, at: impl Into<String>) -> Setting {
        Setting { at: Some(at.into()), ..self }
    }

    /// Returns the source and the place inside it.
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

/// Markers of template placeholders: of Helm and Jinja, and of shells, envsubst and Kubernetes.
const PLACES: [&str; 4] = ["{{", "{%", "${", "$("];

/// Returns true if a value contains a template placeholder. No valid value of a key contains these characters.
pub(super) fn is_unrendered(value: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphabetic() || c == '_';
    PLACES.iter().any(|place| value.contains(place))
        || value.trim().strip_prefix('$').is_some_and(|name| name.starts_with(is_name))
}

/// Returns a value in quotes, escaped to one line and cut at a readable length.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{:?} and more", &value[..end]),
        None => format!("{value:?}"),
    }
}

/// A warning about a setting of a job's configuration that does not prevent the job from running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// Kind of the warning.
    pub kind: WarningKind,
    /// Text of the warning: the setting, its source and the consequence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Kinds of warnings about a job's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WarningKind {
    /// A key has a value that it does not accept.
    UnknownValue,
    /// The configuration names a strategy that is unknown.
    UnknownStrategy,
    /// The configuration allows a recovery strategy that was not added to the job's runtime.
    NotAdded,
    /// The configuration allows a recovery strategy, but the program's arguments lack a flag that the training script
    /// may need for it.
    MissingFlag,
    /// Two sources have different values for one key; the value with the lower precedence is ignored.
    Overruled,
    /// A setting prevents an allowed recovery strategy from working.
    Hinders,
    /// A setting is valid, but has no effect in taskd.
    NoEffect,
}

/// Warnings in the order in which they were found, without duplicates; and the number of those that were not kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Warnings(Vec<Warning>, usize);

impl Warnings {
    /// Maximum number of warnings that are kept; further ones are counted.
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
        self.add(WarningKind::UnknownValue, format!("{setting}, but must be {expected}"));
    }

    pub(super) fn kept(&self) -> &[Warning] {
        &self.0
    }

    pub(super) fn more(&self) -> usize {
        self.1
    }
}
