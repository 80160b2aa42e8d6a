//! The guard's event loop.
//!
//! It waits for everything at one place and hands each event to the part that knows it: [`ends`] for deaths, exits and
//! stops, [`starts`] for starts, [`owners`] for connections. No part blocks: whatever can hang (disk, lifeline) has a
//! thread of its own.

mod ahead;
mod ends;
mod owners;
mod place;
mod standbys;
mod starts;
mod survivors;

use super::cgroup::ControlGroup;
use super::conns::Conn;
use super::doors::Doors;
use super::end_of;
use super::keeps::Keeps;
use super::lifeline::Deaths;
use super::logs::{LogId, Logs};
use super::poll::{Poll, Token};
use super::proc_cgroups::ProcCgroups;
use super::proc_fs::Stat;
use super::procs::{Key, Procs};
use super::run_dir::{self, Record, RunDir, WorkerDoor};
use super::spawn::Ground;
use super::standby::Standbys;
use super::streams::TURN_BYTES_MAX;
use super::wire::{FromGuard, GuardConfig, PROTOCOL, Refusal};
use super::{GuardCounters, sys};
use crate::launch::GuardEnd;
use crate::launch::ooms::Ooms;
use ends::Looks;
use place::Place;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit};
use starts::WaitingStart;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a guard that ends waits for its files and for its owner to read the last word.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// How long a guard that ends waits between two looks for processes that it does not know.
const STRANGERS_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// A running guard.
#[derive(Debug)]
pub(super) struct Engine {
    config: GuardConfig,
    run_dir: RunDir,
    /// Held as long as the guard lives.
    place: Place,
    /// What holds this process and all that it starts; else why nothing does.
    cgroups: Result<ProcCgroups, String>,
    poll: Poll,
    /// `None`: a part of the supervisor's process, which owns its signals.
    signals: Option<OwnedFd>,
    listener: Option<UnixListener>,
    /// Held for whoever supervises the job: training processes that connect meanwhile wait in it.
    door: WorkerDoor,
    /// Held for the services that they are handed to.
    doors: Doors,
    keeps: Keeps,
    ooms: Ooms,
    owner_process: Option<end_of::Other>,
    ground: Ground,
    logs: Logs,
    own_log: LogId,
    /// Which processes were started.
    sessions: LogId,
    deaths: Arc<Deaths>,
    procs: Procs,
    conns: BTreeMap<Key, Conn>,
    next_conn: Key,
    owner: Option<Key>,
    /// The owner is still to be told that it knows everything.
    sync_owed: bool,
    waiting: Vec<WaitingStart>,
    standbys: Standbys,
    /// Children may have ended that were not reaped in this turn.
    ends_are_left: bool,
    looks: Looks,
    life: Life,
    /// Why it ends, where it does: said first, and left in its run directory.
    end: Option<GuardEnd>,
    counters: GuardCounters,
    scratch: Vec<u8>,
}

/// What a guard is.
#[derive(Debug)]
pub(super) enum Kind {
    /// A process of its own, which takes its signals from here.
    Process { signals: OwnedFd },
    /// A part of the supervisor's process, which owns its signals and the other end of this.
    Thread(WorkerDoor),
}

/// What the guard lives for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// There is an owner.
    Serving,
    /// There is none, and everything is kept until then.
    Keeping { until: Instant },
    /// Everything is being stopped; then it ends. The call is answered last.
    Ending { call: Option<(Key, u64)>, give_up_at: Instant },
    /// It ends now.
    Over,
}

