//! How soon the death and the exit of a killed rank are reported, compared with a bare pidfd on the same process.
//!
//! The clock runs from just before kill(2) until the owner's `watch` returns. On every core another rank of the same
//! job computes all the time, with the same priority as the process that reports a death.

use super::{Failure, rank};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::slice::from_ref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taskd_core::job::{Counted, Incarnation, Member, ProcId, Rank, WorkerSpec, World};
use taskd_core::launch::{Change, Launcher, LocalLauncher, Phase, Place, Revision, StartBatch, StartOrder};
use taskd_examples::samples::Samples;

/// Memory of the ranks that are killed, in MiB.
const SIZES_MIB: [u32; 3] = [10, 500, 1500];
const QUICK_SIZES_MIB: [u32; 3] = [1, 10, 50];
/// The interval at which a rank's readiness is checked.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a rank may take to fill its memory and to report that.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long a rank runs before it is killed: by then every observer waits for its death.
const SETTLE: Duration = Duration::from_millis(30);
/// The rank that is killed; the others keep the cores busy.
const VICTIM: Rank = Rank(0);

/// The worst figures over all sizes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// From SIGKILL until the owner receives the death of a rank with a lifeline: the median.
    death_seen_ms_p50: f64,
    /// The maximum.
    death_seen_ms_max: f64,
    /// Delay of the exit after that of a bare pidfd, with or without a lifeline: the median.
    exit_above_pidfd_ms_p50: f64,
}

/// Times from the kill of a rank until its end was observed.
#[derive(Clone, Copy, Debug)]
struct End {
    /// `None`: the exit was reported first.
    dead: Option<Duration>,
    exited: Duration,
    /// As observed by a thread of this process that only waits for this end.
    pidfd: Duration,
}

/// Ranks of one kind.
#[derive(Debug)]
struct Kind {
    mib: u32,
    has_lifeline: bool,
    ends: Vec<End>,
}

impl Kind {
    fn samples(&self, of: impl Fn(&End) -> Option<f64>) -> Samples {
        let mut samples = Samples::default();
        self.ends.iter().filter_map(of).for_each(|value| samples.push(value));
        samples
    }

    /// Returns the time of the first report of each death.
    fn seen(&self) -> Samples {
        self.samples(|end| Some(ms(end.dead.unwrap_or(end.exited))))
    }

    fn exit_above_pidfd(&self) -> Samples {
        self.samples(|end| Some(ms(end.exited) - ms(end.pidfd)))
    }
}

/// Measures, prints the table, and returns the figures.
pub(crate) async fn measure(kills: u32, quick: bool) -> Result<Figures, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let sizes = if quick { QUICK_SIZES_MIB } else { SIZES_MIB };
    let kind = |mib, has_lifeline| Kind { mib, has_lifeline, ends: Vec::new() };
    let mut kinds: Vec<Kind> = sizes.into_iter().flat_map(|mib| [kind(mib, true), kind(mib, false)]).collect();
    let mut job = Job::start(dir.path()).await?;
    for kill in 1..=kills {
        for kind in &mut kinds {
            kind.ends.push(job.kill_one(kind.mib, kind.has_lifeline).await?);
        }
        if kill % 10 == 0 {
            println!("          {kill} of {kills} kills of each kind");
        }
    }
    job.launcher.shutdown(Duration::ZERO).await?;
    print!("{}", table(&kinds));
    let with_lifeline = || kinds.iter().filter(|kind| kind.has_lifeline);
    Ok(Figures {
        death_seen_ms_p50: worst(with_lifeline().map(|kind| kind.seen().median())),
        death_seen_ms_max: worst(with_lifeline().map(|kind| kind.seen().max())),
        exit_above_pidfd_ms_p50: worst(kinds.iter().map(|kind| kind.exit_above_pidfd().median())),
    })
}

fn worst(values: impl Iterator<Item = f64>) -> f64 {
    values.max_by(f64::total_cmp).unwrap_or(f64::NAN)
}

/// A job whose first rank is killed repeatedly.
struct Job<'d> {
    dir: &'d Path,
    launcher: LocalLauncher,
    world: Arc<World>,
}

