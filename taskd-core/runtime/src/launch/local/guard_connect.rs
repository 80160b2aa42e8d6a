//! Finds the guard of a run directory, or starts one, up to its welcome message.
//!
//! This module only makes connections; orders and history are elsewhere.

use super::builder::{GuardProgram, LocalError, LocalLauncherBuilder};
use crate::job::{Incarnation, Role, Termination};
use crate::launch::GuardEnd;
use crate::launch::guard::cgroup::ControlGroup;
use crate::launch::guard::run_dir::{self, Record, RunDir};
use crate::launch::guard::tree::{self, Member};
use crate::launch::guard::wire::{self, Frames, FromGuard, GuardConfig, JobId, PROTOCOL, ProcReport, Refusal, ToGuard};
use crate::launch::guard::{A_CENTURY, GUARD_NAME, init_was_called, run_in_thread};
use crate::launch::oom::OomCounter;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

/// Time for a guard to answer the first message.
const WELCOME_WITHIN: Duration = Duration::from_secs(5);
/// Time for a guard to lend its listener, and the interval between two attempts.
const BORROW_WITHIN: Duration = Duration::from_secs(5);
const BORROW_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Time for an ending guard to be gone, in addition to the time that it announces itself.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(15);
/// Interval between two checks of that.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time for leftovers of a dead guard's job to be gone.
const LEFTOVERS_WITHIN: Duration = Duration::from_secs(5);
/// Time for a guard's parent to end after the guard has closed the connection without a message.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(1);
/// Time for the process that is briefly the guard's parent to be gone.
const STARTER_GONE_WITHIN: Duration = Duration::from_secs(5);

/// The past that a newly started guard must know.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// The job that continues; `None` for a new one.
    pub(super) job: Option<JobId>,
    pub(super) exits: Vec<ProcReport>,
    pub(super) over: Vec<(Role, Incarnation)>,
}

/// A connection to a guard that accepts this process as its owner.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) frames: Frames,
    pub(super) job: JobId,
    pub(super) guard_pid: u32,
    /// How the previous guard ended, if this one was started in its place.
    pub(super) before: Option<GuardEnd>,
    /// True if the guard was started for this connection, and has no state yet.
    pub(super) is_new: bool,
    /// Listener for the connections of training processes. `None`: it could not be obtained, and no directives can be
    /// sent.
    pub(super) workers: Option<UnixListener>,
}

