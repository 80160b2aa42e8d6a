//! The runtime's handle on a local socket: JSON lines for operators, exporters and watchdogs that are not written in Rust.
//!
//! It decides nothing and adds no power of its own: every call is one of a [`RuntimeHandle`]. Nothing that comes over it can
//! hold the runtime up.
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
//! A line is a request, and each gets a line as its answer. No client is needed:
//!
//! ```text
//! $ echo '{"v":1,"do":"status"}' | nc -UN /run/acme/demo.sock
//! $ echo '{"v":1,"do":"drain","node":"node-7","reason":"fan replaced"}' | nc -UN /run/acme/demo.sock
//! {"v":1,"ok":{"incident":4,"text":"…"}}
//! ```
//!
//! An exporter keeps its connection and reports what it finds, here in Python:
//!
//! ```text
//! import json, socket
//! taskd = socket.socket(socket.AF_UNIX); taskd.connect("/run/acme/demo.sock"); answers = taskd.makefile()
//! fault = {"by": "dcgm", "node": "node-7", "device": 3, "class": "device",
//!          "text": "Xid 79: GPU has fallen off the bus", "confidence": 0.9}
//! taskd.sendall(json.dumps({"v": 1, "id": 1, "do": "report_fault", "fault": fault}).encode() + b"\n")
//! print(answers.readline())   # {"v":1,"id":1,"ok":{}}
//! ```
//!
//! | `do` | with | answer |
//! |---|---|---|
//! | `status` | | `job`, `socket` (what was counted here), `logs` |
//! | `explain` | `incident` | why it was decided as it was; refused until it is |
//! | `events` | | `{}`, then a line `{"event":…}` for each, and `{"missed":n}` where a slow reader missed some |
//! | `report_fault` | `fault` ([`FaultReport`]) | `{}` |
//! | `drain`, `readmit` | `node`, `reason` | `incident`, `text` |
//! | `restart` | `ranks` (all when empty or left out), `reason` | `incident`, `text` |
//! | `dump_now`, `pause`, `resume` | `reason` | `incident`, `text` |
//! | `allow` | `strategies` (`{"restart":"ask"}`), `reason` | `incident`, `text` |
//! | `approve`, `decline` | `incident`, `reason` | `incident`, `text` |
//! | `switch_trace` | `kinds` (`{"Communication":"off","Step":"on"}`; those that are not named keep what they have), `reason` | `incident`, `text` |
//! | `trace_status` | | each kind: asked for, effective, all ranks in one word; rank by rank |
//! | `stop` | `reason`, `now` | `{}` |
//! | `detach` | `keep` (`"60s"`) | `{}` |
//!
//! Every request may have an `id` (a number), which comes back, and a `by`, under which it stands in the log. `reason` may be
//! left out; an unknown field is refused. The kinds of `switch_trace` are those of the [guide](crate::guide::tracing);
//! `CommunicationOperator`, as a `profilingSwitch` document calls `Communication`, means the same, and stands in answers. What came to nothing is `{"error":{"kind":…,"text":…}}`, where kind is one of [`TroubleKind`]. The JSON schemas
//! are `schema/control-request.json` and `control-answer.json`.
//!
//! # Bounds
//! Only the same user and root are heard; the file has mode 0600, in a directory where nobody else can write. Connections,
//! lines, idle time, unread answers, requests and faults a second have bounds ([`SocketLimits`]), and reaching one is counted
//! ([`SocketCounts`], which `status` shows). A connection has one request at work at a time.
//!
//! | file | its part |
//! |---|---|
//! | `protocol` | requests and answers |
//! | `report` | a fault as it is written by hand |
//! | `place` | the socket's file |
//! | `serve` | connections |
//! | `calls` | what a request asks of the handle |
//! | `counts` | bounds, and what was counted at them |
//! | `lines` | lines within a bound |

mod calls;
mod counts;
mod lines;
mod place;
mod protocol;
mod report;
mod serve;

pub use counts::{SocketCounts, SocketLimits};
pub use place::SocketError;
pub use protocol::{
    Answer, Call, LogsStatus, PROTOCOL_VERSION, Reply, Request, Said, StatusReply, Trouble, TroubleKind,
};
pub use report::{DamageReport, FaultReport};

use super::RuntimeHandle;
use place::Place;
use serve::Server;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long [`ControlSocket::close`] waits for answers that are under way.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A socket that serves a runtime's handle; see the [module](self).
///
/// Dropping it closes it at once: its connections end in the middle of whatever they do, and its file is removed.
/// [`close`](Self::close) lets answers out first.
pub struct ControlSocket {
    server: Arc<Server>,
    serving: JoinHandle<()>,
    closing: CancellationToken,
    place: Place,
}

impl ControlSocket {
    /// Makes the socket and serves it on the tokio runtime around the caller.
    ///
    /// The path's directory is made if it is not there; it must belong to this user (or root), and nobody else may write
    /// there. The socket of a process that is dead is replaced. Blocks for as long as another process takes for the same.
    ///
    /// # Errors
    /// [`SocketError`], among them that another process serves this path.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O, as all of tokio's sockets do.
    pub fn bind(
        path: impl AsRef<Path>,
        handle: RuntimeHandle,
        limits: SocketLimits,
    ) -> Result<ControlSocket, SocketError> {
        if let Some(problem) = limits.problems().into_iter().next() {
            return Err(SocketError::Limits(problem));
        }
        let (listener, place) = place::bind(path.as_ref())?;
        let listener = UnixListener::from_std(listener)
            .map_err(|source| SocketError::System { path: place.path().to_owned(), source })?;
        let closing = CancellationToken::new();
        let server = Arc::new(Server::new(handle, limits, closing.clone()));
        let serving = tokio::spawn(Arc::clone(&server).run(listener));
        Ok(ControlSocket { server, serving, closing, place })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> SocketCounts {
        self.server.counts()
    }

    /// Takes no more requests, lets the answers to those at work out (for two seconds at most), and ends all connections.
    pub async fn close(mut self) {
        self.closing.cancel();
        let _ = tokio::time::timeout(CLOSE_WITHIN, &mut self.serving).await; // else it is cut off
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
        self.serving.abort(); // and with it all connections, whose tasks it owns
    }
}
