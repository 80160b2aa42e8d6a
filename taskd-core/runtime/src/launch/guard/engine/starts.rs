//! Starts: either all processes of a batch are started, or none.

use super::{Engine, Life};
use crate::job::ProcId;
use crate::launch::guard::exit_watch;
use crate::launch::guard::fd_store::Kept;
use crate::launch::guard::lifeline::Waiter;
use crate::launch::guard::poll::Token;
use crate::launch::guard::proc_cgroups::{ProcCgroup, ProcCgroups};
use crate::launch::guard::procs::{Key, Proc, Tree};
use crate::launch::guard::run_dir::RunDir;
use crate::launch::guard::spawn::{self, Spawned};
use crate::launch::guard::streams::Stream;
use crate::launch::guard::wire::{Answer, ProcReport, WireBatch, WireOrder, WireSpec};
use crate::launch::{IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, LaunchError, Phase};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of processes in a guard's table, unacknowledged exits included.
pub(in crate::launch) const PROCS_MAX: usize = 4096;
/// Time that a start waits for the remains of earlier incarnations of its roles.
const WAIT_FOR_EARLIER: Duration = Duration::from_secs(10);

/// Time that a start waits for standbys that are being forked for it; a fork takes milliseconds.
const STANDBYS_WITHIN: Duration = Duration::from_millis(500);

/// A start that waits: for the remains of earlier incarnations or, after it has failed, for the end of its own
/// processes.
#[derive(Debug)]
pub(super) struct WaitingStart {
    conn: Key,
    id: u64,
    batch: WireBatch,
    until: Instant,
    /// Deadline for the fork of standbys; `None` before the first check.
    standbys_until: Option<Instant>,
    /// The error to return once the processes with these keys are gone.
    failed: Option<(LaunchError, Vec<Key>)>,
}

impl Engine {
    /// Starts the processes of a batch that are not started yet, as soon as no earlier process blocks them.
    pub(super) fn start_batch(&mut self, conn: Key, id: u64, mut batch: WireBatch) {
        if self.is_fenced(conn) {
            return self.answer(conn, id, Err(fenced()));
        }
        let control = self.door.path.display().to_string();
        for order in &mut batch.orders {
            order.env.insert("TASKD_CONTROL".into(), control.clone()); // where it finds its supervisor
        }
        let until = Instant::now() + WAIT_FOR_EARLIER;
        let start = WaitingStart { conn, id, batch, until, standbys_until: None, failed: None };
        self.waiting.push(start);
        self.retry_waiting_starts(Instant::now());
    }

    /// Continues the waiting starts.
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
                let what = if exited { "a process that it started cannot be removed" } else { "stop it first" };
                let text = format!("{proc} still exists after {WAIT_FOR_EARLIER:?}: {what}");
                self.answer(start.conn, start.id, Err(LaunchError::Unreachable(text)));
            }
            None => self.launch_with_standbys(start, now),
        }
    }

    /// Starts the processes, after a short wait if standbys for them are being forked.
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

    /// Returns true if a process was never started, or its start failed.
    fn is_new(&self, id: &ProcId) -> bool {
        let known = self.procs.find(id).and_then(|key| self.procs.get(key));
        known.is_none_or(|proc| proc.withdrawn) && !self.procs.is_over(id)
    }

    fn report_of(&self, id: &ProcId) -> Option<ProcReport> {
        self.procs.find(id).and_then(|key| self.procs.get(key)).map(|proc| proc.report.clone())
    }

    /// Starts all new processes, and adds their keys to `started`; after an error some of them may run.
    fn launch_all(&mut self, batch: &WireBatch, started: &mut Vec<Key>) -> Result<(), String> {
        if !matches!(self.life, Life::Serving | Life::Keeping { .. }) {
            return Err("the job is being stopped".into());
        }
        let new: Vec<&WireOrder> = batch.orders.iter().filter(|order| self.is_new(&order.proc)).collect();
        if self.procs.len() + new.len() > PROCS_MAX {
            return Err(format!("more than {PROCS_MAX} processes, including unacknowledged exits"));
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

    /// Makes a control group for a process that is about to start, and opens the file by which the process enters it.
    fn cgroup_for(&mut self, proc: &ProcId) -> (ProcCgroup, Option<OwnedFd>) {
        match self.cgroups.as_mut().map(ProcCgroups::make) {
            Ok(Ok((group, door))) => return (group, Some(door)),
            Ok(Err(error)) => self.note(&format!("{proc}: no control group can be made for it: {error}")),
            Err(_) => (), // the owner knows
        }
        (ProcCgroup::default(), None)
    }

    /// Adds the paths of a rank's memory to its environment. This is done only at its start: before that, the exit of
    /// its predecessor may close an empty memory, and another file could get its descriptor number.
    fn with_memory(&mut self, mut order: WireOrder, spec: &WireSpec) -> WireOrder {
        let mut wanted =
            vec![("TASKD_HANDOFF", Kept::Own, "a successor copies a peer's random-number state and data position")];
        if spec.env.contains_key(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE) {
            wanted.push(("TASKD_IN_MEMORY_CHECKPOINT", Kept::State, "it keeps no copies of its state"));
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

    /// Adds a running process to the guard's table.
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
            is_fenced: false,
            tree: Tree::Wanted,
            left: Vec::new(),
            withdrawn: false,
            acknowledged: false,
        })
    }

    /// Watches the output of a process, and its end.
    fn watch_proc(&mut self, key: Key) -> io::Result<()> {
        let Some(proc) = self.procs.get_mut(key) else { return Ok(()) };
        for (stream, token) in [(&proc.stdout, Token::Stdout(key)), (&proc.stderr, Token::Stderr(key))] {
            if let Some(pipe) = stream.as_ref().and_then(Stream::pipe) {
                self.poll.add(pipe, token)?;
            }
        }
        if self.signals.is_none() {
            match exit_watch::child(proc.pid) {
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

    /// Cancels waiting batches that contain one of these processes, which are to be stopped.
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

    /// Cancels all waiting starts, since the guard ends.
    pub(super) fn withdraw_all_waiting(&mut self) {
        self.withdraw_for(&LaunchError::Refused("the job is being stopped".into()));
    }

    /// Cancels all waiting starts, since the host may run no processes any more.
    pub(super) fn withdraw_fenced_starts(&mut self) {
        self.withdraw_for(&fenced());
    }

    fn withdraw_for(&mut self, why: &LaunchError) {
        for start in std::mem::take(&mut self.waiting) {
            let error = start.failed.map_or(why.clone(), |(error, _)| error);
            self.answer(start.conn, start.id, Err(error));
        }
    }

    pub(super) fn starts_deadline(&self) -> Option<Instant> {
        let standbys = |start: &WaitingStart| start.standbys_until.filter(|_| start.failed.is_none());
        self.waiting.iter().map(|start| standbys(start).map_or(start.until, |until| until.min(start.until))).min()
    }
}

/// The answer to a start for which the host's time is over.
fn fenced() -> LaunchError {
    LaunchError::Unreachable(
        "the time until which this host may run processes is over: no process starts before its lease is renewed"
            .into(),
    )
}
