//! One connection: who is at its other end, and what it says.
//!
//! It moves frames. Whoever is no process of this launcher is not listened to.

use super::frames::{FRAME_BYTES_MAX, FromWorker, Hello, ToWorker, VERSION};
use super::{UNSENT_MAX, Workers};
use crate::job::ProcId;
use crate::launch::Saying;
use crate::launch::guard::proc_fs;
use crate::launch::guard::run_dir::proc_name;
use crate::launch::guard::wire::{self, Frames, ProcReport};
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

/// How long a connection may take to say whose it is.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long a process may be quicker than the news of its start.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// Serves a connection to its end.
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

/// An error: the other end is a stranger, or says what is no message.
async fn talk(workers: &Workers, stream: UnixStream, number: u64, served: &mut Option<ProcId>) -> io::Result<()> {
    let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    let peer = peer.ok_or_else(|| io::Error::other("nobody knows which process is at the other end"))?;
    let (reader, writer) = stream.into_split();
    let mut incoming = Incoming { reader, frames: Frames::new(FRAME_BYTES_MAX), part: vec![0; 16 << 10] };
    let hello = timeout(HELLO_WITHIN, incoming.next()).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let Some(FromWorker::Hello(hello)) = hello else { return Err(io::Error::other("its first word is no hello")) };
    let proc = identify(workers, &hello, peer).await?;
    let (way, queue) = mpsc::channel(UNSENT_MAX);
    let _ = way.try_send(wire::encode(&ToWorker::Welcome { version: VERSION, mode: "train" })?); // the queue is empty
    workers.enter(&proc, number, way, hello.linked());
    *served = Some(proc.clone());
    tokio::select! {
        biased;
        heard = listen(workers, &mut incoming, &proc) => heard,
        _ = send(writer, queue) => Ok(()), // what it said last is lost with a process that is gone
    }
}

async fn listen(workers: &Workers, incoming: &mut Incoming, proc: &ProcId) -> io::Result<()> {
    while let Some(message) = incoming.next().await? {
        match message {
            FromWorker::Hello(_) => return Err(io::Error::other("a second hello")),
            FromWorker::At { point, state_bytes, limits } => workers.moved(proc, point, state_bytes, &limits),
            FromWorker::Failed(failed) => workers.failed(proc, failed),
            FromWorker::Answer(answer) => workers.answered(proc, answer),
            FromWorker::Memory(copy) => workers.says(proc, Saying::Memory(copy)),
            FromWorker::Digest(digest) if digest.is_sound() => workers.has_digest(proc, digest),
            FromWorker::Digest(_) => return Err(io::Error::other("a checksum of its state that is empty or too long")),
        }
    }
    Ok(())
}

/// Ends with the connection, or when a later one has taken its place.
async fn send(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(frame) = queue.recv().await {
        writer.write_all(&frame).await?;
    }
    Ok(())
}

/// The process at the other end: the one with its pid, by which the kernel names it, and with the name that it gives.
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
            let _ = log.after(at).await; // a process may be quicker than the news of its start
        }
    };
    timeout(KNOWN_WITHIN, known).await.map_err(|_| io::Error::other("no process of this job"))
}

/// Whether a process is the rank behind the wrapper that was started: the page names it, and it descends from that process, or from
/// the guard, which takes in what a wrapper leaves behind.
fn has_claimed(pid: u32, report: &ProcReport) -> bool {
    let page = report.page.as_ref().and_then(|path| Some((path, Page::open_to_read(path).ok()?)));
    let Some((path, page)) = page.filter(|(_, page)| page.is_of(report.pid)) else { return false };
    let guard = path.components().nth(2).and_then(|guard| guard.as_os_str().to_str()?.parse().ok());
    let is_started = |above: (u32, u64)| above == (report.pid, report.start_time);
    page.named().0 == pid && proc_fs::lineage(pid).any(|above| is_started(above) || Some(above.0) == guard)
}

/// What comes in, frame by frame.
struct Incoming {
    reader: OwnedReadHalf,
    frames: Frames,
    part: Vec<u8>,
}

impl Incoming {
    /// `None`: the other end has hung up.
    async fn next(&mut self) -> io::Result<Option<FromWorker>> {
        loop {
            if let Some(message) = self.frames.next()? {
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
