//! Facts that sources report, observations that the kernel receives, probes and their replies.

use super::training::{DeviceTimes, GroupPosition, StepTimes};
use super::transfers::StepTransfers;
use crate::job::seconds::Seconds;
use crate::job::{Domain, ErrorReport, Generation, Incarnation, JobTime, Name};
use crate::state::{Phase, StepFailure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// One event that a trace source saw, such as a heartbeat or a completed step.
///
/// A trace source does not know job time. It reports how long ago the event happened, by any clock it has. The
/// shell (the asynchronous part of the runtime) converts this age to a [`JobTime`] when it takes the source's batch
/// of facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fact {
    /// Time from the event until the trace source returned the fact. Zero if the event is current or its time is
    /// unknown.
    #[serde(with = "Seconds")]
    pub age: Duration,
    /// Domain (process, device, host, group or the job) that the fact is about.
    pub about: Domain,
    /// Incarnation (start number) of the process in `about`. The kernel drops and counts the fact if the latest
    /// incarnation that it knows of this rank or service is another one. `None`: the source does not know the
    /// incarnation, and the fact is not dropped for this reason.
    pub incarnation: Option<Incarnation>,
    /// Generation of the world in which the process trained at the event. The kernel drops and counts the fact if the
    /// process is in a newer world by now, unless the fact is a heartbeat. `None`: the source does not know the
    /// generation, and the fact is not dropped for this reason.
    pub generation: Option<Generation>,
    /// Content of the fact, such as a heartbeat, a completed step or a metric.
    pub signal: Signal,
}

impl Fact {
    /// Creates a fact with age zero, without incarnation or generation.
    #[must_use]
    pub const fn new(about: Domain, signal: Signal) -> Fact {
        Fact { age: Duration::ZERO, about, incarnation: None, generation: None, signal }
    }

    /// Limits the fact to one incarnation: the kernel drops and counts the fact if the latest incarnation that it knows
    /// of the rank or service is another one.
    #[must_use]
    pub const fn with_incarnation(mut self, incarnation: Incarnation) -> Fact {
        self.incarnation = Some(incarnation);
        self
    }

    /// Limits the fact to one generation: the kernel drops and counts the fact, unless it is a heartbeat, if the
    /// process is in a newer world by now.
    #[must_use]
    pub const fn with_generation(mut self, generation: Generation) -> Fact {
        self.generation = Some(generation);
        self
    }

    /// Sets the age: the time from the event until the trace source returned the fact.
    #[must_use]
    pub const fn with_age(mut self, age: Duration) -> Fact {
        self.age = age;
        self
    }

    /// Converts the fact to the observation that the kernel receives if the runtime takes the fact at job time `now`.
    #[must_use]
    pub fn into_observation(self, now: JobTime) -> Observation {
        let Fact { age, about, incarnation, generation, signal } = self;
        Observation { at: now.before(age), about, incarnation, generation, signal }
    }
}

/// A fact together with the job time of its event. Detectors receive facts in this form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Observation {
    /// Job time of the event. Detectors' deadlines count from the view's `now`, not from this time.
    pub at: JobTime,
    /// Domain (process, device, host, group or the job) that the observation is about.
    pub about: Domain,
    /// Incarnation (start number) of the process in `about`, if known.
    pub incarnation: Option<Incarnation>,
    /// Generation of the process's world at the event, if known.
    pub generation: Option<Generation>,
    /// Content of the observation, such as a heartbeat, a completed step or a metric.
    pub signal: Signal,
}

impl Observation {
    /// Creates an observation without incarnation or generation.
    #[must_use]
    pub const fn new(at: JobTime, about: Domain, signal: Signal) -> Observation {
        Observation { at, about, incarnation: None, generation: None, signal }
    }

    /// Sets the incarnation (start number) of the process that the observation is about, if known.
    #[must_use]
    pub fn with_incarnation(mut self, incarnation: impl Into<Option<Incarnation>>) -> Observation {
        self.incarnation = incarnation.into();
        self
    }

    /// Sets the generation (number) of the world in which the process trained at the event, if known.
    #[must_use]
    pub fn with_generation(mut self, generation: impl Into<Option<Generation>>) -> Observation {
        self.generation = generation.into();
        self
    }
}

