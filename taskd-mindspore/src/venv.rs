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

/// Returns the path of the Python interpreter that the environment variable `TASKD_PYTHON_MINDSPORE` names. If the
/// variable is not set, returns the interpreter of the Python environment [`SPEC`], which is created if it does not
/// exist.
///
/// Creating the environment takes about a minute and 3 GB. The call blocks the thread; see [`VenvSpec::locate`].
///
/// # Errors
/// Returns [`VenvError`] if no usable environment exists and none can be created; the message names the remedy.
pub fn locate(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, VenvError> {
    Ok(const { &SPEC }.locate(progress)?.python().to_owned())
}
