//! Recoveries that are overtaken, outrun, cancelled, and tried again.

use crate::bench::*;
use std::time::Duration;
use taskd_kernel::detect::{Damage, Fault, FaultClass, Health, Suspect, detector_fn};
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::*;
use taskd_kernel::state::View;
use taskd_kernel::state::*;
use taskd_kernel::trace::{Fact, Signal};

/// Looks first, so that two recoveries can be on their way to a new world at one time.
struct LookFirst;

impl RecoveryStrategy for LookFirst {
    fn name(&self) -> Name {
        Name::new("look-first")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let mut proposal = Replace.propose(incident, view)?;
        let (by, what) = (self.name(), Name::new("process-state"));
        let (about, within) = (proposal.affected_domains.clone(), Duration::from_secs(1));
        let ask = taskd_kernel::trace::Probe::new(by, what, about, within).with_tag(1);
        proposal.stages.insert(0, Stage::new("look", within, vec![Action::Collect(ask)]));
        Ok(proposal)
    }
}

#[test]
fn a_killed_rank_is_replaced_and_the_decision_has_a_reason() {
    let mut bench = Bench::new(3, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(1, 1, killed());
    let commands = bench.at(120);
    let decision = commands.iter().find_map(|c| match &c.effect {
        Effect::Publish(event) => match &**event {
            Event::Decided(decision) => Some(decision.clone()),
            _ => None,
        },
        _ => None,
    });
    let decision = decision.expect("decided when the window is over");
    assert_eq!(decision.chosen.expect("one strategy").strategy, Name::new("replace"));
    assert!(decision.reason.contains("the only way left"), "{}", decision.reason);
    let (_, started) = start_of(&commands).expect("it has exited, so it is started at once");
    assert_eq!(started, [ProcId::rank(1, 2)]);
    bench.set_phase(1, 2, Phase::Running);
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].blamed, [Rank(1)]);
    assert_eq!(report.incidents[0].outcome, "recovered by replace");
    assert_eq!((report.restarts, bench.kernel.budget_left()), (1, 9));
}

#[test]
fn the_same_rank_again_in_the_middle_of_its_recovery_cancels_and_replans() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let (first, _) = start_of(&bench.at(120)).expect("started");
    bench.set_phase(0, 2, killed()); // before it ever ran
    let (_, started) = start_of(&bench.at(140)).expect("started again");
    assert_eq!(started, [ProcId::rank(0, 3)], "an incarnation never runs twice");
    bench.give(Input::Answered { id: first, results: vec![(rank_domain(0), Ok(TargetReply::Accepted))] });
    assert_eq!(bench.kernel.counts().drops.get(&DropReason::LateAnswer), Some(&1));
    bench.set_phase(0, 3, Phase::Running);
    assert_eq!(bench.kernel.report().incidents.len(), 1, "one incident all along");
}

#[test]
fn a_peer_exit_during_a_full_restart_does_not_cancel_it() {
    let plugins =
        Plugins { detectors: vec![exits()], strategies: vec![Box::new(taskd_kernel::recover::Restart::new())] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.set_phase(1, 1, killed());
    let peer = Termination::Code(1);
    let proc = |phase| ProcStatus::new(ProcId::rank(2, 1), "i", phase).with_pid(1);
    let late = Fault::new(Name::new("exit"), JobTime::START, {
        Suspect::certain(rank_domain(2), FaultClass::Exit, Damage::PROCESS_GONE)
    });
    bench.at(120);
    bench.give(Input::Requested(Request::Fault(Box::new(late.with_incarnation(Some(Incarnation(1)))))));
    bench.give(Input::Changed(Change::Proc(proc(Phase::Exited(Box::new(Exit::new(peer)))))));
    let commands = bench.set_phase(0, 1, killed());
    assert_eq!(start_of(&commands).map(|(_, procs)| procs.len()), Some(3), "the restart goes on as planned");
    let counts = bench.kernel.counts();
    assert_eq!((counts.branches.get(&Branch::Covered), counts.branches.get(&Branch::Cancelled)), (Some(&1), None));
    assert_eq!(bench.kernel.budget_left(), 9, "paid for once");
}

#[test]
fn a_recovery_of_an_outdated_world_is_planned_again() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(LookFirst)] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    let look = |commands: &[Command]| {
        commands.iter().find(|c| matches!(c.effect, Effect::Act(Action::Collect(_)))).map(|c| c.id)
    };
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let first = look(&bench.at(120)).expect("it looks at rank 0");
    bench.set_phase(1, 1, killed());
    let second = look(&bench.at(140)).expect("and beside it at rank 1");
    assert!(start_of(&bench.give(Input::Answered { id: first, results: accepted(0) })).is_some());
    let commands = bench.give(Input::Answered { id: second, results: accepted(1) });
    assert_eq!(start_of(&commands), None, "the world it would enter does not know of rank 0's new process");
    assert_eq!(taken(&bench, Branch::Outrun), 1);
    let third = look(&commands).expect("it begins again");
    let commands = bench.give(Input::Answered { id: third, results: accepted(1) });
    assert_eq!(start_of(&commands).expect("from the world in force").1, [ProcId::rank(1, 2)]);
    let members = bench.kernel.view().world.members();
    assert_eq!((members[&Rank(0)].incarnation, members[&Rank(1)].incarnation), (Incarnation(2), Incarnation(2)));
}

