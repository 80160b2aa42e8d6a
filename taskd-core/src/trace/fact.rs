//! Facts as sources tell them, observations as the kernel takes them, questions and answers.

use super::training::{GroupPosition, StepTimes};
use crate::job::seconds::Seconds;
use crate::job::{Domain, ErrorReport, Generation, Incarnation, JobTime, Name};
use crate::launch::{Phase, StepFailure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// One thing that a source saw.
///
/// A source knows no job time. It says how long ago something happened, by whatever clock it has, and the shell turns
/// that into a moment of the job when it takes the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// How long before the source returned it this happened; zero when just now or unknown.
    #[serde(with = "Seconds")]
    pub age: Duration,
    /// Whom it is about.
    pub about: Domain,
    /// Which start of the role in `about` it is about. `None`: the source cannot tell, and the fact is not fenced.
    pub incarnation: Option<Incarnation>,
    /// In which world the process was when it happened. `None`: the source cannot tell, and the fact is not fenced.
    pub generation: Option<Generation>,
    /// What was seen.
    pub signal: Signal,
}

impl Fact {
    /// Something that happened just now.
    #[must_use]
    pub const fn new(about: Domain, signal: Signal) -> Fact {
        Fact { age: Duration::ZERO, about, incarnation: None, generation: None, signal }
    }

    /// The same, of one start of the role only: dropped and counted once a newer start is known.
    #[must_use]
    pub const fn of(mut self, incarnation: Incarnation) -> Fact {
        self.incarnation = Some(incarnation);
        self
    }

    /// The same, in one world only: dropped and counted once a newer world is in force.
    #[must_use]
    pub const fn within(mut self, generation: Generation) -> Fact {
        self.generation = Some(generation);
        self
    }

    /// The same, `age` ago.
    #[must_use]
    pub const fn aged(mut self, age: Duration) -> Fact {
        self.age = age;
        self
    }

    /// The observation that this fact becomes when it is taken at `now`.
    #[must_use]
    pub fn observed(self, now: JobTime) -> Observation {
        let Fact { age, about, incarnation, generation, signal } = self;
        Observation { at: now.before(age), about, incarnation, generation, signal }
    }
}

/// One fact on the job's time line, as detectors see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// When it happened. Deadlines are counted from the view's `now`, not from here.
    pub at: JobTime,
    /// Whom it is about.
    pub about: Domain,
    /// Which start of the role in `about`, where known.
    pub incarnation: Option<Incarnation>,
    /// In which world, where known.
    pub generation: Option<Generation>,
    /// What was seen.
    pub signal: Signal,
}

/// What was seen. Well-known signals are variants; a crate's own travel as [`Ext`].
///
/// Deaths, exits and evidence are signals like all else, so one method, and so one closure, can be any detector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Signal {
    /// A process changed its phase (from the launcher).
    Phase(Phase),
    /// The process is alive: its heartbeat thread ran. True in whatever world it is, so it is fenced by incarnation only.
    Heartbeat,
    /// The process completed a training step.
    Progress {
        /// The step's number, as the program counts.
        step: u64,
    },
    /// A figure, such as `gpu.temperature_c` or `loss`.
    Metric {
        /// What was measured, unit last.
        name: Name,
        /// Its value; may be NaN.
        value: f64,
    },
    /// An error in its vendor's or framework's own words.
    Error(Box<ErrorReport>),
    /// A source lost facts: at its bound, or because what it reads from was lost.
    Lost {
        /// How many.
        count: u64,
    },
    /// The answer to a question that a detector asked.
    Evidence(Arc<Evidence>),
    /// The supervisor itself did not run for a while (stopped, suspended, starved). About [`Domain::Job`].
    ///
    /// The kernel postpones detectors' deadlines by itself; a detector that measures silence starts anew here.
    SupervisorSlept {
        /// For how long, in nanoseconds.
        nanos: u64,
    },
    /// A signal of one crate.
    Ext(Box<Ext>),
    /// The process completed a training step, with where its time went (from a recorder).
    Step(Box<StepTimes>),
    /// A communication of the process has been under way for longer than the source's bound. Told once for each.
    CollectivePending {
        /// The group's name.
        group: String,
        /// Its number in the group.
        sequence: u64,
        /// For how long, in nanoseconds.
        nanos: u64,
    },
    /// A step of the process failed, and the process lives: it waits to be told what to do (over its control link).
    StepFailed(Box<StepFailure>),
    /// The process has recorded an error by which it ends, and has not ended yet (from its launcher).
    FailureRecorded(Box<ErrorReport>),
}

