//! Tests of the effect of each injection on the simulated job.

use super::*;
use crate::detect::{Evidence, FailSlowDetector, FaultDetector, FaultDetectorExt, Finding, Findings, SlowRankDetector};
use crate::job::{Domain, Incarnation, JobSpec, JobTime, Member, Role, WorkerSpec, World};
use crate::state::{Phase, Proc, View};
use crate::trace::reduce::Observer;
use crate::trace::{DeviceTimes, GroupPosition, Signal, StepTimes};
use std::sync::Arc;

/// Runs a job. Returns the steps of each rank, and each rank's group positions at the end.
fn outcome(job: SyntheticJob) -> (Vec<Vec<StepTimes>>, Vec<Vec<GroupPosition>>) {
    let mut observer = Observer::new(Duration::from_secs(1));
    let ranks = job.ranks;
    let mut steps = vec![Vec::new(); ranks as usize];
    let mut newest = 0;
    for batch in job.run() {
        assert_eq!(observer.take(&batch), None);
        newest = batch.records.iter().map(|record| record.unix_nanos).fold(newest, u64::max);
        for timed in observer.settle(batch.origin, u64::MAX) {
            let Signal::Step(times) = timed.fact.signal else { panic!() };
            steps[batch.origin.rank.0 as usize].push(*times);
        }
    }
    let positions = (0..ranks).map(|rank| observer.positions(Rank(rank), newest).unwrap_or_default()).collect();
    (steps, positions)
}

fn mean(of: impl Iterator<Item = u64>) -> u64 {
    let all: Vec<u64> = of.collect();
    all.iter().sum::<u64>() / all.len() as u64
}

#[test]
fn all_ranks_take_all_steps_in_the_same_time() {
    let (steps, positions) = outcome(SyntheticJob::new(8).steps(50));
    for rank in &steps {
        assert_eq!(rank.iter().map(|times| times.step).collect::<Vec<_>>(), (1..=50).collect::<Vec<_>>());
        let wall = mean(rank.iter().map(|times| times.wall_ns));
        assert!((100_000_000..110_000_000).contains(&wall), "{wall}");
        assert!(rank.iter().all(|times| times.communications == 5 && times.lost == 0));
        assert!(rank.iter().all(|times| times.data_loader_ns > 2_000_000 && times.forward_ns > 29_000_000));
    }
    assert!(positions.iter().all(|groups| groups.len() == 1 && groups[0].members == (0..8).collect::<Vec<_>>()));
    assert!(positions.iter().flatten().flat_map(|group| &group.recent).all(|call| !call.is_pending));
    let other = outcome(SyntheticJob::new(8).steps(50).seed(2));
    assert_eq!(steps, outcome(SyntheticJob::new(8).steps(50)).0);
    assert_ne!(steps, other.0);
}

#[test]
fn the_others_wait_for_the_slow_one() {
    for (cause, percent) in [(Cause::OnCpu, 50), (Cause::OffCpu, 50), (Cause::DataLoader, 50)] {
        let slow = Injection::Slow { rank: Rank(3), from_step: 21, percent, cause };
        let (steps, _) = outcome(SyntheticJob::new(4).steps(40).inject(slow));
        let [before, after] =
            [0..20, 20..40].map(|at| steps.iter().map(|rank| rank[at.clone()].to_vec()).collect::<Vec<_>>());
        let own = |steps: &[StepTimes]| mean(steps.iter().map(StepTimes::own_ns));
        let wall = |steps: &[StepTimes]| mean(steps.iter().map(|times| times.wall_ns));
        assert!(wall(&after[0]) > wall(&before[0]) * 14 / 10, "the step of all ranks is longer");
        assert!(own(&after[0]) < own(&before[0]) * 11 / 10, "of the others' own work there is no more");
        assert!(own(&after[3]) > own(&before[3]) * 14 / 10, "{cause:?}");
        let cpu = mean(after[3].iter().filter_map(|times| times.cpu_ns));
        assert_eq!(cpu > 120_000_000, cause == Cause::OnCpu);
        assert_eq!(after[3][0].data_loader_ns > 40_000_000, cause == Cause::DataLoader);
    }
}

#[test]
fn stages_reduce_among_themselves_and_wait_for_each_other() {
    let job = SyntheticJob::new(8).steps(20).stages(4).inject(Injection::UnevenStages { percent: 30 });
    let (steps, positions) = outcome(job);
    assert!(steps.iter().all(|rank| rank.len() == 20));
    let groups: Vec<_> = positions[5].iter().map(|group| (group.group.as_str(), group.members.clone())).collect();
    assert_eq!(groups, [("default", (0..8).collect()), ("dp_2", vec![4, 5])]);
    let own = |rank: usize| mean(steps[rank].iter().map(StepTimes::own_ns));
    assert!(own(7) > own(1) * 12 / 10);
}

