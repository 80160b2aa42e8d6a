//! Assignment of a rank to a standby, and the decision whether its start should wait for one.
//!
//! This module makes no standbys, except that it requests missing ones from a template.

use crate::launch::guard::engine::Engine;
use crate::launch::guard::engine::prewarm::joins;
use crate::launch::guard::procs::Key;
use crate::launch::guard::spawn::{self, NewPage, Spawned};
use crate::launch::guard::standby::packet::{self, Packet};
use crate::launch::guard::standby::{Like, Proof};
use crate::launch::guard::wire::{WireOrder, WireSpec};
use crate::proc_fs::Stat;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Engine {
    /// Returns true if a start should wait a moment, because a template is forking standbys for it. Requests them if no
    /// request is pending.
    pub(in crate::launch::guard::engine) fn are_standbys_coming(
        &mut self,
        new: &[WireOrder],
        specs: &[WireSpec],
        now: Instant,
    ) -> bool {
        let mut wanted: Vec<(u64, usize)> = Vec::new();
        for order in new {
            let Some(spec) = specs.get(order.spec) else { continue };
            let Ok(program) = spawn::find_program(order, spec) else { continue };
            let Some(like) = Like::of(order, spec, &program) else { continue };
            let Some(id) = self.standbys.line_like(&like).map(|line| line.id) else { continue };
            let ahead = joins(order, spec).then(|| like.ahead(order, spec));
            if self.standbys.ahead_of(id).any(|(_, its)| ahead.as_ref().is_some_and(|own| its.fits(own))) {
                continue; // a pre-warmed standby matches
            }
            match wanted.iter_mut().find(|(line, _)| *line == id) {
                Some((_, count)) => *count += 1,
                None => wanted.push((id, 1)),
            }
        }
        let mut are_coming = false;
        for (line, count) in wanted {
            let (ready, all) = self.standbys.waiting(line);
            let Some((template, is_busy)) = self.standbys.template(line).filter(|_| ready < count) else { continue };
            if !is_busy && all < count {
                self.fork(template, line, count - all, now);
            }
            are_coming |= self.standbys.template(line).is_some();
        }
        are_coming
    }

    /// Assigns a rank to a standby. Returns `None` if there is none, so that the rank has to be started in the usual
    /// way.
    pub(in crate::launch::guard::engine) fn seat_standby(
        &mut self,
        order: &WireOrder,
        spec: &WireSpec,
        program: &Path,
    ) -> Option<Spawned> {
        let like = Like::of(order, spec, program)?;
        let slot = order.env.get("TASKD_LOCAL_RANK").and_then(|index| index.parse().ok());
        let line = self.standbys.line_like(&like).map(|line| (line.id, line.proof.clone()));
        let ahead = joins(order, spec).then(|| like.ahead(order, spec));
        if let Some((line, Some(proof))) = line {
            while let Some(key) = self.standbys.next_of(line, slot, ahead.as_ref()) {
                let has_run_ahead = self.standbys.get(key).is_some_and(|standby| standby.ahead.is_some());
                match self.try_to_seat(key, &like, &proof, order, spec) {
                    Ok(spawned) => {
                        self.counters.standbys_seated += 1;
                        self.counters.standbys_seated_parked += u64::from(has_run_ahead);
                        self.standbys
                            .line(line)
                            .into_iter()
                            .for_each(|line| (line.failures, line.ahead_failures) = (0, 0));
                        return Some(spawned);
                    }
                    Err(error) => {
                        self.note(&format!("{}: a standby cannot be assigned: {error}", order.proc));
                        self.discard(key);
                    }
                }
            }
        }
        self.counters.standbys_missed += 1;
        None
    }

    fn try_to_seat(
        &mut self,
        key: Key,
        like: &Like,
        proof: &Proof,
        order: &WireOrder,
        spec: &WireSpec,
    ) -> io::Result<Spawned> {
        let gone = || io::Error::other("it has ended");
        let (pid, start_time) = self.standbys.get(key).and_then(|standby| standby.process).ok_or_else(gone)?;
        let stat = Stat::read(pid).filter(|stat| stat.start_time == start_time && !stat.is_exiting());
        if stat.ok_or_else(gone)?.state == 'T' {
            return Err(io::Error::other("it was stopped"));
        }
        let NewPage { page, memory, path } = self.ground.page(order, spec)?;
        page.start_time.store(start_time, Ordering::Relaxed);
        page.pid.store(pid.as_raw_nonzero().get().unsigned_abs(), Ordering::Release);
        if let Some(cpus) = &order.cpus {
            rustix::thread::sched_setaffinity(Some(pid), &spawn::cpu_set(cpus))?;
        }
        let own = like.own(order, spec);
        let mut message = Packet::new("run").with("threads", &proof.threads);
        for (name, value) in &own.set {
            message = message.with("set", &format!("{name}={value}"));
        }
        message = message.with("set", &format!("TASKD_LIFELINE={}", path.display()));
        message = message.with_all("unset", &own.unset).with_all("argument", &own.arguments);
        let standby = self.standbys.get(key).ok_or_else(gone)?;
        packet::send(&standby.seat, &message, &[])?;
        let Some(mut standby) = self.standbys.remove(key) else { return Err(gone()) };
        self.poll.remove(&standby.seat);
        let (stdout, stderr) = standby.pipes.take().ok_or_else(gone)?;
        Ok(Spawned {
            pid,
            start_time,
            cgroup: standby.cgroup,
            page,
            page_memory: memory,
            page_path: path,
            stdout,
            stderr,
        })
    }
}
