//! Formats inputs and commands as one line each, for operators.

use crate::job::{JobTime, ProcId, WallTime, printable};
use crate::kernel::Effect;
use crate::kernel::{Command, Decision, Event, Input, OrderEnvelope, Request};
use crate::recover::Action;
use crate::state::{Change, GuardState, LinkStatus, WorkerEvent, WorkerMessage};
use crate::trace::{Observation, Signal};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// Most items of one kind that a line lists individually.
const NAMED_MAX: usize = 4;

pub fn input(input: &Input) -> String {
    match input {
        Input::Start(start) => format!("start: job {} with {} ranks", start.spec.name, start.spec.ranks),
        Input::Listed(listing) => {
            let (procs, nodes) = (listing.procs.len(), listing.nodes.len());
            format!("listed: {procs} processes, {nodes} nodes")
        }
        Input::Changed(Change::Proc(status)) => format!("changed: {} {}", status.proc, status.phase),
        Input::Changed(Change::Node(node)) => {
            let why = node.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("changed: {} is {:?}{why}", node.node, node.state)
        }
        Input::Changed(Change::Link(LinkStatus { proc, link: None })) => format!("changed: no link to {proc}"),
        Input::Changed(Change::Link(LinkStatus { proc, link: Some(link) })) => {
            format!("changed: {proc} is linked, in {}, at {:?}", link.generation, link.position)
        }
        Input::Changed(Change::Worker(said)) => saying(said),
        Input::Changed(Change::Guard(guard)) => {
            let state = match &guard.state {
                GuardState::Answers => "answers".to_owned(),
                GuardState::Silent(why) => format!("does not answer: {why}"),
                GuardState::Gone(end) => format!("has ended: {}", end.why),
            };
            format!("changed: guard {} of {} {state}", guard.pid, guard.node)
        }
        Input::Answered { id, results } => {
            let failed: Vec<String> =
                results.iter().filter_map(|(d, r)| Some(format!("{d}: {}", r.as_ref().err()?))).collect();
            let well = results.len() - failed.len();
            match failed.is_empty() {
                true => format!("answered: {id}, {well} succeeded"),
                false => format!("answered: {id}, {well} succeeded, {} failed ({})", failed.len(), few(&failed)),
            }
        }
        Input::Requested(Request::Stop { reason, .. }) => format!("requested: stop, {reason}"),
        Input::Requested(Request::Fault(fault)) => format!("requested: handle {}", verdict(fault)),
        Input::Requested(Request::PluginFailed { plugin, what }) => format!("plugin {plugin} failed: {what}"),
        Input::Observed(facts) => format!("observed: {}", observations(facts)),
        Input::Deadline => "deadline".to_owned(),
        Input::Ordered(ordered) => {
            let OrderEnvelope { id, by, reason, order } = &**ordered;
            format!("{id} of {by} ({reason}): {order}")
        }
        Input::WallClock { unix_ms } => format!("wall clock: {}", WallTime::from_unix_ms(*unix_ms)),
        Input::HostHistory(history) => format!("host history: {} incidents", history.len()),
        Input::Slept { nanos } => format!("slept: the supervisor did not run for {}", JobTime::from_nanos(*nanos)),
    }
}

fn saying(said: &WorkerEvent) -> String {
    let WorkerEvent { proc, message: what } = said;
    match what {
        WorkerMessage::Reply { id, result: Err(why) } => format!("replied: {proc} to {id}: {why}"),
        WorkerMessage::Reply { id, result: Ok(answered) } => {
            let state = answered.state.as_ref().map(|state| format!(", at step {}, {:?}", state.step, state.window));
            let figures: String = answered.figures.iter().map(|(name, value)| format!(", {name} {value:.1}")).collect();
            format!("replied: {proc} to {id}: done{}{figures}", state.unwrap_or_default())
        }
        WorkerMessage::Failed(failure) => format!("reported: {proc} has survived a failure: {}", failure.message),
        WorkerMessage::InMemoryCheckpoint(copy) if copy.whole => {
            format!("reported: {proc} has the state of step {} in memory, {} bytes", copy.of.step, copy.bytes)
        }
        WorkerMessage::ErrorRecorded(error) => {
            format!("reported: {proc} has recorded {} {} and still runs", error.family, error.code)
        }
        WorkerMessage::InMemoryCheckpoint(copy) => {
            format!("reported: {proc} has skipped the copy of step {}", copy.of.step)
        }
    }
}

pub fn command(command: &Command) -> String {
    format!("{}: {}", command.id, effect(&command.effect))
}

pub fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Act(Action::Start { batch, until }) => {
            let procs: Vec<&ProcId> = batch.starts.iter().map(|o| &o.proc).collect();
            format!("start {} into {} until {until:?}", few(&procs), batch.world.generation())
        }
        Effect::Act(Action::Stop { procs, grace, .. }) => format!("stop {} with {grace:?} of grace", few(procs)),
        Effect::Act(Action::Enter(world)) => {
            format!("enter {} with {} ranks after {} restarts", world.generation(), world.size(), world.restarts())
        }
        Effect::Act(Action::Collect(ask)) => format!("collect {} of {} for {}", ask.what, few(&ask.about), ask.by),
        Effect::Acknowledge(proc) => format!("acknowledge {proc}"),
        Effect::Act(Action::SendDirectives(batch)) => {
            let orders: Vec<String> =
                batch.directives.iter().map(|(proc, what)| format!("{proc} to {}", what.name())).collect();
            format!("direct in {}: {}", batch.world.generation(), few(&orders))
        }
        Effect::Act(Action::Cordon { nodes, reason }) => {
            format!("cordon {}: {reason}", few(&nodes.iter().collect::<Vec<_>>()))
        }
        Effect::Reply { order, result: Ok(taken) } => format!("reply to {order}: {}", taken.text),
        Effect::Reply { order, result: Err(denial) } => format!("reply to {order}: refused, {denial}"),
        Effect::Switch { kinds, by, again } => {
            format!("record {kinds} for {by}{}", if *again { ", unless a newer request exists" } else { "" })
        }
        Effect::Publish(event) => format!("announce {}", self::event(event)),
        Effect::Act(Action::Finish { ok: true, reason }) => format!("finish: {reason}"),
        Effect::Act(Action::Finish { ok: false, reason }) => format!("finish with failure: {reason}"),
    }
}

