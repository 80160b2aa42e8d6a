//! Rank 0's output: checkpoints, metrics and the result.
//!
//! A full or broken disk never stops training here; only a result that cannot be written is an error, since training
//! would then have no result.

use std::io;
use std::path::Path;

use super::checkpoint::{CheckpointStore, Unusable};
use super::clock::monotonic_ms;
use super::config::TrainerConfig;
use super::durable;
use super::error::TrainerError;
use super::metrics::{MetricsLine, MetricsLog, TrainerOutcome};
use super::notes::{Setbacks, say};
use super::state::TrainState;

#[derive(Debug)]
pub(super) struct Recorder {
    config: TrainerConfig,
    checkpoints: CheckpointStore,
    /// `None` if the file could not be opened.
    metrics: Option<MetricsLog>,
    setbacks: Setbacks,
}

impl Recorder {
    pub(super) fn open(config: &TrainerConfig) -> Result<Self, TrainerError> {
        let checkpoints = CheckpointStore::open(config)?;
        durable::prepare(&config.settings.out_dir)?;
        let mut setbacks = Setbacks::default();
        let path = config.settings.metrics_path();
        let metrics = MetricsLog::open(path.clone()).inspect_err(|error| setbacks.note("open", &path, error)).ok();
        Ok(Self { config: config.clone(), checkpoints, metrics, setbacks })
    }

    /// Returns the state of the newest sound checkpoint, or an initial one.
    pub(super) fn starting_state(&self) -> Result<TrainState, TrainerError> {
        let settings = &self.config.settings;
        let passed_over = |path: &Path, reason: &Unusable| {
            say(0, format_args!("checkpoint {} is skipped: {reason}", path.display()));
        };
        match self.checkpoints.newest(settings.steps, passed_over)? {
            Some((path, state)) => {
                say(0, format_args!("continuing from {}", path.display()));
                Ok(state)
            }
            None => Ok(TrainState::fresh(settings.seed)),
        }
    }

    /// Records a completed step, and saves the state if a checkpoint is due.
    pub(super) fn step_done(&mut self, state: &TrainState, loss: f32) {
        let settings = &self.config.settings;
        if let Some(metrics) = &mut self.metrics {
            let generation = self.config.place.generation;
            let line = MetricsLine { step: state.step, loss, t_ms: monotonic_ms(), generation };
            metrics.append(&line, &mut self.setbacks);
        }
        if state.step.is_multiple_of(settings.checkpoint_every) || state.step == settings.steps {
            self.save(state);
        }
    }

    fn save(&mut self, state: &TrainState) {
        let (checkpoints, setbacks) = (&self.checkpoints, &mut self.setbacks);
        match checkpoints.save(state) {
            Err(error) => setbacks.note("write checkpoint", &checkpoints.path_of(state.step), &error),
            Ok(()) => {
                if let Err(error) = checkpoints.delete_old(state.step) {
                    setbacks.note("delete old checkpoints in", &self.config.settings.checkpoint_dir, &error);
                }
            }
        }
    }

    /// Returns the number of failures that training has survived.
    pub(super) fn setbacks(&self) -> u64 {
        self.setbacks.total()
    }

    /// Writes the result.
    pub(super) fn finish(self, outcome: &TrainerOutcome) -> Result<(), TrainerError> {
        let path = self.config.settings.result_path();
        let written = serde_json::to_vec_pretty(outcome)
            .map_err(io::Error::from)
            .and_then(|json| durable::write(&path, self.config.place.generation, &json));
        written.map_err(TrainerError::io(format!("write the result {}", path.display())))
    }
}
