//! Rank table 2.0: a list of ranks, each with its addresses on every layer of the network.

use super::fields::{Fields, Found, Path, RanksOnce, Unique};
use super::servers::check_address;
use super::{Other, Problems, Status};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Highest network layer that HCCL reads. In use are 0 (inside the box), 1 (super pod), 2 (UBoE) and 3 (RoCE).
const NET_LAYER_MAX: u32 = 7;
/// Network types that HCCL's reader accepts. The first two are documented; the last one is for optical switches.
const NET_TYPES: [&str; 7] = ["TOPO_FILE_DESC", "CLOS", "1DMESH", "2DMESH", "A3_SERVER", "A2_AX_SERVER", "OXC_Mesh"];
/// Address types. HCCL's reader accepts the first three, in capitals only; MindCluster's operator writes the last one.
const ADDRESS_KINDS: [(&str, AddressKind); 4] =
    [("EID", AddressKind::Eid), ("IPV4", AddressKind::Ipv4), ("IPV6", AddressKind::Ipv6), ("IP", AddressKind::Ip)];
/// Maximum length of a `ports` item in bytes.
const PORTS_BYTES_MAX: usize = 32;

/// A rank table of version 2.0. In JSON, its field `rank_count` is the number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct RankList {
    /// Completion status of the table; `None` if the table does not state it.
    pub status: Option<Status>,
    /// Ranks of the table, sorted by number: `rank_list`.
    pub ranks: Vec<RankEntry>,
    /// Further fields of the table, kept unchanged.
    pub other: Other,
}

/// An item of a rank table's `rank_list`: a rank with its device and its network addresses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankEntry {
    /// Number of the rank: `rank_id`.
    pub rank_id: u32,
    /// Number of the rank's device among those of its host: `local_id`.
    pub local_id: u32,
    /// Id of the rank's device: `device_id`.
    pub device_id: u32,
    /// Layers of the network on which the rank has addresses: `level_list`.
    #[serde(rename = "level_list")]
    pub levels: Vec<Level>,
    /// Further fields of the rank, kept unchanged.
    #[serde(flatten)]
    pub other: Other,
}

/// Addresses of a rank on one layer of the network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// Layer of the network, `net_layer`: 0 inside the box, 1 super pod, 2 UBoE, 3 RoCE.
    pub net_layer: u32,
    /// Name of a part of the network, `net_instance_id`: ranks with the same value reach each other on this layer.
    pub net_instance_id: String,
    /// Type of the network, `net_type`: `TOPO_FILE_DESC`, `CLOS` or another type that HCCL knows; empty if there are no
    /// addresses.
    pub net_type: String,
    /// Addresses of the rank on this layer: `rank_addr_list`.
    #[serde(rename = "rank_addr_list")]
    pub addresses: Vec<Address>,
    /// Further fields of the layer, kept unchanged, for example `net_attr`.
    #[serde(flatten)]
    pub other: Other,
}

/// An address of a rank on one layer of the network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Address {
    /// Type of the address: `addr_type`.
    #[serde(rename = "addr_type")]
    pub kind: AddressKind,
    /// The address as text: `addr`.
    pub addr: String,
    /// Ports of the address, `ports`: each item is the name of a host port (`d2h`), or one or several `die/port`,
    /// separated by commas.
    pub ports: Vec<String>,
    /// Further fields of the address, kept unchanged, for example `plane_id`.
    #[serde(flatten)]
    pub other: Other,
}

/// Type of the address of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum AddressKind {
    /// An entity id of the unified bus.
    #[serde(rename = "EID")]
    Eid,
    /// An IP address of either version.
    #[serde(rename = "IP")]
    Ip,
    /// An IPv4 address.
    #[serde(rename = "IPV4")]
    Ipv4,
    /// An IPv6 address.
    #[serde(rename = "IPV6")]
    Ipv6,
}

impl RankList {
    /// Creates a complete rank table of version 2.0 from these ranks.
    ///
    /// # Errors
    /// Returns [`Problems`] with all problems if the resulting table breaks a rule of version 2.0.
    pub fn new(ranks: impl IntoIterator<Item = RankEntry>) -> Result<RankList, Problems> {
        let mut ranks: Vec<RankEntry> = ranks.into_iter().collect();
        let found = Found::default();
        check_all(&ranks, &found);
        ranks.sort_by_key(|rank| rank.rank_id);
        found.unless_any(Some(RankList { status: Some(Status::Completed), ranks, other: Other::new() }))
    }

    /// Returns a copy of the table in which each of `entries` replaces the entry with the same rank, for example after
    /// a node was replaced.
    ///
    /// # Errors
    /// Returns [`Problems`] if the table has no entry for one of the ranks, or if the resulting table breaks a rule.
    pub fn replaced(&self, entries: impl IntoIterator<Item = RankEntry>) -> Result<RankList, Problems> {
        let mut table = self.clone();
        for entry in entries {
            let Some(place) = table.ranks.iter_mut().find(|rank| rank.rank_id == entry.rank_id) else {
                return Err(Problems::one("$.rank_list", format!("has no rank {}", entry.rank_id)));
            };
            *place = entry;
        }
        let found = Found::default();
        table.check(&found);
        found.unless_any(Some(table))
    }

    pub(super) fn read(mut fields: Fields<'_>, status: Option<Status>) -> Option<RankList> {
        fields.text("version")?;
        let count = fields.number("rank_count");
        let ranks = fields.objects("rank_list", RankEntry::read);
        let (count, mut ranks) = (count?, ranks?);
        if count as usize != ranks.len() {
            return fields.wrong("rank_count", format!("is {count}, but there are {} ranks", ranks.len()));
        }
        check_all(&ranks, fields.found()); // before sorting, so that paths are those of the file
        ranks.sort_by_key(|rank| rank.rank_id);
        Some(RankList { status, ranks, other: fields.rest() })
    }

