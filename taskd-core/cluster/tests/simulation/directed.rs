//! Phases in which faults follow from what has happened: those that a job survives by one check alone, in the order that
//! needs it. By chance they would come so once in many seeds.

use std::time::Duration;

use taskd_cluster::consensus::Epoch;
use taskd_runtime::job::Generation;
use turmoil::Sim;

use crate::cluster::{Cluster, HOSTS, VOTERS, host};
use crate::faults::{Fault, Faults, manager};

/// Time for which the manager is cut off from the other voters: its successor is elected, and its leases are over.
const DEPOSED: Duration = Duration::from_secs(9);
/// Time for which hosts then reach the old manager only.
const RETURNED: Duration = Duration::from_millis(3500);
/// Time for which a voter stays behind.
const BEHIND: Duration = Duration::from_millis(2500);
/// Longest write of a slow disk.
const SLOW: Duration = Duration::from_millis(1500);
/// Time for which frames come twice.
const REPEATED: Duration = Duration::from_secs(3);
/// Time after which a process runs again.
const RESTARTED: Duration = Duration::from_millis(150);

/// What a phase is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Directed {
    /// Hosts that have obeyed the next manager lose it, and reach its predecessor again, which has orders for them.
    Return,
    /// The hosts of all ranks reach the manager that no majority confirms, and not its successor.
    Minority,
    /// One voter is behind, another loses its store, and the manager is cut off: the record is with the manager alone.
    Forget,
    /// As before, but the voter has only not written yet what it has answered.
    Unstored,
    /// Sessions deliver frames twice.
    Repeat,
}

/// How far a phase is.
#[derive(Clone, Copy)]
enum At {
    Begin,
    /// The hosts are to obey a manager of a later epoch than this.
    Successor(Epoch),
    /// A host is to get an order for a later world than this.
    World(Option<Generation>),
    /// The faults end by themselves.
    Last,
}

/// A phase that runs.
pub(crate) struct Phase {
    kind: Directed,
    leader: usize,
    at: At,
    until: Duration,
}

impl Directed {
    /// Returns the phase of a seed.
    pub(crate) const fn of(seed: u64) -> Directed {
        match seed % 6 {
            0 => Directed::Return,
            1 => Directed::Minority,
            // Twice, because assertions of the consensus library often end a voter without its log first.
            2 | 5 => Directed::Forget,
            3 => Directed::Unstored,
            _ => Directed::Repeat,
        }
    }

    /// Begins the phase, unless no process is the manager.
    pub(crate) fn begin(self, cluster: &Cluster, now: Duration) -> Option<Phase> {
        let leader = manager(cluster)?;
        let length = if self == Directed::Repeat { REPEATED } else { DEPOSED };
        Some(Phase { kind: self, leader, at: At::Begin, until: now + length })
    }
}

impl Phase {
    /// Begins the faults that are due. Returns false once the phase is over.
    pub(crate) fn go_on(&mut self, faults: &mut Faults, sim: &mut Sim<'_>, cluster: &Cluster) -> bool {
        let now = sim.elapsed();
        match self.at {
            At::Begin => self.at = self.first(faults, sim, cluster),
            At::Successor(before) => {
                let obeys = |index: usize| cluster.lock().ledger.obeyed(&host(index)) > before;
                if (VOTERS..HOSTS).any(obeys) {
                    faults.begin(sim, cluster, Fault::CutFromVoters(self.leader, RETURNED));
                    (VOTERS..HOSTS).for_each(|agent| self.cut_from_successor(faults, sim, cluster, agent, RETURNED));
                    (self.at, self.until) = (At::Last, now + RETURNED);
                }
            }
            At::World(before) => {
                let newest = cluster.lock().ledger.newest().map(taskd_runtime::job::World::generation);
                if newest > before {
                    let other = self.other();
                    let ends = match self.kind {
                        Directed::Unstored => Fault::Crash(other, RESTARTED),
                        _ => Fault::Lose(other, RESTARTED),
                    };
                    // The longer cuts after the loss of power, which cuts all links for a short time.
                    for fault in
                        [ends, Fault::CutFromVoters(self.leader, DEPOSED), Fault::Cut(self.behind(), other, RESTARTED)]
                    {
                        faults.begin(sim, cluster, fault);
                    }
                    (self.at, self.until) = (At::Last, now + DEPOSED);
                }
            }
            At::Last => {}
        }
        now < self.until
    }

    fn first(&self, faults: &mut Faults, sim: &mut Sim<'_>, cluster: &Cluster) -> At {
        match self.kind {
            Directed::Return | Directed::Minority => {
                faults.begin(sim, cluster, Fault::CutFromVoters(self.leader, DEPOSED));
            }
            Directed::Forget | Directed::Unstored => {
                let (other, behind) = (self.other(), self.behind());
                faults.begin(sim, cluster, Fault::Cut(behind, self.leader, BEHIND));
                faults.begin(sim, cluster, Fault::Cut(behind, other, BEHIND));
                if self.kind == Directed::Unstored {
                    faults.begin(sim, cluster, Fault::SlowDisk(other, BEHIND, SLOW));
                }
                faults.begin(sim, cluster, Fault::KillRankOn(VOTERS));
            }
            Directed::Repeat => faults.begin(sim, cluster, Fault::Repeats(REPEATED)),
        }
        match self.kind {
            Directed::Return => At::Successor(cluster.lock().ledger.manager().map_or(Epoch(0), |(epoch, _)| epoch)),
            Directed::Minority => {
                (VOTERS..HOSTS).for_each(|agent| self.cut_from_successor(faults, sim, cluster, agent, DEPOSED));
                At::Last
            }
            Directed::Repeat => At::Last,
            Directed::Forget | Directed::Unstored => {
                At::World(cluster.lock().ledger.newest().map(taskd_runtime::job::World::generation))
            }
        }
    }

    const fn other(&self) -> usize {
        (self.leader + 1) % VOTERS
    }

    const fn behind(&self) -> usize {
        (self.leader + 2) % VOTERS
    }

    /// Cuts a host from all voters but the old manager's.
    fn cut_from_successor(
        &self,
        faults: &mut Faults,
        sim: &mut Sim<'_>,
        cluster: &Cluster,
        agent: usize,
        length: Duration,
    ) {
        for voter in (0..VOTERS).filter(|voter| *voter != self.leader) {
            faults.begin(sim, cluster, Fault::Cut(agent, voter, length));
        }
    }
}
