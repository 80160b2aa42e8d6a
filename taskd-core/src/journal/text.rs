//! Inputs and commands as one line each, for people.

use crate::job::{JobTime, ProcId, WallTime, printable};
use crate::kernel::{Command, Decision, Event, Input, Ordered, Request};
use crate::launch::{Change, GuardState, LinkStatus, Saying, WorkerSaid};
use crate::recover::Action;
use crate::trace::{Observation, Signal};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// Most things of one kind that a line names one by one.
const NAMED_MAX: usize = 4;

pub(crate) fn input(input: &Input) -> String {
    match input {
        Input::Start(start) => format!("start: job {} with {} ranks", start.spec.name, start.spec.ranks),
        Input::Listed(listing) => {
            let (procs, nodes) = (listing.procs.len(), listing.nodes.len());
            format!("listed: {procs} processes, {nodes} nodes")
        }
        Input::Changed(Change::Proc(status)) => format!("changed: {} {}", status.proc, status.phase),
        Input::Changed(Change::Node(node)) => format!("changed: {} is {:?}", node.node, node.state),
        Input::Changed(Change::Link(LinkStatus { proc, linked: None })) => format!("changed: no link to {proc}"),
        Input::Changed(Change::Link(LinkStatus { proc, linked: Some(link) })) => {
            format!("changed: {proc} is linked, in {}, at {:?}", link.generation, link.at)
        }
        Input::Changed(Change::Said(said)) => saying(said),
        Input::Changed(Change::Guard(guard)) => {
            let state = match &guard.state {
                GuardState::Answers => "answers".to_owned(),
                GuardState::Silent(why) => format!("does not answer: {why}"),
                GuardState::Gone(end) => format!("is gone: {}", end.why),
            };
            format!("changed: guard {} of {} {state}", guard.pid, guard.node)
        }
        Input::Answered { id, results } => {
            let failed: Vec<String> =
                results.iter().filter_map(|(d, r)| Some(format!("{d}: {}", r.as_ref().err()?))).collect();
            let well = results.len() - failed.len();
            match failed.is_empty() {
                true => format!("answered: {id}, {well} well"),
                false => format!("answered: {id}, {well} well, {} failed ({})", failed.len(), few(&failed)),
            }
        }
        Input::Requested(Request::Stop { reason, .. }) => format!("requested: stop, {reason}"),
        Input::Requested(Request::Fault(fault)) => format!("requested: look into {}", verdict(fault)),
        Input::Requested(Request::PluginFailed { plugin, what }) => format!("plugin {plugin} failed: {what}"),
        Input::Observed(facts) => format!("observed: {}", observations(facts)),
        Input::Deadline => "deadline".to_owned(),
        Input::Ordered(ordered) => {
            let Ordered { id, by, reason, order } = &**ordered;
            format!("{id} of {by} ({reason}): {order}")
        }
        Input::WallClock { unix_ms } => format!("the calendar says {}", WallTime::from_unix_ms(*unix_ms)),
        Input::Slept { nanos } => format!("slept: the supervisor did not run for {}", JobTime::from_nanos(*nanos)),
    }
}

fn saying(said: &WorkerSaid) -> String {
    let WorkerSaid { proc, what } = said;
    match what {
        Saying::Answer { id, result: Err(why) } => format!("said: {proc} to {id}: {why}"),
        Saying::Answer { id, result: Ok(answered) } => {
            let state = answered.state.as_ref().map(|state| format!(", at step {}, {:?}", state.step, state.window));
            let figures: String = answered.figures.iter().map(|(name, value)| format!(", {name} {value:.1}")).collect();
            format!("said: {proc} to {id}: done{}{figures}", state.unwrap_or_default())
        }
        Saying::Failed(failure) => format!("said: {proc} has survived a failure: {}", failure.message),
        Saying::Memory(copy) if copy.whole => {
            format!("said: {proc} has the state of step {} in memory, {} bytes", copy.of.step, copy.bytes)
        }
        Saying::Recorded(error) => format!("said: {proc} has recorded {} {}, and runs", error.family, error.code),
        Saying::Memory(copy) => format!("said: {proc} has left out the copy of step {}", copy.of.step),
    }
}

pub(crate) fn command(command: &Command) -> String {
    format!("{}: {}", command.id, action(&command.action))
}

pub(super) fn action(action: &Action) -> String {
    match action {
        Action::Start { batch, until } => {
            let procs: Vec<&ProcId> = batch.orders.iter().map(|o| &o.proc).collect();
            format!("start {} into {} until {until:?}", few(&procs), batch.world.generation())
        }
        Action::Stop { procs, grace, .. } => format!("stop {} with {grace:?} of grace", few(procs)),
        Action::Enter(world) => {
            format!("enter {} with {} ranks after {} restarts", world.generation(), world.size(), world.restarts())
        }
        Action::Collect(ask) => format!("collect {} of {} for {}", ask.what, few(&ask.about), ask.by),
        Action::Acknowledge(proc) => format!("acknowledge {proc}"),
        Action::Direct(batch) => {
            let orders: Vec<String> =
                batch.orders.iter().map(|(proc, what)| format!("{proc} to {}", what.name())).collect();
            format!("direct in {}: {}", batch.world.generation(), few(&orders))
        }
        Action::Cordon { nodes, reason } => {
            format!("take out {}: {reason}", few(&nodes.iter().collect::<Vec<_>>()))
        }
        Action::Reply { order, result: Ok(taken) } => format!("reply to {order}: {}", taken.text),
        Action::Reply { order, result: Err(denial) } => format!("reply to {order}: no, {denial}"),
        Action::Switch { kinds, by, again } => {
            format!("record {kinds} for {by}{}", if *again { ", if nothing newer was asked for" } else { "" })
        }
        Action::Announce(event) => format!("announce {}", self::event(event)),
        Action::Finish { ok: true, reason } => format!("finish: {reason}"),
        Action::Finish { ok: false, reason } => format!("finish in failure: {reason}"),
    }
}

