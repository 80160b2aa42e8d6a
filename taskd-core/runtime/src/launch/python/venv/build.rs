//! Builds one virtual environment, once.
//!
//! This module does not choose the environment, and does not change a finished one.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock, statvfs};

use super::{VenvError, VenvSpec};
use crate::private;

/// Bytes of pip's and venv's stderr kept for the error.
const DETAIL_BYTES: usize = 16 * 1024;

/// Lines of stderr quoted in an error of unknown cause.
const DETAIL_LINES: usize = 4;

/// pip's messages for an index that does not answer.
const UNREACHABLE: [&str; 5] = [
    "NewConnectionError",
    "ConnectTimeoutError",
    "Could not fetch URL",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
];

/// Input of a build.
pub(super) struct Recipe<'a> {
    /// The packages to install, and the modules that have to be importable at the end.
    pub(super) spec: &'static VenvSpec,
    /// Directory of the environment.
    pub(super) venv: PathBuf,
    /// The Python interpreter to build it with.
    pub(super) python: &'a Path,
}

impl Recipe<'_> {
    /// Builds the environment unless it is finished. Of several callers the first builds it; the others wait.
    pub(super) fn ensure(&self, progress: &mut dyn FnMut(&str)) -> Result<(), VenvError> {
        if let Some(parent) = self.venv.parent() {
            private::make_dir(parent).map_err(cache_error(parent))?; // its content is executed
        }
        if self.ready() {
            return Ok(());
        }
        let lock = lock(&self.venv.with_extension("lock"), progress)?;
        if self.ready() {
            return Ok(()); // built by the process that held the lock
        }
        let started = Instant::now();
        remove(&self.venv)?;
        if self.free_bytes() < self.spec.needs_bytes {
            return Err(self.disk_full());
        }
        progress(&format!(
            "making the Python environment {}: {} with all its dependencies, {}",
            self.venv.display(),
            self.spec.what,
            self.spec.takes
        ));
        self.make(&lock, progress)?;
        let marker = self.marker();
        fs::write(&marker, self.spec.requirements).map_err(cache_error(&marker))?;
        progress(&format!("the Python environment is ready after {} s", started.elapsed().as_secs()));
        Ok(())
    }

    /// Returns true if the environment is finished: the marker exists, and so does the Python that it was built from.
    fn ready(&self) -> bool {
        self.marker().is_file() && self.own_python().exists()
    }

    fn marker(&self) -> PathBuf {
        self.venv.join("taskd-ready")
    }

    fn own_python(&self) -> PathBuf {
        self.venv.join("bin/python")
    }

    /// Runs the three steps, each of which can fail: an empty environment, the packages, a first import.
    fn make(&self, lock: &File, progress: &mut dyn FnMut(&str)) -> Result<(), VenvError> {
        self.step(Command::new(self.python).args(["-m", "venv"]).arg(&self.venv), lock, &mut |_| ()).map_err(
            |stderr| self.cause(&stderr, |detail| VenvError::NoVenvModule { python: self.python.to_owned(), detail }),
        )?;
        let install_failed =
            |stderr: String| self.cause(&stderr, |detail| VenvError::Install { path: self.venv.clone(), detail });
        let list = self.venv.join("requirements.txt");
        fs::write(&list, self.spec.requirements).map_err(cache_error(&list))?;
        let mut pip = Command::new(self.own_python());
        pip.args(["-m", "pip", "install", "--no-input", "--progress-bar", "off", "--disable-pip-version-check", "-r"]);
        self.step(pip.arg(&list), lock, &mut |line| {
            if let Some(line) = notable(line) {
                progress(line);
            }
        })
        .map_err(install_failed)?;
        progress("importing the modules for the first time");
        let import = format!("import {}", self.spec.modules.join(", "));
        self.step(Command::new(self.own_python()).args(["-c", &import]), lock, &mut |_| ()).map_err(install_failed)
    }

    /// Runs one step of the build to its end. Passes its stdout to `line`, line by line; the error is the end of its
    /// stderr.
    ///
    /// The build lock is the child's standard input. A pip that outlives a killed builder therefore keeps the lock for
    /// as long as it writes into the environment, and no other builder removes the environment meanwhile.
    fn step(&self, command: &mut Command, lock: &File, line: &mut dyn FnMut(&str)) -> Result<(), String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let text = |error: io::Error| format!("{program}: {error}");
        let stdin = lock.try_clone().map_err(text)?;
        let mut child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(text)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let errors = std::thread::scope(|scope| {
            let errors = scope.spawn(|| stderr.map(tail).unwrap_or_default());
            for bytes in stdout.into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok) {
                line(&String::from_utf8_lossy(&bytes));
            }
            errors.join().unwrap_or_default()
        });
        let status = child.wait().map_err(text)?;
        if status.success() { Ok(()) } else { Err(format!("{errors}\n{status}")) }
    }

    /// Converts the stderr of a failed step to an error: one whose cause a user can remedy, otherwise the error that
    /// `other` makes.
    fn cause(&self, stderr: &str, other: impl FnOnce(String) -> VenvError) -> VenvError {
        if stderr.contains("No space left on device") {
            return self.disk_full();
        }
        let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        if let Some(errors) = lines.clone().find(|line| UNREACHABLE.iter().any(|words| line.contains(words))) {
            return VenvError::IndexUnreachable { spec: self.spec, detail: errors.to_owned() };
        }
        let mut last: Vec<&str> = lines.by_ref().rev().take(DETAIL_LINES).collect();
        last.reverse();
        other(last.join(" | "))
    }

    fn disk_full(&self) -> VenvError {
        VenvError::DiskFull { path: self.venv.clone(), needs: self.spec.needs_bytes, free: self.free_bytes() }
    }

    /// Returns the free bytes on the environment's file system; a file system that reports no figure counts as
    /// unlimited.
    fn free_bytes(&self) -> u64 {
        let parent = self.venv.parent().unwrap_or(&self.venv);
        statvfs(parent).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Takes the build lock, after waiting for another builder. The system releases it when its last holder ends.
fn lock(path: &Path, progress: &mut dyn FnMut(&str)) -> Result<File, VenvError> {
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(cache_error(path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        progress("waiting for another process that is making the Python environment");
        flock(&file, FlockOperation::LockExclusive).map_err(|error| cache_error(path)(error.into()))?;
    }
    Ok(file)
}

/// Removes the remains of an incomplete build.
fn remove(venv: &Path) -> Result<(), VenvError> {
    match fs::remove_dir_all(venv) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cache_error(venv)(error)),
        _ => Ok(()),
    }
}

