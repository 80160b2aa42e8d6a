//! The world in force, as the consensus engine stores it.

use super::Inner;
use super::proofs::has_survivors;
use crate::checks::Check;
use crate::consensus::{ConsensusError, Epoch, Version};
use crate::security::JobToken;
use crate::wire::{pack, unpack};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use taskd_runtime::job::{Generation, Incarnation, Member, Name, NodeId, ProcId, Rank, Role, World};
use taskd_runtime::kernel::Resume;
use taskd_runtime::launch::{LaunchError, Place, StartBatch};
use taskd_runtime::state::ReplicaProof;
use tokio::time::{Instant, sleep};

/// Time for which an order waits for an engine that is unavailable: an order that failed would use up an attempt of a
/// recovery. Longer than the runtime needs to learn that the engine does not answer.
const ENGINE_PATIENCE: Duration = Duration::from_secs(90);

/// What the job's hosts agree on: which world is in force, and which services belong to it. A manager writes it before any host
/// gets an order for that world; a new manager continues from it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorldRecord {
    /// The world in force; `None` before the first.
    pub(super) world: Option<Arc<World>>,
    /// Incarnations and hosts of the services.
    #[serde(default)]
    pub(super) services: BTreeMap<Name, Member>,
    /// Ranks that have completed successfully, with their incarnations. Their hosts have forgotten them.
    #[serde(default)]
    pub(super) completed: BTreeMap<Rank, Incarnation>,
    /// Secret by which the job's ranks authenticate each other: the same under every manager.
    #[serde(default)]
    pub(super) rank_secret: Option<String>,
    /// Which ranks of the world have proved to hold the same state, if that is known.
    #[serde(default)]
    pub(super) replicas: Option<ReplicaProof>,
    /// Result of the job in one sentence, once it has ended.
    #[serde(default)]
    pub(super) result: Option<String>,
}

/// The record that was read or written last.
pub(super) struct Committed {
    pub(super) version: Version,
    pub(super) record: WorldRecord,
}

impl WorldRecord {
    /// Reads the value of the record; empty before the first world.
    pub(super) fn read(value: &[u8]) -> Result<WorldRecord, String> {
        let unreadable = |why: &dyn std::fmt::Display| format!("the record of the job's world cannot be read: {why}");
        if value.is_empty() {
            return Ok(WorldRecord::default());
        }
        unpack(value).map_err(|error| unreadable(&error))
    }

    /// Returns the value of the record. It is compressed: the hosts of a world repeat their names.
    pub(super) fn value(&self) -> Result<Bytes, LaunchError> {
        pack(self).map_err(|error| LaunchError::Refused(format!("the world's record: {error}")))
    }

    fn generation(&self) -> Generation {
        self.world.as_ref().map_or(Generation(0), |world| world.generation())
    }

    /// Returns the job as the last manager left it; `None` before the first world.
    pub(super) fn resume(&self) -> Option<Resume> {
        let world = Arc::clone(self.world.as_ref()?);
        let completed = self.completed.keys().copied().collect();
        let resume = Resume::new(world).with_services(self.services.clone()).with_completed(completed);
        Some(resume.with_replicas(self.replicas.clone()))
    }

    /// Returns the processes of the world and its services, by their hosts.
    pub(super) fn procs(&self) -> BTreeMap<NodeId, Vec<ProcId>> {
        let ranks = self.world.iter().flat_map(|world| world.members());
        let ranks = ranks.filter(|(rank, _)| !self.completed.contains_key(rank));
        let ranks = ranks.map(|(rank, member)| (Role::Rank(*rank), member));
        let services = self.services.iter().map(|(name, member)| (Role::Service(name.clone()), member));
        let mut procs: BTreeMap<NodeId, Vec<ProcId>> = BTreeMap::new();
        for (role, member) in ranks.chain(services) {
            if let Some(node) = &member.node {
                let proc = ProcId { role, incarnation: member.incarnation };
                procs.entry(node.clone()).or_default().push(proc);
            }
        }
        procs
    }

