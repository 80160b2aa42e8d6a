//! Connections of the control socket: access checks and limits. One task per connection, owned by the accepting task.
//!
//! The content of the requests is the job of `protocol` and `handlers`.

use super::counts::{Rate, SocketCounts, SocketLimits};
use super::line_codec::{Line, read_line};
use super::protocol::{Call, ControlErrorBody, ControlErrorKind, Request, Response, ResponseBody, RuntimeCall};
use crate::runtime::{RuntimeHandle, TimestampedEvent};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Pause after a failed accept, because the system lacks a resource such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// State shared by all connections.
pub(super) struct Server {
    pub(super) handle: RuntimeHandle,
    pub(super) limits: SocketLimits,
    closing: CancellationToken,
    shared: Mutex<Shared>,
}

struct Shared {
    counts: SocketCounts,
    faults: Rate,
    requests: Rate,
}

impl Server {
    pub(super) fn new(handle: RuntimeHandle, limits: SocketLimits, closing: CancellationToken) -> Server {
        let (faults, requests) = (limits.faults_per_s_max, limits.requests_per_s_max);
        let (faults, requests) = (Rate::per_second(faults), Rate::per_second(requests));
        let shared = Mutex::new(Shared { counts: SocketCounts::default(), faults, requests });
        Server { handle, limits, closing, shared }
    }

    pub(super) fn counts(&self) -> SocketCounts {
        self.with(|shared| shared.counts)
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut SocketCounts)) {
        self.with(|shared| count(&mut shared.counts));
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shared) -> T) -> T {
        work(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner)) // no work here panics half-way
    }

    /// Counts one fault report, and returns true if the rate limit admits it.
    pub(super) fn admit_fault(&self) -> bool {
        self.with(|shared| {
            let admitted = shared.faults.take(Instant::now()).is_ok();
            let counted = if admitted { &mut shared.counts.faults } else { &mut shared.counts.faults_turned_away };
            *counted += 1;
            admitted
        })
    }

    /// Waits until the rate limit admits one more request.
    async fn admit_request(&self) {
        while let Err(wait) = self.with(|shared| shared.requests.take(Instant::now())) {
            self.count(|c| c.waits += 1);
            sleep(wait).await;
        }
        self.count(|c| c.requests += 1);
    }

    /// Accepts connections until the closing token is cancelled, then waits for the open connections to end.
    pub(super) async fn run(self: Arc<Server>, listener: UnixListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = self.closing.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(stream, &mut connections),
                    Err(error) => {
                        self.count(|c| c.accept_failures += 1);
                        tracing::warn!("a connection to the control socket cannot be accepted: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    fn take(self: &Arc<Server>, stream: UnixStream, connections: &mut JoinSet<()>) {
        let us = rustix::process::geteuid().as_raw();
        let refusal = match stream.peer_cred() {
            Ok(peer) if may_talk(peer.uid(), us) => None,
            Ok(peer) => Some(format!("user {} may not control a runtime of user {us}", peer.uid())),
            Err(error) => Some(format!("the user of this connection cannot be determined: {error}")),
        };
        if let Some(text) = refusal {
            self.count(|c| c.strangers += 1);
            tracing::warn!("a connection to the control socket was refused: {text}");
            return turn_away(&stream, ControlErrorBody::new(ControlErrorKind::Refused, text));
        }
        if connections.len() >= self.limits.connections_max {
            self.count(|c| c.crowded += 1);
            let text = format!("there are {} connections already: close one, or try again later", connections.len());
            return turn_away(&stream, ControlErrorBody::new(ControlErrorKind::Busy, text));
        }
        self.count(|c| c.connections += 1);
        let connection = Connection::new(Arc::clone(self), stream);
        connections.spawn(async move {
            let (server, closing) = (Arc::clone(&connection.server), connection.server.closing.clone());
            if let Err(End::Slow) = connection.serve(&closing).await {
                server.count(|c| c.slow_readers += 1);
            }
        });
    }
}

/// Returns true if the peer is the same user or root.
const fn may_talk(peer: u32, us: u32) -> bool {
    peer == us || peer == 0
}

/// Sends the reason for a rejection, if the socket buffer has room, and closes the connection.
fn turn_away(stream: &UnixStream, trouble: ControlErrorBody) {
    let _ = stream.try_write(&line(&Response::new(None, ResponseBody::Error(trouble)))); // a new socket has room
}

fn line(answer: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).unwrap_or_default(); // cannot fail: all map keys are text
    line.push(b'\n');
    line
}

