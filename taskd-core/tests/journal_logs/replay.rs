//! The log once more through a kernel, and past other detectors.

use crate::support::*;
use std::fs;
use std::path::Path;
use std::time::Duration;
use taskd_core::detect::{FaultDetector, Finding, detector_fn};
use taskd_core::job::{JobTime, Seq};
use taskd_core::journal::*;
use taskd_core::kernel::Effect;
use taskd_core::kernel::Event;
use taskd_core::trace::Signal;

/// Starts a supervisor three times, each time continuing from the previous one; `saves`: whether all detectors can be
/// saved.
fn three_starts(dir: &Path, saves: bool) -> Seq {
    let config = JournalConfig { snapshot_every_decisions: 40, ..small() };
    let mut job = Job::logged(plugins_that(saves), open(dir, config.clone()).0);
    job.live();
    job.close();
    for _ in 0..2 {
        let (journal, recovered) = open(dir, config.clone());
        let rebuilt = recovered.resume(plugins_that(saves)).unwrap();
        assert_eq!(rebuilt.kernel.seq(), job.kernel.seq());
        assert_eq!(rebuilt.cold.is_empty(), saves);
        assert_eq!(rebuilt.divergence, None);
        job = Job::go_on(rebuilt.kernel, recovered.now, journal);
        job.live();
        job.close();
    }
    job.kernel.seq()
}

#[test]
fn a_replay_gives_the_same_commands_from_the_start_and_from_snapshots() {
    for saves in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let last = three_starts(dir.path(), saves);
        let whole = replay(dir.path(), ReplayFrom::Start, || plugins_that(saves)).unwrap();
        assert_eq!(whole.first_difference, None, "{whole}");
        assert_eq!((whole.steps, whole.compared, whole.upto), (last.0, last.0, last));
        assert_eq!((whole.missing, whole.problems, whole.differences), (vec![], vec![], vec![]));
        let part = replay(dir.path(), ReplayFrom::Snapshot, || plugins_that(saves)).unwrap();
        assert_eq!((part.first_difference, part.upto), (None, last));
        assert!(part.compared > 0 && part.compared < whole.compared);
    }
}

#[test]
fn a_detector_that_cannot_be_saved_makes_every_act_owe_a_snapshot() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [many, few] = [false, true].map(|saves| {
        let dir = dirs[usize::from(saves)].path();
        three_starts(dir, saves);
        History::open(dir).unwrap().latest().unwrap().snapshots().count()
    });
    assert!(many > few, "{many} against {few}");
    let (_, recovered) = open(dirs[0].path(), small());
    for step in recovered.steps() {
        let acts = step
            .commands
            .unwrap()
            .into_iter()
            .filter(|c| !matches!(c.effect, Effect::Publish(_) | Effect::Acknowledge(_)));
        assert_eq!(acts.count(), 0, "nothing that was done is taken again");
    }
}

#[test]
fn a_replay_with_other_plugins_names_them_and_shows_the_first_difference() {
    let dir = tempfile::tempdir().unwrap();
    three_starts(dir.path(), true);
    let patient = || plugins_with(Silence::after(Duration::from_millis(450)));
    let report = replay(dir.path(), ReplayFrom::Start, patient).unwrap();
    let difference = report.first_difference.as_ref().expect("another bound decides later");
    assert!(difference.logged != difference.replayed);
    let findings = report.to_string();
    for part in ["bound=350ms", "bound=450ms", "differs from the log", "logged:", "replayed:", "silence of rank 2"] {
        assert!(findings.contains(part), "{part} is not in {findings}");
    }
}

#[test]
fn a_replay_reports_an_observation_gap_and_uses_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let last = three_starts(dir.path(), true);
    let observations = files_of(dir.path(), "observations");
    fs::remove_file(&observations[0]).unwrap();
    fs::remove_file(&observations[observations.len() / 2]).unwrap();
    let report = replay(dir.path(), ReplayFrom::Start, plugins).unwrap();
    assert_eq!(report.first_difference, None, "{report}");
    assert_eq!(report.missing.len(), 2, "{report}");
    assert!(report.missing[0].why.contains("older observations were removed"), "{}", report.missing[0]);
    assert_eq!(report.upto, last);
    assert!(report.compared < last.0);
}

