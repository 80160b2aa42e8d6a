//! The Python environment in which examples and tests run MindSpore: its pinned requirements, and how it is found or
//! created ([`taskd_core::launch::python::venv`]). `TASKD_PYTHON_MINDSPORE` names an interpreter to use unchanged.

use std::path::PathBuf;

pub use taskd_core::launch::python::venv::{VenvError, VenvSpec};

/// The Python environment with MindSpore that examples and tests use.
pub const SPEC: VenvSpec = VenvSpec {
    what: "MindSpore",
    takes: "about 3 GB, once, about a minute",
    requirements: include_str!("../python/requirements.txt"),
    modules: &["mindspore", "numpy"],
    versions: &[(3, 11), (3, 10)],
    needs_bytes: 5_000_000_000, // 3 GB installed, plus pip's temporary files
    variable: "TASKD_PYTHON_MINDSPORE",
};

/// Returns the path of the Python interpreter that the variable `TASKD_PYTHON_MINDSPORE` names; if it is not set,
/// that of the shared environment, which is created if it does not exist.
///
/// Blocks the thread; see [`VenvSpec::locate`].
///
/// # Errors
/// No environment exists and none can be created; the error contains the remedy.
pub fn locate(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, VenvError> {
    Ok(const { &SPEC }.locate(progress)?.python().to_owned())
}
