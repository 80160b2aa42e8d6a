//! Faults from outside: each in its moment, and what the runtime and the ranks report of it.

use super::account::Recovery;
use super::cut::cut;
use super::faults::Strike;
use super::job::Job;
use super::lines::{self, Line, now};
use crate::hosts::kill_host_of;
use crate::program::Failure;
use crate::recover::Fault;
use rustix::process::{Pid, kill_process};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use taskd_core::job::{JobTime, Name, Rank, Role};
use taskd_core::kernel::{Decision, Event};
use taskd_core::launch::Launcher;
use taskd_core::recover::SHRINK;
use taskd_core::runtime::{RuntimeHandle, TimestampedEvent};
use taskd_pytorch::STORE;
use tokio::sync::broadcast;

/// Steps that the job trains after its last recovery.
const STEPS_AFTER: u64 = 50;
/// How often the script's lines are read.
const READ_EVERY: Duration = Duration::from_millis(10);

/// A fault that has come to pass.
pub(super) struct Struck {
    pub(super) role: Role,
    /// The last step that all ranks had completed.
    pub(super) before: u64,
    pub(super) at: f64,
    /// What the runtime has reported since.
    events: broadcast::Receiver<Arc<TimestampedEvent>>,
}

/// Strikes as planned, and watches what comes of it.
pub(super) struct Striker {
    pub(super) job: Job,
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) handle: RuntimeHandle,
}

impl Striker {
    /// All of them, one after the other; what each took, and before which step the job is to end then, if there were
    /// any.
    ///
    /// # Errors
    /// The job cannot be reached.
    pub(super) async fn carry_out(self, strikes: Vec<Strike>) -> io::Result<(Vec<Recovery>, Option<u64>)> {
        let was_hit = !strikes.is_empty();
        let mut recoveries = Vec::new();
        let mut from = 0;
        for strike in strikes {
            let Some(Struck { role, before, at, mut events }) = self.strike_in_time(&strike, from).await else {
                continue;
            };
            let seen = watch(&mut events).await;
            let has_left = strike.rank.filter(|_| seen.is_by(&SHRINK));
            let resumed = self.resumed(at, &seen, has_left).await;
            recoveries.push(Recovery::of(role.to_string(), before, at, &seen, resumed));
            if has_left.is_some() {
                let seen = watch(&mut events).await;
                let at = seen.found.unwrap_or(resumed.1);
                let resumed = self.resumed(at, &seen, None).await;
                recoveries.push(Recovery::of(format!("{role} again"), before, at, &seen, resumed));
            }
            from = self.last_common(&lines::read(&self.job.dir)).unwrap_or(before);
        }
        let until = if was_hit { Some(self.end_soon()?) } else { None };
        Ok((recoveries, until))
    }

    /// Has the ranks end a little later, each before the same step.
    fn end_soon(&self) -> io::Result<u64> {
        let lines = lines::read(&self.job.dir);
        let until = lines.values().flatten().map(|line| line.step).max().unwrap_or(0) + STEPS_AFTER;
        let new = self.job.dir.join("until.new");
        fs::write(&new, until.to_string())?;
        fs::rename(&new, self.job.dir.join("until"))?;
        Ok(until)
    }

    /// Strikes when its moment has come, so many steps after this one. `None`: no process was hit.
    pub(super) async fn strike_in_time(&self, strike: &Strike, from: u64) -> Option<Struck> {
        let target = from + strike.after_steps;
        self.until(|steps| self.last_common(steps) >= Some(target)).await;
        tokio::time::sleep(Duration::from_millis(strike.after_ms)).await;
        let before = self.last_common(&lines::read(&self.job.dir)).unwrap_or(0);
        let role = strike.rank.map_or(Role::Service(STORE), |rank| Role::Rank(Rank(rank)));
        let events = self.handle.events();
        match self.strike(strike, &role).await {
            Ok(at) => {
                println!("          >>> from outside: {:?} of {role} after step {before}", strike.fault);
                Some(Struck { role, before, at, events })
            }
            Err(why) => {
                println!("          >>> {:?} of {role} was not injected: {why}", strike.fault);
                None
            }
        }
    }

    /// Waits for the first step of all ranks, but for one that has left, after a recovery; which that was, and when it
    /// was completed.
    async fn resumed(&self, at: f64, seen: &Seen, has_left: Option<u32>) -> (u64, f64) {
        let common = |steps: &BTreeMap<u32, Vec<Line>>| self.first_common_after(steps, at, seen, has_left);
        self.until(|steps| common(steps).is_some()).await;
        common(&lines::read(&self.job.dir)).unwrap_or((0, f64::NAN))
    }

    /// Does it; when.
    async fn strike(&self, strike: &Strike, role: &Role) -> Result<f64, Failure> {
        let gone = || format!("{role} does not run");
        if let Some(name) = strike.fault.in_script() {
            let rank = strike.rank.ok_or_else(gone)?;
            return self.ask_script(rank, name).await;
        }
        let pid = self.pid_of(role).await.ok_or_else(gone)?;
        let with_host = strike.fault == Fault::Kill && self.others_are_elsewhere(role).await;
        let at = now();
        if with_host {
            kill_host_of(pid)?;
            return Ok(at);
        }
        if let Some(signal) = strike.fault.signal() {
            kill_process(pid, signal)?;
            return Ok(at);
        }
        let next = Role::Rank(Rank(strike.rank.map_or(0, |rank| (rank + 1) % self.job.ranks)));
        let next = self.pid_of(&next).await.ok_or_else(gone)?;
        if cut(pid, next)? == 0 {
            return Err("there is no connection to the next rank".into());
        }
        Ok(at)
    }

