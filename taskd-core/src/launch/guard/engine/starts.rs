//! Starts: all of a batch or none of it.

use super::{Engine, Life};
use crate::job::ProcId;
use crate::launch::guard::end_of;
use crate::launch::guard::keeps::Kept;
use crate::launch::guard::lifeline::Waiter;
use crate::launch::guard::poll::Token;
use crate::launch::guard::proc_cgroups::{ProcCgroup, ProcCgroups};
use crate::launch::guard::procs::{Key, Proc, Tree};
use crate::launch::guard::run_dir::RunDir;
use crate::launch::guard::spawn::{self, Spawned};
use crate::launch::guard::streams::Stream;
use crate::launch::guard::wire::{Answer, ProcReport, WireBatch, WireOrder, WireSpec};
use crate::launch::{LaunchError, MEMORY_EVERY_VARIABLE, Phase};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most processes that a guard knows at once, exits that nobody has acknowledged included.
pub(in crate::launch) const PROCS_MAX: usize = 4096;
/// How long a start waits for what is left of earlier incarnations of its roles.
const WAIT_FOR_EARLIER: Duration = Duration::from_secs(10);

/// How long a start waits for standbys that are being forked for it: a fork takes milliseconds.
const STANDBYS_WITHIN: Duration = Duration::from_millis(500);

/// A start that waits: for what is left of earlier incarnations, or, when it has failed, for its own processes to go.
#[derive(Debug)]
pub(super) struct WaitingStart {
    conn: Key,
    id: u64,
    batch: WireBatch,
    until: Instant,
    /// Until when it waits for standbys that are being forked; `None` before it has looked.
    standbys_until: Option<Instant>,
    /// The answer, when the processes with these keys are gone.
    failed: Option<(LaunchError, Vec<Key>)>,
}

impl Engine {
    /// Starts what of a batch is not started yet, as soon as nothing is in its way.
    pub(super) fn start_batch(&mut self, conn: Key, id: u64, mut batch: WireBatch) {
        let control = self.door.path.display().to_string();
        for order in &mut batch.orders {
            order.env.insert("TASKD_CONTROL".into(), control.clone()); // where it finds its supervisor
        }
        let until = Instant::now() + WAIT_FOR_EARLIER;
        let start = WaitingStart { conn, id, batch, until, standbys_until: None, failed: None };
        self.waiting.push(start);
        self.retry_waiting_starts(Instant::now());
    }

    /// Goes on with starts that could not go on before.
    pub(super) fn retry_waiting_starts(&mut self, now: Instant) {
        for start in std::mem::take(&mut self.waiting) {
            self.go_on_with(start, now);
        }
    }

    fn go_on_with(&mut self, start: WaitingStart, now: Instant) {
        if let Some((error, keys)) = &start.failed {
            let gone = |key: &Key| self.procs.get(*key).is_none_or(|proc| proc.tree == Tree::Gone);
            if keys.iter().all(gone) || start.until <= now {
                let error = error.clone();
                self.answer(start.conn, start.id, Err(error));
            } else {
                self.waiting.push(start);
            }
            return;
        }
        let new = start.batch.orders.iter().filter(|order| self.is_new(&order.proc));
        let earlier = new.into_iter().find_map(|order| self.procs.in_the_way_of(&order.proc));
        match earlier.map(|proc| (proc.report.proc.clone(), proc.has_exited())) {
            Some(_) if now < start.until => self.waiting.push(start),
            Some((proc, exited)) => {
                let what = if exited { "something that it started cannot be removed" } else { "stop it first" };
                let text = format!("{proc} is still there after {WAIT_FOR_EARLIER:?}: {what}");
                self.answer(start.conn, start.id, Err(LaunchError::Unreachable(text)));
            }
            None => self.launch_with_standbys(start, now),
        }
    }

    /// Launches when those standbys are there that can be soon.
    fn launch_with_standbys(&mut self, mut start: WaitingStart, now: Instant) {
        let until = *start.standbys_until.get_or_insert(now + STANDBYS_WITHIN);
        let new = start.batch.orders.iter().filter(|order| self.is_new(&order.proc)).cloned().collect::<Vec<_>>();
        if now < until && self.are_standbys_coming(&new, &start.batch.specs, now) {
            self.waiting.push(start);
        } else {
            self.launch(start, now);
        }
    }