#[test]
fn a_failed_recovery_is_tried_again_when_what_made_it_fail_may_be_known() {
    let mut bench = Bench::new(2, |p| p.correlation_window = Duration::from_millis(50)).up();
    bench.set_phase(1, 1, killed());
    let (id, _) = start_of(&bench.at(1_000)).expect("a recovery");
    let refused = vec![(rank_domain(1), Err(Failure::Refused("its host is gone".into())))];
    let commands = bench.give(Input::Answered { id, results: refused });
    assert_eq!(start_of(&commands), None, "not at once");
    assert_eq!(bench.kernel.deadline(), Some(JobTime::from_nanos(1_050 * MS)));
    assert!(start_of(&bench.at(1_050)).is_some());
}

/// Touches more than it replaces: in the first incident rank 2 as well, in the second everything.
struct Wide;

impl RecoveryStrategy for Wide {
    fn name(&self) -> Name {
        Name::new("wide")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let mut proposal = Replace.propose(incident, view)?;
        proposal.affected_domains.push(if incident.id == IncidentId(1) { rank_domain(2) } else { Domain::Job });
        Ok(proposal)
    }
}

#[test]
fn an_incident_waiting_for_an_overtaken_recovery_is_decided() {
    let link = detector_fn("link", |o, _view, out| {
        let Signal::Metric { value, .. } = o.signal else { return };
        let suspect = Suspect::victim(o.about.clone(), FaultClass::Network, Damage::default());
        match value > 0.0 {
            true => out.blame(Fault::new(Name::new("link"), o.at, suspect)),
            false => out.clear(o.about.clone(), FaultClass::Network),
        }
    });
    let plugins = Plugins { detectors: vec![exits(), Box::new(link)], strategies: vec![Box::new(Wide)] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    assert!(start_of(&bench.at(120)).is_some());
    bench.set_phase(1, 1, killed());
    assert_eq!(start_of(&bench.at(140)), None, "it would touch what the first recovery touches");
    for value in [1.0, 0.0] {
        let metric = Signal::Metric { name: Name::new("link_down"), value };
        bench.give(Input::Observed(vec![Fact::new(rank_domain(2), metric).into_observation(JobTime::START)]));
    }
    let commands = bench.at(160);
    assert_eq!(taken(&bench, Branch::Overtaken), 1, "rank 0 has its new process, and nothing else is left of it");
    assert_eq!(start_of(&commands).expect("nothing else will wake it").1, [ProcId::rank(1, 2)]);
}

#[test]
fn a_stop_in_one_recovery_does_not_delay_another_recovery() {
    let mut bench = Bench::new(3, |_| ()).up();
    bench.now = 100 * MS;
    bench.give(asked_to_look_into(0, 1));
    assert_eq!(stopped(&bench.at(120)), [ProcId::rank(0, 1)], "it takes its time to stop");
    bench.set_phase(1, 1, killed());
    let (_, second) = start_of(&bench.at(140)).expect("the first recovery cannot end well without rank 1");
    assert_eq!(second, [ProcId::rank(1, 2)], "and rank 0 is its own to start");
    let (_, first) = start_of(&bench.set_phase(0, 1, killed())).expect("planned again from the world in force");
    assert_eq!(first, [ProcId::rank(0, 2)]);
}

#[test]
fn a_process_stopped_by_a_cancelled_plan_starts_in_the_next() {
    let strategies: Vec<Box<dyn RecoveryStrategy>> = vec![Box::new(Replace), Box::new(Restart::new())];
    let mut bench = Bench::with(4, |_| (), Plugins { detectors: vec![exits()], strategies }).up();
    bench.now = 100 * MS;
    let stall = Suspect::certain(Domain::Job, FaultClass::Stall, Damage::default());
    let stall = Fault::new(Name::new("test"), JobTime::START, stall);
    bench.give(Input::Requested(Request::Fault(Box::new(stall))));
    assert_eq!(stopped(&bench.at(120)).len(), 4, "no rank is named, so all are restarted");
    bench.give(asked_to_look_into(0, 5)); // it cancels the restart, and the cheaper strategy replaces what is lost
    bench.at(140);
    (0..4).for_each(|rank| drop(bench.set_phase(rank, 1, killed())));
    assert_eq!(bench.kernel.view().procs.values().filter(|p| p.incarnation == Incarnation(2)).count(), 4);
}

#[test]
fn a_recovery_whose_start_was_unreachable_is_tried_again() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let (id, _) = start_of(&bench.at(120)).expect("started");
    let no = Err(Failure::Unreachable("try again".into()));
    bench.give(Input::Answered { id, results: vec![(rank_domain(0), no)] });
    assert_eq!(start_of(&bench.at(140)).expect("tried again").1, [ProcId::rank(0, 3)]);
}

