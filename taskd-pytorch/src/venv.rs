//! Finds the Python that examples and tests run PyTorch with, and makes it where there is none.
//!
//! `TASKD_PYTHON` names an interpreter to use as it is. Otherwise a virtual environment is kept in the user's cache
//! directory, one for each pair of pinned requirements and Python version, shared by all checkouts:
//!
//! ```text
//! ~/.cache/taskd/venv-<hash>/               the environment ($XDG_CACHE_HOME/taskd/... where that is set)
//! ~/.cache/taskd/venv-<hash>/taskd-ready    written last: an environment without it is made again
//! ~/.cache/taskd/venv-<hash>.lock           held while it is made, so that two processes make it once
//! ```
//!
//! It never changes an interpreter that it did not make, and a finished environment never changes. A supervisor does
//! not need this module: it runs whatever command its user gives.

mod build;

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// The pinned requirements, as pip reads them.
pub const REQUIREMENTS: &str = include_str!("../python/requirements.txt");

/// Python versions for which the pinned requirements are published, newest first, as `(major, minor)`.
pub const PYTHON_VERSIONS: [(u32, u32); 4] = [(3, 13), (3, 12), (3, 11), (3, 10)];

/// Free space asked for before an environment is made, in bytes: 7 GB installed, and what pip unpacks meanwhile.
pub const BUILD_BYTES: u64 = 11_000_000_000;

/// The modules that the interpreter must be able to import.
const MODULES: [&str; 3] = ["torch", "numpy", "sklearn"];

/// A Python interpreter that can import what the pinned requirements name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonEnv {
    python: PathBuf,
}

impl PythonEnv {
    /// The interpreter of `TASKD_PYTHON`, else that of the shared environment, which is made if it is not there yet.
    ///
    /// Making it takes about two minutes and 7 GB; `progress` is called with one line of text at a time while it
    /// lasts, and not at all where nothing has to be made. Safe with several processes at once: one builds, the
    /// others wait for it. A build that was killed is redone. Blocks: async code calls it on a blocking thread.
    pub fn locate(progress: &mut dyn FnMut(&str)) -> Result<Self, VenvError> {
        if let Some(python) = set("TASKD_PYTHON") {
            return Self::given(PathBuf::from(python));
        }
        let cache = cache_dir()?.join("taskd");
        let (python, version) = system_python()?;
        let venv = cache.join(format!("venv-{}", key(REQUIREMENTS, version)));
        let recipe = build::Recipe {
            venv: venv.clone(),
            python: &python,
            requirements: REQUIREMENTS,
            modules: &MODULES,
            needs_bytes: BUILD_BYTES,
        };
        recipe.ensure(progress)?;
        Ok(Self { python: venv.join("bin/python") })
    }

    /// The interpreter's path, to be started as it is: no activation is needed.
    #[must_use]
    pub fn python(&self) -> &Path {
        &self.python
    }

    /// Takes an interpreter as it is, after a look whether it has the modules (found, not imported: 50 ms, not 2 s).
    fn given(python: PathBuf) -> Result<Self, VenvError> {
        let script =
            format!("import importlib.util as u; print(' '.join(m for m in {MODULES:?} if u.find_spec(m) is None))");
        let out = Command::new(&python).args(["-c", &script]).output();
        let problem = match out {
            Err(error) => error.to_string(),
            Ok(out) if !out.status.success() => format!("it ended with {}", out.status),
            Ok(out) => match String::from_utf8_lossy(&out.stdout).trim() {
                "" => return Ok(Self { python }),
                missing => format!("it has no {missing}"),
            },
        };
        Err(VenvError::Given { python, problem })
    }
}