/// The content of a fact. Well-known signals are variants; a signal whose type another crate defines is an [`Ext`].
///
/// Deaths, exits and probe replies are signals like the others. A detector therefore needs only one method, and a
/// closure can be a detector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Signal {
    /// The phase of a process changed, for example from pending to running (reported by the launcher).
    Phase(Phase),
    /// The heartbeat thread of the process ran. A heartbeat is valid in any world, so the kernel drops a heartbeat only
    /// if it is of another incarnation.
    Heartbeat,
    /// The process completed a training step.
    Progress {
        /// The step's number, as counted by the training script.
        step: u64,
    },
    /// A measured value, such as `gpu.temperature_c` or `loss`.
    Metric {
        /// Name of the metric. If the metric has a unit, the name ends with it.
        name: Name,
        /// Measured value; may be NaN.
        value: f64,
    },
    /// An error that a vendor's software or a framework reported, in its own wording.
    Error(Box<ErrorReport>),
    /// A trace source lost facts, because it reached its limit or because the data that it reads was lost.
    Lost {
        /// Number of lost facts.
        count: u64,
    },
    /// The reply to a probe that a detector sent.
    #[serde(alias = "evidence")]
    ProbeReply(Arc<ProbeReply>),
    /// The supervisor itself did not run for a while (stopped, suspended or starved). The fact is about
    /// [`Domain::Job`].
    ///
    /// The decision kernel postpones detectors' deadlines by itself. A detector that measures silence restarts its
    /// measurement when it receives this signal.
    SupervisorSlept {
        /// Time for which the supervisor did not run, in nanoseconds.
        nanos: u64,
    },
    /// A signal whose type another crate defines; `taskd-core` transports it as opaque bytes.
    Ext(Box<Ext>),
    /// The process completed a training step. Contains a breakdown of the step's time, which a recorder measured.
    Step(Box<StepTimes>),
    /// A collective of the process has been pending for longer than the trace source's time limit. Reported once per
    /// collective.
    CollectivePending {
        /// Name of the process group of the collective.
        group: String,
        /// Sequence number of the collective in its process group.
        sequence: u64,
        /// Time since the collective began, in nanoseconds.
        nanos: u64,
    },
    /// A step of the process failed but the process is alive, and waits for a directive on its control link.
    StepFailed(Box<StepFailure>),
    /// The process recorded the error that ends it, but has not ended yet (reported by its launcher).
    FailureRecorded(Box<ErrorReport>),
    /// The device of the process took part in a training step. Contains a breakdown of the device's time. The source
    /// reports it immediately before the [`Step`](Self::Step) with the same number.
    DeviceStep(Box<DeviceTimes>),
    /// The process sent or received data in a training step. The source reports it immediately before the
    /// [`Step`](Self::Step) with the same number.
    StepTransfers(Box<StepTransfers>),
}

/// Name of the probe that asks for a process's position in its process groups: its latest collective calls in each
/// group. The reply is a [`ProbeResult::Groups`].
pub const COLLECTIVES: Name = Name::new("collectives");

/// Name of the probe for a process's state. The reply is a [`ProbeResult::Text`] of words `name=value` in any
/// order, such as `state=S wchan=futex_do_wait beat_age_ms=120`:
/// - `state`: the letter that Linux shows in `/proc/PID/stat`; `T` and `t` are stopped processes;
/// - `wchan`, if known: the Linux kernel function in which the process sleeps, `0` for none;
/// - `beat_age_ms`, if known: age of the process's last heartbeat in milliseconds, read from its shared memory on
///   its own host, without network delay;
/// - `runnable` and `uninterruptible`, if known: number of the process's threads that run or wait for a processor
///   (state `R`), and number of those that wait for a disk or a driver (state `D`);
/// - `ran_age_ms`, if known: milliseconds since a thread of the process was last seen in state `R` or `D`, or seen
///   to have run; `-` if none has run since the source began to observe the process, `?` if it cannot observe that;
/// - `cpu_ms`, if known: processor time that the process has used, in milliseconds;
/// - `host_load_percent` and `host_cpu_pressure_percent`, if known: runnable tasks on the process's host in percent
///   of its processors, and the share of the last ten seconds in which a task waited for a processor.
///
/// Further words are for human readers.
pub const PROCESS_STATE: Name = Name::new("process-state");

/// Name of the probe for the stacks of a process: the functions in which its threads are. The reply is a
/// [`ProbeResult::Text`] for human readers, one thread after another, innermost function first. Its source must not
/// disturb the process.
pub const STACKS: Name = Name::new("stacks");

