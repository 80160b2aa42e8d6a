//! Damages valid messages and log entries by seed, and reads them. Only tests and the example `fuzz_wire` use this.
//!
//! A case must be read or refused with a message: without a panic, in bounded time and memory. A case is repeated by its
//! number.

mod damage;
mod random;
mod targets;
mod watch;

pub use targets::TARGETS;
pub use watch::Figures;

use random::Random;
use watch::Watch;

/// A parser, with valid inputs.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the parser.
    pub name: &'static str,
    /// Returns valid inputs, each with the number of the parser's form.
    seeds: fn() -> Vec<Vec<u8>>,
    /// Reads an input. Returns the reason if it is refused; panics if a rule is broken.
    read: fn(&[u8]) -> Result<(), String>,
}

/// Which cases are run.
#[derive(Clone, Copy, Debug)]
pub struct Cases {
    /// Seed of all cases.
    pub seed: u64,
    /// Number of the first case.
    pub first: u64,
    /// Number of cases.
    pub cases: u64,
}

impl Target {
    /// Runs cases, and returns the figures. Seeds that are refused count as problems.
    #[must_use]
    pub fn run(&self, cases: Cases) -> Figures {
        let seeds = (self.seeds)();
        let mut watch = Watch::new(self.name);
        for seed in &seeds {
            watch.seed(seed, self.read);
        }
        for case in (cases.first..).take(usize::try_from(cases.cases).unwrap_or(usize::MAX)) {
            let mut random = Random::of_case(cases.seed, case);
            let input = damage::damaged(&mut random, &seeds);
            watch.case(case, &input, self.read);
        }
        watch.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_messages_are_read_or_refused() {
        for target in TARGETS {
            let figures = target.run(Cases { seed: 1, first: 0, cases: 3000 });
            println!("{figures}");
            // Not the memory: other tests of this process use some, too.
            let bad = figures.seeds_refused + figures.panics + figures.slow + figures.unclear;
            assert_eq!(bad, 0, "{figures}");
            assert!(figures.read > 0 && figures.refused > 0, "{figures}");
        }
    }

    #[test]
    fn a_case_is_repeated_by_its_number() {
        let seeds = (TARGETS[0].seeds)();
        let input = |case| damage::damaged(&mut Random::of_case(7, case), &seeds);
        assert_eq!(input(11), input(11));
        assert_ne!(input(11), input(12));
    }
}
