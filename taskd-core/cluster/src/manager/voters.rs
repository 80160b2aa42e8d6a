//! Replaces the voters of lost hosts by voters on other hosts, so that the job survives the next loss, too.

use super::host::Visibility;
use super::{Inner, Manager};
use crate::clock::Moment;
use crate::consensus::{Embedded, VoterAddress};
use crate::membership::replacement_voter;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::NodeId;
use tokio::time::{MissedTickBehavior, interval};

/// Label of an agent that has a voter in its process: the voter's address, `HOST:PORT`. The voter can be admitted.
pub const VOTER_LABEL: &str = "taskd.voter";
/// Time between two looks at the voters.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Silence of a voter after which its host is taken for lost, and the voter is replaced. A process that is started again
/// in between continues with its store.
pub const VOTER_LOST_AFTER: Duration = Duration::from_secs(5);

impl Manager {
    /// Replaces voters that have been silent for [`VOTER_LOST_AFTER`] by those of other hosts, for as long as this manager
    /// is in office, and sends the voters' addresses to all agents ([`set_candidates`](Manager::set_candidates)).
    ///
    /// A host with the label [`VOTER_LABEL`] can replace a lost one; the host in the domains with the fewest voters is
    /// chosen. `voters` is the voter of this process.
    pub fn keep_voters(&self, voters: &Embedded) -> impl Future<Output = ()> + Send + 'static {
        let (manager, voters) = (Arc::clone(&self.inner), voters.clone());
        async move {
            let over = manager.over();
            tokio::select! {
                biased;
                _ = over => {}
                () = keep(&manager, &voters) => {}
            }
        }
    }
}

async fn keep(manager: &Inner, voters: &Embedded) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent: BTreeMap<u64, Moment> = BTreeMap::new();
    loop {
        ticks.tick().await;
        let now = voters.status().voters;
        let addresses = now.iter().filter(|(_, place)| !place.witness).map(|(_, place)| place.address.clone());
        manager.set_candidates(addresses.collect());
        let found: BTreeMap<u64, VoterAddress> = voters.silent_voters().await.into_iter().collect();
        silent.retain(|voter, _| found.contains_key(voter));
        found.keys().for_each(|voter| _ = silent.entry(*voter).or_insert_with(Moment::now));
        let lost = silent.iter().find(|(_, since)| since.elapsed() >= VOTER_LOST_AFTER);
        let Some(place) = lost.and_then(|(voter, _)| found.get(voter)) else { continue };
        let taken: BTreeSet<NodeId> = now.into_iter().map(|(_, place)| place.host).collect();
        let Some(new) = replacement(manager, &taken, &place.host) else { continue };
        match voters.replace_voter(&place.host, &new).await {
            Ok(()) => tracing::warn!(lost = %place, %new, "the voter of a lost host is replaced"),
            Err(error) => tracing::warn!(lost = %place, %new, %error, "a voter could not be replaced yet"),
        }
    }
}

/// Returns the voter that replaces the one of a lost host.
pub(super) fn replacement(manager: &Inner, voters: &BTreeSet<NodeId>, lost: &NodeId) -> Option<VoterAddress> {
    let hosts: Vec<_> = manager.lock().values().cloned().collect();
    let labels: BTreeMap<NodeId, _> = hosts.iter().map(|host| (host.name.clone(), host.labels())).collect();
    let is_seen = |name: &NodeId| hosts.iter().any(|h| h.name == *name && *h.sight.borrow() == Visibility::Seen);
    let can = labels.iter().filter(|(name, labels)| labels.contains_key(VOTER_LABEL) && is_seen(name));
    let can: BTreeSet<NodeId> = can.map(|(name, _)| name.clone()).collect();
    let new = replacement_voter(&can, &manager.topology(), voters, lost)?;
    let address = labels.get(&new)?.get(VOTER_LABEL)?;
    Some(VoterAddress::new(new, address.clone()))
}
