//! The files of a torch launcher.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use taskd_core::job::{Generation, ProcId, Rank};

/// The helper, and the package that it has record what a rank does: they travel in the program itself.
macro_rules! python_files {
    ($($path:literal)*) => { [$(($path, include_str!(concat!("../../python/", $path)))),*] };
}
const HELPER: [(&str, &str); 17] = python_files! {
    "sitecustomize.py"
    "taskd/__init__.py"
    "taskd/_c_functions.py"
    "taskd/_forward.py"
    "taskd/_group_calls.py"
    "taskd/_group_ends.py"
    "taskd/_group_names.py"
    "taskd/_group_recorder.py"
    "taskd/_groups.py"
    "taskd/_hooks.py"
    "taskd/_install.py"
    "taskd/_kinds.py"
    "taskd/_loader.py"
    "taskd/_mstx.py"
    "taskd/_native.py"
    "taskd/_save.py"
    "taskd/_steps.py"
};

/// The directory with all of them; see [`TorchLauncher`](super::TorchLauncher) for its layout.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn new(dir: PathBuf) -> Files {
        Files(std::path::absolute(&dir).unwrap_or(dir)) // ranks may run in another directory
    }

    pub(super) fn helper_dir(&self) -> PathBuf {
        self.0.join("python")
    }

    /// Writes the helper's files that are not there already: one that ranks of an earlier owner may be reading is never
    /// opened for writing. `sitecustomize.py`, which brings in the others, comes last.
    pub(super) fn write_helper(&self) -> io::Result<()> {
        HELPER.iter().rev().try_for_each(|(name, text)| {
            let path = self.helper_dir().join(name);
            match fs::read_to_string(&path) {
                Ok(there) if there == *text => Ok(()),
                _ => write_whole(&path, text),
            }
        })
    }

    /// What a rank writes its failure to.
    pub(super) fn error(&self, rank: Rank, proc: &ProcId) -> PathBuf {
        self.0.join("errors").join(format!("rank-{}.{}.json", rank.0, proc.incarnation.0))
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

    fn port(&self) -> PathBuf {
        self.0.join("port")
    }
}

/// Makes room for the record of a rank that is to be started: what lies there is an earlier job's.
///
/// Where this fails the rank goes without a record, and its stderr is what tells of its failure.
pub(super) fn make_room(error: &Path) {
    let _ = error.parent().map(fs::create_dir_all);
    let _ = fs::remove_file(error);
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_back_for_its_generation_only() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().join("torch"));
        assert_eq!(files.read_port(Generation(7)), None);
        files.write_port(Generation(7), 29_501);
        assert_eq!(files.read_port(Generation(7)), Some(29_501));
        assert_eq!(files.read_port(Generation(8)), None);
        fs::write(files.port(), "7").unwrap();
        assert_eq!(files.read_port(Generation(7)), None);
    }

    #[test]
    fn the_helper_is_written_once_and_mended() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned());
        let written = |name: &str| fs::metadata(files.helper_dir().join(name)).unwrap().modified().unwrap();
        files.write_helper().unwrap();
        let first = HELPER.map(|(name, _)| written(name));
        files.write_helper().unwrap();
        assert_eq!(HELPER.map(|(name, _)| written(name)), first);
        for (name, text) in HELPER {
            let path = files.helper_dir().join(name);
            fs::write(&path, "cut sho").unwrap();
            files.write_helper().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn the_helper_is_all_that_lies_in_its_directory() {
        let list = |dir: &str| fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(dir)).unwrap();
        let names = list("taskd").map(|entry| format!("taskd/{}", entry.unwrap().file_name().display()));
        let names: std::collections::BTreeSet<String> = names.filter(|name| name.ends_with(".py")).collect();
        let known = HELPER.iter().map(|(name, _)| (*name).to_owned()).filter(|name| name.contains('/')).collect();
        assert_eq!(names, known, "a file that is not carried is missing where the program runs");
    }

    #[test]
    fn an_earlier_jobs_record_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned());
        let error = files.error(Rank(3), &ProcId::rank(3, 2));
        make_room(&error);
        fs::write(&error, "old").unwrap();
        make_room(&error);
        assert!(!dir.path().join("errors/rank-3.2.json").exists());
        assert!(dir.path().join("errors").is_dir());
    }
}
