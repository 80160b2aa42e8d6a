//! The supervisor's end of the control links: connected processes, pending directives, and the processes' reports.
//!
//! It makes no decisions: directives are sent as ordered, and reports are added to the history. A process that cannot
//! prove its identity, or sends an invalid message, loses its connection, which is counted. Directives that are pending
//! for a process that sends an invalid message fail.

mod conn;
mod frames;

use super::history::History;
use crate::job::{CommandId, ProcId, Role};
use crate::launch::guard::wire;
use crate::launch::{
    Change, ControlLink, Directive, DirectiveBatch, LaunchError, LinkStatus, Listing, LoopPosition, Phase, StateDigest,
    StepFailure, WorkerEvent, WorkerMessage,
};
use frames::{Failed, Limits, Reply, ToWorker, shortened};
use rustix::process::Resource;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of connections at once, from processes and from strangers that find the socket; further ones are
/// closed and counted.
const CONNS_MAX: usize = 4096 + 64;
/// Maximum number of connections of one process at once: it needs one, and a second while the end of the first is not
/// known.
const CONNS_OF_PROCESS_MAX: usize = 8;
/// Number of descriptors that links leave free for the rest of the supervisor.
const DESCRIPTORS_LEFT: u64 = 64;
/// Maximum number of frames that wait for one process; a directive to a process that does not read is refused.
const UNSENT_MAX: usize = 64;
/// Maximum number of unanswered directives kept for one process, which may be disconnected; the oldest is dropped.
const OPEN_MAX: usize = 16;

/// Time that a new owner waits for the links of running ranks: they reconnect by themselves, within a second at most.
const BACK_WITHIN: Duration = Duration::from_millis(1200);
/// The same time while no rank has reconnected: the programs may have no links.
const FIRST_BACK_WITHIN: Duration = Duration::from_millis(200);
/// Interval between two checks for them.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Number of connections of each process.
#[derive(Clone, Debug, Default)]
struct Peers(Arc<Mutex<BTreeMap<i32, usize>>>);

/// A slot for a process's connection, occupied while this value exists.
#[derive(Debug)]
struct Place(Peers, i32);

impl Peers {
    /// Takes a slot. `None`: the process has the maximum number, or its pid is not known.
    fn place_for(&self, stream: &UnixStream) -> Option<Place> {
        let pid = stream.peer_cred().ok()?.pid()?;
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(pid).or_default();
        if *count >= CONNS_OF_PROCESS_MAX {
            return None;
        }
        *count += 1;
        Some(Place(self.clone(), pid))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&self.1) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.1)),
        }
    }
}

/// Returns true if enough descriptors are left for the rest of this process, operators first: a new descriptor has the
/// lowest free number.
fn leaves_descriptors(stream: &UnixStream) -> bool {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::try_from(stream.as_raw_fd()).is_ok_and(|number| number + DESCRIPTORS_LEFT < limit)
}

/// Counters of a launcher's control links (the connections between the launcher and its training processes) since the
/// launcher was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounts {
    /// Number of connections to the launcher's worker socket that the launcher closed, because the process at the other
    /// end does not belong to the job, because the maximum number of connections was open, or because the process sent
    /// an invalid message.
    pub refused: u64,
    /// Number of replies of training processes for which no directive was waiting: replies that were sent twice, or
    /// replies to a directive that was dropped.
    pub unexpected: u64,
}

/// All control links of one launcher.
#[derive(Debug)]
pub(super) struct Workers {
    history: Arc<History>,
    seats: Mutex<BTreeMap<ProcId, Seat>>,
    refused: AtomicU64,
    unexpected: AtomicU64,
    /// True if any process has been in a step loop, on this host or elsewhere.
    in_loop: AtomicBool,
}

/// The entry of one process, connected or not.
#[derive(Debug, Default)]
struct Seat {
    /// Number of the current connection: a later one replaces an earlier one.
    conn: u64,
    way: Option<mpsc::Sender<Vec<u8>>>,
    linked: Option<ControlLink>,
    /// Directives to this process that have no reply yet.
    open: BTreeMap<CommandId, Open>,
}

