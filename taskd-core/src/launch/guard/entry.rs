//! Becoming a guard: the first lines of a guard process.
//!
//! A guard is started with a fixed name, the protocol's version as its only argument, and a socket to its owner as its
//! standard input. Nothing else makes a process a guard, and no environment variable is needed or left behind.

use super::engine::{Engine, Kind};
use super::run_dir::WorkerDoor;
use super::sys;
use super::wire::{self, Frames, FromGuard, GuardConfig, PROTOCOL, Refusal, STRANGER_FRAME_BYTES_MAX, ToGuard};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The name (`argv[0]`) of a guard process.
pub(crate) const GUARD_NAME: &str = "taskd-guard";
/// How long a new guard waits for its owner's first word.
const INIT_WITHIN: Duration = Duration::from_secs(10);

static INIT_WAS_CALLED: AtomicBool = AtomicBool::new(false);

/// Whether this program can start itself as a guard.
pub(crate) fn init_was_called() -> bool {
    INIT_WAS_CALLED.load(Ordering::Relaxed)
}

/// To be called first in a program's `main`, before threads are started or anything is opened.
///
/// It returns at once, unless this process was started by a launcher as its guard: then it becomes the guard, in a
/// process of its own that is nobody's child, and never returns.
pub fn init() {
    INIT_WAS_CALLED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os();
    let is_guard = arguments.next().is_some_and(|name| name == GUARD_NAME)
        && arguments.next().is_some_and(|version| version == PROTOCOL.to_string().as_str())
        && arguments.next().is_none();
    if is_guard {
        std::process::exit(i32::from(run().is_err()));
    }
}

/// All of the program `taskd-guard`, which launchers start by its path.
pub fn main() -> ExitCode {
    init();
    eprintln!("{GUARD_NAME} is started by the launcher that is given its path, never by hand");
    ExitCode::from(64)
}

fn run() -> io::Result<()> {
    sys::leave_parent()?; // the host program's children are its own: none of them is ours
    sys::use_one_heap();
    let socket = UnixStream::from(sys::keep_only_stdin()?);
    sys::ignore_terminal_signals();
    let signals = sys::take_signals()?;
    let _ = rustix::process::setsid(); // fails only for the leader of a group: then a shell has seen to it
    let _ = rustix::thread::set_name(c"taskd-guard");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    std::env::set_current_dir("/")?;
    serve(socket, Kind::Process { signals })
}

/// Does a guard's work in a thread of this process, for a program that has no guard.
///
/// `door` is what the thread and its owner, one process, share.
pub(crate) fn run_in_thread(socket: UnixStream, door: WorkerDoor) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(GUARD_NAME.into());
    thread.spawn(move || serve(socket, Kind::Thread(door))).map(drop) // if it fails, its socket is closed, and that is noticed
}

fn serve(mut socket: UnixStream, kind: Kind) -> io::Result<()> {
    let config = receive_config(&mut socket)?;
    match Engine::new(config, kind) {
        Ok(engine) => engine.run(socket),
        Err(refusal) => socket.write_all(&wire::encode(&FromGuard::Refused(refusal))?),
    }
}

/// The owner's first word.
fn receive_config(socket: &mut UnixStream) -> io::Result<GuardConfig> {
    socket.set_read_timeout(Some(INIT_WITHIN))?;
    let mut frames = Frames::new(wire::FRAME_BYTES_MAX);
    let mut part = [0; STRANGER_FRAME_BYTES_MAX];
    loop {
        match frames.next()? {
            Some(ToGuard::Init(config)) if config.protocol == PROTOCOL => return Ok(*config),
            Some(_) => {
                socket.write_all(&wire::encode(&FromGuard::Refused(Refusal::Protocol(PROTOCOL)))?)?;
                return Err(io::Error::other("not the protocol of this guard"));
            }
            None => match socket.read(&mut part)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => frames.push(&part[..n]),
            },
        }
    }
}
