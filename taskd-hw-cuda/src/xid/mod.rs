//! Xid errors: what NVIDIA's driver writes into the kernel's log when something is wrong with a GPU, and what NVIDIA says to
//! do about each.
//!
//! It reads lines and tables, and watches nothing.

mod line;
mod table;

pub use line::{Family, LINE_TEXT_BYTES_MAX, Line, Lines, PciAddress, Record};
pub use table::{Action, ENTRIES_MAX, Entry, Problem, TableError, XidTable};

use taskd_core::job::Name;

/// The family under which a GPU's Xid errors travel ([`ErrorReport::family`](taskd_core::job::ErrorReport)).
pub const XID: Name = Name::new("cuda.xid");

/// The family under which an NVSwitch's SXid errors travel.
pub const SXID: Name = Name::new("cuda.sxid");
