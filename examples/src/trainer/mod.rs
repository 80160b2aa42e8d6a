//! A small data-parallel training program, for the examples to supervise.
//!
//! It is an ordinary training program in miniature: real data (the handwritten digits of the UCI repository), a small
//! network, gradients averaged over all ranks at every step, checkpoints, and a restart that resumes from the newest
//! one. One process is one rank. It is deterministic to the bit: the same seed and world size give the same state and
//! loss, whatever the timing and however often the job is killed and restarted. That makes it a yardstick for recovery.
//!
//! It never monitors other ranks and never restarts anything. When a rank dies, the others end with
//! [`TrainerError::PeerLost`], as a training job does when its collective fails; the supervisor does the rest.
//!
//! # How to read it
//!
//! Start at [`run`], below. The other files, from the mathematics to the outside world:
//!
//! | file | its one job |
//! |---|---|
//! | `data.rs` | the images, and which rank sees which of them when |
//! | `model.rs` | the network: loss and gradient |
//! | `state.rs` | what training changes: parameters, momentum, random numbers |
//! | `allreduce.rs` | what all ranks do together |
//! | `rendezvous.rs` | how the ranks of a generation find each other |
//! | `wire.rs` | sockets: waiting, sending, receiving |
//! | `checkpoint.rs` | states on disk |
//! | `metrics.rs` | lines and results for observers |
//! | `durable.rs` | files that are whole or not there |
//! | `config.rs`, `error.rs`, `notes.rs`, `clock.rs`, `rng.rs` | settings, errors, stderr, time, random numbers |

mod allreduce;
mod checkpoint;
mod clock;
mod config;
mod data;
mod durable;
mod error;
mod metrics;
mod model;
mod notes;
mod recorder;
mod rendezvous;
mod rng;
mod state;
mod wire;

use std::io;
use std::process::ExitCode;
use std::time::Instant;

pub use config::{MAX_JOB_BYTES, MAX_WAIT_MS, MAX_WORLD_SIZE, Place, TrainerConfig, TrainerSettings};
pub use error::TrainerError;
pub use metrics::{MetricsLine, TrainerOutcome, read_metrics};

use allreduce::Group;
use checkpoint::Origin;
use data::Digits;
use model::PARAMETERS;
use recorder::Recorder;
use state::TrainState;

/// Trains as the rank of `config`, from the newest checkpoint to the last step.
///
/// Calls `on_step` after each completed step with the number of steps completed since the beginning of the job; a
/// resumed run begins above 1. Blocks until training is done, a peer is lost, or an operation fails that training
/// needs. While a peer is frozen it waits.
///
/// # Errors
/// See [`TrainerError`]. After an error nothing needs to be cleaned up: all ranks can be restarted in a new generation.
pub fn run(config: &TrainerConfig, mut on_step: impl FnMut(u64)) -> Result<TrainerOutcome, TrainerError> {
    config.check()?;
    let digits = Digits::load();
    let mut group = rendezvous::meet(config)?;
    // Only rank 0 writes checkpoints and metrics; the other ranks use no files from here on.
    let mut recorder = if config.place.rank == 0 { Some(Recorder::open(config)?) } else { None };
    let mut state = starting_state(config, &mut group, recorder.as_ref())?;

    while state.step < config.settings.steps {
        let started = Instant::now();
        let loss = train_step(config, &digits, &mut group, &mut state)?;
        if let Some(recorder) = &mut recorder {
            recorder.step_done(&state, loss);
        }
        on_step(state.step);
        clock::pause_until(started, config.settings.step_time());
    }

    let digest = state.digest();
    group.agree(digest)?;
    let evaluation = model::evaluate(&state.parameters, &digits);
    let outcome = TrainerOutcome {
        job: config.place.job.clone(),
        generation: config.place.generation,
        world_size: config.place.world_size,
        step: state.step,
        loss: evaluation.loss,
        accuracy: evaluation.accuracy,
        state_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        setbacks: recorder.as_ref().map_or(0, Recorder::setbacks),
    };
    if let Some(recorder) = recorder {
        recorder.finish(&outcome)?;
    }
    Ok(outcome)
}

/// Runs a rank's process: [`run`] with the place from the environment. Returns exit code 0 when training is done, and
/// 1, with one sentence on stderr, when it failed.
pub fn run_as_process(settings: TrainerSettings, on_step: impl FnMut(u64)) -> ExitCode {
    let config = match TrainerConfig::from_env(settings) {
        Ok(config) => config,
        Err(error) => {
            notes::say_error(None, &error);
            return ExitCode::FAILURE;
        }
    };
    match run(&config, on_step) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            notes::say_error(Some(config.place.rank), &error);
            ExitCode::FAILURE
        }
    }
}

/// Returns the state to start from, the same on all ranks: rank 0 loads it and sends it to the others, so that it does
/// not matter what each of them would find on disk.
fn starting_state(
    config: &TrainerConfig,
    group: &mut Group,
    recorder: Option<&Recorder>,
) -> Result<TrainState, TrainerError> {
    let mut bytes = vec![0; checkpoint::ENCODED];
    if let Some(recorder) = recorder {
        bytes = checkpoint::encode(Origin::of(config), &recorder.starting_state()?);
    }
    group.broadcast(&mut bytes)?;
    let unusable = TrainerError::io("use the state that rank 0 sent");
    let (_, state) = checkpoint::decode(&bytes).map_err(|reason| unusable(io::Error::other(reason)))?;
    Ok(state)
}

/// One step of data-parallel training. Returns the mean loss over the batches of all ranks.
fn train_step(
    config: &TrainerConfig,
    digits: &Digits,
    group: &mut Group,
    state: &mut TrainState,
) -> Result<f32, TrainerError> {
    // The loss is appended to the gradient, which saves a second collective.
    let mut gradient_and_loss = vec![0.0; PARAMETERS + 1];
    let (gradient, loss) = gradient_and_loss.split_at_mut(PARAMETERS);
    loss[0] = state.local_gradient(digits, config.settings.seed, &config.place, gradient);
    group.all_reduce_mean(&mut gradient_and_loss)?;
    let (gradient, loss) = gradient_and_loss.split_at(PARAMETERS);
    state.apply(gradient);
    Ok(loss[0])
}
