//! Slow ranks in hundreds of simulated jobs.

use crate::training::{Cause, Load, Slowdown, Training};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taskd_core::detect::{Fault, FaultClass, FaultDetector, Finding, Findings, SlowRankDetector};
use taskd_core::job::{Domain, Rank, Role};
use taskd_core::state::View;
use taskd_core::testing::Timeline;
use taskd_core::trace::{Observation, Signal};

const CLEAN: std::ops::Range<u64> = 0..200;
const INJECTED: std::ops::Range<u64> = 1_000..1_200;
/// Steps of a clean job.
const CLEAN_STEPS: u64 = 300;
/// Steps after the onset in which something is to be found.
const STEPS_AFTER: u64 = 60;

/// A job, and what the detector reports of it.
struct Watched {
    training: Training,
    view: View,
    detector: SlowRankDetector,
    /// By blamed rank: at which step, and the fault.
    blamed: BTreeMap<u32, (u64, Fault)>,
    cleared: BTreeMap<u32, u64>,
}

impl Watched {
    fn new(seed: u64) -> Watched {
        let training = Training::new(seed);
        let view = Timeline::of_ranks(training.ranks).view().clone();
        let detector = SlowRankDetector::default();
        Watched { training, view, detector, blamed: BTreeMap::new(), cleared: BTreeMap::new() }
    }

    fn run(&mut self, steps: std::ops::Range<u64>) {
        for step in steps {
            let facts = self.training.step();
            let wall = facts.iter().map(|(_, times)| times.wall_ns).max().unwrap_or_default();
            self.view.now = self.view.now + Duration::from_nanos(wall);
            for (rank, times) in facts {
                let about = Domain::Process(Role::Rank(Rank(rank)));
                let signal = Signal::Step(Box::new(times));
                let o = Observation::new(self.view.now, about, signal);
                let mut out = Findings::default();
                self.detector.observe(&o, &self.view, &mut out);
                out.drain().for_each(|finding| self.note(step, finding));
            }
        }
    }

    fn note(&mut self, step: u64, finding: Finding) {
        match finding {
            Finding::Blame(fault) => {
                let Domain::Process(Role::Rank(rank)) = fault.primary_suspect().domain else {
                    panic!("a rank is blamed")
                };
                assert_eq!(
                    (&fault.primary_suspect().class, fault.primary_suspect().is_cause()),
                    (&FaultClass::Slow, true)
                );
                self.blamed.insert(rank.0, (step, fault));
            }
            Finding::Clear(Domain::Process(Role::Rank(rank)), FaultClass::Slow) => {
                self.cleared.insert(rank.0, step);
            }
            other => panic!("it reports nothing else: {other:?}"),
        }
    }

    fn blames(&self) -> BTreeSet<u32> {
        self.blamed.keys().copied().collect()
    }
}

/// One rank, or several, or all of a host, become slower from some step on.
fn injected(seed: u64, percent: u32) -> (Watched, Slowdown) {
    let mut watched = Watched::new(seed);
    let critical = watched.training.critical();
    let most = (watched.training.ranks as usize / 3).max(1);
    let dice = watched.training.dice();
    let first = critical[dice.random_range(0..critical.len())];
    let ranks = match dice.random_range(0..4) {
        0 => critical.iter().copied().filter(|rank| rank / 4 == first / 4).collect(),
        1 => BTreeSet::from([first, critical[dice.random_range(0..critical.len())]]),
        _ => BTreeSet::from([first]),
    };
    let ranks: BTreeSet<u32> = ranks.into_iter().take(most).collect();
    let cause = [Cause::Starved, Cause::Computing, Cause::Data][dice.random_range(0..3)];
    let from = dice.random_range(60..85);
    let slowdown = Slowdown { ranks, percent, cause, from, until: u64::MAX };
    watched.training.slowdown = Some(slowdown.clone());
    watched.run(1..from + STEPS_AFTER);
    (watched, slowdown)
}

#[derive(Debug, Default)]
struct Score {
    jobs: u32,
    right: u32,
    /// Number of these jobs whose machine is not crowded.
    quiet: u32,
    in_time: u32,
    wrong: Vec<(u64, BTreeSet<u32>)>,
    right_cause: u32,
    onset_near: u32,
    delays: Vec<u64>,
}

