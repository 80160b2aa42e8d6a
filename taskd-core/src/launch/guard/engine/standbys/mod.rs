//! Standbys: how they are made ahead of need, and how a rank is seated in one.
//!
//! Nothing here can hold up or fail a start: whatever a standby does not do in its time ends it, and the rank is started in
//! the usual way. Which processes are alike, and who waits, is in the [book](crate::launch::guard::standby).

mod hear;
mod make;
mod seat;

use super::Engine;
use crate::launch::guard::proc_cgroups::ProcCgroup;
use crate::launch::guard::procs::Key;
use crate::launch::guard::spawn;
use crate::launch::guard::standby::{Like, Line, Part};
use crate::launch::guard::wire::WireBatch;
use rustix::process::{Pid, Signal};
use std::time::{Duration, Instant};

/// How soon those that were seated are replaced: first the ranks shall be on their way.
const REFILL_AFTER: Duration = Duration::from_millis(200);
/// What a standby's nice value is more by until it is ready: ranks train meanwhile.
const SLOWER_BY: u8 = 10;
/// The same for the first one, without which a job has nothing to fall back on: on busy processors about half of a rank's share.
const FIRST_SLOWER_BY: u8 = 3;

/// What the nice value is more by of one that is made or run while there was or was none before it.
pub(super) const fn slower_by(was_one: bool) -> u8 {
    if was_one { SLOWER_BY } else { FIRST_SLOWER_BY }
}

impl Engine {
    /// From now on there are to be standbys for the like of these. Of their program it may be known that it has a step loop.
    pub(super) fn keep_standbys_for(&mut self, batch: &WireBatch, in_loop: bool, now: Instant) {
        if self.signals.is_none() {
            return; // nobody would take in what a template forks
        }
        for order in &batch.orders {
            let Some(spec) = batch.specs.get(order.spec) else { continue };
            let Ok(program) = spawn::find_program(order, spec) else { continue };
            let Some(like) = Like::of(order, spec, &program) else { continue };
            let due = now + Duration::from_millis(like.standby.after_ms);
            let rest = spec.argv.get(like.standby.fixed..).unwrap_or_default();
            let (unused, has_room) = self.standbys.use_line(&order.proc.role, like.clone(), rest, due);
            for line in unused {
                self.drop_line(&line, "no rank is like it any more");
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

    /// Everything is to end.
    pub(super) fn end_standbys(&mut self) {
        self.standbys.take_all().into_iter().for_each(|key| self.discard(key));
    }

    /// Ends a standby. Whoever it is has not been reaped, so its number is its own.
    pub(super) fn discard(&mut self, key: Key) {
        let Some(mut standby) = self.standbys.remove(key) else { return };
        self.counters.standbys_discarded += u64::from(standby.part != Part::Probe);
        self.poll.remove(&standby.seat);
        if let Some(output) = &mut standby.output {
            output.close(&self.poll, &self.logs);
        }
        if let Some((pid, _)) = standby.process {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL); // all that it has started with it
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.cgroups.iter().for_each(|groups| groups.remove(standby.cgroup.clone()));
    }

    /// A control group for one that a rank can be seated in.
    pub(super) fn cgroup_of_standby(&mut self, process: (Pid, u64)) -> ProcCgroup {
        self.cgroups.as_mut().map(|groups| groups.make_for(process)).unwrap_or_default()
    }
}

/// Where the kernel shares processors among sessions first, a nice value matters within one only: a session has its own, which
/// needs no privilege. What a template forks is in sessions of their own.
pub(super) fn set_autogroup(pid: Pid, nice: u8) {
    let _ = std::fs::write(format!("/proc/{}/autogroup", pid.as_raw_nonzero()), nice.to_string()); // a kernel without has none
}
