//! Files that are not what they should be: foreign, newer, cut, damaged, of another job or of other plugins. Each gets
//! one sentence, and what can be read without it is read.

use crate::support::*;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::detect::detector_fn;
use taskd_core::job::{Name, Seq};
use taskd_core::journal::*;

/// A logged job in one file of each log, and the file of decisions.
fn logged(dir: &Path) -> (Job, PathBuf) {
    let config = JournalConfig { snapshot_every_decisions: 1 << 30, ..JournalConfig::default() };
    let mut job = Job::logged(plugins(), open(dir, config).0);
    job.live();
    job.close();
    let decisions = files_of(dir, "decisions");
    assert_eq!(decisions.len(), 1);
    (job, decisions[0].clone())
}

fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

/// What the next start finds, and the only problem in it as a sentence without the directory.
fn found(dir: &Path) -> (Recovered, String) {
    let (_, recovered) = open(dir, JournalConfig::default());
    let messages: Vec<String> = recovered.problems.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let messages = messages[0].replace(&format!("{}/", dir.display()), "");
    (recovered, messages)
}

#[test]
fn a_torn_tail_is_cut_off_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (job, decisions) = logged(dir.path());
    let whole = fs::metadata(&decisions).unwrap().len();
    change(&decisions, |bytes| bytes.truncate(bytes.len() - 7));
    let (recovered, messages) = found(dir.path());
    assert!(
        messages.starts_with("decisions-000001-00000000000000000001.log was cut off while it was written"),
        "{messages}"
    );
    let Problem::Torn { at, bytes, .. } = &recovered.problems[0] else { panic!("{messages}") };
    assert_eq!(at + bytes, whole - 7);
    assert!(recovered.has_state() && recovered.upto < job.kernel.seq(), "{recovered}");
    assert!(recovered.missing.is_some(), "observations behind it are there and cannot be used");
    assert_eq!(recovered.now, job.now, "but job time never goes back");
    let steps: Vec<Step> = recovered.steps().collect();
    assert_eq!(steps.last().unwrap().seq, recovered.upto);
}

#[test]
fn a_damaged_record_is_skipped_with_its_place_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (job, decisions) = logged(dir.path());
    let middle = fs::read(&decisions).unwrap().len() / 2;
    change(&decisions, |bytes| bytes[middle] ^= 1);
    let (recovered, messages) = found(dir.path());
    assert!(messages.contains("is damaged at byte ") && messages.contains("after input "), "{messages}");
    let Problem::Damaged { at, bytes, after, .. } = recovered.problems[0].clone() else { panic!("{messages}") };
    assert!((at..at + bytes).contains(&(middle as u64)), "{messages}");
    let missing = recovered.missing.unwrap();
    assert!(missing.from > after && missing.why.contains("is damaged"), "{missing}");
    let report = replay(dir.path(), ReplayFrom::Start, plugins).unwrap();
    assert_eq!(report.missing[0].from, missing.from);
    let history = History::open(dir.path()).unwrap();
    let last = history.latest().unwrap().steps(Seq(0)).last();
    assert!(matches!(last, Some(Entry::Step(step)) if step.seq == job.kernel.seq()), "what is behind it is read");
}

#[test]
fn a_damaged_snapshot_is_left_out_for_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = Job::logged(plugins(), open(dir.path(), small()).0);
    job.live();
    job.close();
    let snapshots = files_of(dir.path(), "snapshot");
    change(snapshots.last().unwrap(), |bytes| bytes.truncate(bytes.len() - 1));
    let (recovered, messages) = found(dir.path());
    assert!(messages.starts_with("snapshot-"), "{messages}");
    assert!(recovered.snapshot.is_some() && recovered.upto == job.kernel.seq());
    assert_eq!(recovered.resume(plugins()).unwrap().divergence, None);
}

