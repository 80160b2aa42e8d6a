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

/// Selects the program that runs as the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreProgram {
    /// The program that runs now, started a second time as the store. Its `main` must call [`init`] first.
    #[default]
    ReexecSelf,
    /// The `taskd-store` binary at this path.
    Path(PathBuf),
}

impl StoreProgram {
    /// Returns the command line (`argv`) that starts the store as a service.
    ///
    /// With `control`, the store creates its control socket at that path. Without it, the process that starts the store
    /// passes it a listening Unix socket, and the number of its descriptor in the environment variable
    /// `TASKD_LISTEN_FD`, as a taskd guard does.
    ///
    /// # Errors
    /// The path of this program is unknown, or a path is not UTF-8.
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
    /// The store's limits are inconsistent or too small.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// There is no control socket, so the store could not receive any call.
    #[error(
        "no control socket: pass one, with its descriptor's number in {}, or name its path with --control",
        inherited::VARIABLE
    )]
    NoControl,
    /// The descriptor that was passed to the store is not a control socket.
    #[error("descriptor {number} was passed as the control socket, and cannot be used: {source}")]
    Inherited {
        /// The number of the descriptor.
        number: i32,
        /// The error that shows that the descriptor cannot be used.
        source: io::Error,
    },
    /// The store's control socket cannot be created.
    #[error("the control socket {} cannot be created: {source}", .path.display())]
    Bind {
        /// The path of the control socket.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A system call that the store needs has failed.
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

/// Runs the store if this process was started as the store. Call it first in a program's `main`, before the program
/// starts threads or opens anything.
///
/// It returns at once, unless this process was started with the command of [`StoreProgram::ReexecSelf`]: then the
/// process is the store, and the call never returns.
pub fn init() {
    INIT_WAS_CALLED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == BECOME) {
        std::process::exit(run_or_say(arguments));
    }
}

/// The main function of the program `taskd-store`.
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