/// Connects to the guard of the run directory. `None`: no guard is alive there, and nothing is left of a dead one.
pub(super) async fn attach(config: &LocalLauncherBuilder) -> Result<Option<Connection>, LocalError> {
    let run_dir = RunDir::new(config.run_dir.clone());
    let unusable = |source| LocalError::RunDir { path: config.run_dir.clone(), source };
    run_dir.prepare().map_err(unusable)?;
    let mut until = Instant::now() + GONE_WITHIN;
    loop {
        if run_dir.try_lock().map_err(unusable)?.is_some() {
            match run_dir.record() {
                // The guard's lock file was removed, and the guard creates a new one.
                Some(record) if record.guard_is_running() => {
                    if Instant::now() >= until {
                        return Err(silent(config));
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Some(record) => remove_leftovers(config, record).await?,
                None => (),
            }
            return Ok(None);
        }
        match try_attach(config, &run_dir).await {
            Ok(connection) => return Ok(Some(connection)),
            Err(Attempt::Failed(error)) => return Err(error),
            Err(Attempt::Again { after }) if Instant::now() < until => {
                until = until.max(Instant::now() + after.min(A_CENTURY));
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(Attempt::Again { .. }) => return Err(silent(config)),
        }
    }
}

/// Starts a guard. `None`: another supervisor started one first.
pub(super) async fn start(config: &LocalLauncherBuilder, past: &Past) -> Result<Option<Connection>, LocalError> {
    match try_start(config, past).await {
        Ok(connection) => Ok(Some(connection)),
        Err(Attempt::Failed(error)) => Err(error),
        Err(Attempt::Again { .. }) => Ok(None),
    }
}

/// Reasons why there is no connection.
enum Attempt {
    Failed(LocalError),
    /// The attempt has to be repeated: a guard is starting, or ends within this time.
    Again {
        after: Duration,
    },
}

impl Attempt {
    const SOON: Attempt = Attempt::Again { after: Duration::ZERO };
}

/// Returns the error for a silent guard. The guard is named only if it is known to be the one that runs.
pub(super) fn silent(config: &LocalLauncherBuilder) -> LocalError {
    let record = RunDir::new(config.run_dir.clone()).record().filter(Record::guard_is_running);
    LocalError::Silent { pid: record.map(|record| record.guard_pid), run_dir: config.run_dir.clone() }
}

async fn try_attach(config: &LocalLauncherBuilder, run_dir: &RunDir) -> Result<Connection, Attempt> {
    let stream = run_dir.connect().map_err(|_| Attempt::SOON)?;
    let hello = ToGuard::Hello {
        protocol: PROTOCOL,
        takeover: config.takeover,
        on_owner_loss: config.on_owner_loss,
        job_name: config.job_name.as_str().to_owned(),
    };
    let mut greeted = greet(config, stream, &hello).await.unwrap_or(Err(Attempt::SOON))?;
    let confirmed = wire::encode(&ToGuard::Confirm).map_err(|_| Attempt::SOON)?;
    let sent = tokio::io::AsyncWriteExt::write_all(&mut greeted.stream, &confirmed).await;
    sent.map_err(|_| Attempt::SOON)?;
    Ok(Connection { workers: borrow_workers(run_dir).await, ..greeted })
}

/// Borrows a copy of the current guard's listener for control links.
pub(super) async fn workers_of(config: &LocalLauncherBuilder) -> Option<UnixListener> {
    borrow_workers(&RunDir::new(config.run_dir.clone())).await
}

/// Borrows a copy of the listener that the guard holds.
async fn borrow_workers(run_dir: &RunDir) -> Option<UnixListener> {
    let borrowing = async {
        loop {
            // The guard may be busy with other connections, which it closes in a moment.
            match borrow(run_dir).await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(BORROW_AGAIN_AFTER).await,
            }
        }
    };
    let borrowed = tokio::time::timeout(BORROW_WITHIN, borrowing).await;
    borrowed
        .inspect_err(|_| {
            tracing::warn!("no control links yet: the guard has not sent its listener within {BORROW_WITHIN:?}")
        })
        .ok()
}

async fn borrow(run_dir: &RunDir) -> io::Result<UnixListener> {
    let stream = run_dir.connect()?;
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    let word = wire::encode(&ToGuard::Borrow { protocol: PROTOCOL })?;
    tokio::io::AsyncWriteExt::write_all(&mut stream, &word).await?;
    let lent = loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || receive_descriptor(&stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            lent => break lent?,
        }
    };
    listening(lent.into())
}

/// Receives one byte and the descriptor that comes with it.
fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(stream, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other("it sent no descriptor"))
}

