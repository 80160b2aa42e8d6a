//! Configuration of a rank: its place in the world from the launcher's environment, the rest from the command line.
//!
//! This module touches no file or socket.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::data::{BATCH_PER_RANK, IMAGES};
use super::error::TrainerError;

/// The largest world. Rank 0 sums all ranks' gradients itself, which is simple but does not scale far.
pub const MAX_WORLD_SIZE: u32 = 64;
/// The longest job id, in bytes.
pub const MAX_JOB_BYTES: usize = 256;
/// The longest wait that a setting may request, in milliseconds: one day.
pub const MAX_WAIT_MS: u64 = 24 * 60 * 60 * 1000;

/// An epoch has at least one step for every world size.
const _: () = assert!(MAX_WORLD_SIZE as usize * BATCH_PER_RANK <= IMAGES);

/// The place of a process in the job. Two processes train together only if they agree on all fields but the rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Id of the job, at most [`MAX_JOB_BYTES`] long.
    pub job: String,
    /// Number of this world: every restart of all ranks is a new generation.
    pub generation: u64,
    /// This process's number, below `world_size`.
    pub rank: u32,
    /// Number of ranks, 1 to [`MAX_WORLD_SIZE`].
    pub world_size: u32,
}

impl Place {
    /// Reads `TASKD_JOB`, `TASKD_GENERATION`, `TASKD_RANK` and `TASKD_WORLD_SIZE`, which the local launcher sets. A job
    /// on several hosts has a different `TASKD_JOB` on each: if `TRAINER_JOB` is set, it is the job's id on all of
    /// them.
    ///
    /// # Errors
    /// [`TrainerError::Environment`] names the variable that is missing or invalid.
    pub fn from_env() -> Result<Self, TrainerError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, TrainerError> {
        let text = |name| {
            let problem = |problem: &str| TrainerError::Environment { name, problem: problem.to_owned() };
            let value = variable(name).ok_or_else(|| problem("is not set"))?;
            value.into_string().map_err(|_| problem("is not valid UTF-8"))
        };
        Ok(Self {
            job: text("TRAINER_JOB").or_else(|_| text("TASKD_JOB"))?,
            generation: number("TASKD_GENERATION", &text("TASKD_GENERATION")?)?,
            rank: number("TASKD_RANK", &text("TASKD_RANK")?)?,
            world_size: number("TASKD_WORLD_SIZE", &text("TASKD_WORLD_SIZE")?)?,
        })
    }
}

fn number<N: FromStr>(name: &'static str, text: &str) -> Result<N, TrainerError> {
    let problem = |_| TrainerError::Environment { name, problem: format!("is {text:?}, which is not a valid number") };
    text.parse().map_err(problem)
}

/// The settings that are the same for all ranks of a job.
///
/// It is a group of command-line options (`#[command(flatten)]`), and [`TrainerSettings::to_args`] is the inverse, so
/// that a supervising program can accept the same options and pass them on to the ranks.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct TrainerSettings {
    /// Steps to train for, 1 or more.
    #[arg(long, default_value_t = 2000)]
    pub steps: u64,
    /// Steps from one checkpoint to the next, 1 or more; the last step always has one.
    #[arg(long, default_value_t = 100)]
    pub checkpoint_every: u64,
    /// Seed of the initial parameters, the order of the data and the noise.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Minimum time of a step, in microseconds; it changes the pace, never the result.
    #[arg(long, default_value_t = 6000)]
    pub step_time_us: u64,
    /// Milliseconds that a rank waits for the others to arrive, 1 or more.
    #[arg(long, default_value_t = 30_000)]
    pub rendezvous_within_ms: u64,
    /// Directory of the checkpoints; only for this job.
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: PathBuf,
    /// Directory of the ranks' rendezvous; only for this job.
    #[arg(long, value_name = "DIR")]
    pub rendezvous_dir: PathBuf,
    /// Directory of `metrics.jsonl` and `result.json`; only for this job.
    #[arg(long, value_name = "DIR")]
    pub out_dir: PathBuf,
}

impl TrainerSettings {
    /// Returns the default settings, with the three directories in `dir`.
    pub fn in_dir(dir: &Path) -> Self {
        Self {
            steps: 2000,
            checkpoint_every: 100,
            seed: 1,
            step_time_us: 6000,
            rendezvous_within_ms: 30_000,
            checkpoint_dir: dir.join("checkpoints"),
            rendezvous_dir: dir.join("rendezvous"),
            out_dir: dir.to_owned(),
        }
    }

    /// Returns the command-line options that give these settings.
    pub fn to_args(&self) -> Vec<OsString> {
        let numbers = [
            ("--steps", self.steps),
            ("--checkpoint-every", self.checkpoint_every),
            ("--seed", self.seed),
            ("--step-time-us", self.step_time_us),
            ("--rendezvous-within-ms", self.rendezvous_within_ms),
        ];
        let directories = [
            ("--checkpoint-dir", &self.checkpoint_dir),
            ("--rendezvous-dir", &self.rendezvous_dir),
            ("--out-dir", &self.out_dir),
        ];
        let numbers = numbers.into_iter().flat_map(|(name, value)| [name.into(), value.to_string().into()]);
        let directories = directories.into_iter().flat_map(|(name, value)| [name.into(), value.into()]);
        numbers.chain(directories).collect()
    }

