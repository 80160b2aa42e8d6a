//! Standbys that run their program ahead of their rank, up to where they have to know it.
//!
//! Only once a rank has come to a step loop: a program without one would train by itself. What goes wrong here costs a standby
//! and never a start.

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

/// How long a program may take, at low priority, to come as far as it can.
const AHEAD_WITHIN: Duration = Duration::from_secs(300);
/// How soon, and how seldom at last, it is looked again whether a rank is in a step loop.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How soon a failure is followed by another try.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Whether a process is to take a place among others that run.
pub(super) fn joins(order: &WireOrder, spec: &WireSpec) -> bool {
    order.env.contains_key(JOIN_VARIABLE) || spec.env.contains_key(JOIN_VARIABLE)
}

impl Engine {
    /// Has one of a line run ahead, where none does.
    pub(super) fn run_ahead(&mut self, id: u64, now: Instant) -> io::Result<()> {
        let Some(line) = self.standbys.line(id).filter(|line| line.ahead_failures < TRIES_MAX) else { return Ok(()) };
        let Some(ahead) = line.ahead.clone() else { return Ok(()) };
        let (like, users, in_loop) = (line.like.clone(), line.users.clone(), line.in_loop);
        let threads = line.proof.as_ref().map(|proof| proof.threads.clone()).unwrap_or_default();
        let outdated = self.standbys.ahead_of(id).filter(|(_, its)| !its.fits(&ahead)).map(|(key, _)| key);
        for key in outdated.collect::<Vec<_>>() {
            self.discard(key); // no rank will be like it any more
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
            None => Ok(()), // it is looked again when there is one
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
        let mut told = Packet::new("ahead").with("threads", threads).with_all("argument", &ahead.arguments);
        for (name, value) in &ahead.set {
            told = told.with("set", &format!("{name}={value}"));
        }
        for name in like.unknown(&ahead) {
            told = told.with("unknown", name);
        }
        let was_one = self.standbys.get(key).map(|standby| standby.line);
        let was_one = was_one.and_then(|line| self.standbys.line(line)).is_some_and(|line| line.was_ahead);
        let by = slower_by(was_one);
        let (nice, slower) = (self.ground.nice(like.nice), self.ground.nice(like.nice.saturating_add(by)));
        let Some(standby) = self.standbys.get_mut(key) else { return Ok(()) };
        packet::send(&standby.seat, &told, &[])?;
        (standby.is_ready, standby.ahead, standby.until) = (false, Some(ahead), Some(now + AHEAD_WITHIN));
        let (line, process) = (standby.line, standby.process);
        if let Some((pid, _)) = process {
            set_autogroup(pid, by);
            if sys::may_undo_nice(nice, slower) {
                sys::schedule_process(pid, slower)?;
            }
        }
        self.standbys.line(line).into_iter().for_each(|line| line.look_by(now)); // another one is to wait in its place
        Ok(())
    }

    /// One that ran ahead has come as far as it can, and has asked for these variables that ranks share. Others may change, such as
    /// how many ranks its host has; but for those that a template holds, which libraries go by without asking.
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
        self.note(&format!("a standby has run ahead of its rank: it {at}"));
        Ok(())
    }

    /// One that ran ahead has not come through: those that wait are none the worse.
    pub(super) fn ahead_failed(&mut self, id: u64, why: &str, now: Instant) {
        let Some(line) = self.standbys.line(id) else { return };
        line.ahead_failures += 1;
        line.look_by(now + AGAIN_AFTER);
        let what = line.like.command();
        match line.ahead_failures {
            TRIES_MAX => self.notice(&format!("no standby runs {what} ahead of its rank any more: {why}")),
            _ => self.note(&format!("a standby that ran ahead of its rank has failed: {why}")),
        }
    }
}

impl Line {
    /// What the next one that runs ahead goes by.
    pub(super) fn goes_by(&mut self, ahead: Ahead) {
        self.ahead = Some(ahead);
        self.look_again = Duration::ZERO;
    }

    fn look_again(&mut self, now: Instant) {
        self.look_again = (self.look_again * 2).clamp(LOOK_AGAIN.0, LOOK_AGAIN.1);
        self.look_by(now + self.look_again);
    }
}
