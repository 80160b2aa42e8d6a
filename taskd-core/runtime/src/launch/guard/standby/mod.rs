//! The guard's table of standbys: processes that wait to be assigned a rank.
//!
//! Interchangeable standbys form a *line*: they have the same program, arguments, environment and directory, so that a
//! rank with the same ones can be assigned to any of them. This module is bookkeeping only: it starts and signals no
//! process and reads no clock.

pub(super) mod packet;
mod template_key;

pub(super) use template_key::{Ahead, Like};

use super::proc_cgroups::ProcCgroup;
use super::procs::Key;
use super::streams::Stream;
use crate::job::Role;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum number of lines. A process that matches none of them is started in the usual way.
pub(super) const LINES_MAX: usize = 4;
/// Maximum number of waiting standbys per line.
pub(super) const AHEAD_MAX: usize = 64;
/// Number of failures in a row after which a line is abandoned.
pub(super) const TRIES_MAX: u32 = 3;

/// Purpose of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The process tests that this interpreter can act as a standby at all.
    Probe,
    /// The process forks the other standbys.
    Template,
    /// The process waits for a rank: a child of the template, or a separately started process for the local rank
    /// `slot`.
    Waiting { slot: Option<u32> },
}

/// One standby process.
#[derive(Debug)]
pub(super) struct Standby {
    pub(super) line: u64,
    pub(super) part: Part,
    /// Pid and start time; `None` while a requested fork of the template has not reported yet.
    pub(super) process: Option<(Pid, u64)>,
    /// Control group of the standby and its descendants, for a standby that can be assigned a rank.
    pub(super) cgroup: ProcCgroup,
    /// The guard's end of the socket over which the standby is assigned its rank.
    pub(super) seat: OwnedFd,
    /// Output before the assignment, for a standby whose output is not that of a rank.
    pub(super) output: Option<Stream>,
    /// The reading ends of the future rank's output pipes.
    pub(super) pipes: Option<(OwnedFd, OwnedFd)>,
    pub(super) is_ready: bool,
    /// Arguments and environment of a pre-warmed standby, which runs the program before it has a rank. It is ready once
    /// the script has reached its first rank-dependent call.
    pub(super) ahead: Option<Ahead>,
    /// Deadline of its answer.
    pub(super) until: Option<Instant>,
}

impl Standby {
    /// Returns true if the standby can become any rank, now or later: it runs nothing of the program yet.
    const fn waits(&self) -> bool {
        matches!(self.part, Part::Waiting { .. }) && self.ahead.is_none()
    }

    /// Returns true if the standby can be assigned a rank now: all that the rank starts will be in its control group.
    fn can_be_seated(&self) -> bool {
        self.is_ready && self.cgroup.is_settled()
    }
}

/// A group of interchangeable standbys.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: u64,
    pub(super) like: Like,
    /// Arguments that differ from rank to rank, as the line's first rank has them.
    pub(super) rest: Vec<String>,
    /// Arguments and environment for the next pre-warmed standby.
    pub(super) ahead: Option<Ahead>,
    /// Failures of pre-warmed standbys since the last assignment.
    pub(super) ahead_failures: u32,
    /// Interval of the check whether a rank has entered a step loop, since no standby is pre-warmed until one has.
    pub(super) look_again: Duration,
    /// True if a process of this line is known to have been in a step loop, on another host or under an earlier guard.
    pub(super) in_loop: bool,
    /// Roles whose last start matched this line.
    pub(super) users: BTreeSet<Role>,
    /// Result of the probe; `None` until it has answered.
    pub(super) proof: Option<Proof>,
    /// True once any standby was ready, and once any was pre-warmed. Until then a lost rank costs a usual start.
    pub(super) was_ready: bool,
    pub(super) was_ahead: bool,
    /// Time of the next work on this line.
    pub(super) due: Option<Instant>,
    /// Failures since the last assignment.
    pub(super) failures: u32,
    /// Children requested before this key belong to a failure that has been counted already.
    pub(super) counted_until: Key,
    /// Reason why no more standbys are made.
    pub(super) given_up: Option<String>,
}

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    /// Number of compute threads of a rank whose environment does not set it; empty if the environment does.
    pub(super) threads: String,
    /// The file that the process really executes; the configured program may be a wrapper script.
    pub(super) executable: PathBuf,
}

/// All standbys.
#[derive(Debug, Default)]
pub(super) struct Standbys {
    pub(super) lines: Vec<Line>,
    all: BTreeMap<Key, Standby>,
    next_key: Key,
    next_line: u64,
    /// The connection of the owner to which the number of ready standbys was reported last, and the number.
    pub(super) reported: Option<(Key, u32)>,
}

impl Line {
    /// Number of standbys that should wait.
    pub(super) fn wanted(&self) -> usize {
        self.like.standby.ahead.map_or(self.users.len(), |ahead| ahead as usize).min(AHEAD_MAX)
    }

    /// Number of pre-warmed standbys to keep. On a host without running ranks (`is_idle`) at least one per rank, since
    /// all of them may move there at once.
    pub(super) fn wanted_ahead(&self, is_idle: bool) -> usize {
        let asked = self.like.standby.parked as usize;
        if is_idle { asked.max(self.users.len()).min(AHEAD_MAX) } else { asked.min(AHEAD_MAX) }
    }