    fn launch(&mut self, start: WaitingStart, now: Instant) {
        let mut started = Vec::new();
        let result = self.launch_all(&start.batch, &mut started);
        match result {
            Ok(()) => {
                let reports = start.batch.orders.iter().filter_map(|order| self.report_of(&order.proc)).collect();
                self.counters.started += started.len() as u64;
                self.looks.soon(now);
                self.keep_standbys_for(&start.batch, false, now);
                self.answer(start.conn, start.id, Ok(Answer::Started(reports)));
            }
            Err(text) => {
                for key in &started {
                    if let Some(proc) = self.procs.get_mut(*key) {
                        proc.withdrawn = true;
                    }
                    self.stop_one(*key, Duration::ZERO, now);
                }
                self.kill_overdue(now);
                let failed = Some((LaunchError::Refused(text), started));
                self.waiting.push(WaitingStart { until: now + WAIT_FOR_EARLIER, failed, ..start });
            }
        }
    }

    /// Whether a process was never started, or its start failed.
    fn is_new(&self, id: &ProcId) -> bool {
        let known = self.procs.find(id).and_then(|key| self.procs.get(key));
        known.is_none_or(|proc| proc.withdrawn) && !self.procs.is_over(id)
    }

    fn report_of(&self, id: &ProcId) -> Option<ProcReport> {
        self.procs.find(id).and_then(|key| self.procs.get(key)).map(|proc| proc.report.clone())
    }

    /// Starts all that are new, and says which; on an error some of them may run.
    fn launch_all(&mut self, batch: &WireBatch, started: &mut Vec<Key>) -> Result<(), String> {
        if !matches!(self.life, Life::Serving | Life::Keeping { .. }) {
            return Err("the job is being stopped".into());
        }
        let new: Vec<&WireOrder> = batch.orders.iter().filter(|order| self.is_new(&order.proc)).collect();
        if self.procs.len() + new.len() > PROCS_MAX {
            return Err(format!("more than {PROCS_MAX} processes, exits that nobody has acknowledged included"));
        }
        let spec_of = |order: &WireOrder| batch.specs.get(order.spec).ok_or("an order without a specification");
        let programs: Vec<PathBuf> =
            new.iter().map(|order| spawn::find_program(order, spec_of(order)?)).collect::<Result<_, String>>()?;
        for (order, program) in new.into_iter().zip(programs) {
            let spec = spec_of(order)?;
            let order = &self.with_memory(order.clone(), spec);
            let spawned = match self.seat_standby(order, spec, &program) {
                Some(seated) => Ok(seated),
                None => {
                    let listener = self.doors.of(spec).map_err(|e| format!("{}: {e}", order.proc))?;
                    let cgroup = self.cgroup_for(&order.proc);
                    self.ground.spawn(order, spec, &program, listener, cgroup)
                }
            };
            let spawned = spawned.map_err(|e| format!("{}: cannot start {}: {e}", order.proc, program.display()))?;
            let key = self.enter(order, spec, spawned);
            started.push(key);
            self.watch_proc(key).map_err(|e| format!("{}: cannot be watched: {e}", order.proc))?;
        }
        Ok(())
    }

    /// A control group for a process that is about to start, and the file by which it enters it.
    fn cgroup_for(&mut self, proc: &ProcId) -> (ProcCgroup, Option<OwnedFd>) {
        match self.cgroups.as_mut().map(ProcCgroups::make) {
            Ok(Ok((group, door))) => return (group, Some(door)),
            Ok(Err(error)) => self.note(&format!("{proc}: no control group can be made for it: {error}")),
            Err(_) => (), // the owner knows
        }
        (ProcCgroup::default(), None)
    }

    /// Tells a rank where its memory is. Only when it starts: until then the end of its predecessor may close what is empty, and
    /// another file would have the number.
    fn with_memory(&mut self, mut order: WireOrder, spec: &WireSpec) -> WireOrder {
        let mut wanted =
            vec![("TASKD_KEEP", Kept::Own, "a successor takes a peer's random numbers and place in the data")];
        if spec.env.contains_key(MEMORY_EVERY_VARIABLE) {
            wanted.push(("TASKD_MEMORY", Kept::State, "it keeps no copies of its state"));
        }
        for (name, what, without) in wanted {
            match self.keeps.of(&order.proc.role, what) {
                Ok(Some(path)) => drop(order.env.insert(name.into(), path)),
                Ok(None) => (), // a service
                Err(error) => self.note(&format!("{}: no memory can be kept for it ({error}): {without}", order.proc)),
            }
        }
        order
    }

