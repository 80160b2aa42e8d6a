//! Health of a node's GPUs: reports NVML readings and the kernel log as facts.
//!
//! The source only reads devices. The [`GpuDetector`](crate::detect::GpuDetector) decides which facts are faults.
//!
//! # Reported facts
//! About [`Domain::Device`](taskd_core::job::Domain), with the device's NVML index:
//! - Readings as [`Signal::Metric`](taskd_core::trace::Signal), with the names in [`metric`]. Gauges are reported at
//!   every interval, counters and states at the start and when they change. Metrics that a card does not support are
//!   not reported; [`GpuIdentity`] lists them.
//! - Xid errors as [`Signal::Error`](taskd_core::trace::Signal) of the family [`xid::XID`](crate::xid::XID). The code
//!   is the Xid number, the text is the driver's. An Xid that arrives both through NVML and in the kernel log is
//!   reported once.
//! - Device events as errors of the family [`NVML`]: the device is lost, the device needs a reset, or one of the
//!   device's counters decreased.
//! - The identity of the card as [`GpuIdentity`]: at the start, and when the device answers again after a failure.
//!
//! About the node: an Xid of a device that NVML does not list, an SXid of an NVSwitch, and sources that are unavailable
//! (the kernel log, the driver's events).

mod builder;
mod codes;
mod driver;
mod events;
mod fold;
mod identity;
mod kernel_log;
pub mod metric;
mod news;
#[allow(unsafe_code)] // looks a symbol up in a library that is already loaded, and compares handles
mod raw;
mod reading;
mod source;

pub use builder::{INTERVAL, NvmlBuilder, Unavailable};
pub use codes::{COUNTER_WENT_BACK, GPU_LOST, KERNEL_LOG_UNAVAILABLE, NVML, RESET_REQUIRED, XID_EVENTS_UNAVAILABLE};
pub use identity::GpuIdentity;
pub use source::{DEVICES_MAX, NvmlSource};
