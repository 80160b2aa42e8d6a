//! The supervisor's end of the control links: who is linked, what is to be told to whom, and what they say.
//!
//! It decides nothing: directives go out as they are given, what processes say goes into the history. A process that cannot
//! prove to be the one that it says it is, or says what is no message, loses its connection, which is counted. What a process was
//! told that says what is no message counts as answered so.

mod conn;
mod frames;

use super::history::History;
use crate::job::{CommandId, ProcId, Role};
use crate::launch::guard::wire;
use crate::launch::{
    Change, DirectBatch, Directive, LaunchError, LinkStatus, Linked, Listing, Phase, Point, Saying, StateDigest,
    StepFailure, WorkerSaid,
};
use frames::{Answer, Failed, Limits, ToWorker, shortened};
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

/// Most connections at once, of processes and of whoever else finds the socket; further ones are closed, and counted.
const CONNS_MAX: usize = 4096 + 64;
/// Most connections of one process at once: it needs one, and a second while the first is not known to be over.
const CONNS_OF_PROCESS_MAX: usize = 8;
/// Descriptors that links leave to the rest of the supervisor.
const DESCRIPTORS_LEFT: u64 = 64;
/// Frames that may wait for one process; a directive to one that reads nothing is refused.
const UNSENT_MAX: usize = 64;
/// Directives without an answer that are kept for one process, which may be away; the oldest is given up.
const OPEN_MAX: usize = 16;

/// How long a new owner waits for the links of ranks that run already: they come by themselves, within a second at most.
const BACK_WITHIN: Duration = Duration::from_millis(1200);
/// The same while none has come: programs may have none.
const FIRST_BACK_WITHIN: Duration = Duration::from_millis(200);
/// How often is looked for them.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How many connections each process has.
#[derive(Clone, Debug, Default)]
struct Peers(Arc<Mutex<BTreeMap<i32, usize>>>);

/// A connection of a process's, as long as this is held.
#[derive(Debug)]
struct Place(Peers, i32);

impl Peers {
    /// `None`: the process has as many as one may have, or its pid is not known.
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

/// Whether descriptors are left for the rest of this process, operators first: a new one has the lowest free number.
fn leaves_descriptors(stream: &UnixStream) -> bool {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::try_from(stream.as_raw_fd()).is_ok_and(|number| number + DESCRIPTORS_LEFT < limit)
}

/// What is counted of the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounts {
    /// Connections that were closed: strangers, more than can be held, and what is no message.
    pub refused: u64,
    /// Answers that nobody waits for: told twice, or of a directive that was given up.
    pub unexpected: u64,
}

/// All links of one launcher.
#[derive(Debug)]
pub(super) struct Workers {
    history: Arc<History>,
    seats: Mutex<BTreeMap<ProcId, Seat>>,
    refused: AtomicU64,
    unexpected: AtomicU64,
    /// Whether any process has been in a step loop, here or elsewhere.
    in_loop: AtomicBool,
}