    /// Records all problems of the table.
    pub(super) fn check(&self, found: &Found) {
        check_all(&self.ranks, found);
    }
}

fn check_all(ranks: &[RankEntry], found: &Found) {
    let list = Path::Field(Path::ROOT, "rank_list");
    if ranks.is_empty() {
        found.note(list, "is empty");
    }
    let mut once = RanksOnce::of(ranks.len());
    for (index, rank) in ranks.iter().enumerate() {
        let at = Path::Item(&list, index);
        once.add(rank.rank_id, Path::Field(&at, "rank_id"), found);
        let levels = Path::Field(&at, "level_list");
        let mut layers = Unique::new();
        for (index, level) in rank.levels.iter().enumerate() {
            let at = Path::Item(&levels, index);
            layers.add(level.net_layer, Path::Field(&at, "net_layer"), found);
            level.check(at, found);
        }
    }
}

impl RankEntry {
    fn read(mut fields: Fields<'_>) -> Option<RankEntry> {
        let (rank_id, local_id) = (fields.number("rank_id"), fields.number("local_id"));
        let device_id = fields.number("device_id");
        let levels = fields.objects("level_list", Level::read);
        let (rank_id, local_id, device_id, levels) = (rank_id?, local_id?, device_id?, levels?);
        Some(RankEntry { rank_id, local_id, device_id, levels, other: fields.rest() })
    }
}

impl Level {
    fn read(mut fields: Fields<'_>) -> Option<Level> {
        let net_layer = fields.number("net_layer");
        let (net_instance_id, net_type) = (fields.text("net_instance_id"), fields.text("net_type"));
        let addresses = fields.objects("rank_addr_list", Address::read);
        let (net_layer, net_instance_id, net_type) = (net_layer?, net_instance_id?, net_type?);
        Some(Level { net_layer, net_instance_id, net_type, addresses: addresses?, other: fields.rest() })
    }

    fn check(&self, at: Path<'_>, found: &Found) {
        if self.net_layer > NET_LAYER_MAX {
            let what = format!("is {}, but the layers are 0 to {NET_LAYER_MAX}", self.net_layer);
            found.note(Path::Field(&at, "net_layer"), what);
        }
        let is_left_empty = self.net_type.is_empty() && self.addresses.is_empty();
        if !is_left_empty && !NET_TYPES.contains(&self.net_type.as_str()) {
            let what = format!("is {:?}, but must be {}", self.net_type, NET_TYPES.join(" or "));
            found.note(Path::Field(&at, "net_type"), what);
        }
        let list = Path::Field(&at, "rank_addr_list");
        for (index, address) in self.addresses.iter().enumerate() {
            address.check(Path::Item(&list, index), found);
        }
    }
}

impl Address {
    fn read(mut fields: Fields<'_>) -> Option<Address> {
        let name = fields.text("addr_type")?;
        let kind = ADDRESS_KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        let kind = kind.or_else(|| {
            let known: Vec<&str> = ADDRESS_KINDS.iter().map(|(known, _)| *known).collect();
            fields.wrong("addr_type", format!("is {name:?}, but must be {}, in capitals", known.join(" or ")))
        });
        let addr = fields.text("addr");
        let found = fields.found();
        let ports = fields.list("ports", |port, at| match port {
            Value::String(port) => Some(port),
            _ => {
                found.note(*at, "is not a string, but must be a port such as \"1/0\"");
                None
            }
        });
        Some(Address { kind: kind?, addr: addr?, ports: ports?, other: fields.rest() })
    }

    fn check(&self, at: Path<'_>, found: &Found) {
        let at_addr = Path::Field(&at, "addr");
        match self.kind {
            AddressKind::Ip => check_address(Some(&self.addr), at_addr, found),
            AddressKind::Ipv4 if self.addr.parse::<Ipv4Addr>().is_err() => {
                found.note(at_addr, format!("is {:?}, which is no IPv4 address", self.addr));
            }
            AddressKind::Ipv6 if self.addr.parse::<Ipv6Addr>().is_err() => {
                found.note(at_addr, format!("is {:?}, which is no IPv6 address", self.addr));
            }
            AddressKind::Eid if self.addr.is_empty() => found.note(at_addr, "is empty"),
            AddressKind::Ipv4 | AddressKind::Ipv6 | AddressKind::Eid => {}
        }
        let list = Path::Field(&at, "ports");
        for (index, ports) in self.ports.iter().enumerate() {
            if ports.len() > PORTS_BYTES_MAX || !ports.split(',').all(is_port) {
                let what = format!("is {ports:?}, but must be a port such as \"1/0\", or a host's such as \"d2h\"");
                found.note(Path::Item(&list, index), what);
            }
        }
    }
}

/// Returns true if the text is a port of a die, such as `1/0`, or the name of a host port, such as `d2h`.
fn is_port(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name =
        || text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    text.split_once('/').map_or_else(is_name, |(die, port)| is_number(die) && is_number(port))
}

impl Serialize for RankList {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<Status>,
            version: &'static str,
            rank_count: usize,
            rank_list: &'a [RankEntry],
            #[serde(flatten)]
            other: &'a Other,
        }
        let (rank_count, rank_list) = (self.ranks.len(), self.ranks.as_slice());
        Written { status: self.status, version: "2.0", rank_count, rank_list, other: &self.other }.serialize(to)
    }
}
