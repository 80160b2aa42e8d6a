//! Logs of a supervisor, of which one file is damaged.

use super::ascend::fast_directory;
use super::random::Random;
use super::{Outcome, Target, mutate};
use std::path::PathBuf;
use taskd_core::live::incidents;
use taskd_examples::program::Failure;
use tempfile::TempDir;

/// Recorded logs of a job with incidents.
const FILES: [(&str, &[u8]); 3] = [
    (
        "decisions-000002-00000000000000000106.log",
        include_bytes!("../../../../taskd-core/tests/recorded/journal-8/decisions-000002-00000000000000000106.log"),
    ),
    (
        "decisions-000002-00000000000000000169.log",
        include_bytes!("../../../../taskd-core/tests/recorded/journal-8/decisions-000002-00000000000000000169.log"),
    ),
    (
        "snapshot-000002-00000000000000000106.log",
        include_bytes!("../../../../taskd-core/tests/recorded/journal-8/snapshot-000002-00000000000000000106.log"),
    ),
];

struct Logs {
    root: TempDir,
    files: Vec<(PathBuf, Vec<u8>)>,
    all: Vec<Vec<u8>>,
}

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    let root = fast_directory()?;
    let mut files = Vec::new();
    for (name, bytes) in FILES {
        let path = root.path().join(name);
        std::fs::write(&path, bytes)?;
        files.push((path, bytes.to_vec()));
    }
    let all = files.iter().map(|file| file.1.clone()).collect();
    Ok(Box::new(Logs { root, files, all }))
}

impl Target for Logs {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let (path, bytes) = random.pick(&self.files);
        let input = mutate::bytes(random, bytes, &self.all);
        if let Err(error) = std::fs::write(path, input) {
            return Outcome::Refused(format!("{} was not written: {error}", path.display()));
        }
        let outcome = match incidents::read(self.root.path()) {
            Err(why) => Outcome::Refused(why),
            Ok(found) if found.missing.is_empty() => Outcome::Whole,
            Ok(found) => Outcome::Part(found.missing),
        };
        drop(std::fs::write(path, bytes));
        outcome
    }

    fn is_clear(&self, message: &str) -> bool {
        [".log", "line ", "input ", "step", "decision", "incidents"].iter().any(|place| message.contains(place))
            || message.contains(&*self.root.path().to_string_lossy())
    }
}
