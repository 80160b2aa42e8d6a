use super::*;
use crate::detect::fixture::{Scene, fault, rank_domain};
use crate::detect::{Fault, Finding, Health};
use crate::job::Incarnation;
use crate::job::NodeId;
use crate::trace::DeviceTimes;

const MS: u64 = 1_000_000;

/// A rank's times in a step in which all ranks wait for the slowest.
fn times(step: u64, own_ms: u64, slowest_ms: u64) -> StepTimes {
    StepTimes {
        step,
        wall_ns: (slowest_ms + 10) * MS,
        cpu_ns: Some(90 * MS),
        wait_ns: (slowest_ms + 10 - own_ms) * MS,
        data_loader_ns: 2 * MS,
        ..StepTimes::default()
    }
}

struct Job {
    scene: Scene,
    detector: SlowRankDetector,
    step: u64,
}

impl Job {
    fn new(scene: Scene) -> Job {
        Job { scene, detector: SlowRankDetector::default(), step: 0 }
    }

    /// Reports `count` steps with these own times; returns all findings.
    fn steps(&mut self, count: u32, own_ms: &[u64]) -> Vec<Finding> {
        self.told(count, own_ms, |_, times| Some(times))
    }

    /// Like `steps`, but `tell` may drop or change a report.
    fn told(&mut self, count: u32, own_ms: &[u64], tell: impl Fn(u32, StepTimes) -> Option<StepTimes>) -> Vec<Finding> {
        let slowest = own_ms.iter().copied().max().unwrap_or_default();
        let mut found = Vec::new();
        for _ in 0..count {
            self.step += 1;
            self.scene.pass(slowest + 10);
            for (rank, own) in (0..).zip(own_ms) {
                if let Some(times) = tell(rank, times(self.step, *own, slowest)) {
                    found.extend(self.scene.tell(&mut self.detector, rank, Signal::Step(Box::new(times))));
                }
            }
        }
        found
    }
}

fn texts(fault: &Fault) -> Vec<(&str, &str)> {
    fault.evidence.iter().map(|clue| (clue.what.as_str(), clue.text.as_str())).collect()
}

#[test]
fn a_rank_that_becomes_slower_is_blamed_with_its_reasons() {
    let mut job = Job::new(Scene::of(4));
    assert!(job.steps(60, &[100, 100, 100, 100]).is_empty());
    let onset = job.scene.view.now;
    let found = job.steps(10, &[100, 100, 150, 100]);
    let fault = fault(&found);
    assert_eq!((&fault.primary_suspect().domain, &fault.primary_suspect().class), (&rank_domain(2), &FaultClass::Slow));
    assert_eq!(
        (fault.primary_suspect().confidence_permille, fault.primary_suspect().damage.process),
        (900, Health::Healthy)
    );
    assert_eq!((fault.onset, fault.incarnation()), (onset, Some(Incarnation(1))));
    assert_eq!(
        texts(fault),
        [
            (
                "slow_own_time_ms",
                "rank 2 needs 150.0 ms a step for its own part, 50 % more than the 100.0 ms that it usually needs \
                 relative to the other ranks"
            ),
            (
                "slow_waited_for_ms",
                "the other ranks waited for it in 6 of 6 steps: 60.0 ms a step, while it waited 10.0 ms"
            ),
            ("slow_onset_step", "the slowdown began at about step 61"),
            (
                "slow_starved",
                "its thread was on a CPU for 60 % of that time, usually 90 %: it does not get its CPU: other threads \
                 use its core, or it is stopped or sleeps repeatedly"
            ),
        ]
    );
    assert_eq!(fault.evidence[0].peers, [Rank(0), Rank(1), Rank(3)]);
}

#[test]
fn evidence_separates_slow_computing_from_slow_data() {
    let cause = |change: fn(&mut StepTimes)| {
        let mut job = Job::new(Scene::of(4));
        job.steps(60, &[100; 4]);
        let found = job.told(10, &[100, 150, 100, 100], |rank, mut times| {
            if rank == 1 {
                change(&mut times);
            }
            Some(times)
        });
        let fault = fault(&found);
        (fault.evidence.get(3).map(|clue| clue.what.to_string()), fault.primary_suspect().confidence_permille)
    };
    assert_eq!(cause(|times| times.cpu_ns = Some(135 * MS)), (Some("slow_computing".into()), 900));
    assert_eq!(cause(|times| times.data_loader_ns = 52 * MS), (Some("slow_data".into()), 900));
    assert_eq!(cause(|times| times.cpu_ns = None), (None, 800), "nothing is known of its CPU");
}

#[test]
fn general_slowdowns_pauses_and_checkpoints_blame_no_rank() {
    let mut job = Job::new(Scene::of(4));
    job.steps(60, &[50, 100, 80, 90]);
    assert!(job.steps(60, &[75, 150, 120, 135]).is_empty(), "everybody is slower");
    assert!(job.steps(20, &[100, 150, 120, 135]).is_empty(), "a short part has become longer: nobody waits for it");
    for _ in 0..20 {
        assert!(job.steps(1, &[75, 600, 120, 135]).is_empty(), "a pause now and then");
        assert!(job.steps(4, &[75, 150, 120, 135]).is_empty());
    }
    let saving = |rank, times: StepTimes| {
        let save_checkpoint_ns = if rank == 3 { 300 * MS } else { 0 };
        Some(StepTimes { save_checkpoint_ns, ..times })
    };
    assert!(job.told(20, &[75, 150, 120, 435], saving).is_empty(), "it saves checkpoints");
}