    /// Takes a process that runs into the book.
    fn enter(&mut self, order: &WireOrder, spec: &WireSpec, spawned: Spawned) -> Key {
        let key = self.procs.next_key();
        let started = format!("{} {} {}\n", std::process::id(), spawned.pid.as_raw_nonzero(), spawned.start_time);
        self.logs.write(self.sessions, started.as_bytes());
        let directory = RunDir::proc_dir(&self.run_dir, &order.proc);
        let mut shared = || spec.log.as_ref().map(|log| self.logs.share(log.clone()));
        let (of_stdout, of_stderr) = (shared(), shared());
        let stdout = Stream::new(spawned.stdout, self.logs.open(directory.join("stdout.log")), of_stdout);
        let stderr =
            Stream::new(spawned.stderr, self.logs.open(directory.join("stderr.log")), of_stderr).keeping_tail();
        let (page, deaths) = (Arc::clone(&spawned.page), Arc::clone(&self.deaths));
        let lifeline = Waiter::start(key, spawned.pid, spawned.start_time, page, deaths).ok();
        self.counters.lifelines_missing += u64::from(lifeline.is_none());
        if self.cgroups.is_ok() && !spawned.cgroup.holds(spawned.pid) {
            self.counters.cgroups_missing += 1;
        }
        let report = ProcReport {
            proc: order.proc.clone(),
            pid: spawned.pid.as_raw_nonzero().get().unsigned_abs(),
            start_time: spawned.start_time,
            phase: Phase::Running,
            page: Some(spawned.page_path),
        };
        let oom_place = self.ooms.place_of(spawned.pid);
        self.procs.insert(Proc {
            report,
            oom_place,
            pid: spawned.pid,
            secrets: spec.secrets.clone(),
            page: Some((spawned.page, spawned.page_memory)),
            lifeline,
            cgroup: spawned.cgroup,
            end: None,
            stdout: Some(stdout),
            stderr: Some(stderr),
            kill_at: None,
            tree: Tree::Wanted,
            left: Vec::new(),
            withdrawn: false,
            acknowledged: false,
        })
    }

    /// Waits for the output of a process, and for its end.
    fn watch_proc(&mut self, key: Key) -> io::Result<()> {
        let Some(proc) = self.procs.get_mut(key) else { return Ok(()) };
        for (stream, token) in [(&proc.stdout, Token::Stdout(key)), (&proc.stderr, Token::Stderr(key))] {
            if let Some(pipe) = stream.as_ref().and_then(Stream::pipe) {
                self.poll.add(pipe, token)?;
            }
        }
        if self.signals.is_none() {
            match end_of::child(proc.pid) {
                Ok(end) => {
                    self.poll.add(&end, Token::Child(key))?;
                    proc.end = Some(end);
                }
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => self.take_exit_of(key),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Processes that wait to be started and are to be stopped: their batch is not started.
    pub(super) fn withdraw_waiting(&mut self, procs: &[ProcId]) {
        let named = |start: &WaitingStart| start.batch.orders.iter().find(|order| procs.contains(&order.proc)).cloned();
        for start in std::mem::take(&mut self.waiting) {
            match named(&start).filter(|_| start.failed.is_none()) {
                Some(order) => {
                    let error = LaunchError::Refused(format!("{} was stopped before it was started", order.proc));
                    self.answer(start.conn, start.id, Err(error));
                }
                None => self.waiting.push(start),
            }
        }
    }

    /// The guard ends: nothing is started any more.
    pub(super) fn withdraw_all_waiting(&mut self) {
        for start in std::mem::take(&mut self.waiting) {
            let ending = LaunchError::Refused("the job is being stopped".into());
            let error = start.failed.map_or(ending, |(error, _)| error);
            self.answer(start.conn, start.id, Err(error));
        }
    }

    pub(super) fn starts_deadline(&self) -> Option<Instant> {
        let standbys = |start: &WaitingStart| start.standbys_until.filter(|_| start.failed.is_none());
        self.waiting.iter().map(|start| standbys(start).map_or(start.until, |until| until.min(start.until))).min()
    }
}
