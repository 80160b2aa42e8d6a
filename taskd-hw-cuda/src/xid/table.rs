//! What NVIDIA says to do about each Xid: a table as data, which users extend.
//!
//! It holds what is documented, and decides nothing.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use taskd_core::job::document_text;

/// What is built in; see its `source`.
const BUILT_IN: &str = include_str!("table.json");

/// Most entries of one table.
pub const ENTRIES_MAX: usize = 4096;

/// Largest table that is read, in bytes.
const BYTES_MAX: usize = 4 << 20;

/// What NVIDIA says to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// Nothing: it is information.
    Ignore,
    /// It comes of something else: do what that one's action is.
    FollowOther,
    /// Start the application again; the GPU works.
    RestartApp,
    /// Stop all work on the GPU and reset it.
    ResetGpu,
    /// Stop all work on the GPU and on those that share its links, then reset it.
    DrainAndReset,
    /// Stop all work on the node and start it again.
    RebootNode,
    /// Start the virtual machine again.
    RestartVm,
    /// Do as the driver says in the GPU's recovery action.
    RecoveryAction,
    /// Look after NVLink: the line says which link, and the driver's recovery action what to do.
    CheckFabric,
    /// Look after cables, power and seat.
    CheckHardware,
    /// Look after the versions of driver and firmware.
    UpdateSoftware,
    /// Nothing is documented but to ask NVIDIA.
    ContactSupport,
}

impl Action {
    /// What to do, as a sentence for whoever has to do it.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Action::Ignore => "nothing is to be done: it is information",
            Action::FollowOther => "it comes of another error: do what is said of that one",
            Action::RestartApp => "restart the application; the GPU can be used again at once",
            Action::ResetGpu => "stop all work on the GPU and reset it (nvidia-smi --gpu-reset)",
            Action::DrainAndReset => {
                "stop all work on the GPU and on those that share its NVLinks, then reset it (nvidia-smi --gpu-reset)"
            }
            Action::RebootNode => "drain the node and reboot it; if it comes back, have the GPU and its seat checked",
            Action::RestartVm => "restart the virtual machine",
            Action::RecoveryAction => "do what the GPU's recovery action says (nvidia-smi -q)",
            Action::CheckFabric => "check NVLink and its fabric (nvidia-smi nvlink -e, the fabric manager's log)",
            Action::CheckHardware => "check the GPU's power cables and its seat",
            Action::UpdateSoftware => "update driver and firmware",
            Action::ContactSupport => "nothing is documented but to contact NVIDIA's support",
        }
    }

    /// Whether the GPU does not work until somebody has done it.
    #[must_use]
    pub const fn takes_the_gpu(self) -> bool {
        matches!(self, Action::ResetGpu | Action::DrainAndReset | Action::RebootNode)
    }

    /// What the driver means by the number of its recovery action (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`); `None` for one
    /// that is not known here.
    #[must_use]
    pub const fn of_driver(code: u32) -> Option<Action> {
        Some(match code {
            0 => Action::Ignore,
            1 | 6 => Action::ResetGpu, // 6: by its bus
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

/// What is known of one Xid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its number.
    pub xid: u32,
    /// NVIDIA's words for it.
    pub name: String,
    /// What to do at once.
    pub action: Action,
    /// The application's own error as a rule: the GPU is not suspected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub application: bool,
    /// Another Xid that takes the place of this one when it follows within moments, as 94 (contained) does of 48.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<u32>,
    /// What else is to be known: where sources differ, or are not certain.
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

/// What to do about each Xid, by its number.
///
/// What is built in was made of NVIDIA's *Xid catalog* (docs.nvidia.com/deploy/xid-errors, state of October 2025, its column
/// "Resolution Bucket (Immediate Action)") for Ampere and newer GPUs. A table of a user's own has the same form, and its
/// entries take the place of those with the same number:
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

/// What is wrong with one place of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, such as `$.xids[3].name`.
    pub path: String,
    /// What, and what to do.
    pub what: String,
}

/// Why a table was refused; nothing of it was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It is no document of this form.
    #[error("no table of Xids: {0}")]
    Form(String),
    /// Some of its entries cannot be.
    #[error("the table of Xids has {} problems, the first at {}: {}", .0.len(), .0[0].path, .0[0].what)]
    Entries(Vec<Problem>),
    /// It cannot be read.
    #[error("the table of Xids cannot be read: {0}")]
    Io(String),
}

impl Default for XidTable {
    fn default() -> XidTable {
        XidTable::built_in()
    }
}

impl XidTable {
    /// What NVIDIA documents.
    #[must_use]
    pub fn built_in() -> XidTable {
        let mut table = XidTable::empty();
        // Whether what is built in can be read is a test's question: here it is not worth a panic.
        let _ = table.extend_from(BUILT_IN);
        table
    }

    /// A table in which nothing is known.
    #[must_use]
    pub const fn empty() -> XidTable {
        XidTable { entries: BTreeMap::new(), source: String::new() }
    }

    /// Takes the entries of a document; those with a number that is there already replace it. All or nothing.
    ///
    /// # Errors
    /// [`TableError`]: what is wrong and where; the table is as it was.
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

    /// Takes the entries of a file.
    ///
    /// # Errors
    /// [`TableError`]: why nothing was taken.
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

    /// What is known of an Xid.
    #[must_use]
    pub fn get(&self, xid: u32) -> Option<&Entry> {
        self.entries.get(&xid)
    }

    /// All entries by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Where the latest document says that it is from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// A number for what the table says: equal tables have the same, also in another process.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_string(&self.entries.values().collect::<Vec<_>>()).unwrap_or_default();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

/// One problem for each thing that is wrong.
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
            problem("xid", format!("Xid {} stands at $.xids[{first}] already: leave one of the two", entry.xid));
        }
        if entry.name.trim().is_empty() {
            problem("name", "a name is for people, and must not be empty".into());
        }
        if entry.unless == Some(entry.xid) {
            problem("unless", "an Xid cannot take its own place".into());
        }
        if entry.application && entry.action.takes_the_gpu() {
            let what = format!("an application's error does not take the GPU away, as {} would", entry.action);
            problem("application", what);
        }
    }
    problems
}

#[cfg(test)]
mod tests;
