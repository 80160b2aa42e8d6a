//! The injected beside the blamed, run by run, and the counts of each kind and layout.

use super::kind::{Kind, Ranks, Within};
use super::trial::{Observed, Report};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use taskd_examples::samples::Samples;

/// What was injected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Injected {
    kind: Kind,
    /// The victim; two ranks for a link, none for a fault of no rank.
    victims: Vec<u32>,
    /// The last completed step before the injection.
    step: u64,
    /// Median time of a step before and after, in milliseconds.
    step_ms: [Option<f64>; 2],
}

/// One run: a line of the file of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub(super) ranks: Ranks,
    pub(super) seed: u64,
    /// Load average of the last minute at the end of the run.
    load: f64,
    /// Duration of the run in seconds.
    pub(super) seconds: f64,
    pub(super) injected: Injected,
    /// Blames, the first first.
    blamed: Vec<Report>,
    /// Reports that blame nothing.
    notes: Vec<Report>,
    /// True if the first blame names the victim; without a victim, if nothing was blamed.
    correct_component: bool,
    /// True if it also names the cause.
    pub(super) correct_cause: bool,
    /// True if a component was blamed that nothing was injected into.
    wrong_blame: bool,
    /// Steps from the injection to the correct blame.
    delay_steps: Option<i64>,
    /// The same in milliseconds.
    delay_ms: Option<f64>,
}

impl Line {
    pub(super) fn of(kind: Kind, ranks: Ranks, seed: u64, seconds: f64, observed: Observed) -> Line {
        let Observed { victims, step, reports, step_ms } = observed;
        let (mut blamed, mut notes): (Vec<Report>, Vec<Report>) = reports.into_iter().partition(|found| found.is_blame);
        if kind == Kind::SlowLink {
            // A slow link of the whole job is no component that can be blamed: its note is the verdict.
            let (job, others) = notes.into_iter().partition(|note| note.cause == "slow-link" && note.after_ms > 0.0);
            blamed.extend::<Vec<Report>>(job);
            notes = others;
        }
        let is_victim = |found: &&Report| {
            let is_link = kind == Kind::SlowLink && victims.iter().all(|rank| found.ranks.contains(rank));
            (found.ranks == victims || (is_link && found.ranks.len() > 1)) && found.after_ms > 0.0
        };
        let wrong_blame = blamed.iter().any(|found| !is_victim(&found));
        let first = blamed.first().filter(is_victim);
        let correct_component = if victims.is_empty() { blamed.is_empty() } else { first.is_some() && !wrong_blame };
        let cause = first.map_or("none", |found| found.cause.as_str());
        let correct_cause = correct_component && cause == kind.cause();
        let (delay_steps, delay_ms) = (first.map(|found| found.after_steps), first.map(|found| found.after_ms));
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN);
        let injected = Injected { kind, victims, step, step_ms };
        Line {
            ranks,
            seed,
            load,
            seconds,
            injected,
            blamed,
            notes,
            correct_component,
            correct_cause,
            wrong_blame,
            delay_steps,
            delay_ms,
        }
    }

    pub(super) fn key(&self) -> (Ranks, Kind, u64) {
        (self.ranks, self.injected.kind, self.seed)
    }

    /// Returns true if the correct verdict came too late.
    fn is_late(&self) -> bool {
        self.correct_cause
            && match self.injected.kind.within(self.ranks) {
                Within::Steps(most) => self.delay_steps.is_some_and(|steps| steps > most),
                Within::Milliseconds(most) => self.delay_ms.is_some_and(|ms| ms > f64::from(most)),
                Within::Any => false,
            }
    }

    /// Returns the run in one line.
    pub(super) fn summary(&self) -> String {
        let blames: Vec<String> = self
            .blamed
            .iter()
            .map(|found| format!("{} ({}) {:+}", found.component, found.cause, found.after_steps))
            .collect();
        let blames = if blames.is_empty() { "nothing".to_owned() } else { blames.join(", ") };
        let notes: Vec<&str> = self.notes.iter().map(|note| note.cause.as_str()).collect();
        let [before, after] = self.injected.step_ms.map(|ms| ms.unwrap_or(f64::NAN));
        format!(
            "{:<3} {:<15} seed {:<4} into {:?} at {}: {blames}; notes {notes:?}; {before:.0} -> {after:.0} ms, {:.0} ms, {:.0} s, load {:.1}{}",
            self.ranks.to_string(),
            self.injected.kind.to_string(),
            self.seed,
            self.injected.victims,
            self.injected.step,
            self.delay_ms.unwrap_or(f64::NAN),
            self.seconds,
            self.load,
            if self.correct_cause { "" } else { "  <-- NOT CORRECT" },
        )
    }
}

/// The counts of one kind and layout.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    ranks: Ranks,
    kind: Kind,
    runs: usize,
    /// Runs in which the victim was blamed and nothing else; without a victim, nothing at all.
    correct_component: usize,
    /// Of these, the runs with the correct cause.
    correct_cause: usize,
    /// Runs in which a component was blamed that nothing was injected into.
    wrong_blame: usize,
    /// Runs in which nothing was blamed although there was a victim.
    missed: usize,
    /// Runs with the correct verdict, but later than required.
    late: usize,
    /// Median slow-down of a step in percent.
    slowdown_percent: Option<f64>,
    /// Steps from the injection to the verdict: median, minimum and maximum.
    delay_steps: Option<[f64; 3]>,
    /// The same in seconds.
    delay_s: Option<[f64; 3]>,
}

