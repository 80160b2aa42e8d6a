//! What a new start of the supervisor finds of the earlier ones.

use crate::support::*;
use std::path::Path;
use taskd_core::job::Seq;
use taskd_core::journal::*;
use taskd_core::kernel::Kernel;

/// Never a snapshot, but for the one that the first start begins with.
fn unsaved() -> JournalConfig {
    JournalConfig { snapshot_every_decisions: u64::MAX, snapshot_every_observations: u64::MAX, ..small() }
}

/// A job that has seen much, logged and closed.
fn lived(dir: &Path, config: JournalConfig) -> Job {
    let mut job = Job::logged(plugins(), open(dir, config).0);
    job.live();
    job.live();
    assert!(job.kernel.view().world.restarts() >= 6, "the job has something to report");
    job.close();
    job
}

/// A kernel in the state that was recovered.
fn restored(recovered: &Recovered) -> Kernel {
    let snapshot = recovered.snapshot.as_ref();
    let mut kernel = snapshot.map_or_else(|| Kernel::new(plugins()), |s| Kernel::restore(plugins(), s).unwrap().0);
    for step in recovered.steps() {
        let commands = kernel.step(step.now, &step.input.unwrap());
        assert_eq!(Some(commands), step.commands);
    }
    kernel
}

#[test]
fn a_restart_finds_every_step_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let job = lived(dir.path(), unsaved());
    for log in ["observations", "decisions"] {
        assert!(files_of(dir.path(), log).len() > 1, "{log} are in several files");
    }
    let (journal, recovered) = open(dir.path(), unsaved());
    assert_eq!(journal.start(), 2);
    assert!(recovered.has_state());
    assert_eq!((recovered.upto, recovered.now), (job.kernel.seq(), job.now));
    assert_eq!(recovered.problems, []);
    assert_eq!(recovered.differences, []);
    assert_eq!(recovered.missing, None);
    let snapshot = recovered.snapshot.as_ref().expect("the first snapshot is due at once").seq();
    let steps: Vec<Step> = recovered.steps().collect();
    assert_eq!(text(&steps), text(&job.steps[usize::try_from(snapshot.0).unwrap()..]));
}

#[test]
fn equal_inputs_give_equal_bytes() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for dir in &dirs {
        lived(dir.path(), small());
    }
    let [a, b] = dirs.map(|dir| files(dir.path()));
    assert!(a.len() > 4);
    assert_eq!(a, b);
}

#[test]
fn a_start_goes_on_from_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = lived(dir.path(), small());
    for start in 2..=5 {
        let (journal, recovered) = open(dir.path(), small());
        assert_eq!(journal.start(), start);
        assert!(recovered.snapshot.is_some());
        assert!(recovered.steps().count() < job.steps.len(), "the snapshot shortens it");
        let kernel = restored(&recovered);
        assert_eq!(kernel.seq(), job.kernel.seq());
        assert_eq!(format!("{:?}", kernel.view()), format!("{:?}", job.kernel.view()));
        job = Job::go_on(kernel, recovered.now, journal);
        job.live();
        job.close();
    }
}

#[test]
fn log_steps_after_the_resume_point_are_void() {
    let dir = tempfile::tempdir().unwrap();
    let old = lived(dir.path(), small());
    let (journal, _) = open(dir.path(), small());
    let mut kernel = Kernel::new(plugins());
    for step in &old.steps[..40] {
        kernel.step(step.now, step.input.as_ref().unwrap());
    }
    let mut new = Job::go_on(kernel, old.now, journal);
    new.train(3);
    new.close();
    let history = History::open(dir.path()).unwrap();
    let steps = history.latest().unwrap().steps(Seq(0)).map(|entry| match entry {
        Entry::Step(step) => step,
        Entry::Missing(missing) => panic!("{missing}"),
    });
    let expected = [&old.steps[..40], &new.steps].concat();
    assert_eq!(text(&steps.collect::<Vec<_>>()), text(&expected));
}

#[test]
fn a_start_from_nothing_is_a_life_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    lived(dir.path(), small());
    let (journal, _) = open(dir.path(), small());
    let mut job = Job::logged(plugins(), journal);
    job.train(3);
    job.close();
    let (_, recovered) = open(dir.path(), small());
    assert_eq!(recovered.upto, job.kernel.seq());
    assert_eq!(History::open(dir.path()).unwrap().lives().len(), 2);
}