pub(super) fn event(event: &Event) -> String {
    match event {
        Event::Found { incident, fault, opened } => {
            let joins = if *opened { "opened by" } else { "joined by" };
            format!("{incident} {joins} {}", verdict(fault))
        }
        Event::Decided(decision) => decided(decision),
        Event::Cancelled { incident, strategy, reason } => format!("{incident}: {strategy} given up, {reason}"),
        Event::StageDone { incident: Some(incident), stage } => format!("{incident}: stage {stage} done"),
        Event::StageDone { incident: None, stage } => format!("stage {stage} done"),
        Event::Failed { incident, strategy, reason } => format!("{incident}: {strategy} failed, {reason}"),
        Event::Closed { incident, how } => format!("{incident} closed: {how}"),
        Event::Merged { incident, into } => format!("{incident} is a part of {into}"),
        Event::Entered { generation, restarts } => format!("{generation} in force after {restarts} restarts"),
        Event::Noted { about, clue } => format!("{about}: {}", clue.text.replace('\n', " ")),
    }
}

pub(super) fn verdict(fault: &crate::detect::Fault) -> String {
    let prime = fault.prime();
    let mut line = format!(
        "{} of {} by {}, {} permille sure, since {}",
        prime.class, prime.domain, fault.by, prime.confidence_permille, fault.onset
    );
    for clue in fault.clues.iter().filter(|clue| !clue.text.is_empty()).take(NAMED_MAX) {
        let _ = write!(line, "; {}: {}", clue.what, clue.text.replace('\n', " "));
    }
    line
}

fn decided(decision: &Decision) -> String {
    let chosen = decision.chosen.as_ref().map_or_else(
        || "nothing is left".to_owned(),
        |chosen| format!("{}, which costs {}", chosen.strategy, chosen.proposal.cost),
    );
    let lost = decision.lost.iter().map(|l| format!("{} lost ({})", l.strategy, l.reason));
    let refused = decision.refused.iter().map(|r| format!("{} refused ({})", r.strategy, r.reason));
    let losers: Vec<String> = lost.chain(refused).collect();
    let losers = if losers.is_empty() { String::new() } else { format!("; {}", losers.join(", ")) };
    let Decision { incident, reason, budget_left, .. } = decision;
    format!("{} decided: {chosen}; {reason}; budget {budget_left}{losers}", incident.id)
}

/// How many of which signal; a single one with what it says.
fn observations(facts: &[Observation]) -> String {
    if let [only] = facts {
        let said = match &only.signal {
            Signal::Progress { step } => format!("progress to step {step}"),
            Signal::Metric { name, value } => format!("metric {name} = {value}"),
            Signal::Lost { count } => format!("loss of {count} facts"),
            Signal::Step(times) => format!("step {} in {} ms", times.step, times.wall_ns / 1_000_000),
            Signal::CollectivePending { group, sequence, nanos } => {
                format!("collective {sequence} of group {group} pending for {} ms", nanos / 1_000_000)
            }
            other => kind(other),
        };
        return format!("{said} of {}", only.about);
    }
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for fact in facts {
        *kinds.entry(kind(&fact.signal)).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    format!("{} facts ({})", facts.len(), few(&kinds))
}

fn kind(signal: &Signal) -> String {
    match signal {
        Signal::Phase(phase) => format!("phase {phase}"),
        Signal::Heartbeat => "heartbeat".to_owned(),
        Signal::Progress { .. } => "progress".to_owned(),
        Signal::Metric { name, .. } => format!("metric {name}"),
        Signal::Error(error) => format!("error {} {}", error.family, error.code),
        Signal::Lost { .. } => "loss".to_owned(),
        Signal::Evidence(evidence) => format!("evidence {}", evidence.what),
        Signal::SupervisorSlept { .. } => "sleep".to_owned(),
        Signal::Ext(ext) => ext.name().to_string(),
        Signal::Step(_) => "step".to_owned(),
        Signal::CollectivePending { .. } => "pending collective".to_owned(),
        Signal::StepFailed(_) => "failed step".to_owned(),
        Signal::FailureRecorded(error) => format!("recorded {} {}", error.family, error.code),
    }
}

fn few<T: Display>(things: &[T]) -> String {
    let named: Vec<String> = things.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match things.len().saturating_sub(NAMED_MAX) {
        0 if named.is_empty() => "nobody".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A text on one line, whatever a program or a person has put into it: what moves a terminal's cursor is left out.
pub(crate) fn on_one_line(text: &str) -> String {
    printable(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
