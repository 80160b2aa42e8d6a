//! Control socket: the runtime's handle on a local socket, as JSON lines for operators, exporters and watchdogs that
//! are not written in Rust.
//!
//! The socket decides nothing and grants no additional power: every call is a method of [`RuntimeHandle`]. No client
//! can block the runtime.
//!
//! ```no_run
//! # async fn host(runtime: taskd_core::runtime::Runtime) -> Result<(), taskd_core::runtime::control::SocketError> {
//! use taskd_core::runtime::control::{ControlSocket, SocketLimits};
//!
//! let socket = ControlSocket::bind("/run/acme/demo.sock", runtime.handle(), SocketLimits::default())?;
//! let report = runtime.run().await;
//! socket.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Using it
//! Each line is a request and receives one line as its response. No client library is needed:
//!
//! ```text
//! $ echo '{"v":2,"do":"status"}' | nc -UN /run/acme/demo.sock
//! $ echo '{"v":2,"do":"drain","node":"node-7","reason":"fan replaced"}' | nc -UN /run/acme/demo.sock
//! {"v":2,"ok":{"incident":4,"text":"…"}}
//! ```
//!
//! An exporter keeps its connection open and reports what it finds, here in Python:
//!
//! ```text
//! import json, socket
//! taskd = socket.socket(socket.AF_UNIX); taskd.connect("/run/acme/demo.sock"); answers = taskd.makefile()
//! fault = {"by": "dcgm", "node": "node-7", "device": 3, "class": "device",
//!          "text": "Xid 79: GPU has fallen off the bus", "confidence": 0.9}
//! taskd.sendall(json.dumps({"v": 2, "id": 1, "do": "report_fault", "fault": fault}).encode() + b"\n")
//! print(answers.readline())   # {"v":2,"id":1,"ok":{}}
//! ```
//!
//! | `do` | with | answer |
//! |---|---|---|
//! | `status` | | `job`, `socket` (counters of this socket), `logs` |
//! | `explain` | `incident` | explanation of the incident's decision; refused until there is one |
//! | `events` | | `{}`, then a line `{"event":…}` for each event, and `{"missed":n}` if a slow reader missed some |
//! | `report_fault` | `fault` ([`FaultReport`]) | `{}` |
//! | `drain`, `uncordon` | `node`, `reason` | `incident`, `text` |
//! | `restart` | `ranks` (all ranks if empty or absent), `reason` | `incident`, `text` |
//! | `checkpoint`, `pause`, `resume` | `reason` | `incident`, `text` |
//! | `allow` | `strategies` (`{"restart":"ask"}`), `reason` | `incident`, `text` |
//! | `approve`, `decline` | `incident`, `reason` | `incident`, `text` |
//! | `switch_trace` | `kinds` (`{"Communication":"off","Step":"on"}`; kinds that are not named do not change), `reason` | `incident`, `text` |
//! | `trace_status` | | each kind: requested, effective, state of all ranks in one word; state of each rank |
//! | `stop` | `grace` (`"30s"`; the policy's grace period if absent), `reason` | `incident`, `text` |
//! | `detach` | `keep` (`"60s"`) | `{}` |
//!
//! A request may have an `id` (a number), which its response repeats, and `by`, the actor that the log records.
//! `reason` is optional. Unknown fields are refused. The words of earlier versions are still accepted: `readmit` for
//! `uncordon`, `dump_now` and `checkpoint_now` for `checkpoint`, and `"now":true` for `"grace":0`.
//!
//! The kinds of `switch_trace` are those of the guide's page on tracing. `CommunicationOperator`, the name of
//! `Communication` in a `profilingSwitch` document, is a synonym, and the one that responses use.
//!
//! The response to a request that failed is `{"error":{"kind":…,"text":…}}`, where `kind` is a [`ControlErrorKind`].
//! The JSON schemas are `schema/control-request.json` and `schema/control-response.json`.
//!
//! # Bounds
//! Only the same user and root may connect. The socket file has mode 0600, in a directory in which no other user can
//! write. Connections, line length, idle time, unread responses, and fault reports and requests per second have limits
//! ([`SocketLimits`]); each time that one is reached is counted ([`SocketCounts`], which `status` returns). A
//! connection has at most one request in progress.
//!
//! | file | content |
//! |---|---|
//! | `protocol` | requests and responses |
//! | `report` | fault reports as external programs and operators write them |
//! | `socket_file` | the socket's file |
//! | `serve` | connections |
//! | `handlers` | request handlers |
//! | `counts` | limits and counters |
//! | `line_codec` | bounded lines |

mod counts;
mod handlers;
mod line_codec;
mod order_call;
mod protocol;
mod report;
mod serve;
mod socket_file;

pub use counts::{SocketCounts, SocketLimits};
pub use order_call::OrderCall;
pub use protocol::{
    Call, ControlErrorBody, ControlErrorKind, LogsStatus, PROTOCOL_VERSION, Reply, Request, Response, ResponseBody,
    RuntimeCall, StatusReply,
};
pub use report::{DamageReport, FaultReport};
pub use socket_file::SocketError;

use super::RuntimeHandle;
use serve::Server;
use socket_file::Place;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Time that [`ControlSocket::close`] waits for pending responses.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Unix socket through which other processes call the methods of a `RuntimeHandle`; see the [module](self).
///
/// Dropping a control socket closes it immediately: its connections end, even in the middle of a request, and its file
/// is removed. [`close`](Self::close) sends pending responses first.
pub struct ControlSocket {
    server: Arc<Server>,
    serving: JoinHandle<()>,
    closing: CancellationToken,
    place: Place,
}

impl ControlSocket {
    /// Binds the socket at `path` and serves it on the current tokio runtime.
    ///
    /// A missing directory is created. The directory must belong to this user or root, and no other user may have write
    /// permission. A socket of a dead process is replaced. If another process is binding the same path, this call
    /// blocks until that one is done, for about a second at most.
    ///
    /// # Errors
    /// Returns [`SocketError`] if the socket cannot be bound, for example because another process serves this path.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime with I/O enabled, like all of tokio's sockets.
    pub fn bind(
        path: impl AsRef<Path>,
        handle: RuntimeHandle,
        limits: SocketLimits,
    ) -> Result<ControlSocket, SocketError> {
        if let Some(problem) = limits.problems().into_iter().next() {
            return Err(SocketError::Limits(problem));
        }
        let (listener, place) = socket_file::bind(path.as_ref())?;
        let listener = UnixListener::from_std(listener)
            .map_err(|source| SocketError::System { path: place.path().to_owned(), source })?;
        let closing = CancellationToken::new();
        let server = Arc::new(Server::new(handle, limits, closing.clone()));
        let serving = tokio::spawn(Arc::clone(&server).run(listener));
        Ok(ControlSocket { server, serving, closing, place })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Returns the counters of this socket: connections, requests and rejections.
    #[must_use]
    pub fn counts(&self) -> SocketCounts {
        self.server.counts()
    }

    /// Stops accepting requests, sends pending responses (for at most two seconds), and closes all connections.
    pub async fn close(mut self) {
        self.closing.cancel();
        let _ = tokio::time::timeout(CLOSE_WITHIN, &mut self.serving).await; // after the time limit, dropping aborts it
    }
}

impl fmt::Debug for ControlSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, counts) = (self.path(), self.counts());
        f.debug_struct("ControlSocket").field("path", &path).field("counts", &counts).finish_non_exhaustive()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.serving.abort(); // also ends all connections, whose tasks it owns
    }
}
