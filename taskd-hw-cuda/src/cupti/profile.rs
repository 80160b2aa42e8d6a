//! Environment variables through which a process loads the probe.
//!
//! The profile starts nothing, and never replaces another tool's variables.

use super::PROBE;
use std::path::{Path, PathBuf};
use taskd_core::job::WorkerSpec;
use taskd_core::worker::library;

/// Variable that names the library that CUDA's driver loads.
const INJECTION: &str = "CUDA_INJECTION64_PATH";
/// Variable that names the library that NVTX reports to.
const NVTX: &str = "NVTX_INJECTION64_PATH";
/// Variable that names the file of CUPTI for the probe.
const CUPTI: &str = "TASKD_CUPTI_LIB";

/// Symbol by which a library declares itself a stand-in for CUPTI.
const STAND_IN: &str = "taskd_standin_cupti";

/// Reason why a process cannot load the CUPTI probe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The variable `CUDA_INJECTION64_PATH` of the process already names the library of another tool.
    #[error("{INJECTION} names {0} already, and CUDA loads one library only: remove that tool, or this probe")]
    Taken(String),
    /// The probe's library cannot be written to a place from which processes can load it.
    #[error("the probe cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// The path of the probe or of CUPTI is not UTF-8, so it cannot be the value of an environment variable.
    #[error("the path {} is not UTF-8, so no variable can contain it", .0.display())]
    Path(PathBuf),
}

/// Configures training processes to load the CUPTI probe.
///
/// ```
/// use taskd_core::job::WorkerSpec;
/// use taskd_hw_cuda::cupti::CuptiProfile;
///
/// let spec = CuptiProfile::new().apply(WorkerSpec::new(["python3", "train.py"]).with_env("TASKD_TRACE", "kernel"))?;
/// assert!(spec.env.contains_key("CUDA_INJECTION64_PATH"));
/// # Ok::<(), taskd_hw_cuda::cupti::ProfileError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CuptiProfile {
    library: Option<PathBuf>,
}

impl CuptiProfile {
    /// Creates a profile whose probe looks for CUPTI in the usual places: a library that the process has loaded;
    /// `libcupti.so.13`, `.12` and `libcupti.so` in the loader's search path; and below `CUDA_HOME`, `CUDA_PATH` and
    /// `/usr/local/cuda`.
    #[must_use]
    pub fn new() -> CuptiProfile {
        CuptiProfile::default()
    }

    /// Sets the path of the CUPTI library. Required for NVTX ranges, since NVTX has to be configured with the same
    /// file.
    #[must_use]
    pub fn with_library(mut self, path: impl Into<PathBuf>) -> CuptiProfile {
        self.library = Some(path.into());
        self
    }

    /// Returns `spec` with the environment variables that make CUDA load the probe into the process.
    ///
    /// # Errors
    /// Returns [`ProfileError`] if the process already loads another tool by `CUDA_INJECTION64_PATH`, if the probe
    /// cannot be unpacked, or if a path is not UTF-8.
    pub fn apply(&self, spec: WorkerSpec) -> Result<WorkerSpec, ProfileError> {
        if let Some(other) = variable(&spec, INJECTION) {
            return Err(ProfileError::Taken(other));
        }
        let spec = spec.with_env(INJECTION, text(&PROBE.unpack()?)?);
        let Some(library) = &self.library else { return Ok(spec) };
        let has_nvtx = variable(&spec, NVTX).is_some();
        let spec = spec.with_env(CUPTI, text(library)?);
        Ok(if has_nvtx { spec } else { spec.with_env(NVTX, text(library)?) })
    }

    /// Returns true if the CUPTI library set by `with_library` declares itself a stand-in for CUPTI.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        self.library.as_ref().is_some_and(|path| library::has_symbol(path, STAND_IN).unwrap_or(false))
    }
}

/// Returns the value of a variable that the process will have.
fn variable(spec: &WorkerSpec, name: &str) -> Option<String> {
    let inherited = || std::env::var(name).ok().filter(|_| spec.inherit.passes(name));
    spec.env.get(name).cloned().or_else(inherited).filter(|value| !value.is_empty())
}

fn text(path: &Path) -> Result<String, ProfileError> {
    path.to_str().map(str::to_owned).ok_or_else(|| ProfileError::Path(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_core::job::InheritEnv;

    fn spec() -> WorkerSpec {
        WorkerSpec::new(["true"]).with_inherit(InheritEnv::Nothing)
    }

    #[test]
    fn the_probe_and_the_library_are_named() {
        let with = CuptiProfile::new().with_library("/opt/libcupti.so").apply(spec()).unwrap();
        let probe = std::fs::read(&with.env[INJECTION]).unwrap();
        assert_eq!(&probe[..4], b"\x7fELF");
        assert_eq!((with.env[CUPTI].as_str(), with.env[NVTX].as_str()), ("/opt/libcupti.so", "/opt/libcupti.so"));
        let without = CuptiProfile::new().apply(spec()).unwrap();
        assert!(!without.env.contains_key(CUPTI) && !without.env.contains_key(NVTX));
    }

    #[test]
    fn variables_of_other_tools_are_not_replaced() {
        let taken = CuptiProfile::new().apply(spec().with_env(INJECTION, "/opt/nsys.so")).unwrap_err();
        assert!(taken.to_string().contains("/opt/nsys.so"), "{taken}");
        let nvtx = CuptiProfile::new().with_library("/opt/libcupti.so").apply(spec().with_env(NVTX, "mine")).unwrap();
        assert_eq!(nvtx.env[NVTX], "mine");
    }

    #[test]
    fn a_file_without_the_symbol_stands_in_for_nothing() {
        assert!(!CuptiProfile::new().is_stand_in());
        assert!(!CuptiProfile::new().with_library("/no/such/file").is_stand_in());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, b"\x7fELF...taskd_standin_cupti\0").unwrap();
        assert!(CuptiProfile::new().with_library(file.path()).is_stand_in());
    }
}
