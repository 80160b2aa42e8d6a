//! What belongs to one incident, what is reported of it, and what it may cost.

use crate::bench::*;
use std::time::Duration;
use taskd_kernel::detect::{Damage, Evidence, Fault, FaultClass, Suspect, detector_fn};
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::*;
use taskd_kernel::state::View;
use taskd_kernel::state::*;
use taskd_kernel::trace::{Fact, Signal};

#[test]
fn a_fault_after_the_window_but_before_its_decision_joins_it() {
    let plugins =
        Plugins { detectors: vec![exits()], strategies: vec![Box::new(taskd_kernel::recover::Restart::new())] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.set_phase(1, 1, killed());
    bench.now = 125 * MS; // the window ended at 120, but this change goes before the deadline
    bench.set_phase(2, 1, killed());
    assert_eq!(bench.kernel.report().incidents.len(), 1);
}

#[test]
fn an_incident_full_of_victims_still_takes_a_cause_and_all_that_is_lost() {
    let ranks = u32::try_from(FAULTS_PER_INCIDENT_MAX).unwrap() + 40;
    let mut bench = Bench::new(ranks, |_| ()).up();
    (0..ranks - 1).for_each(|rank| drop(bench.set_phase(rank, 1, killed())));
    let (_, started) = start_of(&bench.at(1_000)).expect("a recovery");
    assert_eq!(started.len(), ranks as usize - 1, "also those beyond the bound");
    bench.set_phase(7, 2, Phase::Running);
    bench.set_phase(7, 2, killed());
    let (_, again) = start_of(&bench.at(1_900)).expect("a death in the middle of the recovery is no less one");
    assert!(again.contains(&ProcId::rank(7, 3)), "{again:?}");
    assert!(count(&bench, DropReason::IncidentBound) > 0);
}

#[test]
fn an_all_clear_does_not_close_an_incident_with_stopped_ranks() {
    let flaky = detector_fn("flaky", |o, _, out| match o.signal {
        Signal::Metric { value: 1.0, .. } => {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Network, Damage::default());
            out.blame(Fault::new(Name::new("flaky"), o.at, suspect));
        }
        Signal::Metric { .. } => out.clear(o.about.clone(), FaultClass::Network),
        _ => {}
    });
    let plugins = Plugins { detectors: vec![Box::new(flaky)], strategies: vec![Box::new(Restart::new())] };
    let mut bench = Bench::with(2, |_| (), plugins).up();
    let metric = |value| {
        let fact = Fact::new(rank_domain(0), Signal::Metric { name: Name::new("down"), value });
        Input::Observed(vec![fact.into_observation(JobTime::START)])
    };
    bench.give(metric(1.0));
    bench.give(metric(0.0));
    assert_eq!(bench.kernel.report().incidents[0].outcome, "its detector withdrew the fault");
    bench.give(metric(1.0));
    assert_eq!(stopped(&bench.at(20)).len(), 2);
    bench.give(asked_to_look_into(1, 7)); // cancels the restart in its stop
    bench.give(metric(0.0));
    assert_eq!(bench.kernel.report().incidents[1].outcome, "open", "they have to be started again");
}

#[test]
fn victims_belong_to_the_incident_that_is_open_and_are_not_paid_for_again() {
    let mut bench = Bench::new(8, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    for (rank, ms) in (1..5).zip([200, 300, 400, 500]) {
        let suspect = Suspect::victim(rank_domain(rank), FaultClass::Exit, Damage::PROCESS_GONE);
        let fault = Fault::new(Name::new("test"), JobTime::START, suspect).with_incarnation(Some(Incarnation(1)));
        bench.now = ms * MS;
        bench.give(Input::Requested(Request::Fault(Box::new(fault))));
        bench.at(ms + 20);
    }
    assert_eq!(taken(&bench, Branch::Explained), 4);
    assert_eq!((bench.kernel.report().incidents.len(), bench.kernel.budget_left()), (1, 9));
}

/// Replaces a single lost rank for nothing, and more not at all.
struct Hope;

impl RecoveryStrategy for Hope {
    fn name(&self) -> Name {
        Name::new("hope")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        if incident.faults.len() > 1 {
            return Err("too many for that".into());
        }
        let proposal = Replace.propose(incident, view)?;
        Ok(proposal.with_counted(Counted::No).with_cost(Cost::downtime(Duration::ZERO)))
    }
}

#[test]
fn a_recovery_after_a_free_retry_is_charged_to_the_budget() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(Hope), Box::new(Replace)] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    let left = bench.kernel.budget_left();
    assert_eq!(taken(&bench, Branch::FreeRetry), 1);
    let suspect = Suspect::victim(rank_domain(1), FaultClass::Exit, Damage::PROCESS_GONE);
    let fault = Fault::new(Name::new("test"), JobTime::START, suspect).with_incarnation(Some(Incarnation(1)));
    bench.give(Input::Requested(Request::Fault(Box::new(fault))));
    bench.at(140);
    assert_eq!((taken(&bench, Branch::Cancelled), bench.kernel.budget_left()), (1, left - 1));
}

