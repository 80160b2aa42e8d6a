//! One host as its manager sees it: its session, its signs of life, and its last grant.
//!
//! Live connections have a single owner each: the task that reads a connection holds its `Host`, so that a message of
//! 10,000 agents looks nothing up and takes no lock that another agent's message takes. The map of all hosts is an
//! ordered one behind one lock, which only the begin and the end of a session take: a concurrent map would have nothing
//! to speed up, and its order would differ from run to run.

use super::facts::FactCounts;
use crate::clock_offset::{ClockOffset, HostClocks, Reading, RoundTrip};
use crate::security::JobToken;
use crate::session::{Calls, Link, Outgoing, WindowBounds};
use crate::settings::ClusterSettings;
use crate::wire::VERSION_RELAYS;
use crate::wire::proto::{ToAgent, Welcome, to_agent};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_runtime::job::NodeId;
use taskd_runtime::launch::LauncherInfo;
use taskd_runtime::trace::SourceInfo;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

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
    /// Time at which its first session began.
    pub(super) joined: Instant,
    /// Time of the last message of its agent.
    pub(super) heard: watch::Sender<Instant>,
    pub(super) sight: watch::Sender<Visibility>,
    /// Number of the session in use.
    session: watch::Sender<u64>,
    /// True once its processes are listed.
    listed: AtomicBool,
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
    /// Version of the protocol.
    version: u32,
    /// Secret that relayed calls present to the agent; empty if there are none.
    pub(super) relay_key: String,
    /// Held by a call with an effect until it has left: later ones do not overtake it on another way.
    pub(super) order: tokio::sync::Mutex<()>,
}

impl Session {
    pub(super) fn new(id: u64, instance: String, epoch: u64, version: u32) -> Arc<Session> {
        let wrap = |frame| Ok(ToAgent { message: Some(to_agent::Message::Frame(frame)) });
        let link = Arc::new(Link::new(WindowBounds::default(), wrap));
        let key = || JobToken::generate().map(|key| key.secret().to_owned()).unwrap_or_default();
        let relay_key = if version >= VERSION_RELAYS { key() } else { String::new() };
        let (calls, order) = (Calls::new(Arc::clone(&link), epoch), tokio::sync::Mutex::default());
        Arc::new(Session { id, instance, calls, link, version, relay_key, order })
    }

    /// Returns true if relays may pass calls on to the agent, and through it to others.
    pub(super) fn relays(&self) -> bool {
        !self.relay_key.is_empty()
    }

    /// Returns true if calls may have a `shared` part.
    pub(super) fn shares(&self) -> bool {
        self.version >= VERSION_RELAYS
    }

    /// Sends the Welcome of a connection, then the frames that the agent does not have. Returns the number of the
    /// connection.
    pub(super) fn welcome(
        &self,
        (epoch, settings): (u64, &ClusterSettings),
        sender: &UnboundedSender<Outgoing>,
        received: u64,
    ) -> Result<u64, Status> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let welcome = Welcome {
            version: self.version,
            epoch,
            session: self.id,
            received: self.link.taken(),
            lease_interval_ms: millis(settings.lease_interval),
            lease_ms: millis(settings.lease),
            relay_key: self.relay_key.clone(),
        };
        let _ = sender.send(Ok(ToAgent { message: Some(to_agent::Message::Welcome(welcome)) }));
        self.link.attach(sender.clone(), received).map_err(|end| {
            self.calls.end(&end.0);
            Status::aborted(end.0)
        })
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
        let listed = AtomicBool::new(false);
        Host { name, joined: now, heard, sight, session: number, listed, state: Mutex::new(state) }
    }

    pub(super) fn set_listed(&self) {
        self.listed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
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

    /// Returns the shortest time that may have passed between this time of the host's own clock and `now` of the
    /// manager's own, both in nanoseconds.
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