/// Reads to the end; keeps at least the last [`DETAIL_BYTES`], and at most twice that.
fn tail(mut from: impl Read) -> String {
    let (mut kept, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        kept.extend_from_slice(chunk.get(..n).unwrap_or_default());
        if kept.len() > 2 * DETAIL_BYTES {
            kept.drain(..kept.len() - DETAIL_BYTES);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Selects the lines of pip that are progress for a user: large downloads, and the start of the long last step.
fn notable(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with("Installing collected packages") {
        return Some("unpacking: the longest step, a minute or more");
    }
    (line.starts_with("Downloading ") && line.ends_with(" MB)")).then_some(line)
}

fn cache_error(path: &Path) -> impl FnOnce(io::Error) -> VenvError + use<> {
    let path = path.to_owned();
    move |source| VenvError::Cache { path, source }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::tests::{SPEC, script};
    use super::*;

    /// Makes a cache directory, and a shell script in place of Python; `pip` is its body for `pip install`.
    fn cache(pip: &str) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("python");
        let text = format!(
            "case \"$1 $2\" in
                '-m venv') mkdir -p \"$3/bin\"; cp \"$0\" \"$3/bin/python\"; echo made >> \"$3.log\";;
                '-m pip') {pip};;
            esac"
        );
        script(&python, &text);
        (dir, python)
    }

    fn recipe<'a>(dir: &TempDir, python: &'a Path) -> Recipe<'a> {
        Recipe { spec: &SPEC, venv: dir.path().join("deep/venv"), python }
    }

    fn times_made(dir: &TempDir) -> usize {
        fs::read_to_string(dir.path().join("deep/venv.log")).unwrap().lines().count()
    }

    #[test]
    fn an_environment_that_another_user_could_have_put_there_is_not_used() {
        let (dir, python) = cache("true");
        recipe(&dir, &python).ensure(&mut |_| ()).unwrap();
        let parent = dir.path().join("deep");
        fs::set_permissions(&parent, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        let why = recipe(&dir, &python).ensure(&mut |_| ()).unwrap_err().to_string();
        assert!(why.contains("deep cannot be used for the Python environment: other users may write to"), "{why}");
    }

    #[test]
    fn several_at_once_make_it_once() {
        let (dir, python) = cache("sleep 0.2");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| recipe(&dir, &python).ensure(&mut |_| ()).unwrap());
            }
        });
        assert_eq!(times_made(&dir), 1);
        assert!(dir.path().join("deep/venv/taskd-ready").is_file());
    }

    #[test]
    fn progress_names_what_takes_long() {
        let (dir, python) = cache(
            "echo 'Collecting a'; echo '  Downloading a.whl (899.8 MB)'; echo 'Downloading b.whl (9 kB)'
             echo 'Installing collected packages: a, b'",
        );
        let mut lines = Vec::new();
        recipe(&dir, &python).ensure(&mut |line| lines.push(line.to_owned())).unwrap();
        assert!(lines[0].starts_with("making the Python environment"), "{lines:?}");
        assert_eq!(lines[1], "Downloading a.whl (899.8 MB)");
        assert!(lines[2].starts_with("unpacking"), "{lines:?}");
        assert_eq!(lines.len(), 5, "{lines:?}");

        lines.clear();
        recipe(&dir, &python).ensure(&mut |line| lines.push(line.to_owned())).unwrap();
        assert!(lines.is_empty(), "nothing to do, nothing to say: {lines:?}");
    }

    #[test]
    fn an_unfinished_or_broken_environment_is_made_again() {
        let (dir, python) = cache("true");
        let recipe = recipe(&dir, &python);
        fs::create_dir_all(recipe.venv.join("bin")).unwrap();
        fs::write(recipe.venv.join("bin/half"), "left by a killed build").unwrap();
        recipe.ensure(&mut |_| ()).unwrap();
        assert!(!recipe.venv.join("bin/half").exists());
        assert_eq!(times_made(&dir), 1);

        fs::remove_file(recipe.own_python()).unwrap(); // as when the system's Python was removed
        recipe.ensure(&mut |_| ()).unwrap();
        assert_eq!(times_made(&dir), 2);
    }

    #[test]
    fn a_failed_build_names_its_remedy_and_leaves_no_environment() {
        let message_of = |pip: &str, needs_bytes, words: &[&str]| {
            let (dir, python) = cache(pip);
            let spec: &'static VenvSpec = Box::leak(Box::new(VenvSpec { needs_bytes, ..SPEC }));
            let recipe = Recipe { spec, ..recipe(&dir, &python) };
            let message = recipe.ensure(&mut |_| ()).unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
            assert!(!recipe.ready());
        };
        let offline = "echo 'WARNING: Retrying: NewConnectionError(...): Temporary failure in name resolution' >&2
                       echo 'ERROR: No matching distribution found for framework' >&2; exit 1";
        message_of(offline, 0, &["index cannot be reached", "NewConnectionError", "TASKD_PYTHON_OF_TESTS"]);
        let full = "echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1";
        message_of(full, 5_000_000_000, &["too full", "takes 5 GB", "XDG_CACHE_HOME"]);
        message_of("true", u64::MAX, &["too full"]);
        message_of(
            "seq 100000 >&2; echo 'ERROR: odd' >&2; exit 2",
            0,
            &["could not be made: 99999 | 100000 | ERROR: odd"],
        );
        message_of("kill -9 $$", 0, &["could not be made", "signal: 9"]);
    }

    #[test]
    fn a_python_without_venv_and_a_cache_that_is_a_file_are_named() {
        let (dir, python) = cache("true");
        script(&python, "echo 'No module named venv' >&2; exit 1");
        let message = recipe(&dir, &python).ensure(&mut |_| ()).unwrap_err().to_string();
        assert!(
            message.contains("(No module named venv | exit status: 1)") && message.contains("python3-venv"),
            "{message}"
        );

        fs::remove_dir_all(dir.path().join("deep")).unwrap();
        fs::write(dir.path().join("deep"), "").unwrap();
        let message = recipe(&dir, &python).ensure(&mut |_| ()).unwrap_err().to_string();
        assert!(message.contains("deep cannot be used for the Python environment"), "{message}");
    }
}
