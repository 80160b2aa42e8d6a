//! Checksums of parts of the parameters, and figures that name their step.

use super::*;
use crate::trace::{GRAD_NORM, LOSS, METRIC_STEP, SKIPPED_STEPS};

const GROUP: &str = "replica_checksum.1f0c9a7e|0-3";

impl Job {
    /// Reports a figure of a rank.
    fn figure(&mut self, rank: u32, name: Name, value: f64) -> Vec<Finding> {
        self.scene.pass(1);
        self.scene.tell(&mut self.detector, rank, Signal::Metric { name, value })
    }

    /// Reports the checksums of part `part` after `step`, of the ranks from `first` on.
    fn parts(&mut self, group: &'static str, step: u64, part: u64, first: u32, sums: &[u64]) -> Vec<Finding> {
        let mut found = Vec::new();
        for (rank, sum) in (first..).zip(sums) {
            found.extend(self.figure(rank, METRIC_STEP, step as f64));
            found.extend(self.figure(rank, Name::new(group), (part << 40 | sum) as f64));
        }
        found
    }
}

#[test]
fn a_part_that_differs_on_one_of_four_replicas_blames_this_rank() {
    let mut job = Job::new(4);
    assert!(job.parts(GROUP, 0, 0, 0, &[7; 4]).is_empty());
    assert!(job.parts(GROUP, 8, 1, 0, &[8; 4]).is_empty());
    assert!(job.parts(GROUP, 16, 0, 0, &[9; 4]).is_empty());
    let found = job.parts(GROUP, 24, 1, 0, &[5, 5, 6, 5]);
    let fault = fault(&found);
    assert_eq!(blamed(fault), (&rank_domain(2), true, &NumericalDetector::SDC));
    assert_eq!(
        fault.evidence[0].text,
        "at step 24 part 1 of the parameters of rank 2 (checksum 0000000006) differs from that of 3 replicas \
         (0000000005), which are equal; at step 8 this part was equal on all of them, so it has changed after it"
    );
    assert_eq!((fault.evidence[0].value, fault.evidence[0].usual), (Some(24.0), Some(8.0)));
    assert!(fault.evidence[1].text.contains("continue from a checkpoint before step 9"), "{:?}", fault.evidence[1]);
    assert!(job.parts(GROUP, 32, 0, 0, &[1; 4]).is_empty(), "another part says nothing about this one");
    assert!(job.parts(GROUP, 40, 1, 0, &[2, 2, 3, 2]).is_empty(), "it is reported once");
    assert!(job.parts(GROUP, 48, 0, 0, &[1, 1, 4, 1]).is_empty(), "the same rank in another part");
    assert!(job.parts(GROUP, 56, 1, 0, &[1; 4]).is_empty(), "the other part still differs");
    assert_eq!(job.parts(GROUP, 64, 0, 0, &[1; 4]), [Finding::Clear(rank_domain(2), NumericalDetector::SDC)]);
}

#[test]
fn of_two_replicas_that_differ_in_a_part_none_is_blamed() {
    let mut job = Job::new(2);
    let group = "replica_checksum|0-1";
    job.parts(group, 0, 0, 0, &[7; 2]);
    let found = job.parts(group, 8, 0, 0, &[7, 8]);
    let [Finding::Note(Domain::Job, evidence)] = found.as_slice() else { panic!("{found:?}") };
    assert!(evidence.text.contains("ranks 0 | ranks 1"), "{}", evidence.text);
    assert!(job.parts(group, 16, 0, 0, &[7, 8]).is_empty(), "it is noted once");
}

#[test]
fn ranks_of_other_groups_and_layouts_are_not_compared() {
    let mut job = Job::new(6);
    let (first, second) = ("replica_checksum|0-2", "replica_checksum|3-5");
    for step in [0, 8] {
        assert!(job.parts(first, step, 0, 0, &[1; 3]).is_empty());
        assert!(job.parts(second, step, 0, 3, &[2; 3]).is_empty(), "another stage of a pipeline");
    }
    assert_eq!(blamed(fault(&job.parts(second, 16, 0, 3, &[2, 4, 2]))).0, &rank_domain(4));
    let mut job = Job::new(4);
    job.parts(GROUP, 0, 0, 0, &[1; 4]);
    job.parts(GROUP, 8, 0, 0, &[1; 3]);
    assert!(job.parts("replica_checksum.00000000|0-3", 8, 0, 3, &[2]).is_empty(), "another layout");
    assert!(job.parts(GROUP, 16, 0, 0, &[3; 4]).is_empty());
    assert_eq!(job.detector.dropped_checksums(), 3, "the round without the last rank");
}

