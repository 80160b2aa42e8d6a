//! Reads the tree from labels of agents, and from files in two forms.

use super::error::shortened;
use super::{Domain, TEXT_BYTES_MAX, Topology, TopologyError};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use taskd_runtime::job::{Name, NodeId};

/// Start of the label keys that are meant for this module: `taskd.io/topology.LEVEL=NAME`.
pub(super) const LABEL_PREFIX: &str = "taskd.io/topology.";

/// Version of the JSON form.
const VERSION: u32 = 1;

impl Topology {
    /// Creates a tree from the labels of hosts.
    ///
    /// A label with one of these keys gives a host's domain at the level `LEVEL`; the first of them that a host has
    /// counts:
    /// 1. `taskd.io/topology.LEVEL`;
    /// 2. `LEVEL`;
    /// 3. every key that ends in `/LEVEL`, as Kubernetes' `topology.kubernetes.io/zone` does. Several such labels must
    ///    agree.
    ///
    /// Other labels are ignored, and so is a label with an empty value.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use taskd_cluster::topology::{DEFAULT_LEVELS, Topology};
    ///
    /// let labels = BTreeMap::from([
    ///     ("topology.kubernetes.io/zone".to_owned(), "eu-1a".to_owned()),
    ///     ("taskd.io/topology.leaf".to_owned(), "l17".to_owned()),
    /// ]);
    /// let host = "n1".parse()?;
    /// let topology = Topology::from_labels(DEFAULT_LEVELS, [(&host, &labels)])?;
    /// assert_eq!(topology.domain_of(&host, "zone").map(|zone| zone.as_str()), Some("eu-1a"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of the first host, in the order of names, that has one.
    pub fn from_labels<'a>(
        levels: impl IntoIterator<Item = Name>,
        hosts: impl IntoIterator<Item = (&'a NodeId, &'a BTreeMap<String, String>)>,
    ) -> Result<Topology, TopologyError> {
        let (topology, mut errors) = Topology::from_valid_labels(levels, hosts)?;
        errors.pop_first().map_or(Ok(topology), |(_, error)| Err(error))
    }

    /// Creates a tree from the labels of hosts as [`from_labels`](Topology::from_labels) does. A host with an error is
    /// left out, so that one agent with a wrong label does no harm to others; the errors are returned by host. Hosts
    /// are added in the order of their names, so the same hosts always have the errors.
    ///
    /// # Errors
    /// Returns an error if a level has no valid name or is listed twice.
    pub fn from_valid_labels<'a>(
        levels: impl IntoIterator<Item = Name>,
        hosts: impl IntoIterator<Item = (&'a NodeId, &'a BTreeMap<String, String>)>,
    ) -> Result<(Topology, BTreeMap<NodeId, TopologyError>), TopologyError> {
        let mut topology = Topology::new(levels)?;
        let errors = topology.add_labels(hosts);
        Ok((topology, errors))
    }

    /// Adds the hosts that are not in the tree yet, by their labels (see [`from_labels`](Topology::from_labels)). A host
    /// that is in the tree keeps its place, whatever its labels are; so a file takes precedence. Returns the errors of
    /// the hosts that are left out.
    pub fn add_labels<'a>(
        &mut self,
        hosts: impl IntoIterator<Item = (&'a NodeId, &'a BTreeMap<String, String>)>,
    ) -> BTreeMap<NodeId, TopologyError> {
        let mut errors = BTreeMap::new();
        let mut all: Vec<_> = hosts.into_iter().filter(|(host, _)| !self.contains(host)).collect();
        all.sort_by_key(|(host, _)| *host);
        for (host, labels) in all {
            let added = self.place_of(host, labels).and_then(|place| self.insert(host, &place));
            if let Err(error) = added {
                errors.insert(host.clone(), error);
            }
        }
        errors
    }

    /// Returns the place that the labels of a host state, by level. (See [`from_labels`](Topology::from_labels).)
    ///
    /// # Errors
    /// Returns an error if two labels contradict each other.
    pub fn place_of(
        &self,
        host: &NodeId,
        labels: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<Name, Name>, TopologyError> {
        let mut place = BTreeMap::new();
        for level in self.levels() {
            let keys = [format!("{LABEL_PREFIX}{level}"), level.as_str().to_owned()];
            let own = keys.iter().filter_map(|key| labels.get(key)).find(|value| !value.is_empty());
            let found = match own {
                Some(value) => Some(value),
                None => shared_label(host, level, labels)?,
            };
            if let Some(value) = found {
                place.insert(level.clone(), Name::from(value.clone()));
            }
        }
        Ok(place)
    }

    /// Reads a file: JSON if its first character is `{`, otherwise lines. (See the [module](super) for both.)
    ///
    /// # Errors
    /// Returns an error that names the line or the entry, and what to write.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TopologyError::TooMany { what: "bytes" });
        }
        let document = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(TopologyError::Form)?
        } else {
            lines(text)?
        };
        build(document)
    }
}

