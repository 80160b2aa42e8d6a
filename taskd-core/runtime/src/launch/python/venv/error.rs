//! Errors of the Python environment, with the remedy for each.

use std::io;
use std::path::PathBuf;

use super::VenvSpec;

/// Reason why there is no Python for a [`VenvSpec`], and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VenvError {
    /// The interpreter that the user named cannot be used.
    #[error("{}={} cannot be used: {problem}; name a Python that has {}, or unset the variable to have an environment \
             made", spec.variable, python.display(), spec.modules.join(", "))]
    Given {
        /// The requested environment.
        spec: &'static VenvSpec,
        /// Interpreter that the user named in the environment variable of the specification (`VenvSpec::variable`).
        python: PathBuf,
        /// Reason why the interpreter cannot be used.
        problem: String,
    },
    /// No interpreter on PATH or of pyenv has a version for which the requirements are published.
    #[error("no suitable python3 on PATH or among pyenv's versions (found: {found}); install CPython {}, or point {} at a \
             Python that has {}", spec.versions_in_words(), spec.variable, spec.modules.join(", "))]
    NoPython {
        /// The requested environment.
        spec: &'static VenvSpec,
        /// Python versions that were found, or `none`.
        found: String,
    },
    /// No cache directory is known: neither XDG_CACHE_HOME nor HOME is set to an absolute path.
    #[error("no place for the Python environment: neither XDG_CACHE_HOME nor HOME is set to an absolute path; set one")]
    NoCacheDir,
    /// A file or directory of the user's cache, which holds the environment, cannot be made, locked or removed.
    #[error("{} cannot be used for the Python environment: {source}", path.display())]
    Cache {
        /// Path of the file or directory.
        path: PathBuf,
        /// I/O error of the failed operation.
        source: io::Error,
    },
    /// The disk is too full, found before or during the installation.
    #[error("the disk of {} is too full for the Python environment: it takes {} GB and {} GB are free; make room, or \
             set XDG_CACHE_HOME to another disk", path.display(), needs / 1_000_000_000, free / 1_000_000_000)]
    DiskFull {
        /// Path of the environment for which there is no room.
        path: PathBuf,
        /// Free space that the installation requires, in bytes.
        needs: u64,
        /// Free space when the shortage was found, in bytes.
        free: u64,
    },
    /// The package index does not answer.
    #[error("the package index cannot be reached, so {} cannot be installed ({detail}); check the network or pip's \
             settings (PIP_INDEX_URL, proxies), or point {} at a Python that has {}",
            spec.what, spec.variable, spec.modules.join(", "))]
    IndexUnreachable {
        /// The requested environment.
        spec: &'static VenvSpec,
        /// The first line of pip's output that names the cause.
        detail: String,
    },
    /// The standard module `venv` does not work in this Python.
    #[error("{} cannot make a virtual environment ({detail}); on Debian and Ubuntu install python3-venv",
            python.display())]
    NoVenvModule {
        /// Interpreter whose module `venv` does not work.
        python: PathBuf,
        /// Last lines of the interpreter's output.
        detail: String,
    },
    /// The installation of the environment failed for a reason that no other variant covers.
    #[error("the Python environment {} could not be made: {detail}", path.display())]
    Install {
        /// Path of the environment that could not be built.
        path: PathBuf,
        /// Last lines of the output of the command that failed.
        detail: String,
    },
}
