//! The guard's book of standbys: processes that wait to be told which rank they are.
//!
//! Those that are alike are one *line*: the same program, arguments, environment and directory, so that a rank of the same
//! can be *seated* in any of them. Plain bookkeeping: it starts nothing, signals nobody and reads no clock.

mod like;
pub(super) mod packet;

pub(super) use like::{Ahead, Like};

use super::proc_cgroups::ProcCgroup;
use super::procs::Key;
use super::streams::Stream;
use crate::job::Role;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Most lines at once. Who is like none of them is started in the usual way.
pub(super) const LINES_MAX: usize = 4;
/// Most standbys of a line that wait at once.
pub(super) const AHEAD_MAX: usize = 64;
/// How often in a row a line may fail before it is given up.
pub(super) const TRIES_MAX: u32 = 3;

/// What a standby is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Shows that this interpreter can wait at all.
    Probe,
    /// Forks others.
    Template,
    /// Waits for a rank: a template's child, or one of its own with this number.
    Waiting { slot: Option<u32> },
}

/// One process.
#[derive(Debug)]
pub(super) struct Standby {
    pub(super) line: u64,
    pub(super) part: Part,
    /// `None`: a template was asked to fork it, and it has not come yet.
    pub(super) process: Option<(Pid, u64)>,
    /// Its control group, with all that it starts: of one that a rank can be seated in.
    pub(super) cgroup: ProcCgroup,
    /// Our end of its seat.
    pub(super) seat: OwnedFd,
    /// What it prints before it is seated, of those whose output is no rank's.
    pub(super) output: Option<Stream>,
    /// The reading ends of what will be a rank's output.
    pub(super) pipes: Option<(OwnedFd, OwnedFd)>,
    pub(super) is_ready: bool,
    /// What it runs the program with ahead of its rank, if it does: ready it is where it has come as far as it can.
    pub(super) ahead: Option<Ahead>,
    /// When it must have answered.
    pub(super) until: Option<Instant>,
}

impl Standby {
    /// Whether it is, or will be, one that can be any rank: it runs nothing of the program yet.
    const fn waits(&self) -> bool {
        matches!(self.part, Part::Waiting { .. }) && self.ahead.is_none()
    }
}

/// Standbys that are alike.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: u64,
    pub(super) like: Like,
    /// Arguments that are each rank's own: the first one's.
    pub(super) rest: Vec<String>,
    /// What the next one that runs ahead of its rank is to go by.
    pub(super) ahead: Option<Ahead>,
    /// How many of them have failed since the last one that was seated.
    pub(super) ahead_failures: u32,
    /// After how long it is looked again whether ranks have come to a step loop, without which nothing is run ahead.
    pub(super) look_again: Duration,
    /// Whether such a process is known to have been in a step loop, elsewhere or under an earlier guard.
    pub(super) in_loop: bool,
    /// Who was started last as one of these.
    pub(super) users: BTreeSet<Role>,
    /// What the probe has found; `None` before it.
    pub(super) proof: Option<Proof>,
    /// Whether one was ready, and whether one had run ahead, ever: until then a lost rank costs a usual start.
    pub(super) was_ready: bool,
    pub(super) was_ahead: bool,
    /// When there is something to be made.
    pub(super) due: Option<Instant>,
    /// Failures since the last one that was seated.
    pub(super) failures: u32,
    /// Children that were asked for before this one: of those one has failed, which was counted.
    pub(super) counted_until: Key,
    /// Why nothing more is made.
    pub(super) given_up: Option<String>,
}

/// What a probe has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    /// How many threads a rank computes with where its environment does not say; empty where it does.
    pub(super) threads: String,
    /// The file that the process really executes: what is started may be a script in front of it.
    pub(super) executable: PathBuf,
}

/// All standbys.
#[derive(Debug, Default)]
pub(super) struct Standbys {
    pub(super) lines: Vec<Line>,
    all: BTreeMap<Key, Standby>,
    next_key: Key,
    next_line: u64,
}

impl Line {
    /// How many are to wait.
    pub(super) fn wanted(&self) -> usize {
        self.like.standby.ahead.map_or(self.users.len(), |ahead| ahead as usize).min(AHEAD_MAX)
    }

