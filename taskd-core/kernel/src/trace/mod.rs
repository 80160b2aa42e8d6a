//! The records that decisions are made from: facts and observations, probes and their replies, step times, and the
//! switches of the recorded kinds.
//!
//! Plain data. `taskd_core::trace` has the sources, recorders and stores around them.

mod fact;
mod group_name;
mod links;
mod metrics;
pub mod switches;
mod training;
mod transfers;

pub use fact::{
    COLLECTIVES, DecodeError, Ext, Extension, Fact, Observation, PROCESS_STATE, Probe, ProbeReply, ProbeResult, STACKS,
    Signal,
};
pub use group_name::{is_point_to_point, point_to_point_name, split_group_name};
pub use links::{LINKS, read_links, write_links};
pub use metrics::{
    GRAD_NORM, LOSS, METRIC_STEP, REPLICA_CHECKSUM, ReplicaChecksum, SKIPPED_STEPS, is_replica_checksum,
};
pub use training::{Call, DeviceTimes, GroupPosition, RECENT_CALLS, StepTimes};
pub use transfers::{CHANNELS_MAX, Channel, StepTransfers, TRANSFERS_MAX, TransferTime};
