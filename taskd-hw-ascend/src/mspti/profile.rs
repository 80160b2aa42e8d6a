//! What a rank's environment needs for its device to be recorded.
//!
//! It starts nothing and loads nothing: where a file is missing it says so, and the job runs without.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use taskd_core::job::WorkerSpec;
use taskd_core::worker::library::{self, Library};

use super::cann::CannEnv;

/// The probe: `libtaskd_mspti.so`.
pub const PROBE: Library =
    Library::new("libtaskd_mspti", include_bytes!(concat!(env!("OUT_DIR"), "/libtaskd_mspti.so")));

/// Where the vendor's installer puts CANN.
const USUAL_HOME: &str = "/usr/local/Ascend/ascend-toolkit/latest";
/// What stand-ins declare themselves by.
const STAND_IN: &[u8] = b"taskd_standin_mspti\0";
/// Bytes of a library that are looked at.
const LIBRARY_BYTES_MAX: u64 = 256 << 20;
/// What separates the names in `LD_PRELOAD`, so that no name can hold it.
const SEPARATORS: [char; 5] = [':', ' ', '\t', '\n', '\0'];

/// The libraries that a rank loads, and the environment that they need.
#[derive(Clone, Debug)]
pub struct MsptiProfile {
    mspti: String,
    probe: String,
    libtaskd: String,
    is_stand_in: bool,
    cann: CannEnv,
}

/// Why ranks cannot record what their devices do. Training goes on without.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// There is no libmspti.so on this machine.
    #[error(
        "mspti is unavailable: there is no libmspti.so (looked for: {}): install CANN, or name the file in TASKD_MSPTI_LIB",
        shown(looked_for)
    )]
    Unavailable {
        /// Where it was looked for, in this order.
        looked_for: Vec<PathBuf>,
    },
    /// The library is there and cannot be read.
    #[error("mspti is unavailable: {} cannot be read: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A library stands where `LD_PRELOAD` cannot name it.
    #[error("{path:?} cannot be named in LD_PRELOAD, as it holds a space or a colon: move or link it elsewhere")]
    Unnameable {
        /// Which file.
        path: PathBuf,
    },
    /// The probe or `libtaskd.so` cannot be written to where ranks can load it.
    #[error("a library of this program cannot be unpacked: {0}")]
    Unpacked(io::Error),
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl MsptiProfile {
    /// With the libmspti.so of this machine: the file that `TASKD_MSPTI_LIB` names and no other, else the first that is there of
    /// `lib64/libmspti.so` below `ASCEND_HOME_PATH`, below `ASCEND_TOOLKIT_HOME`, and below
    /// `/usr/local/Ascend/ascend-toolkit/latest`.
    ///
    /// # Errors
    /// [`ProfileError`], when it or a library of this program cannot be had.
    pub fn find() -> Result<MsptiProfile, ProfileError> {
        let places = places(|name| env::var_os(name).map(PathBuf::from));
        match places.iter().find(|place| place.is_file()) {
            Some(found) => MsptiProfile::of(found),
            None => Err(ProfileError::Unavailable { looked_for: places }),
        }
    }

    /// With this libmspti.so, of which there has to be a file of that very name: frameworks emit their markers when they see it
    /// in `LD_PRELOAD`.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn of(mspti: impl AsRef<Path>) -> Result<MsptiProfile, ProfileError> {
        let path = mspti.as_ref();
        if path.file_name() != Some(OsStr::new("libmspti.so")) || !path.is_file() {
            return Err(ProfileError::Unavailable { looked_for: vec![path.to_owned()] });
        }
        let is_stand_in =
            declares_stand_in(path).map_err(|error| ProfileError::Unreadable { path: path.to_owned(), error })?;
        let unpacked = |library: &Library| nameable(&library.unpack().map_err(ProfileError::Unpacked)?);
        Ok(MsptiProfile {
            mspti: nameable(path)?,
            probe: unpacked(&PROBE)?,
            libtaskd: unpacked(&library::LIBTASKD)?,
            is_stand_in,
            cann: CannEnv::default(),
        })
    }

    /// With the environment that CANN's `set_env.sh` makes.
    #[must_use]
    pub fn with_cann(mut self, cann: CannEnv) -> MsptiProfile {
        self.cann = cann;
        self
    }

    /// Whether the library says of itself that no device is behind it.
    #[must_use]
    pub const fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }

    /// Completes what a rank is started with. What the specification itself sets wins over CANN's environment;
    /// `inherited` are the variables that it would get from the launcher's environment. A rank with `TASKD_HOOKS=0` stays as it
    /// is.
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

    /// What is preloaded stays and stands first, as allocators have to; behind it the vendor's library, unless one is there; then
    /// the probe, and the recorder.
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

/// Where libmspti.so is looked for.
fn places(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let told = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = told("TASKD_MSPTI_LIB") {
        return vec![path];
    }
    let homes = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"].into_iter().filter_map(told);
    homes.chain([PathBuf::from(USUAL_HOME)]).map(|home| home.join("lib64/libmspti.so")).collect()
}

fn declares_stand_in(path: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIBRARY_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes.windows(STAND_IN.len()).any(|window| window == STAND_IN))
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
    fn what_is_preloaded_stays_first_and_nothing_is_there_twice() {
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
    fn it_is_looked_for_where_the_documentation_says() {
        let at = |told: &[(&str, &str)]| {
            let told: Vec<(String, PathBuf)> = told.iter().map(|(n, p)| ((*n).to_owned(), PathBuf::from(p))).collect();
            places(|name| told.iter().find(|(known, _)| known == name).map(|(_, path)| path.clone()))
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
