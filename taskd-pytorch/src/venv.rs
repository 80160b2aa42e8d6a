//! The Python environment in which examples and tests run PyTorch: its pinned requirements, and how it is found or
//! created ([`taskd_core::launch::python::venv`]). `TASKD_PYTHON` names an interpreter to use unchanged.

use std::path::PathBuf;

pub use taskd_core::launch::python::venv::{VenvError, VenvSpec};

/// The Python environment with PyTorch that examples and tests use.
pub const SPEC: VenvSpec = VenvSpec {
    what: "PyTorch",
    takes: "about 7 GB, once, about 2 minutes",
    requirements: include_str!("../python/requirements.txt"),
    modules: &["torch", "numpy", "sklearn"],
    versions: &[(3, 13), (3, 12), (3, 11), (3, 10)],
    needs_bytes: 11_000_000_000, // 7 GB installed, plus pip's temporary files
    variable: "TASKD_PYTHON",
};

/// Returns the path of the Python interpreter that the environment variable `TASKD_PYTHON` names. If the variable is
/// not set, returns the interpreter of the Python environment [`SPEC`], which is created if it does not exist.
///
/// Creating the environment takes about two minutes and 7 GB. The call blocks the thread; see [`VenvSpec::locate`].
///
/// # Errors
/// Returns [`VenvError`] if no usable environment exists and none can be created; the message names the remedy.
pub fn locate(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, VenvError> {
    Ok(const { &SPEC }.locate(progress)?.python().to_owned())
}
