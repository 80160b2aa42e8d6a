//! The controller's end: a launcher uses it to select the generations that a store's process serves.

use super::super::stats::Stats;
use super::wire::{self, Answer, Call, FRAME_BYTES_MAX, FromStore, PROTOCOL, Refusal, ToStore};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::job::Generation;
use taskd_core::launch::frames::Frames;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// Time for an answer. A store answers in microseconds; after this time it counts as gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Reasons why a call to the store's process failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No store listens at the path of the control socket.
    #[error("no store listens at {}: {source}; start one (taskd-store --control {})", .path.display(), .path.display())]
    Connect {
        /// The path of the control socket.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The store speaks another version of the control protocol than this program.
    #[error(
        "the store has version {theirs} of the control protocol, this program {PROTOCOL}: use one release for both"
    )]
    Protocol {
        /// The version of the control protocol that the store speaks.
        theirs: u32,
    },
    /// The store has refused the call; the field is the reason.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection to the store was closed or is broken, or the store sent an invalid answer. The field is the
    /// cause.
    #[error("the connection to the store is closed ({0}): the store has ended, or accepts only its own user")]
    Lost(#[from] io::Error),
    /// The store has not answered within the time in the field, 10 s.
    #[error("the store has not answered within {} s: it is stopped, or the machine is overloaded", .0.as_secs())]
    NoAnswer(Duration),
}

/// A connection to the control socket of a store's process.
///
/// A connection carries one call at a time. After an error other than [`ControlError::Refused`] the connection is
/// unusable: connect again. The store may nevertheless have carried out the failed call; the generations that
/// [`stats`](StoreControl::stats) returns show it.
///
/// ```no_run
/// use std::net::TcpListener;
/// use taskd_core::job::Generation;
/// use taskd_pytorch::store::StoreControl;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut store = StoreControl::connect("run/store.sock").await?;
/// let listener = TcpListener::bind("[::]:0")?;
/// let port = listener.local_addr()?.port(); // MASTER_PORT of this generation's ranks
/// store.serve(Generation(2), listener).await?;
/// store.retire(Generation(1)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct StoreControl {
    stream: UnixStream,
    input: Frames,
    pid: u32,
    calls: u64,
}

impl StoreControl {
    /// Connects to the control socket at this path.
    ///
    /// # Errors
    /// Returns [`ControlError::Connect`] if no store listens at the path or the caller may not connect to it,
    /// [`ControlError::Protocol`] if the store speaks another version of the control protocol, and
    /// [`ControlError::Lost`] if the store closes the connection, for example because it runs as another user.
    pub async fn connect(path: impl AsRef<Path>) -> Result<StoreControl, ControlError> {
        let path = path.as_ref();
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
        let mut control = StoreControl { stream, input: Frames::new(FRAME_BYTES_MAX), pid: 0, calls: 0 };
        control.send(&ToStore::Hello { protocol: PROTOCOL }, None).await?;
        match control.receive().await? {
            FromStore::Welcome { protocol: PROTOCOL, pid } => Ok(StoreControl { pid, ..control }),
            FromStore::Welcome { protocol, .. } => Err(ControlError::Protocol { theirs: protocol }),
            FromStore::Answer { .. } => Err(unexpected()),
        }
    }

    /// Returns the pid of the store's process, which the store reported when this connection was made.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Adds a generation of ranks to the store. The generation's clients connect to `listener`, whose file descriptor
    /// is passed to the store; the caller's copy is closed. When the call returns, the store serves the generation,
    /// including clients that had connected to `listener` before.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`], with the reason, if the store refuses the generation, and another
    /// [`ControlError`] if the store cannot be reached or does not answer within 10 s.
    pub async fn serve(&mut self, generation: Generation, listener: TcpListener) -> Result<(), ControlError> {
        match self.call(Call::Serve { generation }, Some(listener.as_fd())).await? {
            Answer::Served => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Retires a generation of ranks: the store closes the generation's listener and clients, and drops its keys. The
    /// store refuses to serve this generation, or an earlier one, again. Returns false if the store was not serving the
    /// generation.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the store cannot be reached or does not answer within 10 s.
    pub async fn retire(&mut self, generation: Generation) -> Result<bool, ControlError> {
        match self.call(Call::Retire { generation }, None).await? {
            Answer::Retired { was_served } => Ok(was_served),
            _ => Err(unexpected()),
        }
    }

    /// Returns the store's statistics: counters since its start, and its present generations, clients and memory.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the store cannot be reached or does not answer within 10 s.
    pub async fn stats(&mut self) -> Result<Stats, ControlError> {
        match self.call(Call::Stats, None).await? {
            Answer::Stats(stats) => Ok(*stats),
            _ => Err(unexpected()),
        }
    }

    async fn call(&mut self, call: Call, along: Option<BorrowedFd<'_>>) -> Result<Answer, ControlError> {
        self.calls += 1;
        self.send(&ToStore::Call { id: self.calls, call }, along).await?;
        match self.receive().await? {
            FromStore::Answer { id, answer } if id == self.calls => Ok(answer?),
            _ => Err(unexpected()),
        }
    }

    /// Sends a message to the store, and passes the descriptor `along`, if there is one, with the first byte.
    async fn send(&mut self, message: &ToStore, mut along: Option<BorrowedFd<'_>>) -> Result<(), ControlError> {
        let frame = wire::encode(message)?;
        let all = async {
            let mut rest = &frame[..];
            while !rest.is_empty() {
                let sent = self.stream.async_io(Interest::WRITABLE, || send_part(&self.stream, rest, along)).await?;
                rest = &rest[sent..];
                along = None;
            }
            Ok(())
        };
        tokio::time::timeout(ANSWER_WITHIN, all).await.map_err(|_| ControlError::NoAnswer(ANSWER_WITHIN))?
    }

    async fn receive(&mut self) -> Result<FromStore, ControlError> {
        let all = async {
            let mut part = [0; 4096];
            loop {
                if let Some(message) = self.input.next_message()? {
                    return Ok(message);
                }
                match self.stream.read(&mut part).await? {
                    0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    read => self.input.push(&part[..read]),
                }
            }
        };
        tokio::time::timeout(ANSWER_WITHIN, all).await.map_err(|_| ControlError::NoAnswer(ANSWER_WITHIN))?
    }
}

fn send_part(stream: &UnixStream, part: &[u8], along: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    let along = along.as_slice();
    if !along.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(along));
    }
    Ok(sendmsg(stream, &[IoSlice::new(part)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

fn unexpected() -> ControlError {
    ControlError::Lost(io::Error::other("the store sent an answer of another kind"))
}
