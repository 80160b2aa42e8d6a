//! The trace source of all hosts: delivers what their sources have reported, and sends each probe to the hosts that it
//! concerns.

use super::facts::Received;
use super::host::{Host, HostStatus, Visibility};
use super::{Inner, Manager};
use crate::clock_offset::Reading;
use crate::session::{CallError, Request};
use crate::wire::{CollectArguments, SourceFailure, decode, encode, method};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use taskd_runtime::job::{Domain, Name, NodeId, Role};
use taskd_runtime::trace::{
    COLLECTIVES, LINKS, PROCESS_STATE, Probe, ProbeResult, STACKS, SourceError, SourceInfo, TraceBatch, TraceSource,
};
use tokio::time::{Instant, timeout_at};

/// Name of the source.
const NAME: Name = Name::new("cluster");
/// Probes of which replies are kept until they are requested.
const PROBES_KEPT: usize = 8;
/// Part of a probe's time within which hosts must reply, as a fraction: the rest is for the way to the detector.
const REPLY_PART: (u32, u32) = (3, 4);

/// The [`TraceSource`] of all hosts of a job, which may join and leave at any time.
///
/// It delivers the batches of the hosts' sources, those of one host in their order, with the times under way added to the
/// ages of facts. A source that fails or ends on a host is logged and counted ([`HostStatus::facts`]), and ends nothing
/// else. This source never ends.
///
/// # Probes
/// A probe is sent to all hosts that have its domains, at the first request for one of these, in one message per host. A
/// host that does not reply within three quarters of the probe's time is unavailable.
pub struct ClusterSource {
    manager: Arc<Inner>,
    info: SourceInfo,
    pending: VecDeque<(Instant, TraceBatch)>,
    asked: VecDeque<Asked>,
}

/// A probe that was sent to the hosts.
struct Asked {
    probe: (Name, u64, Name),
    /// Until when its replies count: a detector may number its next probe as this one.
    until: Instant,
    replies: BTreeMap<Domain, Result<ProbeResult, SourceError>>,
}

impl fmt::Debug for ClusterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSource").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl Manager {
    /// Returns the trace source of all hosts. It answers the probes [`PROCESS_STATE`], [`STACKS`], [`COLLECTIVES`] and
    /// [`LINKS`]; [`ClusterSource::with_probe`] adds others. Before the first call, facts stay on their hosts. Several sources of one
    /// manager share the facts: each fact is delivered once.
    #[must_use]
    pub fn source(&self) -> ClusterSource {
        self.inner.facts.want();
        let probes = [PROCESS_STATE, STACKS, COLLECTIVES, LINKS];
        let info = probes.into_iter().fold(SourceInfo::new(NAME), SourceInfo::with_probe);
        let manager = Arc::clone(&self.inner);
        ClusterSource { manager, info, pending: VecDeque::new(), asked: VecDeque::new() }
    }

    /// Returns the hosts of the job that have registered.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostStatus> {
        let (now, rate) = (Reading::now(&self.inner.begun), self.inner.settings.clock_rate_ppm);
        self.inner.lock().values().map(|host| host.status(now, rate)).collect()
    }
}

impl ClusterSource {
    /// Adds the name of a probe that sources of hosts answer.
    #[must_use]
    pub fn with_probe(mut self, what: impl Into<Name>) -> ClusterSource {
        self.info = self.info.with_probe(what);
        self
    }

    /// Sends a probe about these domains to their hosts. Returns when all have replied, or it is time.
    async fn ask(&self, probe: &Probe, about: Vec<Domain>, until: Instant) -> Asked {
        let key = (probe.by.clone(), probe.tag, probe.what.clone());
        if probe.what == LINKS {
            return Asked { probe: key, until, replies: self.manager.check_links(about, until).await };
        }
        let mut replies: BTreeMap<Domain, Result<ProbeResult, SourceError>> = BTreeMap::new();
        // Without one in time, the world is being written: see the answer below.
        let (by_host, homeless) = timeout_at(until, self.manager.hosts_of(about)).await.unwrap_or_default();
        for domain in homeless {
            let why = format!("no host of the job has {domain}");
            replies.insert(domain, Err(SourceError::Unavailable(why)));
        }
        let calls = by_host.into_iter().map(|(host, about)| async move { host.collect(probe, about).await });
        let mut calls: FuturesUnordered<_> = calls.collect();
        while let Ok(Some(answers)) = timeout_at(until, calls.next()).await {
            for (domain, answer) in answers {
                // If the host of a domain is not known, all hosts are asked, and one of them has it.
                match replies.get(&domain) {
                    Some(Ok(_)) => {}
                    _ => _ = replies.insert(domain, answer),
                }
            }
        }
        Asked { probe: key, until, replies }
    }
}

