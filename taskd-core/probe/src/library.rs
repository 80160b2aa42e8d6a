//! Builds a library that programs embed, in a build script: `cargo build` is the only build that a user runs.
//!
//! The library is a crate of its own, compiled by `rustc` directly. It can use the other modules of this crate by
//! `taskd_probe::...`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A dynamic library, built from Rust sources that need the standard library and this crate only.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Name of the library: `taskd` for `libtaskd.so`.
    pub name: &'static str,
    /// Path of the library's root source file.
    pub root: &'static str,
    /// Source files and directories that cargo watches: a change builds the library again.
    pub sources: &'static [&'static str],
    /// Consequence of a library that cannot be built, as the clause that follows "so that" in cargo's warning.
    pub without: &'static str,
}

/// Options that hold for every user's profile: the library catches panics, links no C library of its own and writes no profile.
const OPTIONS: [&str; 7] = [
    "opt-level=3",
    "codegen-units=1",
    "panic=unwind",
    "strip=symbols",
    "instrument-coverage=off",
    "target-feature=-crt-static",
    "link-arg=-Wl,-z,nodelete", // what its threads hold is dropped by its code, whenever they end
];

/// The sources of the shared modules, which are compiled for the library's target.
const SHARED: [(&str, &str); 10] = [
    (
        "lib.rs",
        "pub mod buffers; pub mod clock; pub mod counters; pub mod dl; pub mod libtaskd; pub mod own_thread; pub mod record; \
         pub mod signals; pub mod slots;",
    ),
    ("buffers.rs", include_str!("buffers.rs")),
    ("clock.rs", include_str!("clock.rs")),
    ("counters.rs", include_str!("counters.rs")),
    ("dl.rs", include_str!("dl.rs")),
    ("libtaskd.rs", include_str!("libtaskd.rs")),
    ("own_thread.rs", include_str!("own_thread.rs")),
    ("record.rs", include_str!("record.rs")),
    ("signals.rs", include_str!("signals.rs")),
    ("slots.rs", include_str!("slots.rs")),
];

impl Library {
    /// Builds the library into cargo's output directory. If the library cannot be built for a target that is not the
    /// host, the file is empty and cargo prints a warning.
    ///
    /// # Panics
    /// Panics if the target is the host and the library cannot be built; the message contains the error.
    pub fn build(self) {
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
        let dir = PathBuf::from(variable("OUT_DIR")).join("taskd_probe");
        let write = |(name, text): (&str, &str)| std::fs::write(dir.join(name), text);
        let written = std::fs::create_dir_all(&dir).and_then(|()| SHARED.into_iter().try_for_each(write));
        written.map_err(|error| format!("{} cannot be written: {error}", dir.display()))?;
        let shared = dir.join("libtaskd_probe.rlib");
        let mut rustc = rustc("taskd_probe", "rlib", target);
        rustc.arg(dir.join("lib.rs")).arg("-o").arg(&shared);
        run(rustc)?;

        let mut rustc = self::rustc(self.name, "cdylib", target);
        let mut external = OsString::from("taskd_probe=");
        external.push(&shared);
        rustc.arg(self.root).arg("--extern").arg(external).arg("-o").arg(library);
        rustc.arg("-C").arg(format!("link-arg=-Wl,-soname,lib{}.so", self.name));
        if let Some(linker) = env::var_os("RUSTC_LINKER") {
            let mut option = OsString::from("linker=");
            option.push(linker);
            rustc.arg("-C").arg(option);
        }
        run(rustc)
    }
}

/// Returns the command of the Rust compiler, with the options that all crates of a library have.
fn rustc(name: &str, kind: &str, target: &OsString) -> Command {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--crate-name", name, "--crate-type", kind, "--edition", "2024", "--cap-lints", "allow"]);
    rustc.arg("--target").arg(target);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.args(OPTIONS.iter().flat_map(|option| ["-C", option]));
    rustc
}

fn run(mut rustc: Command) -> Result<(), String> {
    let out =
        rustc.output().map_err(|error| format!("{} cannot be started: {error}", rustc.get_program().display()))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

/// Returns the value of an environment variable that cargo sets for build scripts.
fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"))
}