    /// Schedules work on this line at `at` or earlier.
    pub(super) fn look_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl Standbys {
    pub(super) fn insert(&mut self, standby: Standby) -> Key {
        let key = self.next_key;
        self.next_key += 1;
        self.all.insert(key, standby);
        key
    }

    /// Key of the next standby. All earlier requests have smaller keys.
    pub(super) const fn next_key(&self) -> Key {
        self.next_key
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Standby> {
        self.all.get_mut(&key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Standby> {
        self.all.get(&key)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Standby> {
        self.all.remove(&key)
    }

    pub(super) fn line(&mut self, id: u64) -> Option<&mut Line> {
        self.lines.iter_mut().find(|line| line.id == id)
    }

    pub(super) fn line_like(&self, like: &Like) -> Option<&Line> {
        self.lines.iter().find(|line| line.like == *like)
    }

    /// Iterates over the standbys of a line.
    pub(super) fn of(&self, line: u64) -> impl Iterator<Item = (Key, &Standby)> {
        self.all.iter().filter(move |(_, standby)| standby.line == line).map(|(key, standby)| (*key, standby))
    }

    pub(super) fn keys_of(&self, line: u64) -> Vec<Key> {
        self.of(line).map(|(key, _)| key).collect()
    }

    /// Returns the standby with this pid that has not been reaped.
    pub(super) fn with(&self, pid: Pid) -> Option<Key> {
        let found = self.all.iter().find(|(_, standby)| standby.process.is_some_and(|(its, _)| its == pid));
        found.map(|(key, _)| *key)
    }

    /// Returns the ready template of a line, and true if a request to it is pending.
    pub(super) fn template(&self, line: u64) -> Option<(Key, bool)> {
        let up = self.of(line).find(|(_, standby)| standby.part == Part::Template && standby.is_ready);
        up.map(|(key, standby)| (key, standby.until.is_some()))
    }

    /// Returns how many standbys of a line can be assigned to any rank now, and how many there will be.
    pub(super) fn waiting(&self, line: u64) -> (usize, usize) {
        let waiting = || self.of(line).filter(|(_, standby)| standby.waits());
        (waiting().filter(|(_, standby)| standby.can_be_seated()).count(), waiting().count())
    }

    /// Returns how many standbys of all lines can be assigned to any rank now.
    pub(super) fn ready(&self) -> usize {
        self.lines.iter().map(|line| self.waiting(line.id).0).sum()
    }

    /// Chooses the next standby of a line: for a rank that joins a running world (`ahead`) a matching pre-warmed one;
    /// otherwise the first ready one in key order, which is for this local rank or for any.
    pub(super) fn next_of(&self, line: u64, slot: Option<u32>, ahead: Option<&Ahead>) -> Option<Key> {
        let ready = || self.of(line).filter(|(_, standby)| standby.can_be_seated() && fits(standby.part, slot));
        let has_run =
            ready().find(|(_, standby)| standby.ahead.as_ref().zip(ahead).is_some_and(|(its, own)| its.fits(own)));
        has_run.or_else(|| ready().find(|(_, standby)| standby.ahead.is_none())).map(|(key, _)| key)
    }

    /// Returns a standby of a line that can be assigned to any rank now.
    pub(super) fn any_of(&self, line: u64) -> Option<Key> {
        self.of(line).find(|(_, standby)| standby.can_be_seated() && standby.waits()).map(|(key, _)| key)
    }

    /// Returns how many pre-warmed standbys of all lines are ready.
    pub(super) fn parked(&self) -> usize {
        self.all.values().filter(|standby| standby.ahead.is_some() && standby.is_ready).count()
    }

    /// Iterates over the pre-warmed standbys of a line, ready or not.
    pub(super) fn ahead_of(&self, line: u64) -> impl Iterator<Item = (Key, &Ahead)> {
        self.of(line).filter_map(|(key, standby)| Some((key, standby.ahead.as_ref()?)))
    }

    /// Records a start: from now on this role belongs to that line and to no other.
    ///
    /// Returns the lines that no role uses any more, already removed from the table; and false if there is no room for
    /// the new line.
    pub(super) fn use_line(&mut self, role: &Role, like: Like, rest: &[String], due: Instant) -> (Vec<Line>, bool) {
        for line in &mut self.lines {
            if line.like == like {
                line.users.insert(role.clone());
            } else {
                line.users.remove(role);
            }
        }
        let (kept, unused) = std::mem::take(&mut self.lines).into_iter().partition(|line| !line.users.is_empty());
        self.lines = kept;
        if self.line_like(&like).is_some() {
            return (unused, true);
        }
        if self.lines.len() >= LINES_MAX {
            return (unused, false);
        }
        self.lines.push(Line {
            id: self.next_line,
            like,
            rest: rest.to_vec(),
            ahead: None,
            ahead_failures: 0,
            look_again: Duration::ZERO,
            in_loop: false,
            users: BTreeSet::from([role.clone()]),
            proof: None,
            was_ready: false,
            was_ahead: false,
            due: Some(due),
            failures: 0,
            counted_until: 0,
            given_up: None,
        });
        self.next_line += 1;
        (unused, true)
    }

    /// Removes all lines and returns the keys of all standbys.
    pub(super) fn take_all(&mut self) -> Vec<Key> {
        self.lines.clear();
        self.all.keys().copied().collect()
    }

    /// Returns the standbys that have missed their deadline.
    pub(super) fn overdue(&self, now: Instant) -> Vec<Key> {
        let late = |standby: &Standby| standby.until.is_some_and(|until| until <= now);
        self.all.iter().filter(|(_, standby)| late(standby)).map(|(key, _)| *key).collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let answers = self.all.values().filter_map(|standby| standby.until);
        answers.chain(self.lines.iter().filter_map(|line| line.due)).min()
    }
}

/// Returns true if the standby suits the local rank `slot`: one that holds a device suits that local rank only.
fn fits(part: Part, slot: Option<u32>) -> bool {
    match part {
        Part::Waiting { slot: None } => true,
        Part::Waiting { slot: own } => own == slot,
        Part::Probe | Part::Template => false,
    }
}
