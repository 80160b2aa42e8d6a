//! One connection: identifies the process at its other end and receives its messages.
//!
//! This module transfers frames. It accepts messages only from processes of this launcher.

use super::frames::{FRAME_BYTES_MAX, FromWorker, Hello, ToWorker, VERSION};
use super::{UNSENT_MAX, Workers};
use crate::job::ProcId;
use crate::launch::WorkerMessage;
use crate::launch::guard::run_dir::proc_name;
use crate::launch::guard::wire::{self, Frames, ProcReport};
use crate::proc_fs;
use crate::worker::page::Page;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Time for a connection to identify its process.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Time by which a process may connect before the report of its start arrives.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// Serves a connection until it ends.
pub(super) async fn serve(workers: Arc<Workers>, stream: UnixStream, number: u64) {
    let mut served = None;
    let talked = talk(&workers, stream, number, &mut served).await;
    if talked.is_err() {
        workers.refused.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(proc) = served {
        if let Err(error) = talked {
            workers.misunderstood(&proc, number, &error.to_string());
        }
        workers.leave(&proc, number);
    }
}

/// Serves the messages of a connection. An error means that the other end is a stranger or sent an invalid message.
async fn talk(workers: &Workers, stream: UnixStream, number: u64, served: &mut Option<ProcId>) -> io::Result<()> {
    let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    let peer = peer.ok_or_else(|| io::Error::other("the kernel reports no process at the other end"))?;
    let (reader, writer) = stream.into_split();
    let mut incoming = Incoming { reader, frames: Frames::new(FRAME_BYTES_MAX), part: vec![0; 16 << 10] };
    let hello = timeout(HELLO_WITHIN, incoming.next()).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let Some(FromWorker::Hello(hello)) = hello else { return Err(io::Error::other("its first message is no hello")) };
    let proc = identify(workers, &hello, peer).await?;
    let (way, queue) = mpsc::channel(UNSENT_MAX);
    let _ = way.try_send(wire::encode(&ToWorker::Welcome { version: VERSION, mode: "train" })?); // the queue is empty
    workers.enter(&proc, number, way, hello.linked());
    *served = Some(proc.clone());
    tokio::select! {
        biased;
        received = listen(workers, &mut incoming, &proc) => received,
        _ = send(writer, queue) => Ok(()), // the last messages of a process that is gone are lost
    }
}

async fn listen(workers: &Workers, incoming: &mut Incoming, proc: &ProcId) -> io::Result<()> {
    while let Some(message) = incoming.next().await? {
        match message {
            FromWorker::Hello(_) => return Err(io::Error::other("a second hello")),
            FromWorker::Position { now, state_bytes, limits } => workers.moved(proc, now, state_bytes, &limits),
            FromWorker::Failed(failed) => workers.failed(proc, failed),
            FromWorker::Reply(reply) => workers.answered(proc, reply),
            FromWorker::InMemoryCheckpoint(copy) => workers.report(proc, WorkerMessage::InMemoryCheckpoint(copy)),
            FromWorker::Digest(digest) if digest.is_sound() => workers.has_digest(proc, digest),
            FromWorker::Digest(_) => return Err(io::Error::other("a checksum of its state that is empty or too long")),
        }
    }
    Ok(())
}

/// Writes queued frames until the connection ends, or a later one replaces it.
async fn send(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(frame) = queue.recv().await {
        writer.write_all(&frame).await?;
    }
    Ok(())
}

/// Identifies the process at the other end: the process with the pid that the kernel reports, and with the name that it
/// sent.
async fn identify(workers: &Workers, hello: &Hello, pid: u32) -> io::Result<ProcId> {
    if hello.version != VERSION {
        return Err(io::Error::other(format!("it speaks version {} of the control link", hello.version)));
    }
    let log = &workers.history.log;
    let known = async {
        loop {
            let at = log.listing().revision;
            let running = workers.history.running();
            let named = running.into_iter().find(|report| proc_name(&report.proc) == hello.proc);
            if let Some(report) = named.filter(|report| report.pid == pid || has_claimed(pid, report)) {
                return report.proc;
            }
            let _ = log.after(at).await; // the process may connect before its start is reported
        }
    };
    timeout(KNOWN_WITHIN, known).await.map_err(|_| io::Error::other("no process of this job"))
}

/// Returns true if a process is the rank behind the wrapper that was started: the page names its pid, and it descends
/// from the wrapper, or from the guard, which adopts the orphans of a wrapper.
fn has_claimed(pid: u32, report: &ProcReport) -> bool {
    let page = report.page.as_ref().and_then(|path| Some((path, Page::open_to_read(path).ok()?)));
    let Some((path, page)) = page.filter(|(_, page)| page.is_of(report.pid)) else { return false };
    let guard = path.components().nth(2).and_then(|guard| guard.as_os_str().to_str()?.parse().ok());
    let is_started = |above: (u32, u64)| above == (report.pid, report.start_time);
    page.named().0 == pid && proc_fs::lineage(pid).any(|above| is_started(above) || Some(above.0) == guard)
}

/// Received data, split into frames.
struct Incoming {
    reader: OwnedReadHalf,
    frames: Frames,
    part: Vec<u8>,
}

impl Incoming {
    /// Returns the next message; `None` if the other end has closed the connection.
    async fn next(&mut self) -> io::Result<Option<FromWorker>> {
        loop {
            if let Some(message) = self.frames.next_message()? {
                return Ok(Some(message));
            }
            match self.reader.read(&mut self.part).await {
                Ok(0) => return Ok(None),
                Ok(n) => self.frames.push(&self.part[..n]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