#[test]
fn a_newer_or_foreign_log_file_is_reported_and_not_used() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(Change, &str); 3] = [
        (
            |bytes| bytes[8] = 200,
            "has version 200 of the log format, this program reads up to 10: use the version of this program",
        ),
        (|bytes| *bytes = b"once upon a time".to_vec(), "is not a log of this program"),
        (|bytes| bytes[50] ^= 1, "is not a log of this program, or its header is damaged"),
    ];
    for (spoil, sentence) in changes {
        let dir = tempfile::tempdir().unwrap();
        logged(dir.path());
        for file in ["observations", "snapshot", "decisions"].iter().flat_map(|log| files_of(dir.path(), log)) {
            change(&file, spoil);
        }
        let (_, recovered) = open(dir.path(), JournalConfig::default());
        assert_eq!(recovered.problems.len(), 3);
        assert!(recovered.problems.iter().all(|p| p.to_string().contains(sentence)), "{:?}", recovered.problems);
        assert!(!recovered.has_state());
        assert!(!recovered.is_empty());
        assert_eq!(recovered.steps().count(), 0);
        let error = replay(dir.path(), ReplayFrom::Start, plugins).unwrap_err().to_string();
        assert!(error.contains("cannot be used") && error.contains(sentence), "{error}");
    }
}

#[test]
fn an_older_state_is_not_taken_up_when_the_newest_start_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    logged(dir.path());
    let (journal, recovered) = open(dir.path(), JournalConfig::default());
    let mut job = Job::go_on(recovered.resume(plugins()).unwrap().kernel, recovered.now, journal);
    job.train(1);
    job.close();
    for file in ["observations", "snapshot", "decisions"].iter().flat_map(|log| files_of(dir.path(), log)) {
        if file.to_string_lossy().contains("-000002-") {
            change(&file, |bytes| bytes[8] = 200);
        }
    }
    let (journal, recovered) = open(dir.path(), JournalConfig::default());
    assert_eq!(journal.start(), 3);
    assert!(!recovered.has_state(), "{recovered}");
}

#[test]
fn a_new_start_writes_beside_what_it_cannot_read() {
    let dir = tempfile::tempdir().unwrap();
    let (_, decisions) = logged(dir.path());
    change(&decisions, |bytes| bytes[8] = 9);
    let old = fs::read(&decisions).unwrap();
    let mut job = Job::logged(plugins(), open(dir.path(), JournalConfig::default()).0);
    job.train(3);
    job.close();
    assert_eq!(fs::read(&decisions).unwrap(), old, "nothing is written over");
    let (_, recovered) = open(dir.path(), JournalConfig::default());
    assert_eq!(recovered.upto, job.kernel.seq());
}

#[test]
fn each_difference_from_the_log_header_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    logged(dir.path());
    let mut others = plugins_with(Silence::after(Duration::from_secs(1)));
    others.detectors.remove(0);
    others.detectors.push(Box::new(detector_fn("acme.hot", |_, _, _| ())));
    let (_, recovered) = Journal::open(dir.path(), header(&others), JournalConfig::default()).unwrap();
    let messages: Vec<String> = recovered.differences.iter().map(ToString::to_string).collect();
    let exactly = "restore this setting to continue from the log or replay it exactly";
    let expected = [
        format!("the log was written with detector exits version 1, which is missing now: {exactly}"),
        format!(
            "the log was written with detector silence version 1 (bound=350ms), now there is detector silence version 1 \
             (bound=1s): {exactly}"
        ),
        format!("the log was written without detector acme.hot version 1: {exactly}"),
    ];
    assert_eq!(messages, expected);
    assert!(recovered.has_state(), "whether that matters is the caller's to say");

    let mut others = plugins();
    others.detectors.reverse();
    let more = Header { ranks: 8, ..header(&others) };
    let (_, recovered) = Journal::open(dir.path(), more, JournalConfig::default()).unwrap();
    let messages: Vec<String> = recovered.differences.iter().map(ToString::to_string).collect();
    let expected = [
        format!("the log was written with ranks = 4, now it is 8: {exactly}"),
        format!("the log was written with the detector order exits, silence, now it is silence, exits: {exactly}"),
    ];
    assert_eq!(messages, expected);

    let other_job = Header { job: Name::new("letters"), ..header(&plugins()) };
    let (_, recovered) = Journal::open(dir.path(), other_job, JournalConfig::default()).unwrap();
    let messages = recovered.differences[0].to_string();
    assert_eq!(
        messages,
        "the log belongs to job digits (7f3a), not to letters (7f3a): give each job a directory of its own"
    );
    assert!(!recovered.has_state());
    assert_eq!(recovered.resume(plugins()).unwrap().kernel.seq(), Seq(0));
}