/// Returns the number of collectives of its first group that each rank has called.
fn called(positions: &[Vec<GroupPosition>]) -> Vec<u64> {
    positions.iter().map(|groups| groups[0].recent.last().unwrap().sequence + 1).collect()
}

#[test]
fn a_frozen_rank_stops_all_ranks_and_is_behind_in_collectives() {
    for seed in 0..20 {
        let job = || SyntheticJob::new(4).steps(30).seed(seed);
        let (steps, positions) = outcome(job().inject(Injection::Frozen { rank: Rank(2), at_step: 11 }));
        assert!(steps[2].len() == 10 && steps.iter().all(|rank| rank.len() <= 11), "seed {seed}");
        let called = called(&positions);
        assert!(called[2] <= called[0] && called[0] == called[1] && called[0] == called[3], "seed {seed}: {called:?}");
        let pending = |groups: &[GroupPosition]| groups[0].recent.iter().any(|call| call.is_pending);
        assert!(pending(&positions[0]));
    }
}

#[test]
fn a_collective_that_is_left_out_or_other_than_the_others_hangs_all() {
    for seed in 0..20 {
        let job = || SyntheticJob::new(4).steps(30).seed(seed);
        for injection in
            [Injection::Skips { rank: Rank(1), at_step: 11 }, Injection::Mismatch { rank: Rank(1), at_step: 11 }]
        {
            let (steps, positions) = outcome(job().inject(injection));
            assert!(steps[0].len() == 10 && steps[1].len() <= 11, "seed {seed}");
            let at = |rank: usize, sequence| {
                positions[rank][0].recent.iter().find(|call| call.sequence == sequence).map(|call| call.elements)
            };
            let differs = (50..60).find(|sequence| at(0, *sequence).is_some() && at(0, *sequence) != at(1, *sequence));
            let first = differs.expect("somewhere the rank called something else, or nothing");
            assert_eq!((at(2, first), at(3, first)), (at(0, first), at(0, first)));
        }
    }
}

#[test]
fn job_wide_disturbances_slow_no_single_rank_for_long() {
    let job = SyntheticJob::new(4)
        .steps(200)
        .inject(Injection::UnevenLengths { percent: 20 })
        .inject(Injection::WarmUp { steps: 10, percent: 100 })
        .inject(Injection::Pauses { every: 50, ms: 80 })
        .inject(Injection::SlowNetwork { from_step: 100, percent: 900 });
    let (steps, _) = outcome(job);
    let own: Vec<u64> = steps.iter().map(|rank| mean(rank.iter().map(StepTimes::own_ns))).collect();
    let (least, most) = (own.iter().min().unwrap(), own.iter().max().unwrap());
    assert!(*most < least * 11 / 10, "{own:?}");
    assert!(steps.iter().any(|rank| rank.iter().filter(|times| times.own_ns() > 170_000_000).count() >= 2), "pauses");
    assert!(
        mean(steps[0][..5].iter().map(StepTimes::own_ns))
            > mean(steps[0][50..].iter().map(StepTimes::own_ns)) * 12 / 10
    );
}

#[test]
fn the_first_rank_saves_and_the_others_wait_in_the_next_step() {
    let (steps, _) = outcome(SyntheticJob::new(2).steps(20).inject(Injection::Checkpoints { every: 10, ms: 50 }));
    let saving: Vec<u64> =
        steps[0].iter().filter(|times| times.save_checkpoint_ns > 0).map(|times| times.step).collect();
    assert_eq!(saving, [10, 20]);
    assert!(steps[1][10].wait_ns > 40_000_000);
}

