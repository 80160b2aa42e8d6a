//! Makes standbys in advance, and assigns ranks to them.
//!
//! Standbys never delay or fail a start: a standby that misses its deadline is ended, and the rank is started in the
//! usual way. The [table](crate::launch::guard::standby) contains the waiting standbys, in lines of interchangeable
//! processes.

mod assign;
mod messages;
mod pool;

use super::Engine;
use crate::launch::guard::proc_cgroups::ProcCgroup;
use crate::launch::guard::procs::Key;
use crate::launch::guard::spawn;
use crate::launch::guard::standby::{Like, Line, Part};
use crate::launch::guard::wire::{FromGuard, WireBatch};
use rustix::process::{Pid, Signal};
use std::time::{Duration, Instant};

/// Delay before assigned standbys are replaced, so that the ranks start first.
const REFILL_AFTER: Duration = Duration::from_millis(200);
/// Increase of a standby's nice value until it is ready, since ranks are training meanwhile.
const SLOWER_BY: u8 = 10;
/// The same for the first standby, without which a job has no fallback: on busy processors it gets about half of a
/// rank's share.
const FIRST_SLOWER_BY: u8 = 3;

/// Returns the increase of the nice value for a new standby; `was_one` is true if there was one before it.
pub(super) const fn slower_by(was_one: bool) -> u8 {
    if was_one { SLOWER_BY } else { FIRST_SLOWER_BY }
}

impl Engine {
    /// Keeps standbys for these processes from now on. `in_loop` is true if their program is known to have a step loop.
    pub(super) fn keep_standbys_for(&mut self, batch: &WireBatch, in_loop: bool, now: Instant) {
        if self.signals.is_none() {
            return; // without subreaper, a template's children would not come to the guard
        }
        for order in &batch.orders {
            let Some(spec) = batch.specs.get(order.spec) else { continue };
            let Ok(program) = spawn::find_program(order, spec) else { continue };
            let Some(like) = Like::of(order, spec, &program) else { continue };
            let due = now + Duration::from_millis(like.standby.after_ms);
            let rest = spec.argv.get(like.standby.fixed..).unwrap_or_default();
            let (unused, has_room) = self.standbys.use_line(&order.proc.role, like.clone(), rest, due);
            for line in unused {
                self.drop_line(&line, "no rank can use them any more");
            }
            if !has_room {
                self.notice(&format!("{}: no standby is kept for it, ranks differ too much", order.proc));
            } else if let Some(line) = self.standbys.lines.iter_mut().find(|line| line.like == like) {
                line.goes_by(like.ahead(order, spec));
                line.in_loop |= in_loop;
                line.look_by(if line.proof.is_some() { now + REFILL_AFTER } else { due });
            }
        }
    }

    fn drop_line(&mut self, line: &Line, why: &str) {
        let keys = self.standbys.keys_of(line.id);
        if !keys.is_empty() {
            self.note(&format!("{} standbys for {} are ended: {why}", keys.len(), line.like.command()));
        }
        keys.into_iter().for_each(|key| self.discard(key));
    }

    /// Reports to the owner how many standbys are ready, if the number has changed or the owner is a new one.
    pub(super) fn report_standbys(&mut self) {
        let ready = u32::try_from(self.standbys.ready() + self.standbys.parked()).unwrap_or(u32::MAX);
        let Some((key, conn)) = self.owner.and_then(|key| Some((key, self.conns.get_mut(&key)?))) else { return };
        if self.standbys.reported.replace((key, ready)) != Some((key, ready)) {
            super::say(conn, &FromGuard::Standbys(ready));
            self.flush(key);
        }
    }

    /// Ends all standbys.
    pub(super) fn end_standbys(&mut self) {
        self.standbys.take_all().into_iter().for_each(|key| self.discard(key));
    }

    /// Ends a standby. Its process has not been reaped, so its pid is still its own.
    pub(super) fn discard(&mut self, key: Key) {
        let Some(mut standby) = self.standbys.remove(key) else { return };
        self.counters.standbys_discarded += u64::from(standby.part != Part::Probe);
        self.poll.remove(&standby.seat);
        if let Some(output) = &mut standby.output {
            output.close(&self.poll, &self.logs);
        }
        if let Some((pid, _)) = standby.process {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL); // with all that it has started
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.cgroups.iter().for_each(|groups| groups.remove(standby.cgroup.clone()));
    }

    /// Makes a control group for a standby that can be assigned a rank.
    pub(super) fn cgroup_of_standby(&mut self, process: (Pid, u64), line: u64) -> ProcCgroup {
        self.cgroups.as_mut().map(|groups| groups.make_for(process, line)).unwrap_or_default()
    }

    /// Looks at the lines of the standbys that have got their control groups, and so can be assigned a rank.
    pub(super) fn have_settled(&mut self) {
        let lines = self.cgroups.as_ref().map(|groups| groups.settled().take()).unwrap_or_default();
        let now = Instant::now();
        for id in lines {
            self.standbys.line(id).into_iter().for_each(|line| line.look_by(now)); // one may run ahead
        }
    }
}

/// Sets the nice value of a process's session. If the kernel distributes processors among sessions first (autogroup),
/// the nice value of a process matters only within its session; the session has its own value, which needs no
/// privilege. Children of a template are in sessions of their own.
pub(super) fn set_autogroup(pid: Pid, nice: u8) {
    let _ = std::fs::write(format!("/proc/{}/autogroup", pid.as_raw_nonzero()), nice.to_string()); // may not exist
}