#[test]
fn a_lost_decision_is_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    let last = three_starts(dir.path(), true);
    let decisions = files_of(dir.path(), "decisions");
    fs::remove_file(&decisions[1]).unwrap();
    let report = replay(dir.path(), ReplayFrom::Start, plugins).unwrap();
    assert_eq!((report.first_difference.clone(), report.upto), (None, last), "{report}");
    assert!(!report.missing.is_empty());
}

fn blames(findings: &[WhatIfFinding]) -> Vec<(JobTime, String)> {
    let blames = findings.iter().filter_map(|s| match &s.finding {
        Some(Finding::Blame(fault)) => {
            Some((s.now, format!("{} {}", fault.primary_suspect().class, fault.primary_suspect().domain)))
        }
        _ => None,
    });
    blames.collect()
}

#[test]
fn a_what_if_replay_times_the_findings_of_other_detectors() {
    let dir = tempfile::tempdir().unwrap();
    three_starts(dir.path(), true);
    let same: Box<dyn FaultDetector> = Box::new(Silence::after(Duration::from_millis(350)));
    let hasty: Box<dyn FaultDetector> = Box::new(Silence::after(Duration::from_millis(250)));
    let wild: Box<dyn FaultDetector> = Box::new(detector_fn("wild", |o, _, _| {
        assert!(!matches!(o.signal, Signal::Progress { .. }), "a detector that panics");
    }));
    let result = what_if(dir.path(), vec![same, hasty, wild], plugins).unwrap();
    assert_eq!(result.followed.first_difference, None);
    assert_eq!(result.followed.differences, []);
    let announced: Vec<(JobTime, String)> = result
        .announced
        .iter()
        .filter_map(|(_, now, event)| match event {
            Event::Found { fault, .. } if fault.by == "silence" => {
                Some((*now, format!("{} {}", fault.primary_suspect().class, fault.primary_suspect().domain)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(announced.len(), 3, "one silence a start");
    let silent: Vec<WhatIfFinding> = result.would.iter().filter(|s| s.detector == "silence").cloned().collect();
    let found = blames(&silent);
    for (now, suspect) in &announced {
        assert!(found.contains(&(*now, suspect.clone())), "the same detector finds the same: {found:?}");
        let earlier = JobTime::from_nanos(now.as_nanos() - 100_000_000);
        assert!(found.contains(&(earlier, suspect.clone())), "the hasty one finds it a tick earlier: {found:?}");
    }
    assert_eq!(found.len(), 6, "and no other rank is blamed");
    assert_eq!(result.would.iter().filter(|s| s.detector == "wild" && s.finding.is_none()).count(), 1);
    assert!(result.to_string().contains("wild panicked"));
}

#[test]
fn a_what_if_replay_blames_no_rank_for_a_gap_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    three_starts(dir.path(), true);
    let observations = files_of(dir.path(), "observations");
    fs::remove_file(&observations[observations.len() / 2]).unwrap();
    let same: Box<dyn FaultDetector> = Box::new(Silence::after(Duration::from_millis(350)));
    let result = what_if(dir.path(), vec![same], plugins).unwrap();
    assert_eq!(result.followed.missing.len(), 1);
    assert!(
        blames(&result.would).iter().all(|(_, suspect)| suspect == "silence rank 2"),
        "{:?}",
        blames(&result.would)
    );
}

#[test]
fn a_dump_has_a_line_for_everything() {
    let dir = tempfile::tempdir().unwrap();
    let last = three_starts(dir.path(), true);
    let mut out = Vec::new();
    dump(dir.path(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().filter(|l| l.starts_with(' ') && !l.contains("->")).count() as u64, last.0);
    for part in [
        "# job digits (7f3a), 4 ranks, start 3 of the supervisor",
        "detector silence version 1 (bound=350ms)",
        "changed: rank 1#1 exited: signal 9 (SIGKILL)",
        "facts (4 heartbeat, 4 metric loss, 4 progress)",
        "continuing after input",
        "observed: metric loss = NaN of rank 0",
        "decided: restart, which costs 1.0 s of work",
        "start rank 0#2, rank 1#2, rank 2#2, rank 3#2 into generation 2",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(text.lines().all(|l| l.len() < 500), "short lines");
}
