//! Deaths, exits, stops, and the removal of the remains of a process.

use super::super::A_CENTURY;
use super::{Engine, LAST_WORDS_WITHIN, Life, fence, say};
use crate::job::{Exit, ProcId, Termination};
use crate::launch::guard::procs::{Key, Proc, Sweep, Tree};
use crate::launch::guard::run_dir::proc_name;
use crate::launch::guard::streams::{LAST_BYTES_MAX, Stream};
use crate::launch::guard::sys::{self, Ended};
use crate::launch::guard::tree::{Census, Member, Wanted};
use crate::launch::guard::wire::Answer;
use crate::launch::guard::wire::FromGuard;
use crate::launch::{GuardEnd, Phase};
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Delay between a start and the first check which lifelines are held; it doubles with each check.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// Longest interval between these checks, while a lifeline is not held.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);
/// First interval between two checks of a tree's remains; it doubles with each check.
const SWEEP_PAUSE: Duration = Duration::from_millis(2);
/// Longest interval between these checks.
const SWEEP_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Age at which an incomplete removal of a tree is counted as stuck, most likely because of a process in
/// uninterruptible sleep.
const SWEEP_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of ended children handled per turn of the loop.
const ENDS_IN_A_ROW: usize = 256;
/// Time that an ending guard tries to remove everything, in addition to the grace period of the stops.
const END_WITHIN: Duration = Duration::from_secs(10);

impl Engine {
    /// Handles the deaths that lifelines have reported.
    pub(super) fn take_deaths(&mut self) {
        for death in self.deaths.take() {
            if self.procs.advance(death.key, Phase::Dead(death.how)) {
                self.counters.deaths += 1;
                // If the guard is a thread of a program, other code of that program may have reaped the process.
                let dying = self.procs.get(death.key).filter(|_| self.signals.is_some());
                dying.into_iter().for_each(|proc| sys::hurry_end(proc.pid));
            }
        }
        self.notify_owner();
    }

    /// Checks which lifelines are held, for ranks that do not wake the waiting thread.
    pub(super) fn look_for_lifelines(&mut self, now: Instant) {
        if self.looks.next_at.is_none_or(|at| at > now) {
            return;
        }
        let waiters = self.procs.iter_mut().filter_map(|(_, proc)| proc.lifeline.as_mut());
        let missing = waiters.filter_map(|waiter| (!waiter.look()).then_some(())).count();
        self.looks.pause = (self.looks.pause * 2).min(LOOK_PAUSE_MAX);
        self.looks.next_at = (missing > 0).then_some(now + self.looks.pause);
    }

    /// Reaps ended children: processes of the job, and orphans that the guard has adopted. A rank's children may end
    /// faster than they are reaped; the rest waits for the next turn.
    pub(super) fn reap_all(&mut self) {
        self.ends_are_left = (0..ENDS_IN_A_ROW).all(|_| sys::next_ended().map(|ended| self.take_end(ended)).is_some());
        self.notify_owner();
    }

    /// Reaps the children that the previous turn has left.
    pub(super) fn reap_more(&mut self) {
        if self.ends_are_left {
            self.reap_all();
        }
    }

    /// Reaps one child, if the guard is a thread of a program.
    pub(super) fn take_exit_of(&mut self, key: Key) {
        let Some(pid) = self.procs.get(key).map(|proc| proc.pid) else { return };
        match sys::how_ended(pid) {
            Ok(Some(ended)) => self.take_end(ended),
            Ok(None) => (),
            Err(_) => {
                // The program has reaped all its children, and was faster: the pid may be another process's by now.
                self.report_exit(key, Termination::Unknown);
                self.sweep_soon(Instant::now());
            }
        }
        self.notify_owner();
    }

