//! Files of a launcher of Python processes.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::job::{Generation, ProcId};
use crate::launch::guard::run_dir::proc_name;
use crate::private;

use super::helper::write_whole;

const SECRET_BYTES: usize = 32;

/// Secret by which the processes of a job authenticate each other. Its `Debug` form does not contain the value.
#[derive(Clone)]
pub(super) struct Secret(String);

impl Secret {
    /// Returns the value, for the environment of a process.
    pub(super) fn for_process(&self) -> String {
        self.0.clone()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Directory of the files; see [`PythonLauncher`](super::PythonLauncher) for its layout.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn new(dir: PathBuf) -> Files {
        Files(std::path::absolute(&dir).unwrap_or(dir)) // processes may run in another directory
    }

    pub(super) fn helper_dir(&self) -> PathBuf {
        self.0.join("python")
    }

    /// Returns the path of a process's error record.
    pub(super) fn error(&self, proc: &ProcId) -> PathBuf {
        self.errors().join(format!("{}.json", proc_name(proc)))
    }

    /// Returns the directory of the error records.
    pub(super) fn errors(&self) -> PathBuf {
        self.0.join("errors")
    }

    /// Returns the port that an earlier owner chose for this generation.
    pub(super) fn read_port(&self, generation: Generation) -> Option<u16> {
        let text = String::from_utf8(private::read(&self.port(), 100).ok()?).ok()?;
        let (of, port) = text.trim().split_once(' ')?;
        (of.parse() == Ok(generation.0)).then(|| port.parse().ok()).flatten()
    }

    /// Stores the port for a later owner. If this fails, a later owner that has to repeat the start chooses another
    /// port.
    pub(super) fn write_port(&self, generation: Generation, port: u16) {
        let _ = write_whole(&self.port(), &format!("{} {port}\n", generation.0));
    }

    /// Returns the secret of this directory's jobs in hexadecimal: that of an earlier owner, whose processes may still
    /// run, otherwise a new one. If it cannot be stored, a later owner has a different secret, and has to start its
    /// ranks again.
    pub(super) fn secret(&self) -> io::Result<Secret> {
        let path = self.0.join("secret");
        let earlier =
            private::read(&path, 2 * SECRET_BYTES as u64).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let is_whole = |text: &String| text.len() == 2 * SECRET_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
        if let Some(earlier) = earlier.filter(is_whole) {
            return Ok(Secret(earlier));
        }
        let mut random = [0; SECRET_BYTES];
        private::fill_with_random(&mut random)?;
        let new: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        if let Err(error) = private::make_dir(&self.0).and_then(|()| private::write(&path, new.as_bytes())) {
            tracing::warn!("the job's secret cannot be kept for a later owner in {}: {error}", path.display());
        }
        Ok(Secret(new))
    }

    /// Returns the control socket of the rendezvous service.
    pub(super) fn meeting(&self) -> PathBuf {
        self.0.join("meeting.sock")
    }

    /// Returns the socket at which a process requests the listener of the generation's port.
    pub(super) fn lender(&self) -> PathBuf {
        self.0.join("port.sock")
    }

    fn port(&self) -> PathBuf {
        self.0.join("port")
    }
}

/// Prepares the place of a new process's error record: removes a record that an earlier job has left there.
///
/// If this fails, the process has no record, and its stderr is the only source about a failure.
pub(super) fn make_room(error: &Path) {
    let _ = error.parent().map(private::make_dir);
    let _ = fs::remove_file(error);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_port_is_read_back_for_its_generation_only() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().join("deep"));
        assert_eq!(files.read_port(Generation(7)), None);
        files.write_port(Generation(7), 29_501);
        assert_eq!(files.read_port(Generation(7)), Some(29_501));
        assert_eq!(files.read_port(Generation(8)), None);
        fs::write(files.port(), "7").unwrap();
        assert_eq!(files.read_port(Generation(7)), None);
    }

    #[test]
    fn the_secret_is_reused_by_a_later_owner_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| Files::new(dir.path().join(name)).secret().unwrap();
        let first = of("one");
        assert_eq!((first.0.len(), &of("one").0), (64, &first.0));
        assert_ne!(of("two").0, first.0);
        assert_eq!(format!("{first:?}"), "Secret");
        assert_eq!(fs::metadata(dir.path().join("one/secret")).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(dir.path().join("one/secret"), "cut").unwrap();
        assert_eq!(of("one").0.len(), 64);
    }

    #[test]
    fn an_earlier_jobs_record_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned());
        let error = files.error(&ProcId::rank(3, 2));
        make_room(&error);
        fs::write(&error, "old").unwrap();
        make_room(&error);
        assert!(!dir.path().join("errors/rank-3.2.json").exists());
        assert!(dir.path().join("errors").is_dir());
    }
}
