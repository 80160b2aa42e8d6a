//! Has the agents check whether their hosts reach each other.

use super::Inner;
use super::host::{Host, Visibility};
use crate::session::{CallError, Request};
use crate::wire::{LinksAnswer, LinksArguments, decode, encode, method};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::sync::Arc;
use taskd_runtime::check::partners;
use taskd_runtime::job::{Domain, NodeId};
use taskd_runtime::trace::{ProbeResult, SourceError, write_links};
use tokio::time::{Instant, timeout_at};

/// Part of the time until the answers must be there that a check takes, as a fraction: the rest is for their way.
const CHECK_PART: (u32, u32) = (3, 4);

/// Replies to the probe of the links, by host.
type Replies = BTreeMap<Domain, Result<ProbeResult, SourceError>>;

impl Inner {
    /// Has each of these hosts check its links to its partners among them. An agent of an older version, one that is out
    /// of sight and one that does not answer in time give no information.
    pub(super) async fn check_links(&self, about: Vec<Domain>, until: Instant) -> Replies {
        let mut replies = Replies::new();
        let mut found: BTreeMap<NodeId, Arc<Host>> = BTreeMap::new();
        {
            let hosts = self.lock();
            for domain in about {
                match &domain {
                    Domain::Node(node) if hosts.contains_key(node) => {
                        found.extend(hosts.get(node).map(|host| (node.clone(), Arc::clone(host))));
                    }
                    _ => _ = replies.insert(domain, unavailable("it is no host of the job")),
                }
            }
        }
        let addresses: Vec<(NodeId, Option<String>)> =
            found.iter().map(|(name, host)| (name.clone(), host.peer_address())).collect();
        let within = until.saturating_duration_since(Instant::now()) * CHECK_PART.0 / CHECK_PART.1;
        let calls = found.into_iter().enumerate().map(|(number, (name, host))| {
            let peers = partners(addresses.len(), number).into_iter().filter_map(|other| addresses.get(other));
            let peers = peers.filter_map(|(peer, address)| Some((peer.clone(), address.clone()?))).collect();
            async move { (Domain::Node(name), host.check_links(LinksArguments { peers, within }).await) }
        });
        let mut calls: FuturesUnordered<_> = calls.collect();
        while let Ok(Some((domain, reply))) = timeout_at(until, calls.next()).await {
            replies.insert(domain, reply);
        }
        replies
    }
}

impl Host {
    async fn check_links(&self, check: LinksArguments) -> Result<ProbeResult, SourceError> {
        let failed = |why: String| SourceError::Unavailable(format!("{}: {why}", self.name));
        if *self.sight.borrow() != Visibility::Seen {
            return Err(failed("it is out of sight".into()));
        }
        let arguments = encode(&check).map_err(|error| failed(format!("the check cannot be sent: {error}")))?;
        let answer = match self.session().calls.call(Request::new(method::LINKS_CHECK, arguments), true).await {
            Ok(answer) => answer,
            Err(CallError::Failed(_)) => return Err(failed("its agent cannot carry out the check".into())),
            Err(error) => return Err(failed(error.to_string())),
        };
        let answer: LinksAnswer =
            decode(&answer).map_err(|error| failed(format!("the answer to the check cannot be read: {error}")))?;
        let known = answer.into_iter().filter(|(peer, _)| check.peers.contains_key(peer));
        let reached = |(peer, why): (NodeId, Option<String>)| {
            if let Some(why) = &why {
                tracing::info!(host = %self.name, %peer, %why, "a host does not reach another one");
            }
            (peer, why.is_none())
        };
        Ok(write_links(&known.map(reached).collect()))
    }
}

fn unavailable(why: &str) -> Result<ProbeResult, SourceError> {
    Err(SourceError::Unavailable(why.into()))
}
