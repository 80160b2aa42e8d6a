//! The health of a node's GPUs: what NVML and the kernel's log say of them, as facts.
//!
//! It judges nothing (that is the [`GpuDetector`](crate::detect::GpuDetector)'s part) and changes nothing on a device.
//!
//! # What it tells
//! About [`Domain::Device`](taskd_core::job::Domain), with the index that NVML gives the device:
//! - figures as [`Signal::Metric`](taskd_core::trace::Signal), by the names in [`metric`]: gauges every interval, counters and
//!   states at the beginning and when they change. What a card does not have is not told, and stands in [`GpuIdentity`];
//! - Xid errors as [`Signal::Error`](taskd_core::trace::Signal) of the family [`xid::XID`](crate::xid::XID), code the number,
//!   text the driver's own words. One that comes by NVML and by the kernel's log is told once;
//! - what happened to a device as errors of the family [`NVML`]: it is lost, it needs a reset, a counter went back;
//! - who it is, as [`GpuIdentity`]: at the beginning, and when it answers again after it did not.
//!
//! About the node: an Xid of a device that NVML does not list, an NVSwitch's SXid, and what cannot be had (the kernel's log,
//! the driver's events).

mod builder;
mod codes;
mod driver;
mod events;
mod fold;
mod identity;
mod kernel_log;
pub mod metric;
mod news;
#[allow(unsafe_code)] // looks a symbol up in a library that is loaded already, and compares handles
mod raw;
mod reading;
mod source;

pub use builder::{INTERVAL, NvmlBuilder, Unavailable};
pub use codes::{COUNTER_WENT_BACK, GPU_LOST, KERNEL_LOG_UNAVAILABLE, NVML, RESET_REQUIRED, XID_EVENTS_UNAVAILABLE};
pub use identity::GpuIdentity;
pub use source::{DEVICES_MAX, NvmlSource};