    fn take_end(&mut self, ended: Ended) {
        let key = self.procs.running_with(ended.pid);
        if let Some(key) = key {
            self.report_survivors(key, ended.how());
            // It is not reaped yet, so its pid is still that of its own group.
            let _ = rustix::process::kill_process_group(ended.pid, Signal::KILL);
            self.report_exit(key, ended.how());
        } else {
            self.standby_ended(ended.pid, ended.how());
        }
        let _ = rustix::process::waitpid(Some(ended.pid), WaitOptions::NOHANG);
        // A census takes milliseconds, and in a chain of short-lived processes one ends every few milliseconds.
        if key.is_some() || self.is_waited_for(ended.pid) {
            self.sweep_soon(Instant::now());
        }
    }

    /// Returns true if this process was found in a process tree that is being removed.
    fn is_waited_for(&self, pid: Pid) -> bool {
        self.procs.iter().any(|(_, proc)| proc.left.iter().any(|member| member.pid == raw(pid)))
    }

    fn report_exit(&mut self, key: Key, how: Termination) {
        self.drain(key, LAST_BYTES_MAX, |proc| &mut proc.stderr);
        let Some(proc) = self.procs.get_mut(key) else { return };
        let mut exit = Exit::new(how);
        if proc.kill_at.is_none() && proc.tree == Tree::Wanted {
            exit.error = self.ooms.explain(proc.oom_place, proc.pid, how).map(Box::new); // not killed by the guard
        } else if proc.is_fenced {
            exit.error = fence::reason(how).map(Box::new);
        }
        exit.stderr_tail = proc.stderr.as_ref().map(Stream::tail_text).unwrap_or_default();
        // Page and memory stay until the exit is acknowledged: the last records of the process may not have been read.
        if let Some((page, _)) = &proc.page {
            exit.step = page.last_step();
        }
        if let Some(lifeline) = proc.lifeline.take() {
            self.counters.lifelines_missing += u64::from(lifeline.is_unavailable());
            lifeline.end();
        }
        proc.kill_at = None;
        if let Some(end) = proc.end.take() {
            self.poll.remove(end);
        }
        if proc.tree == Tree::Wanted {
            proc.tree = Tree::Sweeping(Sweep::starting(Instant::now()));
        }
        self.procs.advance(key, Phase::Exited(Box::new(exit)));
        if !self.procs.iter().any(|(_, proc)| proc.report.proc.role.rank().is_some() && !proc.has_exited()) {
            self.keeps.drop_unused();
        }
        self.counters.exits += 1;
    }

    /// Starts to stop processes.
    pub(super) fn stop(&mut self, procs: &[ProcId], grace: Duration) {
        self.withdraw_waiting(procs);
        for key in procs.iter().filter_map(|id| self.procs.find(id)).collect::<Vec<_>>() {
            self.stop_one(key, grace, Instant::now());
        }
        self.kill_overdue(Instant::now());
    }