    /// How many are to run the program ahead of their rank, where ranks of it run or where none does: there all may come at once.
    pub(super) fn wanted_ahead(&self, is_idle: bool) -> usize {
        let asked = self.like.standby.parked as usize;
        if is_idle { asked.max(self.users.len()).min(AHEAD_MAX) } else { asked.min(AHEAD_MAX) }
    }

    /// Makes sure that somebody looks at it by then.
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

    /// The one that the next standby gets: all that were asked for so far have smaller ones.
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

    /// All of a line.
    pub(super) fn of(&self, line: u64) -> impl Iterator<Item = (Key, &Standby)> {
        self.all.iter().filter(move |(_, standby)| standby.line == line).map(|(key, standby)| (*key, standby))
    }

    pub(super) fn keys_of(&self, line: u64) -> Vec<Key> {
        self.of(line).map(|(key, _)| key).collect()
    }

    /// The one with this pid that has not been reaped.
    pub(super) fn with(&self, pid: Pid) -> Option<Key> {
        let found = self.all.iter().find(|(_, standby)| standby.process.is_some_and(|(its, _)| its == pid));
        found.map(|(key, _)| *key)
    }

    /// The template of a line that can be asked, and whether it has been.
    pub(super) fn template(&self, line: u64) -> Option<(Key, bool)> {
        let up = self.of(line).find(|(_, standby)| standby.part == Part::Template && standby.is_ready);
        up.map(|(key, standby)| (key, standby.until.is_some()))
    }

    /// How many of a line can be seated now as any rank, and how many there will be.
    pub(super) fn waiting(&self, line: u64) -> (usize, usize) {
        let waiting = || self.of(line).filter(|(_, standby)| standby.waits());
        (waiting().filter(|(_, standby)| standby.is_ready).count(), waiting().count())
    }

    /// How many can be seated now, of all lines.
    pub(super) fn ready(&self) -> usize {
        self.lines.iter().map(|line| self.waiting(line.id).0).sum()
    }

    /// Who of a line is seated next: for a rank that joins others (`ahead`) one that has run ahead with the same, else the one
    /// with this number, if there is one, else the one that has waited longest.
    pub(super) fn next_of(&self, line: u64, slot: Option<u32>, ahead: Option<&Ahead>) -> Option<Key> {
        let ready = || self.of(line).filter(|(_, standby)| standby.is_ready && fits(standby.part, slot));
        let has_run =
            ready().find(|(_, standby)| standby.ahead.as_ref().zip(ahead).is_some_and(|(its, own)| its.fits(own)));
        has_run.or_else(|| ready().find(|(_, standby)| standby.ahead.is_none())).map(|(key, _)| key)
    }

    /// One of a line that waits and can be seated now.
    pub(super) fn any_of(&self, line: u64) -> Option<Key> {
        self.of(line).find(|(_, standby)| standby.is_ready && standby.waits()).map(|(key, _)| key)
    }

    /// How many of all lines have run ahead of their ranks as far as they can.
    pub(super) fn parked(&self) -> usize {
        self.all.values().filter(|standby| standby.ahead.is_some() && standby.is_ready).count()
    }

    /// Those of a line that run ahead, or have run ahead, of their ranks.
    pub(super) fn ahead_of(&self, line: u64) -> impl Iterator<Item = (Key, &Ahead)> {
        self.of(line).filter_map(|(key, standby)| Some((key, standby.ahead.as_ref()?)))
    }

    /// Takes a start into account: from now on this role is one of that line and of no other.
    ///
    /// Returns the lines that nobody is like any more, which are not in the book any more; and false where there is no room.
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

    /// Nothing is to wait any more.
    pub(super) fn take_all(&mut self) -> Vec<Key> {
        self.lines.clear();
        self.all.keys().copied().collect()
    }

    /// Those that have not answered in time.
    pub(super) fn overdue(&self, now: Instant) -> Vec<Key> {
        let late = |standby: &Standby| standby.until.is_some_and(|until| until <= now);
        self.all.iter().filter(|(_, standby)| late(standby)).map(|(key, _)| *key).collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let answers = self.all.values().filter_map(|standby| standby.until);
        answers.chain(self.lines.iter().filter_map(|line| line.due)).min()
    }
}

/// Whether it is for the rank of this number on its host: one that holds a device is for no other.
fn fits(part: Part, slot: Option<u32>) -> bool {
    match part {
        Part::Waiting { slot: None } => true,
        Part::Waiting { slot: own } => own == slot,
        Part::Probe | Part::Template => false,
    }
}