pub fn event(event: &Event) -> String {
    match event {
        Event::Found { incident, fault, opened } => {
            let joins = if *opened { "opened by" } else { "joined by" };
            format!("{incident} {joins} {}", verdict(fault))
        }
        Event::Decided(decision) => decided(decision),
        Event::Cancelled { incident, strategy, reason } => format!("{incident}: {strategy} cancelled, {reason}"),
        Event::StageDone { incident: Some(incident), stage } => format!("{incident}: stage {stage} done"),
        Event::StageDone { incident: None, stage } => format!("stage {stage} done"),
        Event::Failed { incident, strategy, reason } => format!("{incident}: {strategy} failed, {reason}"),
        Event::Closed { incident, how } => format!("{incident} closed: {how}"),
        Event::Merged { incident, into } => format!("{incident} merged into {into}"),
        Event::Entered { generation, restarts } => format!("{generation} in force after {restarts} restarts"),
        Event::Noted { about, clue } => format!("{about}: {}", clue.text.replace('\n', " ")),
    }
}

pub fn verdict(fault: &crate::detect::Fault) -> String {
    let prime = fault.primary_suspect();
    let mut line = format!(
        "{} of {} by {}, confidence {} permille, since {}",
        prime.class, prime.domain, fault.by, prime.confidence_permille, fault.onset
    );
    for clue in fault.evidence.iter().filter(|clue| !clue.text.is_empty()).take(NAMED_MAX) {
        let _ = write!(line, "; {}: {}", clue.what, clue.text.replace('\n', " "));
    }
    line
}

fn decided(decision: &Decision) -> String {
    let chosen = decision.chosen.as_ref().map_or_else(
        || "no strategy is left".to_owned(),
        |chosen| format!("{}, which costs {}", chosen.strategy, chosen.proposal.cost),
    );
    let lost = decision.lost.iter().map(|l| format!("{} lost ({})", l.strategy, l.reason));
    let refused = decision.refused.iter().map(|r| format!("{} refused ({})", r.strategy, r.reason));
    let losers: Vec<String> = lost.chain(refused).collect();
    let losers = if losers.is_empty() { String::new() } else { format!("; {}", losers.join(", ")) };
    let Decision { incident, reason, budget_left, .. } = decision;
    format!("{} decided: {chosen}; {reason}; budget {budget_left}{losers}", incident.id)
}

/// Counts observations by signal. A single observation is described with its values.
fn observations(facts: &[Observation]) -> String {
    if let [only] = facts {
        let said = match &only.signal {
            Signal::Progress { step } => format!("progress to step {step}"),
            Signal::Metric { name, value } => format!("metric {name} = {value}"),
            Signal::Lost { count } => format!("loss of {count} facts"),
            Signal::Step(times) => format!("step {} in {} ms", times.step, times.wall_ns / 1_000_000),
            Signal::DeviceStep(times) => {
                format!("step {} with {} ms of computation on the device", times.step, times.compute_ns / 1_000_000)
            }
            Signal::StepTransfers(transfers) => format!("transfers of step {}", transfers.step),
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
        Signal::ProbeReply(evidence) => format!("evidence {}", evidence.what),
        Signal::SupervisorSlept { .. } => "sleep".to_owned(),
        Signal::Ext(ext) => ext.name().to_string(),
        Signal::Step(_) => "step".to_owned(),
        Signal::DeviceStep(_) => "step of a device".to_owned(),
        Signal::StepTransfers(_) => "transfers of a step".to_owned(),
        Signal::CollectivePending { .. } => "pending collective".to_owned(),
        Signal::StepFailed(_) => "failed step".to_owned(),
        Signal::FailureRecorded(error) => format!("recorded {} {}", error.family, error.code),
    }
}

fn few<T: Display>(things: &[T]) -> String {
    let named: Vec<String> = things.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match things.len().saturating_sub(NAMED_MAX) {
        0 if named.is_empty() => "none".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Returns a text on one line. Replaces control characters, which could move a terminal's cursor, by spaces.
pub fn on_one_line(text: &str) -> String {
    printable(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::CommandId;

    #[test]
    fn inputs_and_commands_are_lines_that_name_their_subject() {
        assert!(input(&Input::Slept { nanos: 1_500_000_000 }).starts_with("slept: the supervisor did not run for 1.5"));
        let stop = Action::Stop { procs: vec![ProcId::rank(3, 2)], grace: std::time::Duration::ZERO, exact: true };
        assert!(effect(&stop.into()).starts_with("stop rank 3#2 with 0ns of grace"));
        let finish = Action::Finish { ok: true, reason: "all 2 ranks finished".into() };
        assert!(effect(&finish.into()).contains("all 2 ranks finished"));
        assert_eq!(few(&[CommandId(1), CommandId(2)]), format!("{}, {}", CommandId(1), CommandId(2)));
    }
}
