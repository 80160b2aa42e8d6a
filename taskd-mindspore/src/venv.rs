//! The Python that examples and tests run MindSpore with: what is pinned, and how it is found or made
//! ([`taskd_core::launch::python::venv`]). `TASKD_PYTHON_MINDSPORE` names an interpreter to use as it is.

use std::path::PathBuf;

pub use taskd_core::launch::python::venv::{VenvError, VenvSpec};

/// MindSpore for examples and tests.
pub const SPEC: VenvSpec = VenvSpec {
    what: "MindSpore",
    takes: "about 3 GB, once, about a minute",
    requirements: include_str!("../python/requirements.txt"),
    modules: &["mindspore", "numpy"],
    versions: &[(3, 11), (3, 10)],
    needs_bytes: 5_000_000_000, // 3 GB installed, and what pip unpacks meanwhile
    variable: "TASKD_PYTHON_MINDSPORE",
};

/// The interpreter of `TASKD_PYTHON_MINDSPORE`, else that of the shared environment, which is made if it is not there yet.
///
/// Blocks; see [`VenvSpec::locate`].
///
/// # Errors
/// There is none, and none can be made; what to do about it.
pub fn locate(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, VenvError> {
    Ok(const { &SPEC }.locate(progress)?.python().to_owned())
}
