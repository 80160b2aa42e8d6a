//! The requirements for a proposal, and for stages that replace the rest of one.

use super::super::verdict::Verdict;
use super::scenes::Scene;
use super::{
    ADVANCE_ENDS, CANNOT_MEANS_NO, COST_ADMITS_END, COUNTED_AS_PROPOSED, INCARNATION_IS_NEXT, REASON_GIVEN,
    STAGES_CAN_SUCCEED, STOP_BEFORE_START, TOUCHES_COVER, WORLD_FROM_SUCCESSOR, WORLD_NAMES_STARTED, guarded,
};
use crate::job::{Counted, Domain, Incarnation, ProcId, Role, World};
use crate::launch::StartBatch;
use crate::recover::{Action, JobProfile, Proposal, Quorum, RecoveryStrategy, Stage};
use crate::state::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Judges proposals, and records which clauses there was something to judge for.
pub(super) struct Judge<'a> {
    pub(super) verdict: &'a mut Verdict,
    proposals: u32,
    starts: u32,
    worlds: u32,
}

impl<'a> Judge<'a> {
    pub(super) fn new(verdict: &'a mut Verdict) -> Judge<'a> {
        Judge { verdict, proposals: 0, starts: 0, worlds: 0 }
    }

    /// Skips the clauses for which there was nothing to judge.
    pub(super) fn close(self) {
        if self.proposals == 0 {
            for clause in [TOUCHES_COVER, COST_ADMITS_END, STAGES_CAN_SUCCEED, ADVANCE_ENDS] {
                self.verdict.skip(clause, "the strategy refused every incident: give it one that it can recover from");
            }
        }
        if self.starts == 0 {
            for clause in [INCARNATION_IS_NEXT, WORLD_NAMES_STARTED, STOP_BEFORE_START] {
                self.verdict.skip(clause, "no proposal starts a process");
            }
        }
        if self.worlds == 0 {
            for clause in [WORLD_FROM_SUCCESSOR, COUNTED_AS_PROPOSED] {
                self.verdict.skip(clause, "no proposal has a new world");
            }
        }
    }

    pub(super) fn proposal(&mut self, scene: &Scene, proposal: &Proposal) {
        self.proposals += 1;
        self.reason(&scene.title, "a proposal", &proposal.reason);
        let ends = proposal.stages.iter().flat_map(|s| &s.actions).any(|a| matches!(a, Action::Finish { .. }));
        if ends != proposal.cost.ends_job {
            let seen = format!(
                "{}: its stages {} the job, its cost states {}",
                scene.title,
                if ends { "end" } else { "do not end" },
                proposal.cost
            );
            self.verdict.broken(COST_ADMITS_END, seen);
        }
        if proposal.stages.is_empty() {
            self.verdict.broken(STAGES_CAN_SUCCEED, format!("{}: a proposal without a stage", scene.title));
        }
        self.stages(&scene.title, &scene.view, &scene.view.world, proposal, &proposal.stages);
    }

    /// Checks that the strategy does not propose anything for a job that it declares impossible.
    pub(super) fn possible(&mut self, strategy: &dyn RecoveryStrategy, scene: &Scene) {
        let job = JobProfile::of_view(&scene.view);
        let words = || strategy.unsupported_reason(&job);
        if let Some(why) = guarded(self.verdict, "`cannot`", words).flatten() {
            let seen = format!("{}: it proposes something, although it cannot work for the job: {why}", scene.title);
            self.verdict.broken(CANNOT_MEANS_NO, seen);
        }
    }

    pub(super) fn reason(&mut self, title: &str, what: &str, reason: &str) {
        if reason.trim().is_empty() {
            self.verdict.broken(REASON_GIVEN, format!("{title}: {what} without a reason"));
        }
    }

    /// Judges the stages that are carried out from this view on, in a run that began in the world `before`.
    pub(super) fn stages(&mut self, title: &str, view: &View, before: &World, proposal: &Proposal, stages: &[Stage]) {
        let mut world = Arc::clone(&view.world);
        let mut stopped = BTreeSet::new();
        let mut started = BTreeMap::new();
        for stage in stages {
            let title = format!("{title}, stage {}", stage.name);
            self.can_succeed(&title, stage);
            self.touches(&title, view, proposal, stage);
            for action in &stage.actions {
                match action {
                    Action::Enter(new) => {
                        self.world(&title, proposal, (before, &world), new);
                        world = Arc::clone(new);
                    }
                    Action::Start { batch, .. } => {
                        self.world(&title, proposal, (before, &world), &batch.world);
                        self.start(&title, view, batch, &stopped, &mut started);
                    }
                    _ => {}
                }
            }
            let stops = stage.actions.iter().filter_map(|action| match action {
                Action::Stop { procs, .. } => Some(procs),
                _ => None,
            });
            stopped.extend(stops.flatten().cloned()); // in force for the stages after this one
        }
    }

    fn can_succeed(&mut self, title: &str, stage: &Stage) {
        let targets = stage.actions.iter().map(targets).sum::<usize>();
        let needed = match stage.quorum {
            Quorum::All => 0,
            Quorum::AtLeast(needed) => needed as usize,
        };
        if needed > targets || (targets > 0 && stage.timeout.is_zero()) {
            let within = stage.timeout;
            let seen = format!("{title}: {needed} of {targets} targets must answer within {within:?}");
            self.verdict.broken(STAGES_CAN_SUCCEED, seen);
        }
    }

    fn touches(&mut self, title: &str, view: &View, proposal: &Proposal, stage: &Stage) {
        let disturbed = stage.actions.iter().flat_map(|action| disturbed(action, &view.world));
        for domain in disturbed.collect::<BTreeSet<_>>() {
            if !proposal.affected_domains.iter().any(|touched| view.contains(touched, &domain)) {
                let seen = format!("{title}: disturbs {domain} and touches {:?}", proposal.affected_domains);
                self.verdict.broken(TOUCHES_COVER, seen);
            }
        }
    }

    /// Judges a new world that a proposal enters, or that its processes start into, while `current` is in force. A
    /// proposal may have several worlds, but counts at most once as a restart.
    fn world(&mut self, title: &str, proposal: &Proposal, (before, current): (&World, &World), new: &World) {
        if new == current {
            return;
        }
        self.worlds += 1;
        let counts = u32::from(proposal.counted == Counted::Yes);
        let (last, next) = (current.generation(), new.generation());
        if next.0 != last.0.saturating_add(1) {
            self.verdict.broken(WORLD_FROM_SUCCESSOR, format!("{title}: {next} is to follow {last}"));
        } else if new.restarts() != before.restarts() + counts {
            let (was, is) = (before.restarts(), new.restarts());
            let counted = proposal.counted;
            self.verdict.broken(COUNTED_AS_PROPOSED, format!("{title}: restarts {was} to {is}, counted: {counted:?}"));
        }
    }

    fn start(
        &mut self,
        title: &str,
        view: &View,
        batch: &StartBatch,
        stopped: &BTreeSet<ProcId>,
        started: &mut BTreeMap<Role, Incarnation>,
    ) {
        for proc in batch.starts.iter().map(|order| &order.proc) {
            self.starts += 1;
            if proc.role.rank().is_some_and(|rank| batch.world.proc(rank).as_ref() != Some(proc)) {
                let generation = batch.world.generation();
                self.verdict.broken(WORLD_NAMES_STARTED, format!("{title}: {proc} is not in {generation}"));
            }
            let known = view.proc(&proc.role).filter(|known| !known.phase.is_over());
            let runs = known.map(|known| ProcId { role: proc.role.clone(), incarnation: known.incarnation });
            if runs.as_ref() == Some(proc) || started.get(&proc.role) == Some(&proc.incarnation) {
                continue; // ordered again: this starts nothing
            }
            let next = started.get(&proc.role).map_or_else(|| view.next_incarnation(&proc.role), |last| last.next());
            if proc.incarnation != next {
                self.verdict.broken(INCARNATION_IS_NEXT, format!("{title}: starts {proc}, and next is {next}"));
            }
            if let Some(runs) = runs.filter(|runs| !stopped.contains(runs) && !started.contains_key(&runs.role)) {
                self.verdict.broken(STOP_BEFORE_START, format!("{title}: starts {proc} while {runs} may still run"));
            }
            started.insert(proc.role.clone(), proc.incarnation);
        }
    }
}

fn targets(action: &Action) -> usize {
    match action {
        Action::Start { batch, .. } => batch.starts.len(),
        Action::Stop { procs, .. } => procs.len(),
        Action::Collect(ask) => ask.about.len(),
        Action::SendDirectives(batch) => batch.directives.len(),
        _ => 0,
    }
}

/// Returns the domains, such as processes, that an action disturbs. A new world disturbs the ranks whose place in it
/// changes.
fn disturbed(action: &Action, current: &World) -> Vec<Domain> {
    let process = |proc: &ProcId| Domain::Process(proc.role.clone());
    match action {
        Action::Start { batch, .. } => batch.starts.iter().map(|order| process(&order.proc)).collect(),
        Action::Stop { procs, .. } => procs.iter().map(process).collect(),
        Action::Enter(new) => {
            let ranks: BTreeSet<_> = current.members().keys().chain(new.members().keys()).collect();
            let changed = ranks.into_iter().filter(|r| current.members().get(r) != new.members().get(r));
            changed.map(|rank| Domain::Process(Role::Rank(*rank))).collect()
        }
        Action::Finish { .. } => vec![Domain::Job],
        _ => Vec::new(),
    }
}
