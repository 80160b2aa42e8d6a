//! Pre-warmed standbys, which run the program before they have a rank, up to the first call that depends on it.
//!
//! Only once a rank has entered a step loop, since a program without one would train by itself. A failure here costs a
//! standby, but never a start.

use super::Engine;
use super::standbys::{set_autogroup, slower_by};
use crate::job::Role;
use crate::launch::JOIN_VARIABLE;
use crate::launch::guard::procs::{Key, Proc};
use crate::launch::guard::standby::packet::{self, Packet};
use crate::launch::guard::standby::{Ahead, Like, Line, TRIES_MAX};
use crate::launch::guard::sys;
use crate::launch::guard::wire::{WireOrder, WireSpec};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time limit for a program to reach its first rank-dependent call, at low priority.
const AHEAD_WITHIN: Duration = Duration::from_secs(300);
/// Shortest and longest interval between checks whether a rank is in a step loop.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Delay before another attempt after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Returns true if the process is to join a running world.
pub(super) fn joins(order: &WireOrder, spec: &WireSpec) -> bool {
    order.env.contains_key(JOIN_VARIABLE) || spec.env.contains_key(JOIN_VARIABLE)
}

impl Engine {
    /// Pre-warms a standby of a line, if fewer than wanted are pre-warmed.
    pub(super) fn run_ahead(&mut self, id: u64, now: Instant) -> io::Result<()> {
        let Some(line) = self.standbys.line(id).filter(|line| line.ahead_failures < TRIES_MAX) else { return Ok(()) };
        let Some(ahead) = line.ahead.clone() else { return Ok(()) };
        let (like, users, in_loop) = (line.like.clone(), line.users.clone(), line.in_loop);
        let threads = line.proof.as_ref().map(|proof| proof.threads.clone()).unwrap_or_default();
        let outdated = self.standbys.ahead_of(id).filter(|(_, its)| !its.fits(&ahead)).map(|(key, _)| key);
        for key in outdated.collect::<Vec<_>>() {
            self.discard(key); // no later rank will match it
        }
        let is_idle = !users.iter().any(|role| self.running(role).is_some());
        let wanted = self.standbys.line(id).map_or(0, |line| line.wanted_ahead(is_idle));
        if self.standbys.ahead_of(id).count() >= wanted {
            return Ok(());
        }
        if !in_loop && !users.iter().any(|role| self.is_in_loop(role)) {
            self.standbys.line(id).into_iter().for_each(|line| line.look_again(now));
            return Ok(());
        }
        match self.standbys.any_of(id) {
            Some(key) => self.let_run_ahead(key, &like, ahead, &threads, now),
            None => Ok(()), // checked again once one is ready
        }
    }

    fn running(&self, role: &Role) -> Option<&Proc> {
        let runs = |proc: &&Proc| proc.report.proc.role == *role && !proc.has_exited();
        self.procs.iter().map(|(_, proc)| proc).find(runs)
    }

    fn is_in_loop(&self, role: &Role) -> bool {
        self.running(role)
            .and_then(|proc| proc.page.as_ref())
            .is_some_and(|(page, _)| page.in_loop.load(Ordering::Acquire) == 1)
    }

    fn let_run_ahead(&mut self, key: Key, like: &Like, ahead: Ahead, threads: &str, now: Instant) -> io::Result<()> {
        let mut message = Packet::new("ahead").with("threads", threads).with_all("argument", &ahead.arguments);
        for (name, value) in &ahead.set {
            message = message.with("set", &format!("{name}={value}"));
        }
        for name in like.unknown(&ahead) {
            message = message.with("unknown", name);
        }
        let was_one = self.standbys.get(key).map(|standby| standby.line);
        let was_one = was_one.and_then(|line| self.standbys.line(line)).is_some_and(|line| line.was_ahead);
        let by = slower_by(was_one);
        let (nice, slower) = (self.ground.nice(like.nice), self.ground.nice(like.nice.saturating_add(by)));
        let Some(standby) = self.standbys.get_mut(key) else { return Ok(()) };
        packet::send(&standby.seat, &message, &[])?;
        (standby.is_ready, standby.ahead, standby.until) = (false, Some(ahead), Some(now + AHEAD_WITHIN));
        let (line, process) = (standby.line, standby.process);
        if let Some((pid, _)) = process {
            set_autogroup(pid, by);
            if sys::may_undo_nice(nice, slower) {
                sys::schedule_process(pid, slower)?;
            }
        }
        self.standbys.line(line).into_iter().for_each(|line| line.look_by(now)); // replaces it by another waiting one
        Ok(())
    }

    /// Handles the message that a pre-warmed standby is ready, with the shared variables that its program has read. The
    /// other variables may still change, such as the number of ranks on its host; except those that a template
    /// overrides, from which libraries take values without a visible read.
    pub(super) fn has_parked(&mut self, key: Key, at: &str, asked: &[&str]) -> Result<(), String> {
        let Some(standby) = self.standbys.get_mut(key) else { return Ok(()) };
        (standby.is_ready, standby.until) = (true, None);
        let (line, process) = (standby.line, standby.process);
        let held = self.standbys.line(line).map(|line| {
            line.was_ahead = true;
            line.like.standby.held.clone()
        });
        let is_fixed = |name: &String| held.as_ref().is_some_and(|held| held.contains_key(name));
        if let Some(ahead) = self.standbys.get_mut(key).and_then(|standby| standby.ahead.as_mut()) {
            ahead.set.retain(|name, _| asked.contains(&name.as_str()) || is_fixed(name));
        }
        self.have_priority_back(line, process)?;
        self.note(&format!("a standby is pre-warmed: it {at}"));
        Ok(())
    }

    /// Handles the failure of a pre-warmed standby, which does not count against the waiting ones.
    pub(super) fn ahead_failed(&mut self, id: u64, why: &str, now: Instant) {
        let Some(line) = self.standbys.line(id) else { return };
        line.ahead_failures += 1;
        line.look_by(now + AGAIN_AFTER);
        let what = line.like.command();
        match line.ahead_failures {
            TRIES_MAX => self.notice(&format!("standbys for {what} are not pre-warmed any more: {why}")),
            _ => self.note(&format!("a pre-warmed standby has failed: {why}")),
        }
    }
}

impl Line {
    /// Sets the input for the next pre-warmed standby.
    pub(super) fn goes_by(&mut self, ahead: Ahead) {
        self.ahead = Some(ahead);
        self.look_again = Duration::ZERO;
    }

    fn look_again(&mut self, now: Instant) {
        self.look_again = (self.look_again * 2).clamp(LOOK_AGAIN.0, LOOK_AGAIN.1);
        self.look_by(now + self.look_again);
    }
}