/// A question of a detector about one or more domains. Replies arrive as [`Signal::ProbeReply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Probe {
    /// Name of the detector that sent the probe.
    pub by: Name,
    /// Number that the detector chose for this probe; the replies carry it.
    pub tag: u64,
    /// Name of the requested information, such as [`PROCESS_STATE`]. It is a name that a trace source lists in its
    /// `SourceInfo::probes`.
    pub what: Name,
    /// Domains to examine, such as processes or hosts; each gets its own reply.
    pub about: Vec<Domain>,
    /// Time limit for a reply. If it passes, the reply is [`ProbeResult::Silence`], which is evidence as well.
    #[serde(with = "Seconds")]
    #[serde(alias = "within")]
    pub timeout: Duration,
}

impl Probe {
    /// Creates the probe of the detector `by`: it requests the information named `what` about the domains `about`, and waits
    /// for answers for at most `timeout`. Its tag, a number by which the detector recognizes the answer, is 0.
    pub fn new(by: impl Into<Name>, what: impl Into<Name>, about: Vec<Domain>, timeout: Duration) -> Probe {
        Probe { by: by.into(), tag: 0, what: what.into(), about, timeout }
    }

    /// Sets the detector's own number for this probe.
    #[must_use]
    pub const fn with_tag(mut self, tag: u64) -> Probe {
        self.tag = tag;
        self
    }
}

/// The reply to a [`Probe`], about one domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProbeReply {
    /// Name of the detector that sent the probe.
    pub by: Name,
    /// Number that the detector chose for the probe.
    pub tag: u64,
    /// Name of the requested information, as in the probe.
    pub what: Name,
    /// The domain that this reply is about.
    pub about: Domain,
    /// Information that the source found, or the reason why there is none.
    #[serde(alias = "exhibit")]
    pub result: ProbeResult,
}

impl ProbeReply {
    /// Creates the reply to this probe about one of its domains.
    #[must_use]
    pub fn new(probe: &Probe, about: Domain, result: ProbeResult) -> ProbeReply {
        ProbeReply { by: probe.by.clone(), tag: probe.tag, what: probe.what.clone(), about, result }
    }
}

/// Result of a probe: the information that a source found, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProbeResult {
    /// Text in the format that is documented with the probe's name, such as [`PROCESS_STATE`].
    Text(String),
    /// A value whose type another crate defines.
    Ext(Ext),
    /// No reply arrived within the timeout of the probe.
    Silence,
    /// The source cannot determine the requested information; contains the reason.
    Unavailable(String),
    /// Position of the process in each of its process groups: the result of [`COLLECTIVES`].
    Groups(Vec<GroupPosition>),
}

/// A type of signals or probe results that another crate defines. `taskd-core` transports its values as opaque
/// bytes.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use bytes::Bytes;
/// use taskd_core::job::Name;
/// use taskd_core::trace::{Ext, Extension, DecodeError};
///
/// #[derive(Debug, PartialEq)]
/// struct LinkFlap { port: u8 }
///
/// impl Extension for LinkFlap {
///     const NAME: Name = Name::new("acme.link-flap");
///     fn encode(&self) -> Bytes { Bytes::copy_from_slice(&[self.port]) }
///     fn decode(body: &[u8]) -> Option<Self> {
///         let [port] = body else { return None };
///         Some(LinkFlap { port: *port })
///     }
/// }
///
/// let carried = Ext::of(&LinkFlap { port: 7 });
/// assert_eq!(carried.get::<LinkFlap>(), Some(Ok(LinkFlap { port: 7 })));
/// ```
pub trait Extension: Sized {
    /// The type's name in logs; prefix it with the name of the crate or vendor.
    const NAME: Name;
    /// Encodes the value as bytes; equal values MUST give equal bytes.
    fn encode(&self) -> Bytes;
    /// Decodes a value; `None` if the bytes are not a valid encoding.
    fn decode(body: &[u8]) -> Option<Self>;
}

/// An encoded [`Extension`] value with the name of its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ext {
    name: Name,
    body: Bytes,
}

impl Ext {
    /// Encodes a value, and stores it with the name of its type.
    pub fn of<T: Extension>(value: &T) -> Ext {
        Ext { name: T::NAME, body: value.encode() }
    }

    /// Returns the type name of the encoded value.
    #[must_use]
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Decodes the value as a `T`. `None`: the value has another type. `Some(Err)`: the value has the type `T` but is
    /// malformed. A malformed value is an error of its sender; this function does not panic.
    pub fn get<T: Extension>(&self) -> Option<Result<T, DecodeError>> {
        (self.name == T::NAME).then(|| T::decode(&self.body).ok_or(DecodeError))
    }
}

/// Error: the bytes of an [`Ext`] are not a valid encoding of the type that the [`Ext`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not a value of this type")]
pub struct DecodeError;
