//! The correct strategy passes; for every clause, a strategy that breaks it fails that clause.

use super::*;
use crate::detect::FaultClass;
use crate::job::{Counted, Domain, IncidentId, Member, Rank, Role, World};
use crate::recover::{Action, Advance, JobProfile, PlanExecution, Quorum, Stage};
use crate::testing::doubles::{Faulty, ReplaceStrategy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A strategy that breaks one clause of the contract.
struct Broken {
    good: ReplaceStrategy,
    clause: Clause,
    calls: AtomicU32,
}

impl Broken {
    fn suite(clause: Clause) -> StrategySuite {
        recovery_strategy(move || Broken { good: ReplaceStrategy, clause, calls: AtomicU32::new(0) }).with_seeds(3)
    }

    fn spoil(&self, proposal: &mut Proposal, view: &View, call: u32) {
        match self.clause {
            PURE => proposal.cost.downtime = Duration::from_secs(u64::from(call)),
            REASON_GIVEN => proposal.reason = " ".into(),
            TOUCHES_COVER => proposal.affected_domains = vec![Domain::Process(Role::Rank(Rank(0)))],
            INCARNATION_IS_NEXT => each_world(proposal, |world| {
                view.world.successor(Counted::Yes, |members| {
                    let next = world.members().iter().filter(|(rank, new)| members.get(rank) != Some(new));
                    let later = |new: &Member| Member { incarnation: new.incarnation.next(), ..new.clone() };
                    let changed: Vec<_> = next.map(|(rank, new)| (*rank, later(new))).collect();
                    members.extend(changed);
                })
            }),
            WORLD_FROM_SUCCESSOR => each_world(proposal, |world| world.successor(Counted::No, |_| {})),
            COUNTED_AS_PROPOSED => proposal.counted = Counted::No,
            STOP_BEFORE_START => {
                proposal.stages.remove(0);
            }
            WORLD_NAMES_STARTED => {
                for action in proposal.stages.iter_mut().flat_map(|stage| &mut stage.actions) {
                    if let Action::Enter(world) | Action::Start { batch: crate::launch::StartBatch { world, .. }, .. } =
                        action
                    {
                        *world = Arc::clone(&view.world);
                    }
                }
            }
            COST_ADMITS_END => proposal.cost.ends_job = true,
            STAGES_CAN_SUCCEED => proposal.stages[1].quorum = Quorum::AtLeast(1000),
            _ => {}
        }
    }
}

/// Replaces the world of every action, and the processes that it names.
fn each_world(proposal: &mut Proposal, other: impl Fn(&World) -> World) {
    for action in proposal.stages.iter_mut().flat_map(|stage| &mut stage.actions) {
        match action {
            Action::Enter(world) => *world = Arc::new(other(world)),
            Action::Start { batch, .. } => {
                batch.world = Arc::new(other(&batch.world));
                for order in &mut batch.starts {
                    let rank = order.proc.role.rank().unwrap();
                    order.proc = batch.world.proc(rank).unwrap();
                }
            }
            _ => {}
        }
    }
}

impl RecoveryStrategy for Broken {
    fn name(&self) -> Name {
        self.good.name()
    }

    fn config(&self) -> String {
        if self.clause == IDENTITY_CONSTANT { self.calls.load(Ordering::Relaxed).to_string() } else { String::new() }
    }

    fn unsupported_reason(&self, _job: &JobProfile) -> Option<String> {
        (self.clause == CANNOT_MEANS_NO).then(|| "it is the wrong job".into())
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(self.clause != NEVER_PANICS || incident.faults.len() < 3, "so many faults");
        if self.clause == DECIDES_FROM_DAMAGE
            && incident.faults.iter().any(|f| f.primary_suspect().class == FaultClass::Exit)
        {
            return Err("an exit is none of its business".into());
        }
        let mut proposal = self.good.propose(incident, view)?;
        self.spoil(&mut proposal, view, call);
        Ok(proposal)
    }

    fn advance(&self, run: &PlanExecution, _view: &View) -> Advance {
        if self.clause != ADVANCE_ENDS {
            return Advance::Continue;
        }
        Advance::ReplaceRest(vec![run.ended_stage().cloned().unwrap_or(Stage::new(
            "again",
            Duration::ZERO,
            Vec::new(),
        ))])
    }
}

#[test]
fn a_correct_strategy_passes_every_clause() {
    let report = recovery_strategy(ReplaceStrategy::default).assert();
    assert_eq!((report.checked(), report.skipped()), (ALL, [].as_slice()));
}

#[test]
fn every_clause_convicts_the_strategy_that_breaks_it() {
    let mut missed = Vec::new();
    for clause in ALL {
        let broken = Broken::suite(*clause).check().err().unwrap_or_default();
        if broken.len() != 1 || broken[0].clause != *clause {
            missed.push(clause.to_string());
        }
    }
    assert_eq!(missed, [] as [String; 0], "broken by a strategy that was not convicted of it alone");
}

#[test]
fn panicking_and_impure_strategies_fail_their_own_clauses() {
    let panics = recovery_strategy(|| Faulty::panicking(ReplaceStrategy, 0)).check().unwrap_err();
    assert_eq!((panics.len(), panics[0].clause), (1, NEVER_PANICS));
    let moody = recovery_strategy(|| Faulty::failing(ReplaceStrategy, 1)).check().unwrap_err();
    assert_eq!((moody.len(), moody[0].clause), (1, PURE));
    recovery_strategy(|| Faulty::repeating(ReplaceStrategy)).assert(); // redundant, but not wrong
}

#[test]
fn a_strategy_that_refuses_everything_is_reported_as_little_checked() {
    let never = || Faulty::failing(ReplaceStrategy, u32::MAX);
    let report = recovery_strategy(never).assert();
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped.len(), 9, "{report}");
    assert!(report.to_string().contains("give it one that it can recover from"), "{report}");
    let scene = scenes::usual().remove(0);
    let mut incident = scene.incident;
    incident.id = IncidentId(7);
    let suite =
        recovery_strategy(|| Faulty::repeating(ReplaceStrategy)).with_seeds(0).with_incident(incident, scene.view);
    assert!(suite.assert().skipped().is_empty());
}
