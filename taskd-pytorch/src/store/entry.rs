//! The store as a process: how it is started, its options, and its main loop.
//!
//! It serves nothing until a call on its control socket requests it, prints why it cannot start and which bounds it
//! reaches, and ends on SIGTERM.

use super::control::Controllers;
use super::inherited;
use super::limits::{Limits, LimitsError, ParseLimitError};
use super::server::{NewError, Server};
use rustix::fs::Mode;
use rustix::process::Resource;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// First argument of a process that is to become a store; it contains the version of the arguments that follow.
pub(crate) const BECOME: &str = "taskd-store/1";

static INIT_WAS_CALLED: AtomicBool = AtomicBool::new(false);

/// Returns true if this program can be its own store, that is, if it has called `init`.
pub(crate) fn init_was_called() -> bool {
    INIT_WAS_CALLED.load(Ordering::Relaxed)
}

/// Maximum length of a socket's path, in bytes: `sun_path` without its terminator.
const PATH_BYTES_MAX: usize = 107;

/// The program that runs as the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreProgram {
    /// The calling program itself, started a second time as the store. Its `main` must call [`init`] first.
    #[default]
    ReexecSelf,
    /// The `taskd-store` binary at this path.
    Path(PathBuf),
}

impl StoreProgram {
    /// Returns the command line (`argv`) that starts the store as a service.
    ///
    /// If `control` is a path, the store creates its control socket there. If it is `None`, the process that starts the
    /// store passes a listening Unix socket to the store, and sets the environment variable `TASKD_LISTEN_FD` to the
    /// number of the socket's file descriptor, as a taskd guard does.
    ///
    /// # Errors
    /// Returns an error if the path of the calling program is unknown, or if the path of the program or of the control
    /// socket is not UTF-8.
    pub fn command(&self, control: Option<&Path>) -> io::Result<Vec<String>> {
        let text = |path: &Path| {
            let refused = || io::Error::other(format!("the path {} is not UTF-8: choose another", path.display()));
            path.to_str().map(str::to_owned).ok_or_else(refused)
        };
        let mut command = match self {
            StoreProgram::ReexecSelf => vec![text(&std::env::current_exe()?)?, BECOME.to_owned()],
            StoreProgram::Path(path) => vec![text(path)?],
        };
        if let Some(path) = control {
            command.extend(["--control".to_owned(), text(path)?]);
        }
        Ok(command)
    }
}

/// Reasons why a store cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The command line of the store is invalid.
    #[error("{what}\nusage: taskd-store [--control PATH] [--limit NAME=NUMBER]...")]
    Usage {
        /// The problem with the command line.
        what: String,
    },
    /// A limit on the store's command line has an unknown name or an invalid value.
    #[error(transparent)]
    NotALimit(#[from] ParseLimitError),
    /// One of the store's limits is too small, by itself or in proportion to another limit.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The store was started with neither `--control` nor a passed descriptor: without a control socket it could not
    /// receive calls.
    #[error(
        "no control socket: pass one, with its descriptor's number in {}, or name its path with --control",
        inherited::VARIABLE
    )]
    NoControl,
    /// The file descriptor that was passed to the store is not open, or is not a listening Unix socket.
    #[error("descriptor {number} was passed as the control socket, and cannot be used: {source}")]
    Inherited {
        /// The number of the file descriptor.
        number: i32,
        /// The reason why the file descriptor cannot be used.
        source: io::Error,
    },
    /// The store's control socket cannot be created.
    #[error("the control socket {} cannot be created: {source}", .path.display())]
    Bind {
        /// The path of the control socket.
        path: PathBuf,
        /// The reason why the socket cannot be created.
        source: io::Error,
    },
    /// Waiting for events failed in the operating system (epoll).
    #[error("the store cannot wait for clients: {0}")]
    System(#[from] io::Error),
}

impl From<NewError> for StartError {
    fn from(error: NewError) -> StartError {
        match error {
            NewError::Limits(error) => error.into(),
            NewError::System(error) => error.into(),
        }
    }
}

/// Runs the store if this process was started as the store. Call this function first in a program's `main`, before the
/// program starts threads or opens files.
///
/// If this process was started with the command of [`StoreProgram::ReexecSelf`], the process runs as the store and the
/// call never returns. Otherwise the call returns at once.
pub fn init() {
    INIT_WAS_CALLED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == BECOME) {
        std::process::exit(run_or_say(arguments));
    }
}