impl Job<'_> {
    /// Starts the ranks that keep the cores busy.
    async fn start(dir: &Path) -> Result<Job<'_>, Failure> {
        let launcher = LocalLauncher::builder(dir).job_name("bench").build().await?;
        let cores = u32::try_from(std::thread::available_parallelism()?.get())?;
        let member = Member { incarnation: Incarnation(1), node: None, device: None };
        let first = World::first((0..=cores).map(|rank| (Rank(rank), member.clone())).collect());
        let job = Job { dir, launcher, world: Arc::new(first) };
        let spec = Arc::new(WorkerSpec::new(rank::command("busy", 1)?));
        let others = (1..=cores).filter_map(|rank| job.world.proc(Rank(rank)));
        let orders = others.map(|proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(&spec))).collect();
        job.launcher.start(&StartBatch::new(Arc::clone(&job.world), orders)).await?;
        Ok(job)
    }

    /// Starts the first rank again, kills it and returns the times at which its end was observed.
    async fn kill_one(&mut self, mib: u32, has_lifeline: bool) -> Result<End, Failure> {
        self.world = Arc::new(self.world.successor(Counted::Yes, |members| {
            members.entry(VICTIM).and_modify(|member| member.incarnation = member.incarnation.next());
        }));
        let proc = self.world.proc(VICTIM).ok_or("the world has no first rank")?;
        let spec = WorkerSpec::new(rank::command("wait", mib)?);
        let spec = Arc::new(if has_lifeline { spec } else { spec.with_env("TASKD_HOOKS", "0") });
        let orders = vec![StartOrder::new(proc.clone(), Place::anywhere(), spec)];
        self.launcher.start(&StartBatch::new(Arc::clone(&self.world), orders)).await?;
        let ready = tokio::time::timeout(READY_WITHIN, self.ready(&proc)).await;
        let (pid, from) = ready.map_err(|_| format!("{proc} had not filled its memory after {READY_WITHIN:?}"))??;
        let bare = wait_for_end(pid)?;
        tokio::time::sleep(SETTLE).await;

        let killed = Instant::now();
        kill_process(pid, Signal::KILL)?;
        let (dead, exited) = self.end_of(&proc, from).await?;
        let pidfd = bare.join().map_err(|_| "the thread that waits for a bare pidfd has panicked")??;
        self.launcher.acknowledge(from_ref(&proc)).await?;
        let after = |at: Instant| at.duration_since(killed);
        Ok(End { dead: dead.map(after), exited: after(exited), pidfd: after(pidfd) })
    }

    /// Waits until a rank has filled its memory; returns its process id and the launcher's revision.
    async fn ready(&self, proc: &ProcId) -> Result<(Pid, Revision), Failure> {
        let log = self.dir.join(format!("procs/rank-{}.{}/stdout.log", VICTIM.0, proc.incarnation.0));
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains(rank::READY)) {
            tokio::time::sleep(LOOK_EVERY).await;
            let listing = self.launcher.list().await?;
            if let Some(status) = listing.procs.iter().find(|s| s.proc == *proc && s.phase.is_over()) {
                return Err(format!("{proc} ended before it was killed: {}", status.phase).into());
            }
        }
        let listing = self.launcher.list().await?;
        let pid = listing.procs.iter().find(|status| status.proc == *proc).and_then(|status| status.pid);
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or("a rank without a pid")?;
        Ok((pid, listing.revision))
    }

    /// Returns when the death of a process was reported, if it was, and when its exit.
    async fn end_of(&self, proc: &ProcId, from: Revision) -> Result<(Option<Instant>, Instant), Failure> {
        let (mut dead, mut from) = (None, from);
        loop {
            let (changes, next) = self.launcher.watch(from).await?;
            let now = Instant::now();
            from = next;
            for change in changes {
                match change {
                    Change::Proc(status) if status.proc == *proc => match status.phase {
                        Phase::Dead(_) => dead = Some(now),
                        Phase::Exited(_) => return Ok((dead, now)),
                        Phase::Pending(_) | Phase::Running => (),
                    },
                    Change::Proc(_) | Change::Node(_) | Change::Link(_) | Change::Worker(_) | Change::Guard(_) => (),
                }
            }
        }
    }
}

/// Starts a thread that only waits for the end of a process, and returns the time of the end.
fn wait_for_end(pid: Pid) -> Result<JoinHandle<Result<Instant, Failure>>, Failure> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let waiting = std::thread::Builder::new().name("bare-pidfd".into());
    let waiting = waiting.spawn(move || {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None)?;
        Ok(Instant::now())
    });
    Ok(waiting?)
}

fn table(kinds: &[Kind]) -> String {
    let mut out = String::from(
        "\nfrom SIGKILL, with every core busy: median (least to most) in ms\n\n\
         | rank | lifeline | known dead | of them by exit | exit reported | bare pidfd | exit above pidfd |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for kind in kinds {
        let by_exit = kind.ends.iter().filter(|end| end.dead.is_none()).count();
        let _ = writeln!(
            out,
            "| {} MiB | {} | {} | {by_exit} of {} | {} | {} | {} |",
            kind.mib,
            if kind.has_lifeline { "yes" } else { "no" },
            kind.seen(),
            kind.ends.len(),
            kind.samples(|end| Some(ms(end.exited))),
            kind.samples(|end| Some(ms(end.pidfd))),
            kind.exit_above_pidfd(),
        );
    }
    out
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
