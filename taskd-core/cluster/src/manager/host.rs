//! One host as its manager sees it: its session, its signs of life, and its last grant.

use super::facts::FactCounts;
use crate::clock_offset::{ClockOffset, HostClocks, Reading, RoundTrip};
use crate::session::{Calls, Link, Outgoing, WindowBounds};
use crate::wire::proto::{ToAgent, to_agent};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_runtime::job::NodeId;
use taskd_runtime::launch::LauncherInfo;
use taskd_runtime::trace::SourceInfo;
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether a host gives signs of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    Seen,
    /// It has been silent: nothing is known of its processes.
    OutOfSight,
    /// Its lease is over: none of its processes runs any more.
    Left,
}

/// A host of the job.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: NodeId,
    /// Time of the last message of its agent.
    pub(super) heard: watch::Sender<Instant>,
    pub(super) sight: watch::Sender<Visibility>,
    /// Number of the session in use.
    session: watch::Sender<u64>,
    state: Mutex<State>,
}

/// A host of the job, as its manager sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HostStatus {
    /// Name of the host.
    pub host: NodeId,
    /// Address from which its agent has connected.
    pub peer: String,
    /// Its labels, such as its place in the network.
    pub labels: BTreeMap<String, String>,
    /// How far its calendar clock is ahead of the manager's; `None` before the first round trip of a lease. No decision
    /// depends on it.
    pub clock: Option<ClockOffset>,
    /// Names of its trace sources.
    pub sources: Vec<String>,
    /// What these have reported to this manager.
    pub facts: FactCounts,
}

#[derive(Debug)]
struct State {
    session: Arc<Session>,
    info: LauncherInfo,
    sources: Arc<[SourceInfo]>,
    labels: BTreeMap<String, String>,
    clocks: HostClocks,
    facts: FactCounts,
    /// Address from which its agent has connected.
    peer: String,
    /// Address at which other agents reach its agent; `None` if it offers them nothing.
    peer_address: Option<String>,
    /// Anchor of the last grant: its ranks run at most a lease longer.
    granted: Instant,
}

/// A session with the host's agent.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    /// Identifier of the agent's process.
    pub(super) instance: String,
    pub(super) link: Arc<Link<Outgoing>>,
    pub(super) calls: Calls,
}

impl Session {
    pub(super) fn new(id: u64, instance: String, epoch: u64) -> Arc<Session> {
        let wrap = |frame| Ok(ToAgent { message: Some(to_agent::Message::Frame(frame)) });
        let link = Arc::new(Link::new(WindowBounds::default(), wrap));
        Arc::new(Session { id, instance, calls: Calls::new(Arc::clone(&link), epoch), link })
    }
}

/// What an agent states about itself when it opens a session.
#[derive(Debug)]
pub(super) struct Introduction {
    pub(super) info: LauncherInfo,
    pub(super) sources: Arc<[SourceInfo]>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) peer: String,
    pub(super) peer_address: Option<String>,
}

impl Host {
    pub(super) fn new(name: NodeId, session: Arc<Session>, by: Introduction, now: Instant) -> Host {
        let Introduction { info, sources, labels, peer, peer_address } = by;
        let (number, clocks, facts) = (watch::Sender::new(session.id), HostClocks::default(), FactCounts::default());
        // A host that never got a grant of this manager may still have one of its predecessor.
        let state = State { session, info, sources, labels, clocks, facts, peer, peer_address, granted: now };
        let (heard, sight) = (watch::Sender::new(now), watch::Sender::new(Visibility::Seen));
        Host { name, heard, sight, session: number, state: Mutex::new(state) }
    }

    /// Returns the session in use.
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.lock().session)
    }

    /// Uses a new session of the host from now on; the calls of the last one end.
    pub(super) fn replace(&self, session: Arc<Session>, by: Introduction) {
        let number = session.id;
        let old = {
            let mut state = self.lock();
            (state.info, state.sources, state.labels) = (by.info, by.sources, by.labels);
            state.clocks = HostClocks::default(); // the host may have started again
            (state.peer, state.peer_address) = (by.peer, by.peer_address);
            std::mem::replace(&mut state.session, session)
        };
        self.session.send_replace(number);
        old.calls
            .end("the agent of this host has opened another session: whether the call was carried out is not known");
    }

    pub(super) fn info(&self) -> LauncherInfo {
        self.lock().info.clone()
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        self.lock().labels.clone()
    }

    pub(super) fn sources(&self) -> Arc<[SourceInfo]> {
        Arc::clone(&self.lock().sources)
    }

    /// Waits until another session than the one with this number is in use.
    pub(super) async fn other_session(&self, number: u64) {
        let _ = self.session.subscribe().wait_for(|session| *session != number).await; // the sender is in `self`
    }

    pub(super) fn status(&self, now: Reading, rate_ppm: u32) -> HostStatus {
        let state = self.lock();
        HostStatus {
            host: self.name.clone(),
            peer: state.peer.clone(),
            labels: state.labels.clone(),
            clock: state.clocks.offset(now, rate_ppm),
            sources: state.sources.iter().map(|source| source.name.to_string()).collect(),
            facts: state.facts,
        }
    }

    /// Takes the clocks that a request for a lease states, and the round trip that it ends, if it ends one.
    pub(super) fn take_clocks(&self, own_nanos: u64, calendar_nanos: u64, round_trip: Option<RoundTrip>) {
        let mut state = self.lock();
        state.clocks.calendar(own_nanos, calendar_nanos);
        round_trip.into_iter().for_each(|round_trip| state.clocks.add(round_trip));
    }

    /// Returns the shortest time that may have passed between this time of the host's own clock and `now` of the manager's
    /// own, both in nanoseconds.
    pub(super) fn passed(&self, sent_nanos: u64, now: u64, rate_ppm: u32) -> Duration {
        self.lock().clocks.passed(sent_nanos, now, rate_ppm)
    }

    /// Changes the counters of the host's facts.
    pub(super) fn count(&self, change: impl FnOnce(&mut FactCounts)) {
        change(&mut self.lock().facts);
    }

    pub(super) fn peer(&self) -> String {
        self.lock().peer.clone()
    }

    pub(super) fn peer_address(&self) -> Option<String> {
        self.lock().peer_address.clone()
    }

    /// Records a sign of life.
    pub(super) fn hear(&self, now: Instant) {
        self.heard.send_replace(now);
    }

    /// Records the anchor of a grant.
    pub(super) fn grant(&self, anchor: Instant) {
        let mut state = self.lock();
        state.granted = state.granted.max(anchor);
    }

    pub(super) fn granted(&self) -> Instant {
        self.lock().granted
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}
