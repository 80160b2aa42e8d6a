//! Hangs in hundreds of simulated jobs.

use crate::collectives::{Job, TICK, Trouble};
use rand::RngExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{Fault, FaultDetector, Finding, Findings, HangDetector};
use taskd_core::job::{Domain, Rank, Role};
use taskd_core::state::View;
use taskd_core::testing::Timeline;
use taskd_core::trace::{COLLECTIVES, Observation, Probe, ProbeReply, ProbeResult, Signal, write_links};

const SEEDS: std::ops::Range<u64> = 0..100;
/// The step in which trouble begins lies among these.
const STEPS: std::ops::Range<u64> = 4..12;

/// A job, and what the detector reports of it.
struct Watched {
    job: Job,
    view: View,
    detector: HangDetector,
    /// Questions, and when they are answered.
    asked: Vec<(u64, Domain, Probe)>,
    blamed: Vec<(u64, Fault)>,
    cleared: Vec<Domain>,
}

impl Watched {
    fn new(job: Job) -> Watched {
        let view = Timeline::of_ranks(job.ranks).view().clone();
        let detector = HangDetector::default().missing_after(Duration::from_secs(20));
        Watched { job, view, detector, asked: Vec::new(), blamed: Vec::new(), cleared: Vec::new() }
    }

    fn run(&mut self, ms: u64) {
        let end = self.job.now_ms + ms;
        while self.job.now_ms < end {
            self.job.tick();
            self.view.now = self.view.now + TICK;
            for (rank, group, sequence) in self.job.pending() {
                self.show(rank, Signal::CollectivePending { group, sequence, nanos: 1_000_000_000 });
            }
            let (due, later) = self.asked.drain(..).partition(|(at, ..)| *at <= self.job.now_ms);
            self.asked = later;
            for (_, about, ask) in due {
                self.answer(&about, &ask);
            }
            if self.detector.deadline().is_some_and(|at| at <= self.view.now) {
                let mut out = Findings::default();
                self.detector.expire(&self.view, &mut out);
                self.note(out);
            }
        }
    }

    fn answer(&mut self, about: &Domain, ask: &Probe) {
        let rank = match about {
            Domain::Process(Role::Rank(rank)) => rank,
            Domain::Node(_) => return self.answer_links(about, ask),
            other => panic!("{other} is asked about"),
        };
        let exhibit = match (ask.what == COLLECTIVES, self.job.is_frozen(rank.0)) {
            (true, _) => ProbeResult::Groups(self.job.positions(rank.0)),
            (false, true) => ProbeResult::Text("state=T wchan=do_signal_stop".into()),
            (false, false) => ProbeResult::Text("state=S wchan=futex_do_wait beat_age_ms=40".into()),
        };
        let evidence = ProbeReply::new(ask, about.clone(), exhibit);
        self.show(rank.0, Signal::ProbeReply(Arc::new(evidence)));
    }

    /// All hosts reach each other: the links explain no hang.
    fn answer_links(&mut self, about: &Domain, ask: &Probe) {
        let host = |domain: &Domain| if let Domain::Node(host) = domain { Some(host.clone()) } else { None };
        let reached = ask.about.iter().filter(|other| *other != about).filter_map(host).map(|host| (host, true));
        let reply = ProbeReply::new(ask, about.clone(), write_links(&reached.collect()));
        self.show_of(about.clone(), Signal::ProbeReply(Arc::new(reply)));
    }

    fn show(&mut self, rank: u32, signal: Signal) {
        self.show_of(Domain::Process(Role::Rank(Rank(rank))), signal);
    }

    fn show_of(&mut self, about: Domain, signal: Signal) {
        let o = Observation::new(self.view.now, about, signal);
        let mut out = Findings::default();
        self.detector.observe(&o, &self.view, &mut out);
        self.note(out);
    }

    fn note(&mut self, mut out: Findings) {
        for finding in out.drain() {
            match finding {
                Finding::Blame(fault) => self.blamed.push((self.job.now_ms, fault)),
                Finding::Clear(domain, _) => self.cleared.push(domain),
                Finding::Note(..) => {}
                Finding::Probe(ask) => {
                    for about in ask.about.clone() {
                        let late = self.job.dice().random_range(0..100);
                        self.asked.push((self.job.now_ms + late, about, ask.clone()));
                    }
                }
            }
        }
    }

    fn blames(&self) -> BTreeSet<Domain> {
        self.blamed.iter().map(|(_, fault)| fault.primary_suspect().domain.clone()).collect()
    }
}

