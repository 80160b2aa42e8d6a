//! NVIDIA's recommended action for each Xid: a table as data, which users can extend.
//!
//! The table contains documented facts only; the detector decides.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use taskd_core::job::document_text;

/// The built-in table; its `source` field names the origin.
const BUILT_IN: &str = include_str!("table.json");

/// Maximum number of entries of one [`XidTable`]. A document that would exceed it is refused.
pub const ENTRIES_MAX: usize = 4096;

/// Maximum size of a table document in bytes.
const BYTES_MAX: usize = 4 << 20;

/// Action that NVIDIA recommends as the immediate reaction to an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// No action: the Xid is informational.
    Ignore,
    /// Take the action that is recommended for the error that caused this Xid.
    FollowOther,
    /// Restart the application; the GPU works.
    RestartApp,
    /// Stop all work on the GPU and reset it.
    ResetGpu,
    /// Stop all work on the GPU and on the GPUs that share its links, then reset it.
    DrainAndReset,
    /// Stop all work on the node and reboot it.
    RebootNode,
    /// Restart the virtual machine.
    RestartVm,
    /// Follow the driver's recommended recovery action for the GPU.
    RecoveryAction,
    /// Check NVLink: the log line names the link, and the driver's recovery action states what to do.
    CheckFabric,
    /// Check cables, power and whether the card sits firmly in its slot.
    CheckHardware,
    /// Check the versions of driver and firmware.
    UpdateSoftware,
    /// Contact NVIDIA: no other action is documented.
    ContactSupport,
}

impl Action {
    /// Returns the action as a sentence for an operator.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Action::Ignore => "no action is needed: it is information",
            Action::FollowOther => "it follows from another error: act on that one",
            Action::RestartApp => "restart the application; the GPU can be used again at once",
            Action::ResetGpu => "stop all work on the GPU and reset it (nvidia-smi --gpu-reset)",
            Action::DrainAndReset => {
                "stop all work on the GPU and on those that share its NVLinks, then reset it (nvidia-smi --gpu-reset)"
            }
            Action::RebootNode => {
                "drain the node and reboot it; if the error returns, have the GPU and its seat checked"
            }
            Action::RestartVm => "restart the virtual machine",
            Action::RecoveryAction => "follow the GPU's recovery action (nvidia-smi -q)",
            Action::CheckFabric => "check NVLink and its fabric (nvidia-smi nvlink -e, the fabric manager's log)",
            Action::CheckHardware => "check the GPU's power cables and its seat",
            Action::UpdateSoftware => "update driver and firmware",
            Action::ContactSupport => "contact NVIDIA's support: no other action is documented",
        }
    }

    /// Returns true if the GPU does not work until this action has been carried out.
    #[must_use]
    pub const fn takes_the_gpu(self) -> bool {
        matches!(self, Action::ResetGpu | Action::DrainAndReset | Action::RebootNode)
    }

    /// Converts NVML's number of the recovery action that the driver recommends
    /// (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`); returns `None` if the number is unknown.
    #[must_use]
    pub const fn of_driver(code: u32) -> Option<Action> {
        Some(match code {
            0 => Action::Ignore,
            1 | 6 => Action::ResetGpu, // 6: reset through the bus
            2 | 7 => Action::RebootNode,
            3 => Action::CheckFabric, // drain peer-to-peer traffic
            4 => Action::DrainAndReset,
            5 => Action::CheckFabric, // recover the IMEX domain
            _ => return None,
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Action::Ignore => "ignore",
            Action::FollowOther => "follow-other",
            Action::RestartApp => "restart-app",
            Action::ResetGpu => "reset-gpu",
            Action::DrainAndReset => "drain-and-reset",
            Action::RebootNode => "reboot-node",
            Action::RestartVm => "restart-vm",
            Action::RecoveryAction => "recovery-action",
            Action::CheckFabric => "check-fabric",
            Action::CheckHardware => "check-hardware",
            Action::UpdateSoftware => "update-software",
            Action::ContactSupport => "contact-support",
        })
    }
}

/// Entry for one Xid in an [`XidTable`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Number of the Xid.
    pub xid: u32,
    /// NVIDIA's name for the Xid.
    pub name: String,
    /// Action that is recommended as the immediate reaction to the Xid.
    pub action: Action,
    /// True if an error of the application itself usually causes the Xid. A fault for the Xid then has the class
    /// `program` instead of `device`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub application: bool,
    /// Number of another Xid that replaces this one, as 94 (contained error) replaces 48. If the other Xid occurs on
    /// the same device within 2 s before or after this one, the detector judges only the other Xid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<u32>,
    /// Further remarks about the entry, for example where sources differ or are uncertain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    source: String,
    xids: Vec<Entry>,
}

/// Table of the actions that NVIDIA recommends, by Xid number.
///
/// The built-in table is derived from NVIDIA's *Xid catalog* (docs.nvidia.com/deploy/xid-errors, as of October 2025,
/// column "Resolution Bucket (Immediate Action)") for Ampere and newer GPUs. A user's table is a JSON document of the
/// same format; each of its entries replaces the built-in entry with the same number:
///
/// ```
/// use taskd_hw_cuda::xid::{Action, XidTable};
///
/// let mut table = XidTable::built_in();
/// table.extend_from(r#"{"xids": [{"xid": 63, "name": "row remapped", "action": "reset-gpu", "note": "our policy"}]}"#)?;
/// assert_eq!(table.get(63).map(|entry| entry.action), Some(Action::ResetGpu));
/// assert_eq!(table.get(79).map(|entry| entry.action), Some(Action::RebootNode));
/// assert_eq!(table.get(9999), None, "told, and not acted upon");
/// # Ok::<(), taskd_hw_cuda::xid::TableError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidTable {
    entries: BTreeMap<u32, Entry>,
    source: String,
}