#[test]
fn blame_that_is_refined_after_the_decision_is_right_in_the_report() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.set_phase(1, 1, Phase::Dead(Termination::Code(1))); // its error is not known yet
    bench.at(120);
    assert_eq!(bench.kernel.report().incidents[0].blamed, [Rank(0), Rank(1)]);
    let victim = Suspect::victim(rank_domain(1), FaultClass::Exit, Damage::PROCESS_GONE);
    let victim = Fault::new(Name::new("exit"), JobTime::START, victim).with_incarnation(Some(Incarnation(1)));
    bench.give(Input::Requested(Request::Fault(Box::new(victim))));
    assert_eq!(bench.kernel.report().incidents[0].blamed, [Rank(0)]);
}

#[test]
fn evidence_after_the_decision_is_added_to_the_report() {
    let reported_twice = detector_fn("exit", |o, _view, out| {
        let Signal::Phase(phase) = &o.signal else { return };
        let suspect = Suspect::certain(o.about.clone(), FaultClass::Exit, Damage::PROCESS_GONE);
        let fault =
            Fault::new(Name::new("exit"), JobTime::START, suspect).with_evidence(Evidence::text("ended", "SIGSEGV"));
        match phase {
            Phase::Dead(_) => out.blame(fault),
            Phase::Exited(exit) => out.blame(fault.with_evidence(Evidence::text("stderr", exit.stderr_tail.clone()))),
            _ => {}
        }
    });
    let strategies: Vec<Box<dyn RecoveryStrategy>> = vec![Box::new(Restart::new())];
    let mut bench = Bench::with(2, |_| (), Plugins { detectors: vec![Box::new(reported_twice)], strategies }).up();
    let how = Termination::Signal { number: 11, core_dumped: false };
    bench.set_phase(1, 1, Phase::Dead(how));
    assert!(!stopped(&bench.at(1_000)).is_empty(), "it is decided");
    let exit = Exit::new(how).with_stderr_tail("double free");
    bench.set_phase(1, 1, Phase::Exited(Box::new(exit)));
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].evidence, ["SIGSEGV", "double free"]);
    assert_eq!((count(&bench, DropReason::RepeatedFault), taken(&bench, Branch::Cancelled)), (0, 0));
}

#[test]
fn an_empty_budget_ends_the_job_with_the_reason() {
    let budget = BudgetSpec { recoveries_max: 1, refill_every: Duration::from_secs(3600) };
    let mut bench = Bench::new(1, |p| p.budget = budget).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    bench.set_phase(0, 2, Phase::Running);
    bench.now = 200 * MS;
    bench.set_phase(0, 2, killed());
    let commands = bench.at(220);
    let (ok, reason) = finish(&commands).expect("nothing is left to stop");
    assert!(!ok && reason.contains("budget of 1 is spent") && reason.contains("exit in rank 0"), "{reason}");
}

#[test]
fn outdated_facts_are_dropped_and_counted_by_reason() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    bench.set_phase(0, 2, Phase::Running);
    let old = Fact::new(rank_domain(0), Signal::Progress { step: 7 })
        .with_incarnation(Incarnation(1))
        .into_observation(JobTime::START);
    let stale = Fact::new(rank_domain(1), Signal::Progress { step: 9 })
        .with_generation(Generation(1))
        .into_observation(JobTime::START);
    let fresh = Fact::new(rank_domain(1), Signal::Progress { step: 8 })
        .with_generation(Generation(2))
        .into_observation(JobTime::START);
    bench.give(Input::Observed(vec![old, stale, fresh]));
    let counts = bench.kernel.counts();
    assert_eq!(counts.drops.get(&DropReason::OldIncarnation), Some(&1));
    assert_eq!(counts.drops.get(&DropReason::OldGeneration), Some(&1));
    assert_eq!(bench.kernel.view().procs[&Role::Rank(Rank(1))].step, Some(8));
    assert_eq!(bench.kernel.view().procs[&Role::Rank(Rank(0))].step, None);
}

#[test]
fn a_sign_of_life_counts_in_whatever_world() {
    let beats = detector_fn("beats", |o, _, out| {
        if o.signal == Signal::Heartbeat {
            let suspect = Suspect::certain(Domain::Plugin(Name::new("heard")), FaultClass::Plugin, Damage::default());
            out.blame(Fault::new(Name::new("beats"), o.at, suspect));
        }
    });
    let plugins = Plugins { detectors: vec![exits(), Box::new(beats)], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    let beat =
        Fact::new(rank_domain(1), Signal::Heartbeat).with_incarnation(Incarnation(1)).with_generation(Generation(1));
    let commands = bench.give(Input::Observed(vec![beat.into_observation(JobTime::START)]));
    assert_eq!(events(&commands).len(), 1, "it is shown to detectors");
    assert_eq!(count(&bench, DropReason::OldGeneration), 0);
}
