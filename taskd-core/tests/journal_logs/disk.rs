//! Disks that take nothing: full, removed, replaced. The journal degrades, counts, recovers, and names the gap.

use crate::elsewhere::elsewhere;
use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use taskd_core::job::{Incarnation, JobTime, Rank, Seq};
use taskd_core::journal::*;
use taskd_core::kernel::Input;
use taskd_core::trace::Signal;

/// Writes numbered inputs and waits for what the journal reports of itself.
struct Scribe {
    journal: Journal,
    seq: u64,
}

impl Scribe {
    fn open(dir: &Path, config: JournalConfig) -> Scribe {
        Scribe { journal: open(dir, config).0, seq: 0 }
    }

    /// One input of each log.
    fn write(&mut self) {
        for input in [observed(50), Input::Deadline] {
            self.seq += 1;
            self.journal.append(Seq(self.seq), JobTime::from_nanos(self.seq), &input, &[]);
        }
        assert!(self.journal.flush(PATIENCE));
    }

    fn trouble(&self) -> Option<String> {
        self.journal.health().borrow().trouble().map(|(_, reason)| reason.to_owned())
    }

    /// Writes on until the journal is degraded, or is well again.
    fn write_until(&mut self, degraded: bool) -> String {
        let began = Instant::now();
        loop {
            self.write();
            let trouble = self.trouble();
            if trouble.is_some() == degraded {
                return trouble.unwrap_or_default();
            }
            assert!(began.elapsed() < PATIENCE, "still {trouble:?}");
        }
    }

    fn close(self) -> JournalCounts {
        let counts = self.journal.counts();
        assert!(self.journal.close(PATIENCE));
        counts
    }
}

fn observed(facts: u64) -> Input {
    let say = |n| fact(JobTime::from_nanos(n), Rank(0), Incarnation(1), Signal::Progress { step: n });
    Input::Observed((0..facts).map(say).collect())
}

/// Tries again at once, and does not wait for a disk for long.
fn eager() -> JournalConfig {
    JournalConfig { retry_every: std::time::Duration::from_millis(1), ..JournalConfig::default() }
}

/// All entries of the only life: how many steps, and what is missing.
fn read(dir: &Path) -> (u64, Vec<MissingInputs>, Vec<Gap>) {
    let history = History::open(dir).unwrap();
    let mut steps = history.latest().unwrap().steps(Seq(0));
    let (mut found, mut missing) = (0, Vec::new());
    for entry in steps.by_ref() {
        match entry {
            Entry::Step(_) => found += 1,
            Entry::Missing(m) => missing.push(m),
        }
    }
    assert_eq!(steps.problems(), [], "what failed to be written is cut off");
    (found, missing, steps.gaps())
}

/// Everything is accounted for: what is not there is missing, and reported as lost.
fn assert_accounted(dir: &Path, inputs: u64, counts: JournalCounts) -> Vec<MissingInputs> {
    let (found, missing, gaps) = read(dir);
    let absent: u64 = missing.iter().map(|m| m.to.0 - m.from.0 + 1).sum();
    assert_eq!(found + absent, inputs);
    assert_eq!(counts.lost, absent, "{counts:?} {missing:?}");
    assert_eq!(gaps.iter().map(|g| g.records).sum::<u64>(), counts.lost, "{gaps:?}");
    missing
}

#[test]
fn a_removed_log_directory_is_recreated_and_the_gap_reported() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("logs");
    let mut scribe = Scribe::open(&dir, eager());
    (0..10).for_each(|_| scribe.write());
    fs::remove_dir_all(&dir).unwrap();
    (0..10).for_each(|_| scribe.write());
    assert_eq!(scribe.trouble(), None);
    let counts = scribe.close();
    assert_eq!((counts.files_removed, counts.lost), (2, 20));
    let missing = assert_accounted(&dir, 40, counts);
    assert!(missing[0].why.contains("was removed"), "{}", missing[0]);
}

#[test]
fn a_log_directory_without_a_parent_is_retried_but_not_created() {
    let parent = tempfile::tempdir().unwrap();
    let disk = parent.path().join("disk");
    let dir = disk.join("logs");
    let mut scribe = Scribe::open(&dir, eager());
    scribe.write();
    fs::remove_dir_all(&disk).unwrap();
    let reason = scribe.write_until(true);
    assert!(reason.contains("create its parent directory again"), "{reason}");
    assert!(!disk.exists(), "a disk that is not mounted must not be replaced by a directory");
    fs::create_dir(&disk).unwrap();
    scribe.write_until(false);
    let inputs = scribe.seq;
    let counts = scribe.close();
    assert_accounted(&dir, inputs, counts);
}

#[test]
fn an_unwritable_log_counts_lost_records_and_retries_rarely() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("logs");
    let mut scribe = Scribe::open(&dir, JournalConfig::default());
    fs::remove_dir_all(&dir).unwrap();
    fs::write(&dir, "not a directory").unwrap();
    (0..1000).for_each(|_| scribe.write());
    let counts = scribe.journal.counts();
    assert_eq!((counts.records, counts.lost), (0, 2000));
    assert!(counts.write_failures < 100, "tried again once a second, not with every record: {counts:?}");
    assert!(scribe.close().lost == 2000);
}

/// A mount lives in the test's own namespace only, so it is gone with it whatever happens.
fn small_disk(test: &str) -> Option<PathBuf> {
    let mount = "mount -t tmpfs -o size=256k tmpfs \"$0\" && exec \"$@\"";
    elsewhere(test, &["--mount", "--map-root-user"], mount)
}

#[test]
fn a_full_disk_degrades_the_log_until_there_is_room_again() {
    let Some(disk) = small_disk("disk::a_full_disk_degrades_the_log_until_there_is_room_again") else { return };
    let dir = disk.join("logs");
    fs::write(disk.join("somebody-elses"), vec![0; 128 << 10]).unwrap();
    let mut scribe = Scribe::open(&dir, eager());
    scribe.write();
    assert_eq!(scribe.trouble(), None);
    let reason = scribe.write_until(true);
    assert!(reason.contains("free some space"), "{reason}");
    (0..100).for_each(|_| scribe.write());
    assert!(scribe.trouble().is_some());

    fs::remove_file(disk.join("somebody-elses")).unwrap();
    scribe.write_until(false);
    (0..10).for_each(|_| scribe.write());
    let inputs = scribe.seq;
    let counts = scribe.close();
    assert!(counts.write_failures > 0 && counts.lost > 0, "{counts:?}");
    let missing = assert_accounted(&dir, inputs, counts);
    assert!(missing.iter().any(|m| m.why.contains("No space left")), "{missing:?}");
}