#[derive(Debug)]
struct Open {
    frame: Vec<u8>,
    generation: crate::job::Generation,
    joins: bool,
}

impl Workers {
    pub(super) fn new(history: Arc<History>) -> Arc<Workers> {
        let counter = AtomicU64::default;
        let in_loop = AtomicBool::new(false);
        Arc::new(Workers { history, seats: Mutex::default(), refused: counter(), unexpected: counter(), in_loop })
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<ProcId, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }

    /// Records that a process has been in a step loop.
    pub(super) fn come_to_loop(&self) {
        self.in_loop.store(true, Ordering::Relaxed);
    }

    /// Returns true if any process has been in a step loop, on this host or elsewhere.
    pub(super) fn in_loop(&self) -> bool {
        self.in_loop.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> LinkCounts {
        LinkCounts {
            refused: self.refused.load(Ordering::Relaxed),
            unexpected: self.unexpected.load(Ordering::Relaxed),
        }
    }

    /// Serves all connections until the future is dropped.
    pub(super) async fn serve(self: Arc<Workers>, listener: UnixListener) {
        let mut conns = JoinSet::new();
        let (mut number, peers) = (0, Peers::default());
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = listener.accept() => accepted,
                Some(_) = conns.join_next() => continue,
            };
            let Ok((stream, _)) = accepted else {
                // Usually out of descriptors: waiting connections are served when one is free.
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                continue;
            };
            let place = peers.place_for(&stream).filter(|_| conns.len() < CONNS_MAX && leaves_descriptors(&stream));
            let Some(place) = place else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            number += 1;
            let served = conn::serve(Arc::clone(&self), stream, number);
            conns.spawn(async move {
                served.await;
                drop(place);
            });
        }
    }

    /// Waits, within a time limit, until the running ranks are connected. Otherwise a new owner would find no rank to
    /// which it could send the directives of the recovery that it takes over, and would restart all ranks.
    pub(super) async fn until_back(&self) {
        let began = Instant::now();
        loop {
            let Listing { procs, links, .. } = self.history.log.listing();
            let is_linked = |proc: &ProcId| links.iter().any(|link| link.proc == *proc && link.link.is_some());
            let mut running =
                procs.iter().filter(|p| p.phase == Phase::Running && matches!(p.proc.role, Role::Rank(_)));
            let bound = if links.iter().any(|link| link.link.is_some()) { BACK_WITHIN } else { FIRST_BACK_WITHIN };
            if running.all(|status| is_linked(&status.proc)) || began.elapsed() > bound {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Sends directives. A directive that was sent before is not sent again.
    pub(super) fn direct(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let mut seats = self.seats();
        let away = |proc: &ProcId| seats.get(proc).is_none_or(|seat| seat.way.is_none());
        if let Some((proc, _)) = batch.directives.iter().find(|(proc, _)| away(proc)) {
            return Err(LaunchError::Refused(format!("{proc} has no control link now")));
        }
        for (proc, what) in &batch.directives {
            let generation = batch.world.generation();
            let frame = wire::encode(&ToWorker::Do { id, generation, what });
            let frame = frame.map_err(|error| LaunchError::Refused(format!("{proc}: {error}")))?;
            let Some(seat) = seats.get_mut(proc) else { continue };
            if seat.open.contains_key(&id) {
                continue;
            }
            let joins = matches!(what, Directive::Join { .. });
            if seat.way.as_ref().is_some_and(|way| way.try_send(frame.clone()).is_err()) {
                return Err(LaunchError::Unreachable(format!("{proc} does not read its directives")));
            }
            seat.open.insert(id, Open { frame, generation, joins });
            while seat.open.len() > OPEN_MAX {
                seat.open.pop_first();
            }
        }
        Ok(())
    }

    /// Registers a process that has proved its identity. Its unanswered directives are sent again: the process knows
    /// which it has carried out.
    fn enter(&self, proc: &ProcId, conn: u64, way: mpsc::Sender<Vec<u8>>, linked: ControlLink) {
        let mut seats = self.seats();
        seats.retain(|known, _| known.role != proc.role || known == proc);
        let seat = seats.entry(proc.clone()).or_default();
        for open in seat.open.values() {
            let _ = way.try_send(open.frame.clone()); // the queue is new, and can hold all open directives
        }
        (seat.conn, seat.way, seat.linked) = (conn, Some(way), Some(linked));
        self.report_link(proc, seat);
    }

    /// Removes a closed connection, unless a newer one has replaced it.
    fn leave(&self, proc: &ProcId, conn: u64) {
        let mut seats = self.seats();
        if let Some(seat) = seats.get_mut(proc).filter(|seat| seat.conn == conn) {
            (seat.way, seat.linked) = (None, None);
            self.report_link(proc, seat);
        }
    }

    /// Handles an unparsable message: pending directives fail at once, since a retry would give the same result, and
    /// waiting would only delay the failure.
    fn misunderstood(&self, proc: &ProcId, conn: u64, why: &str) {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(proc).filter(|seat| seat.conn == conn) else { return };
        let why = shortened(&format!("it sent an invalid message on its control link: {why}"));
        for id in mem::take(&mut seat.open).into_keys() {
            self.report(proc, WorkerMessage::Reply { id, result: Err(why.clone()) });
        }
    }

    fn moved(&self, proc: &ProcId, at: LoopPosition, state_bytes: Option<u64>, limits: &Limits) {
        self.change(proc, |linked| {
            linked.position = at;
            (linked.unsupported_reason, linked.sharded) = (limits.unsupported_reason(), limits.sharded());
            linked.state_bytes = state_bytes.or(linked.state_bytes);
        });
    }

    /// Records the checksum that a process has computed of its state.
    fn has_digest(&self, proc: &ProcId, digest: StateDigest) {
        self.change(proc, |linked| linked.digest = Some(Box::new(digest)));
    }

    fn change(&self, proc: &ProcId, change: impl FnOnce(&mut ControlLink)) {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(proc) else { return };
        if let Some(linked) = &mut seat.linked {
            change(linked);
            self.report_link(proc, seat);
        }
    }

    /// Reports the link's state. Called under the lock, so that the history has the changes in order.
    fn report_link(&self, proc: &ProcId, seat: &Seat) {
        if seat.linked.as_ref().is_some_and(|linked| linked.position == LoopPosition::InLoop) {
            self.come_to_loop();
        }
        let status = LinkStatus::new(proc.clone(), seat.linked.clone());
        self.history.log.push(Change::Link(status));
    }

    fn answered(&self, proc: &ProcId, answer: Reply) {
        let id = answer.id;
        let open = self.seats().get_mut(proc).and_then(|seat| seat.open.remove(&id));
        let Some(open) = open else {
            self.unexpected.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let result = answer.result();
        if open.joins && result.is_ok() {
            self.change(proc, |linked| linked.generation = open.generation);
        }
        self.report(proc, WorkerMessage::Reply { id, result });
    }

    fn failed(&self, proc: &ProcId, failed: Failed) {
        let generation = self.seats().get(proc).and_then(|seat| Some(seat.linked.as_ref()?.generation));
        let Some(generation) = generation else { return };
        let message = failed.message();
        let (op, group) = (failed.op(), failed.group());
        let Failed { kind, step, .. } = failed;
        let failure = StepFailure::new(generation, kind, message).with_step(step).with_op(op).with_group(group);
        self.report(proc, WorkerMessage::Failed(Box::new(failure)));
    }

    fn report(&self, proc: &ProcId, what: WorkerMessage) {
        self.history.log.push(Change::Worker(WorkerEvent::new(proc.clone(), what)));
    }
}

#[cfg(test)]
mod tests;