/// A problem of one value in a JSON document with a table of Xids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// JSON path of the wrong value, such as `$.xids[3].name`.
    pub path: String,
    /// Description of the problem and, where it is not obvious, what to do.
    pub what: String,
}

/// Reason why a JSON document with a table of Xids was refused. None of the document's entries was added to the
/// [`XidTable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The document does not have the format of a table; the field is the reason.
    #[error("no table of Xids: {0}")]
    Form(String),
    /// Some entries of the table are invalid; the field lists the problems.
    #[error("the table of Xids has {} problems, the first at {}: {}", .0.len(), .0[0].path, .0[0].what)]
    Entries(Vec<Problem>),
    /// The file of the table cannot be read; the field is the reason.
    #[error("the table of Xids cannot be read: {0}")]
    Io(String),
}

impl Default for XidTable {
    fn default() -> XidTable {
        XidTable::built_in()
    }
}

impl XidTable {
    /// Returns the built-in table of NVIDIA's documented actions.
    #[must_use]
    pub fn built_in() -> XidTable {
        let mut table = XidTable::empty();
        // A test checks that the built-in table is valid; a defect is not worth a panic here.
        let _ = table.extend_from(BUILT_IN);
        table
    }

    /// Returns a table without entries.
    #[must_use]
    pub const fn empty() -> XidTable {
        XidTable { entries: BTreeMap::new(), source: String::new() }
    }

    /// Adds the entries of a JSON document, which replace entries with the same number.
    ///
    /// # Errors
    /// Returns [`TableError`] if the document is not a table, has invalid entries or is too large, or if the table
    /// would have more than [`ENTRIES_MAX`] entries. The table is then unchanged.
    pub fn extend_from(&mut self, document: &str) -> Result<(), TableError> {
        if document.len() > BYTES_MAX {
            return Err(TableError::Form(format!("it has {} bytes, and at most {BYTES_MAX} are read", document.len())));
        }
        document_text(document.as_bytes()).map_err(|why| TableError::Form(format!("it {why}")))?;
        let document: Document = serde_json::from_str(document).map_err(|e| TableError::Form(e.to_string()))?;
        let problems = check(&document.xids);
        if !problems.is_empty() {
            return Err(TableError::Entries(problems));
        }
        let new = document.xids.iter().filter(|entry| !self.entries.contains_key(&entry.xid)).count();
        if self.entries.len() + new > ENTRIES_MAX {
            return Err(TableError::Form(format!("with it the table would have more than {ENTRIES_MAX} entries")));
        }
        self.entries.extend(document.xids.into_iter().map(|entry| (entry.xid, entry)));
        if !document.source.is_empty() {
            self.source = document.source;
        }
        Ok(())
    }

    /// Adds the entries of a JSON file, which replace entries with the same number.
    ///
    /// # Errors
    /// Returns [`TableError`] if the file cannot be read, or if [`extend_from`](Self::extend_from) refuses its content.
    /// The table is then unchanged.
    pub fn extend_from_file(&mut self, path: &std::path::Path) -> Result<(), TableError> {
        use std::io::Read;
        let told = |e: std::io::Error| TableError::Io(format!("{}: {e}", path.display()));
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(told)?;
        file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(told)?;
        let text = match document_text(&bytes) {
            Ok(text) => text,
            Err(_) if bytes.len() > BYTES_MAX => {
                return Err(TableError::Form(format!("{} has more than {BYTES_MAX} bytes", path.display())));
            }
            Err(why) => return Err(TableError::Form(format!("{} {why}", path.display()))),
        };
        self.extend_from(text)
    }

    /// Returns the entry of the Xid with this number, or `None` if the table has none.
    #[must_use]
    pub fn get(&self, xid: u32) -> Option<&Entry> {
        self.entries.get(&xid)
    }

    /// Iterates over all entries, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Returns the origin of the table's data: the field `source` of the document that was added last, among those that
    /// have this field.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns a hash of the entries: equal tables have equal hashes, also in different processes.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_string(&self.entries.values().collect::<Vec<_>>()).unwrap_or_default();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

/// Returns a problem for each defect of the entries of a document.
fn check(entries: &[Entry]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen = BTreeMap::new();
    for (i, entry) in entries.iter().enumerate() {
        let mut problem = |field: &str, what: String| {
            problems.push(Problem { path: format!("$.xids[{i}].{field}"), what });
        };
        if entry.xid == 0 {
            problem("xid", "0 is no Xid: their numbers begin at 1".into());
        }
        if let Some(first) = seen.insert(entry.xid, i) {
            problem("xid", format!("Xid {} is already at $.xids[{first}]: remove one of the two", entry.xid));
        }
        if entry.name.trim().is_empty() {
            problem("name", "a name must not be empty".into());
        }
        if entry.unless == Some(entry.xid) {
            problem("unless", "an Xid cannot replace itself".into());
        }
        if entry.application && entry.action.takes_the_gpu() {
            let what = format!("an application's error cannot have the action {}, which takes the GPU", entry.action);
            problem("application", what);
        }
    }
    problems
}

#[cfg(test)]
mod tests;
