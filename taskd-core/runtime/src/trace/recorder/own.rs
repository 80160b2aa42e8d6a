//! The recorder of a rank: opens the memory that a launcher prepared for this process.
//!
//! Processes that a rank starts inherit its environment, and may be forked copies of it: no recorder is opened in them.

use super::config::RecorderConfig;
use super::layout::Layout;
use super::writing::Recorder;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Reason why a process has no recorder. The process then trains without recording.
#[derive(Debug)]
pub enum Without {
    /// The process is not meant to have a recorder; contains the reason.
    NotMeant(&'static str),
    /// The recorder could not be opened; contains the error.
    Failed(io::Error),
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Without::NotMeant(why) => f.write_str(why),
            Without::Failed(error) => write!(f, "no recorder: {error}; training continues without it"),
        }
    }
}

impl std::error::Error for Without {}

impl Recorder {
    /// Opens the recorder that the launcher prepared for this process, as set in its environment: `TASKD_LIFELINE` is
    /// the path of the memory, [`RecorderConfig::from_env`] reads the configuration, and `TASKD_HOOKS=0` disables
    /// everything. After an exec, the new program continues the recording of the previous one.
    ///
    /// # Errors
    /// Returns [`Without`] if this process is not meant to have a recorder, or if its recorder cannot be opened.
    pub fn of_this_process(variable: impl Fn(&str) -> Option<String>) -> Result<Recorder, Without> {
        if variable("TASKD_HOOKS").as_deref() == Some("0") {
            return Err(Without::NotMeant("TASKD_HOOKS=0 is set"));
        }
        let Some(path) = variable("TASKD_LIFELINE") else {
            return Err(Without::NotMeant("no launcher has prepared memory for it: TASKD_LIFELINE is not set"));
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

/// Length of the part of the lifeline page that is read here; `worker::page` defines its layout.
const IDENTITY_BYTES: usize = 32;

/// Returns true if the file's lifeline page names this process: a helper of the rank has another pid, and an unrelated
/// process that reuses the pid has another start time.
fn names_this_process(file: &File) -> io::Result<bool> {
    let mut page = [0; IDENTITY_BYTES];
    file.read_exact_at(&mut page, 0)?;
    let [magic, version, pid, start_time] = [(0, 8), (8, 4), (16, 4), (24, 8)].map(|(at, bytes)| &page[at..at + bytes]);
    if magic != b"TASKDPG1" || version != 1u32.to_ne_bytes() {
        return Err(io::Error::other("the file of TASKD_LIFELINE does not begin with a lifeline page of version 1"));
    }
    Ok(pid == std::process::id().to_ne_bytes() && start_time == own_start_time()?.to_ne_bytes())
}

/// Returns the start time of this process: field 22 of its stat. Field 2, a name in parentheses, may contain any
/// character.
fn own_start_time() -> io::Result<u64> {
    let stat = std::fs::read("/proc/self/stat")?;
    let stat = String::from_utf8_lossy(&stat);
    let field = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(22 - 3));
    let unreadable = || io::Error::other("/proc/self/stat does not contain the start time of this process");
    field.and_then(|field| field.parse().ok()).ok_or_else(unreadable)
}
