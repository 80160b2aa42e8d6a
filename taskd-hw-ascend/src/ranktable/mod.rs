//! Rank tables: the JSON files that assign ranks to devices for HCCL (`RANK_TABLE_FILE`).
//!
//! | format | used by | [`RankTable`] |
//! |---|---|---|
//! | 1.0 | clusters of servers | [`Servers`](RankTable::Servers) |
//! | 1.2 | super pods (Atlas 900 A3) | [`Servers`](RankTable::Servers), with super pods |
//! | 2.0 | the 350, 850 and 950 generation | [`Ranks`](RankTable::Ranks) |
//! | `group_list` | older operators, CCE | [`Groups`](RankTable::Groups) |
//! | any, `initializing` | the operator, while it waits for pods | [`Initializing`](RankTable::Initializing) |
//!
//! Reading a table checks all documented rules of its format at once, and reports each problem with the JSON path of
//! the value. Fields for which the format has no rule, including fields of other versions, are kept, so that a table
//! that is read and written stays the same.
//!
//! CCE also delivers tables [compressed](RankTable::from_bytes). Its plugin's argument `--rank-table-version=v2` means
//! version 1.0 for a Job and 1.2 for a HyperJob, never 2.0. Only the table itself states its version.
//!
//! The module queries no device: callers provide the addresses.
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

/// Fields of a JSON object in a rank table that this module does not interpret. They are kept and written unchanged.
pub type Other = Map<String, Value>;

/// Completion status of a rank table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The table is complete and may be used: status `completed`.
    Completed,
    /// The table is complete and may be used: status `complete`, the spelling in ClusterD's job summary.
    Complete,
}

/// A rank table of any format.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RankTable {
    /// A table that the cluster has not completed yet (status `initializing`): read the file again later. The field has
    /// all fields of the table, which are not checked.
    Initializing(Other),
    /// A table of version 1.0 or 1.2, which lists servers with their devices.
    Servers(ServerTable),
    /// A table of version 2.0, which lists ranks.
    Ranks(RankList),
    /// A table in the older `group_list` format.
    Groups(GroupTable),
}

impl RankTable {
    /// Parses a rank table from JSON and checks it against the rules of its format.
    ///
    /// # Errors
    /// Returns [`Problems`] with all problems of the table if the text is no JSON or the table breaks a rule.
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

    /// Returns the rank table as JSON, with the fields in the order in which MindCluster's operator writes them.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // string keys only, so it cannot fail
    }

    /// Returns the number of ranks in the table, or `None` while the table is not complete.
    #[must_use]
    pub fn ranks(&self) -> Option<usize> {
        match self {
            RankTable::Initializing(_) => None,
            RankTable::Servers(table) => Some(table.servers.iter().map(|server| server.devices.len()).sum()),
            RankTable::Ranks(table) => Some(table.ranks.len()),
            RankTable::Groups(table) => Some(table.devices().count()),
        }
    }

    /// Checks the table against all rules of its format, as [`from_json`](RankTable::from_json) does. Call this
    /// function after you have changed fields of a table.
    ///
    /// # Errors
    /// Returns [`Problems`] with all problems of the table if the table breaks a rule.
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

/// Parses a table from the fields of its JSON object. Returns `None` after a problem was recorded.
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
        Some(other) => return fields.wrong("status", format!("is {other:?}, but must be completed or initializing")),
    };
    match (status, fields.has("group_list"), is_ranks) {
        (status, false, true) => RankList::read(fields, status).map(RankTable::Ranks),
        (Some(status), true, false) => GroupTable::read(fields, status).map(RankTable::Groups),
        (Some(status), false, false) => ServerTable::read(fields, status).map(RankTable::Servers),
        _ => fields.wrong("group_list", "is not allowed in a table of version 2.0, which has a rank_list"),
    }
}