    /// Returns the path to which rank 0 writes one [`MetricsLine`](super::MetricsLine) per step.
    pub fn metrics_path(&self) -> PathBuf {
        self.out_dir.join("metrics.jsonl")
    }

    /// Returns the path to which rank 0 writes the [`TrainerOutcome`](super::TrainerOutcome).
    pub fn result_path(&self) -> PathBuf {
        self.out_dir.join("result.json")
    }

    pub(super) fn step_time(&self) -> Duration {
        Duration::from_micros(self.step_time_us)
    }

    pub(super) fn rendezvous_within(&self) -> Duration {
        Duration::from_millis(self.rendezvous_within_ms)
    }
}

/// Place and settings of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainerConfig {
    /// The place of this rank.
    pub place: Place,
    /// The settings of the job.
    pub settings: TrainerSettings,
}

impl TrainerConfig {
    /// Returns the configuration of a rank whose place comes from the launcher's environment: see [`Place::from_env`].
    ///
    /// # Errors
    /// Those of [`Place::from_env`]. Ranges are checked when training starts.
    pub fn from_env(settings: TrainerSettings) -> Result<Self, TrainerError> {
        Ok(Self { place: Place::from_env()?, settings })
    }

    /// Checks the range of every number; the error names the first one that is out of range.
    pub(super) fn check(&self) -> Result<(), TrainerError> {
        let Self { place, settings } = self;
        let world_size = u64::from(place.world_size);
        let ranges = [
            ("the length of the job id in bytes", place.job.len() as u64, 1, MAX_JOB_BYTES as u64),
            ("the world size", world_size, 1, u64::from(MAX_WORLD_SIZE)),
            ("the rank", u64::from(place.rank), 0, world_size.saturating_sub(1)),
            ("the number of steps", settings.steps, 1, u64::MAX),
            ("the number of steps between checkpoints", settings.checkpoint_every, 1, u64::MAX),
            ("the rendezvous bound in ms", settings.rendezvous_within_ms, 1, MAX_WAIT_MS),
            ("the step time in us", settings.step_time_us, 0, MAX_WAIT_MS * 1000),
        ];
        for (name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(TrainerError::Setting { name, value, least, most });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        settings: TrainerSettings,
    }

    fn parse(args: impl IntoIterator<Item = OsString>) -> TrainerSettings {
        Program::try_parse_from([OsString::from("program")].into_iter().chain(args)).unwrap().settings
    }

    #[test]
    fn settings_survive_the_command_line() {
        let mut settings = TrainerSettings::in_dir(Path::new("/tmp/a dir"));
        settings.steps = 7;
        settings.checkpoint_every = 3;
        settings.seed = u64::MAX;
        settings.step_time_us = 0;
        settings.rendezvous_within_ms = 11;
        assert_eq!(parse(settings.to_args()), settings);
    }

    #[test]
    fn the_defaults_of_the_command_line_are_those_of_the_library() {
        let settings = TrainerSettings::in_dir(Path::new("/run/job"));
        let directories = settings.to_args().into_iter().skip_while(|arg| arg != "--checkpoint-dir");
        assert_eq!(parse(directories), settings);
    }

    fn place_from(variables: &[(&str, &str)]) -> Result<Place, TrainerError> {
        Place::from_variables(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_place_comes_from_the_environment() {
        let complete = [("TASKD_JOB", "j"), ("TASKD_GENERATION", "5"), ("TASKD_RANK", "2"), ("TASKD_WORLD_SIZE", "4")];
        let expected = Place { job: "j".into(), generation: 5, rank: 2, world_size: 4 };
        assert_eq!(place_from(&complete).unwrap(), expected);

        for missing in 0..complete.len() {
            let mut variables = complete.to_vec();
            let (name, _) = variables.remove(missing);
            let error = place_from(&variables).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("is not set"), "{error}");
        }
        let mut negative = complete;
        negative[2].1 = "-1";
        let error = place_from(&negative).unwrap_err().to_string();
        assert!(error.contains("TASKD_RANK") && error.contains("\"-1\""), "{error}");
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        let place = Place { job: "j".into(), generation: 0, rank: 0, world_size: 4 };
        let sound = TrainerConfig { place, settings: TrainerSettings::in_dir(Path::new("/run/job")) };
        sound.check().unwrap();

        type Break = fn(&mut TrainerConfig);
        let broken: [(&str, Break); 7] = [
            ("job id", |config| config.place.job.clear()),
            ("world size", |config| config.place.world_size = 65),
            ("rank", |config| config.place.rank = 4),
            ("steps", |config| config.settings.steps = 0),
            ("between checkpoints", |config| config.settings.checkpoint_every = 0),
            ("rendezvous bound", |config| config.settings.rendezvous_within_ms = 0),
            ("step time", |config| config.settings.step_time_us = u64::MAX),
        ];
        for (named, break_it) in broken {
            let mut config = sound.clone();
            break_it(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
