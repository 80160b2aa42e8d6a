//! Finds an interpreter of a requested version: on PATH, otherwise among those of pyenv.
//!
//! This module installs no interpreter.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{VenvError, VenvSpec, set};

/// Version of CPython, as `(major, minor)`.
pub(super) type Version = (u32, u32);

/// Returns the first interpreter on PATH with a suitable version: `python3`, then the versioned names in the order of
/// the specification; otherwise pyenv's first in that order.
pub(super) fn interpreter(spec: &'static VenvSpec) -> Result<(PathBuf, Version), VenvError> {
    let mut found = Vec::new();
    let versioned = spec.versions.iter().map(|(major, minor)| format!("python{major}.{minor}"));
    for name in std::iter::once("python3".to_owned()).chain(versioned) {
        match probe(name.as_ref()) {
            Some((python, version)) if spec.versions.contains(&version) => return Ok((python, version)),
            Some((_, (major, minor))) => found.push(format!("{name} is {major}.{minor}")),
            None => {}
        }
    }
    let of_pyenv = pyenv_root().map(|root| installed_below(&root)).unwrap_or_default();
    let place = |(_, version): &(PathBuf, Version)| spec.versions.iter().position(|wanted| wanted == version);
    if let Some(fitting) = of_pyenv.iter().filter(|python| place(python).is_some()).min_by_key(|python| place(python)) {
        return Ok(fitting.clone());
    }
    found.extend(of_pyenv.iter().map(|(_, (major, minor))| format!("pyenv has {major}.{minor}")));
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(VenvError::NoPython { spec, found })
}

fn pyenv_root() -> Option<PathBuf> {
    set("PYENV_ROOT").map(PathBuf::from).or_else(|| Some(PathBuf::from(set("HOME")?).join(".pyenv")))
}

/// Returns the interpreters that pyenv has installed below `pyenv_root` and that start, sorted by path.
fn installed_below(pyenv_root: &Path) -> Vec<(PathBuf, Version)> {
    let entries = fs::read_dir(pyenv_root.join("versions")).into_iter().flatten();
    let mut pythons: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("bin/python")).collect();
    pythons.sort();
    pythons.iter().filter_map(|python| probe(python.as_os_str())).collect()
}

/// Runs an interpreter to get its path and version. Returns `None` if it is missing or is not Python 3.
fn probe(name: &OsStr) -> Option<(PathBuf, Version)> {
    let script = "import sys; print('%d %d %s' % (sys.version_info[0], sys.version_info[1], sys.executable))";
    let out = Command::new(name).args(["-c", script]).output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?;
    let mut words = text.trim_end_matches('\n').splitn(3, ' ');
    let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((PathBuf::from(words.next()?), version)).filter(|(_, (major, _))| *major == 3)
}

#[cfg(test)]
mod tests {
    use super::super::tests::script;
    use super::*;

    #[test]
    fn pyenv_pythons_are_listed_with_their_probed_version() {
        let root = tempfile::tempdir().unwrap();
        let python = |name: &str, answer: &str| {
            let bin = root.path().join("versions").join(name).join("bin");
            fs::create_dir_all(&bin).unwrap();
            script(&bin.join("python"), answer);
        };
        python("2.7.18", "echo 2 7 /old");
        python("3.10.13", "echo 3 10 /usr/the one/python");
        python("3.9.18", "exit 1");
        fs::create_dir_all(root.path().join("versions/half-installed")).unwrap();
        assert_eq!(installed_below(root.path()), [(PathBuf::from("/usr/the one/python"), (3, 10))]);
        assert_eq!(installed_below(&root.path().join("none")), []);
    }
}