#[test]
fn a_slow_rank_is_cleared_when_it_is_as_fast_as_before() {
    let mut job = Job::new(Scene::of(4));
    job.steps(60, &[100; 4]);
    assert_eq!(job.steps(40, &[160, 100, 100, 100]).len(), 1, "it is blamed once");
    let found = job.steps(10, &[100; 4]);
    assert_eq!(found, [Finding::Clear(rank_domain(0), FaultClass::Slow)]);
    assert_eq!(job.steps(10, &[160, 100, 100, 100]).len(), 1, "and found again");
}

#[test]
fn the_host_is_suspected_too_when_all_its_ranks_are_slow() {
    let mut job = Job::new(Scene::on(8, &[("a", 4), ("b", 4)]));
    job.steps(60, &[100; 8]);
    let found = job.steps(10, &[150, 150, 150, 150, 100, 100, 100, 100]);
    assert_eq!(found.len(), 4);
    for (rank, found) in (0..).zip(&found) {
        let fault = fault(std::slice::from_ref(found));
        assert_eq!(fault.primary_suspect().domain, rank_domain(rank));
        assert_eq!(fault.suspects()[1].domain, Domain::Node(NodeId(Name::new("a"))));
        let text = "all 4 ranks of node a have become slower: the host may be the cause";
        assert_eq!(fault.evidence.last().map(|clue| clue.text.as_str()), Some(text));
    }
}

#[test]
fn steps_of_which_records_were_lost_are_not_used() {
    let mut job = Job::new(Scene::of(4));
    job.steps(60, &[100; 4]);
    let lossy = |rank, times: StepTimes| Some(StepTimes { lost: u64::from(rank == 2), ..times });
    assert!(job.told(30, &[100, 100, 150, 100], lossy).is_empty());
    assert_eq!(job.steps(10, &[100, 100, 150, 100]).len(), 1);
}

#[test]
fn a_rank_that_tells_no_steps_is_not_waited_for_for_long() {
    let mut job = Job::new(Scene::of(4));
    let mute = |rank: u32, times| (rank != 3).then_some(times);
    job.told(130, &[100; 4], mute);
    let found = job.told(10, &[150, 100, 100, 100], mute);
    assert_eq!(fault(&found).primary_suspect().domain, rank_domain(0));
}

#[test]
fn a_new_generation_begins_from_nothing() {
    let mut job = Job::new(Scene::of(4));
    job.steps(60, &[100; 4]);
    job.scene.restart();
    job.step = 0;
    assert!(job.steps(60, &[150, 100, 100, 100]).is_empty(), "it has never been faster in this one");
    assert_eq!(job.steps(10, &[150, 150, 100, 100]).len(), 1);
}

#[test]
fn settings_of_the_slow_rank_detector_are_bounded() {
    let set = SlowRankDetector::by_percent(1).with_learning_steps(10_000);
    assert_eq!(set.config(), "slower_by_percent=5 learning_steps=256");
    assert_eq!(SlowRankDetector::default().config(), "slower_by_percent=20 learning_steps=48");
}

/// Reports `count` steps in which all processes look equal, because they wait for their devices; `with` selects the
/// ranks that report these.
fn on_devices(job: &mut Job, count: u32, compute_ms: &[u64], with: impl Fn(u32) -> bool) -> Vec<Finding> {
    let slowest = compute_ms.iter().copied().max().unwrap_or_default();
    let mut found = Vec::new();
    for _ in 0..count {
        job.step += 1;
        job.scene.pass(slowest + 10);
        for (rank, compute) in (0..).zip(compute_ms) {
            let (wall_ns, wait_ns) = ((slowest + 10) * MS, (slowest + 10 - compute) * MS);
            let (step, compute_ns, communication_ns) = (job.step, compute * MS, wait_ns + MS);
            let device =
                DeviceTimes { step, wall_ns, compute_ns, communication_ns, wait_ns, spans: 9, ..Default::default() };
            if with(rank) {
                found.extend(job.scene.tell(&mut job.detector, rank, Signal::DeviceStep(Box::new(device))));
            }
            let times = StepTimes { step, wall_ns, cpu_ns: Some(90 * MS), ..StepTimes::default() };
            found.extend(job.scene.tell(&mut job.detector, rank, Signal::Step(Box::new(times))));
        }
    }
    found
}

#[test]
fn a_slow_device_is_blamed_although_all_steps_look_equal() {
    let mut job = Job::new(Scene::of(4));
    assert!(on_devices(&mut job, 60, &[100; 4], |_| true).is_empty());
    let found = on_devices(&mut job, 30, &[100, 100, 120, 100], |_| true);
    let fault = fault(&found);
    assert_eq!(fault.primary_suspect().domain, rank_domain(2));
    let texts = texts(fault);
    assert!(texts.iter().any(|(what, _)| *what == "slow_device"), "{texts:?}");
    // The devices are not traced any more: nothing is known.
    assert_eq!(
        on_devices(&mut job, 80, &[100, 100, 120, 100], |_| false),
        [Finding::Clear(rank_domain(2), FaultClass::Slow)]
    );
}

#[test]
fn a_rank_without_spans_among_ranks_with_spans_is_not_blamed() {
    let mut job = Job::new(Scene::of(4));
    on_devices(&mut job, 60, &[100; 4], |_| true);
    assert!(on_devices(&mut job, 60, &[100; 4], |rank| rank != 1).is_empty());
    let found = on_devices(&mut job, 30, &[100, 100, 100, 150], |rank| rank != 1);
    assert_eq!(fault(&found).primary_suspect().domain, rank_domain(3));
}
