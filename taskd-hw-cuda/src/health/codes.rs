//! Codes of the errors that the source reports besides metrics and Xids.

use taskd_core::job::{ErrorReport, Name, printable};
use taskd_core::trace::Signal;

/// Family of the errors that NVML reports about a device or about itself ([`ErrorReport::family`]).
pub const NVML: Name = Name::new("cuda.nvml");
/// Code of the error that a device no longer answers: it fell off the bus, or the driver abandoned it.
pub const GPU_LOST: Name = Name::new("gpu-lost");
/// Code of the error that a device answers no query until it is reset.
pub const RESET_REQUIRED: Name = Name::new("reset-required");
/// Code of the error that one of a device's counters is smaller than at the previous reading: the device was reset,
/// or the driver was reloaded.
pub const COUNTER_WENT_BACK: Name = Name::new("counter-went-back");
/// Code of the error that the Linux kernel's log cannot be read: Xids arrive through NVML only, without the process
/// and the driver's text.
pub const KERNEL_LOG_UNAVAILABLE: Name = Name::new("kernel-log-unavailable");
/// Code of the error that the driver delivers no Xid events through NVML: Xids arrive through the Linux kernel's
/// log only.
pub const XID_EVENTS_UNAVAILABLE: Name = Name::new("xid-events-unavailable");

/// Builds an error signal from a text.
pub(super) fn error(family: Name, code: Name, text: String) -> Signal {
    let text = printable(&text).into_owned();
    Signal::Error(Box::new(ErrorReport::new(family, code, text)))
}