    pub(super) fn stop_one(&mut self, key: Key, grace: Duration, now: Instant) {
        let Some(proc) = self.procs.get_mut(key).filter(|proc| !proc.has_exited()) else { return };
        let kill_at = now + grace.min(A_CENTURY);
        if proc.kill_at.is_none() && !grace.is_zero() {
            // A stopped process receives its SIGTERM only when it continues.
            let _ = rustix::process::kill_process_group(proc.pid, Signal::TERM);
            let _ = rustix::process::kill_process_group(proc.pid, Signal::CONT);
        }
        proc.kill_at = Some(proc.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
    }

    /// Starts to remove the trees of processes whose grace period is over.
    pub(super) fn kill_overdue(&mut self, now: Instant) {
        for (_, proc) in self.procs.iter_mut() {
            if proc.tree == Tree::Wanted && proc.kill_at.is_some_and(|at| at <= now) {
                proc.tree = Tree::Sweeping(Sweep::starting(now));
            }
        }
    }

    /// Schedules an immediate check of all process trees that are being removed.
    fn sweep_soon(&mut self, now: Instant) {
        for (_, proc) in self.procs.iter_mut() {
            if let Tree::Sweeping(sweep) = &mut proc.tree {
                sweep.next_at = sweep.next_at.min(now);
            }
        }
    }

    /// Checks all trees that are due, with one census for all of them.
    pub(super) fn sweep(&mut self, now: Instant) {
        let due = |proc: &Proc| matches!(proc.tree, Tree::Sweeping(sweep) if sweep.next_at <= now);
        let keys: Vec<Key> = self.procs.iter().filter(|(_, proc)| due(proc)).map(|(key, _)| key).collect();
        if keys.is_empty() {
            return;
        }
        let census = Census::take();
        let family = self.signals.is_some().then(|| census.descendants(self.ground.parent));
        for key in keys {
            let left = self.members_of(key, &census, family.as_ref());
            let Some(proc) = self.procs.get_mut(key) else { continue };
            let new = left.iter().filter(|member| member.pid != raw(proc.pid) && !proc.left.contains(member));
            self.counters.leftovers_killed += new.count() as u64;
            let is_group_empty = proc.cgroup.processes().is_empty();
            if !is_group_empty {
                proc.cgroup.kill(); // including chains of short-lived processes
            }
            left.iter().copied().for_each(Member::kill);
            proc.left = left;
            let Tree::Sweeping(sweep) = &mut proc.tree else { continue };
            if proc.left.is_empty() && is_group_empty && proc.report.phase.is_exited() {
                proc.tree = Tree::Gone;
                self.cgroups.iter().for_each(|groups| groups.remove(proc.cgroup.clone()));
            } else if sweep.go_on(Instant::now()) {
                self.counters.leftovers_stuck += 1;
                let text = format!("{}: cannot remove {:?}", proc.report.proc, proc.left);
                self.note(&text);
            }
        }
        self.close_finished_streams();
        self.procs.forget_done();
    }

    /// Returns the remaining processes of a process's tree.
    pub(super) fn members_of(&self, key: Key, census: &Census, family: Option<&BTreeSet<i32>>) -> Vec<Member> {
        let Some(proc) = self.procs.get(key) else { return Vec::new() };
        let name = proc_name(&proc.report.proc);
        // Other processes of the job are never included, not even one that has got this pid meanwhile.
        let others = self.procs.iter().filter(|(other, proc)| *other != key && !proc.has_exited());
        let others: BTreeSet<i32> = others.map(|(_, proc)| raw(proc.pid)).collect();
        let number_is_ours = family.is_some() && !others.contains(&raw(proc.pid));
        let wanted = Wanted {
            root: (!proc.has_exited()).then_some(proc.pid),
            session: number_is_ours.then_some(proc.pid),
            adopter: family.map(|_| self.ground.parent),
            job: &self.config.job,
            proc: Some(&name),
            leaders: &[],
            grouped: &proc.cgroup.processes(),
        };
        let mut members = census.members(&wanted, family, &proc.left);
        members.retain(|member| !others.contains(&member.pid));
        members
    }

    /// Reads the output of a process.
    pub(super) fn drain(&mut self, key: Key, bytes_max: usize, which: fn(&mut Proc) -> &mut Option<Stream>) {
        if let Some(stream) = self.procs.get_mut(key).and_then(|proc| which(proc).as_mut()) {
            stream.drain(bytes_max, &self.poll, &self.logs, &mut self.scratch);
        }
    }

    /// Reads the rest of the output of processes without living descendants, and closes the pipes.
    fn close_finished_streams(&mut self) {
        for (_, proc) in self.procs.iter_mut().filter(|(_, proc)| proc.tree == Tree::Gone) {
            for mut stream in [proc.stdout.take(), proc.stderr.take()].into_iter().flatten() {
                stream.drain(LAST_BYTES_MAX, &self.poll, &self.logs, &mut self.scratch);
                stream.close(&self.poll, &self.logs);
            }
        }
    }

    pub(super) fn ends_deadline(&self) -> Option<Instant> {
        let of = |proc: &Proc| match proc.tree {
            Tree::Wanted => proc.kill_at,
            Tree::Sweeping(sweep) => Some(sweep.next_at),
            Tree::Gone => None,
        };
        self.procs.iter().filter_map(|(_, proc)| of(proc)).min()
    }

    /// Starts to stop all running processes.
    pub(super) fn stop_all(&mut self, grace: Duration) {
        let now = Instant::now();
        let running: Vec<Key> = self.procs.iter().map(|(key, _)| key).collect();
        running.into_iter().for_each(|key| self.stop_one(key, grace, now));
        self.kill_overdue(now);
    }

    /// Records the reason for the guard's end; the first reason counts. The owner is sent the reason before any process
    /// ends for it.
    pub(super) fn end_because(&mut self, why: &str, was_agreed: bool) {
        self.note(why);
        if self.end.is_some() || self.signals.is_none() {
            return; // a guard thread ends only with its owner
        }
        let end = GuardEnd::new(why.to_owned()).with_was_agreed(was_agreed);
        let owner = self.owner.filter(|_| !was_agreed); // otherwise the owner knows, or is gone
        if let Some((key, conn)) = owner.and_then(|key| Some((key, self.conns.get_mut(&key)?))) {
            say(conn, &FromGuard::Ending(end.clone()));
            self.flush(key);
        }
        self.end = Some(end);
    }

    /// Stops everything, and then the guard. The `call` is answered when all processes are gone.
    pub(super) fn end(&mut self, grace: Duration, call: Option<(Key, u64)>) {
        let now = Instant::now();
        self.stop_all(grace);
        self.withdraw_all_waiting();
        self.end_standbys();
        let give_up_at = now + grace.min(A_CENTURY) + END_WITHIN;
        self.life = match self.life {
            Life::Ending { call: earlier, give_up_at: before } => {
                Life::Ending { call: call.or(earlier), give_up_at: before.min(give_up_at) }
            }
            _ => Life::Ending { call, give_up_at },
        };
    }

    /// Ends the guard if it has nothing left to do.
    pub(super) fn end_if_nothing_is_left(&mut self, now: Instant) {
        match self.life {
            Life::Keeping { .. } if self.procs.len() == 0 && self.waiting.is_empty() => {
                self.end_because("no process ran and no owner attached", true);
                self.end(Duration::ZERO, None);
            }
            Life::Ending { call, give_up_at } => {
                if give_up_at <= now || (self.all_trees_are_gone() && self.no_strangers_are_left()) {
                    self.notify_owner();
                    self.note("the guard ends");
                    self.logs.flush(LAST_WORDS_WITHIN);
                    if let Some(end) = self.end.take() {
                        let _ = self.run_dir.write_end(&end); // if missing, the end has no known reason
                    }
                    if let Ok(groups) = &self.cgroups {
                        groups.of_guard().leave(LAST_WORDS_WITHIN);
                    }
                    self.run_dir.forget_guard();
                    if let Some((conn, id)) = call {
                        self.answer(conn, id, Ok(Answer::Done));
                    }
                    self.life = Life::Over;
                }
            }
            Life::Keeping { .. } | Life::Serving | Life::Over => (),
        }
    }

    pub(super) fn all_trees_are_gone(&self) -> bool {
        self.procs.iter().all(|(_, proc)| proc.tree == Tree::Gone)
    }

    /// Kills everything below the guard at its end, marked or not; returns true if nothing is left.
    fn no_strangers_are_left(&self) -> bool {
        if self.signals.is_none() {
            return true;
        }
        Census::take().kill_below(self.ground.parent) == 0
    }
}

/// Schedule of the checks which lifelines are held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    pub(super) next_at: Option<Instant>,
    pause: Duration,
}

impl Looks {
    /// Restarts the schedule after the start of a rank: frequent checks at first, then fewer.
    pub(super) fn soon(&mut self, now: Instant) {
        *self = Looks { next_at: Some(now + LOOK_PAUSE), pause: LOOK_PAUSE };
    }
}

impl Sweep {
    fn starting(now: Instant) -> Sweep {
        Sweep { next_at: now, pause: SWEEP_PAUSE, complain_at: Some(now + SWEEP_WITHIN) }
    }

    /// Schedules the next check. Returns true once, when the removal takes too long.
    fn go_on(&mut self, now: Instant) -> bool {
        self.next_at = now + self.pause;
        self.pause = (self.pause * 2).min(SWEEP_PAUSE_MAX);
        let late = self.complain_at.is_some_and(|at| at <= now);
        if late {
            self.complain_at = None;
        }
        late
    }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
