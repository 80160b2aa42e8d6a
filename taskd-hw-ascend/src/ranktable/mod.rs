//! Rank tables: the JSON files that tell HCCL which device is which rank (`RANK_TABLE_FILE`).
//!
//! | form | where | [`RankTable`] |
//! |---|---|---|
//! | 1.0 | clusters of servers | [`Servers`](RankTable::Servers) |
//! | 1.2 | super pods (Atlas 900 A3) | [`Servers`](RankTable::Servers), with super pods |
//! | 2.0 | the 350, 850 and 950 generation | [`Ranks`](RankTable::Ranks) |
//! | `group_list` | older operators, CCE | [`Groups`](RankTable::Groups) |
//! | any, `initializing` | while the operator still waits for pods | [`Initializing`](RankTable::Initializing) |
//!
//! What is read is checked by all documented rules at once: every problem is told, with the JSON path of the value to look
//! at. Fields that have no rule are kept as they are, those of other versions as well, so that a table that was read and
//! written is the same table.
//!
//! CCE delivers tables also [compressed](RankTable::from_bytes). Its plugin's argument `--rank-table-version=v2` means version
//! 1.0 for a Job and 1.2 for a HyperJob, never 2.0: what a table is says the table alone.
//!
//! It starts nothing and asks no device: where addresses come from is its user's affair.
//!
//! ```
//! use taskd_hw_ascend::ranktable::{NewDevice, NewServer, RankTable};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = r#"{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [{"server_id": "10.0.0.5",
//!     "device": [{"device_id": "0", "device_ip": "10.20.0.2", "rank_id": "0"}]}]}"#;
//! let RankTable::Servers(table) = RankTable::from_json(text)? else { return Err("another form".into()) };
//! let device = NewDevice { device_id: 3, device_ip: Some("10.20.0.9".into()), ..NewDevice::default() };
//! let spare = NewServer { server_id: "10.0.0.7".into(), devices: vec![device], ..NewServer::default() };
//! let patched = table.replaced("10.0.0.5", spare)?;
//! assert_eq!(patched.servers[0].devices[0].rank_id, 0, "rank 0 has moved");
//!
//! let wrong = RankTable::from_json(&text.replace("10.20.0.2", "none")).unwrap_err();
//! assert_eq!(wrong.to_string(), r#"$.server_list[0].device[0].device_ip is "none", which is no IP address"#);
//! # Ok(()) }
//! ```

mod edit;
mod fields;
mod file;
mod groups;
mod packed;
mod ranks;
mod servers;

pub use edit::{NewDevice, NewServer};
pub use fields::{Problem, Problems};
pub use file::FileError;
pub use groups::{Group, GroupTable, Instance, InstanceDevice};
pub use ranks::{Address, AddressKind, Level, RankEntry, RankList};
pub use servers::{Device, Server, ServerTable, SuperPod, Version};

use fields::{Fields, Found, Path};
use serde::Serialize;
use serde_json::{Map, Value};
use taskd_core::job::document_text;

/// The fields of a JSON object that have no rule: kept, and written as they were read.
pub type Other = Map<String, Value>;

/// How far a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Whole: it may be used.
    Completed,
    /// The same, as ClusterD's job summary spells it.
    Complete,
}

/// A rank table of any form.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RankTable {
    /// Not whole yet: whoever waits for it looks again later. What it holds already is kept, and not checked.
    Initializing(Other),
    /// Versions 1.0 and 1.2.
    Servers(ServerTable),
    /// Version 2.0.
    Ranks(RankList),
    /// The older form.
    Groups(GroupTable),
}

impl RankTable {
    /// Reads a table.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_json(text: &str) -> Result<RankTable, Problems> {
        document_text(text.as_bytes()).map_err(|why| Problems::one("$", why.to_string()))?;
        let value = serde_json::from_str(text).map_err(|error| Problems::one("$", format!("no JSON: {error}")))?;
        RankTable::from_value(value)
    }

    fn from_value(value: Value) -> Result<RankTable, Problems> {
        let found = Found::default();
        let table = Fields::of(value, Path::ROOT, &found).and_then(read);
        found.unless_any(table)
    }

    /// The table as JSON, in the order in which the operator writes it.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings for keys, and nothing that could fail
    }

    /// How many ranks it has; `None` while it is not whole.
    #[must_use]
    pub fn ranks(&self) -> Option<usize> {
        match self {
            RankTable::Initializing(_) => None,
            RankTable::Servers(table) => Some(table.servers.iter().map(|server| server.devices.len()).sum()),
            RankTable::Ranks(table) => Some(table.ranks.len()),
            RankTable::Groups(table) => Some(table.devices().count()),
        }
    }

    /// Checks it by all rules of its form, as what was read is: after it was changed by hand.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn check(&self) -> Result<(), Problems> {
        let found = Found::default();
        match self {
            RankTable::Initializing(_) => {}
            RankTable::Servers(table) => table.check(&found),
            RankTable::Ranks(table) => table.check(&found),
            RankTable::Groups(table) => table.check(&found),
        }
        found.unless_any(Some(()))
    }
}

/// `None`: something is wrong, and told.
fn read(mut fields: Fields<'_>) -> Option<RankTable> {
    let is_ranks = fields.is_text("version", "2.0");
    let status = match fields.text_if_any("status")?.as_deref() {
        Some("initializing") => {
            let mut all = fields.rest();
            all.insert("status".into(), "initializing".into());
            return Some(RankTable::Initializing(all));
        }
        Some("completed") => Some(Status::Completed),
        Some("complete") => Some(Status::Complete),
        None if is_ranks => None,
        None => return fields.wrong("status", "is missing"),
        Some(other) => return fields.wrong("status", format!("is {other:?}, and is to be completed or initializing")),
    };
    match (status, fields.has("group_list"), is_ranks) {
        (status, false, true) => RankList::read(fields, status).map(RankTable::Ranks),
        (Some(status), true, false) => GroupTable::read(fields, status).map(RankTable::Groups),
        (Some(status), false, false) => ServerTable::read(fields, status).map(RankTable::Servers),
        _ => fields.wrong("group_list", "stands in a table of version 2.0, which has a rank_list"),
    }
}
