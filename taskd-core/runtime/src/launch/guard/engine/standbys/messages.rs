//! Messages and ends of standbys, and their effect on the line of interchangeable standbys to which the standby
//! belongs.
//!
//! The messages are not trusted: the identity of a child is verified in `/proc`.

use super::set_autogroup;
use crate::job::Termination;
use crate::launch::guard::engine::Engine;
use crate::launch::guard::procs::Key;
use crate::launch::guard::standby::packet::{self, Packet};
use crate::launch::guard::standby::{Part, Proof, TRIES_MAX};
use crate::launch::guard::streams::{LAST_BYTES_MAX, Stream, TURN_BYTES_MAX};
use crate::launch::guard::sys;
use crate::proc_fs::Stat;
use rustix::process::Pid;
use std::io;
use std::time::{Duration, Instant};

/// Delay before another attempt after a failure; it doubles with each failure.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Engine {
    /// Handles a message of a standby, or its end.
    pub(in crate::launch::guard::engine) fn read_standby(&mut self, key: Key) {
        let Some(standby) = self.standbys.get(key) else { return };
        match packet::receive(&standby.seat, &mut self.scratch) {
            Ok(None) => (),
            Ok(Some(packet)) => {
                if let Err(why) = self.take_word(key, &packet) {
                    self.standby_failed(key, &why);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.standby_failed(key, "it has ended"),
            Err(error) => self.standby_failed(key, &error.to_string()),
        }
    }

    fn take_word(&mut self, key: Key, packet: &Packet) -> Result<(), String> {
        let Some(standby) = self.standbys.get_mut(key) else { return Ok(()) };
        let (id, part, process, now) = (standby.line, standby.part, standby.process, Instant::now());
        match (part, packet.kind.as_str()) {
            // A probe, template or separate standby would refuse again; a template's child may only have met a
            // temporary shortage.
            (Part::Probe | Part::Template | Part::Waiting { slot: Some(_) }, "refused") if standby.ahead.is_none() => {
                let why = packet.one("why").to_owned();
                self.discard(key);
                self.give_up(id, &why);
                return Ok(());
            }
            (Part::Probe, "here") => {
                let executable = process.and_then(|(pid, _)| executable_of(pid)).ok_or("it has ended")?;
                self.discard(key);
                let Some(line) = self.standbys.line(id) else { return Ok(()) };
                line.proof = Some(Proof { threads: packet.one("threads").to_owned(), executable });
                line.look_by(now);
            }
            (Part::Template | Part::Waiting { slot: Some(_) }, "ready") if !standby.is_ready => {
                (standby.is_ready, standby.until) = (true, None);
                let missing = packet.one("missing").to_owned();
                let Some(line) = self.standbys.line(id) else { return Ok(()) };
                line.was_ready = true;
                line.look_by(now);
                self.have_priority_back(id, process)?;
                match &*missing {
                    "" => self.note("a standby is ready"),
                    missing => self.note(&format!("a standby is ready, except for: {missing}")),
                }
            }
            (Part::Waiting { .. }, "parked") if standby.ahead.is_some() && !standby.is_ready => {
                let at: String = packet.one("at").chars().take(200).collect();
                return self.has_parked(key, &at, &packet.one("asked").split(',').collect::<Vec<_>>());
            }
            (_, "refused") => return Err(packet.one("why").to_owned()),
            (Part::Template, "forked") => {
                standby.until = None;
                self.standbys.line(id).into_iter().for_each(|line| line.look_by(now)); // more may be wanted by now
            }
            (Part::Waiting { slot: None }, "unseated") if process.is_none() => {
                let found = self.verified(id, packet.one("pid"))?;
                let cgroup = self.cgroup_of_standby(found, id);
                if let Some(standby) = self.standbys.get_mut(key) {
                    (standby.process, standby.is_ready, standby.until) = (Some(found), true, None);
                    standby.cgroup = cgroup;
                }
                self.standbys.line(id).into_iter().for_each(|line| line.look_by(now));
            }
            (_, kind) => {
                return Err(format!("it sent an unexpected {:?}", kind.chars().take(40).collect::<String>()));
            }
        }
        Ok(())
    }

    /// Restores the normal priority of a standby that was made or run at low priority.
    pub(in crate::launch::guard::engine) fn have_priority_back(
        &mut self,
        line: u64,
        process: Option<(Pid, u64)>,
    ) -> Result<(), String> {
        let (Some((pid, _)), Some(line)) = (process, self.standbys.line(line)) else { return Ok(()) };
        let nice = line.like.nice;
        set_autogroup(pid, 0);
        let done = sys::schedule_process(pid, self.ground.nice(nice));
        done.map_err(|e| format!("its priority cannot be restored: {e}"))
    }

    /// Returns the process that the template reports as its child, after verifying it.
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

    /// Handles the end of a process that is not a rank.
    pub(in crate::launch::guard::engine) fn standby_ended(&mut self, pid: Pid, how: Termination) {
        if let Some(key) = self.standbys.with(pid) {
            self.read_standby(key); // it may have sent the reason
            if self.standbys.get(key).is_some() {
                self.standby_failed(key, &format!("it has ended: {how}"));
            }
        }
    }

    pub(in crate::launch::guard::engine) fn drain_standby(&mut self, key: Key) {
        if let Some(output) = self.standbys.get_mut(key).and_then(|standby| standby.output.as_mut()) {
            output.drain(TURN_BYTES_MAX, &self.poll, &self.logs, &mut self.scratch);
        }
    }

    /// Discards a standby that has failed. Its line makes another attempt, up to [`TRIES_MAX`] failures in a row.
    pub(super) fn standby_failed(&mut self, key: Key, why: &str) {
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
            Part::Probe => "the interpreter does not answer as a standby (is it Python 3.8 or later?)",
            Part::Template => "a template has failed",
            Part::Waiting { .. } => "a standby has failed",
        };
        let why = format!("{what}: {why}{last}");
        let is_child = matches!(part, Part::Waiting { slot: None });
        let asked_for = self.standbys.next_key();
        if let Some(line) = self.standbys.line(id).filter(|_| is_child) {
            if key < line.counted_until {
                return self.note(&why); // siblings fail for the same reason: they count once
            }
            line.counted_until = asked_for;
        }
        self.line_failed(id, &why, Instant::now());
    }

    pub(super) fn line_failed(&mut self, id: u64, why: &str, now: Instant) {
        let Some(line) = self.standbys.line(id) else { return };
        line.failures += 1;
        if line.failures >= TRIES_MAX {
            return self.give_up(id, why);
        }
        line.look_by(now + AGAIN_AFTER * 2u32.saturating_pow(line.failures - 1));
        self.note(why);
    }

    /// Abandons a line: its ranks are started in the usual way from now on.
    fn give_up(&mut self, id: u64, why: &str) {
        let Some(line) = self.standbys.line(id).filter(|line| line.given_up.is_none()) else { return };
        line.given_up = Some(why.to_owned());
        let what = line.like.command();
        let template = self.standbys.of(id).find(|(_, standby)| standby.part == Part::Template).map(|(key, _)| key);
        template.into_iter().for_each(|template| self.discard(template));
        self.notice(&format!("no standbys for {what}, its ranks are started in the usual way: {why}"));
    }
}

/// Returns the path of the program that a process executes.
fn executable_of(pid: Pid) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}
