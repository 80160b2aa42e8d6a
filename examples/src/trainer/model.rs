//! The model: two layers, 64 pixels to 32 hidden units (ReLU) to 10 classes (softmax, cross entropy).
//!
//! All parameters are in one flat slice, so that all-reduce and checkpoints need not know the layers. Every sum has a
//! fixed order: the same input gives the same bits in every run. This module keeps no state.

use super::data::{Digits, IMAGES, PIXELS};
use super::rng::Rng;

const HIDDEN: usize = 32;
const CLASSES: usize = 10;

const HIDDEN_WEIGHTS: usize = HIDDEN * PIXELS;
const OUTPUT_WEIGHTS: usize = CLASSES * HIDDEN;

/// Length of the flat parameter slice: hidden weights and biases, then output weights and biases.
pub(super) const PARAMETERS: usize = HIDDEN_WEIGHTS + HIDDEN + OUTPUT_WEIGHTS + CLASSES;

/// The flat parameter slice, by layer. Weights are stored row by row, one row for each unit of the layer.
struct Layers<'a> {
    hidden_weights: &'a [f32],
    hidden_biases: &'a [f32],
    output_weights: &'a [f32],
    output_biases: &'a [f32],
}

impl<'a> Layers<'a> {
    fn of(parameters: &'a [f32]) -> Self {
        let (hidden_weights, rest) = parameters.split_at(HIDDEN_WEIGHTS);
        let (hidden_biases, rest) = rest.split_at(HIDDEN);
        let (output_weights, output_biases) = rest.split_at(OUTPUT_WEIGHTS);
        Self { hidden_weights, hidden_biases, output_weights, output_biases }
    }
}

/// The same view of a gradient, for adding to it.
struct LayersMut<'a> {
    hidden_weights: &'a mut [f32],
    hidden_biases: &'a mut [f32],
    output_weights: &'a mut [f32],
    output_biases: &'a mut [f32],
}

impl<'a> LayersMut<'a> {
    fn of(gradient: &'a mut [f32]) -> Self {
        let (hidden_weights, rest) = gradient.split_at_mut(HIDDEN_WEIGHTS);
        let (hidden_biases, rest) = rest.split_at_mut(HIDDEN);
        let (output_weights, output_biases) = rest.split_at_mut(OUTPUT_WEIGHTS);
        Self { hidden_weights, hidden_biases, output_weights, output_biases }
    }
}

/// Returns initial parameters (Glorot and Bengio's uniform initialisation; biases start at zero).
pub(super) fn initial_parameters(rng: &mut Rng) -> Vec<f32> {
    let mut uniform = |count: usize, inputs: usize, outputs: usize| -> Vec<f32> {
        let bound = (6.0 / (inputs + outputs) as f32).sqrt();
        (0..count).map(|_| rng.symmetric_f32() * bound).collect()
    };
    let hidden_weights = uniform(HIDDEN_WEIGHTS, PIXELS, HIDDEN);
    let output_weights = uniform(OUTPUT_WEIGHTS, HIDDEN, CLASSES);
    [hidden_weights, vec![0.0; HIDDEN], output_weights, vec![0.0; CLASSES]].concat()
}

/// Results of the forward pass that the backward pass needs.
struct Forward {
    hidden: [f32; HIDDEN],
    probabilities: [f32; CLASSES],
    loss: f32,
}

fn forward(layers: &Layers<'_>, image: &[f32; PIXELS], label: usize) -> Forward {
    let mut hidden = [0.0; HIDDEN];
    for (unit, row) in layers.hidden_weights.chunks_exact(PIXELS).enumerate() {
        hidden[unit] = (dot(row, image) + layers.hidden_biases[unit]).max(0.0);
    }
    let mut logits = [0.0; CLASSES];
    for (class, row) in layers.output_weights.chunks_exact(HIDDEN).enumerate() {
        logits[class] = dot(row, &hidden) + layers.output_biases[class];
    }

    // Softmax, with the largest logit subtracted first so that exp cannot overflow.
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials = logits.map(|logit| (logit - largest).exp());
    let total: f32 = exponentials.iter().sum();
    Forward {
        hidden,
        probabilities: exponentials.map(|exponential| exponential / total),
        loss: total.ln() - (logits[label] - largest),
    }
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(l, r)| l * r).sum()
}