/// Runs the program `taskd-store`: serves until the process is killed. Returns an exit code if the store cannot start
/// or continue: 64 for a wrong command line or limit, otherwise 1.
pub fn main() -> ExitCode {
    init();
    let code = run_or_say(std::env::args_os().skip(1));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Runs the store. It returns only if the store cannot continue: prints the reason and returns the exit code.
fn run_or_say(arguments: impl Iterator<Item = OsString>) -> i32 {
    let Err(error) = run(arguments);
    eprintln!("taskd-store: {error}");
    if matches!(error, StartError::Usage { .. } | StartError::NotALimit(_) | StartError::Limits(_)) { 64 } else { 1 }
}

fn run(arguments: impl Iterator<Item = OsString>) -> Result<std::convert::Infallible, StartError> {
    // First, while no other descriptor can have the passed number.
    let passed = inherited::descriptor(std::env::var(inherited::VARIABLE).ok().as_deref());
    let passed =
        passed.map(|number| inherited::adopt(number).map_err(|source| StartError::Inherited { number, source }));
    let (control, limits) = options(arguments)?;
    let mut server = Server::checked(limits)?;
    let listener = match (passed, control) {
        (Some(passed), _) => passed?,
        (None, Some(path)) => bind(&path).map_err(|source| StartError::Bind { path, source })?,
        (None, None) => return Err(StartError::NoControl),
    };
    let mut controllers = Controllers::new(listener, &server)?;
    raise_open_files();
    let _ = rustix::thread::set_name(c"taskd-store"); // for diagnosis only: nothing depends on it
    let mut reached = BTreeSet::new();
    loop {
        server.turn(None)?;
        for bound in server.new_bounds(&mut reached) {
            let action = bound.action();
            eprintln!(
                "taskd-store: a bound is reached, {bound}: {action} (see store::Limits; further cases are only counted)"
            );
        }
        for number in server.take_outside() {
            controllers.ready(number, &mut server);
        }
    }
}

fn options(mut arguments: impl Iterator<Item = OsString>) -> Result<(Option<PathBuf>, Limits), StartError> {
    let (mut control, mut limits) = (None, Limits::default());
    while let Some(name) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| StartError::Usage { what: format!("{} needs a value", name.display()) });
        match name.to_str() {
            Some("--control") => control = Some(PathBuf::from(value()?)),
            Some("--limit") => limits.set(&value()?.to_string_lossy())?,
            _ => return Err(StartError::Usage { what: format!("{} is not an option", name.display()) }),
        }
    }
    Ok((control, limits))
}

/// Creates the store's control socket, for this user alone; it replaces the socket of a dead store, never of a live
/// one.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let bytes = path.as_os_str().len();
    if bytes > PATH_BYTES_MAX {
        return Err(io::Error::other(format!(
            "its path has {bytes} bytes, and the system takes {PATH_BYTES_MAX}: choose a shorter one"
        )));
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (),
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::other(
                "a file that is not a socket is there: choose another path, or remove the file",
            ));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => {
                return Err(io::Error::other("another process serves it: stop that process, or choose another path"));
            }
            Err(_) => std::fs::remove_file(path)?,
        },
    }
    // The mask applies from the socket's creation on; this process has one thread.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}

/// Raises this process's limit of open files to the maximum, since every client is one. If that is too low,
/// `Bound::OpenFiles` is counted.
fn raise_open_files() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_socket_is_for_its_user_and_taken_over_only_from_the_dead() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let listener = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(bind(&path).unwrap_err().to_string().contains("another process serves it"));
        drop(listener);
        bind(&path).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(bind(&file).unwrap_err().to_string().contains("a file that is not a socket is there"));
        let long = dir.path().join("x".repeat(200));
        assert!(bind(&long).unwrap_err().to_string().contains("choose a shorter one"));
    }

    #[test]
    fn invalid_command_line_is_refused_with_the_reason() {
        let message_of = |words: &[&str]| options(words.iter().map(OsString::from)).unwrap_err().to_string();
        assert!(message_of(&["--contrl"]).starts_with("--contrl is not an option\nusage:"));
        assert!(message_of(&["--control"]).starts_with("--control needs a value\n"));
        assert!(message_of(&["--limit", "kays=1"]).contains("kays=1"));
        let (control, limits) =
            options(["--control", "/x", "--limit", "keys=3"].map(OsString::from).into_iter()).unwrap();
        assert_eq!((control, limits.keys), (Some(PathBuf::from("/x")), 3));
    }
}
