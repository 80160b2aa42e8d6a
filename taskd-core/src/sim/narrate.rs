//! A job's last steps as lines for people.

use crate::job::{Domain, JobTime, ProcId};
use crate::kernel::{Command, Event, Input, Request};
use crate::launch::Change;
use crate::recover::Action;
use std::fmt::Write as _;

/// Adds what one step of the kernel was about, and keeps the last `most` lines. Heartbeats and progress are left out
/// unless something came of them.
pub(super) fn step(lines: &mut Vec<String>, most: usize, now: JobTime, input: &Input, commands: &[Command]) {
    if matches!(input, Input::Observed(_) | Input::Deadline) && commands.is_empty() {
        return;
    }
    lines.push(format!("{now}  {}", said(input)));
    for command in commands {
        lines.push(format!("{now}    {}: {}", command.id, done(&command.action)));
    }
    if lines.len() > most * 2 {
        lines.drain(..lines.len() - most);
    }
}

fn said(input: &Input) -> String {
    match input {
        Input::Start(_) => "the supervisor starts".into(),
        Input::Listed(listing) => format!("a listing of {} processes", listing.procs.len()),
        Input::Changed(Change::Proc(status)) => format!("{} is {}", status.proc, status.phase),
        Input::Changed(Change::Node(node)) => format!("{} is {:?}", node.node, node.state),
        Input::Answered { id, results } => {
            let failed = results.iter().find_map(|(target, r)| Some(format!(", {target}: {}", r.as_ref().err()?)));
            format!("{id} is answered for {} targets{}", results.len(), failed.unwrap_or_default())
        }
        Input::Requested(Request::Stop { reason }) => format!("asked to stop: {reason}"),
        Input::Requested(request) => format!("{request:?}"),
        Input::Observed(facts) => format!("{} facts", facts.len()),
        Input::Deadline => "a deadline".into(),
        Input::Slept { nanos } => format!("we slept for {} ms", nanos / 1_000_000),
    }
}

fn done(action: &Action) -> String {
    match action {
        Action::Start { batch, until } => {
            let procs = few(batch.orders.iter().map(|o| &o.proc));
            format!("start {procs} until {until:?} in {}", batch.world.generation())
        }
        Action::Stop { procs, .. } => format!("stop {}", few(procs.iter())),
        Action::Enter(world) => format!("enter {}", world.generation()),
        Action::Collect(ask) => format!("{} asks about {:?}", ask.by, ask.about.iter().map(Domain::to_string).collect::<Vec<_>>()),
        Action::Acknowledge(proc) => format!("acknowledge {proc}"),
        Action::Finish { ok, reason } => format!("finish {ok}: {reason}"),
        Action::Announce(event) => event_line(event),
    }
}

fn event_line(event: &Event) -> String {
    match event {
        Event::Found { incident, fault, opened } => {
            let suspect = fault.prime();
            let mut line = format!("{incident}: {} in {}", suspect.class, suspect.domain);
            let of = fault.incarnation().map(|i| i.to_string()).unwrap_or_default();
            let new = if *opened { ", new" } else { "" };
            let _ = write!(line, "{of} by {} at {}permille{new}", fault.by, suspect.confidence_permille);
            line
        }
        Event::Decided(decision) => {
            let mut line = format!("{}: {}", decision.incident.id, decision.reason);
            for refusal in &decision.refused {
                let _ = write!(line, "; {}: {}", refusal.strategy, refusal.reason);
            }
            line
        }
        Event::Cancelled { incident, strategy, reason } => format!("{incident}: {strategy} cancelled, {reason}"),
        Event::StageDone { incident, stage } => match incident {
            Some(incident) => format!("{incident}: stage {stage} is done"),
            None => format!("stage {stage} is done"),
        },
        Event::Failed { incident, strategy, reason } => format!("{incident}: {strategy} failed, {reason}"),
        Event::Closed { incident, how } => format!("{incident} closed: {how}"),
        Event::Merged { incident, into } => format!("{incident} belongs to {into}"),
        Event::Entered { generation, restarts } => format!("{generation} is in force, {restarts} restarts"),
    }
}

fn few<'a>(procs: impl Iterator<Item = &'a ProcId>) -> String {
    let all: Vec<&ProcId> = procs.collect();
    let shown: Vec<String> = all.iter().take(6).map(ToString::to_string).collect();
    let more = if all.len() > shown.len() { format!(" and {} more", all.len() - shown.len()) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
