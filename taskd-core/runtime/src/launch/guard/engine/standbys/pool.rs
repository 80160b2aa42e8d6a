//! Making of standbys: first a probe, then a template that forks them, or one separate process each.
//!
//! This module assigns no rank, and never blocks on a standby.

use super::{set_autogroup, slower_by};
use crate::launch::guard::engine::{Engine, Life};
use crate::launch::guard::poll::Token;
use crate::launch::guard::proc_cgroups::ProcCgroup;
use crate::launch::guard::procs::Key;
use crate::launch::guard::spawn;
use crate::launch::guard::standby::packet::{self, FORKS_MAX, Packet};
use crate::launch::guard::standby::{Line, Part, Standby};
use crate::launch::guard::streams::Stream;
use crate::launch::guard::sys;
use crate::launch::guard::wire::StandbyMode;
use std::io;
use std::time::{Duration, Instant};

/// Time limit for a probe's answer.
const PROBE_WITHIN: Duration = Duration::from_secs(120);
/// Time limit for a template or standby to import everything and take its trial step, at low priority.
const READY_WITHIN: Duration = Duration::from_secs(900);
/// Time limit for a template to fork, and for its children to be ready.
const FORK_WITHIN: Duration = Duration::from_secs(5);

impl Engine {
    /// Makes the standbys that are due, and discards those that did not answer in time.
    pub(in crate::launch::guard::engine) fn tend_standbys(&mut self, now: Instant) {
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

    /// Takes the next step towards a line's standbys: the probe, the template, its children.
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

    /// Starts a process that will wait, and sends it its purpose.
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
            _ => (None, Some(started.stderr)), // stdout is not needed
        };
        if !matches!(part, Part::Waiting { .. }) {
            set_autogroup(started.pid, by);
        }
        let output = printed.map(|pipe| {
            let log = self.logs.share(self.run_dir.path().join("standby.log"));
            Stream::new(pipe, log, None).keeping_tail()
        });
        let process = Some((started.pid, started.start_time));
        let cgroup = match part {
            Part::Waiting { .. } => self.cgroup_of_standby((started.pid, started.start_time), id),
            Part::Probe | Part::Template => ProcCgroup::default(),
        };
        let (is_ready, ahead, until) = (false, None, Some(until));
        let is_seat_of = Standby { line: id, part, process, cgroup, seat, output, pipes, is_ready, ahead, until };
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

    fn say_to_standby(&mut self, key: Key, message: &Packet) -> io::Result<()> {
        let Some(standby) = self.standbys.get(key) else { return Ok(()) };
        let sent = packet::send(&standby.seat, message, &[]);
        if sent.is_err() {
            self.discard(key);
        }
        sent
    }

    /// Requests `count` more children from a template.
    pub(super) fn fork(&mut self, template: Key, id: u64, count: usize, now: Instant) {
        if let Err(error) = self.try_to_fork(template, id, count.min(FORKS_MAX), now + FORK_WITHIN) {
            self.standby_failed(template, &format!("the request to fork cannot be sent: {error}"));
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
            let (process, output, ahead, cgroup) = (None, None, None, ProcCgroup::default());
            children.push(Standby {
                line: id,
                part,
                process,
                cgroup,
                seat,
                output,
                pipes,
                is_ready: false,
                ahead,
                until,
            });
        }
        let passed: Vec<_> = theirs.iter().map(std::os::fd::AsFd::as_fd).collect();
        let Some(standby) = self.standbys.get_mut(template) else { return Ok(()) };
        packet::send(&standby.seat, &Packet::new("fork").with("count", &count.to_string()), &passed)?;
        standby.until = Some(until);
        for child in children {
            let key = self.standbys.insert(child);
            self.watch_standby(key)?;
        }
        Ok(())
    }
}