fn score(percent: u32, within: u64) -> Score {
    let mut score = Score::default();
    for seed in INJECTED {
        let (watched, slowdown) = injected(seed, percent);
        let is_quiet = watched.training.load != Load::Crowded;
        score.jobs += 1;
        score.quiet += u32::from(is_quiet);
        let blamed = watched.blames();
        if !blamed.is_subset(&slowdown.ranks) {
            score.wrong.push((seed, blamed.difference(&slowdown.ranks).copied().collect()));
        }
        if blamed != slowdown.ranks {
            continue;
        }
        score.right += 1;
        let last = watched.blamed.values().map(|(step, _)| *step).max().unwrap_or_default();
        let delay = last + 1 - slowdown.from.min(last + 1);
        score.delays.push(delay);
        score.in_time += u32::from(is_quiet && delay <= within);
        let expected = match slowdown.cause {
            Cause::Starved => "slow_starved",
            Cause::Computing => "slow_computing",
            Cause::Data => "slow_data",
        };
        let faults = || watched.blamed.values().map(|(_, fault)| fault);
        score.right_cause += u32::from(faults().all(|f| f.evidence.iter().any(|clue| clue.what == expected)));
        let onset = |f: &Fault| f.evidence.iter().find(|c| c.what == "slow_onset_step").and_then(|c| c.value).unwrap();
        let is_near = |f: &Fault| (onset(f) - slowdown.from as f64).abs() <= 5.0;
        score.onset_near += u32::from(faults().all(is_near));
    }
    score.delays.sort_unstable();
    let delay = |part: usize| score.delays[(score.delays.len() - 1) * part / 100];
    println!(
        "{percent} % slower: {} jobs, right {}, of {} quiet ones in {within} steps {}, wrong {:?}, right cause {}, onset within 5 steps {}, \
         delay in steps: median {}, 95 % {}, most {}",
        score.jobs,
        score.right,
        score.quiet,
        score.in_time,
        score.wrong,
        score.right_cause,
        score.onset_near,
        delay(50),
        delay(95),
        delay(100)
    );
    score
}

#[test]
fn half_as_slow_again_is_found_within_ten_steps() {
    let score = score(50, 10);
    assert!(score.wrong.is_empty() && score.right * 100 >= score.jobs * 95, "{score:?}");
    assert!(score.in_time * 100 >= score.quiet * 95, "{score:?}");
    assert!(score.right_cause * 100 >= score.jobs * 95 && score.onset_near * 100 >= score.jobs * 95, "{score:?}");
}

#[test]
fn a_fifth_slower_is_found_within_forty_steps() {
    let score = score(20, 40);
    assert!(score.wrong.is_empty() && score.right * 100 >= score.jobs * 95, "{score:?}");
    assert!(score.in_time * 100 >= score.quiet * 95, "{score:?}");
}

#[test]
fn a_clean_job_has_no_blamed_rank() {
    let mut loads: BTreeMap<String, u32> = BTreeMap::new();
    for seed in CLEAN {
        let mut watched = Watched::new(seed);
        watched.run(1..CLEAN_STEPS);
        *loads.entry(format!("{:?}", watched.training.load)).or_default() += 1;
        assert!(watched.blamed.is_empty(), "seed {seed}, {:?}: {:?}", watched.training.load, watched.blamed);
    }
    println!("{} clean jobs of {CLEAN_STEPS} steps, no rank blamed: {loads:?}", CLEAN.count());
}

#[test]
fn a_slowdown_of_all_ranks_blames_no_rank() {
    for seed in 0..20 {
        let mut watched = Watched::new(seed);
        let ranks = (0..watched.training.ranks).collect();
        let all = Slowdown { ranks, percent: 50, cause: Cause::Starved, from: 75, until: u64::MAX };
        watched.training.slowdown = Some(all);
        watched.run(1..150);
        assert!(watched.blamed.is_empty(), "seed {seed}: {:?}", watched.blamed);
    }
}

#[test]
fn a_slower_short_stage_that_delays_no_rank_is_not_blamed() {
    let mut seen = 0;
    for seed in 0..40 {
        let mut watched = Watched::new(seed);
        if watched.training.load != Load::Stages {
            continue;
        }
        let short = Slowdown { ranks: [0].into(), percent: 20, cause: Cause::Computing, from: 75, until: u64::MAX };
        watched.training.slowdown = Some(short); // from 70 to 84 % of the longest stage
        watched.run(1..150);
        assert!(watched.blamed.is_empty(), "seed {seed}: {:?}", watched.blamed);
        seen += 1;
    }
    assert!(seen >= 5, "{seen} jobs with stages");
}

#[test]
fn a_rank_that_recovers_is_cleared_and_found_again() {
    for seed in 0..20 {
        let mut watched = Watched::new(seed);
        let victim = watched.training.critical()[0];
        let slow =
            |from, until| Some(Slowdown { ranks: [victim].into(), percent: 50, cause: Cause::Starved, from, until });
        watched.training.slowdown = slow(75, 115);
        watched.run(1..150);
        let cleared = watched.cleared.get(&victim).copied();
        assert!(cleared.is_some_and(|step| (115..140).contains(&step)), "seed {seed}: cleared at {cleared:?}");
        watched.training.slowdown = slow(150, u64::MAX);
        watched.run(150..180);
        let (step, _) = &watched.blamed[&victim];
        assert!(*step >= 150, "seed {seed}: blamed again");
        assert_eq!(watched.blames(), [victim].into());
    }
}