    /// Returns the record with the world of a batch and the services that it starts.
    pub(super) fn with(&self, world: &Arc<World>, starts: Option<&StartBatch>) -> WorldRecord {
        let mut next = WorldRecord { world: Some(Arc::clone(world)), ..self.clone() };
        if !self.world.as_ref().is_some_and(|before| has_survivors(before, world)) {
            next.replicas = None; // it was about processes that are gone
        }
        next.completed.retain(|rank, incarnation| is_member(world, *rank, *incarnation));
        for order in starts.iter().flat_map(|batch| &batch.starts) {
            if let (Role::Service(name), Place::On(node)) = (&order.proc.role, &order.place) {
                let incarnation = order.proc.incarnation;
                let member = Member { incarnation, node: Some(node.clone()), device: None };
                next.services.insert(name.clone(), member);
            }
        }
        if next.rank_secret.is_none() {
            next.rank_secret = JobToken::generate().ok().map(|secret| secret.secret().to_owned());
        }
        next
    }
}

impl Inner {
    /// Stores a world and the services that start in it, unless they are in force already.
    ///
    /// # Errors
    /// Returns an error if a newer world is in force, this manager's epoch is over, or no majority answers.
    pub(super) async fn commit(&self, world: &Arc<World>, starts: Option<&StartBatch>) -> Result<(), LaunchError> {
        let next = |record: &WorldRecord| match (record.generation(), &record.result) {
            (_, Some(result)) => Err(LaunchError::Refused(format!("the job has ended: {result}"))),
            (in_force, None) if world.generation() < in_force => {
                let text = format!("world {} is over: world {in_force} is in force", world.generation());
                Err(LaunchError::Refused(text))
            }
            _ => Ok(record.with(world, starts)),
        };
        self.write(next, ENGINE_PATIENCE).await?;
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner).enter(world);
        Ok(())
    }

    /// Stores which ranks have proved to be replicas in a world, unless none of its processes is in force any more.
    ///
    /// # Errors
    /// Returns an error if this manager's epoch is over, or no majority answers.
    pub(super) async fn store_proof(&self, of: &World, proof: &ReplicaProof) -> Result<(), LaunchError> {
        let next = |record: &WorldRecord| {
            let is_in_force = record.world.as_ref().is_some_and(|world| has_survivors(of, world));
            let replicas = if is_in_force { Some(proof.clone()) } else { record.replicas.clone() };
            Ok(WorldRecord { replicas, ..record.clone() })
        };
        self.write(next, Duration::ZERO).await
    }

    /// Stores that ranks have completed, before their hosts forget them. A later manager would start them again.
    ///
    /// # Errors
    /// Returns an error if this manager's epoch is over, or no majority answers.
    pub(super) async fn store_completed(&self, procs: &[ProcId]) -> Result<(), LaunchError> {
        let next = |record: &WorldRecord| {
            let mut next = record.clone();
            for (rank, incarnation) in procs.iter().filter_map(|proc| Some((proc.role.rank()?, proc.incarnation))) {
                if record.world.as_ref().is_some_and(|world| is_member(world, rank, incarnation)) {
                    next.completed.insert(rank, incarnation);
                }
            }
            Ok(next)
        };
        self.write(next, Duration::ZERO).await
    }

    /// Stores the result of the job: no manager starts a world any more.
    ///
    /// # Errors
    /// Returns an error if this manager's epoch is over, or no majority answers.
    pub(super) async fn store_result(&self, result: &str) -> Result<(), LaunchError> {
        let next = |record: &WorldRecord| Ok(WorldRecord { result: Some(result.to_owned()), ..record.clone() });
        self.write(next, Duration::ZERO).await
    }

    /// Replaces the record by the one that `next` returns for it. While the engine is unavailable, it is asked again for the
    /// time `patience`.
    async fn write(
        &self,
        next: impl Fn(&WorldRecord) -> Result<WorldRecord, LaunchError>,
        patience: Duration,
    ) -> Result<(), LaunchError> {
        let deadline = Instant::now() + patience;
        let mut committed = self.committed.lock().await; // one decision after the other
        loop {
            let next = next(&committed.record)?;
            if next == committed.record {
                return Ok(());
            }
            if !self.settings.checks.has(Check::WorldStored) {
                committed.record = next;
                return Ok(());
            }
            match self.consensus.compare_and_set(self.epoch, committed.version, next.value()?).await {
                Ok(version) => {
                    *committed = Committed { version, record: next };
                    self.changed.notify_one();
                    return Ok(());
                }
                // A write without an answer may have been carried out, and so have changed the version.
                Err(ConsensusError::Conflict { .. }) => *committed = self.read().await?,
                Err(ConsensusError::Unavailable(why)) if Instant::now() < deadline => {
                    tracing::warn!(%why, "a decision waits: no majority stores it");
                    self.in_office()?;
                    sleep(self.settings.lease_interval).await;
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Returns the secret by which the job's ranks authenticate each other; `None` before the first world.
    pub(super) async fn rank_secret(&self) -> Option<String> {
        self.committed.lock().await.record.rank_secret.clone()
    }

    async fn read(&self) -> Result<Committed, LaunchError> {
        let record = self.consensus.read().await.map_err(|error| self.failed(error))?;
        if record.epoch != self.epoch || record.manager.is_none() {
            return Err(self.failed(superseded(self.epoch, record.manager.map(|manager| manager.to_string()))));
        }
        let world = WorldRecord::read(&record.value).map_err(LaunchError::Refused)?;
        Ok(Committed { version: record.version, record: world })
    }

    /// Returns the error of a launcher for one of the engine. An epoch that is over ends this manager.
    pub(super) fn failed(&self, error: ConsensusError) -> LaunchError {
        match error {
            ConsensusError::Superseded { .. } => {
                self.end(&error.to_string());
                LaunchError::Superseded(error.to_string())
            }
            ConsensusError::Refused(text) => LaunchError::Refused(text),
            error => LaunchError::Unreachable(format!("no decision is made: {error}")),
        }
    }
}

/// Returns true if this incarnation of a rank belongs to the world.
fn is_member(world: &World, rank: Rank, incarnation: Incarnation) -> bool {
    world.members().get(&rank).is_some_and(|member| member.incarnation == incarnation)
}

fn superseded(epoch: Epoch, by: Option<String>) -> ConsensusError {
    ConsensusError::Superseded { epoch, by }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_runtime::job::{Counted, JobSpec, WorkerSpec};

    #[test]
    fn a_world_of_many_ranks_fits_the_record() {
        let hosts = (0..1250).map(|host| NodeId(Name::from(format!("host-{host:05}"))));
        let spec = JobSpec::new("job", 10_000, WorkerSpec::new(["train"])).with_nodes(hosts);
        let record = WorldRecord::default().with(&Arc::new(spec.first_world()), None);
        let value = record.value().expect("it has a form");
        assert!(value.len() < crate::consensus::RECORD_BYTES_MAX / 2, "{} bytes", value.len());
        assert!(WorldRecord::read(&value).is_ok_and(|read| read == record));
        assert_eq!(record.procs().values().map(Vec::len).collect::<Vec<_>>(), [8; 1250]);
    }

    #[test]
    fn a_proof_stays_with_the_processes_that_it_is_about() {
        let first = Arc::new(JobSpec::new("job", 2, WorkerSpec::new(["train"])).first_world());
        let proof = ReplicaProof::default();
        let record = WorldRecord { replicas: Some(proof), ..WorldRecord::default().with(&first, None) };
        let replace = |ranks: u32| {
            Arc::new(first.successor(Counted::Yes, |members| {
                members.iter_mut().take(ranks as usize).for_each(|(_, member)| member.incarnation = Incarnation(2));
            }))
        };
        assert!(record.with(&replace(1), None).resume().is_some_and(|resume| resume.replicas.is_some()));
        assert!(record.with(&replace(2), None).resume().is_some_and(|resume| resume.replicas.is_none()));
    }

    #[test]
    fn completed_ranks_are_kept_until_the_world_replaces_them() {
        let world = Arc::new(JobSpec::new("job", 2, WorkerSpec::new(["train"])).first_world());
        let mut record = WorldRecord::default().with(&world, None);
        record.completed.insert(Rank(0), world.members()[&Rank(0)].incarnation);
        let read = WorldRecord::read(&record.value().expect("it has a form")).expect("as it was written");
        assert_eq!(read.resume().map(|resume| resume.completed), Some([Rank(0)].into()));
        assert_eq!(read.with(&world, None).completed, record.completed, "the same world");
        let next = world.successor(Counted::No, |members| {
            members.values_mut().for_each(|member| member.incarnation = Incarnation(7));
        });
        assert!(read.with(&Arc::new(next), None).completed.is_empty(), "all ranks start again");
    }

    #[test]
    fn damaged_records_are_refused() {
        assert!(WorldRecord::read(&[]).is_ok_and(|record| record.world.is_none()));
        for damaged in [&b"abc"[..], &[0xff, 0xff, 0xff, 0xff, 1], &[1, 0, 0, 0, 0]] {
            assert!(WorldRecord::read(damaged).is_err_and(|why| why.contains("cannot be read")));
        }
    }
}
