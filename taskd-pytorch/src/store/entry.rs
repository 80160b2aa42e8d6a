//! Becoming a store: how its process is started, what it is told, and its main loop.
//!
//! It serves nothing until a call at its control socket asks for it, prints why it cannot start and which bounds it reaches, and ends by SIGTERM.

use super::control::Controllers;
use super::inherited;
use super::limits::{Limits, LimitsError, NotALimit};
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

/// The first argument of a process that is to become a store, with the version of what follows it.
pub(crate) const BECOME: &str = "taskd-store/1";

static INIT_WAS_CALLED: AtomicBool = AtomicBool::new(false);

/// Whether this program can be its own store.
pub(crate) fn init_was_called() -> bool {
    INIT_WAS_CALLED.load(Ordering::Relaxed)
}

/// The name of the inherited control socket in `LISTEN_FDNAMES`.
pub const CONTROL_NAME: &str = "taskd-store-control";
/// Longest path of a socket, in bytes: `sun_path` without its end.
const PATH_BYTES_MAX: usize = 107;

/// Which program is the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreProgram {
    /// This program itself, whose `main` first calls [`init`].
    #[default]
    ReexecSelf,
    /// The `taskd-store` binary at this path.
    Path(PathBuf),
}

impl StoreProgram {
    /// The command line of a store: the `argv` of its service.
    ///
    /// With `control` it makes its control socket there. Without, whoever starts it passes a Unix socket that listens:
    /// `LISTEN_FDS=1` and `LISTEN_FDNAMES=`[`CONTROL_NAME`] in its environment, the socket as descriptor 3.
    ///
    /// # Errors
    /// The path of this program is not known, or a path is not UTF-8.
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

/// Why a store cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its command line.
    #[error("{what}\nusage: taskd-store [--control PATH] [--limit NAME=NUMBER]...")]
    Usage {
        /// What is wrong with it.
        what: String,
    },
    /// A limit of its command line.
    #[error(transparent)]
    NotALimit(#[from] NotALimit),
    /// Limits that cannot be kept.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Nobody could tell it anything.
    #[error(
        "no control socket: pass one (LISTEN_FDS=1, LISTEN_FDNAMES={CONTROL_NAME}), or name its path with --control"
    )]
    NoControl,
    /// What it was passed is no control socket.
    #[error("descriptor {number} was passed as the control socket, and cannot be used: {source}")]
    Inherited {
        /// Its number.
        number: i32,
        /// Why not.
        source: io::Error,
    },
    /// Its socket cannot be made.
    #[error("the control socket {} cannot be made: {source}", .path.display())]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system refuses.
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

/// To be called first in a program's `main`, before threads are started or anything is opened.
///
/// It returns at once, unless this process was started with the command of [`StoreProgram::ReexecSelf`]: then it is the
/// store, and never returns.
pub fn init() {
    INIT_WAS_CALLED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == BECOME) {
        std::process::exit(run_or_say(arguments));
    }
}

/// All of the program `taskd-store`.
pub fn main() -> ExitCode {
    init();
    let code = run_or_say(std::env::args_os().skip(1));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Comes back only if it cannot go on; the exit code, after its reason was printed.
fn run_or_say(arguments: impl Iterator<Item = OsString>) -> i32 {
    let Err(error) = run(arguments);
    eprintln!("taskd-store: {error}");
    if matches!(error, StartError::Usage { .. } | StartError::NotALimit(_) | StartError::Limits(_)) { 64 } else { 1 }
}

fn run(arguments: impl Iterator<Item = OsString>) -> Result<std::convert::Infallible, StartError> {
    // First, while nothing else can have the number that it is passed by.
    let variable = |name: &str| std::env::var(name).ok();
    let passed = inherited::descriptor(variable, std::process::id(), CONTROL_NAME);
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
    let _ = rustix::thread::set_name(c"taskd-store"); // for those who look: nothing depends on it
    let mut reached = BTreeSet::new();
    loop {
        server.turn(None)?;
        for bound in server.new_bounds(&mut reached) {
            let action = bound.action();
            eprintln!(
                "taskd-store: at a bound, {bound}: {action} (store::Limits names it; it is counted, and not said again)"
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
            _ => return Err(StartError::Usage { what: format!("{} is no option", name.display()) }),
        }
    }
    Ok((control, limits))
}

/// Makes the control socket, for this user alone; takes over from a dead store, never from a living one.
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
            return Err(io::Error::other("something else is there: choose another path, or remove it"));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return Err(io::Error::other("another process serves it: stop that one, or choose another path")),
            Err(_) => std::fs::remove_file(path)?,
        },
    }
    // The mask holds from the first moment on; this process has one thread.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}

/// Every client is an open file: as many as this process may have. With fewer, `Bound::OpenFiles` is counted.
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
        assert!(bind(&file).unwrap_err().to_string().contains("something else is there"));
        let long = dir.path().join("x".repeat(200));
        assert!(bind(&long).unwrap_err().to_string().contains("choose a shorter one"));
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_said() {
        let said = |words: &[&str]| options(words.iter().map(OsString::from)).unwrap_err().to_string();
        assert!(said(&["--contrl"]).starts_with("--contrl is no option\nusage:"));
        assert!(said(&["--control"]).starts_with("--control needs a value\n"));
        assert!(said(&["--limit", "kays=1"]).contains("kays=1"));
        let (control, limits) =
            options(["--control", "/x", "--limit", "keys=3"].map(OsString::from).into_iter()).unwrap();
        assert_eq!((control, limits.keys), (Some(PathBuf::from("/x")), 3));
    }
}
