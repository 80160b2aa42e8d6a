//! The Python that examples and tests run PyTorch with: what is pinned, and how it is found or made
//! ([`taskd_core::launch::python::venv`]). `TASKD_PYTHON` names an interpreter to use as it is.

use std::path::Path;

use taskd_core::launch::python::venv;
pub use taskd_core::launch::python::venv::{VenvError, VenvSpec};

/// PyTorch for examples and tests.
pub const SPEC: VenvSpec = VenvSpec {
    what: "PyTorch",
    takes: "about 7 GB, once, about 2 minutes",
    requirements: include_str!("../python/requirements.txt"),
    modules: &["torch", "numpy", "sklearn"],
    versions: &[(3, 13), (3, 12), (3, 11), (3, 10)],
    needs_bytes: 11_000_000_000, // 7 GB installed, and what pip unpacks meanwhile
    variable: "TASKD_PYTHON",
};

/// A Python interpreter that can import what the pinned requirements name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonEnv(venv::PythonEnv);

impl PythonEnv {
    /// The interpreter of `TASKD_PYTHON`, else that of the shared environment, which is made if it is not there yet.
    ///
    /// Making it takes about two minutes and 7 GB; see [`VenvSpec::locate`].
    ///
    /// # Errors
    /// There is none, and none can be made; what to do about it.
    pub fn locate(progress: &mut dyn FnMut(&str)) -> Result<Self, VenvError> {
        const { &SPEC }.locate(progress).map(PythonEnv)
    }

    /// The interpreter's path, to be started as it is: no activation is needed.
    #[must_use]
    pub fn python(&self) -> &Path {
        self.0.python()
    }
}
