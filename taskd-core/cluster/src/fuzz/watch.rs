//! Watches single cases: panics, processor time, memory and messages.

use serde::Serialize;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use taskd_testing::testing::{peak_memory_kib, thread_time};

/// Processor time of one case from which it is slow.
const TIME_MAX: Duration = Duration::from_millis(500);
/// Growth of the process's memory within a block of cases from which it is too much.
const GROWTH_MAX_KIB: u64 = 256 * 1024;
/// Cases after which the memory is looked at.
const BLOCK: u64 = 512;
/// Problems that are listed; all are counted.
const PROBLEMS_MAX: usize = 64;

/// Figures of one parser.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Name of the parser.
    pub parser: &'static str,
    /// Valid inputs that were refused.
    pub seeds_refused: u64,
    /// Cases that were run.
    pub cases: u64,
    /// Cases that were read.
    pub read: u64,
    /// Cases that were refused with a message.
    pub refused: u64,
    /// Cases with a panic.
    pub panics: u64,
    /// Cases that took too long.
    pub slow: u64,
    /// Cases that were refused without a message.
    pub unclear: u64,
    /// Blocks of cases that used too much memory.
    pub over_memory: u64,
    /// Duration of all cases.
    pub seconds: f64,
    /// Processor time of the slowest case, in milliseconds.
    pub slowest_case_ms: f64,
    /// Largest growth of the process's memory in a block of cases, in MiB.
    pub peak_growth_mib: u64,
    /// The first problems, each with the number of its case.
    pub problems: Vec<String>,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { parser, cases, read, refused, panics, slow, unclear, over_memory, .. } = self;
        let rate = *cases as f64 / self.seconds.max(1e-9);
        write!(
            f,
            "{parser:12} {cases} cases, {rate:.0}/s: {read} read, {refused} refused; {panics} panics, {slow} slow (slowest \
             {:.1} ms), {unclear} without a message, {over_memory} beyond the memory (grew by {} MiB)",
            self.slowest_case_ms, self.peak_growth_mib
        )?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n    {problem}"))
    }
}

/// Counts the cases of one parser.
pub(super) struct Watch {
    figures: Figures,
    began: Instant,
    usual_kib: Option<u64>,
}

impl Watch {
    pub(super) fn new(parser: &'static str) -> Watch {
        Watch { figures: Figures { parser, ..Figures::default() }, began: Instant::now(), usual_kib: None }
    }

    /// Reads a valid input.
    pub(super) fn seed(&mut self, input: &[u8], read: fn(&[u8]) -> Result<(), String>) {
        if let Err(why) = read(input) {
            self.figures.seeds_refused += 1;
            self.problem(format!("a valid input is refused: {why}"));
        }
    }

    /// Runs one case.
    pub(super) fn case(&mut self, case: u64, input: &[u8], read: fn(&[u8]) -> Result<(), String>) {
        let before = thread_time();
        let outcome = catch_unwind(AssertUnwindSafe(|| read(input)));
        let spent = thread_time().saturating_sub(before);
        self.figures.cases += 1;
        match outcome {
            Ok(Ok(())) => self.figures.read += 1,
            Ok(Err(message)) => {
                self.figures.refused += 1;
                if message.trim().is_empty() {
                    self.figures.unclear += 1;
                    self.problem(format!("case {case} is refused without a message"));
                }
            }
            Err(panic) => {
                self.figures.panics += 1;
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                self.problem(format!("case {case} panics: {text}"));
            }
        }
        self.figures.slowest_case_ms = self.figures.slowest_case_ms.max(spent.as_secs_f64() * 1e3);
        if spent > TIME_MAX {
            self.figures.slow += 1;
            self.problem(format!("case {case} took {:.1} s", spent.as_secs_f64()));
        }
        if case % BLOCK == BLOCK - 1 {
            self.memory(case);
        }
    }

    /// Compares the largest memory of the process since the last call with the usual one.
    fn memory(&mut self, case: u64) {
        let Some(kib) = peak_memory_kib() else { return };
        let usual = *self.usual_kib.get_or_insert(kib); // the first block loads the parser's own tables
        let growth = kib.saturating_sub(usual);
        self.figures.peak_growth_mib = self.figures.peak_growth_mib.max(growth / 1024);
        if growth > GROWTH_MAX_KIB {
            self.figures.over_memory += 1;
            self.problem(format!("one of the {BLOCK} cases up to {case} used {} MiB", growth / 1024));
        }
    }

    fn problem(&mut self, what: String) {
        if self.figures.problems.len() < PROBLEMS_MAX {
            self.figures.problems.push(what);
        }
    }

    pub(super) fn finish(mut self) -> Figures {
        self.figures.seconds = self.began.elapsed().as_secs_f64();
        self.figures
    }
}
