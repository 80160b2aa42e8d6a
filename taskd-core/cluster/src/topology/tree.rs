//! The tree itself: which domains contain each host, completed from partial statements.

use super::error::shortened;
use super::{DOMAINS_MAX, Domain, HOSTS_MAX, LEVELS_MAX, NAME_BYTES_MAX, TopologyError};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use taskd_runtime::job::{Name, NodeId};

/// Marks a level at which a place is unknown.
const UNKNOWN: u32 = u32::MAX;

/// Where hosts are: a tree of domains. (See the [module](super).) The default has no levels and no hosts: all hosts
/// have an unknown place.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// From the widest to the narrowest.
    levels: Vec<Name>,
    /// Domains and hosts, in the order in which they were added.
    places: Vec<Place>,
    /// For each domain, what is known to lie in it: domains and hosts.
    below: Vec<Vec<u32>>,
    /// For each level, its domains.
    domains: Vec<BTreeMap<Name, u32>>,
    hosts: BTreeMap<NodeId, u32>,
}

/// A domain or a host.
#[derive(Clone, Debug)]
struct Place {
    /// Index of the level; the number of levels for a host.
    level: usize,
    name: Name,
    /// For each level the domain that contains this place, or [`UNKNOWN`].
    above: Box<[u32]>,
}

/// What a failed statement takes back.
struct Mark {
    places: usize,
    links: Vec<(u32, usize)>,
}

impl Topology {
    /// Creates a tree without hosts. `levels` are listed from the widest to the narrowest.
    ///
    /// # Errors
    /// Returns an error if a level is listed twice or has no valid name, or if there are more than [`LEVELS_MAX`].
    pub fn new(levels: impl IntoIterator<Item = Name>) -> Result<Topology, TopologyError> {
        let mut topology = Topology::default();
        for level in levels {
            check_name("level", level.as_str())?;
            if topology.levels.contains(&level) {
                return Err(TopologyError::RepeatedLevel(level));
            }
            if topology.levels.len() == LEVELS_MAX {
                return Err(TopologyError::TooMany { what: "levels" });
            }
            topology.levels.push(level);
            topology.domains.push(BTreeMap::new());
        }
        Ok(topology)
    }

    /// Adds a host. `place` gives its domains by level; it may omit levels.
    ///
    /// # Errors
    /// Returns an error that names the host if the host is there already, a level is unknown, a name is not valid, a
    /// limit is reached, or the place contradicts what other entries state. The tree is then as before.
    pub fn insert(&mut self, host: &NodeId, place: &BTreeMap<Name, Name>) -> Result<(), TopologyError> {
        check_name("host", host.0.as_str())?;
        let stated_by = format!("host {}", host.0);
        if self.hosts.contains_key(host) {
            return Err(TopologyError::Repeated(stated_by));
        }
        if self.hosts.len() >= HOSTS_MAX {
            return Err(TopologyError::TooMany { what: "hosts" });
        }
        self.state(self.levels.len(), &host.0, place, &stated_by)
    }

    /// Adds a domain, or states more about where it is. `within` gives the wider domains that contain it, by level.
    ///
    /// # Errors
    /// Returns an error as [`insert`](Topology::insert) does, and if a level of `within` is not wider than the
    /// domain's.
    pub fn insert_domain(&mut self, domain: &Domain, within: &BTreeMap<Name, Name>) -> Result<(), TopologyError> {
        let stated_by = domain.to_string();
        let level = self.level_index(domain.level.as_str(), &stated_by)?;
        check_name(domain.level.as_str(), domain.name.as_str())?;
        for (wider, name) in within {
            if self.level_index(wider.as_str(), &stated_by)? >= level {
                let within = format!("{wider} {name}");
                return Err(TopologyError::NotWider { domain: stated_by, within, order: self.order() });
            }
        }
        self.state(level, &domain.name, within, &stated_by)
    }

    /// Adds the place `name` and links it to the domains of `within`, or changes nothing.
    fn state(
        &mut self,
        level: usize,
        name: &Name,
        within: &BTreeMap<Name, Name>,
        stated_by: &str,
    ) -> Result<(), TopologyError> {
        let mut mark = Mark { places: self.places.len(), links: Vec::new() };
        let result = self.try_state(level, name, within, stated_by, &mut mark);
        if result.is_err() {
            self.take_back(mark);
        }
        result
    }

