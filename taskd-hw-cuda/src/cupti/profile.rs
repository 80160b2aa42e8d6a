//! What a process needs in its environment, so that the probe comes into it.
//!
//! It starts nothing, and takes no place that somebody else has.

use super::PROBE;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use taskd_core::job::{InheritEnv, WorkerSpec};

/// Names the library that CUDA's driver loads.
const INJECTION: &str = "CUDA_INJECTION64_PATH";
/// Names the library that NVTX talks to.
const NVTX: &str = "NVTX_INJECTION64_PATH";
/// Where the probe looks for CUPTI.
const CUPTI: &str = "TASKD_CUPTI_LIB";

/// By this symbol a library says that it stands in for CUPTI.
const STAND_IN: &[u8] = b"taskd_standin_cupti";
/// A larger file is not searched for it.
const STAND_IN_BYTES_MAX: u64 = 64 << 20;

/// Why a process cannot get the probe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Another tool is to be loaded into the process.
    #[error("{INJECTION} names {0} already, and CUDA loads one library only: leave that tool out, or this probe")]
    Taken(String),
    /// The probe cannot be written to where processes could load it.
    #[error("the probe cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// A path that cannot be a variable's value.
    #[error("{} is no path that a variable can hold: it is not UTF-8", .0.display())]
    Path(PathBuf),
}

/// Puts the probe into processes.
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
    /// A profile whose probe looks for CUPTI where it usually is: what the process has loaded, `libcupti.so.13`, `.12` and
    /// `libcupti.so` where the loader looks, and below `CUDA_HOME`, `CUDA_PATH` and `/usr/local/cuda`.
    #[must_use]
    pub fn new() -> CuptiProfile {
        CuptiProfile::default()
    }

    /// The file of CUPTI. NVTX ranges are recorded with it only: NVTX has to be told the same file.
    #[must_use]
    pub fn with_library(mut self, path: impl Into<PathBuf>) -> CuptiProfile {
        self.library = Some(path.into());
        self
    }

    /// Adds what the process needs to its environment.
    ///
    /// # Errors
    /// [`ProfileError`]: why it cannot be.
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

    /// Whether the file of CUPTI says that it stands in for NVIDIA's.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        let Some(path) = &self.library else { return false };
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(STAND_IN_BYTES_MAX).read_to_end(&mut bytes));
        read.is_ok() && bytes.windows(STAND_IN.len()).any(|window| window == STAND_IN)
    }
}

/// What the process would see of a variable.
fn variable(spec: &WorkerSpec, name: &str) -> Option<String> {
    let inherited = || match &spec.inherit {
        InheritEnv::All => std::env::var(name).ok(),
        InheritEnv::Only(names) if names.iter().any(|known| known == name) => std::env::var(name).ok(),
        InheritEnv::Only(_) | InheritEnv::Nothing => None,
    };
    spec.env.get(name).cloned().or_else(inherited).filter(|value| !value.is_empty())
}

fn text(path: &Path) -> Result<String, ProfileError> {
    path.to_str().map(str::to_owned).ok_or_else(|| ProfileError::Path(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn nobodys_place_is_taken() {
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
