//! A clock, a file, a socket, a thread, a hash map or tokio in this package fails its build or its lints.
//!
//! The test copies the package into a workspace of its own and runs clippy as `.ci/run` does: on the package as it is, and
//! then, with the same manifest and lints, on a root file that has one use at a time.

#![allow(clippy::unwrap_used)] // helpers of tests are tests
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)] // this program is not part of the package

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Each use, with a part of the message that denies it.
const USES: [(&str, &str); 12] = [
    ("pub async fn f() { tokio::task::yield_now().await }", "`tokio`"),
    ("pub fn f() -> i32 { unsafe { libc::getpid() } }", "`libc`"),
    ("pub fn f() { let _ = std::time::Instant::now(); }", "std::time::Instant"),
    ("pub fn f() { let _ = std::time::SystemTime::now(); }", "std::time::SystemTime"),
    ("pub fn f() -> bool { std::fs::read(\"x\").is_ok() }", "std::fs::read"),
    ("pub fn f() -> bool { std::fs::File::open(\"x\").is_ok() }", "std::fs::File"),
    ("pub fn f() -> bool { std::net::TcpStream::connect(\"127.0.0.1:1\").is_ok() }", "std::net::TcpStream"),
    ("pub fn f() { drop(std::thread::spawn(|| ())) }", "std::thread::spawn"),
    ("pub fn f() -> usize { std::collections::HashMap::<u8, u8>::new().len() }", "std::collections::HashMap"),
    ("pub fn f() -> bool { std::env::var(\"X\").is_ok() }", "std::env::var"),
    ("pub fn f() -> bool { std::process::Command::new(\"x\").spawn().is_ok() }", "std::process::Command"),
    ("pub fn f() { println!() }", "println"),
];

/// The package in a workspace of its own, without its tests and what only they need.
struct Copy {
    dir: tempfile::TempDir,
    target: PathBuf,
}

impl Copy {
    fn new() -> Copy {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.parent().unwrap().parent().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        let workspace: String = workspace
            .lines()
            .filter(|line| !line.starts_with("default-members"))
            .map(|line| format!("{line}\n"))
            .collect();
        let (head, tail) = split_around(&workspace, "members = [", "]\n");
        fs::write(dir.path().join("Cargo.toml"), format!("{head}members = [\"kernel\"]\n{tail}")).unwrap();
        fs::copy(root.join("Cargo.lock"), dir.path().join("Cargo.lock")).unwrap();
        let to = dir.path().join("kernel");
        copy_dir(&package.join("src"), &to.join("src"));
        fs::copy(package.join("clippy.toml"), to.join("clippy.toml")).unwrap();
        let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
        let (head, tail) = split_around(&manifest, "[dev-dependencies]\n", "\n\n");
        fs::write(to.join("Cargo.toml"), format!("{head}{tail}")).unwrap();
        // One folder for all runs, so that the dependencies are compiled once.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("purity");
        Copy { dir, target }
    }

    /// Runs clippy on the package.
    fn clippy(&self) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["clippy", "--offline", "-p", "taskd-kernel", "--", "-D", "warnings"]).current_dir(self.dir.path());
        cargo.env("CARGO_TARGET_DIR", &self.target).env_remove("RUSTFLAGS").output().unwrap()
    }

    /// Runs clippy on a root file that consists of this line.
    fn clippy_of(&self, line: &str) -> Output {
        let root = format!("//! Written by a test.\n\n/// Written by a test.\n{line}\n");
        fs::write(self.dir.path().join("kernel/src/lib.rs"), root).unwrap();
        self.clippy()
    }
}

/// Returns the text before `from`, and the text after the next `to`.
fn split_around(text: &str, from: &str, to: &str) -> (String, String) {
    let (head, rest) = text.split_once(from).unwrap();
    (head.to_owned(), rest.split_once(to).unwrap().1.to_owned())
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        match entry.path().is_dir() {
            true => copy_dir(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn an_impure_use_fails_the_build_or_its_lints() {
    if !Command::new(env!("CARGO")).args(["clippy", "--version"]).output().is_ok_and(|out| out.status.success()) {
        println!("skipped: this toolchain has no clippy");
        return;
    }
    let copy = Copy::new();
    let text = |out: &Output| String::from_utf8_lossy(&out.stderr).into_owned();
    let pure = copy.clippy();
    assert!(pure.status.success(), "{}", text(&pure));
    let harmless = copy.clippy_of("pub fn f() {}");
    assert!(harmless.status.success(), "{}", text(&harmless));
    for (line, denied) in USES {
        let out = copy.clippy_of(line);
        assert!(!out.status.success() && text(&out).contains(denied), "{line}: {}", text(&out));
    }
}
