//! What the source says beside figures and Xids: the codes of its errors.
//!
//! Names only.

use taskd_core::job::{ErrorReport, Name, printable};
use taskd_core::trace::Signal;

/// The family of what NVML says of a device or of itself ([`ErrorReport::family`]).
pub const NVML: Name = Name::new("cuda.nvml");
/// The device does not answer any more: it fell off the bus, or the driver gave it up.
pub const GPU_LOST: Name = Name::new("gpu-lost");
/// The device answers nothing until it is reset.
pub const RESET_REQUIRED: Name = Name::new("reset-required");
/// A counter is smaller than it was: the device was reset, or the driver loaded again.
pub const COUNTER_WENT_BACK: Name = Name::new("counter-went-back");
/// The kernel's log cannot be read: Xids are known only by NVML, without process and words.
pub const KERNEL_LOG_UNAVAILABLE: Name = Name::new("kernel-log-unavailable");
/// The driver gives no events: Xids are known only by the kernel's log.
pub const XID_EVENTS_UNAVAILABLE: Name = Name::new("xid-events-unavailable");

/// An error in words.
pub(super) fn error(family: Name, code: Name, text: String) -> Signal {
    let text = printable(&text).into_owned();
    Signal::Error(Box::new(ErrorReport { family, code, text, follow_up: false, retry_free: false, step: None }))
}
