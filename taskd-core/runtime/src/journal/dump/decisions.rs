//! Prints the decisions of a log, with wall-clock times and process ids.
//!
//! Observations and routine inputs are left out.

use super::line;
use crate::detect::Fault;
use crate::job::{Domain, JobTime, NodeId, ProcId, Seq, WallTime};
use crate::journal::history::Life;
use crate::journal::{Entry, Step};
use crate::kernel::Effect;
use crate::kernel::text;
use crate::kernel::{Event, Input, Request};
use crate::launch::{Change, ProcStatus};
use crate::recover::Action;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

/// State kept while writing the lines.
#[derive(Default)]
struct Context {
    /// A job time, and the wall-clock time at that moment in milliseconds since the Unix epoch.
    calendar: Option<(JobTime, u64)>,
    /// Host and process id of each process that has one.
    procs: BTreeMap<ProcId, (Option<NodeId>, u32)>,
}

pub(super) fn write_life(life: &Life, out: &mut dyn Write) -> io::Result<()> {
    let mut context = Context::default();
    let mut starts: VecDeque<_> = life.starts().collect();
    let mut steps = life.steps(Seq(0));
    for entry in steps.by_ref() {
        let step = match entry {
            Entry::Step(step) => step,
            Entry::Missing(missing) => {
                line(out, "! ", &missing)?;
                continue;
            }
        };
        while starts.front().is_some_and(|(_, after, _)| *after < step.seq)
            && let Some((start, _, header)) = starts.pop_front()
        {
            // 0 if the writer did not record the time.
            context.calendar = (header.started_unix_ms > 0).then_some((step.now, header.started_unix_ms));
            let (job, ranks) = (header.job_name(), header.ranks);
            let begun = format!("start {start} of the supervisor of job {job}, {ranks} ranks");
            line(out, "", &format!("{}  {begun}", context.time(step.now)))?;
        }
        context.take(&step);
        for text in context.lines_of(&step) {
            line(out, "", &format!("{}  {text}", context.time(step.now)))?;
        }
    }
    steps.problems().iter().try_for_each(|problem| line(out, "! ", problem))?;
    steps.gaps().iter().try_for_each(|gap| line(out, "! ", gap))
}

impl Context {
    fn time(&self, at: JobTime) -> String {
        let wall = self.calendar.map(|(then, unix_ms)| {
            let since = u64::try_from(at.since(then).as_millis()).unwrap_or(u64::MAX);
            WallTime::from_unix_ms(unix_ms.saturating_add(since)).to_string()
        });
        wall.unwrap_or_else(|| format!("{at:>24}"))
    }

    fn take(&mut self, step: &Step) {
        match &step.input {
            Some(Input::WallClock { unix_ms }) => self.calendar = Some((step.now, *unix_ms)),
            Some(Input::Listed(listing)) => listing.procs.iter().for_each(|status| self.take_status(status)),
            Some(Input::Changed(Change::Proc(status))) => self.take_status(status),
            _ => {}
        }
    }

    fn take_status(&mut self, status: &ProcStatus) {
        if let Some(pid) = status.pid {
            // Only the newest process of a role is kept: no fault is attributed to an older one any more.
            self.procs
                .retain(|known, _| known.role != status.proc.role || known.incarnation >= status.proc.incarnation);
            self.procs.insert(status.proc.clone(), (status.node.clone(), pid));
        }
    }

    fn lines_of(&self, step: &Step) -> Vec<String> {
        let input = step.input.iter().filter(|input| match input {
            Input::Ordered(_) | Input::Slept { .. } => true,
            Input::Requested(request) => !matches!(request, Request::Fault(_)), // reported as an incident
            _ => false,
        });
        let commands = step.commands.iter().flatten().filter_map(|command| match &command.effect {
            Effect::Publish(event) => self.event(event),
            Effect::Reply { .. } | Effect::Act(Action::Cordon { .. }) | Effect::Act(Action::Finish { .. }) => {
                Some(text::effect(&command.effect))
            }
            _ => None,
        });
        let lost = step.commands.is_none().then(|| "! commands whose record is lost".to_owned());
        input.map(text::input).chain(commands).chain(lost).collect()
    }

    fn event(&self, event: &Event) -> Option<String> {
        let place = match event {
            Event::StageDone { .. } => return None,
            Event::Found { opened: false, fault, .. } if !fault.primary_suspect().is_cause() => return None, // a victim
            Event::Found { fault, .. } => self.place(fault),
            _ => None,
        };
        let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
        Some(text::event(event) + &place)
    }

    /// Returns the location of the process that a fault is about.
    fn place(&self, fault: &Fault) -> Option<String> {
        let Domain::Process(role) = &fault.primary_suspect().domain else { return None };
        let of = |proc: &ProcId| proc.role == *role && fault.incarnation().is_none_or(|of| of == proc.incarnation);
        let (proc, (node, pid)) = self.procs.iter().find(|(proc, _)| of(proc))?;
        let node = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        Some(format!("{proc}, process {pid}{node}"))
    }
}
