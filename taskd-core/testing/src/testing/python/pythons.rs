//! The Python interpreters of this machine.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

/// Returns the interpreter behind `python3` on PATH (which may itself be a wrapper script).
///
/// # Panics
/// Panics if there is no such interpreter.
#[must_use]
pub fn system() -> &'static str {
    static PYTHON: LazyLock<String> = LazyLock::new(|| {
        let out = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let out = out.expect("these tests need python3 on PATH");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    });
    &PYTHON
}

/// Returns the path of the interpreter CPython 3.`minor`, if it is on PATH or among pyenv's versions.
#[must_use]
pub fn version(minor: u32) -> Option<PathBuf> {
    let answer = |python: PathBuf| {
        let script = "import sys; print(sys.executable, sys.version_info[1])";
        let out = Command::new(python).args(["-I", "-c", script]).output().ok().filter(|out| out.status.success())?;
        let text = String::from_utf8(out.stdout).ok()?;
        let (executable, found) = text.trim().rsplit_once(' ')?;
        (found.parse() == Ok(minor)).then(|| PathBuf::from(executable))
    };
    let of_pyenv = || {
        let root =
            std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".pyenv")))?;
        let mut versions: Vec<PathBuf> =
            std::fs::read_dir(root.join("versions")).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        versions.sort();
        versions.into_iter().find_map(|version| answer(version.join(format!("bin/python3.{minor}"))))
    };
    answer(PathBuf::from(format!("python3.{minor}"))).or_else(of_pyenv)
}
