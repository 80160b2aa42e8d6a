//! Which hosts form the next world: one pure function, [`decide`].
//!
//! The *world* of hosts gives each of its hosts a *node rank*. Hosts outside of it that are ready are *spares*. The
//! manager calls [`decide`] after every change of a host and at the times that the last decision gave, and puts a new
//! world in force. The function has no clock and no memory: all that it depends on is in its arguments.
//!
//! # The first world
//! 1. Below `min_hosts` hosts the job waits, for `waiting_timeout` since [`State::since`]. Then the decision is
//!    [`Impossible`](Next::Impossible), until more hosts join.
//! 2. With as many hosts as the largest world and its spares need, the world begins at once.
//! 3. In between, the world begins `last_call` after the time at which `min_hosts` were there: torchrun's last call.
//! 4. The number of hosts is a multiple of `node_unit`, and `spares` hosts stay outside unless the world would then
//!    have less than `min_hosts`. Hosts that are close to each other are preferred ([`Topology::pack`]), and node ranks
//!    follow that order.
//!
//! # Changes
//! 1. Survivors keep their node ranks. (A [compact](Policy::keep_node_rank) world that shrinks moves those with the
//!    highest ranks into the vacant ones.)
//! 2. A spare takes over the node rank of a host that has left, at once. Spares outside of the fault come first
//!    ([`Topology::spares_for`]).
//! 3. If the spares do not suffice, the job waits for `shrink_after`, then the world shrinks to the largest allowed
//!    number. Below `min_hosts` it waits for `waiting_timeout`, then the decision is [`Impossible`](Next::Impossible).
//! 4. A host that is out of sight is neither replaced nor lost until it has [left](Health::Left). No other change of
//!    the world begins meanwhile, because its ranks could not take part. A member without an entry in [`State::hosts`]
//!    is out of sight: it has not reported to a new manager yet.
//! 5. A cordoned host is not chosen. A member that is cordoned stays, as a pod stays on a cordoned Kubernetes node.
//! 6. The world grows when the spares, less those that are kept, are enough for a `node_unit`: `last_call` after the
//!    last of them has joined, or at once up to the largest world. A change for another reason grows the world, too.
//!
//! # Hosts that are refused
//! A host with a node rank that another host states too, with a node rank that the job does not have, without slots, or
//! with another number of slots than most hosts (if [`equal_slots`](Policy::equal_slots)) is left out with a
//! [`HostError`]; the others are not affected. Members come before other hosts, then hosts that joined earlier. A
//! member that comes back with another number of slots counts as lost.
//!
//! # Example
//! ```
//! use std::time::Duration;
//! use taskd_cluster::membership::{Health, Host, Next, Policy, State, decide};
//! use taskd_runtime::job::JobTime;
//!
//! let seconds = |seconds: u64| JobTime::from_nanos(seconds * 1_000_000_000);
//! let policy = Policy::new(3, 4).with_last_call(Duration::from_secs(10));
//! let mut state = State::default();
//! for (name, joined) in [("a", 1), ("b", 2), ("c", 3)] {
//!     state.hosts.insert(name.parse()?, Host::new(seconds(joined), 8));
//! }
//!
//! // Three hosts are enough, but a fourth has ten seconds to join.
//! let decision = decide(&state, &policy, seconds(4));
//! assert_eq!(decision.next.until(), Some(seconds(13)));
//! assert_eq!(
//!     decision.next.reason(),
//!     "3 of 4 hosts have joined; the world begins when 1 more joins, or at 13.000 s with 3 hosts"
//! );
//! let Next::World { ranks, .. } = decide(&state, &policy, seconds(13)).next else { panic!("no world") };
//! state.world = Some(ranks);
//!
//! // Host b is lost, and d is there: it takes over node rank 1.
//! state.hosts.insert("d".parse()?, Host::new(seconds(15), 8));
//! state.host_mut(&"b".parse()?).ok_or("no host b")?.health = Health::Left { since: seconds(20) };
//! let Next::World { ranks, reason, .. } = decide(&state, &policy, seconds(20)).next else { panic!("no world") };
//! assert_eq!(ranks[&1], "d".parse()?);
//! assert_eq!(reason, "host b has left; host d takes over node rank 1; the world has 3 hosts");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sources
//! The decisions follow torchft's `quorum_compute` (a world of all previous members continues at once), torchrun's
//! rendezvous (`MIN:MAX`, join timeout, last call) and DLRover's `node_unit`. Unlike torchrun a survivor never changes
//! its node rank because another host left, and unlike torchft a lost host does not delay the others by a heartbeat
//! timeout.

mod assign;
mod decide;
mod policy;
mod refuse;
mod state;
mod voters;
mod words;

pub use decide::{Decision, Next, decide};
pub use policy::{LAST_CALL, Policy, WAITING_TIMEOUT};
pub use refuse::HostError;
pub use state::{Health, Host, NodeRanks, State};
pub use voters::{Voters, choose_voters, first_voters, replacement_voter};

/// Label in which an agent states the [node rank](Host::node_rank) of its host.
pub const NODE_RANK_LABEL: &str = "taskd.io/node-rank";

#[cfg(doc)]
use crate::topology::Topology;

#[cfg(test)]
mod tests;