    fn try_state(
        &mut self,
        level: usize,
        name: &Name,
        within: &BTreeMap<Name, Name>,
        stated_by: &str,
        mark: &mut Mark,
    ) -> Result<(), TopologyError> {
        let subject = self.place(level, name)?;
        let mut chain = vec![(level, subject)];
        for (wider, domain) in within {
            let wider = self.level_index(wider.as_str(), stated_by)?;
            check_name(self.levels[wider].as_str(), domain.as_str())?;
            chain.push((wider, self.place(wider, domain)?));
        }
        // The narrowest first. Domains are linked to each other before the subject, so that an error names the domain
        // that has two places, not a host in it.
        chain.sort_by_key(|(level, _)| Reverse(*level));
        for lower in (0..chain.len()).rev() {
            for wider in lower + 1..chain.len() {
                let linked = self.link(chain[lower].1, chain[wider].1, &mut mark.links);
                linked.map_err(|conflict| self.two_places(conflict, stated_by))?;
            }
        }
        Ok(())
    }

    fn two_places(&self, (place, first, second): (u32, u32, u32), stated_by: &str) -> TopologyError {
        TopologyError::TwoPlaces {
            subject: self.title(place),
            level: self.levels[self.places[second as usize].level].clone(),
            first: self.title(first),
            second: self.title(second),
            stated_by: stated_by.to_owned(),
        }
    }

    /// Returns the index of a domain or host, which is added if it is new.
    fn place(&mut self, level: usize, name: &Name) -> Result<u32, TopologyError> {
        if let Some(known) = self.domains.get(level).and_then(|domains| domains.get(name)) {
            return Ok(*known);
        }
        if level < self.levels.len() && self.places.len() - self.hosts.len() >= DOMAINS_MAX {
            return Err(TopologyError::TooMany { what: "domains" });
        }
        let index = u32::try_from(self.places.len()).map_err(|_| TopologyError::TooMany { what: "domains" })?;
        let above = vec![UNKNOWN; self.levels.len()].into_boxed_slice();
        self.places.push(Place { level, name: name.clone(), above });
        self.below.push(Vec::new());
        match self.domains.get_mut(level) {
            Some(domains) => _ = domains.insert(name.clone(), index),
            None => _ = self.hosts.insert(NodeId(name.clone()), index),
        }
        Ok(index)
    }

    /// States that `place` lies in `domain`, with all that follows: what lies in `place` lies in `domain`, and the
    /// domains that contain one place contain each other. Each pair of a place and a level is set once, so all links of
    /// a tree together take time in proportion to its places.
    ///
    /// Returns a place and its two domains of one level if the statement contradicts others.
    fn link(&mut self, place: u32, domain: u32, links: &mut Vec<(u32, usize)>) -> Result<(), (u32, u32, u32)> {
        let mut open = vec![(place, domain)];
        while let Some((place, domain)) = open.pop() {
            let level = self.places[domain as usize].level;
            match self.places[place as usize].above[level] {
                known if known == domain => continue,
                UNKNOWN => self.places[place as usize].above[level] = domain,
                known => return Err((place, known, domain)),
            }
            self.below[domain as usize].push(place);
            links.push((place, level));
            open.extend(self.below[place as usize].iter().map(|lower| (*lower, domain)));
            for (other_level, other) in self.places[place as usize].above.iter().enumerate() {
                match *other {
                    UNKNOWN => {}
                    other if other_level > level => open.push((other, domain)),
                    other if other_level < level => open.push((domain, other)),
                    _ => {}
                }
            }
            let wider = self.places[domain as usize].above.iter().filter(|wider| **wider != UNKNOWN);
            open.extend(wider.map(|wider| (place, *wider)));
        }
        Ok(())
    }

    fn take_back(&mut self, mark: Mark) {
        for (place, level) in mark.links.into_iter().rev() {
            let domain = std::mem::replace(&mut self.places[place as usize].above[level], UNKNOWN);
            self.below[domain as usize].pop();
        }
        for added in self.places.drain(mark.places..) {
            match self.domains.get_mut(added.level) {
                Some(domains) => _ = domains.remove(&added.name),
                None => _ = self.hosts.remove(&NodeId(added.name)),
            }
        }
        self.below.truncate(mark.places);
    }

    /// Returns the levels, from the widest to the narrowest.
    #[must_use]
    pub fn levels(&self) -> &[Name] {
        &self.levels
    }

