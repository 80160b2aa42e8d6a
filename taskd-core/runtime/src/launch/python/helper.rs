//! Python files that are embedded in the program, and their installation in a directory that ranks can import from.

use std::io;
use std::path::Path;

use crate::private;

/// A Python file that the launcher installs for its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFile {
    /// Path of the file, below the directory on PYTHONPATH.
    pub path: &'static str,
    /// Content of the file.
    pub text: &'static str,
}

macro_rules! python_files {
    ($($path:literal)*) => {
        [$(PythonFile { path: $path, text: include_str!(concat!("../../../python/", $path)) }),*]
    };
}

/// Python files that every framework needs: the helper, and the package with which it records what a rank does.
pub const NEUTRAL_FILES: &[PythonFile] = &python_files! {
    "sitecustomize.py"
    "_taskd_claim.py"
    "_taskd_error.py"
    "_taskd_port.py"
    "_taskd_standby.py"
    "_taskd_standby_prepare.py"
    "_taskd_standby_reset.py"
    "taskd/__init__.py"
    "taskd/_aborted.py"
    "taskd/_attempt.py"
    "taskd/_auth.py"
    "taskd/_batches.py"
    "taskd/_c_functions.py"
    "taskd/_call_stack.py"
    "taskd/_callbacks.py"
    "taskd/_codec.py"
    "taskd/_copy.py"
    "taskd/_directives.py"
    "taskd/_emergency_checkpoint.py"
    "taskd/_frames.py"
    "taskd/_framework.py"
    "taskd/_handoff.py"
    "taskd/_handoff_peers.py"
    "taskd/_hooks.py"
    "taskd/_in_memory_checkpoint.py"
    "taskd/_install.py"
    "taskd/_kinds.py"
    "taskd/_link.py"
    "taskd/_listener.py"
    "taskd/_loop.py"
    "taskd/_native.py"
    "taskd/_phases.py"
    "taskd/_recovery.py"
    "taskd/_replay.py"
    "taskd/_second_copies.py"
    "taskd/_session.py"
    "taskd/_shutdown.py"
    "taskd/_step.py"
    "taskd/_step_recorder.py"
    "taskd/_vendor_marks.py"
};

/// Writes the helper and the files in `framework` into the directory `dir`, which the caller then has to put on
/// PYTHONPATH.
///
/// An identical existing file is left alone: a file that ranks of an earlier owner may be reading is never opened for
/// writing. `sitecustomize.py`, which loads the others, is written last.
///
/// # Errors
/// Returns the error of the first file that cannot be written.
pub fn write_helper(dir: &Path, framework: &[PythonFile]) -> io::Result<()> {
    framework.iter().chain(NEUTRAL_FILES.iter().rev()).try_for_each(|file| {
        let path = dir.join(file.path);
        match private::read(&path, file.text.len() as u64) {
            Ok(there) if there == file.text.as_bytes() => Ok(()),
            _ => write_whole(&path, file.text),
        }
    })
}

/// Writes a file atomically, so that no reader sees part of it.
pub(super) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), private::make_dir)?;
    private::write(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use taskd_core::testing::python::python_files_below;

    const OWN: PythonFile = PythonFile { path: "taskd/theirs/hooks/own.py", text: "own = True\n" };

    #[test]
    fn the_helper_is_written_once_and_mended() {
        let dir = tempfile::tempdir().unwrap();
        let files = || NEUTRAL_FILES.iter().copied().chain([OWN]);
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
    fn embedded_files_are_all_python_files() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let known = NEUTRAL_FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(python_files_below(&dir), known, "a file that is not embedded is missing where the program runs");
    }
}