/// Returns the value of the labels with keys that end in `/LEVEL`.
fn shared_label<'a>(
    host: &NodeId,
    level: &Name,
    labels: &'a BTreeMap<String, String>,
) -> Result<Option<&'a String>, TopologyError> {
    let ends_in_level = |key: &str| key.rsplit_once('/').is_some_and(|(_, end)| end == level.as_str());
    let mut found: Option<(&String, &String)> = None;
    for (key, value) in labels.iter().filter(|(key, value)| ends_in_level(key) && !value.is_empty()) {
        match found {
            Some((first, other)) if other != value => {
                return Err(TopologyError::Labels {
                    host: host.0.clone(),
                    first: shortened(&format!("{first}={other}")),
                    second: shortened(&format!("{key}={value}")),
                });
            }
            _ => found = Some((key, value)),
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// A file's content, in the order of its entries and with repeated ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default = "first_version")]
    version: u32,
    levels: Vec<Name>,
    /// By level and name: the wider domains that contain the domain, by level.
    #[serde(default)]
    domains: Entries<Entries<Place>>,
    #[serde(default)]
    hosts: Entries<Place>,
}

type Place = Entries<Name>;

const fn first_version() -> u32 {
    VERSION
}

/// Adds all entries of a file to a tree.
fn build(document: Document) -> Result<Topology, TopologyError> {
    if document.version != VERSION {
        return Err(TopologyError::Version(document.version));
    }
    let mut topology = Topology::new(document.levels)?;
    let mut stated: BTreeMap<Domain, BTreeMap<Name, Name>> = BTreeMap::new();
    for (level, domains) in document.domains.0 {
        for (name, within) in domains.0 {
            let domain = Domain { level: level.clone(), name };
            let within = place(&domain, within)?;
            if stated.insert(domain.clone(), within).is_some() {
                return Err(TopologyError::Repeated(domain.to_string()));
            }
        }
    }
    for (domain, within) in &stated {
        topology.insert_domain(domain, within).map_err(|error| match error {
            TopologyError::NotWider { .. } => cycle_or(&stated, domain, error),
            error => error,
        })?;
    }
    for (host, within) in document.hosts.0 {
        let within = place(&format_args!("host {host}"), within)?;
        topology.insert(&NodeId(host), &within)?;
    }
    Ok(topology)
}

fn place(subject: &dyn fmt::Display, entries: Place) -> Result<BTreeMap<Name, Name>, TopologyError> {
    let mut place = BTreeMap::new();
    for (level, name) in entries.0 {
        if place.insert(level.clone(), name).is_some() {
            return Err(TopologyError::Repeated(format!("level {level} of {subject}")));
        }
    }
    Ok(place)
}

/// Returns the cycle of entries through `start`, or `error` if there is none. Every cycle has an entry that places a
/// domain in one that is not wider, so only such entries are searched.
fn cycle_or(stated: &BTreeMap<Domain, BTreeMap<Name, Name>>, start: &Domain, error: TopologyError) -> TopologyError {
    let mut from: BTreeMap<Domain, Domain> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut open = vec![start.clone()];
    while let Some(domain) = open.pop() {
        for (level, name) in stated.get(&domain).into_iter().flatten() {
            let within = Domain { level: level.clone(), name: name.clone() };
            if within == *start {
                return TopologyError::Cycle { path: path(&from, start, &domain) };
            }
            if seen.insert(within.clone()) {
                from.insert(within.clone(), domain.clone());
                open.push(within);
            }
        }
    }
    error
}

/// Returns the path from `start` over `last` to `start`.
fn path(from: &BTreeMap<Domain, Domain>, start: &Domain, last: &Domain) -> String {
    let mut steps = vec![start.to_string(), last.to_string()];
    let mut step = last;
    while let Some(previous) = from.get(step) {
        steps.push(previous.to_string());
        step = previous;
    }
    steps.reverse();
    steps.join(" in ")
}

/// Reads the form of lines.
fn lines(text: &str) -> Result<Document, TopologyError> {
    const FORMS: &str = "write `levels: LEVEL, ...`, `HOST: LEVEL=NAME, ...` or `LEVEL DOMAIN: LEVEL=NAME, ...`";
    let mut levels: Option<Vec<Name>> = None;
    let mut domains: BTreeMap<Name, Entries<Place>> = BTreeMap::new();
    let mut hosts = Entries::default();
    for (index, line) in text.lines().enumerate() {
        let fault = |write| TopologyError::Line { line: index + 1, text: shortened(line.trim()), write };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts = line.split_once(": ").or_else(|| line.strip_suffix(':').map(|subject| (subject, "")));
        let (subject, rest) = parts.ok_or_else(|| fault(FORMS))?;
        let items = rest.split(',').map(str::trim).filter(|item| !item.is_empty());
        if subject == "levels" {
            if levels.is_some() {
                return Err(fault("list all levels in one line"));
            }
            levels = Some(items.map(|level| Name::from(level.to_owned())).collect());
            continue;
        }
        let mut place = Entries::default();
        for item in items {
            let (level, name) = item.split_once('=').ok_or_else(|| fault(FORMS))?;
            place.0.push((Name::from(level.trim().to_owned()), Name::from(name.trim().to_owned())));
        }
        match subject.split_once(' ') {
            Some((level, domain)) => {
                let level = Name::from(level.to_owned());
                domains.entry(level).or_default().0.push((Name::from(domain.trim().to_owned()), place));
            }
            None => hosts.0.push((Name::from(subject.to_owned()), place)),
        }
    }
    let levels = levels.ok_or(TopologyError::Line {
        line: 1,
        text: text.lines().next().map(shortened).unwrap_or_default(),
        write: "begin with `levels: LEVEL, ...`, from the widest level to the narrowest",
    })?;
    Ok(Document { version: VERSION, levels, domains: Entries(domains.into_iter().collect()), hosts })
}

/// The entries of a JSON object in their order. A map would silently keep the last of two entries of one host.
struct Entries<V>(Vec<(Name, V)>);

impl<V> Default for Entries<V> {
    fn default() -> Entries<V> {
        Entries(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Entries<V>, D::Error> {
        d.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry for each level, domain or host")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<V>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}