/// The question for where a process stands in its process groups. The answer is an [`Exhibit::Groups`].
pub const COLLECTIVES: Name = Name::new("collectives");

/// The question for a process's state. The answer is an [`Exhibit::Text`] of words `name=value` in any order, such as
/// `state=S wchan=futex_do_wait beat_age_ms=120`:
/// - `state`: the letter that Linux shows in `/proc/PID/stat`; `T` and `t` are stopped processes;
/// - `wchan`, where known: the kernel function in which it sleeps, `0` for none;
/// - `beat_age_ms`, where known: how long ago its last heartbeat was, read where it is given;
/// - `runnable` and `uninterruptible`, where known: how many of its threads run or wait for a processor (state `R`), and how many
///   wait for a disk or a driver (state `D`);
/// - `ran_age_ms`, where known: how long ago one of its threads was last seen in one of these states, or seen to have run; `-` for a
///   process that was looked at and has not run, `?` where that cannot be seen;
/// - `host_load_percent` and `host_cpu_pressure_percent`, where known: what could run on its host, in percent of its processors, and
///   for which part of the last ten seconds something waited for one.
///
/// Further words are for people.
pub const PROCESS_STATE: Name = Name::new("process-state");

/// A detector's question about one or more domains. The answers arrive as [`Signal::Evidence`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ask {
    /// The detector that asks.
    pub by: Name,
    /// The detector's own number for this question.
    pub tag: u64,
    /// What is asked for, such as [`PROCESS_STATE`]: one of the names in some [`SourceInfo::answers`](crate::trace::SourceInfo::answers).
    pub what: Name,
    /// About whom; each gets an answer of its own.
    pub about: Vec<Domain>,
    /// Silence for this long is evidence too: [`Exhibit::Silence`].
    #[serde(with = "Seconds")]
    pub within: Duration,
}

/// An answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The detector that asked.
    pub by: Name,
    /// Its number for the question.
    pub tag: u64,
    /// What was asked for.
    pub what: Name,
    /// About whom this answer is.
    pub about: Domain,
    /// What was found.
    pub exhibit: Exhibit,
}

/// What a source found when it was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Exhibit {
    /// A text whose form the question's name defines.
    Text(String),
    /// A value of one crate.
    Ext(Ext),
    /// No answer came in time.
    Silence,
    /// It cannot be found out, with the reason.
    Unavailable(String),
    /// Where the process stands in each of its groups, the answer to [`COLLECTIVES`].
    Groups(Vec<GroupPosition>),
}

/// A type that one crate owns and core only carries.
///
/// ```
/// use bytes::Bytes;
/// use taskd_core::job::Name;
/// use taskd_core::trace::{Ext, Extension, Malformed};
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
    /// The type's name in logs; prefix it with the crate's or vendor's name.
    const NAME: Name;
    /// The value as bytes; equal values give equal bytes.
    fn encode(&self) -> Bytes;
    /// The value back; `None` for bytes that are not one.
    fn decode(body: &[u8]) -> Option<Self>;
}

/// A value of an [`Extension`] on its way through core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ext {
    name: Name,
    body: Bytes,
}

impl Ext {
    /// Wraps a value.
    pub fn of<T: Extension>(value: &T) -> Ext {
        Ext { name: T::NAME, body: value.encode() }
    }

    /// The name of the wrapped value's type.
    #[must_use]
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// `None`: another type. `Some(Err)`: this type, but malformed; that is an error of its sender, never a panic.
    pub fn get<T: Extension>(&self) -> Option<Result<T, Malformed>> {
        (self.name == T::NAME).then(|| T::decode(&self.body).ok_or(Malformed))
    }
}

/// Bytes that are not a value of the type they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not a value of this type")]
pub struct Malformed;
