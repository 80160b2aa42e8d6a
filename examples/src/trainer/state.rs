//! The training state, and the step that changes it.
//!
//! Every rank holds the same state to the bit. This module uses no files or sockets.

use sha2::{Digest, Sha256};

use super::config::Place;
use super::data::{self, BATCH_PER_RANK, Digits};
use super::model::{self, PARAMETERS};
use super::rng::Rng;

const LEARNING_RATE: f32 = 0.05;
const MOMENTUM: f32 = 0.9;
/// Largest noise that training adds to a pixel, on the scale of 0.0 (white) to 1.0 (black).
const PIXEL_NOISE: f32 = 0.05;
/// Separates the noise of the ranks from every other use of a seed.
const NOISE: u64 = 2;

/// The content of a checkpoint: with it, the same seed and the same world size, training continues as if undisturbed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TrainState {
    /// Completed steps.
    pub(super) step: u64,
    pub(super) parameters: Vec<f32>,
    pub(super) momentum: Vec<f32>,
    /// Advances by one number per step, the same on all ranks; each rank derives its noise from that number.
    pub(super) rng: Rng,
}

impl TrainState {
    /// Returns the state before the first step.
    pub(super) fn fresh(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let parameters = model::initial_parameters(&mut rng);
        Self { step: 0, parameters, momentum: vec![0.0; PARAMETERS], rng }
    }

    /// Does this rank's part of a step: adds the mean gradient of its batch to `gradient`, which starts at zero, and
    /// returns the mean loss. Advances the random number generator, and changes nothing else.
    pub(super) fn local_gradient(&mut self, digits: &Digits, seed: u64, place: &Place, gradient: &mut [f32]) -> f32 {
        let mut noise = Rng::for_purpose(self.rng.next_u64(), NOISE, u64::from(place.rank));
        let mut loss = 0.0;
        for index in data::batch(seed, self.step, place) {
            let (image, label) = digits.sample(index);
            let noisy = image.map(|pixel| pixel + PIXEL_NOISE * noise.symmetric_f32());
            loss += model::add_gradient(&self.parameters, &noisy, label, gradient);
        }
        for sum in gradient {
            *sum /= BATCH_PER_RANK as f32;
        }
        loss / BATCH_PER_RANK as f32
    }

    /// Does the rest of the step, the same on all ranks: stochastic gradient descent with momentum, on the world's mean
    /// gradient.
    pub(super) fn apply(&mut self, gradient: &[f32]) {
        for ((parameter, momentum), slope) in self.parameters.iter_mut().zip(&mut self.momentum).zip(gradient) {
            *momentum = MOMENTUM * *momentum + slope;
            *parameter -= LEARNING_RATE * *momentum;
        }
        self.step += 1;
    }

    /// Returns the SHA-256 over parameters, momentum and random number generator. "The same state" means that this is
    /// equal.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut sha = Sha256::new();
        for value in self.parameters.iter().chain(&self.momentum) {
            sha.update(value.to_le_bytes());
        }
        sha.update(self.rng.state().to_le_bytes());
        sha.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::model::evaluate;

    fn alone() -> Place {
        Place { job: "test".into(), generation: 0, rank: 0, world_size: 1 }
    }

    fn train(state: &mut TrainState, digits: &Digits, steps: u64) {
        for _ in 0..steps {
            let mut gradient = vec![0.0; PARAMETERS];
            state.local_gradient(digits, 3, &alone(), &mut gradient);
            state.apply(&gradient);
        }
    }

    #[test]
    fn training_learns_the_digits() {
        let digits = Digits::load();
        let mut state = TrainState::fresh(3);
        train(&mut state, &digits, 400);
        let end = evaluate(&state.parameters, &digits);
        assert!(end.accuracy > 0.95 && end.loss < 0.2, "{end:?}");
    }

    #[test]
    fn every_part_of_the_state_shows_in_the_digest() {
        let state = TrainState::fresh(3);
        let mut others = [state.clone(), state.clone(), state.clone()];
        others[0].parameters[PARAMETERS - 1] += 1.0;
        others[1].momentum[0] = -0.0;
        others[2].rng.next_u64();
        for other in others {
            assert_ne!(other.digest(), state.digest());
        }
        assert_eq!(state.clone().digest(), state.digest());
    }

    #[test]
    fn noise_differs_by_rank_and_the_generator_does_not() {
        let digits = Digits::load();
        let (mut left, mut right) = (TrainState::fresh(3), TrainState::fresh(3));
        let place = |rank| Place { rank, world_size: 2, ..alone() };
        let (mut of_left, mut of_right) = (vec![0.0; PARAMETERS], vec![0.0; PARAMETERS]);
        left.local_gradient(&digits, 3, &place(0), &mut of_left);
        right.local_gradient(&digits, 3, &place(1), &mut of_right);
        assert_ne!(of_left, of_right);
        assert_eq!(left.rng, right.rng);
    }
}
