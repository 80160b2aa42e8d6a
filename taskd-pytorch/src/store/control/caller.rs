//! The other end: what a launcher uses to tell a store's process which generations to serve.

use super::super::stats::Stats;
use super::wire::{self, Answer, Call, FromStore, PROTOCOL, Refusal, ToStore};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::job::Generation;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// A store answers in microseconds; one that does not within this time counts as gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nobody listens there.
    #[error("no store listens at {}: {source}; start one (taskd-store --control {})", .path.display(), .path.display())]
    Connect {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is of another version.
    #[error(
        "the store speaks version {theirs} of the control protocol, and this program version {PROTOCOL}: use both of one release"
    )]
    Protocol {
        /// Its version.
        theirs: u32,
    },
    /// It refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection is over.
    #[error("the connection to the store is over ({0}): it has ended, or takes orders only from its own user")]
    Lost(#[from] io::Error),
    /// It says nothing.
    #[error("the store has not answered within {} s: it is stopped, or the machine is overloaded", .0.as_secs())]
    NoAnswer(Duration),
}

/// A connection to a store's process.
///
/// One call at a time. After an error other than [`ControlError::Refused`] it is of no use any more: connect again; what was
/// called may have been done or not, and [`stats`](StoreControl::stats) tells.
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
    input: Vec<u8>,
    pid: u32,
    calls: u64,
}

impl StoreControl {
    /// Connects to the control socket at this path.
    ///
    /// # Errors
    /// Nobody listens there, it is of another version, or of another user.
    pub async fn connect(path: impl AsRef<Path>) -> Result<StoreControl, ControlError> {
        let path = path.as_ref();
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|source| ControlError::Connect { path: path.to_owned(), source })?;
        let mut control = StoreControl { stream, input: Vec::new(), pid: 0, calls: 0 };
        control.send(&ToStore::Hello { protocol: PROTOCOL }, None).await?;
        match control.receive().await? {
            FromStore::Welcome { protocol: PROTOCOL, pid } => Ok(StoreControl { pid, ..control }),
            FromStore::Welcome { protocol, .. } => Err(ControlError::Protocol { theirs: protocol }),
            FromStore::Answer { .. } => Err(unexpected()),
        }
    }

    /// The store's process, as it calls itself.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Has a generation served at this listener. From the answer on, clients are served; those that have connected before it
    /// were kept waiting. Our own copy of the listener is closed.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the reason; or the store is not there.
    pub async fn serve(&mut self, generation: Generation, listener: TcpListener) -> Result<(), ControlError> {
        match self.call(Call::Serve { generation }, Some(listener.as_fd())).await? {
            Answer::Served => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Ends a generation: its listener and clients are closed, its keys are gone. It never comes back. False if it was not
    /// served.
    ///
    /// # Errors
    /// The store is not there.
    pub async fn retire(&mut self, generation: Generation) -> Result<bool, ControlError> {
        match self.call(Call::Retire { generation }, None).await? {
            Answer::Retired { was_served } => Ok(was_served),
            _ => Err(unexpected()),
        }
    }

    /// What the store has done, and what it holds.
    ///
    /// # Errors
    /// The store is not there.
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

    /// Sends a frame, with a descriptor beside its first byte.
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
            loop {
                if let Some(message) = wire::decode(&mut self.input)? {
                    return Ok(message);
                }
                if self.stream.read_buf(&mut self.input).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
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
    ControlError::Lost(io::Error::other("it answers something else"))
}