#[test]
fn a_missing_log_and_an_inaccessible_directory_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let error = replay(dir.path(), ReplayFrom::Start, plugins).unwrap_err().to_string();
    assert!(error.starts_with("there is no log in ") && error.contains("name the directory"), "{error}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Journal::open(&file, header(&plugins()), JournalConfig::default()).unwrap_err().to_string();
    assert!(error.contains("make it accessible or name another"), "{error}");
    assert!(open(dir.path(), JournalConfig::default()).1.is_empty());
}

#[test]
fn logs_stay_within_their_bounds_and_retain_restart_state() {
    let dir = tempfile::tempdir().unwrap();
    let config = JournalConfig {
        observations_bytes_max: 30_000,
        decisions_bytes_max: 30_000,
        snapshots_bytes_max: 100_000,
        ..small()
    };
    let mut job = Job::logged(plugins(), open(dir.path(), config.clone()).0);
    (0..30).for_each(|_| job.live());
    let counts = job.counts();
    job.close();
    assert!(counts.files_expired > 20, "{counts:?}");
    for (log, bytes_max) in [("observations", 30_000), ("decisions", 30_000), ("snapshot", 100_000)] {
        let files = files_of(dir.path(), log);
        let bytes: u64 = files.iter().map(|f| fs::metadata(f).unwrap().len()).sum();
        assert!(bytes <= bytes_max * 3 / 2, "{log}: {bytes} bytes in {} files", files.len());
        assert!(files.len() >= 2);
    }
    let (_, recovered) = open(dir.path(), config.clone());
    assert_eq!((recovered.upto, recovered.missing.clone()), (job.kernel.seq(), None), "{:?}", recovered.problems);
    let report = replay(dir.path(), ReplayFrom::Start, plugins).unwrap();
    assert_eq!((report.first_difference.clone(), report.upto), (None, job.kernel.seq()), "{report}");
    assert!(report.compared > 0);

    let few = JournalConfig { files_max: 3, ..config };
    let mut last = job.kernel.seq();
    for _ in 0..10 {
        let (journal, recovered) = open(dir.path(), few.clone());
        assert_eq!((recovered.upto, recovered.missing.clone()), (last, None));
        let mut job = Job::go_on(recovered.resume(plugins()).unwrap().kernel, recovered.now, journal);
        job.train(2);
        job.close();
        last = job.kernel.seq();
    }
    assert!(files(dir.path()).len() <= 3 * (3 + 1), "{:?}", files(dir.path()).keys());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens to one file: what is read is what was written, so a replay may have holes but no difference.
    #[test]
    fn an_accident_to_any_file_never_makes_another_story_of_the_log(
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes in prop_oneof![Just(vec![]), prop::collection::vec(any::<u8>(), 1..20)],
        lost in 0..2000_usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut job = Job::logged(plugins(), open(dir.path(), small()).0);
        job.live();
        job.close();
        let all: Vec<PathBuf> = ["observations", "snapshot", "decisions"].iter().flat_map(|l| files_of(dir.path(), l)).collect();
        change(file.get::<PathBuf>(&all), |old| {
            let at = at.index(old.len());
            let end = old.len().min(at + lost);
            old.splice(at..end, bytes);
        });
        for from in [ReplayFrom::Start, ReplayFrom::Snapshot] {
            match replay(dir.path(), from, plugins) {
                Ok(report) => prop_assert_eq!(report.first_difference, None),
                Err(e) => prop_assert!(matches!(e, JournalError::Unusable { .. }), "{}", e),
            }
        }
        dump(dir.path(), &mut Vec::new()).unwrap();
        let (_, recovered) = open(dir.path(), small());
        let rebuilt = recovered.resume(plugins()).unwrap();
        prop_assert_eq!(rebuilt.divergence, None);
        prop_assert_eq!(rebuilt.kernel.seq(), recovered.upto);
    }
}
