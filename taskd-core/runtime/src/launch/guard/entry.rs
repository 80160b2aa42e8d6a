//! Start of a guard process.
//!
//! A guard is started with a fixed name, the protocol's version as its only argument, and a socket to its owner as
//! standard input. Only these make a process a guard; no environment variable is needed or left set.

use super::engine::{Engine, Kind};
use super::run_dir::WorkerDoor;
use super::sys;
use super::wire::{self, Frames, FromGuard, GuardConfig, PROTOCOL, Refusal, STRANGER_FRAME_BYTES_MAX, ToGuard};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Name (`argv[0]`) of a guard process.
pub(crate) const GUARD_NAME: &str = "taskd-guard";
/// Time limit for the owner's first message to a new guard.
const INIT_WITHIN: Duration = Duration::from_secs(10);

static INIT_WAS_CALLED: AtomicBool = AtomicBool::new(false);

/// Returns true if this program can start itself as a guard.
pub(crate) fn init_was_called() -> bool {
    INIT_WAS_CALLED.load(Ordering::Relaxed)
}

/// Turns this process into a guard if a launcher started it as a guard. A program must call it first in its `main`,
/// before it starts threads or opens files.
///
/// In any other process, this function returns at once. In a guard it never returns: the guard becomes a separate
/// process that is not a child of the supervisor.
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

/// Runs the program `taskd-guard`, which launchers start by its path.
pub fn main() -> ExitCode {
    init();
    eprintln!("{GUARD_NAME} is not started by hand: pass its path to a launcher");
    ExitCode::from(64)
}

fn run() -> io::Result<()> {
    sys::leave_parent()?; // children of the host program do not belong to the guard
    sys::use_one_heap();
    let socket = UnixStream::from(sys::keep_only_stdin()?);
    sys::ignore_terminal_signals();
    let signals = sys::take_signals()?;
    let _ = rustix::process::setsid(); // fails only for a group leader, which a shell has detached already
    let _ = rustix::thread::set_name(c"taskd-guard");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    std::env::set_current_dir("/")?;
    serve(socket, Kind::Process { signals })
}

/// Runs the guard in a thread of this process, for a program without a guard process.
///
/// `door` is the worker socket that the thread shares with its owner, the same process.
pub(crate) fn run_in_thread(socket: UnixStream, door: WorkerDoor) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(GUARD_NAME.into());
    thread.spawn(move || serve(socket, Kind::Thread(door))).map(drop) // a failure closes the socket
}

fn serve(mut socket: UnixStream, kind: Kind) -> io::Result<()> {
    let config = receive_config(&mut socket)?;
    match Engine::new(config, kind) {
        Ok(engine) => engine.run(socket),
        Err(refusal) => socket.write_all(&wire::encode(&FromGuard::Refused(refusal))?),
    }
}

/// Receives the guard's configuration, which is the owner's first message.
fn receive_config(socket: &mut UnixStream) -> io::Result<GuardConfig> {
    socket.set_read_timeout(Some(INIT_WITHIN))?;
    let mut frames = Frames::new(wire::FRAME_BYTES_MAX);
    let mut part = [0; STRANGER_FRAME_BYTES_MAX];
    loop {
        match frames.next_message()? {
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