/// Runs a job on devices. Returns the last figures of each rank's device, and of its process.
fn on_devices(job: SyntheticDevices) -> Vec<(Option<DeviceTimes>, StepTimes)> {
    let mut observer = Observer::new(Duration::from_secs(1));
    let mut found = vec![(None, StepTimes::default()); 4];
    let (mut until, mut device) = ([0; 4], vec![None; 4]);
    let batches: Vec<_> = job.run().collect();
    let ends: Vec<_> = batches[batches.len() - 4..].iter().map(|batch| batch.origin).collect();
    let mut take = |facts: Vec<crate::trace::reduce::TimedFact>, rank: usize| {
        for timed in facts {
            match timed.fact.signal {
                Signal::DeviceStep(times) => device[rank] = Some(*times),
                Signal::Step(times) if times.step <= 97 => found[rank] = (device[rank].take(), *times),
                Signal::Step(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    for batch in batches {
        let rank = batch.origin.rank.0 as usize;
        assert_eq!(observer.take(&batch), None);
        take(observer.settle(batch.origin, until[rank]), rank);
        let newest = batch.records.iter().map(|record| record.unix_nanos).max();
        until[rank] = newest.unwrap_or_default().max(until[rank]);
    }
    for origin in ends {
        take(observer.settle(origin, u64::MAX), origin.rank.0 as usize);
    }
    found
}

#[test]
fn a_slow_device_computes_longer_and_waits_less_than_its_peers() {
    for host in [DeviceHost::ReturnsEarly, DeviceHost::WaitsForDevice] {
        let job = SyntheticDevices::new(4, host).steps(100).slow(Rank(2), 50, 20).without_spans(Rank(3));
        let found = on_devices(job);
        let wall = if host == DeviceHost::ReturnsEarly { 12 } else { 128 };
        assert!(found.iter().all(|(_, times)| times.wall_ns.abs_diff(wall * 1_000_000) < 3_000_000), "{found:?}");
        assert_eq!(found[3].0, None);
        let of = |rank: usize| found[rank].0.clone().unwrap_or_default();
        for rank in [0, 1] {
            let (usual, slow) = (of(rank), of(2));
            assert!(usual.compute_ns.abs_diff(100_000_000) < 3_000_000, "{usual:?}");
            assert!(slow.compute_ns.abs_diff(120_000_000) < 3_000_000, "{slow:?}");
            assert!(usual.wait_ns.abs_diff(28_000_000) < 3_000_000, "{usual:?}");
            assert!(slow.wait_ns.abs_diff(8_000_000) < 3_000_000, "{slow:?}");
        }
    }
}

/// Runs a job on devices, and returns what a detector finds of its facts.
fn found_in(job: SyntheticDevices, detector: &mut dyn FaultDetector) -> Vec<Finding> {
    let mut view = trained_by(4);
    let (mut observer, mut until, mut found) = (Observer::new(Duration::from_secs(1)), [0; 4], Vec::new());
    for batch in job.run() {
        let rank = batch.origin.rank.0 as usize;
        assert_eq!(observer.take(&batch), None);
        let facts = observer.settle(batch.origin, until[rank]);
        until[rank] = batch.records.iter().map(|record| record.unix_nanos).fold(until[rank], u64::max);
        for timed in facts {
            view.now = view.now.max(JobTime::from_nanos(timed.unix_nanos));
            let mut out = Findings::default();
            detector.observe(&timed.fact.into_observation(view.now), &view, &mut out);
            found.extend(out.drain());
        }
    }
    found
}

/// Returns the view of a job whose ranks train.
fn trained_by(ranks: u32) -> View {
    let member = || Member { incarnation: Incarnation(1), node: None, device: None };
    let world = World::first((0..ranks).map(|rank| (Rank(rank), member())).collect());
    let proc = |rank| {
        let mut proc = Proc::ordered(Incarnation(1), world.generation(), JobTime::START);
        proc.phase = Phase::Running;
        (Role::Rank(Rank(rank)), proc)
    };
    let procs = (0..ranks).map(proc).collect();
    let spec = JobSpec::new("synthetic", ranks, WorkerSpec::new(["train"]));
    let mut view = View::new(JobTime::START, Arc::new(spec), Arc::new(world));
    view.procs = procs;
    view
}

#[test]
fn a_device_that_becomes_slower_by_a_fifth_is_blamed() {
    for host in [DeviceHost::ReturnsEarly, DeviceHost::WaitsForDevice] {
        let job = SyntheticDevices::new(4, host).steps(140).slow(Rank(2), 80, 20);
        let detectors = [FailSlowDetector::new().boxed(), SlowRankDetector::default().boxed()];
        for mut detector in detectors {
            let found = found_in(job.clone(), &mut detector);
            let [Finding::Blame(fault)] = &found[..] else { panic!("{host:?}, {}: {found:?}", detector.name()) };
            assert_eq!(fault.primary_suspect().domain, Domain::Process(Role::Rank(Rank(2))));
            let clue = |clue: &&Evidence| clue.what.as_str().ends_with("slow_onset_step");
            let onset = fault.evidence.iter().find(clue).and_then(|clue| clue.value).unwrap_or_default();
            // A process that returns early is two steps ahead of its device.
            assert!((78.0..=84.0).contains(&onset), "{host:?}, {}: step {onset}", detector.name());
        }
    }
}

#[test]
fn healthy_devices_and_a_rank_without_spans_are_not_blamed() {
    for host in [DeviceHost::ReturnsEarly, DeviceHost::WaitsForDevice] {
        for seed in 1..4 {
            let job = SyntheticDevices::new(4, host).steps(150).seed(seed);
            for job in [job.clone(), job.without_spans(Rank(2))] {
                assert_eq!(found_in(job.clone(), &mut FailSlowDetector::new()), []);
                assert_eq!(found_in(job, &mut SlowRankDetector::default()), []);
            }
        }
    }
}