/// One process, linked or away.
#[derive(Debug, Default)]
struct Seat {
    /// Which connection is its own: a later one takes an earlier one's place.
    conn: u64,
    way: Option<mpsc::Sender<Vec<u8>>>,
    linked: Option<Linked>,
    /// Directives without an answer.
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
        self.seats.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }

    /// A process has been in a step loop.
    pub(super) fn come_to_loop(&self) {
        self.in_loop.store(true, Ordering::Relaxed);
    }

    /// Whether any process has been in a step loop, here or elsewhere.
    pub(super) fn in_loop(&self) -> bool {
        self.in_loop.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> LinkCounts {
        LinkCounts {
            refused: self.refused.load(Ordering::Relaxed),
            unexpected: self.unexpected.load(Ordering::Relaxed),
        }
    }

    /// Serves all who connect, until it is dropped.
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
                // Out of descriptors, mostly: who waits is served when there is one.
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

    /// Waits, within a bound, until the ranks that run are linked. Else a new owner would find nobody whom it could tell to go on
    /// with the recovery that it takes over, and would restart everybody.
    pub(super) async fn until_back(&self) {
        let began = Instant::now();
        loop {
            let Listing { procs, links, .. } = self.history.log.listing();
            let is_linked = |proc: &ProcId| links.iter().any(|link| link.proc == *proc && link.linked.is_some());
            let mut running =
                procs.iter().filter(|p| p.phase == Phase::Running && matches!(p.proc.role, Role::Rank(_)));
            let bound = if links.iter().any(|link| link.linked.is_some()) { BACK_WITHIN } else { FIRST_BACK_WITHIN };
            if running.all(|status| is_linked(&status.proc)) || began.elapsed() > bound {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Gives directives. A directive that was given before is not given again.
    pub(super) fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        let mut seats = self.seats();
        let away = |proc: &ProcId| seats.get(proc).is_none_or(|seat| seat.way.is_none());
        if let Some((proc, _)) = batch.orders.iter().find(|(proc, _)| away(proc)) {
            return Err(LaunchError::Refused(format!("{proc} has no control link now")));
        }
        for (proc, what) in &batch.orders {
            let generation = batch.world.generation();
            let frame = wire::encode(&ToWorker::Do { id, generation, what });
            let frame = frame.map_err(|error| LaunchError::Refused(format!("{proc}: {error}")))?;
            let Some(seat) = seats.get_mut(proc) else { continue };
            if seat.open.contains_key(&id) {
                continue;
            }
            let joins = matches!(what, Directive::Join { .. });
            if seat.way.as_ref().is_some_and(|way| way.try_send(frame.clone()).is_err()) {
                return Err(LaunchError::Unreachable(format!("{proc} does not read what it is told")));
            }
            seat.open.insert(id, Open { frame, generation, joins });
            while seat.open.len() > OPEN_MAX {
                seat.open.pop_first();
            }
        }
        Ok(())
    }

    /// A process has proved who it is. Directives that it has not answered are given again: it knows what it has done.
    fn enter(&self, proc: &ProcId, conn: u64, way: mpsc::Sender<Vec<u8>>, linked: Linked) {
        let mut seats = self.seats();
        seats.retain(|known, _| known.role != proc.role || known == proc);
        let seat = seats.entry(proc.clone()).or_default();
        for open in seat.open.values() {
            let _ = way.try_send(open.frame.clone()); // the queue is new, and holds more than can be open
        }
        (seat.conn, seat.way, seat.linked) = (conn, Some(way), Some(linked));
        self.tell(proc, seat);
    }

    /// A connection is over. What takes its place is left alone.
    fn leave(&self, proc: &ProcId, conn: u64) {
        let mut seats = self.seats();
        if let Some(seat) = seats.get_mut(proc).filter(|seat| seat.conn == conn) {
            (seat.way, seat.linked) = (None, None);
            self.tell(proc, seat);
        }
    }

    /// What a process says is no message. What it was told counts as answered so: told again it would say the same again, and whoever
    /// waits for it would only be late.
    fn misunderstood(&self, proc: &ProcId, conn: u64, why: &str) {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(proc).filter(|seat| seat.conn == conn) else { return };
        let why = shortened(&format!("what it said on its control link is no message: {why}"));
        for id in mem::take(&mut seat.open).into_keys() {
            self.says(proc, Saying::Answer { id, result: Err(why.clone()) });
        }
    }

    fn moved(&self, proc: &ProcId, at: Point, state_bytes: Option<u64>, limits: &Limits) {
        self.change(proc, |linked| {
            linked.at = at;
            (linked.cannot, linked.sharded) = (limits.cannot(), limits.sharded());
            linked.state_bytes = state_bytes.or(linked.state_bytes);
        });
    }

    /// A process has computed the checksum of its state.
    fn has_digest(&self, proc: &ProcId, digest: StateDigest) {
        self.change(proc, |linked| linked.digest = Some(Box::new(digest)));
    }

    fn change(&self, proc: &ProcId, change: impl FnOnce(&mut Linked)) {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(proc) else { return };
        if let Some(linked) = &mut seat.linked {
            change(linked);
            self.tell(proc, seat);
        }
    }

    /// Under the lock, so that the history has it in order.
    fn tell(&self, proc: &ProcId, seat: &Seat) {
        if seat.linked.as_ref().is_some_and(|linked| linked.at == Point::Loop) {
            self.come_to_loop();
        }
        let status = LinkStatus { proc: proc.clone(), linked: seat.linked.clone() };
        self.history.log.push(Change::Link(status));
    }

    fn answered(&self, proc: &ProcId, answer: Answer) {
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
        self.says(proc, Saying::Answer { id, result });
    }

    fn failed(&self, proc: &ProcId, failed: Failed) {
        let generation = self.seats().get(proc).and_then(|seat| Some(seat.linked.as_ref()?.generation));
        let Some(generation) = generation else { return };
        let message = failed.message();
        let (op, group) = (failed.op(), failed.group());
        let Failed { kind, step, .. } = failed;
        let failure = StepFailure { generation, kind, step, message, op, group };
        self.says(proc, Saying::Failed(Box::new(failure)));
    }

    fn says(&self, proc: &ProcId, what: Saying) {
        self.history.log.push(Change::Said(WorkerSaid { proc: proc.clone(), what }));
    }
}

#[cfg(test)]
mod tests;