/// Why there is no Python to run PyTorch with, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VenvError {
    /// The interpreter that the user named cannot be used.
    #[error("TASKD_PYTHON={} cannot be used: {problem}; name a Python that has torch, numpy and scikit-learn, or \
             unset the variable to have an environment made", python.display())]
    Given {
        /// The interpreter as named.
        python: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No interpreter on PATH has a version for which torch is published.
    #[error(
        "no fitting python3 on PATH (found: {found}); install CPython 3.10, 3.11, 3.12 or 3.13, or point \
             TASKD_PYTHON at a Python that has torch"
    )]
    NoPython {
        /// The versions that were found, or `none`.
        found: String,
    },
    /// Neither XDG_CACHE_HOME nor HOME says where a cache may be kept.
    #[error("no place for the Python environment: neither XDG_CACHE_HOME nor HOME is set to an absolute path; set one")]
    NoCacheDir,
    /// A file or directory of the cache cannot be made, locked or removed.
    #[error("{} cannot be used for the Python environment: {source}", path.display())]
    Cache {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not enough room, seen before or while packages were installed.
    #[error("the disk of {} is too full for the Python environment: it takes {} GB and {} GB are free; make room, or \
             set XDG_CACHE_HOME to another disk", path.display(), needs / 1_000_000_000, free / 1_000_000_000)]
    DiskFull {
        /// Where the environment was to be made.
        path: PathBuf,
        /// The bytes that it takes.
        needs: u64,
        /// Free bytes there when it was noticed.
        free: u64,
    },
    /// The package index does not answer.
    #[error(
        "the package index cannot be reached, so torch cannot be installed ({detail}); check the network or \
             pip's settings (PIP_INDEX_URL, proxies), or point TASKD_PYTHON at a Python that has torch"
    )]
    IndexUnreachable {
        /// pip's last words on it.
        detail: String,
    },
    /// The standard module `venv` does not work in this Python.
    #[error("{} cannot make a virtual environment ({detail}); on Debian and Ubuntu install python3-venv",
            python.display())]
    NoVenvModule {
        /// The interpreter that was asked.
        python: PathBuf,
        /// Its last words.
        detail: String,
    },
    /// Installing failed in another way.
    #[error("the Python environment {} could not be made: {detail}", path.display())]
    Install {
        /// The environment.
        path: PathBuf,
        /// The last lines of what was run.
        detail: String,
    },
}

/// The value of a variable that is set to something.
fn set(name: &str) -> Option<std::ffi::OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The user's cache directory by the XDG rules: relative paths do not count.
fn cache_dir() -> Result<PathBuf, VenvError> {
    let absolute = |value| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    set("XDG_CACHE_HOME")
        .and_then(absolute)
        .or_else(|| set("HOME").and_then(absolute).map(|home| home.join(".cache")))
        .ok_or(VenvError::NoCacheDir)
}

/// The first interpreter on PATH whose version fits: `python3`, then the versioned names, newest first.
fn system_python() -> Result<(PathBuf, (u32, u32)), VenvError> {
    let mut found = Vec::new();
    let versioned = PYTHON_VERSIONS.iter().map(|(major, minor)| format!("python{major}.{minor}"));
    for name in std::iter::once("python3".to_owned()).chain(versioned) {
        match probe(name.as_ref()) {
            Some((python, version)) if PYTHON_VERSIONS.contains(&version) => return Ok((python, version)),
            Some((_, (major, minor))) => found.push(format!("{name} is {major}.{minor}")),
            None => {}
        }
    }
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(VenvError::NoPython { found })
}

/// Asks an interpreter for its own path and version. `None`: it is not there or is no Python 3.
fn probe(name: &OsStr) -> Option<(PathBuf, (u32, u32))> {
    let script = "import sys; print('%d %d %s' % (sys.version_info[0], sys.version_info[1], sys.executable))";
    let out = Command::new(name).args(["-c", script]).output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?;
    let mut words = text.trim_end_matches('\n').splitn(3, ' ');
    let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((PathBuf::from(words.next()?), version))
}

/// Names an environment by what decides its content: 12 hex digits of a SHA-256.
fn key(requirements: &str, (major, minor): (u32, u32)) -> String {
    let digest = Sha256::digest(format!("{major}.{minor}\n{requirements}"));
    digest.iter().take(6).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // a String takes everything
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an executable shell script. A child writes it: a descriptor of ours, open for writing, would for a moment
    /// be in every process that another test starts, and a file that is open for writing cannot be executed.
    pub(super) fn script(path: &Path, text: &str) {
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        assert!(Command::new("sh").arg("-c").arg(write).arg(path).arg(text).status().unwrap().success());
    }

    #[test]
    fn key_changes_with_requirements_and_version() {
        let base = key("torch==1\n", (3, 11));
        assert_eq!(base.len(), 12);
        assert_eq!(base, key("torch==1\n", (3, 11)));
        assert_ne!(base, key("torch==1\n", (3, 12)));
        assert_ne!(base, key("torch==2\n", (3, 11)));
    }

    #[test]
    fn a_named_interpreter_without_torch_is_refused_by_name() {
        // -S: no site-packages, so the modules cannot be there wherever this runs.
        let dir = tempfile::tempdir().unwrap();
        let bare = dir.path().join("bare-python");
        script(&bare, "exec python3 -I -S \"$@\"");
        let message = PythonEnv::given(bare.clone()).unwrap_err().to_string();
        assert!(message.contains("bare-python cannot be used: it has no torch numpy sklearn"), "{message}");

        let message = PythonEnv::given(PathBuf::from("/nonexistent/python")).unwrap_err().to_string();
        assert!(message.contains("/nonexistent/python cannot be used: No such file"), "{message}");
    }
}
