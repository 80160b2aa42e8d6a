// Builds a library that travels inside of programs: part of this crate's build script, and of those of crates that carry a
// library of their own. A user's `cargo build` is all the build there is.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of Rust sources that need nothing but the standard library.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    /// Its name: `taskd` for `libtaskd.so`.
    pub(crate) name: &'static str,
    /// Its first file.
    pub(crate) root: &'static str,
    /// What cargo has to watch.
    pub(crate) sources: &'static [&'static str],
    /// What a process goes without where it could not be built.
    pub(crate) without: &'static str,
}

/// Whatever a user builds with: the library catches panics, brings no C library of its own and writes no profile.
const OPTIONS: [&str; 7] = [
    "opt-level=3",
    "codegen-units=1",
    "panic=unwind",
    "strip=symbols",
    "instrument-coverage=off",
    "target-feature=-crt-static",
    "link-arg=-Wl,-z,nodelete", // what its threads hold is dropped by its code, whenever they end
];

impl Library {
    /// Builds it into cargo's output directory. The file is empty where that cannot be, which is said.
    pub(crate) fn build(self) {
        for source in self.sources {
            println!("cargo:rerun-if-changed={source}");
        }
        let file = format!("lib{}.so", self.name);
        let library = PathBuf::from(variable("OUT_DIR")).join(&file);
        let (target, host) = (variable("TARGET"), variable("HOST"));
        if let Err(problem) = self.compile(&library, &target) {
            // What cannot be linked for another machine may still be checked and documented.
            assert!(target != host, "{file} cannot be built: {problem}");
            println!("cargo:warning=built without {file}, so that {}: {problem}", self.without);
            println!("cargo:rerun-if-changed=this-file-is-never-there"); // once there is a linker, cargo shall try again
            std::fs::write(&library, []).expect("cargo's output directory can be written");
        }
    }

    fn compile(self, library: &Path, target: &OsString) -> Result<(), String> {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc.args(["--crate-name", self.name, "--crate-type", "cdylib", "--edition", "2024", "--cap-lints", "allow"]);
        rustc.arg(self.root).arg("--target").arg(target).arg("-o").arg(library);
        let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
        rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
        rustc.args(OPTIONS.iter().flat_map(|option| ["-C", option]));
        rustc.arg("-C").arg(format!("link-arg=-Wl,-soname,lib{}.so", self.name));
        if let Some(linker) = env::var_os("RUSTC_LINKER") {
            let mut option = OsString::from("linker=");
            option.push(linker);
            rustc.arg("-C").arg(option);
        }
        let out =
            rustc.output().map_err(|error| format!("{} cannot be started: {error}", rustc.get_program().display()))?;
        match out.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    }
}

/// A variable that cargo sets for build scripts.
fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"))
}