/// Adds the gradient of one sample's loss to `gradient` and returns that loss.
pub(super) fn add_gradient(parameters: &[f32], image: &[f32; PIXELS], label: usize, gradient: &mut [f32]) -> f32 {
    let layers = Layers::of(parameters);
    let gradient = LayersMut::of(gradient);
    let Forward { hidden, probabilities, loss } = forward(&layers, image, label);

    let mut hidden_deltas = [0.0; HIDDEN];
    for (class, probability) in probabilities.into_iter().enumerate() {
        let delta = probability - if class == label { 1.0 } else { 0.0 };
        let row = class * HIDDEN..(class + 1) * HIDDEN;
        gradient.output_biases[class] += delta;
        add_scaled(&mut gradient.output_weights[row.clone()], delta, &hidden);
        add_scaled(&mut hidden_deltas, delta, &layers.output_weights[row]);
    }
    for (unit, delta) in hidden_deltas.into_iter().enumerate() {
        // ReLU passes the gradient where it passed the value.
        if hidden[unit] > 0.0 {
            gradient.hidden_biases[unit] += delta;
            add_scaled(&mut gradient.hidden_weights[unit * PIXELS..(unit + 1) * PIXELS], delta, image);
        }
    }
    loss
}

fn add_scaled(sums: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// The quality of the parameters on the whole data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Evaluation {
    /// Mean cross entropy over all samples, in nats.
    pub(super) loss: f64,
    /// Share of the samples whose most probable class is their label, 0.0 to 1.0.
    pub(super) accuracy: f64,
}

pub(super) fn evaluate(parameters: &[f32], digits: &Digits) -> Evaluation {
    let layers = Layers::of(parameters);
    let (mut loss, mut hits) = (0.0, 0_u32);
    for index in 0..IMAGES {
        let (image, label) = digits.sample(index);
        let forward = forward(&layers, image, label);
        loss += f64::from(forward.loss);
        let best = forward.probabilities.iter().copied().fold(0.0, f32::max);
        hits += u32::from(forward.probabilities[label] >= best);
    }
    Evaluation { loss: loss / IMAGES as f64, accuracy: f64::from(hits) / IMAGES as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let mut parameters = initial_parameters(&mut Rng::new(11));
        let digits = Digits::load();
        let (image, label) = digits.sample(17);
        let mut gradient = vec![0.0; PARAMETERS];
        add_gradient(&parameters, image, label, &mut gradient);

        // Small, so that no hidden unit crosses the kink of its ReLU.
        const NUDGE: f32 = 1e-3;
        let mut steepest = 0.0_f32;
        // Every 7th parameter: that covers all four blocks, the biases included.
        for index in (0..PARAMETERS).step_by(7) {
            let original = parameters[index];
            parameters[index] = original + NUDGE;
            let above = forward(&Layers::of(&parameters), image, label).loss;
            parameters[index] = original - NUDGE;
            let below = forward(&Layers::of(&parameters), image, label).loss;
            parameters[index] = original;
            let slope = (above - below) / (2.0 * NUDGE);
            steepest = steepest.max(slope.abs());
            assert!((slope - gradient[index]).abs() < 2e-3, "parameter {index}: {slope} against {}", gradient[index]);
        }
        assert!(steepest > 0.1, "a flat loss proves nothing");
    }

    #[test]
    fn an_untrained_model_guesses() {
        let start = evaluate(&vec![0.0; PARAMETERS], &Digits::load());
        assert!((start.loss - 10.0_f64.ln()).abs() < 1e-5, "ten equally likely classes, not {start:?}");
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let digits = Digits::load();
        let (image, label) = digits.sample(0);
        let parameters = vec![1e3; PARAMETERS];
        assert!(forward(&Layers::of(&parameters), image, label).loss.is_finite());
    }
}
