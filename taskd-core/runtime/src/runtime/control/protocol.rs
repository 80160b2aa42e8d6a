//! Protocol of the control socket: one JSON object per line, in both directions.
//!
//! This module only parses and formats. An invalid or partly unknown line is refused, with an error that states what
//! was expected.

use super::counts::SocketCounts;
use super::order_call::{OTHER_CALLS, OrderCall};
use super::report::FaultReport;
use crate::job::seconds::Seconds;
use crate::job::{IncidentId, Name, printable};
use crate::journal::JournalCounts;
use crate::kernel::{Explanation, JobStatus, OrderAccepted};
use crate::runtime::{ControlError, TimestampedEvent};
use crate::trace::switches::{Changed, TraceStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// Version of the control socket's protocol that this program uses. All released versions from 1 up to this one are
/// accepted.
pub const PROTOCOL_VERSION: u32 = 2;

/// Longest `by`, in bytes.
const BY_BYTES_MAX: usize = 64;

/// A request to the control socket: one line of JSON from a client.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Request {
    /// Protocol version of the request: 1 to `PROTOCOL_VERSION`.
    pub v: u32,
    /// Number that the client chooses for this request. The response contains the same number, so that the client can
    /// match responses to requests. `None`: the response contains no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Name of the person or program that sends the request; the log records it as the actor of an order. Default:
    /// `socket`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// The call that the client makes, with its arguments.
    #[serde(flatten)]
    pub call: Call,
}

/// A call that a client can make through the control socket.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
#[non_exhaustive]
pub enum Call {
    /// An order of an operator: the decision kernel decides on it, and the log records it.
    Order(OrderCall),
    /// A query, a subscription to events, a fault report, a change of the tracing, or the handover of the job.
    Runtime(RuntimeCall),
}

/// Calls of the control socket for queries, events, fault reports, tracing and handover. Each calls a method of
/// [`RuntimeHandle`](crate::runtime::RuntimeHandle); for example, `Status` calls `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = in_a_request))]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum RuntimeCall {
    /// Returns the status of the job, with the counters of this socket and of the logs.
    Status {},
    /// Returns the explanation of an incident's decision.
    Explain {
        /// Incident whose decision is to be explained.
        incident: IncidentId,
    },
    /// Subscribes the client to all events of the job from now on. Each event is sent as a line of its own.
    Events {},
    /// Reports a fault that was found outside the runtime.
    ReportFault {
        /// The fault, with its location.
        fault: Box<FaultReport>,
    },
    /// Switches the kinds of trace records (steps, communication operations, GPU or NPU kernels and so on) that all
    /// ranks write.
    SwitchTrace {
        /// `"on"` or `"off"` for each trace kind that is to change, at least one. Trace kinds that are not named do not
        /// change.
        kinds: Changed,
        /// Reason for the change, which the log records. Empty by default.
        #[serde(default)]
        reason: String,
    },
    /// Returns the trace kinds that the ranks record, and the trace state of each rank.
    TraceStatus {},
    /// Hands the job over: the ranks continue without a supervisor until the next supervisor attaches.
    Detach {
        /// Maximum time for which the job waits for the next supervisor; then it stops.
        #[serde(with = "Seconds")]
        keep: Duration,
    },
}

/// A response of the control socket: one line of JSON to a client.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Response {
    /// Protocol version of the program that serves the socket.
    pub v: u32,
    /// The `id` of the request to which this is the response; for an event, the `id` of the request that subscribed to
    /// events. `None` if that request had no `id`, or no valid one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Content of the response: a result, an error, or an event.
    #[serde(flatten)]
    pub body: ResponseBody,
}

/// Content of a response.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResponseBody {
    /// The call was carried out, or the decision kernel accepted the order; contains the result.
    Ok(Reply),
    /// The call failed; contains the error.
    Error(ControlErrorBody),
    /// An event of the job, for a client that has called [`RuntimeCall::Events`].
    Event(Arc<TimestampedEvent>),
    /// Number of events that the subscriber missed between the event lines before and after this line, because it read
    /// too slowly.
    Missed(u64),
}

/// Results of successful calls through the control socket.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
#[non_exhaustive]
pub enum Reply {
    /// Result of [`RuntimeCall::Status`].
    Status(Box<StatusReply>),
    /// Result of [`RuntimeCall::Explain`].
    Explanation(Box<Explanation>),
    /// Result of a call that gives an order, such as a drain, a pause or an approval: the decision kernel has accepted
    /// the order.
    Accepted(OrderAccepted),
    /// Result of [`RuntimeCall::TraceStatus`].
    Trace(Box<TraceStatus>),
    /// Result of a call that returns no data.
    Done {},
}

/// Status of the job, with counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusReply {
    /// Status of the job.
    pub job: JobStatus,
    /// Counters of the control socket that sent this response.
    pub socket: SocketCounts,
    /// State of the journal's logs; `null` if the runtime has no journal.
    pub logs: Option<LogsStatus>,
}