impl Engine {
    /// A guard that has taken its run directory.
    pub(super) fn new(config: GuardConfig, kind: Kind) -> Result<Engine, Refusal> {
        let run_dir = RunDir::new(config.run_dir.clone());
        let failed =
            |what: &str, error: io::Error| Refusal::Failed(format!("{what} in {}: {error}", run_dir.path().display()));
        let is_process = matches!(kind, Kind::Process { .. });
        let place = Place::take(&run_dir, is_process)?;
        if Stat::read(rustix::process::getpid()).is_none() || !proc_is_ours() {
            return Err(Refusal::Failed("/proc does not show this process: mount proc for its PID namespace".into()));
        }
        let ground = Ground::of_this_process();
        if is_process {
            // A start says what it lacks. The limits of a host program are its own.
            let _ = rustix::process::setrlimit(Resource::Nofile, raised(ground.open_files));
        }
        let listener = is_process.then(|| run_dir.listen()).transpose(); // nobody can take over what ends with its owner
        let listener = listener.map_err(|e| failed("cannot listen at guard.sock", e))?;
        let (signals, door) = match kind {
            Kind::Process { signals } => (Some(signals), run_dir.listen_for_workers()),
            Kind::Thread(door) => (None, Ok(door)),
        };
        let door = door.map_err(|e| failed("cannot listen at worker.sock", e))?;
        let cgroup = match is_process {
            true => ControlGroup::enter(&config.job),
            false => Err("the processes are those of a program without a guard".into()),
        };
        let cgroups = cgroup.map(ProcCgroups::below);
        write_record(&run_dir, &config, &cgroups).map_err(|e| failed("cannot write guard.json", e))?;
        let out_of = |error: io::Error| Refusal::Failed(format!("the guard cannot start: {error}"));
        let mut logs = Logs::start(config.log_bytes_max).map_err(out_of)?;
        let engine = Engine {
            own_log: logs.open(run_dir.guard_log()),
            sessions: logs.open(run_dir.sessions_log()),
            procs: Procs::inherited(config.exits.clone(), config.over.clone()),
            place,
            cgroups,
            poll: Poll::new().map_err(out_of)?,
            deaths: Deaths::new().map_err(out_of)?,
            listener,
            door,
            doors: Doors::default(),
            keeps: Keeps::default(),
            ooms: Ooms::default(),
            owner_process: None,
            conns: BTreeMap::new(),
            next_conn: 0,
            owner: None,
            sync_owed: false,
            waiting: Vec::new(),
            standbys: Standbys::default(),
            ends_are_left: false,
            looks: Looks::default(),
            life: Life::Serving,
            end: None,
            counters: GuardCounters::default(),
            scratch: vec![0; 64 << 10],
            config,
            run_dir,
            signals,
            ground,
            logs,
        };
        engine.watch().map_err(out_of)?;
        Ok(engine)
    }

    fn watch(&self) -> io::Result<()> {
        self.poll.add(&self.deaths.ready, Token::Lifelines)?;
        if let Some(signals) = &self.signals {
            self.poll.add(signals, Token::Signals)?;
        }
        if let Some(listener) = &self.listener {
            self.poll.add(listener, Token::Listener)?;
        }
        self.place.add_to(&self.poll)?;
        Ok(())
    }

    /// Welcomes the owner at the other end of `socket`, and runs until there is nothing left to do.
    pub(super) fn run(mut self, socket: UnixStream) -> io::Result<()> {
        // Only now: the thread that writes files need not hurry, those that wait for lifelines must.
        self.ground.is_hurried = self.signals.is_some() && sys::hurry(self.ground.nice);
        self.note(&format!("guard {} of job {} starts", std::process::id(), self.config.job.0));
        self.note_what_the_place_lacks();
        let key = self.adopt(Conn::new(socket, self.config.owner_pid, Instant::now())?)?;
        self.welcome(key);
        self.make_owner(key);
        self.say_what_contains_the_job(key);
        while self.life != Life::Over {
            let limit = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
            for token in self.poll.wait(limit) {
                self.guarded(|engine| engine.handle(token));
            }
            self.guarded(Engine::on_time);
            self.guarded(Engine::tell_owner);
        }
        self.say_goodbye();
        Ok(())
    }

    /// Logs and reports to the owner which processes may be left where the guard is killed.
    fn say_what_contains_the_job(&mut self, owner: Key) {
        let text = match &self.cgroups {
            Ok(groups) => format!(
                "control group {} holds what {} starts: nothing is left of it where a rank ends or the guard is killed",
                groups.of_guard().directory().display(),
                myself()
            ),
            Err(why) => format!(
                "no control group holds what {} starts ({why}): where a rank ends, or the guard is killed, a process may be left that has \
                 changed its session and its environment and whose parent has ended",
                myself()
            ),
        };
        self.note(&text);
        if let Some(conn) = self.conns.get_mut(&owner) {
            say(conn, &FromGuard::Contained(text));
        }
        self.flush(owner);
    }