/// Reason for the end of a connection.
enum End {
    /// The client closed the connection.
    Gone,
    /// The client does not read its responses.
    Slow,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

struct Connection {
    server: Arc<Server>,
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    line: Vec<u8>,
    events: Option<Listening>,
    /// True after the client closed its writing side. The client may still subscribe to events.
    read_out: bool,
}

/// A subscription to events.
struct Listening {
    id: Option<u64>,
    events: broadcast::Receiver<Arc<TimestampedEvent>>,
}

/// Reason for which a connection wakes up.
enum Wake {
    Read(io::Result<Line>),
    Event(Option<u64>, Result<Arc<TimestampedEvent>, RecvError>),
    Idle,
    Closing,
}

impl Connection {
    fn new(server: Arc<Server>, stream: UnixStream) -> Connection {
        let (from, to) = stream.into_split();
        Connection { server, from: BufReader::new(from), to, line: Vec::new(), events: None, read_out: false }
    }

    async fn serve(mut self, closing: &CancellationToken) -> Result<(), End> {
        let mut idle_at = Instant::now() + self.server.limits.idle_within;
        loop {
            match self.wait(idle_at, closing).await {
                Wake::Read(Ok(Line::Whole)) => {
                    self.request().await?;
                    idle_at = Instant::now() + self.server.limits.idle_within;
                }
                Wake::Read(Ok(Line::Long)) => {
                    self.server.count(|c| c.long_lines += 1);
                    let text = format!("a line is longer than {} bytes", self.server.limits.line_bytes_max);
                    return self.say(None, ResponseBody::Error(ControlErrorBody::bad(text))).await;
                }
                Wake::Read(Ok(Line::End)) if self.events.is_some() => self.read_out = true,
                Wake::Read(Ok(Line::End)) | Wake::Closing => return Ok(()),
                Wake::Read(Err(error)) => return Err(error.into()),
                Wake::Event(id, Ok(event)) => {
                    self.say(id, ResponseBody::Event(event)).await?;
                    idle_at = Instant::now() + self.server.limits.idle_within;
                }
                Wake::Event(id, Err(RecvError::Lagged(missed))) => {
                    self.server.count(|c| c.events_missed += missed);
                    self.say(id, ResponseBody::Missed(missed)).await?;
                }
                Wake::Event(_, Err(RecvError::Closed)) if self.read_out => return Ok(()),
                Wake::Event(_, Err(RecvError::Closed)) => self.events = None,
                Wake::Idle => {
                    self.server.count(|c| c.idle += 1);
                    return Ok(());
                }
            }
        }
    }

    async fn wait(&mut self, idle_at: Instant, closing: &CancellationToken) -> Wake {
        let Connection { server, from, line, events, read_out, .. } = self;
        let (listens, read_out) = (events.is_some(), *read_out);
        let event = async {
            match events {
                Some(listening) => Wake::Event(listening.id, listening.events.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = closing.cancelled() => Wake::Closing,
            read = read_line(from, line, server.limits.line_bytes_max), if !read_out => Wake::Read(read),
            wake = event => wake,
            () = tokio::time::sleep_until(idle_at), if !listens || read_out => Wake::Idle,
        }
    }

    /// Handles the request in the line that was read, and sends the response.
    async fn request(&mut self) -> Result<(), End> {
        let line = std::mem::take(&mut self.line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(()); // an empty line: a key pressed in a terminal
        }
        self.server.admit_request().await;
        let request = match Request::parse(&line) {
            Ok(request) => request,
            Err((id, trouble)) => {
                self.server.count(|c| c.bad_lines += 1);
                return self.say(id, ResponseBody::Error(trouble)).await;
            }
        };
        if matches!(request.call, Call::Runtime(RuntimeCall::Events {})) {
            self.events = Some(Listening { id: request.id, events: self.server.handle.events() });
        }
        let id = request.id;
        let answer = timeout(self.server.limits.answer_within, self.server.answer(request)).await;
        let reply = answer.unwrap_or_else(|_| {
            self.server.count(|c| c.unanswered += 1);
            let within = self.server.limits.answer_within;
            let text = format!("the runtime did not answer within {within:?}; the request may still be carried out");
            ResponseBody::Error(ControlErrorBody::new(ControlErrorKind::Busy, text))
        });
        self.say(id, reply).await
    }

    async fn say(&mut self, id: Option<u64>, body: ResponseBody) -> Result<(), End> {
        let line = line(&Response::new(id, body));
        match timeout(self.server.limits.write_within, self.to.write_all(&line)).await {
            Ok(written) => Ok(written?),
            Err(_) => Err(End::Slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::may_talk;

    #[test]
    fn control_socket_accepts_only_the_same_user_and_root() {
        assert!(may_talk(1000, 1000) && may_talk(0, 1000) && may_talk(0, 0));
        assert!(!may_talk(1001, 1000) && !may_talk(1000, 0));
    }
}
