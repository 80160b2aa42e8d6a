//! A supervisor that is a process of its own, so that it can be killed like any other: this same program, started again
//! with `--supervise`.
//!
//! It knows nothing of the faults to come.

use super::census::MARK;
use super::notes::{Note, Writer};
use clap::Args;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use taskd_core::runtime::{RuntimeHandle, TimestampedEvent};
use tokio::process::{Child, Command};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The file in a job's directory that names what to run.
pub(crate) const ORDER: &str = "order.json";
/// The file with what supervisors print.
pub(crate) const LOG: &str = "supervisor.log";

/// The argument that makes a program a supervisor, before the directory of the job: that of [`Role`].
pub(crate) const SUPERVISE: &str = "--supervise";

/// Options of a program that is its own supervisor.
#[derive(Debug, Args)]
pub(crate) struct Role {
    /// Directory of the job, if the program is the supervisor.
    #[arg(long, hide = true)]
    pub(crate) supervise: Option<PathBuf>,
}

/// Starts a supervisor for the job of `dir`; `mark` is how its processes are found.
pub(crate) fn start(dir: &Path, mark: &str, keep: bool) -> io::Result<Child> {
    let log = fs::File::options().create(true).append(true).open(dir.join(LOG))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(SUPERVISE).arg(dir).env(MARK, mark);
    if keep {
        command.arg("--keep");
    }
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "info");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn()
}

/// In the supervisor: writes down what happens until the runtime is gone.
pub(crate) fn listen(handle: &RuntimeHandle, mut notes: Writer) -> JoinHandle<Writer> {
    let mut events = handle.events();
    tokio::spawn(async move {
        loop {
            let note = match events.recv().await.as_deref() {
                Ok(TimestampedEvent { event, .. }) => Note::of(event),
                Err(RecvError::Lagged(missed)) => Note::Told(format!("{missed} events were missed")),
                Err(RecvError::Closed) => return notes,
            };
            if let Err(error) = notes.add(note) {
                tracing::error!(%error, "a note cannot be written");
            }
        }
    })
}

/// In the supervisor: nothing is to outlive the soak run, which holds the other end of our stdin.
pub(crate) async fn soak_is_gone() -> &'static str {
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::stdin().read(&mut [0]); // end of file or an error: either way the parent is gone
        let _ = end.send(());
    });
    let _ = ended.await;
    "the soak run has ended"
}
