//! Compiles the stand-in, and describes a job of one rank that loads it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::LocalLauncher;
use taskd_examples::program::Failure;
use taskd_hw_ascend::mspti::{AscendLauncher, MsptiProfile};

/// Time limit of each wait for the program.
const WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A job of one rank.
pub(crate) struct Job {
    /// The directory of all its files.
    pub(crate) dir: PathBuf,
    pub(crate) local: Arc<LocalLauncher>,
    pub(crate) launcher: Arc<AscendLauncher<Arc<LocalLauncher>>>,
    pub(crate) is_stand_in: bool,
}

impl Job {
    /// Compiles the stand-in and makes the launchers.
    pub(crate) async fn new(dir: &Path) -> Result<Job, Failure> {
        let profile = MsptiProfile::of(compiled(dir)?)?;
        let is_stand_in = profile.is_stand_in();
        let local = Arc::new(LocalLauncher::builder(dir.join("run")).job_name("ascend").build().await?);
        let launcher = Arc::new(AscendLauncher::new(Arc::clone(&local), Ok(profile)));
        Ok(Job { dir: dir.to_owned(), local, launcher, is_stand_in })
    }

    /// Returns the rank's job: the program with the arguments `words`, and room for `records` records.
    pub(crate) fn spec(&self, words: &[&str], records: usize) -> JobSpec {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_npu_standin.py");
        let dir = self.dir.to_string_lossy();
        let argv = ["python3", "-u", script, "--dir", &dir].into_iter().chain(words.iter().copied());
        let worker = WorkerSpec::new(argv).with_env("TASKD_TRACE_RECORDS", records.to_string());
        let mut spec = JobSpec::new("ascend", 1, worker.with_env("TASKD_TRACE", "off"));
        spec.policy.start_timeout = WITHIN;
        spec
    }

    /// Sends `what` to the program: `go` or `stop`.
    pub(crate) fn send(&self, what: &str) -> Result<(), Failure> {
        Ok(std::fs::File::create(self.dir.join(what)).map(drop)?)
    }

    /// Returns the rest of the last printed line that begins with `word`.
    pub(crate) fn printed(&self, word: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.dir.join("run/procs/rank-0.1/stdout.log")).ok()?;
        let whole = &text[..=text.rfind('\n')?];
        whole.lines().rev().find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()))
    }

    /// Waits until the program has reached `step`; returns the step it is at, and its time in nanoseconds since 1970.
    pub(crate) async fn reach(&self, step: u64) -> Result<(u64, u64), Failure> {
        let latest = || {
            let line = self.printed("step ")?;
            let (number, at) = line.split_once(' ')?;
            Some((number.parse::<u64>().ok()?, at.parse::<u64>().ok()?))
        };
        wait_for(|| latest().filter(|(number, _)| *number >= step)).await
    }
}

/// Returns what `look` finds within the time limit.
pub(crate) async fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        match look() {
            Some(found) => return Ok(found),
            None if begun.elapsed() > WITHIN => {
                return Err(format!("the program did not reach the awaited point within {WITHIN:?}").into());
            }
            None => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Compiles the library, which must have the file name of the vendor's.
fn compiled(dir: &Path) -> Result<PathBuf, Failure> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../taskd-hw-ascend/tests/mspti/standin.c");
    let library = dir.join("libmspti.so");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-o"]).arg(&library).arg(source);
    let output = cc.output().map_err(|error| format!("cc, which compiles the stand-in, cannot be started: {error}"))?;
    match output.status.success() {
        true => Ok(library),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}
