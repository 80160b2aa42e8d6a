//! Watches single cases: panics, processor time, memory and messages.

use super::random::Random;
use super::{Outcome, Target};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use taskd_core::testing::{peak_memory_kib, thread_time};

/// Processor time of one case from which it is slow.
const TIME_MAX: Duration = Duration::from_millis(500);
/// Growth of the process's memory within a block of cases from which it is too much, with all threads.
const GROWTH_MAX_KIB: u64 = 256 * 1024;
/// Problems of one thread that are listed; all are counted.
const PROBLEMS_MAX: usize = 64;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message of a panic instead of printing it.
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|panic| *panic.borrow_mut() = info.to_string().replace('\n', " "));
    }));
}

/// A case that is bad.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) case: u64,
    pub(crate) what: String,
}

/// Counts of one thread.
#[derive(Debug)]
pub(crate) struct Watch {
    name: &'static str,
    pub(crate) whole: u64,
    pub(crate) part: u64,
    pub(crate) refused: u64,
    pub(crate) panics: u64,
    pub(crate) slow: u64,
    pub(crate) unclear: u64,
    pub(crate) over_memory: u64,
    pub(crate) slowest: Duration,
    pub(crate) growth_kib: u64,
    pub(crate) problems: Vec<Problem>,
    usual_kib: Option<u64>,
    clock: Duration,
}

impl Watch {
    pub(crate) fn new(name: &'static str) -> Watch {
        Watch {
            name,
            whole: 0,
            part: 0,
            refused: 0,
            panics: 0,
            slow: 0,
            unclear: 0,
            over_memory: 0,
            slowest: Duration::ZERO,
            growth_kib: 0,
            problems: Vec::new(),
            usual_kib: None,
            clock: thread_time(),
        }
    }

    /// Runs one case.
    pub(crate) fn case(&mut self, target: &mut dyn Target, seed: u64, case: u64) {
        let mut random = Random::of_case(seed, case);
        let outcome = catch_unwind(AssertUnwindSafe(|| target.case(&mut random)));
        match outcome {
            Ok(Outcome::Whole) => self.whole += 1,
            Ok(Outcome::Part(messages)) => {
                self.part += 1;
                for message in messages {
                    self.message(target, case, &message);
                }
            }
            Ok(Outcome::Refused(message)) => {
                self.refused += 1;
                self.message(target, case, &message);
            }
            Err(_) => {
                self.panics += 1;
                let what = PANIC.with(|panic| std::mem::take(&mut *panic.borrow_mut()));
                self.problem(case, what);
            }
        }
        let clock = thread_time();
        let spent = clock.saturating_sub(self.clock);
        self.clock = clock;
        self.slowest = self.slowest.max(spent);
        if spent > TIME_MAX {
            self.slow += 1;
            self.problem(case, format!("took {:.1} s", spent.as_secs_f64()));
        }
    }

    fn message(&mut self, target: &dyn Target, case: u64, message: &str) {
        if !target.is_clear(message) {
            self.unclear += 1;
            let shown: String = message.chars().take(160).collect();
            self.problem(case, format!("{}: no file, place or rank in the message: {shown}", self.name));
        }
    }

    /// Compares the largest memory of the process since the last call with the usual one.
    pub(crate) fn memory(&mut self, first: u64) {
        let Some(kib) = peak_memory_kib() else { return };
        // The first block loads the reader's own tables.
        let usual = *self.usual_kib.get_or_insert(kib);
        let growth = kib.saturating_sub(usual);
        self.growth_kib = self.growth_kib.max(growth);
        if growth > GROWTH_MAX_KIB {
            self.over_memory += 1;
            self.problem(first, format!("one of the next {} cases used {} MiB", super::BLOCK, growth / 1024));
        }
    }

    fn problem(&mut self, case: u64, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { case, what });
        }
    }
}
