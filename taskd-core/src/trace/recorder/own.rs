//! The recorder of a rank: it opens the memory that a launcher has laid out for this very process.
//!
//! A process that a rank has started inherits its environment, and may even be a copy of it: nothing is opened there.

use super::config::RecorderConfig;
use super::layout::Layout;
use super::writing::Recorder;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Why a process goes without a recorder. Training goes on.
#[derive(Debug)]
pub enum Without {
    /// It is not to have one, and why.
    NotMeant(&'static str),
    /// It was to have one, and this came in between.
    Failed(io::Error),
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Without::NotMeant(why) => f.write_str(why),
            Without::Failed(error) => write!(f, "no recorder: {error}; training goes on without"),
        }
    }
}

impl std::error::Error for Without {}

impl Recorder {
    /// Begins to record into the memory that the launcher has laid out for this process, by the process's environment:
    /// `TASKD_LIFELINE` names it, [`RecorderConfig::from_env`] says how it is used, and `TASKD_HOOKS=0` turns everything off.
    /// A program into which the process has turned itself by exec goes on where the one before has left off.
    ///
    /// # Errors
    /// [`Without`], when this process is not to record, or when it cannot.
    pub fn of_this_process(variable: impl Fn(&str) -> Option<String>) -> Result<Recorder, Without> {
        if variable("TASKD_HOOKS").as_deref() == Some("0") {
            return Err(Without::NotMeant("TASKD_HOOKS=0 is set"));
        }
        let Some(path) = variable("TASKD_LIFELINE") else {
            return Err(Without::NotMeant("no launcher has laid out memory for it: TASKD_LIFELINE is not set"));
        };
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
            Without::Failed(io::Error::new(error.kind(), format!("{path}, which TASKD_LIFELINE names: {error}")))
        })?;
        match names_this_process(&file) {
            Ok(true) => open(file, RecorderConfig::from_env(variable)).map_err(Without::Failed),
            Ok(false) => Err(Without::NotMeant("it is not the rank, but a process that the rank has started")),
            Err(error) => Err(Without::Failed(error)),
        }
    }
}

fn open(file: File, config: RecorderConfig) -> io::Result<Recorder> {
    match Layout::adopt(file.try_clone()?)? {
        Some(layout) => Recorder::over(layout),
        None => Recorder::create(file, config),
    }
}

/// Length of the part of the lifeline page that is of interest here; `worker::page` lays it out.
const IDENTITY_BYTES: usize = 32;

/// Whether the file's lifeline page is about this process: a helper of the rank has another pid, a stranger with its pid
/// another start time.
fn names_this_process(file: &File) -> io::Result<bool> {
    let mut page = [0; IDENTITY_BYTES];
    file.read_exact_at(&mut page, 0)?;
    let [magic, version, pid, start_time] = [(0, 8), (8, 4), (16, 4), (24, 8)].map(|(at, bytes)| &page[at..at + bytes]);
    if magic != b"TASKDPG1" || version != 1u32.to_ne_bytes() {
        return Err(io::Error::other("what TASKD_LIFELINE names does not begin with a lifeline page of version 1"));
    }
    Ok(pid == std::process::id().to_ne_bytes() && start_time == own_start_time()?.to_ne_bytes())
}

/// When this process was started: field 22 of its stat, where the second, a name in parentheses, may hold anything.
fn own_start_time() -> io::Result<u64> {
    let stat = std::fs::read("/proc/self/stat")?;
    let stat = String::from_utf8_lossy(&stat);
    let field = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(22 - 3));
    let unreadable = || io::Error::other("/proc/self/stat does not say when this process was started");
    field.and_then(|field| field.parse().ok()).ok_or_else(unreadable)
}
