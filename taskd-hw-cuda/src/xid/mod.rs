//! Xid errors: parses the driver's messages in the kernel log, and provides NVIDIA's recommended action per Xid.
//!
//! The module parses lines and tables; it does not watch the log.

mod line;
mod table;

pub use line::{Family, LINE_TEXT_BYTES_MAX, Line, Lines, PciAddress, Record};
pub use table::{Action, ENTRIES_MAX, Entry, Problem, TableError, XidTable};

use taskd_core::job::Name;

/// Family of the errors that report a GPU's Xids ([`ErrorReport::family`](taskd_core::job::ErrorReport)).
pub const XID: Name = Name::new("cuda.xid");

/// Family of the errors that report an NVSwitch's SXids.
pub const SXID: Name = Name::new("cuda.sxid");
