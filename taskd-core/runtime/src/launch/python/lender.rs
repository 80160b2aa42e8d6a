//! Passes the listener of a generation's port to the process that requests it: the one that hosts the store or
//! scheduler.
//!
//! The process requests it right before it would listen itself (`python/_taskd_port.py`), at a Unix socket in the
//! launcher's directory. It sends the port, in digits and a newline, and receives the host name by which others reach
//! the listener, together with the listener. The end of the connection means that no other process holds the listener
//! any more. If there is no listener for that port, the connection ends without a reply.
//!
//! This module chooses no port and knows no generation; [`HeldPort`] does.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::on_files;
use super::port::{HeldPort, Lent};
use crate::launch::guard::listen_sockets;

/// Time limit for a connection to send its request.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of simultaneous connections; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// Maximum length of a request: five digits and a newline.
const REQUEST_BYTES_MAX: usize = 6;

/// The reserved port, shared with the tasks that answer requests.
pub(super) type Port = Arc<Mutex<Option<HeldPort>>>;

/// Server of the listener; it runs until dropped.
#[derive(Debug)]
pub(super) struct Lender {
    serving: Mutex<Option<JoinSet<()>>>,
    /// True if a process has sent a request since the last call of [`was_asked`](Lender::was_asked).
    is_asked: Arc<AtomicBool>,
}

impl Default for Lender {
    fn default() -> Lender {
        Lender { serving: Mutex::default(), is_asked: Arc::new(AtomicBool::new(true)) } // none could have asked yet
    }
}

impl Lender {
    /// Starts to serve at this path, unless it already does and the socket still exists. Returns true if it serves.
    pub(super) async fn serve(&self, path: PathBuf, port: &Port) -> bool {
        let mut serving = self.serving.lock().await;
        let (shown, is_up) = (path.display().to_string(), serving.is_some());
        let listening = on_files(move || if is_up && path.exists() { Ok(None) } else { listen(&path).map(Some) }).await;
        let listening = listening.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        match listening.and_then(|new| new.map(UnixListener::from_std).transpose()) {
            Ok(None) => true,
            Ok(Some(listener)) => {
                let tasks = serving.insert(JoinSet::new());
                tasks.spawn(serve(listener, Arc::clone(port), Arc::clone(&self.is_asked)));
                true
            }
            Err(error) => {
                tracing::warn!(
                    "ports are bound without a listener, since no listener can be passed on at {shown}: {error}"
                );
                false
            }
        }
    }

    /// Returns true if a process has sent a request since the last call.
    pub(super) fn was_asked(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }
}

fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = listen_sockets::listen_at(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listener: UnixListener, port: Port, is_asked: Arc<AtomicBool>) {
    let mut answering = JoinSet::new();
    loop {
        while answering.len() >= CONNECTIONS_MAX {
            answering.join_next().await;
        }
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await; // too many open files, which is temporary
            continue;
        };
        while answering.try_join_next().is_some() {}
        let (port, is_asked) = (Arc::clone(&port), Arc::clone(&is_asked));
        answering.spawn(async move {
            if let Err(error) = answer(stream, &port, &is_asked).await {
                tracing::warn!("the listener of a port was not passed to the process that requested it: {error}");
            }
        });
    }
}

async fn answer(stream: UnixStream, port: &Port, is_asked: &AtomicBool) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    if user != rustix::process::geteuid().as_raw() && user != 0 {
        return Err(io::Error::other(format!("user {user} has requested it")));
    }
    let asked = tokio::time::timeout(ASK_WITHIN, request(&stream)).await;
    let Some(asked) = asked.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? else { return Ok(()) };
    is_asked.store(true, Ordering::Relaxed);
    let lent = port.lock().await.as_mut().and_then(|held| held.lend(asked));
    let Some(lent) = lent else { return Ok(()) };
    hand_over(&stream, &lent).await?;
    drop(lent); // before the connection: at its end the receiver is the only holder of the listener
    drop(stream);
    Ok(())
}

