//! The guard's event loop.
//!
//! The loop waits for all events in one poll call and passes each to the module that handles it: [`exits`] for deaths,
//! exits and stops, [`starts`] for starts, [`owners`] for connections. No module blocks: operations that can hang
//! (disk, lifeline) have their own threads.

mod exits;
mod fence;
mod owners;
mod place;
mod prewarm;
mod standbys;
mod starts;
mod survivors;

use super::cgroup::ControlGroup;
use super::conns::Conn;
use super::exit_watch;
use super::fd_store::Keeps;
use super::lifeline::Deaths;
use super::listen_sockets::Doors;
use super::logs::{LogId, Logs};
use super::poll::{Poll, Token};
use super::proc_cgroups::ProcCgroups;
use super::procs::{Key, Procs};
use super::run_dir::{self, Record, RunDir, WorkerDoor};
use super::spawn::Ground;
use super::standby::Standbys;
use super::streams::TURN_BYTES_MAX;
use super::wire::{FromGuard, GuardConfig, PROTOCOL, Refusal};
use super::{GuardCounters, sys};
use crate::launch::GuardEnd;
use crate::launch::ooms::Ooms;
use crate::proc_fs::Stat;
use exits::Looks;
use fence::Fence;
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

/// Time that an ending guard waits for its files to be written, and for its owner to read the last message.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// Interval at which an ending guard scans for processes that it has not started.
const STRANGERS_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// A running guard.
#[derive(Debug)]
pub(super) struct Engine {
    config: GuardConfig,
    run_dir: RunDir,
    /// The guard's possession of its run directory, held as long as the guard lives.
    place: Place,
    /// Control groups of the guard and of all that it starts; otherwise the reason why there are none.
    cgroups: Result<ProcCgroups, String>,
    poll: Poll,
    /// Descriptor that receives signals. `None` if the guard is a thread of the supervisor's process, which owns its
    /// signals.
    signals: Option<OwnedFd>,
    listener: Option<UnixListener>,
    /// Listening socket for control links, held for the supervisor: training processes that connect while there is no
    /// supervisor wait in its backlog.
    door: WorkerDoor,
    /// Listening sockets, held for the services that serve them.
    doors: Doors,
    keeps: Keeps,
    ooms: Ooms,
    owner_process: Option<exit_watch::Other>,
    ground: Ground,
    logs: Logs,
    own_log: LogId,
    /// Log file that lists the started processes.
    sessions: LogId,
    deaths: Arc<Deaths>,
    procs: Procs,
    conns: BTreeMap<Key, Conn>,
    next_conn: Key,
    owner: Option<Key>,
    /// True if [`FromGuard::Synced`] is still to be sent to the owner.
    sync_owed: bool,
    waiting: Vec<WaitingStart>,
    standbys: Standbys,
    /// True if children may have ended that were not reaped in this turn.
    ends_are_left: bool,
    looks: Looks,
    fence: Fence,
    life: Life,
    /// Reason of the guard's end: sent to the owner first, then written to the run directory.
    end: Option<GuardEnd>,
    counters: GuardCounters,
    scratch: Vec<u8>,
}

/// Form of a guard.
#[derive(Debug)]
pub(super) enum Kind {
    /// A separate process, which receives its signals through this descriptor.
    Process { signals: OwnedFd },
    /// A thread of the supervisor's process, which owns the signals and the other end of this socket.
    Thread(WorkerDoor),
}

/// State of the guard's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// The guard has an owner.
    Serving,
    /// The guard has no owner; it keeps everything until this time.
    Keeping { until: Instant },
    /// Everything is being stopped, and the guard ends after that. The call is answered last.
    Ending { call: Option<(Key, u64)>, give_up_at: Instant },
    /// The guard ends now.
    Over,
}