fn rank(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

#[derive(Debug, Default)]
struct Score {
    jobs: u32,
    right: u32,
    right_cause: u32,
    wrong: Vec<(u64, String)>,
    missed: Vec<u64>,
    ms: Vec<u64>,
}

/// One kind of trouble in each of many jobs of collectives. At least 95 % have the right cause.
fn score(trouble: Trouble, cause: &str, seeds: impl Iterator<Item = u64>, run_ms: u64) -> Score {
    let score = score_of(Job::new, trouble, cause, seeds, run_ms);
    assert!(score.right_cause * 100 >= score.jobs * 95, "{score:?}");
    score
}

/// One kind of trouble in each of many jobs. No innocent rank is blamed.
fn score_of(
    job: impl Fn(u64) -> Job,
    trouble: Trouble,
    cause: &str,
    seeds: impl Iterator<Item = u64>,
    run_ms: u64,
) -> Score {
    let mut score = Score::default();
    for seed in seeds {
        let mut watched = Watched::new(job(seed));
        let ranks = watched.job.ranks;
        let victim = watched.job.dice().random_range(0..ranks);
        let step = watched.job.dice().random_range(STEPS);
        watched.job.inject(victim, trouble, step);
        watched.run(run_ms);
        let began = watched.job.began_ms.expect("the trouble begins");
        score.jobs += 1;
        let blames = watched.blames();
        if blames == BTreeSet::from([rank(victim)]) {
            score.right += 1;
            let (at, fault) = &watched.blamed[0];
            score.ms.push(at - began);
            score.right_cause += u32::from(fault.evidence[0].what == cause);
        } else if blames.is_empty() {
            score.missed.push(seed);
        } else {
            score.wrong.push((seed, format!("rank {victim}: {:?}", watched.blamed)));
        }
    }
    score.ms.sort_unstable();
    println!(
        "{trouble:?}: {} jobs, right {}, right cause {}, missed {:?}, wrong {}, ms from the fault: median {:?}, most {:?}",
        score.jobs,
        score.right,
        score.right_cause,
        score.missed,
        score.wrong.len(),
        score.ms.get(score.ms.len() / 2),
        score.ms.last(),
    );
    assert!(score.wrong.is_empty(), "{:?}", score.wrong);
    score
}

#[test]
fn a_frozen_rank_is_found_within_three_seconds() {
    assert!(score(Trouble::Stop, "hang_frozen", SEEDS, 6_000).ms.iter().all(|ms| *ms <= 3_000));
}

#[test]
fn a_rank_that_left_out_a_call_is_found_within_three_seconds() {
    assert!(score(Trouble::Skip, "hang_skipped", SEEDS, 6_000).ms.iter().all(|ms| *ms <= 3_000));
}

#[test]
fn a_rank_that_called_something_else_is_found_within_three_seconds() {
    assert!(score(Trouble::Mismatch, "hang_mismatch", SEEDS, 6_000).ms.iter().all(|ms| *ms <= 3_000));
}

#[test]
fn a_frozen_stage_of_a_pipeline_is_found_within_three_seconds() {
    let found = score_of(Job::pipeline, Trouble::Stop, "hang_frozen", SEEDS, 6_000);
    assert!(found.right_cause == found.jobs && found.ms.iter().all(|ms| *ms <= 3_000), "{found:?}");
}

#[test]
fn a_stage_that_left_out_a_call_is_found_in_most_pipelines_and_no_other_is_blamed() {
    let found = score_of(Job::pipeline, Trouble::Skip, "hang_skipped", SEEDS, 8_000);
    assert!(found.right_cause * 100 >= found.jobs * 90 && found.ms.iter().all(|ms| *ms <= 3_000), "{found:?}");
}

#[test]
fn a_missing_stage_is_found_after_the_bound() {
    let found = score_of(Job::pipeline, Trouble::Away, "hang_missing", SEEDS.step_by(4), 40_000);
    assert!(found.right_cause * 100 >= found.jobs * 95, "{found:?}");
}

#[test]
fn a_pipeline_that_is_only_slow_does_not_hang() {
    for seed in SEEDS {
        let mut watched = Watched::new(Job::pipeline(seed));
        watched.job.takes_ms = if seed % 2 == 0 { 10 } else { 1_500 };
        watched.run(30_000);
        assert!(watched.blamed.is_empty(), "seed {seed}: {:?}", watched.blamed);
    }
}

#[test]
fn a_rank_missing_from_a_collective_is_found_after_the_bound() {
    let found = score(Trouble::Away, "hang_missing", SEEDS.step_by(4), 40_000);
    assert!(found.ms.iter().all(|ms| (20_000..=33_000).contains(ms)), "{found:?}");
}

#[test]
fn a_rank_missing_for_less_than_the_bound_is_not_blamed() {
    for seed in SEEDS.step_by(5) {
        let mut watched = Watched::new(Job::new(seed));
        watched.detector = HangDetector::default(); // five minutes, and it is away for one
        watched.job.inject(1, Trouble::Away, 5);
        watched.run(90_000);
        assert!(watched.blamed.is_empty(), "seed {seed}: {:?}", watched.blamed);
        assert!(watched.job.step_of(0) > 20, "seed {seed}: it goes on");
    }
}

#[test]
fn a_job_that_is_only_slow_does_not_hang() {
    let mut looks = 0;
    for seed in SEEDS {
        let mut watched = Watched::new(Job::new(seed));
        watched.job.takes_ms = if seed % 2 == 0 { 10 } else { 1_500 };
        watched.run(20_000);
        assert!(watched.blamed.is_empty(), "seed {seed}: {:?}", watched.blamed);
        looks += u32::from(watched.detector.deadline().is_some());
    }
    println!(
        "{} clean jobs, half of them with collectives of 1.5 s, no rank blamed; {looks} looked at in the end",
        SEEDS.count()
    );
    assert!(looks >= 30, "{looks}");
}