    /// A defect in handling one event must not take the job down.
    fn guarded(&mut self, handle: impl FnOnce(&mut Engine)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handle(self))) {
            self.counters.panics += 1;
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            self.note(&format!("a defect of the guard: {}", text.unwrap_or("unknown")));
        }
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Lifelines => self.take_deaths(),
            Token::Signals => self.take_signals(),
            Token::Child(key) => self.take_exit_of(key),
            Token::OwnerProcess => self.owner_process_ended(),
            Token::Listener => self.accept(),
            Token::Claim => self.look_at_claim(),
            Token::Place => self.look_at_place(),
            Token::Conn(key) => _ = self.serve(key),
            Token::Stdout(key) => self.drain(key, TURN_BYTES_MAX, |proc| &mut proc.stdout),
            Token::Stderr(key) => self.drain(key, TURN_BYTES_MAX, |proc| &mut proc.stderr),
            Token::Seat(key) => self.hear_standby(key),
            Token::SeatOutput(key) => self.drain_standby(key),
        }
    }

    fn take_signals(&mut self) {
        let terminate = self.signals.as_ref().and_then(sys::read_signals);
        self.reap_all();
        if let Some(sender) = terminate {
            self.end_because(
                &format!("{} was sent SIGTERM by process {sender}, and stopped everything", myself()),
                false,
            );
            self.end(TERM_GRACE, None);
        }
    }

    /// What is due by the clock.
    fn on_time(&mut self) {
        let now = Instant::now();
        if matches!(self.life, Life::Keeping { until } if until <= now) {
            self.end_because(
                &format!("no owner came in the time for which {} had been told to keep everything", myself()),
                true,
            );
            self.end(Duration::ZERO, None);
        }
        self.look_at_place_again(now);
        self.look_at_claim_again(now);
        self.reap_more();
        self.look_at_owner(now);
        self.drop_silent_strangers(now);
        self.look_for_lifelines(now);
        self.kill_overdue(now);
        self.sweep(now);
        self.tend_standbys(now);
        self.retry_waiting_starts(now);
        self.end_if_nothing_is_left(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let life = match self.life {
            Life::Keeping { until } => Some(until),
            Life::Ending { .. } if self.all_trees_are_gone() => Some(Instant::now() + STRANGERS_AGAIN_AFTER),
            Life::Ending { give_up_at, .. } => Some(give_up_at),
            Life::Serving | Life::Over => None,
        };
        life.into_iter()
            .chain(self.looks.next_at)
            .chain(self.place.again_at)
            .chain(self.place.flooded_until)
            .chain(self.ends_are_left.then(Instant::now))
            .chain(self.owner_process.as_ref().and_then(end_of::Other::deadline))
            .chain(self.strangers_deadline())
            .chain(self.ends_deadline())
            .chain(self.starts_deadline())
            .chain(self.standbys.deadline())
            .min()
    }

    /// A line in `guard.log`.
    fn note(&self, line: &str) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        self.logs.write(self.own_log, format!("{}.{:03} {line}\n", now.tv_sec, now.tv_nsec / 1_000_000).as_bytes());
    }

    /// The owner may still have to read the last word.
    fn say_goodbye(mut self) {
        let until = Instant::now() + LAST_WORDS_WITHIN;
        let Some(mut owner) = self.owner.take().and_then(|key| self.conns.remove(&key)) else { return };
        loop {
            owner.flush();
            if owner.unsent() == 0 {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            let Some(left) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else { return };
            let _ = rustix::event::poll(&mut [PollFd::new(&owner, PollFlags::OUT)], Some(&left));
        }
    }
}

/// Says which guard runs here.
fn write_record(run_dir: &RunDir, config: &GuardConfig, cgroups: &Result<ProcCgroups, String>) -> io::Result<()> {
    let own = Stat::read(rustix::process::getpid());
    run_dir.write_record(&Record {
        protocol: PROTOCOL,
        job: config.job.clone(),
        guard_pid: std::process::id(),
        guard_start_time: own.map_or(0, |own| own.start_time),
        dir: Some(run_dir.identity()?),
        job_name: Some(config.job_name.clone()),
        boot: run_dir::this_boot(),
        cgroup: cgroups.as_ref().ok().map(|groups| groups.of_guard().directory().to_owned()),
    })
}

/// How long processes have when somebody sends SIGTERM to the guard.
const TERM_GRACE: Duration = Duration::from_secs(10);

/// This guard, in sentences.
fn myself() -> String {
    format!("guard {}", std::process::id())
}

/// A guard needs a few descriptors for each process.
fn raised(limit: Rlimit) -> Rlimit {
    Rlimit { current: limit.maximum, maximum: limit.maximum }
}

/// Whether `/proc` belongs to this PID namespace.
fn proc_is_ours() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|name| name.as_os_str() == std::process::id().to_string().as_str())
}

/// A message that may always be sent.
fn say(conn: &mut Conn, message: &FromGuard) {
    if conn.send(message).is_err() {
        conn.leaving = true; // beyond the bound of a frame: the peer connects again and is told everything anew
    }
}