fn listening(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn try_start(config: &LocalLauncherBuilder, past: &Past) -> Result<Connection, Attempt> {
    let unusable = |source| Attempt::Failed(LocalError::Environment(source));
    let job = past.job.clone().map_or_else(run_dir::new_job_id, Ok).map_err(unusable)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(unusable)?;
    let program = match &config.guard {
        GuardProgram::ReexecSelf if !init_was_called() => return Err(Attempt::Failed(LocalError::NotInitialised)),
        GuardProgram::ReexecSelf => Some(Path::new("/proc/self/exe")),
        GuardProgram::Path(program) => Some(program.as_path()),
        GuardProgram::None => None,
    };
    let shown = program.unwrap_or(Path::new("a thread")).to_owned();
    let run_dir = RunDir::new(config.run_dir.clone());
    let before = run_dir.last_end();
    let mut oom = OomCounter::of(rustix::process::getpid());
    let begun = match program {
        Some(program) => Starter::spawn(program, theirs.into()).map(|starter| (Some(starter), None)),
        None => run_dir.listen_for_workers().and_then(|door| {
            let ours = door.listener.try_clone().and_then(listening)?;
            run_in_thread(theirs, door).map(|()| (None, Some(ours)))
        }),
    };
    let (starter, own_workers) =
        begun.map_err(|source| Attempt::Failed(LocalError::Program { program: shown.clone(), source }))?;
    let guard_config = GuardConfig {
        protocol: PROTOCOL,
        job,
        job_name: config.job_name.as_str().to_owned(),
        run_dir: config.run_dir.clone(),
        owner_pid: std::process::id(),
        on_owner_loss: config.on_owner_loss,
        log_bytes_max: config.log_bytes_max,
        exits: past.exits.clone(),
        over: past.over.clone(),
    };
    let greeted = greet(config, ours, &ToGuard::Init(Box::new(guard_config))).await;
    let greeted = match (greeted, starter) {
        (Ok(greeted), starter) => {
            if let Some(starter) = starter.filter(|_| greeted.is_ok()) {
                starter.reap().await;
            }
            greeted?
        }
        (Err(error), starter) => {
            let how = match starter {
                Some(starter) => starter.end().await,
                None => None,
            };
            let oom = oom.as_mut().and_then(OomCounter::unexplained);
            return Err(Attempt::Failed(LocalError::Guard(no_first_word(&shown, how, oom, &error))));
        }
    };
    let workers = match own_workers {
        None => borrow_workers(&run_dir).await,
        own => own,
    };
    run_dir.forget_end();
    Ok(Connection { is_new: true, before, workers, ..greeted })
}

/// The starting process of a guard: it ends as soon as the guard runs, so that the guard is no child of this process.
///
/// A host program that reaps all its children itself may reap it first, which does no harm. If this value is dropped
/// before that end, the process is killed: it is not a guard, or it is a guard that has not made contact yet.
struct Starter(Child);

impl Starter {
    fn spawn(program: &Path, socket: OwnedFd) -> io::Result<Starter> {
        let mut command = Command::new(program);
        command.arg0(GUARD_NAME).arg(PROTOCOL.to_string());
        command.stdin(socket).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Starter)
    }

    /// Returns how the process ends, if it ends soon.
    async fn end(mut self) -> Option<Termination> {
        let until = Instant::now() + LAST_WORD_WITHIN;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(Termination::of_wait_status(status.into_raw())),
                Ok(None) if Instant::now() < until => tokio::time::sleep(LOOK_EVERY).await,
                _ => return None,
            }
        }
    }

    /// Waits until the process has ended.
    async fn reap(mut self) {
        let until = Instant::now() + STARTER_GONE_WITHIN;
        while self.runs() && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns true if the process still runs. An error means that it was reaped elsewhere.
    fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

/// Returns the reason why a started guard sent no first message, as far as the end of its parent process shows it.
fn no_first_word(program: &Path, how: Option<Termination>, oom: Option<String>, error: &io::Error) -> String {
    let program = program.display();
    let killed = "it was killed right after its start: check what stops or limits processes here, and the kernel's log";
    let why = match (how, oom) {
        (_, Some(oom)) => format!("most likely {oom}"),
        // A guard leaves its parent at once, and the parent then ends with 0 whatever happens to the guard.
        (Some(Termination::Code(0)), None) => {
            format!("it ended with exit code 0, or left its parent and ended: if it is a taskd-guard, {killed}")
        }
        (Some(how @ Termination::Signal { .. }), None) => format!("{how}: {killed}"),
        (Some(how), None) => format!("{how}: is it a taskd-guard?"),
        (None, None) => "it closed its connection and did not end: is it a taskd-guard?".to_owned(),
    };
    format!("{program} ended before its first message ({error}): {why}")
}

impl Drop for Starter {
    fn drop(&mut self) {
        if self.runs() {
            let _ = self.0.kill();
            let _ = self.0.wait(); // returns at once: no process survives SIGKILL
        }
    }
}

/// Sends the first message and waits for the welcome. The outer error means that the guard closed the connection.
async fn greet(
    config: &LocalLauncherBuilder,
    stream: std::os::unix::net::UnixStream,
    word: &ToGuard,
) -> io::Result<Result<Connection, Attempt>> {
    let Ok(answer) = tokio::time::timeout(WELCOME_WITHIN, exchange(stream, word)).await else {
        return Ok(Err(Attempt::Failed(silent(config))));
    };
    Ok(answer?.map_err(|refusal| refused(config, refusal)))
}

async fn exchange(stream: std::os::unix::net::UnixStream, word: &ToGuard) -> io::Result<Result<Connection, Refusal>> {
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    tokio::io::AsyncWriteExt::write_all(&mut stream, &wire::encode(word)?).await?;
    let mut frames = Frames::new(wire::FRAME_BYTES_MAX);
    let mut part = vec![0; 16 << 10];
    loop {
        match frames.next_message()? {
            Some(FromGuard::Welcome { job, guard_pid, .. }) => {
                let (before, workers) = (None, None);
                return Ok(Ok(Connection { stream, frames, job, guard_pid, before, is_new: false, workers }));
            }
            Some(FromGuard::Refused(refusal)) => return Ok(Err(refusal)),
            Some(_) => return Err(io::Error::other("not a welcome")),
            None => match tokio::io::AsyncReadExt::read(&mut stream, &mut part).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => frames.push(&part[..n]),
            },
        }
    }
}