/// All runs.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    rows: Vec<Row>,
    /// Runs with the correct component and cause, of those with an injected fault.
    correct: usize,
    /// Number of runs with an injected fault.
    injected: usize,
    /// Runs without a fault of a rank in which a component was blamed.
    clean_blamed: usize,
    /// Number of runs without a fault of a rank.
    clean: usize,
    /// Runs in which a component was blamed that nothing was injected into.
    wrong_blame: usize,
    /// Runs in which the correct verdict came later than required.
    late: usize,
    /// True if 95 % of the faults have the correct component and cause in time, and nothing was blamed without a fault.
    met: bool,
    /// All runs: what was injected, beside what was blamed.
    runs: Vec<Line>,
}

impl Account {
    /// Counts the runs.
    #[must_use]
    pub fn of(lines: &[Line]) -> Account {
        let mut groups: BTreeMap<(Ranks, Kind), Vec<&Line>> = BTreeMap::new();
        for line in lines {
            groups.entry((line.ranks, line.injected.kind)).or_default().push(line);
        }
        let rows = groups.into_iter().map(|((ranks, kind), lines)| Row::of(ranks, kind, &lines)).collect();
        let is_clean = |line: &&Line| line.injected.victims.is_empty();
        let (clean, faulty): (Vec<&Line>, Vec<&Line>) = lines.iter().partition(is_clean);
        let in_time = faulty.iter().filter(|line| line.correct_cause && !line.is_late()).count();
        let clean_blamed = clean.iter().filter(|line| !line.blamed.is_empty()).count();
        Account {
            rows,
            correct: faulty.iter().filter(|line| line.correct_cause).count(),
            injected: faulty.len(),
            clean_blamed,
            clean: clean.len(),
            wrong_blame: lines.iter().filter(|line| line.wrong_blame).count(),
            late: lines.iter().filter(|line| line.is_late()).count(),
            met: in_time * 100 >= faulty.len() * 95 && clean_blamed == 0,
            runs: lines.to_vec(),
        }
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::from(
            "\n  ranks  injected         runs  rank  cause  wrong  missed  late  slower   delay in steps        delay in s\n",
        );
        for row in &self.rows {
            let spread = |values: Option<[f64; 3]>, digits: usize| {
                values.map_or("-".to_owned(), |[median, min, max]| {
                    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
                })
            };
            let slower = row.slowdown_percent.map_or("-".to_owned(), |percent| format!("{percent:+.0} %"));
            let Row { runs, correct_component, correct_cause, wrong_blame, missed, late, .. } = row;
            let (ranks, kind) = (row.ranks.to_string(), row.kind.to_string());
            let (steps, seconds) = (spread(row.delay_steps, 0), spread(row.delay_s, 2));
            let _ = writeln!(
                out,
                "  {ranks:<5}  {kind:<15}  {runs:<4}  {correct_component:<4}  {correct_cause:<5}  {wrong_blame:<5}  \
                 {missed:<6}  {late:<4}  {slower:<7}  {steps:<20}  {seconds}",
            );
        }
        let Account { correct, injected, clean_blamed, clean, wrong_blame, late, met, .. } = self;
        let met = if *met { "met" } else { "missed" };
        let _ = writeln!(
            out,
            "\n  {correct} of {injected} faults have the correct component and cause; blamed in {clean_blamed} of {clean} runs \
             without a fault of a rank; a wrong component in {wrong_blame} runs; {late} verdicts were late. The target is {met}",
        );
        out
    }
}

impl Row {
    fn of(ranks: Ranks, kind: Kind, lines: &[&Line]) -> Row {
        let count = |holds: fn(&Line) -> bool| lines.iter().filter(|line| holds(line)).count();
        let slower = lines.iter().filter_map(|line| {
            let [before, after] = line.injected.step_ms;
            Some((after? / before? - 1.0) * 100.0)
        });
        let slower: Samples = slower.filter(|_| !kind.is_hang()).collect();
        #[allow(clippy::cast_precision_loss, reason = "a small number of steps")]
        let steps: Samples = lines.iter().filter_map(|line| line.delay_steps).map(|steps| steps as f64).collect();
        let seconds: Samples = lines.iter().filter_map(|line| line.delay_ms).map(|ms| ms / 1e3).collect();
        let spread =
            |samples: &Samples| (!samples.is_empty()).then(|| [samples.median(), samples.min(), samples.max()]);
        Row {
            ranks,
            kind,
            runs: lines.len(),
            correct_component: count(|line| line.correct_component),
            correct_cause: count(|line| line.correct_cause),
            wrong_blame: count(|line| line.wrong_blame),
            missed: count(|line| line.blamed.is_empty() && !line.injected.victims.is_empty()),
            late: count(Line::is_late),
            slowdown_percent: (!slower.is_empty()).then(|| slower.median()),
            delay_steps: spread(&steps).filter(|_| !kind.is_hang()),
            delay_s: spread(&seconds),
        }
    }
}
