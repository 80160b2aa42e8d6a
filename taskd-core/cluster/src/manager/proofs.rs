//! Which ranks have proved to be replicas, for the next manager: ranks that are lost with a host cannot prove it again.
//!
//! It reads the checksums that pass through the launcher, and decides nothing.

use super::Inner;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use taskd_runtime::job::{Member, Rank, Role, World};
use taskd_runtime::launch::{Change, LaunchError, LinkStatus};
use taskd_runtime::state::{ReplicaProof, Replicas};

/// A world, and what its ranks have proved.
pub(super) type Proven = (Arc<World>, ReplicaProof);

/// The checksums of the world in force.
#[derive(Debug)]
pub(super) struct Proofs {
    world: Option<Arc<World>>,
    replicas: Replicas,
    newest: ReplicaProof,
}

impl Proofs {
    /// Continues from the proof in the record of the last manager.
    pub(super) fn new(world: Option<Arc<World>>, proof: Option<&ReplicaProof>) -> Proofs {
        let replicas = proof.map(Replicas::of_proof).unwrap_or_default();
        Proofs { world, replicas, newest: proof.cloned().unwrap_or_default() }
    }

    /// Takes a world that is in force from now on. If no process of the last one is in it, nothing is proven any more.
    pub(super) fn enter(&mut self, world: &Arc<World>) {
        let before = self.world.replace(Arc::clone(world));
        if !before.is_some_and(|before| has_survivors(&before, world)) {
            (self.replicas, self.newest) = (Replicas::default(), ReplicaProof::default());
        }
    }

    /// Reads the checksum of a link's rank. Returns what is proven now, if that is more than before.
    fn hear(&mut self, status: &LinkStatus) -> Option<Proven> {
        let world = self.world.as_ref()?;
        let (Role::Rank(rank), Some(link)) = (&status.proc.role, &status.link) else { return None };
        let is_current = |member: &Member| member.incarnation == status.proc.incarnation;
        let digest = link.digest.as_deref().filter(|_| world.members().get(rank).is_some_and(is_current))?;
        self.replicas.hear(*rank, digest, world.absent());
        let proof = self.replicas.proof(world.members()).filter(|proof| proof.adds_to(&self.newest))?;
        self.newest = proof.clone();
        Some((Arc::clone(world), proof))
    }
}

/// Returns true if a process of one world is also in another.
pub(super) fn has_survivors(before: &World, after: &World) -> bool {
    let members: &BTreeMap<Rank, Member> = before.members();
    let is_in = |(rank, member): (&Rank, &Member)| {
        members.get(rank).is_some_and(|before| before.incarnation == member.incarnation)
    };
    after.members().iter().any(is_in)
}

impl Inner {
    /// Reads the checksums in reported changes.
    pub(super) fn take_proofs<'c>(&self, changes: impl IntoIterator<Item = &'c Change>) {
        let links = changes.into_iter().filter_map(|change| match change {
            Change::Link(status) => Some(status),
            _ => None,
        });
        self.take_links(links);
    }

    /// Reads the checksums of links.
    pub(super) fn take_links<'c>(&self, links: impl IntoIterator<Item = &'c LinkStatus>) {
        let mut proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner); // no foreign code runs while it is locked
        let newest = links.into_iter().filter_map(|status| proofs.hear(status)).last();
        drop(proofs);
        if let Some(proof) = newest {
            self.proven.send_replace(Some(proof));
        }
    }
}

/// Stores each new proof in the record of the world, until the epoch is over. Until it is stored, a new manager would know
/// less, and restart more ranks than necessary.
pub(super) async fn store(manager: Arc<Inner>) {
    let mut proven = manager.proven.subscribe();
    while proven.changed().await.is_ok() {
        loop {
            let Some((world, proof)) = proven.borrow_and_update().clone() else { break };
            match manager.store_proof(&world, &proof).await {
                Ok(()) => break,
                Err(LaunchError::Superseded(_)) => return,
                Err(error) => tracing::warn!(%error, "the world's record lacks which ranks are replicas: tried again"),
            }
            tokio::time::sleep(manager.settings.silent_after).await;
        }
    }
}
