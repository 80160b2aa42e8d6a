//! The Python files that travel in the program itself, and are written where ranks find them.

use std::io;
use std::path::Path;

use crate::private;

/// A file of the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFile {
    /// Its path below the directory on PYTHONPATH.
    pub path: &'static str,
    /// What it holds.
    pub text: &'static str,
}

macro_rules! python_files {
    ($($path:literal)*) => {
        [$(PythonFile { path: $path, text: include_str!(concat!("../../../python/", $path)) }),*]
    };
}

/// What every framework needs: the helper, and the package that it has record what a rank does.
pub const NEUTRAL_FILES: [PythonFile; 35] = python_files! {
    "sitecustomize.py"
    "_taskd_ahead.py"
    "_taskd_as_new.py"
    "_taskd_claim.py"
    "_taskd_error.py"
    "_taskd_port.py"
    "_taskd_standby.py"
    "taskd/__init__.py"
    "taskd/_aborted.py"
    "taskd/_auth.py"
    "taskd/_away.py"
    "taskd/_batches.py"
    "taskd/_beforehand.py"
    "taskd/_c_functions.py"
    "taskd/_callbacks.py"
    "taskd/_codec.py"
    "taskd/_copy.py"
    "taskd/_dumps.py"
    "taskd/_frames.py"
    "taskd/_hooks.py"
    "taskd/_install.py"
    "taskd/_keep.py"
    "taskd/_kinds.py"
    "taskd/_leaving.py"
    "taskd/_link.py"
    "taskd/_listener.py"
    "taskd/_loop.py"
    "taskd/_marks.py"
    "taskd/_memory.py"
    "taskd/_native.py"
    "taskd/_obey.py"
    "taskd/_recovery.py"
    "taskd/_session.py"
    "taskd/_step.py"
    "taskd/_steps.py"
};

/// Writes the helper of a framework with these files of its own into a directory, which is then for PYTHONPATH.
///
/// A file that is there already is left alone: one that ranks of an earlier owner may be reading is never opened for
/// writing. `sitecustomize.py`, which brings in the others, comes last.
///
/// # Errors
/// What the system says of the first file that cannot be written.
pub fn write_helper(dir: &Path, framework: &[PythonFile]) -> io::Result<()> {
    framework.iter().chain(NEUTRAL_FILES.iter().rev()).try_for_each(|file| {
        let path = dir.join(file.path);
        match private::read(&path, file.text.len() as u64) {
            Ok(there) if there == file.text.as_bytes() => Ok(()),
            _ => write_whole(&path, file.text),
        }
    })
}

/// Nobody ever reads half of it.
pub(super) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), private::make_dir)?;
    private::write(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    const OWN: PythonFile = PythonFile { path: "taskd/_own.py", text: "own = True\n" };

    #[test]
    fn the_helper_is_written_once_and_mended() {
        let dir = tempfile::tempdir().unwrap();
        let files = || NEUTRAL_FILES.into_iter().chain([OWN]);
        let path = |file: PythonFile| dir.path().join(file.path);
        let written = || files().map(|file| fs::metadata(path(file)).unwrap().modified().unwrap()).collect::<Vec<_>>();
        write_helper(dir.path(), &[OWN]).unwrap();
        let first = written();
        write_helper(dir.path(), &[OWN]).unwrap();
        assert_eq!(written(), first);
        for file in files() {
            fs::write(path(file), "cut sho").unwrap();
            write_helper(dir.path(), &[OWN]).unwrap();
            assert_eq!(fs::read_to_string(path(file)).unwrap(), file.text);
        }
    }

    #[test]
    fn what_is_carried_is_all_that_lies_there() {
        let list = |dir: &str| fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(dir)).unwrap();
        let names = list("taskd").map(|entry| format!("taskd/{}", entry.unwrap().file_name().display()));
        let names: BTreeSet<String> = names.filter(|name| name.ends_with(".py")).collect();
        let known = NEUTRAL_FILES.iter().map(|file| file.path.to_owned()).filter(|path| path.contains('/')).collect();
        assert_eq!(names, known, "a file that is not carried is missing where the program runs");
    }
}