fn refused(config: &LocalLauncherBuilder, refusal: Refusal) -> Attempt {
    let run_dir = config.run_dir.clone();
    Attempt::Failed(match refusal {
        Refusal::Ending { gone_within } => return Attempt::Again { after: gone_within },
        Refusal::Occupied => return Attempt::SOON,
        Refusal::Owned { by_pid } => LocalError::Owned { by_pid, run_dir },
        Refusal::OtherJob { name } => LocalError::OtherJob { name, run_dir },
        Refusal::Protocol(theirs) => LocalError::Protocol { theirs, ours: PROTOCOL, run_dir },
        Refusal::Failed(why) => LocalError::Guard(why),
    })
}

/// Removes every process of this job that has no guard any more; processes of another job are left alone.
async fn remove_leftovers(config: &LocalLauncherBuilder, record: Record) -> Result<(), LocalError> {
    let leaders = RunDir::new(config.run_dir.clone()).sessions(&record);
    let leaders: Vec<Member> = leaders.into_iter().map(Member::new).collect();
    let ours = record.job_name.as_deref().is_none_or(|name| name == config.job_name.as_str());
    let removal = tokio::task::spawn_blocking(move || {
        let group = record.cgroup.as_ref().and_then(|group| ControlGroup::of_dead_guard(group, &record.job));
        if !ours
            && (group.as_ref().is_some_and(ControlGroup::has_processes)
                || tree::has_processes_left(&record.job, &leaders))
        {
            return record.job_name;
        }
        if let Some(group) = group.filter(|group| !group.remove(LEFTOVERS_WITHIN)) {
            tracing::warn!(
                "the processes of a dead guard in control group {} have not ended within {LEFTOVERS_WITHIN:?}: check \
                 their state (ps -o pid,stat,wchan)",
                group.directory().display()
            );
        }
        if ours {
            tree::remove_all(&record.job, &leaders, LEFTOVERS_WITHIN);
        }
        None
    });
    match removal.await {
        Ok(Some(name)) => Err(LocalError::OtherJob { name, run_dir: config.run_dir.clone() }),
        _ => Ok(()), // only this process could prevent it, by shutting its runtime down
    }
}
