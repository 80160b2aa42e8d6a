//! The trace model: what all readers produce, and what all analysis functions read.
//!
//! Times are nanoseconds on the trace's common axis, which begins at [`Trace::began_unix_ns`]. A time before that is
//! negative.

use std::collections::BTreeMap;
use taskd_kernel::trace::{DeviceTimes, StepTimes, StepTransfers};

/// Events of all ranks of one job, and what the readers could not read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Name of the job or of the directory, for titles.
    pub title: String,
    /// Time zero of all events, in nanoseconds since 1970; `None` if no file has a calendar time.
    pub began_unix_ns: Option<i64>,
    /// Events of each rank, by global rank.
    pub ranks: BTreeMap<u32, RankTrace>,
    /// Parts that are missing from the trace, each as a sentence for the report.
    pub missing: Vec<Missing>,
}

/// A part of the trace that could not be read, or that the analysis would have needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// Rank of the missing part; `None`: the part belongs to no rank, or its rank is unknown.
    pub rank: Option<u32>,
    /// What is missing, from which file, and what to do about it, as one sentence.
    pub what: String,
}

/// Events of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTrace {
    /// Name of the rank's host, if known.
    pub host: Option<String>,
    /// Number of the rank's device on its host, if known.
    pub device: Option<u32>,
    /// Pipeline stage of the rank, from 0, if the trace names it. Otherwise the analysis derives stages from the groups.
    pub stage: Option<u32>,
    /// Names to which the events refer.
    pub names: Names,
    /// Process groups of the rank, to which the communications refer.
    pub groups: Vec<Group>,
    /// Steps of the rank, in the order of their starts.
    pub steps: Vec<StepSpan>,
    /// Events in the order of their starts; events with equal starts in the order in which they were read.
    pub events: Vec<Event>,
    /// Details of communication events, to which [`Event::communication`] refers.
    pub communications: Vec<Communication>,
    /// Memory and arithmetic of the rank, as far as the trace has them.
    pub resources: Resources,
    /// Number of records that were lost before they were stored.
    pub lost: u64,
    /// Times of the steps as detectors of a running job get them, if the reader has them: from the same reducer over the
    /// same records, in the order of the steps' ends. Empty for traces of other tools.
    pub step_records: Vec<StepRecord>,
}

/// Times of one step of one rank, from the reducer that serves the detectors of a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the rank's process that ran the step: a restarted rank has another.
    pub process: u64,
    /// End of the step, in nanoseconds since 1970.
    pub end_ns: i64,
    /// Breakdown of the step's time.
    pub times: StepTimes,
    /// Breakdown of the time of the process's devices; `None` if no span of a device lies in the step.
    pub device: Option<DeviceTimes>,
    /// Sends and receives that the process waited for until their data had arrived; `None` if there were none.
    pub transfers: Option<StepTransfers>,
}

/// A process group of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Name by which the trace identifies the group; equal on all members.
    pub name: String,
    /// Purpose of the group.
    pub role: GroupRole,
    /// Global ranks of the members in group order; empty if unknown.
    pub members: Vec<u32>,
}

/// Purpose of a process group: the dimension of parallelism that it serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GroupRole {
    /// Data parallelism: the members have replicas of the same part of the model.
    Data,
    /// Tensor parallelism: the members split each layer.
    Tensor,
    /// Pipeline parallelism: the members are the stages of one pipeline.
    Pipeline,
    /// Context parallelism: the members split each sequence.
    Context,
    /// Expert parallelism: the members have different experts.
    Expert,
    /// All ranks of the job.
    World,
    /// Another purpose, or an unknown one.
    #[default]
    Unknown,
}

/// One training step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSpan {
    /// Number of the step, as counted by the training script.
    pub number: u64,
    /// Start of the step, in nanoseconds on the trace's axis.
    pub start_ns: i64,
    /// Length of the step in nanoseconds.
    pub duration_ns: u64,
}

/// One event of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Start of the event, in nanoseconds on the trace's axis.
    pub start_ns: i64,
    /// Length of the event in nanoseconds; 0 for an instant.
    pub duration_ns: u64,
    /// Kind of the event.
    pub kind: Kind,
    /// Stream of the device, or thread of the host, on which the event ran. Events of one lane do not overlap, but may
    /// nest on the host.
    pub lane: u32,
    /// Name of the event.
    pub name: NameId,
    /// Index of the details in [`RankTrace::communications`], for communication events.
    pub communication: Option<u32>,
}

