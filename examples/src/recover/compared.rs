//! Compares the steps of a run with those of the undisturbed one, bit by bit.

use super::lines::Line;
use std::collections::BTreeMap;

/// The result of the comparison.
#[derive(Debug)]
pub struct Compared {
    /// True if every rank had the undisturbed run's model, optimizer and random numbers after every step.
    pub state_equal: bool,
    /// True if each loss was the undisturbed run's to the bit.
    pub loss_bit_equal: bool,
    /// Steps of single ranks that were compared, at least by their losses: hashes are recorded of small states only.
    pub steps: usize,
    /// For each rank that differs, the first such step and the difference.
    pub differences: Vec<String>,
}

impl Compared {
    /// Compares every completed step, also those that were repeated.
    pub fn of(reference: &BTreeMap<u32, Vec<Line>>, run: &BTreeMap<u32, Vec<Line>>) -> Compared {
        let mut compared = Compared { state_equal: true, loss_bit_equal: true, steps: 0, differences: Vec::new() };
        for (rank, lines) in reference {
            let seen = run.get(rank).map_or(&[][..], Vec::as_slice);
            if seen.is_empty() {
                compared.state_equal = false;
                compared.differences.push(format!("rank {rank} has recorded no step"));
            }
            compared.rank(*rank, lines, seen);
        }
        compared
    }

    /// Compares the steps of one rank, and returns the first one that differs.
    fn rank(&mut self, rank: u32, expected: &[Line], seen: &[Line]) {
        let expected: BTreeMap<u64, &Line> = expected.iter().map(|line| (line.step, line)).collect();
        let mut first: Option<(&Line, bool, bool)> = None;
        for line in seen {
            let Some(right) = expected.get(&line.step) else { continue };
            let other_loss = line.loss.is_some_and(|loss| Some(loss.to_bits()) != right.loss.map(f64::to_bits));
            let states = line.sha256.as_ref().zip(right.sha256.as_ref());
            let other_state = states.is_some_and(|(seen, right)| seen != right);
            self.steps += 1;
            self.state_equal &= !other_state;
            self.loss_bit_equal &= !other_loss;
            if (other_loss || other_state) && first.is_none_or(|(first, ..)| line.t < first.t) {
                first = Some((line, other_loss, other_state));
            }
        }
        if let Some((line, loss, state)) = first {
            let parts = [(loss, "the loss"), (state, "the state after it")];
            let parts: Vec<&str> = parts.iter().filter(|(differs, _)| *differs).map(|(_, part)| *part).collect();
            let (step, t) = (line.step, line.t);
            self.differences
                .push(format!("rank {rank} differs from step {step} on, at {t:.3}: {}", parts.join(" and ")));
        }
    }
}