#[test]
fn advice_during_a_recovery_is_dropped_and_accepted_afterwards() {
    let adviser = detector_fn("adviser", |o, _, out| {
        if let Signal::Metric { .. } = o.signal {
            let damage = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
            let suspect = Suspect::certain(Domain::Job, FaultClass::Other(Name::new("adviser")), damage);
            out.blame(Fault::new(Name::new("adviser"), o.at, suspect).with_advice(Name::new("replace")));
        }
    });
    let advise = |bench: &mut Bench| {
        let fact = Fact::new(Domain::Job, Signal::Metric { name: Name::new("small"), value: 1.0 });
        bench.give(Input::Observed(vec![fact.into_observation(JobTime::START)]))
    };
    let plugins = Plugins { detectors: vec![exits(), Box::new(adviser)], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins).up();
    bench.set_phase(1, 1, killed());
    advise(&mut bench);
    assert_eq!(count(&bench, DropReason::AdviceMeanwhile), 1, "a rank is lost, and more may be");
    let (id, _) = start_of(&bench.at(100)).expect("rank 1 starts again");
    assert!(events(&advise(&mut bench)).is_empty(), "it goes on");
    assert_eq!((count(&bench, DropReason::AdviceMeanwhile), taken(&bench, Branch::Cancelled)), (2, 0));
    bench.give(Input::Answered { id, results: accepted(1) });
    bench.set_phase(1, 2, Phase::Running);
    assert_eq!(taken(&bench, Branch::Recovered), 1);
    assert!(!events(&advise(&mut bench)).is_empty(), "now it is a matter of its own");
    assert_eq!(count(&bench, DropReason::AdviceMeanwhile), 2);
}

#[test]
fn an_ordered_strategy_is_not_chosen_if_a_rank_fails_meanwhile() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(Costly), Box::new(Replace)] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    let wish =
        OrderEnvelope { id: OrderId(1), by: Name::new("ann"), reason: "to see".into(), order: Order::Checkpoint };
    bench.give(Input::Ordered(Box::new(wish)));
    bench.set_phase(1, 1, killed());
    let commands = bench.at(100);
    let decided = events(&commands).into_iter().find_map(|event| match event {
        Event::Decided(decision) => decision.chosen.as_ref().map(|chosen| chosen.strategy.clone()),
        _ => None,
    });
    assert_eq!(decided, Some(Name::new("replace")));
}

/// What an operator may want by its name. It does as `Replace` does, for much.
struct Costly;

impl RecoveryStrategy for Costly {
    fn name(&self) -> Name {
        DUMP
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let proposal = Replace.propose(incident, view)?;
        Ok(proposal.with_cost(Cost::downtime(Duration::from_secs(600))))
    }
}
