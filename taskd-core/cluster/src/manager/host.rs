//! One host as its manager sees it: its session, its signs of life, and its last grant.

use crate::session::{Calls, Link, Outgoing, WindowBounds};
use crate::wire::proto::{ToAgent, to_agent};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taskd_runtime::job::NodeId;
use taskd_runtime::launch::LauncherInfo;
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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    session: Arc<Session>,
    info: LauncherInfo,
    labels: BTreeMap<String, String>,
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
    pub(super) labels: BTreeMap<String, String>,
    pub(super) peer: String,
    pub(super) peer_address: Option<String>,
}

impl Host {
    pub(super) fn new(name: NodeId, session: Arc<Session>, by: Introduction, now: Instant) -> Host {
        let Introduction { info, labels, peer, peer_address } = by;
        // A host that never got a grant of this manager may still have one of its predecessor.
        let state = State { session, info, labels, peer, peer_address, granted: now };
        let (heard, sight) = (watch::Sender::new(now), watch::Sender::new(Visibility::Seen));
        Host { name, heard, sight, state: Mutex::new(state) }
    }

    /// Returns the session in use.
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.lock().session)
    }

    /// Uses a new session of the host from now on; the calls of the last one end.
    pub(super) fn replace(&self, session: Arc<Session>, by: Introduction) {
        let old = {
            let mut state = self.lock();
            (state.info, state.labels) = (by.info, by.labels);
            (state.peer, state.peer_address) = (by.peer, by.peer_address);
            std::mem::replace(&mut state.session, session)
        };
        old.calls
            .end("the agent of this host has opened another session: whether the call was carried out is not known");
    }

    pub(super) fn info(&self) -> LauncherInfo {
        self.lock().info.clone()
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        self.lock().labels.clone()
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
