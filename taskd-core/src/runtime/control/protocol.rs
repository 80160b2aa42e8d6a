//! What is said over the socket: one JSON object a line, in both directions.
//!
//! It carries nothing out. A line that is not wholly understood is refused with what was expected.

use super::counts::SocketCounts;
use super::report::FaultReport;
use crate::job::seconds::Seconds;
use crate::job::{IncidentId, Name, NodeId, Permission, Rank, printable};
use crate::journal::JournalCounts;
use crate::kernel::{Explanation, JobStatus, Taken};
use crate::runtime::{Announcement, ControlError};
use crate::trace::switches::{Changed, TraceStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Version of the protocol that this program speaks. It understands that and all released ones before, from 1 on.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest name of who asks, in bytes.
const BY_BYTES_MAX: usize = 64;

/// One line of a client.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Request {
    /// Version of the protocol.
    pub v: u32,
    /// Comes back with the answer, so that answers can be told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Who asks, for the log: a person, or a program that acts for one. Default: `socket`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// What is asked.
    #[serde(flatten)]
    pub call: Call,
}

/// What can be asked. Each is the method of this name of a [`RuntimeHandle`](crate::runtime::RuntimeHandle).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Call {
    /// The job as it stands, with what this socket and the logs counted.
    Status {},
    /// Why an incident was decided as it was.
    Explain {
        /// Which.
        incident: IncidentId,
    },
    /// Everything that happens from now on, each as a line of its own.
    Events {},
    /// A fault that was found outside.
    ReportFault {
        /// The fault.
        fault: Box<FaultReport>,
    },
    /// Leave a host.
    Drain {
        /// Which.
        node: NodeId,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Use a host again.
    Readmit {
        /// Which.
        node: NodeId,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Start ranks anew.
    Restart {
        /// Which; all when empty.
        #[serde(default)]
        ranks: Vec<Rank>,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Save a checkpoint now.
    DumpNow {
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Change what strategies may do by themselves.
    Allow {
        /// By name; those that are not named keep what they have.
        strategies: BTreeMap<Name, Permission>,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Decide, but begin nothing.
    Pause {
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Act again.
    Resume {
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Carry out what an incident is held for.
    Approve {
        /// Which incident.
        incident: IncidentId,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Do not carry out what an incident is held for.
    Decline {
        /// Which incident.
        incident: IncidentId,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// Choose what all ranks record.
    SwitchTrace {
        /// `"on"` or `"off"` for each kind that is to change, one at least; those that are not named keep what they have.
        kinds: Changed,
        /// Why, for the log.
        #[serde(default)]
        reason: String,
    },
    /// What is recorded, and how every rank stands.
    TraceStatus {},
    /// End the job.
    Stop {
        /// Why, for the report.
        #[serde(default)]
        reason: String,
        /// At once, without grace.
        #[serde(default)]
        now: bool,
    },
    /// Leave the job running without a supervisor.
    Detach {
        /// How long it waits for the next one.
        #[serde(with = "Seconds")]
        keep: Duration,
    },
}

/// One line of the socket.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Answer {
    /// Version of the protocol.
    pub v: u32,
    /// That of the request, if it had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The answer.
    #[serde(flatten)]
    pub said: Said,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Said {
    /// It was done, or taken.
    Ok(Reply),
    /// It was not.
    Error(Trouble),
    /// Something happened ([`Call::Events`]).
    Event(Arc<Announcement>),
    /// So many events are missing here: the client has read too slowly.
    Missed(u64),
}

/// The good answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
#[non_exhaustive]
pub enum Reply {
    /// To [`Call::Status`].
    Status(Box<StatusReply>),
    /// To [`Call::Explain`].
    Explanation(Box<Explanation>),
    /// To an order.
    Taken(Taken),
    /// To [`Call::TraceStatus`].
    Trace(Box<TraceStatus>),
    /// To a call that has no answer of its own.
    Done {},
}

/// The job as it stands, and what is counted around it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusReply {
    /// The job.
    pub job: JobStatus,
    /// What this socket counted.
    pub socket: SocketCounts,
    /// The logs, if any are kept.
    pub logs: Option<LogsStatus>,
}

/// How the logs stand.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogsStatus {
    /// Why something cannot be written, and what would help; `null` when all is well.
    pub trouble: Option<String>,
    /// What they counted.
    pub counts: JournalCounts,
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trouble {
    /// For programs.
    pub kind: TroubleKind,
    /// For people: what happened, and what to do.
    pub text: String,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TroubleKind {
    /// Not now, or not this.
    Refused,
    /// No plugin of this runtime can do it.
    Unsupported,
    /// The request is of a version of the protocol that this program does not speak.
    Version,
    /// The line is no request.
    BadRequest,
    /// Nobody supervises the job any more.
    Over,
    /// Too many, or too much at once: try again later.
    Busy,
}

impl Trouble {
    pub(super) fn new(kind: TroubleKind, text: impl Into<String>) -> Trouble {
        Trouble { kind, text: text.into() }
    }

    pub(super) fn bad(text: impl Into<String>) -> Trouble {
        Trouble::new(TroubleKind::BadRequest, text)
    }
}

impl From<ControlError> for Trouble {
    fn from(error: ControlError) -> Trouble {
        let kind = match &error {
            ControlError::Refused(_) => TroubleKind::Refused,
            ControlError::Unsupported(_) => TroubleKind::Unsupported,
            ControlError::Over => TroubleKind::Over,
        };
        Trouble::new(kind, error.to_string())
    }
}

/// Makes all texts of a request fit to be shown: they come to stand in reports and events.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = printable(text) {
                *text = shown;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(object) => object.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Request {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, with its id as far as it has one.
    pub fn parse(line: &[u8]) -> Result<Request, (Option<u64>, Trouble)> {
        let object: Result<Map<String, Value>, _> = serde_json::from_slice(line);
        let mut object = object.map_err(|e| (None, Trouble::bad(format!("the line is no JSON object: {e}"))))?;
        let id = object.get("id").and_then(Value::as_u64);
        object.values_mut().for_each(make_printable);
        let read = match object.remove("id") {
            Some(wrong) if id.is_none() && !wrong.is_null() => {
                Err(Trouble::bad(format!("the id {wrong} is no number from 0 on")))
            }
            _ => Request::of(id, object),
        };
        read.map_err(|trouble| (id, trouble))
    }

    fn of(id: Option<u64>, mut object: Map<String, Value>) -> Result<Request, Trouble> {
        let v = match object.remove("v") {
            Some(v) => v,
            None => {
                return Err(Trouble::bad(format!(
                    "\"v\" is missing: begin with {{\"v\":{PROTOCOL_VERSION},\"do\":…}}"
                )));
            }
        };
        if v != PROTOCOL_VERSION {
            let text = format!("this program speaks version {PROTOCOL_VERSION} of the protocol, not {v}: use that");
            return Err(Trouble::new(TroubleKind::Version, text));
        }
        let by = match object.remove("by") {
            None | Some(Value::Null) => None,
            Some(Value::String(by)) if !by.is_empty() && by.len() <= BY_BYTES_MAX => Some(Name::from(by)),
            Some(_) => return Err(Trouble::bad(format!("\"by\" must be a text of 1 to {BY_BYTES_MAX} bytes"))),
        };
        let call = serde_json::from_value(Value::Object(object)).map_err(|e| Trouble::bad(e.to_string()))?;
        Ok(Request { v: PROTOCOL_VERSION, id, by, call })
    }
}

impl Answer {
    pub(super) const fn new(id: Option<u64>, said: Said) -> Answer {
        Answer { v: PROTOCOL_VERSION, id, said }
    }
}
