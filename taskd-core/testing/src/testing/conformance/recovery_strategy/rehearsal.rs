//! Simulates a proposal: every action takes effect in the view, and `advance` is called after each stage.

use super::super::verdict::apart;
use super::judge::Judge;
use super::scenes::Scene;
use super::{ADVANCE_ENDS, PURE, guarded};
use crate::job::{Domain, Exit, JobTime, Termination};
use crate::launch::{
    CheckpointShard, Directive, DirectiveBatch, DirectiveReply, NodeState, Phase, Place, Window, WorkerState,
};
use crate::recover::{
    Action, Advance, CommandOutcome, Failure, PlanExecution, Proposal, Quorum, RecoveryStrategy, Stage, TargetReply,
};
use crate::state::{Proc, View};
use crate::trace::ProbeResult;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Largest number of stages of one run.
const STAGES_MAX: usize = 100;
/// Simulated duration of each stage.
const STAGE_TAKES: Duration = Duration::from_millis(500);

/// Simulates a proposal twice: once with every action successful, and once with as many failures as the stages allow.
pub(super) fn rehearse(strategy: &dyn RecoveryStrategy, scene: &Scene, proposal: &Proposal, judge: &mut Judge<'_>) {
    for goes_well in [true, false] {
        let mut view = scene.view.clone();
        let mut run = PlanExecution::new(strategy.name(), proposal.clone(), view.now);
        while let Some(stage) = run.proposal.stages.get(run.stage).cloned() {
            let title = format!("{}, after stage {}", scene.title, stage.name);
            if run.stage >= STAGES_MAX {
                return judge.verdict.broken(ADVANCE_ENDS, format!("{title}: that was stage {STAGES_MAX}"));
            }
            run.done.push(carry_out(&mut view, &stage, goes_well));
            run.stage += 1;
            if !goes_well {
                lose_a_host(&mut view);
            }
            let ask = || (strategy.advance(&run, &view), strategy.advance(&run, &view));
            let Some((next, again)) = guarded(judge.verdict, &format!("{title}: `advance`"), ask) else { return };
            let (one, two) = (format!("{next:?}"), format!("{again:?}"));
            if one != two {
                let (one, two) = apart(&one, &two);
                judge.verdict.broken(PURE, format!("{title}: `advance` returned {one}, and then {two}"));
            }
            match next {
                Advance::Continue => {}
                Advance::Fail(reason) | Advance::RolledBack(reason) => {
                    judge.reason(&title, "giving up", &reason);
                    break;
                }
                Advance::ReplaceRest(rest) => {
                    judge.stages(&title, &view, &scene.view.world, &run.proposal, &rest);
                    run.proposal.stages.truncate(run.stage);
                    run.proposal.stages.extend(rest);
                }
            }
        }
    }
}

fn lose_a_host(view: &mut View) {
    if let Some(last) = view.nodes.values_mut().last() {
        last.state = NodeState::Left;
    }
}

/// Applies the effects of a stage to the view, and returns the results of the stage's targets. Unless it `goes_well`,
/// as many targets time out as the stage tolerates.
fn carry_out(view: &mut View, stage: &Stage, goes_well: bool) -> Vec<CommandOutcome> {
    view.now = view.now + STAGE_TAKES;
    let mut failures = match stage.quorum {
        Quorum::AtLeast(needed) if !goes_well => targets(stage).saturating_sub(needed as usize),
        _ => 0,
    };
    let mut answer = |view: &mut View, action: &Action, target: &Domain| {
        if failures > 0 {
            failures -= 1;
            return Err(Failure::TimedOut);
        }
        let now = view.now;
        if let Domain::Process(role) = target
            && let Some(proc) = view.procs.get_mut(role)
        {
            take_effect(proc, action, now);
        }
        match action {
            Action::Collect(_) => Ok(TargetReply::ProbeResult(ProbeResult::Text("running".into()))),
            Action::SendDirectives(batch) => Ok(TargetReply::Directive(Box::new(answered(batch, target)))),
            _ => Ok(TargetReply::Accepted),
        }
    };
    let mut done = Vec::new();
    for action in &stage.actions {
        let asked = begin(view, action);
        let results: BTreeMap<_, _> =
            asked.into_iter().map(|target| (target.clone(), answer(view, action, &target))).collect();
        done.push(CommandOutcome::new(action.clone(), results));
    }
    done
}

/// Returns the simulated reply of a target to its directive. Aborted ranks report in turn that they are at the start of
/// a step, have completed it, or are torn in it.
fn answered(batch: &DirectiveBatch, target: &Domain) -> DirectiveReply {
    let mut sent = batch.directives.iter().filter(|(proc, _)| Domain::Process(proc.role.clone()) == *target);
    let (proc, directive) = match sent.next() {
        Some((proc, directive)) => (proc, directive),
        None => return DirectiveReply::default(),
    };
    if let Directive::WriteShard { part, .. } = directive {
        let part = CheckpointShard { file: format!("part-{part}"), bytes: 64, sha256: "0".repeat(64) };
        return DirectiveReply::default().with_shard(part);
    }
    if !matches!(directive, Directive::Abort {}) {
        return DirectiveReply::default();
    }
    let window = [Window::Before, Window::Closed, Window::Torn][proc.role.rank().map_or(0, |rank| rank.0 as usize % 3)];
    let committed = Some(if window == Window::Closed { 5 } else { 4 });
    let state = WorkerState {
        step: 5,
        committed,
        window,
        layout: String::new(),
        buckets: vec![64],
        bytes: 64,
        sharded: Vec::new(),
    };
    DirectiveReply::default().with_state(state)
}

fn targets(stage: &Stage) -> usize {
    stage.actions.iter().map(|action| action_targets(action).len()).sum()
}

fn action_targets(action: &Action) -> Vec<Domain> {
    match action {
        Action::Start { batch, .. } => batch.starts.iter().map(|o| Domain::Process(o.proc.role.clone())).collect(),
        Action::Stop { procs, .. } => procs.iter().map(|proc| Domain::Process(proc.role.clone())).collect(),
        Action::SendDirectives(batch) => {
            batch.directives.iter().map(|(proc, _)| Domain::Process(proc.role.clone())).collect()
        }
        Action::Collect(ask) => ask.about.clone(),
        _ => Vec::new(),
    }
}

/// Applies the immediate effect of an action to the view. Returns the domains that have to reply to the action.
fn begin(view: &mut View, action: &Action) -> Vec<Domain> {
    match action {
        Action::Enter(world) => view.world = Arc::clone(world),
        Action::Start { batch, .. } => {
            for order in &batch.starts {
                let node = match &order.place {
                    Place::On(node) => Some(node.clone()),
                    _ => view.ready_nodes().next().cloned(),
                };
                let mut proc = Proc::ordered(order.proc.incarnation, batch.world.generation(), view.now);
                proc.node = node;
                view.procs.insert(order.proc.role.clone(), proc);
            }
        }
        _ => {}
    }
    action_targets(action)
}

fn take_effect(proc: &mut Proc, action: &Action, now: JobTime) {
    match action {
        Action::Start { .. } => (proc.phase, proc.progress_at) = (Phase::Running, now),
        Action::Stop { procs, .. } if procs.iter().any(|stopped| stopped.incarnation == proc.incarnation) => {
            let killed = Termination::Signal { number: 9, core_dumped: false };
            proc.wanted = false;
            proc.phase = Phase::Exited(Box::new(Exit::new(killed)));
        }
        _ => {}
    }
}
