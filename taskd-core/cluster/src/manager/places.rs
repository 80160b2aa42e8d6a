//! Where the hosts are: one tree for every choice of this manager (which hosts take part, which vote, and which hold second
//! copies).

use super::{Inner, Manager};
use crate::topology::{DEFAULT_LEVELS, Topology};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use taskd_runtime::job::{Name, NodeId};

/// Where the places of hosts in the network are stated.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Places {
    /// In the labels of their agents, at these levels, from the widest to the narrowest: see [`Topology::from_labels`].
    Labels(Vec<Name>),
    /// In this tree. A host that it does not contain is placed by the labels of its agent, at the levels of the tree:
    /// see [`Topology::add_labels`].
    Tree(Topology),
}

impl Default for Places {
    /// Returns the labels of agents at the [usual levels](DEFAULT_LEVELS).
    fn default() -> Places {
        Places::Labels(DEFAULT_LEVELS.to_vec())
    }
}

/// The places, and the tree that follows from them.
#[derive(Debug, Default)]
pub(super) struct Located {
    places: Places,
    /// The tree, with the number of the last session that contributed labels to it.
    tree: Option<(u64, Topology)>,
}

impl Manager {
    /// Sets where the places of hosts are stated; the labels of agents by default. It is for jobs without a policy of
    /// membership, which [has its own](Manager::membership): the voters and the second copies of in-memory checkpoints
    /// are chosen by it.
    pub fn set_places(&self, places: Places) {
        self.inner.set_places(places);
    }
}

impl Inner {
    pub(super) fn set_places(&self, places: Places) {
        *self.located() = Located { places, tree: None };
    }

    /// Returns the places of the hosts. Labels are read again after a session has begun: they cannot change before.
    pub(super) fn topology(&self) -> Topology {
        let newest = self.sessions.load(Ordering::Relaxed); // before the hosts, so that none of a later session is missed
        let mut located = self.located();
        if let Some((_, tree)) = located.tree.as_ref().filter(|(session, _)| *session == newest) {
            return tree.clone();
        }
        let labels: BTreeMap<NodeId, BTreeMap<String, String>> =
            self.lock().values().map(|host| (host.name.clone(), host.labels())).collect();
        let (tree, errors) = located.places.tree(&labels);
        for (host, error) in errors {
            tracing::warn!(%host, %error, "the place of a host is not known");
        }
        located.tree = Some((newest, tree.clone()));
        tree
    }

    fn located(&self) -> MutexGuard<'_, Located> {
        self.located.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

impl Places {
    /// Returns the tree with the hosts of these labels, and the errors of those that have no place in it.
    fn tree(
        &self,
        labels: &BTreeMap<NodeId, BTreeMap<String, String>>,
    ) -> (Topology, BTreeMap<NodeId, crate::topology::TopologyError>) {
        let mut tree = match self {
            Places::Tree(tree) => tree.clone(),
            Places::Labels(levels) => Topology::new(levels.iter().cloned()).unwrap_or_else(|error| {
                tracing::warn!(%error, "the places of the hosts are not known");
                Topology::default()
            }),
        };
        let errors = tree.add_labels(labels);
        (tree, errors)
    }
}