#[async_trait]
impl TraceSource for ClusterSource {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            if let Some((at, mut batch)) = self.pending.pop_front() {
                let waited = at.elapsed();
                batch.facts.iter_mut().for_each(|fact| fact.age = fact.age.saturating_add(waited));
                return Some(Ok(batch));
            }
            // Cancel-safe: what is received is kept in `self` without a further await.
            match self.manager.facts.receiver.lock().await.recv().await {
                Some(Received { at, batches }) => self.pending.extend(batches.into_iter().map(|batch| (at, batch))),
                None => std::future::pending().await, // the manager holds the other end
            }
        }
    }

    async fn collect(&mut self, probe: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        if !self.info.probes.contains(&probe.what) {
            return Err(SourceError::Unsupported);
        }
        let now = Instant::now();
        let key = (&probe.by, probe.tag, &probe.what);
        let is_it = |asked: &&mut Asked| (&asked.probe.0, asked.probe.1, &asked.probe.2) == key;
        self.asked.retain(|asked| asked.until + probe.timeout > now);
        let known = self.asked.iter_mut().find(is_it).and_then(|asked| asked.replies.remove(about));
        if let Some(reply) = known {
            return reply;
        }
        let until = now + probe.timeout * REPLY_PART.0 / REPLY_PART.1;
        // All domains of the probe, unless this one was requested before: then only this one.
        let is_first = !self.asked.iter_mut().any(|asked| is_it(&asked));
        let mut domains = vec![about.clone()];
        if is_first {
            domains.extend(probe.about.iter().filter(|other| *other != about).cloned());
        }
        let mut asked = self.ask(probe, domains, until).await;
        let late = || Err(SourceError::Unavailable(format!("the host of {about} has not replied in time")));
        let reply = asked.replies.remove(about).unwrap_or_else(late);
        if is_first {
            if self.asked.len() >= PROBES_KEPT {
                self.asked.pop_front();
            }
            self.asked.push_back(asked);
        }
        reply
    }
}

impl Inner {
    /// Returns the hosts that have these domains, and the domains that no host has. If a launcher chose the host of a
    /// process, it may be on any.
    async fn hosts_of(&self, about: Vec<Domain>) -> (Vec<(Arc<Host>, Vec<Domain>)>, Vec<Domain>) {
        let committed = self.committed.lock().await;
        let record = &committed.record;
        let node = |domain: &Domain| match domain {
            Domain::Node(node) | Domain::Device(node, _) | Domain::Guard(node) => Some(Some(node.clone())),
            Domain::Process(Role::Rank(rank)) => Some(record.world.as_ref()?.members().get(rank)?.node.clone()),
            Domain::Process(Role::Service(name)) => Some(record.services.get(name)?.node.clone()),
            _ => None,
        };
        let hosts = self.lock().clone();
        let mut by_host: BTreeMap<NodeId, Vec<Domain>> = BTreeMap::new();
        let mut homeless = Vec::new();
        for domain in about {
            match node(&domain) {
                Some(Some(node)) if hosts.contains_key(&node) => by_host.entry(node).or_default().push(domain),
                Some(None) if !hosts.is_empty() => {
                    hosts.keys().for_each(|host| by_host.entry(host.clone()).or_default().push(domain.clone()));
                }
                _ => homeless.push(domain),
            }
        }
        let found = by_host.into_iter().filter_map(|(node, about)| Some((Arc::clone(hosts.get(&node)?), about)));
        (found.collect(), homeless)
    }
}

/// Replies of a host to a probe.
type Replies = Vec<(Domain, Result<ProbeResult, SourceError>)>;

impl Host {
    /// Sends a probe to the sources of the host.
    async fn collect(&self, probe: &Probe, about: Vec<Domain>) -> Replies {
        let all = |why: String| {
            let why = format!("{}: {why}", self.name);
            about.iter().map(|domain| (domain.clone(), Err(SourceError::Unavailable(why.clone())))).collect()
        };
        if !self.sources().iter().any(|source| source.probes.contains(&probe.what)) {
            return all(format!("no source answers the probe {}", probe.what));
        }
        if *self.sight.borrow() != Visibility::Seen {
            return all("it is out of sight".into());
        }
        let probe = Probe::new(probe.by.clone(), probe.what.clone(), Vec::new(), probe.timeout).with_tag(probe.tag);
        let arguments = match encode(&CollectArguments { probe, about: about.clone() }) {
            Ok(arguments) => arguments,
            Err(error) => return all(format!("the probe cannot be sent: {error}")),
        };
        let answer = match self.session().calls.call(Request::new(method::SOURCES_COLLECT, arguments), true).await {
            Ok(answer) => answer,
            Err(CallError::Failed(_)) => return all("its agent cannot carry out the probe".into()),
            Err(error) => return all(error.to_string()),
        };
        match decode::<Vec<(Domain, Result<ProbeResult, SourceFailure>)>>(&answer) {
            Ok(replies) => {
                let known = replies.into_iter().filter(|(domain, _)| about.contains(domain));
                known.map(|(domain, reply)| (domain, reply.map_err(unavailable))).collect()
            }
            Err(error) => all(format!("the reply to the probe cannot be read: {error}")),
        }
    }
}

/// Returns an error of a host's source as an error of the source of all hosts, which supports the probe.
fn unavailable(failure: SourceFailure) -> SourceError {
    match failure {
        SourceFailure::Unsupported => SourceError::Unavailable("no source of its host knows this domain".into()),
        other => other.into(),
    }
}
