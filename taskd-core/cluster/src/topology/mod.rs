//! Where hosts are: the tree of fault and network domains, and the choices that depend on it.
//!
//! A *level* is a kind of domain that the user names, from the widest to the narrowest, for example `zone`,
//! `super-pod`, `spine`, `leaf`. A *domain* is one zone or one leaf switch; its name is unique in its level. Hosts are
//! the members of the tree. A tree of devices has the same form: its members are devices, and `host` is one of its
//! levels.
//!
//! # Rules
//! - A domain lies in at most one domain of each wider level, and so does a host. A place may omit levels: all
//!   statements are combined, so one host's `leaf=l1, spine=s1` also places the other hosts of leaf `l1`.
//! - A contradiction is an error that names the statement that caused it, and changes nothing.
//! - Hosts without a place are valid. They are not assumed to be apart from each other: they share one unnamed domain.
//! - Every choice depends on names only, not on the order in which hosts were added. All hosts that are equally good
//!   are taken in the order of their names.
//! - The size is bounded: [`LEVELS_MAX`], [`HOSTS_MAX`], [`DOMAINS_MAX`], [`NAME_BYTES_MAX`], [`TEXT_BYTES_MAX`].
//!
//! # Sources
//! [`Topology::parse`] reads a file, in one of two forms. Lines:
//!
//! ```
//! use taskd_cluster::topology::Topology;
//!
//! let topology = Topology::parse("
//!     ## from the widest level to the narrowest
//!     levels: zone, spine, leaf
//!     ## a domain: its level, its name, and the domains that contain it
//!     leaf l1: spine=s1
//!     leaf l2: spine=s1, zone=east
//!     ## hosts
//!     n1: leaf=l1
//!     n2: leaf=l2
//! ")?;
//! assert_eq!(topology.domain_of(&"n1".parse()?, "zone").map(|zone| zone.as_str()), Some("east"));
//! assert_eq!(topology.common_level(&"n1".parse()?, &"n2".parse()?).map(|level| level.as_str()), Some("spine"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! or the same as JSON:
//!
//! ```
//! use taskd_cluster::topology::Topology;
//!
//! let topology = Topology::parse(r#"{
//!     "levels": ["zone", "spine", "leaf"],
//!     "domains": {"leaf": {"l1": {"spine": "s1"}, "l2": {"spine": "s1", "zone": "east"}}},
//!     "hosts": {"n1": {"leaf": "l1"}, "n2": {"leaf": "l2"}}
//! }"#)?;
//! assert_eq!(topology.distance(&"n1".parse()?, &"n2".parse()?), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Topology::from_labels`] reads the labels of agents: see there for the keys. [`Topology::add_labels`] adds them to the
//! tree of a file.
//!
//! # Choices
//! [`Topology::spread`], [`Topology::pack`], [`Topology::spares_for`], [`Topology::partners`],
//! [`Topology::partners_apart`], [`Topology::causes`].

mod cause;
mod choose;
mod error;
mod read;
mod tree;

pub use cause::Cause;
pub use choose::Partners;
pub use error::TopologyError;
pub use tree::Topology;

use serde::{Deserialize, Serialize};
use std::fmt;
use taskd_runtime::job::Name;

/// Largest number of levels.
pub const LEVELS_MAX: usize = 16;

/// Largest number of hosts.
pub const HOSTS_MAX: usize = 1 << 17;

/// Largest number of domains, of all levels together.
pub const DOMAINS_MAX: usize = 1 << 17;

/// Longest name of a level, a domain or a host, in bytes: that of a DNS name.
pub const NAME_BYTES_MAX: usize = 253;

/// Longest file, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

/// Levels that [`Topology::from_labels`] uses if the user names none, from the widest to the narrowest. A level that no
/// host has does no harm.
pub const DEFAULT_LEVELS: [Name; 5] =
    [Name::new("region"), Name::new("zone"), Name::new("super-pod"), Name::new("spine"), Name::new("leaf")];

/// A domain: its level and its name, such as leaf `l1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Domain {
    /// Level of the domain, such as `leaf`.
    pub level: Name,
    /// Name of the domain, unique in its level.
    pub name: Name,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.level, self.name)
    }
}

#[cfg(test)]
mod tests;