    /// Has the script do it to itself, in a step to come.
    async fn ask_script(&self, rank: u32, name: &str) -> Result<f64, Failure> {
        let (asked, struck) = (format!("fault.{rank}"), self.job.dir.join(format!("struck.{rank}")));
        let new = self.job.dir.join(asked.clone() + ".new");
        fs::write(&new, name)?;
        fs::rename(&new, self.job.dir.join(asked))?;
        loop {
            if let Ok(at) = fs::read_to_string(&struck) {
                fs::remove_file(&struck)?;
                return Ok(at.trim().parse()?);
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    async fn pid_of(&self, role: &Role) -> Option<Pid> {
        let procs = self.launcher.list().await.ok()?.procs;
        let victim = procs.iter().find(|p| p.proc.role == *role && !p.phase.is_over())?;
        Pid::from_raw(i32::try_from(victim.pid?).ok()?)
    }

    /// Whether other ranks would live if the rank's host died.
    async fn others_are_elsewhere(&self, role: &Role) -> bool {
        let procs = self.launcher.list().await.map(|listing| listing.procs).unwrap_or_default();
        let ranks = || procs.iter().filter(|p| p.proc.role.rank().is_some() && !p.phase.is_over());
        let own = ranks().find(|p| p.proc.role == *role).map(|p| &p.node);
        ranks().any(|p| Some(&p.node) != own)
    }

    async fn until(&self, is_so: impl Fn(&BTreeMap<u32, Vec<Line>>) -> bool) {
        while !is_so(&lines::read(&self.job.dir)) {
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// The newest step that all ranks have completed.
    fn last_common(&self, steps: &BTreeMap<u32, Vec<Line>>) -> Option<u64> {
        let all = steps.len() == self.job.ranks as usize;
        all.then(|| steps.values().filter_map(|lines| lines.iter().map(|l| l.step).max()).min()).flatten()
    }

    /// The first step that all ranks have computed after the fault, and when: after every rank had left the old world,
    /// where they did, for until then a step that was under way may still have been completed.
    fn first_common_after(
        &self,
        steps: &BTreeMap<u32, Vec<Line>>,
        at: f64,
        seen: &Seen,
        has_left: Option<u32>,
    ) -> Option<(u64, f64)> {
        let gave_up = seen.stages.iter().rfind(|(name, _)| name == "abort").map(|(_, t)| *t);
        let since = gave_up.or(seen.decided).unwrap_or(at);
        let there = steps.iter().filter(|(rank, _)| Some(**rank) != has_left);
        let lines = there.flat_map(|(rank, lines)| lines.iter().map(|line| (*rank, line)));
        lines::first_common(lines, since, self.job.ranks as usize - usize::from(has_left.is_some()))
    }
}

/// What the runtime has reported of a recovery, and when.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) found: Option<f64>,
    pub(super) decided: Option<f64>,
    /// Each decision in words: more than one, if something else happened meanwhile.
    pub(super) decisions: Vec<String>,
    pub(super) stages: Vec<(String, f64)>,
    /// By the job's clock.
    pub(super) decided_at: Option<JobTime>,
    pub(super) closed_at: Option<JobTime>,
    pub(super) closed: Option<(String, f64)>,
}

impl Seen {
    /// Whether it was mended by this strategy.
    fn is_by(&self, strategy: &Name) -> bool {
        self.closed.as_ref().is_some_and(|(how, _)| *how == format!("recovered by {strategy}"))
    }
}

/// What was chosen, and why nothing before it was.
fn in_words(decision: &Decision) -> String {
    let chosen = decision.chosen.as_ref().map_or("nothing", |chosen| chosen.strategy.as_str());
    let refused = decision.refused.iter().map(|refusal| format!("; not {}: {}", refusal.strategy, refusal.reason));
    let faults: Vec<String> =
        decision.incident.faults.iter().map(|fault| fault.primary_suspect().domain.to_string()).collect();
    format!("{chosen} for {}: {}{}", faults.join(", "), decision.reason, refused.collect::<String>())
}

async fn watch(events: &mut broadcast::Receiver<Arc<TimestampedEvent>>) -> Seen {
    let mut seen = Seen::default();
    while seen.closed.is_none() {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                println!("              {missed} events were missed");
                continue;
            }
            Err(broadcast::error::RecvError::Closed) => break,
        };
        match &event.event {
            Event::Found { .. } => _ = seen.found.get_or_insert_with(now),
            Event::Decided(decision) => {
                seen.decided.get_or_insert_with(now);
                seen.decided_at.get_or_insert(decision.at);
                seen.decisions.push(in_words(decision));
            }
            Event::StageDone { stage, .. } => seen.stages.push((stage.to_string(), now())),
            Event::Closed { how, .. } => {
                seen.closed = Some((how.clone(), now()));
                seen.closed_at = Some(event.at);
            }
            Event::Failed { strategy, reason, .. } => println!("              {strategy} failed: {reason}"),
            _ => {}
        }
    }
    seen
}