impl Engine {
    /// Makes a guard that has taken possession of its run directory.
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
            // A failed start reports a limit that is too low. The limits of a host program are not changed.
            let _ = rustix::process::setrlimit(Resource::Nofile, raised(ground.open_files));
        }
        let listener = is_process.then(|| run_dir.listen()).transpose(); // a thread has no second owner
        let listener = listener.map_err(|e| failed("cannot listen at guard.sock", e))?;
        let (signals, door) = match kind {
            Kind::Process { signals } => (Some(signals), run_dir.listen_for_workers()),
            Kind::Thread(door) => (None, Ok(door)),
        };
        let door = door.map_err(|e| failed("cannot listen at worker.sock", e))?;
        let cgroup = match is_process {
            true => ControlGroup::enter(&config.job),
            false => Err("the program runs without a guard process".into()),
        };
        let below = |group| ProcCgroups::below(group).map_err(|error| format!("no descriptor for them: {error}"));
        let cgroups = cgroup.and_then(below);
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
            fence: Fence::default(),
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
        if let Ok(groups) = &self.cgroups {
            self.poll.add(&groups.settled().ready, Token::Settled)?;
        }
        if let Some(signals) = &self.signals {
            self.poll.add(signals, Token::Signals)?;
        }
        if let Some(listener) = &self.listener {
            self.poll.add(listener, Token::Listener)?;
        }
        self.place.add_to(&self.poll)?;
        Ok(())
    }

    /// Accepts the owner at the other end of `socket`, and runs until there is nothing left to do.
    pub(super) fn run(mut self, socket: UnixStream) -> io::Result<()> {
        // After the start of the thread that writes files, which needs no short slices; threads that wait for lifelines
        // do.
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
                self.guarded(Engine::enforce_fence);
                self.guarded(|engine| engine.handle(token));
            }
            self.guarded(Engine::enforce_fence);
            self.guarded(Engine::on_time);
            self.guarded(Engine::notify_owner);
        }
        self.say_goodbye();
        Ok(())
    }

    /// Logs which processes may survive if the guard is killed, and reports this to the owner.
    fn say_what_contains_the_job(&mut self, owner: Key) {
        let text = match &self.cgroups {
            Ok(groups) => format!(
                "control group {} holds all processes of {}: none is left when a rank ends or the guard is killed",
                groups.of_guard().directory().display(),
                myself()
            ),
            Err(why) => format!(
                "no control group holds the processes of {} ({why}): when a rank ends or the guard is killed, a process may survive that has \
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

    /// Runs a handler; a panic in one event's handler must not take the job down.
    fn guarded(&mut self, handle: impl FnOnce(&mut Engine)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handle(self))) {
            self.counters.panics += 1;
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            self.note(&format!("the guard has panicked: {}", text.unwrap_or("unknown")));
        }
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Lifelines => self.take_deaths(),
            Token::Settled => self.have_settled(),
            Token::Signals => self.take_signals(),
            Token::Fence => (), // enforced before each event
            Token::Child(key) => self.take_exit_of(key),
            Token::OwnerProcess => self.owner_process_ended(),
            Token::Listener => self.accept(),
            Token::Claim => self.look_at_claim(),
            Token::Place => self.look_at_place(),
            Token::Conn(key) => _ = self.serve(key),
            Token::Stdout(key) => self.drain(key, TURN_BYTES_MAX, |proc| &mut proc.stdout),
            Token::Stderr(key) => self.drain(key, TURN_BYTES_MAX, |proc| &mut proc.stderr),
            Token::Seat(key) => self.read_standby(key),
            Token::SeatOutput(key) => self.drain_standby(key),
        }
    }

    fn take_signals(&mut self) {
        let terminate = self.signals.as_ref().and_then(sys::read_signals);
        self.reap_all();
        if let Some(sender) = terminate {
            self.end_because(
                &format!("{} received SIGTERM from process {sender}, and stopped all processes", myself()),
                false,
            );
            self.end(TERM_GRACE, None);
        }
    }

    /// Handles everything that is due at this time.
    fn on_time(&mut self) {
        let now = Instant::now();
        if matches!(self.life, Life::Keeping { until } if until <= now) {
            self.end_because(
                &format!("no owner attached within the time that {} was to keep the processes", myself()),
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
        self.report_standbys();
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
            .chain(self.owner_process.as_ref().and_then(exit_watch::Other::deadline))
            .chain(self.strangers_deadline())
            .chain(self.ends_deadline())
            .chain(self.starts_deadline())
            .chain(self.standbys.deadline())
            .chain(self.fence.deadline())
            .min()
    }

    /// Writes a line to `guard.log`.
    fn note(&self, line: &str) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        self.logs.write(self.own_log, format!("{}.{:03} {line}\n", now.tv_sec, now.tv_nsec / 1_000_000).as_bytes());
    }

    /// Waits until the owner has read the last message.
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

/// Writes the record that names the running guard.
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

/// Grace period of the processes when the guard itself is sent SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(10);

/// Returns the name of this guard for messages.
fn myself() -> String {
    format!("guard {}", std::process::id())
}

/// Raises the soft limit of open files to the hard limit, since a guard needs a few descriptors per process.
fn raised(limit: Rlimit) -> Rlimit {
    Rlimit { current: limit.maximum, maximum: limit.maximum }
}

/// Returns true if `/proc` belongs to this PID namespace.
fn proc_is_ours() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|name| name.as_os_str() == std::process::id().to_string().as_str())
}

/// Queues a message that may be sent regardless of unread ones.
fn say(conn: &mut Conn, message: &FromGuard) {
    if conn.send(message).is_err() {
        conn.leaving = true; // beyond the frame limit: the peer connects again and is sent everything
    }
}