/// State of the journal's logs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogsStatus {
    /// Name of a log that cannot be written, the reason, and what to do; `null` if all logs can be written.
    pub trouble: Option<String>,
    /// Counters of the journal's logs.
    pub counts: JournalCounts,
}

/// Error that the control socket returns for a failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ControlErrorBody {
    /// Kind of the error, for programs.
    pub kind: ControlErrorKind,
    /// What happened and what to do, for operators.
    pub text: String,
}

/// Kinds of errors that the control socket returns for a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ControlErrorKind {
    /// The call is refused, at present or in general; the error's text states the obstacle.
    Refused,
    /// No plugin of this runtime supports the call.
    Unsupported,
    /// The request has a protocol version that this program does not support.
    Version,
    /// The line is no valid request.
    BadRequest,
    /// The job is over, or this supervisor has handed it over.
    Over,
    /// A limit of the control socket ([`SocketLimits`](super::SocketLimits)) is reached, or the runtime did not answer
    /// in time: try again later.
    Busy,
}

impl ControlErrorBody {
    pub(super) fn new(kind: ControlErrorKind, text: impl Into<String>) -> ControlErrorBody {
        ControlErrorBody { kind, text: text.into() }
    }

    pub(super) fn bad(text: impl Into<String>) -> ControlErrorBody {
        ControlErrorBody::new(ControlErrorKind::BadRequest, text)
    }
}

impl From<ControlError> for ControlErrorBody {
    fn from(error: ControlError) -> ControlErrorBody {
        let kind = match &error {
            ControlError::Refused(_) => ControlErrorKind::Refused,
            ControlError::Unsupported(_) => ControlErrorKind::Unsupported,
            ControlError::Over => ControlErrorKind::Over,
        };
        ControlErrorBody::new(kind, error.to_string())
    }
}

/// Removes the bound on the members of a call, because those of the request stand beside them.
#[cfg(feature = "schema")]
fn in_a_request(schema: &mut schemars::Schema) {
    let calls = schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten();
    calls.filter_map(Value::as_object_mut).for_each(|call| drop(call.remove("additionalProperties")));
}

/// Escapes unprintable characters in all texts of a request, because reports and events show them.
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
    /// Parses one line from a client of the control socket as a request.
    ///
    /// # Errors
    /// Returns an error if the line is no valid request: the id of the request, if the line contains a valid one, and
    /// the error to send to the client.
    pub fn parse(line: &[u8]) -> Result<Request, (Option<u64>, ControlErrorBody)> {
        let object: Result<Map<String, Value>, _> = serde_json::from_slice(line);
        let mut object =
            object.map_err(|e| (None, ControlErrorBody::bad(format!("the line is not a JSON object: {e}"))))?;
        let id = object.get("id").and_then(Value::as_u64);
        object.values_mut().for_each(make_printable);
        let read = match object.remove("id") {
            Some(wrong) if id.is_none() && !wrong.is_null() => {
                Err(ControlErrorBody::bad(format!("the id {wrong} is not a number from 0 on")))
            }
            _ => Request::of(id, object),
        };
        read.map_err(|trouble| (id, trouble))
    }

    fn of(id: Option<u64>, mut object: Map<String, Value>) -> Result<Request, ControlErrorBody> {
        let v = match object.remove("v") {
            Some(v) => v,
            None => {
                return Err(ControlErrorBody::bad(format!(
                    "\"v\" is missing: begin with {{\"v\":{PROTOCOL_VERSION},\"do\":…}}"
                )));
            }
        };
        let known = v.as_u64().and_then(|v| u32::try_from(v).ok()).filter(|v| (1..=PROTOCOL_VERSION).contains(v));
        let Some(v) = known else {
            let text = format!("this program speaks version {PROTOCOL_VERSION} of the protocol, not {v}: use that");
            return Err(ControlErrorBody::new(ControlErrorKind::Version, text));
        };
        let by = match object.remove("by") {
            None | Some(Value::Null) => None,
            Some(Value::String(by)) if !by.is_empty() && by.len() <= BY_BYTES_MAX => Some(Name::from(by)),
            Some(_) => {
                return Err(ControlErrorBody::bad(format!("\"by\" must be a text of 1 to {BY_BYTES_MAX} bytes")));
            }
        };
        let call = match object.get("do").and_then(Value::as_str).map(str::to_owned) {
            Some(word) if !OTHER_CALLS.contains(&word.as_str()) => {
                object.remove("do");
                OrderCall::read(&word, object).map(Call::Order)
            }
            _ => serde_json::from_value(Value::Object(object)).map(Call::Runtime).map_err(|e| e.to_string()),
        };
        let call = call.map_err(ControlErrorBody::bad)?;
        Ok(Request { v, id, by, call })
    }
}

impl Response {
    pub(super) const fn new(id: Option<u64>, body: ResponseBody) -> Response {
        Response { v: PROTOCOL_VERSION, id, body }
    }
}
