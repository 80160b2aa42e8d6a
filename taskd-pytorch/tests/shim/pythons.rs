//! The Pythons of this machine, by version.

use std::path::PathBuf;
use std::process::Command;

/// CPython 3.`minor`, where it is on PATH or among pyenv's versions.
pub(crate) fn version(minor: u32) -> Option<PathBuf> {
    let says = |python: PathBuf| {
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
        versions.into_iter().find_map(|version| says(version.join(format!("bin/python3.{minor}"))))
    };
    says(PathBuf::from(format!("python3.{minor}"))).or_else(of_pyenv)
}
