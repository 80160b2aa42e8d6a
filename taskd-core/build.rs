//! Builds `libtaskd.so` of `src/worker/abi`, which travels inside every program that uses this crate: a user's `cargo build` is
//! all the build there is.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the library.
const SOURCES: [&str; 2] = ["src/worker/abi", "src/trace/recorder"];
/// Whatever a user builds with: the library catches panics, brings no C library of its own and writes no profile.
const OPTIONS: [&str; 8] = [
    "opt-level=3",
    "codegen-units=1",
    "panic=unwind",
    "strip=symbols",
    "instrument-coverage=off",
    "target-feature=-crt-static",
    "link-arg=-Wl,-soname,libtaskd.so",
    "link-arg=-Wl,-z,nodelete", // its threads' recorders are dropped by its code, whenever they end
];

fn main() {
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let library = PathBuf::from(variable("OUT_DIR")).join("libtaskd.so");
    let (target, host) = (variable("TARGET"), variable("HOST"));
    if let Err(problem) = build(&library, &target) {
        // What cannot be linked for another machine may still be checked and documented.
        assert!(target != host, "libtaskd.so cannot be built: {problem}");
        println!("cargo:warning=built without libtaskd.so, so that ranks record nothing: {problem}");
        println!("cargo:rerun-if-changed=this-file-is-never-there"); // once there is a linker, cargo shall try again
        std::fs::write(&library, []).expect("cargo's output directory can be written");
    }
}

fn build(library: &Path, target: &OsString) -> Result<(), String> {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--crate-name", "taskd", "--crate-type", "cdylib", "--edition", "2024", "--cap-lints", "allow"]);
    rustc.arg("src/worker/abi/lib.rs").arg("--target").arg(target).arg("-o").arg(library);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.args(OPTIONS.iter().flat_map(|option| ["-C", option]));
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

/// A variable that cargo sets for build scripts.
fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"))
}
