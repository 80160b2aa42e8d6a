//! Why there is no Python environment, in sentences for whoever has to do something about it.

use std::io;
use std::path::PathBuf;

use super::VenvSpec;

/// Why there is no Python for a [`VenvSpec`], and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VenvError {
    /// The interpreter that the user named cannot be used.
    #[error("{}={} cannot be used: {problem}; name a Python that has {}, or unset the variable to have an environment \
             made", spec.variable, python.display(), spec.modules.join(", "))]
    Given {
        /// What was wanted.
        spec: &'static VenvSpec,
        /// The interpreter as named.
        python: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No interpreter on PATH or of pyenv has a version for which the requirements are published.
    #[error("no fitting python3 on PATH or among pyenv's versions (found: {found}); install CPython {}, or point {} at a \
             Python that has {}", spec.versions_in_words(), spec.variable, spec.modules.join(", "))]
    NoPython {
        /// What was wanted.
        spec: &'static VenvSpec,
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
    #[error("the package index cannot be reached, so {} cannot be installed ({detail}); check the network or pip's \
             settings (PIP_INDEX_URL, proxies), or point {} at a Python that has {}",
            spec.what, spec.variable, spec.modules.join(", "))]
    IndexUnreachable {
        /// What was wanted.
        spec: &'static VenvSpec,
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