#[test]
fn replicas_that_were_never_equal_are_not_judged() {
    let mut job = Job::new(4);
    for step in [0, 8, 16] {
        assert!(job.parts(GROUP, step, 0, 0, &[1, 2, 2, 2]).is_empty());
    }
}

#[test]
fn checksums_that_cannot_be_compared_are_counted() {
    let mut job = Job::new(4);
    job.figure(0, Name::new(GROUP), 7.0); // without a step
    job.figure(0, METRIC_STEP, 8.0);
    job.figure(0, Name::new("replica_checksum|"), 7.0); // without members
    job.figure(0, Name::new("replica_checksum|1-3"), 7.0); // of other ranks
    job.figure(0, Name::new(GROUP), f64::NAN);
    assert_eq!(job.detector.dropped_checksums(), 4);
    for step in 1..=40 {
        job.figure(0, METRIC_STEP, step as f64);
        job.figure(0, Name::new(GROUP), 7.0);
    }
    assert_eq!(job.detector.dropped_checksums(), 4 + 40 - 16, "rounds that wait for the other ranks are bounded");
}

#[test]
fn replicas_of_a_new_world_prove_again_that_they_are_equal() {
    let mut job = Job::new(4);
    job.parts(GROUP, 0, 0, 0, &[1; 4]);
    job.parts(GROUP, 8, 0, 0, &[1, 1, 1, 2]);
    job.scene.restart();
    assert!(job.parts(GROUP, 0, 1, 0, &[1, 1, 1, 2]).is_empty(), "they were not equal since");
    let clear = Finding::Clear(rank_domain(3), NumericalDetector::SDC);
    assert_eq!(job.parts(GROUP, 8, 0, 0, &[1; 4]), [clear]);
    assert_eq!(blamed(fault(&job.parts(GROUP, 16, 0, 0, &[1, 2, 1, 1]))).0, &rank_domain(1));
}

#[test]
fn figures_of_one_step_are_compared_however_late_they_are() {
    let mut job = Job::new(4);
    for step in 1..=30 {
        for rank in 0..4 {
            job.figure(rank, METRIC_STEP, f64::from(step));
            job.figure(rank, LOSS, 2.0);
        }
    }
    for rank in [1, 2, 3, 0] {
        job.figure(rank, METRIC_STEP, 31.0);
        job.scene.pass(500); // five steps' time
        let found = job.figure(rank, LOSS, if rank == 2 { f64::NAN } else { 2.0 });
        if rank == 0 {
            let fault = fault(&found);
            assert_eq!(blamed(fault), (&rank_domain(2), true, &NumericalDetector::NUMERICAL));
            assert_eq!(fault.evidence[0].text, "the loss is NaN or infinite on 1 of 4 ranks at step 31 (rank 2: NaN)");
            assert!(fault.evidence[1].text.contains("continue from a checkpoint before step 31"));
        }
    }
}

#[test]
fn steps_that_a_gradient_scaler_skips_are_a_note() {
    let mut job = Job::new(2);
    let mut found = Vec::new();
    for step in 1..=3 {
        for rank in 0..2 {
            job.figure(rank, METRIC_STEP, f64::from(step));
            if step == 2 {
                job.figure(rank, SKIPPED_STEPS, 1.0);
            }
            found.extend(job.figure(rank, GRAD_NORM, if step == 2 { f64::INFINITY } else { 1.0 }));
        }
    }
    let [Finding::Note(Domain::Job, evidence)] = found.as_slice() else { panic!("{found:?}") };
    assert!(evidence.text.ends_with("; the gradient scaler skips such steps, 1 so far"), "{}", evidence.text);
}
