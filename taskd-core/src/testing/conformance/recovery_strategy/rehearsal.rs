//! Carries a proposal out on paper: every action takes effect in the view, and `advance` is asked after each stage.

use super::super::verdict::apart;
use super::judge::Judge;
use super::scenes::Scene;
use super::{ADVANCE_ENDS, PURE, guarded};
use crate::job::{Domain, Exit, JobTime, Termination};
use crate::kernel::{Proc, View};
use crate::launch::{Answered, DirectBatch, Directive, DumpPart, NodeState, Phase, Place, Window, WorkerState};
use crate::recover::{Action, Done, Failure, Need, Next, Output, Proposal, RecoveryStrategy, Run, Stage};
use crate::trace::Exhibit;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Most stages of one run.
const STAGES_MAX: usize = 100;
/// How long each stage takes.
const STAGE_TAKES: Duration = Duration::from_millis(500);

/// Once with everything going well, and once with as much going wrong as the stages allow.
pub(super) fn rehearse(strategy: &dyn RecoveryStrategy, scene: &Scene, proposal: &Proposal, judge: &mut Judge<'_>) {
    for goes_well in [true, false] {
        let mut view = scene.view.clone();
        let mut run =
            Run { strategy: strategy.name(), proposal: proposal.clone(), stage: 0, done: Vec::new(), began: view.now };
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
                judge.verdict.broken(PURE, format!("{title}: `advance` gave {one}, and then {two}"));
            }
            match next {
                Next::AsProposed => {}
                Next::GiveUp(reason) | Next::Undone(reason) => {
                    judge.reason(&title, "giving up", &reason);
                    break;
                }
                Next::Instead(rest) => {
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

/// What each target answers, and what it does to the job.
fn carry_out(view: &mut View, stage: &Stage, goes_well: bool) -> Vec<Done> {
    view.now = view.now + STAGE_TAKES;
    let mut failures = match stage.need {
        Need::AtLeast(needed) if !goes_well => targets(stage).saturating_sub(needed as usize),
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
            Action::Collect(_) => Ok(Output::Exhibit(Exhibit::Text("running".into()))),
            Action::Direct(batch) => Ok(Output::Answered(Box::new(answered(batch, target)))),
            _ => Ok(Output::Accepted),
        }
    };
    let mut done = Vec::new();
    for action in &stage.actions {
        let asked = begin(view, action);
        let results: BTreeMap<_, _> =
            asked.into_iter().map(|target| (target.clone(), answer(view, action, &target))).collect();
        done.push(Done { action: action.clone(), results });
    }
    done
}

/// Who has given up says where it stands: the ranks are in turn at the start of a step, behind it, and torn in it.
fn answered(batch: &DirectBatch, target: &Domain) -> Answered {
    let mut told = batch.orders.iter().filter(|(proc, _)| Domain::Process(proc.role.clone()) == *target);
    let (proc, directive) = match told.next() {
        Some((proc, directive)) => (proc, directive),
        None => return Answered::default(),
    };
    if let Directive::Dump { part, .. } = directive {
        let part = DumpPart { file: format!("part-{part}"), bytes: 64, sha256: "0".repeat(64) };
        return Answered { part: Some(part), ..Answered::default() };
    }
    if !matches!(directive, Directive::GiveUp {}) {
        return Answered::default();
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
    Answered { state: Some(state), ..Answered::default() }
}

fn targets(stage: &Stage) -> usize {
    stage.actions.iter().map(|action| action_targets(action).len()).sum()
}

fn action_targets(action: &Action) -> Vec<Domain> {
    match action {
        Action::Start { batch, .. } => batch.orders.iter().map(|o| Domain::Process(o.proc.role.clone())).collect(),
        Action::Stop { procs, .. } => procs.iter().map(|proc| Domain::Process(proc.role.clone())).collect(),
        Action::Direct(batch) => batch.orders.iter().map(|(proc, _)| Domain::Process(proc.role.clone())).collect(),
        Action::Collect(ask) => ask.about.clone(),
        _ => Vec::new(),
    }
}

/// What an action changes at once. Returns who has to answer.
fn begin(view: &mut View, action: &Action) -> Vec<Domain> {
    match action {
        Action::Enter(world) => view.world = Arc::clone(world),
        Action::Start { batch, .. } => {
            for order in &batch.orders {
                let node = match &order.place {
                    Place::On(node) => Some(node.clone()),
                    Place::AnyBut(_) => view.ready_nodes().next().cloned(),
                };
                let proc = Proc {
                    incarnation: order.proc.incarnation,
                    generation: batch.world.generation(),
                    wanted: true,
                    stopped_for: None,
                    node,
                    pid: None,
                    phase: Phase::Pending("ordered".into()),
                    step: None,
                    progress_at: view.now,
                    link: None,
                    unlinked_at: None,
                    unguarded: false,
                    reports_steps: false,
                    ended_at: None,
                };
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
