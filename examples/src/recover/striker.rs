//! Faults from outside, each in its moment, and what the runtime and the ranks report of it.

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
/// The interval at which the script's lines are read.
const READ_EVERY: Duration = Duration::from_millis(10);

/// A fault that was injected.
pub(super) struct Struck {
    pub(super) role: Role,
    /// The last step that all ranks had completed.
    pub(super) before: u64,
    pub(super) at: f64,
    /// Events of the runtime since the injection.
    events: broadcast::Receiver<Arc<TimestampedEvent>>,
}

/// Injects the planned faults, and observes the recoveries.
pub(super) struct Striker {
    pub(super) job: Job,
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) handle: RuntimeHandle,
}

impl Striker {
    /// Injects all faults, one after the other. Returns the recoveries, and the step before which the job is ordered to
    /// end, if there were any faults.
    ///
    /// # Errors
    /// The file that ends the job cannot be written.
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

    /// Orders all ranks to end before the same step, a little later.
    fn end_soon(&self) -> io::Result<u64> {
        let lines = lines::read(&self.job.dir);
        let until = lines.values().flatten().map(|line| line.step).max().unwrap_or(0) + STEPS_AFTER;
        let new = self.job.dir.join("until.new");
        fs::write(&new, until.to_string())?;
        fs::rename(&new, self.job.dir.join("until"))?;
        Ok(until)
    }

    /// Injects `strike` when all ranks have completed `strike.after_steps` steps after step `from`. Returns `None` if
    /// no process was hit.
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

    /// Waits for the first step after a recovery that all ranks have completed, except one that has left. Returns the
    /// step and the time of its completion.
    async fn resumed(&self, at: f64, seen: &Seen, has_left: Option<u32>) -> (u64, f64) {
        let common = |steps: &BTreeMap<u32, Vec<Line>>| self.first_common_after(steps, at, seen, has_left);
        self.until(|steps| common(steps).is_some()).await;
        common(&lines::read(&self.job.dir)).unwrap_or((0, f64::NAN))
    }

    /// Injects the fault and returns its time.
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

    /// Orders the script to cause the fault `name` in a later step, and returns its time.
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

    /// Returns true if ranks on other hosts would survive the loss of this rank's host.
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

    /// Returns the newest step that all ranks have completed.
    fn last_common(&self, steps: &BTreeMap<u32, Vec<Line>>) -> Option<u64> {
        let all = steps.len() == self.job.ranks as usize;
        all.then(|| steps.values().filter_map(|lines| lines.iter().map(|l| l.step).max()).min()).flatten()
    }

    /// Returns the first step that all ranks have computed after the fault, and its time. Only steps after every rank
    /// had aborted count, or after the decision if none did: until then a step that was under way may still be
    /// completed.
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

/// The events of a recovery, and their times.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) found: Option<f64>,
    pub(super) decided: Option<f64>,
    /// The text of each decision: several if another fault was found meanwhile.
    pub(super) decisions: Vec<String>,
    pub(super) stages: Vec<(String, f64)>,
    /// Time of the first decision, by the job's clock.
    pub(super) decided_at: Option<JobTime>,
    pub(super) closed_at: Option<JobTime>,
    pub(super) closed: Option<(String, f64)>,
}

impl Seen {
    /// Returns true if `strategy` recovered the job.
    fn is_by(&self, strategy: &Name) -> bool {
        self.closed.as_ref().is_some_and(|(how, _)| *how == format!("recovered by {strategy}"))
    }
}

/// Returns the chosen strategy, and the reason against each one before it.
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