impl Event {
    /// Returns the end of the event, in nanoseconds on the trace's axis.
    #[must_use]
    pub const fn end_ns(&self) -> i64 {
        self.start_ns.saturating_add_unsigned(self.duration_ns)
    }
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Computation on the device (a kernel), or on the CPU of a rank without a device.
    Compute,
    /// A collective operation.
    Collective,
    /// A send of a point-to-point operation.
    Send,
    /// A receive of a point-to-point operation.
    Receive,
    /// A copy or a fill of device memory.
    Copy,
    /// The wait for the next batch of data.
    DataLoader,
    /// A forward pass.
    Forward,
    /// A backward pass.
    Backward,
    /// The optimizer's update.
    Optimizer,
    /// The writing of a checkpoint.
    SaveCheckpoint,
    /// A pause of the language runtime, such as Python's garbage collection.
    GarbageCollection,
    /// Another activity of the host, such as an operator of the framework or a call of the device's runtime.
    Host,
}

impl Kind {
    /// Returns true for a collective, a send or a receive.
    #[must_use]
    pub const fn is_communication(self) -> bool {
        matches!(self, Kind::Collective | Kind::Send | Kind::Receive)
    }
}

/// Details of a communication event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Communication {
    /// Operation in lower case, such as `all_reduce` or `send`.
    pub operation: NameId,
    /// Index in [`RankTrace::groups`]; `None` if the trace does not name the group.
    pub group: Option<u32>,
    /// Sequence number of the operation in its group, equal on all members; `None` if the trace does not have it.
    pub sequence: Option<u64>,
    /// Payload of this rank in bytes; 0 if unknown.
    pub bytes: u64,
    /// Global rank of the other side of a send or receive.
    pub peer: Option<u32>,
    /// Part of the event in which the rank waited for other ranks, if the trace has it.
    pub wait_ns: Option<u64>,
    /// Part of the event in which data was transferred, if the trace has it.
    pub transit_ns: Option<u64>,
    /// Transfers over single links, if the trace has them.
    pub links: Vec<LinkTransfer>,
    /// True if the event is the call of the host: its time contains waits, and the transfer on the device may be an event
    /// of its own.
    pub is_host_call: bool,
}

/// Data that one communication event moved over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTransfer {
    /// Global rank of the sender.
    pub source: u32,
    /// Global rank of the receiver.
    pub destination: u32,
    /// Kind of the link.
    pub link: LinkKind,
    /// Bytes transferred.
    pub bytes: u64,
    /// Time of the transfer in nanoseconds.
    pub transit_ns: u64,
}

/// Kind of a link between two devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LinkKind {
    /// Copy engine between devices of one host (Ascend: SDMA).
    Sdma,
    /// Network with remote direct memory access (Ascend: RDMA, RoCE).
    Rdma,
    /// Ascend's cache-coherent link between devices.
    Hccs,
    /// Ascend's link between the dies of one card.
    Sio,
    /// PCI Express.
    Pcie,
    /// NVIDIA's link between devices of one host.
    NvLink,
    /// TCP or another network protocol.
    Network,
    /// A copy inside one device.
    Local,
    /// Unknown.
    #[default]
    Unknown,
}

/// Memory and arithmetic of a rank. `None`: the trace does not have the figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Floating-point operations of one step.
    pub flop_per_step: Option<f64>,
    /// Floating-point operations per second.
    pub flop_per_second: Option<f64>,
    /// Largest memory use in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Memory of the device in bytes.
    pub memory_capacity_bytes: Option<u64>,
    /// Memory use over time: time on the trace's axis in nanoseconds, and bytes. In the order of the times.
    pub memory: Vec<(i64, u64)>,
    /// Floating-point operations of single operations: middle of the operation on the trace's axis in nanoseconds, and
    /// their number. In the order of the times.
    pub flop: Vec<(i64, f64)>,
}

impl Resources {
    /// Moves all times.
    pub fn shift(&mut self, by_ns: i64) {
        self.memory.iter_mut().for_each(|(at, _)| *at = at.saturating_add(by_ns));
        self.flop.iter_mut().for_each(|(at, _)| *at = at.saturating_add(by_ns));
    }
}

/// Number of a name in [`Names`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Table of the names of one rank's events. Equal names have one number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    names: Vec<Box<str>>,
    numbers: BTreeMap<Box<str>, u32>,
}

impl Names {
    /// Returns the number of a name, and adds the name if the table does not have it.
    pub fn intern(&mut self, name: &str) -> NameId {
        if let Some(number) = self.numbers.get(name) {
            return NameId(*number);
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        NameId(number)
    }

    /// Returns the name with this number; empty if the table does not have it.
    #[must_use]
    pub fn get(&self, id: NameId) -> &str {
        self.names.get(id.0 as usize).map_or("", |name| name)
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if the table has no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}