    /// Returns the hosts of the tree in the order of their names.
    pub fn hosts(&self) -> impl Iterator<Item = &NodeId> {
        self.hosts.keys()
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Returns true if the tree has the host.
    #[must_use]
    pub fn contains(&self, host: &NodeId) -> bool {
        self.hosts.contains_key(host)
    }

    /// Returns true if the tree has no hosts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Returns the names of the domains of a level, in order; none for an unknown level.
    pub fn domains(&self, level: &str) -> impl Iterator<Item = &Name> {
        let index = self.levels.iter().position(|known| known == level);
        index.into_iter().flat_map(|index| self.domains[index].keys())
    }

    /// Returns the domain of a host at a level; `None` if the host, the level or the host's place is unknown.
    #[must_use]
    pub fn domain_of(&self, host: &NodeId, level: &str) -> Option<&Name> {
        let level = self.levels.iter().position(|known| known == level)?;
        self.name_above(self.above(host), level)
    }

    /// Returns the narrowest level at which both hosts are in one domain; `None` if no domain is known to contain both.
    #[must_use]
    pub fn common_level(&self, a: &NodeId, b: &NodeId) -> Option<&Name> {
        self.common_index(a, b).map(|level| &self.levels[level])
    }

    /// Returns how many levels a message climbs between two hosts: 0 for the same host, 1 if they share a domain of the
    /// narrowest level, and one more than the number of levels if they share no domain.
    #[must_use]
    pub fn distance(&self, a: &NodeId, b: &NodeId) -> usize {
        match self.common_index(a, b) {
            _ if a == b => 0,
            Some(level) => self.levels.len() - level,
            None => self.levels.len() + 1,
        }
    }

    fn common_index(&self, a: &NodeId, b: &NodeId) -> Option<usize> {
        let both = self.above(a).iter().zip(self.above(b));
        both.enumerate().rev().find(|(_, (a, b))| a == b && **a != UNKNOWN).map(|(level, _)| level)
    }

    /// Returns the index of a level. `used_by` names the entry or call in the error.
    pub(super) fn level_index(&self, level: &str, used_by: &str) -> Result<usize, TopologyError> {
        self.levels.iter().position(|known| known == level).ok_or_else(|| TopologyError::UnknownLevel {
            level: shortened(level),
            used_by: used_by.to_owned(),
            known: self.order(),
        })
    }

    /// Returns the domains that contain a host, by level; an empty slice for an unknown host.
    pub(super) fn above(&self, host: &NodeId) -> &[u32] {
        self.hosts.get(host).map_or(&[], |index| &self.places[*index as usize].above)
    }

    /// Returns the domain at `level` in `above`, if it is known.
    pub(super) fn index_above(above: &[u32], level: usize) -> Option<u32> {
        above.get(level).copied().filter(|domain| *domain != UNKNOWN)
    }

    /// Returns the name of the domain at `level` in `above`, if it is known.
    pub(super) fn name_above(&self, above: &[u32], level: usize) -> Option<&Name> {
        Topology::index_above(above, level).map(|domain| &self.places[domain as usize].name)
    }

    /// Returns the narrowest known domain in `above`, up to the level `limit`.
    pub(super) fn narrowest(above: &[u32], limit: usize) -> Option<u32> {
        above.iter().take(limit.saturating_add(1)).rev().copied().find(|domain| *domain != UNKNOWN)
    }

    /// Returns the level and the name of a domain.
    pub(super) fn domain(&self, index: u32) -> Domain {
        let place = &self.places[index as usize];
        Domain { level: self.levels[place.level].clone(), name: place.name.clone() }
    }

    /// Returns the index of a domain.
    pub(super) fn domain_index(&self, domain: &Domain) -> Option<u32> {
        let level = self.levels.iter().position(|level| *level == domain.level)?;
        self.domains[level].get(&domain.name).copied()
    }

    fn title(&self, index: u32) -> String {
        let place = &self.places[index as usize];
        let level = self.levels.get(place.level).map_or("host", Name::as_str);
        format!("{level} {}", place.name)
    }

    pub(super) fn order(&self) -> String {
        self.levels.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Returns an error if a text cannot be the name of a level, a domain or a host.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), TopologyError> {
    let sound = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.trim() == name
        && taskd_runtime::job::printable(name) == name
        && !name.contains(['\n', '\t']);
    if sound { Ok(()) } else { Err(TopologyError::Name { what: what.to_owned(), name: shortened(name) }) }
}
