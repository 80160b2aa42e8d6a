use super::*;
use crate::detect::fixture::{Scene, fault, rank_domain};
use crate::detect::{DetectorExt, Fault, Finding, Sound};
use crate::job::NodeId;
use crate::testing::{Timeline, conformance};

const MS: u64 = 1_000_000;

/// What the ranks do in a step: everybody waits for the slowest.
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

    /// So many steps, in which the ranks need this long; all that is said.
    fn steps(&mut self, count: u32, own_ms: &[u64]) -> Vec<Finding> {
        self.told(count, own_ms, |_, times| Some(times))
    }

    /// The same, of which not everything is told.
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
    fault.clues.iter().map(|clue| (clue.what.as_str(), clue.text.as_str())).collect()
}

#[test]
fn a_rank_that_becomes_slower_is_blamed_with_its_reasons() {
    let mut job = Job::new(Scene::of(4));
    assert!(job.steps(60, &[100, 100, 100, 100]).is_empty());
    let onset = job.scene.view.now;
    let found = job.steps(10, &[100, 100, 150, 100]);
    let fault = fault(&found);
    assert_eq!((&fault.prime().domain, &fault.prime().class), (&rank_domain(2), &FaultClass::Slow));
    assert_eq!((fault.prime().confidence_permille, fault.prime().damage.process), (900, Sound::Yes));
    assert_eq!((fault.onset, fault.incarnation()), (onset, Some(Incarnation(1))));
    assert_eq!(
        texts(fault),
        [
            (
                "slow_own_time_ms",
                "rank 2 needs 150.0 ms a step for its own part, 50 % more than the 100.0 ms that would be usual for it, \
                 beside the other ranks"
            ),
            ("slow_waited_for_ms", "the others waited for it in 6 of 6 steps: 60.0 ms a step, where it waited 10.0 ms"),
            ("slow_onset_step", "it began at step 61, as far as can be told"),
            (
                "slow_starved",
                "its thread was on a CPU for 60 % of that time, usual are 90 %: it does not get its CPU: others are on its \
                 core, or it is stopped, or sleeps, again and again"
            ),
        ]
    );
    assert_eq!(fault.clues[0].peers, [Rank(0), Rank(1), Rank(3)]);
}

#[test]
fn what_the_time_went_into_is_told_apart() {
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
        (fault.clues.get(3).map(|clue| clue.what.to_string()), fault.prime().confidence_permille)
    };
    assert_eq!(cause(|times| times.cpu_ns = Some(135 * MS)), (Some("slow_computing".into()), 900));
    assert_eq!(cause(|times| times.data_loader_ns = 52 * MS), (Some("slow_data".into()), 900));
    assert_eq!(cause(|times| times.cpu_ns = None), (None, 800), "nothing is known of its CPU");
}

#[test]
fn two_figures_that_are_no_slowness_blame_nobody() {
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
fn it_is_cleared_when_it_is_as_fast_as_before() {
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
        assert_eq!(fault.prime().domain, rank_domain(rank));
        assert_eq!(fault.suspects()[1].domain, Domain::Node(NodeId(Name::new("a"))));
        let text = "all 4 ranks of node a have become slower: it may be the host";
        assert_eq!(fault.clues.last().map(|clue| clue.text.as_str()), Some(text));
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
    assert_eq!(fault(&found).prime().domain, rank_domain(0));
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
fn what_is_set_is_bounded() {
    let set = SlowRankDetector::by_percent(1).with_learning_steps(10_000);
    assert_eq!(set.config(), "slower_by_percent=5 learning_steps=256");
    assert_eq!(SlowRankDetector::default().config(), "slower_by_percent=20 learning_steps=48");
}

#[test]
fn it_keeps_the_contract_also_where_it_has_much_to_say() {
    let steps = |mut timeline: Timeline, numbers: std::ops::Range<u64>, slow: u64| {
        for step in numbers {
            timeline = timeline.wait(std::time::Duration::from_millis(110));
            for rank in 0..4 {
                let own = if rank == 1 { slow } else { 100 };
                timeline = timeline.rank(rank, Signal::Step(Box::new(times(step, own, own.max(100)))));
            }
        }
        timeline
    };
    let healthy = steps(Timeline::of_ranks(4), 1..100, 100);
    let slow = steps(steps(healthy.clone(), 100..130, 150), 130..150, 100);
    conformance::fault_detector(SlowRankDetector::default).with_healthy(healthy).with_timeline(slow).assert();
    conformance::fault_detector(|| SlowRankDetector::default().when(|o| o.about != Domain::Job)).assert();
}
