//! The files of a launcher of Python processes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::job::{Generation, ProcId};
use crate::launch::guard::run_dir::proc_name;

use super::helper::write_whole;

/// The directory with all of them; see [`PythonLauncher`](super::PythonLauncher) for its layout.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn new(dir: PathBuf) -> Files {
        Files(std::path::absolute(&dir).unwrap_or(dir)) // processes may run in another directory
    }

    pub(super) fn helper_dir(&self) -> PathBuf {
        self.0.join("python")
    }

    /// What a process writes its failure to.
    pub(super) fn error(&self, proc: &ProcId) -> PathBuf {
        self.errors().join(format!("{}.json", proc_name(proc)))
    }

    /// The directory with what processes write their failures to.
    pub(super) fn errors(&self) -> PathBuf {
        self.0.join("errors")
    }

    /// The port that an earlier owner chose for this generation.
    pub(super) fn read_port(&self, generation: Generation) -> Option<u16> {
        let text = fs::read_to_string(self.port()).ok()?;
        let (of, port) = text.trim().split_once(' ')?;
        (of.parse() == Ok(generation.0)).then(|| port.parse().ok()).flatten()
    }

    /// Notes the port for a later owner. Where this fails, that one chooses anew, should it have to repeat the start.
    pub(super) fn write_port(&self, generation: Generation, port: u16) {
        let _ = write_whole(&self.port(), &format!("{} {port}\n", generation.0));
    }

    /// Where the service at which processes meet is controlled.
    pub(super) fn meeting(&self) -> PathBuf {
        self.0.join("meeting.sock")
    }

    fn port(&self) -> PathBuf {
        self.0.join("port")
    }
}

/// Makes room for the record of a process that is to be started: what lies there is an earlier job's.
///
/// Where this fails the process goes without a record, and its stderr is what tells of its failure.
pub(super) fn make_room(error: &Path) {
    let _ = error.parent().map(fs::create_dir_all);
    let _ = fs::remove_file(error);
}

#[cfg(test)]
mod tests {
    use super::*;

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
