//! A supervisor in a process of its own, so that it can be killed like any other: this same program, started again with
//! `--supervise`.
//!
//! It has no information about the faults to come.

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

/// The file in a job's directory that contains the order.
pub(crate) const ORDER: &str = "order.json";
/// The file with the output of supervisors.
pub(crate) const LOG: &str = "supervisor.log";

/// The argument, followed by the job's directory, that makes a program a supervisor: that of [`Role`].
pub(crate) const SUPERVISE: &str = "--supervise";

/// Options of a program that is its own supervisor.
#[derive(Debug, Args)]
pub(crate) struct Role {
    /// Directory of the job, if the program is the supervisor.
    #[arg(long, hide = true)]
    pub(crate) supervise: Option<PathBuf>,
}

/// Starts a supervisor for the job of `dir`; `mark` identifies its processes.
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

/// Runs in the supervisor: records its events until the runtime has ended.
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

/// Runs in the supervisor: waits for the end of the soak run, which holds the other end of stdin and must not be
/// outlived.
pub(crate) async fn soak_is_gone() -> &'static str {
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::stdin().read(&mut [0]); // end of file or an error: in both cases the parent has ended
        let _ = end.send(());
    });
    let _ = ended.await;
    "the soak run has ended"
}