/// Reads the requested port number; returns `None` if the other side has closed the connection.
async fn request(stream: &UnixStream) -> io::Result<Option<u16>> {
    let mut sent = Vec::new();
    while sent.last() != Some(&b'\n') && sent.len() < REQUEST_BYTES_MAX {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        stream.readable().await?;
        match stream.try_read(&mut bytes[..REQUEST_BYTES_MAX - sent.len()]) {
            Ok(0) => return Ok(None),
            Ok(length) => sent.extend_from_slice(&bytes[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) => return Err(error),
        }
    }
    let port = str::from_utf8(&sent).ok().and_then(|text| text.strip_suffix('\n')?.parse().ok());
    port.map(Some).ok_or_else(|| io::Error::other("the request is no port number"))
}

async fn hand_over(stream: &UnixStream, lent: &Lent) -> io::Result<()> {
    let line = format!("{}\n", lent.host);
    loop {
        stream.writable().await?;
        let send = || {
            let descriptors = [lent.listener.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors)); // there is room for one
            Ok(rustix::net::sendmsg(stream, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)?)
        };
        match stream.try_io(Interest::WRITABLE, send) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            sent => return sent.map(drop), // a line this short is written at once
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Generation;
    use serde_json::json;
    use taskd_core::testing::python::evaluated;

    async fn lending(dir: &Path) -> (Lender, Port, u16) {
        let mut held = HeldPort::choose(Generation(1), None).unwrap();
        held.listen_for("here").unwrap();
        let number = held.port;
        let (lender, port) = (Lender::default(), Arc::new(Mutex::new(Some(held))));
        assert!(lender.serve(dir.join("port.sock"), &port).await);
        (lender, port, number)
    }

    /// Runs a Python program that requests the listener at the socket in this directory, and returns its output.
    async fn python(dir: &Path, program: &str) -> serde_json::Value {
        let path = dir.join("port.sock").display().to_string();
        let program =
            format!("import os, socket, _taskd_port as port\nos.environ[port.VARIABLE] = {path:?}\n{program}");
        tokio::task::spawn_blocking(move || evaluated(&[], &program)).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_that_requests_the_held_port_gets_its_listener_once() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        crate::private::make_dir(&long).unwrap();
        let (lender, port, number) = lending(&long).await;
        let program = format!(
            "
early = socket.create_connection(('127.0.0.1', {number}))
other, listener, again = port.take({number} ^ 1), port.take({number}), port.take({number})
server = socket.socket(fileno=listener.fd)
served = server.accept()[0].getpeername()[1] == early.getsockname()[1]
print(json.dumps([other, listener.is_for('any'), served, again, server.getsockname()[1]]))"
        );
        assert_eq!(python(&long, &program).await, json!([null, true, true, null, number]));
        let bound = std::net::TcpListener::bind(("127.0.0.1", number));
        assert!(bound.is_ok(), "the process that asked was the only one that had it");
        assert!(lender.was_asked() && lender.was_asked().eq(&false));
        drop(port);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_for_anything_else_gets_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (lender, port, number) = lending(dir.path()).await;
        lender.was_asked();
        let program = "
def answer(what):
    one = socket.socket(socket.AF_UNIX)
    one.connect(os.environ[port.VARIABLE])
    one.sendall(what)
    try:
        return one.recv(10).decode()
    except ConnectionResetError:
        return ''  # not all of it was read
silent = [socket.socket(socket.AF_UNIX) for _ in range(4)]
[one.connect(os.environ[port.VARIABLE]) for one in silent]
print(json.dumps([answer(what) for what in (b'x\\n', b'-1\\n', b'99999\\n', b'123456789', b'0\\n', b'\\n')]))";
        assert_eq!(python(dir.path(), program).await, json!(vec![""; 6]));
        assert!(lender.was_asked(), "one reports that it would ask");
        assert!(std::net::TcpListener::bind(("127.0.0.1", number)).is_err(), "it is held as before");
        std::fs::remove_file(dir.path().join("port.sock")).unwrap();
        assert!(lender.serve(dir.path().join("port.sock"), &port).await, "what a cleaner removes is there again");
        assert_eq!(python(dir.path(), &format!("print(json.dumps(port.take({number}) is None))")).await, json!(false));
    }
}
