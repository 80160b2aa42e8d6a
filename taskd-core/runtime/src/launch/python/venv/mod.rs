//! Locates the Python environment in which examples and tests run a framework, and builds it if there is none.
//!
//! An environment variable of the framework can name an interpreter to use unchanged. Otherwise a virtual environment
//! is kept in the user's cache directory, one for each pair of pinned requirements and Python version, shared by all
//! checkouts:
//!
//! ```text
//! ~/.cache/taskd/venv-<hash>/               the environment ($XDG_CACHE_HOME/taskd/... where that is set)
//! ~/.cache/taskd/venv-<hash>/taskd-ready    written last: an environment without it is made again
//! ~/.cache/taskd/venv-<hash>.lock           held while it is made, so that two processes make it once
//! ```
//!
//! An interpreter that this module did not make is never changed, and neither is a finished environment. A supervisor
//! does not need this module: it runs the command that its user configured.

mod build;
mod error;
mod find;

pub use error::VenvError;

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Specification of a framework's Python environment. A framework crate has one as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VenvSpec {
    /// Display name of the installed software: `PyTorch`.
    pub what: &'static str,
    /// Disk space and duration of the installation, for display: `about 7 GB, once, about 2 minutes`.
    pub takes: &'static str,
    /// Pinned requirements in pip's format.
    pub requirements: &'static str,
    /// Modules that the interpreter must be able to import.
    pub modules: &'static [&'static str],
    /// Python versions for which the requirements are published, as `(major, minor)`, in order of preference.
    pub versions: &'static [(u32, u32)],
    /// Free space required before an environment is built, in bytes: the installed files, and those that pip unpacks
    /// temporarily.
    pub needs_bytes: u64,
    /// Name of the environment variable in which a user can name an interpreter, which is then used unchanged.
    pub variable: &'static str,
}

/// A Python interpreter that can import the modules of a [`VenvSpec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonEnv {
    python: PathBuf,
}

impl PythonEnv {
    /// Path of the interpreter, which can be started directly: no activation is needed.
    #[must_use]
    pub fn python(&self) -> &Path {
        &self.python
    }
}

impl VenvSpec {
    /// Returns the interpreter that the user names in the environment variable [`variable`](Self::variable). If the
    /// variable is not set, returns the interpreter of the shared environment, which is built if it does not exist.
    ///
    /// `progress` is called with one line of text at a time during a build, and not at all without one. Safe with
    /// several processes at once: one builds, the others wait for it. A build that was killed is repeated. This
    /// function blocks: async code has to call it on a blocking thread.
    ///
    /// # Errors
    /// Fails if there is no environment and none can be built; the error states what to do.
    pub fn locate(&'static self, progress: &mut dyn FnMut(&str)) -> Result<PythonEnv, VenvError> {
        if let Some(python) = set(self.variable) {
            return self.given(PathBuf::from(python));
        }
        let cache = cache_dir()?.join("taskd");
        let (python, version) = find::interpreter(self)?;
        let venv = cache.join(format!("venv-{}", key(self.requirements, version)));
        build::Recipe { spec: self, venv: venv.clone(), python: &python }.ensure(progress)?;
        Ok(PythonEnv { python: venv.join("bin/python") })
    }

    /// Formats the versions, for example `3.10, 3.11 or 3.12`.
    fn versions_in_words(&self) -> String {
        let mut versions = self.versions.to_vec();
        versions.sort_unstable();
        let mut words: Vec<String> = versions.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
        let last = words.pop().unwrap_or_default();
        if words.is_empty() { last } else { format!("{} or {last}", words.join(", ")) }
    }

    /// Accepts the given interpreter after a check that its modules exist (found, not imported: 50 ms instead of 2 s).
    fn given(&'static self, python: PathBuf) -> Result<PythonEnv, VenvError> {
        let modules = self.modules;
        let script =
            format!("import importlib.util as u; print(' '.join(m for m in {modules:?} if u.find_spec(m) is None))");
        let out = Command::new(&python).args(["-c", &script]).output();
        let problem = match out {
            Err(error) => error.to_string(),
            Ok(out) if !out.status.success() => format!("it ended with {}", out.status),
            Ok(out) => match String::from_utf8_lossy(&out.stdout).trim() {
                "" => return Ok(PythonEnv { python }),
                missing => format!("it has no {missing}"),
            },
        };
        Err(VenvError::Given { spec: self, python, problem })
    }
}

/// Returns the value of a variable that is set and not empty.
fn set(name: &str) -> Option<std::ffi::OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the user's cache directory by the XDG rules, under which relative paths are invalid.
fn cache_dir() -> Result<PathBuf, VenvError> {
    let absolute = |value| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    set("XDG_CACHE_HOME")
        .and_then(absolute)
        .or_else(|| set("HOME").and_then(absolute).map(|home| home.join(".cache")))
        .ok_or(VenvError::NoCacheDir)
}

/// Returns the environment's name, derived from the inputs that determine its content: 12 hex digits of a SHA-256.
fn key(requirements: &str, (major, minor): (u32, u32)) -> String {
    let digest = Sha256::digest(format!("{major}.{minor}\n{requirements}"));
    digest.iter().take(6).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // writing to a String cannot fail
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package that no test installs.
    pub(super) const SPEC: VenvSpec = VenvSpec {
        what: "Framework",
        takes: "a moment",
        requirements: "framework==1\n",
        modules: &["no_framework", "numbers", "no_numbers"],
        versions: &[(3, 13), (3, 10), (3, 11)],
        needs_bytes: 0,
        variable: "TASKD_PYTHON_OF_TESTS",
    };

    /// Makes an executable shell script. A child process writes it: a descriptor that this process had open for writing
    /// would be inherited for a moment by every process that another test starts, and a file that is open for writing
    /// cannot be executed.
    pub(super) fn script(path: &Path, text: &str) {
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        assert!(Command::new("sh").arg("-c").arg(write).arg(path).arg(text).status().unwrap().success());
    }

    #[test]
    fn key_changes_with_requirements_and_version() {
        let base = key("framework==1\n", (3, 11));
        assert_eq!(base.len(), 12);
        assert_eq!(base, key("framework==1\n", (3, 11)));
        assert_ne!(base, key("framework==1\n", (3, 12)));
        assert_ne!(base, key("framework==2\n", (3, 11)));
    }

    #[test]
    fn a_named_interpreter_without_the_modules_is_refused_by_name() {
        // -S: no site-packages, so the modules are missing on every machine.
        let dir = tempfile::tempdir().unwrap();
        let bare = dir.path().join("bare-python");
        script(&bare, "exec python3 -I -S \"$@\"");
        let message = SPEC.given(bare.clone()).unwrap_err().to_string();
        assert!(
            message.contains("bare-python cannot be used: it has no no_framework no_numbers; name a Python"),
            "{message}"
        );

        let message = SPEC.given(PathBuf::from("/nonexistent/python")).unwrap_err().to_string();
        assert!(message.contains("/nonexistent/python cannot be used: No such file"), "{message}");
    }

    #[test]
    fn a_missing_python_is_reported_with_the_versions_to_install() {
        let message = VenvError::NoPython { spec: &SPEC, found: "none".into() }.to_string();
        assert!(
            message.contains("CPython 3.10, 3.11 or 3.13, or point TASKD_PYTHON_OF_TESTS at a Python"),
            "{message}"
        );
    }
}
