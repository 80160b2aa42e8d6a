//! Environment of a rank whose device is recorded.
//!
//! The profile starts and loads nothing. A missing file is an error, and the job can run without the profile.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use taskd_core::job::WorkerSpec;
use taskd_core::worker::library::{self, Library};

use super::cann::CannEnv;

/// The probe `libtaskd_mspti.so`, a library that a rank loads to record the activity of its device through mspti.
pub const PROBE: Library =
    Library::new("libtaskd_mspti", include_bytes!(concat!(env!("OUT_DIR"), "/libtaskd_mspti.so")));

/// Directory into which the vendor's installer puts CANN.
const USUAL_HOME: &str = "/usr/local/Ascend/ascend-toolkit/latest";
/// Symbol by which a library declares itself a stand-in.
const STAND_IN: &str = "taskd_standin_mspti";
/// Separators of the names in `LD_PRELOAD`, which no name can contain.
const SEPARATORS: [char; 5] = [':', ' ', '\t', '\n', '\0'];

/// The libraries that a rank loads to record the activity of its device, and the environment that they need.
#[derive(Clone, Debug)]
pub struct MsptiProfile {
    mspti: String,
    probe: String,
    libtaskd: String,
    is_stand_in: bool,
    cann: CannEnv,
}

/// Reason why ranks cannot record their devices' activity. Training is unaffected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// This machine has no libmspti.so.
    #[error(
        "mspti is unavailable: there is no libmspti.so (looked for: {}): install CANN, or name the file in TASKD_MSPTI_LIB",
        shown(looked_for)
    )]
    Unavailable {
        /// Paths at which libmspti.so was looked for, in this order.
        looked_for: Vec<PathBuf>,
    },
    /// libmspti.so exists, but cannot be read.
    #[error("mspti is unavailable: {} cannot be read: {error}", path.display())]
    Unreadable {
        /// Path of libmspti.so.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The path of a library contains a character that `LD_PRELOAD` does not allow.
    #[error("{path:?} cannot be named in LD_PRELOAD, as it holds a space or a colon: move or link it elsewhere")]
    Unnameable {
        /// Path of the library.
        path: PathBuf,
    },
    /// The probe or `libtaskd.so` cannot be written to a place from which ranks can load it.
    #[error("a library of this program cannot be unpacked: {0}")]
    Unpacked(io::Error),
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl MsptiProfile {
    /// Creates a profile with this machine's libmspti.so: exactly the file that `TASKD_MSPTI_LIB` names; without this
    /// variable, the first existing file `lib64/libmspti.so` below `ASCEND_HOME_PATH`, below `ASCEND_TOOLKIT_HOME`, and
    /// below `/usr/local/Ascend/ascend-toolkit/latest`.
    ///
    /// # Errors
    /// Returns [`ProfileError`] if libmspti.so does not exist, cannot be read or has a path that `LD_PRELOAD` does not
    /// allow, or if a library of this program cannot be unpacked.
    pub fn find() -> Result<MsptiProfile, ProfileError> {
        let places = places(|name| env::var_os(name).map(PathBuf::from));
        match places.iter().find(|place| place.is_file()) {
            Some(found) => MsptiProfile::of(found),
            None => Err(ProfileError::Unavailable { looked_for: places }),
        }
    }

    /// Creates a profile with the libmspti.so at this path. The file name must be exactly `libmspti.so`: frameworks
    /// emit their markers only if `LD_PRELOAD` contains this name.
    ///
    /// # Errors
    /// Returns the same errors as [`find`](Self::find).
    pub fn of(mspti: impl AsRef<Path>) -> Result<MsptiProfile, ProfileError> {
        let path = mspti.as_ref();
        if path.file_name() != Some(OsStr::new("libmspti.so")) || !path.is_file() {
            return Err(ProfileError::Unavailable { looked_for: vec![path.to_owned()] });
        }
        let is_stand_in = library::has_symbol(path, STAND_IN)
            .map_err(|error| ProfileError::Unreadable { path: path.to_owned(), error })?;
        let unpacked = |library: &Library| nameable(&library.unpack().map_err(ProfileError::Unpacked)?);
        Ok(MsptiProfile {
            mspti: nameable(path)?,
            probe: unpacked(&PROBE)?,
            libtaskd: unpacked(&library::LIBTASKD)?,
            is_stand_in,
            cann: CannEnv::default(),
        })
    }

    /// Adds the environment of CANN's `set_env.sh` to the profile.
    #[must_use]
    pub fn with_cann(mut self, cann: CannEnv) -> MsptiProfile {
        self.cann = cann;
        self
    }

    /// Returns true if the profile's libmspti.so declares itself a stand-in for machines without a device.
    #[must_use]
    pub const fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }

    /// Adds the profile's environment variables to the specification of a rank. Variables of the specification take
    /// precedence over CANN's environment; `inherited` returns the variables that the rank would inherit from the
    /// launcher. A rank with `TASKD_HOOKS=0` is not changed.
    pub fn complete(&self, spec: &mut WorkerSpec, inherited: impl Fn(&str) -> Option<String>) {
        if spec.env.get("TASKD_HOOKS").is_some_and(|hooks| hooks == "0") {
            return;
        }
        for (name, value) in self.cann.variables() {
            spec.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let before = spec.env.get("LD_PRELOAD").cloned().or_else(|| inherited("LD_PRELOAD")).unwrap_or_default();
        spec.env.insert("LD_PRELOAD".into(), self.preload(&before));
        spec.env.entry("TASKD_MSPTI_LIB".into()).or_insert_with(|| self.mspti.clone());
    }

    /// Returns the value of `LD_PRELOAD`: first the libraries that are already there, since allocators have to come
    /// first; then mspti unless it is there, the probe, and the recorder.
    fn preload(&self, before: &str) -> String {
        let mut names: Vec<&str> = before.split(SEPARATORS).filter(|name| !name.is_empty()).collect();
        let has_mspti = names.iter().any(|name| name.ends_with("libmspti.so"));
        let ours = [(!has_mspti).then_some(&self.mspti), Some(&self.probe), Some(&self.libtaskd)];
        for name in ours.into_iter().flatten() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names.join(":")
    }
}

/// Returns the paths at which libmspti.so is searched for, in order; `variable` returns the value of an environment
/// variable.
fn places(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let told = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = told("TASKD_MSPTI_LIB") {
        return vec![path];
    }
    let homes = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"].into_iter().filter_map(told);
    homes.chain([PathBuf::from(USUAL_HOME)]).map(|home| home.join("lib64/libmspti.so")).collect()
}

fn nameable(path: &Path) -> Result<String, ProfileError> {
    let name = path.to_str().filter(|name| !name.contains(SEPARATORS));
    name.map(str::to_owned).ok_or_else(|| ProfileError::Unnameable { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> MsptiProfile {
        let [mspti, probe, libtaskd] = ["/cann/lib64/libmspti.so", "/p.so", "/t.so"].map(str::to_owned);
        MsptiProfile { mspti, probe, libtaskd, is_stand_in: false, cann: CannEnv::default() }
    }

    #[test]
    fn existing_preloads_stay_first_and_no_library_appears_twice() {
        let expected = [
            ("", "/cann/lib64/libmspti.so:/p.so:/t.so"),
            ("/jemalloc.so", "/jemalloc.so:/cann/lib64/libmspti.so:/p.so:/t.so"),
            ("/a.so /other/libmspti.so", "/a.so:/other/libmspti.so:/p.so:/t.so"),
            ("/t.so:/p.so", "/t.so:/p.so:/cann/lib64/libmspti.so"),
        ];
        for (before, after) in expected {
            assert_eq!(profile().preload(before), after);
            assert_eq!(profile().preload(after), after, "once is enough");
        }
    }

    #[test]
    fn the_specification_wins_and_hooks_can_be_off() {
        let cann = CannEnv::of_variables(b"LD_LIBRARY_PATH=/cann/lib64\0ASCEND_HOME_PATH=/cann\0", |_| None).unwrap();
        let profile = profile().with_cann(cann);
        let mut spec = WorkerSpec::new(["train"]).with_env("ASCEND_HOME_PATH", "/mine");
        profile.complete(&mut spec, |name| (name == "LD_PRELOAD").then(|| "/theirs.so".to_owned()));
        let of = |name: &str| spec.env.get(name).map(String::as_str);
        assert_eq!(of("LD_PRELOAD"), Some("/theirs.so:/cann/lib64/libmspti.so:/p.so:/t.so"));
        assert_eq!((of("ASCEND_HOME_PATH"), of("LD_LIBRARY_PATH")), (Some("/mine"), Some("/cann/lib64")));
        assert_eq!(of("TASKD_MSPTI_LIB"), Some("/cann/lib64/libmspti.so"));
        let off = WorkerSpec::new(["train"]).with_env("TASKD_HOOKS", "0");
        let mut same = off.clone();
        profile.complete(&mut same, |_| None);
        assert_eq!(same, off);
    }

    #[test]
    fn mspti_library_is_searched_in_the_documented_places() {
        let at = |vars: &[(&str, &str)]| {
            let vars: Vec<(String, PathBuf)> = vars.iter().map(|(n, p)| ((*n).to_owned(), PathBuf::from(p))).collect();
            places(|name| vars.iter().find(|(known, _)| known == name).map(|(_, path)| path.clone()))
        };
        let usual = PathBuf::from("/usr/local/Ascend/ascend-toolkit/latest/lib64/libmspti.so");
        assert_eq!(at(&[]), std::slice::from_ref(&usual));
        assert_eq!(at(&[("ASCEND_HOME_PATH", "/c"), ("TASKD_MSPTI_LIB", "")]), ["/c/lib64/libmspti.so".into(), usual]);
        assert_eq!(at(&[("ASCEND_HOME_PATH", "/c"), ("TASKD_MSPTI_LIB", "/x.so")]), [PathBuf::from("/x.so")]);
        let missing = MsptiProfile::of("/nowhere/libmspti.so").unwrap_err();
        assert!(matches!(missing, ProfileError::Unavailable { .. }));
        let words = "mspti is unavailable: there is no libmspti.so (looked for: /nowhere/libmspti.so): install CANN";
        assert!(missing.to_string().starts_with(words), "{missing}");
    }

    #[test]
    fn a_path_that_ld_preload_cannot_name_is_refused() {
        let refused = nameable(Path::new("/opt/my libs/libmspti.so")).unwrap_err().to_string();
        assert!(refused.contains("cannot be named in LD_PRELOAD"), "{refused}");
    }
}
