//! Standbys: how they are made ahead of need, and how a rank is seated in one.
//!
//! Nothing here can hold up or fail a start: whatever a standby does not do in its time ends it, and the rank is started in
//! the usual way. Which processes are alike, and who waits, is in the [book](crate::launch::guard::standby).

use super::ahead::joins;
use super::{Engine, Life};
use crate::job::Termination;
use crate::launch::guard::poll::Token;
use crate::launch::guard::proc_fs::Stat;
use crate::launch::guard::procs::Key;
use crate::launch::guard::spawn::{self, NewPage, Spawned};
use crate::launch::guard::standby::packet::{self, FORKS_MAX, Packet};
use crate::launch::guard::standby::{Like, Line, Part, Proof, Standby, TRIES_MAX};
use crate::launch::guard::streams::{LAST_BYTES_MAX, Stream, TURN_BYTES_MAX};
use crate::launch::guard::sys;
use crate::launch::guard::wire::{StandbyMode, WireBatch, WireOrder, WireSpec};
use rustix::process::{Pid, Signal};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a probe may take to answer.
const PROBE_WITHIN: Duration = Duration::from_secs(120);
/// How long a template or standby may take to have everything imported and tried out, at low priority.
const READY_WITHIN: Duration = Duration::from_secs(900);
/// How long a template may take to fork, and its children to wait.
const FORK_WITHIN: Duration = Duration::from_secs(5);
/// How soon those that were seated are replaced: first the ranks shall be on their way.
const REFILL_AFTER: Duration = Duration::from_millis(200);
/// How soon a failure is followed by another try; the time doubles with each.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
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

    /// Whether a start should wait a moment: a template is forking what it lacks. If nobody has asked for it, this does.
    pub(super) fn are_standbys_coming(&mut self, new: &[WireOrder], specs: &[WireSpec], now: Instant) -> bool {
        let mut wanted: Vec<(u64, usize)> = Vec::new();
        for order in new {
            let Some(spec) = specs.get(order.spec) else { continue };
            let Ok(program) = spawn::find_program(order, spec) else { continue };
            let Some(like) = Like::of(order, spec, &program) else { continue };
            let Some(id) = self.standbys.line_like(&like).map(|line| line.id) else { continue };
            let ahead = joins(order, spec).then(|| like.ahead(order, spec));
            if self.standbys.ahead_of(id).any(|(_, its)| ahead.as_ref().is_some_and(|own| its.fits(own))) {
                continue; // it has its own
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

    /// Seats a rank in a standby. `None`: there is none for it, and it is to be started in the usual way.
    pub(super) fn seat_standby(&mut self, order: &WireOrder, spec: &WireSpec, program: &Path) -> Option<Spawned> {
        let like = Like::of(order, spec, program)?;
        let slot = order.env.get("TASKD_LOCAL_RANK").and_then(|index| index.parse().ok());
        let line = self.standbys.line_like(&like).map(|line| (line.id, line.proof.clone()));
        let ahead = joins(order, spec).then(|| like.ahead(order, spec));
        if let Some((line, Some(proof))) = line {
            while let Some(key) = self.standbys.next_of(line, slot, ahead.as_ref()) {
                match self.try_to_seat(key, &like, &proof, order, spec) {
                    Ok(spawned) => {
                        self.counters.standbys_seated += 1;
                        self.standbys
                            .line(line)
                            .into_iter()
                            .for_each(|line| (line.failures, line.ahead_failures) = (0, 0));
                        return Some(spawned);
                    }
                    Err(error) => {
                        self.note(&format!("{}: a standby cannot be it: {error}", order.proc));
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
        let mut told = Packet::new("run").with("threads", &proof.threads);
        for (name, value) in &own.set {
            told = told.with("set", &format!("{name}={value}"));
        }
        told = told.with("set", &format!("TASKD_LIFELINE={}", path.display()));
        told = told.with_all("unset", &own.unset).with_all("argument", &own.arguments);
        let standby = self.standbys.get(key).ok_or_else(gone)?;
        packet::send(&standby.seat, &told, &[])?;
        let Some(mut standby) = self.standbys.remove(key) else { return Err(gone()) };
        self.poll.remove(&standby.seat);
        let (stdout, stderr) = standby.pipes.take().ok_or_else(gone)?;
        Ok(Spawned { pid, start_time, page, page_memory: memory, page_path: path, stdout, stderr })
    }

    /// Makes what is due, and ends what did not answer in time.
    pub(super) fn tend_standbys(&mut self, now: Instant) {
        for key in self.standbys.overdue(now) {
            self.standby_failed(key, "it has not answered in time");
        }
        if !matches!(self.life, Life::Serving | Life::Keeping { .. }) {
            return;
        }
        let due = |line: &Line| line.due.is_some_and(|due| due <= now);
        for id in self.standbys.lines.iter().filter(|line| due(line)).map(|line| line.id).collect::<Vec<_>>() {
            if let Some(line) = self.standbys.line(id) {
                line.due = None;
            }
            if let Err(error) = self.make_what_lacks(id, now) {
                self.line_failed(id, &format!("it cannot be started: {error}"), now);
            }
        }
    }

    /// One step towards a line's standbys: the probe, the template, its children.
    fn make_what_lacks(&mut self, id: u64, now: Instant) -> io::Result<()> {
        let Some(line) = self.standbys.line(id).filter(|line| line.given_up.is_none()) else { return Ok(()) };
        let (is_proven, mode, wanted) = (line.proof.is_some(), line.like.standby.mode, line.wanted());
        let has = |part| self.standbys.of(id).any(|(_, standby)| standby.part == part);
        if !is_proven {
            return if has(Part::Probe) { Ok(()) } else { self.start_standby(id, Part::Probe, now + PROBE_WITHIN) };
        }
        if mode == StandbyMode::PreStarted {
            for slot in (0..).map(|slot| Part::Waiting { slot: Some(slot) }).take(wanted) {
                if !self.standbys.of(id).any(|(_, standby)| standby.part == slot) {
                    self.start_standby(id, slot, now + READY_WITHIN)?;
                }
            }
            return self.run_ahead(id, now);
        }
        let (_, all) = self.standbys.waiting(id);
        match self.standbys.template(id) {
            None if has(Part::Template) => {}
            None => self.start_standby(id, Part::Template, now + READY_WITHIN)?,
            Some((template, false)) if all < wanted => self.fork(template, id, wanted - all, now),
            Some(_) => {}
        }
        self.run_ahead(id, now)
    }

    /// Starts a process that is to wait, and tells it what for.
    fn start_standby(&mut self, id: u64, part: Part, until: Instant) -> io::Result<()> {
        let Some(line) = self.standbys.line(id) else { return Ok(()) };
        let (like, rest, by) = (line.like.clone(), line.rest.clone(), slower_by(line.was_ready));
        let argv = match part {
            Part::Probe => like.standby.probe.clone(),
            _ => like.argv.iter().chain(&rest).cloned().collect(),
        };
        let env = like.environment(&self.config.job.0, part == Part::Template);
        let (seat, theirs) = packet::seat()?;
        let (nice, slower) = (self.ground.nice(like.nice), self.ground.nice(like.nice.saturating_add(by)));
        let nice = if sys::may_undo_nice(nice, slower) { slower } else { nice };
        let started = self.ground.start_waiting(&like, &argv, &env, theirs, nice)?;
        let (pipes, printed) = match part {
            Part::Waiting { .. } => (Some((started.stdout, started.stderr)), None),
            _ => (None, Some(started.stderr)), // it has no use for two
        };
        if !matches!(part, Part::Waiting { .. }) {
            set_autogroup(started.pid, by);
        }
        let output = printed.map(|pipe| {
            let log = self.logs.share(self.run_dir.path().join("standby.log"));
            Stream::new(pipe, log, None).keeping_tail()
        });
        let process = Some((started.pid, started.start_time));
        let is_seat_of =
            Standby { line: id, part, process, seat, output, pipes, is_ready: false, ahead: None, until: Some(until) };
        let key = self.standbys.insert(is_seat_of);
        self.watch_standby(key)?;
        let be = match part {
            Part::Probe => "probe",
            Part::Template => "template",
            Part::Waiting { .. } => "standby",
        };
        let slot = if let Part::Waiting { slot: Some(slot) } = part { slot.to_string() } else { String::new() };
        let hello = Packet::new("hello")
            .with("version", packet::VERSION)
            .with("pid", &started.pid.as_raw_nonzero().to_string())
            .with("guard", &self.ground.parent.as_raw_nonzero().to_string())
            .with("be", be)
            .with("slot", &slot)
            .with("script", like.standby.script.as_deref().unwrap_or_default())
            .with_all("framework", &like.standby.framework)
            .with_all("import", &like.standby.imports);
        self.say_to_standby(key, &hello)
    }

    fn watch_standby(&mut self, key: Key) -> io::Result<()> {
        let Some(standby) = self.standbys.get(key) else { return Ok(()) };
        self.poll.add(&standby.seat, Token::Seat(key))?;
        match standby.output.as_ref().and_then(Stream::pipe) {
            Some(pipe) => self.poll.add(pipe, Token::SeatOutput(key)),
            None => Ok(()),
        }
    }

    fn say_to_standby(&mut self, key: Key, told: &Packet) -> io::Result<()> {
        let Some(standby) = self.standbys.get(key) else { return Ok(()) };
        let sent = packet::send(&standby.seat, told, &[]);
        if sent.is_err() {
            self.discard(key);
        }
        sent
    }

    /// Asks a template for so many more.
    fn fork(&mut self, template: Key, id: u64, count: usize, now: Instant) {
        if let Err(error) = self.try_to_fork(template, id, count.min(FORKS_MAX), now + FORK_WITHIN) {
            self.standby_failed(template, &format!("it cannot be asked to fork: {error}"));
        }
    }

    fn try_to_fork(&mut self, template: Key, id: u64, count: usize, until: Instant) -> io::Result<()> {
        let (mut theirs, mut children) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let ((seat, their_seat), (stdout, their_stdout), (stderr, their_stderr)) =
                (packet::seat()?, spawn::pipe()?, spawn::pipe()?);
            theirs.extend([their_seat, their_stdout, their_stderr]);
            let (part, pipes) = (Part::Waiting { slot: None }, Some((stdout, stderr)));
            let until = Some(until);
            let (process, output, ahead) = (None, None, None);
            children.push(Standby { line: id, part, process, seat, output, pipes, is_ready: false, ahead, until });
        }
        let passed: Vec<_> = theirs.iter().map(std::os::fd::AsFd::as_fd).collect();
        let Some(standby) = self.standbys.get_mut(template) else { return Ok(()) };
        packet::send(&standby.seat, &Packet::new("fork").with("count", &count.to_string()), &passed)?;
        standby.until = Some(until);
        self.standbys.line(id).into_iter().for_each(|line| line.fork_failed = false);
        for child in children {
            let key = self.standbys.insert(child);
            self.watch_standby(key)?;
        }
        Ok(())
    }

    /// A standby has said something, or has ended.
    pub(super) fn hear_standby(&mut self, key: Key) {
        let Some(standby) = self.standbys.get(key) else { return };
        match packet::receive(&standby.seat, &mut self.scratch) {
            Ok(None) => (),
            Ok(Some(told)) => {
                if let Err(why) = self.take_word(key, &told) {
                    self.standby_failed(key, &why);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.standby_failed(key, "it has ended"),
            Err(error) => self.standby_failed(key, &error.to_string()),
        }
    }

    fn take_word(&mut self, key: Key, told: &Packet) -> Result<(), String> {
        let Some(standby) = self.standbys.get_mut(key) else { return Ok(()) };
        let (id, part, process, now) = (standby.line, standby.part, standby.process, Instant::now());
        match (part, told.kind.as_str()) {
            // What it says of itself the next one would say too; a template's child may only have met a busy moment.
            (Part::Probe | Part::Template | Part::Waiting { slot: Some(_) }, "refused") if standby.ahead.is_none() => {
                let why = told.one("why").to_owned();
                self.discard(key);
                self.give_up(id, &why);
                return Ok(());
            }
            (Part::Probe, "here") => {
                let executable = process.and_then(|(pid, _)| executable_of(pid)).ok_or("it has ended")?;
                self.discard(key);
                let Some(line) = self.standbys.line(id) else { return Ok(()) };
                line.proof = Some(Proof { threads: told.one("threads").to_owned(), executable });
                line.look_by(now);
            }
            (Part::Template | Part::Waiting { slot: Some(_) }, "ready") if !standby.is_ready => {
                (standby.is_ready, standby.until) = (true, None);
                let missing = told.one("missing").to_owned();
                let Some(line) = self.standbys.line(id) else { return Ok(()) };
                line.was_ready = true;
                line.look_by(now);
                self.have_priority_back(id, process)?;
                match &*missing {
                    "" => self.note("a standby is ready"),
                    missing => self.note(&format!("a standby is ready, but for: {missing}")),
                }
            }
            (Part::Waiting { .. }, "parked") if standby.ahead.is_some() && !standby.is_ready => {
                let at: String = told.one("at").chars().take(200).collect();
                return self.has_parked(key, &at, &told.one("asked").split(',').collect::<Vec<_>>());
            }
            (_, "refused") => return Err(told.one("why").to_owned()),
            (Part::Template, "forked") => {
                standby.until = None;
                self.standbys.line(id).into_iter().for_each(|line| line.look_by(now)); // more may be wanted by now
            }
            (Part::Waiting { slot: None }, "unseated") if process.is_none() => {
                let found = self.verified(id, told.one("pid"))?;
                if let Some(standby) = self.standbys.get_mut(key) {
                    (standby.process, standby.is_ready, standby.until) = (Some(found), true, None);
                }
                self.standbys.line(id).into_iter().for_each(|line| line.look_by(now));
            }
            (_, kind) => {
                return Err(format!("it says {:?}, which nobody has asked", kind.chars().take(40).collect::<String>()));
            }
        }
        Ok(())
    }

    /// What was made or run at low priority goes on as a rank would.
    pub(super) fn have_priority_back(&mut self, line: u64, process: Option<(Pid, u64)>) -> Result<(), String> {
        let (Some((pid, _)), Some(line)) = (process, self.standbys.line(line)) else { return Ok(()) };
        let nice = line.like.nice;
        set_autogroup(pid, 0);
        let done = sys::schedule_process(pid, self.ground.nice(nice));
        done.map_err(|e| format!("it cannot have its priority back: {e}"))
    }

    /// The process that says that a template has forked it, if it is what it has to be.
    fn verified(&self, id: u64, pid: &str) -> Result<(Pid, u64), String> {
        let number: i32 = pid.parse().map_err(|_| "a child has no pid")?;
        let pid =
            Pid::from_raw(number).filter(|pid| number > 1 && *pid != self.ground.parent).ok_or("a child has no pid")?;
        let is_known = self.procs.running_with(pid).is_some() || self.standbys.with(pid).is_some();
        let stat = Stat::read(pid).filter(|_| !is_known).ok_or("a child has no process of its own")?;
        let guard = self.ground.parent.as_raw_nonzero().get();
        if (stat.parent, stat.session, stat.group) != (guard, number, number) {
            return Err(format!("process {number} is not a child of the guard in a session of its own"));
        }
        let line = self.standbys.lines.iter().find(|line| line.id == id);
        let executable = line.and_then(|line| line.proof.as_ref()).map(|proof| &proof.executable);
        if executable_of(pid).as_ref() != executable {
            return Err(format!("process {number} runs another program"));
        }
        Ok((pid, stat.start_time))
    }

    /// A process has been found to have ended that is no rank.
    pub(super) fn standby_ended(&mut self, pid: Pid, how: Termination) {
        if let Some(key) = self.standbys.with(pid) {
            self.hear_standby(key); // it may have said why
            if self.standbys.get(key).is_some() {
                self.standby_failed(key, &format!("it has ended: {how}"));
            }
        }
    }

    pub(super) fn drain_standby(&mut self, key: Key) {
        if let Some(output) = self.standbys.get_mut(key).and_then(|standby| standby.output.as_mut()) {
            output.drain(TURN_BYTES_MAX, &self.poll, &self.logs, &mut self.scratch);
        }
    }

    /// A standby has not done what it should. Its line tries again, a few times.
    fn standby_failed(&mut self, key: Key, why: &str) {
        let Some(standby) = self.standbys.get_mut(key) else { return };
        let (id, part, ran_ahead) = (standby.line, standby.part, standby.ahead.is_some());
        if let Some(output) = &mut standby.output {
            output.drain(LAST_BYTES_MAX, &self.poll, &self.logs, &mut self.scratch);
        }
        let printed = standby.output.as_ref().map(Stream::tail_text).unwrap_or_default();
        let last = printed.lines().next_back().map(|line| format!(" ({line})")).unwrap_or_default();
        self.discard(key);
        if ran_ahead {
            return self.ahead_failed(id, why, Instant::now());
        }
        if part == Part::Template {
            for child in self.standbys.keys_of(id) {
                if self.standbys.get(child).is_some_and(|standby| !standby.is_ready) {
                    self.discard(child); // it may never come
                }
            }
        }
        let what = match part {
            Part::Probe => "the interpreter does not wait for a rank where it should (is it a Python of 3.8 or later?)",
            Part::Template => "a template has failed",
            Part::Waiting { .. } => "a standby has failed",
        };
        let why = format!("{what}: {why}{last}");
        let is_child = matches!(part, Part::Waiting { slot: None });
        let line = self.standbys.line(id).filter(|_| is_child);
        if line.is_some_and(|line| std::mem::replace(&mut line.fork_failed, true)) {
            return self.note(&why); // what befalls one child befalls its siblings: it counts once
        }
        self.line_failed(id, &why, Instant::now());
    }

    fn line_failed(&mut self, id: u64, why: &str, now: Instant) {
        let Some(line) = self.standbys.line(id) else { return };
        line.failures += 1;
        if line.failures >= TRIES_MAX {
            return self.give_up(id, why);
        }
        line.look_by(now + AGAIN_AFTER * 2u32.saturating_pow(line.failures - 1));
        self.note(why);
    }

    /// Nothing more is made for this line: ranks like it are started in the usual way.
    fn give_up(&mut self, id: u64, why: &str) {
        let Some(line) = self.standbys.line(id).filter(|line| line.given_up.is_none()) else { return };
        line.given_up = Some(why.to_owned());
        let what = line.like.argv.join(" ");
        let template = self.standbys.of(id).find(|(_, standby)| standby.part == Part::Template).map(|(key, _)| key);
        template.into_iter().for_each(|template| self.discard(template));
        self.notice(&format!("no standbys for {what}, its ranks are started in the usual way: {why}"));
    }

    fn drop_line(&mut self, line: &Line, why: &str) {
        let keys = self.standbys.keys_of(line.id);
        if !keys.is_empty() {
            self.note(&format!("{} standbys for {} are ended: {why}", keys.len(), line.like.argv.join(" ")));
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
    }
}

/// Where the kernel shares processors among sessions first, a nice value matters within one only: a session has its own, which
/// needs no privilege. What a template forks is in sessions of their own.
pub(super) fn set_autogroup(pid: Pid, nice: u8) {
    let _ = std::fs::write(format!("/proc/{}/autogroup", pid.as_raw_nonzero()), nice.to_string()); // a kernel without has none
}

/// The file that a process executes.
fn executable_of(pid: Pid) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}
