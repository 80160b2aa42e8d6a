//! The account of a soak run: every kill, its consequences, and everything that should not have happened.
//!
//! It never touches the job.

use super::plan::Kind;
use crate::outside::notes::{Blamed, Victim};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use taskd_examples::samples::Samples;

/// One kill, or two at once.
#[derive(Debug)]
pub(crate) struct Kill {
    pub(crate) kind: Kind,
    /// Processes that it ended, directly or because it ended the job.
    pub(crate) victims: Vec<Victim>,
    /// SIGKILLs that were sent.
    pub(crate) signals: u32,
    /// Victims that were named as causes.
    pub(crate) named: BTreeSet<Victim>,
    pub(crate) at_ns: u64,
    pub(crate) seen_ns: Option<u64>,
    pub(crate) again_ns: Option<u64>,
}

impl Kill {
    fn ms(&self, until: Option<u64>) -> Option<f64> {
        until.map(|ns| ns.saturating_sub(self.at_ns) as f64 / 1e6)
    }

    /// Returns true if the blamed process was killed by this kill.
    fn explains(&self, blamed: &Blamed) -> bool {
        blamed.victim.map_or(blamed.guard && self.kind.is_of_guard(), |victim| self.victims.contains(&victim))
    }
}

/// The kills and the findings.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) kills: Vec<Kill>,
    /// Index in `kills` at which the present job begins: ranks and incarnations have the same names in every job.
    job_begins: usize,
    /// Kills after which the job did not train again within the bound.
    pub(crate) stalls: u32,
    /// Processes that were blamed without having been killed, once for each, as text.
    pub(crate) wrong: Vec<String>,
    wrong_in_job: BTreeSet<Option<Victim>>,
    pub(crate) findings: Findings,
}

/// Figures that are counted at the end of jobs and around kills of supervisors.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Findings {
    /// Jobs that were trained to the end.
    pub(crate) jobs: u32,
    /// True if every job's loss was that of its reference, bit by bit.
    pub(crate) loss_equal: bool,
    /// True if every job's state was that of its reference.
    pub(crate) state_equal: bool,
    /// Processes that outlived their job.
    pub(crate) orphans: usize,
    /// Processes that had ended and were not reaped.
    pub(crate) zombies: usize,
    /// Ranks that ran at the same time as those of a newer generation.
    pub(crate) overlaps: usize,
    /// Files outside of the run directory that have the job's mark or a process id of it in their names.
    pub(crate) leaked_files: Vec<String>,
    /// Ranks that did not survive their supervisor although they should have.
    pub(crate) not_kept: usize,
    /// The longest time that a job survived a supervisor whose guard was to end it, in milliseconds.
    pub(crate) gone_ms_max: f64,
    /// Number of times that this took longer than a second.
    pub(crate) gone_late: u32,
    /// Kills that left an incomplete checkpoint.
    pub(crate) checkpoints_torn: u32,
    /// Successors that were killed within one second of their start.
    pub(crate) twice_in_a_second: u32,
    /// The supervisor's stop, if there was one.
    pub(crate) pause: Option<Pause>,
}

/// A stop of the supervisor, which was continued later.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pause {
    pub(crate) seconds: f64,
    /// Faults that were found from the stop until some time after the supervisor was continued.
    pub(crate) blamed: usize,
    /// Worlds that were entered in that time.
    pub(crate) restarts: usize,
    /// Steps that were trained without a supervisor.
    pub(crate) steps_meanwhile: u64,
}

impl Books {
    pub(crate) fn signals(&self) -> u32 {
        self.kills.iter().map(|kill| kill.signals).sum()
    }

    /// Counts another signal of the last kill.
    pub(crate) fn one_more_signal(&mut self) {
        if let Some(kill) = self.kills.last_mut() {
            kill.signals += 1;
        }
    }

    /// Returns the last kill if the job has not recovered from it.
    pub(crate) fn open(&self) -> Option<&Kill> {
        self.kills[self.job_begins..].last().filter(|kill| kill.again_ns.is_none())
    }

    /// Records that the job trains again, which answers the last kill.
    pub(crate) fn trains(&mut self, at_ns: u64) {
        if let Some(kill) = self.kills[self.job_begins..].last_mut() {
            kill.again_ns = kill.again_ns.or(Some(at_ns));
        }
    }

    /// Records that a new supervisor has attached after the last kill.
    pub(crate) fn attached(&mut self, at_ns: u64) {
        let last = self.kills[self.job_begins..].last_mut();
        if let Some(kill) = last.filter(|kill| kill.kind.is_of_supervisor()) {
            kill.seen_ns = kill.seen_ns.or(Some(at_ns));
        }
    }

    /// Returns true if the present job has been hit.
    pub(crate) fn is_of_this_job(&self) -> bool {
        self.kills.len() > self.job_begins
    }

    /// Records a cause that was found.
    pub(crate) fn found(&mut self, blamed: &Blamed, at_ns: u64) {
        if let Some(kill) = self.kills[self.job_begins..].iter_mut().rfind(|kill| kill.explains(blamed)) {
            kill.seen_ns = kill.seen_ns.or(Some(at_ns));
            match blamed.victim {
                Some(victim) => kill.named.extend([victim]),
                None => kill.named.extend(kill.victims.iter().copied()),
            }
        }
    }

    /// Records the processes that a decision blames.
    pub(crate) fn decided(&mut self, blamed: Vec<Blamed>) {
        for blamed in blamed {
            let is_right = self.kills[self.job_begins..].iter().any(|kill| kill.explains(&blamed));
            if !is_right && self.wrong_in_job.insert(blamed.victim) {
                self.wrong.push(blamed.what);
            }
        }
    }

    /// Records the end of a job.
    pub(crate) fn job_ended(&mut self, loss_equal: bool, state_equal: bool) {
        let first = self.findings.jobs == 0;
        self.findings.jobs += 1;
        self.findings.loss_equal = loss_equal && (first || self.findings.loss_equal);
        self.findings.state_equal = state_equal && (first || self.findings.state_equal);
        self.job_begins = self.kills.len();
        self.wrong_in_job.clear();
    }

    /// Returns the number of killed ranks that were never blamed. A kill in the middle of a recovery need not be
    /// blamed. Of the victims of a guard's or a whole job's end one named rank is enough.
    fn unblamed(&self) -> usize {
        let missing = |kill: &Kill| match kill.kind {
            Kind::SupervisorKeep | Kind::SupervisorMidRecovery | Kind::GuardMidRecovery => 0,
            Kind::SupervisorKillTree | Kind::SupervisorAndGuard | Kind::Guard => usize::from(kill.named.is_empty()),
            _ => kill.victims.len() - kill.named.len(),
        };
        self.kills.iter().map(missing).sum()
    }

    /// Returns the line that is printed of a kill once the job has recovered from it, or was hit again.
    pub(crate) fn line(kill: &Kill) -> String {
        let ms = |at: Option<u64>| kill.ms(at).map_or("-".into(), |ms| format!("{ms:.1} ms"));
        let ranks: Vec<String> = kill.victims.iter().map(|v| v.rank.to_string()).collect();
        format!(
            "{:<24} rank {:<8} seen {:>10}   training again {:>11}",
            kill.kind.label(),
            ranks.join(","),
            ms(kill.seen_ns),
            ms(kill.again_ns)
        )
    }

    /// Returns the account, as text and as JSON.
    pub(crate) fn account(&self, seed: u64, seconds: f64) -> Account {
        let mut by_kind: BTreeMap<&'static str, Row> = BTreeMap::new();
        for kind in Kind::ALL {
            let kills: Vec<&Kill> = self.kills.iter().filter(|kill| kill.kind == kind).collect();
            if !kills.is_empty() {
                let times =
                    |of: fn(&Kill) -> Option<u64>| kills.iter().filter_map(|k| k.ms(of(k))).collect::<Samples>();
                let row = Row { count: kills.len(), seen_ms: times(|k| k.seen_ns), again_ms: times(|k| k.again_ns) };
                by_kind.insert(kind.label(), row);
            }
        }
        Account {
            completed: true,
            kills: self.kills.iter().map(|kill| kill.signals).sum(),
            stalls: self.stalls,
            blamed_wrongly: self.wrong.len(),
            wrong: self.wrong.clone(),
            unblamed: self.unblamed(),
            findings: self.findings.clone(),
            by_kind,
            seed,
            seconds,
        }
    }
}

fn in_short<S: Serializer>(ms: &Samples, to: S) -> Result<S::Ok, S::Error> {
    (!ms.is_empty()).then(|| BTreeMap::from([("median", ms.median()), ("max", ms.max())])).serialize(to)
}

/// All kills of a kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    count: usize,
    /// From the kill until a supervisor had found it; for a kill of the supervisor, until the next one had attached.
    #[serde(serialize_with = "in_short")]
    seen_ms: Samples,
    /// From the kill until the job trained again; without those after which the job was hit again before that.
    #[serde(serialize_with = "in_short")]
    again_ms: Samples,
}

/// The whole account.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Account {
    completed: bool,
    /// SIGKILLs that were sent.
    kills: u32,
    pub(crate) stalls: u32,
    blamed_wrongly: usize,
    wrong: Vec<String>,
    unblamed: usize,
    #[serde(flatten)]
    findings: Findings,
    by_kind: BTreeMap<&'static str, Row>,
    seed: u64,
    seconds: f64,
}

impl Account {
    /// Returns the table.
    pub(crate) fn table(&self) -> String {
        let mut out = String::from(
            "\n  what was killed           times   seen after (median, max)    training again after (median, max)\n",
        );
        for kind in Kind::ALL {
            let Some(row) = self.by_kind.get(kind.label()) else { continue };
            let spread = |ms: &Samples, digits: usize| match ms.is_empty() {
                false => format!("{:>9.digits$} {:>9.digits$} ms", ms.median(), ms.max()),
                true => "-".into(),
            };
            let (seen, again) = (spread(&row.seen_ms, 1), spread(&row.again_ms, 0));
            let _ = writeln!(out, "  {:<24}  {:>5}   {seen:<26}  {again}", kind.label(), row.count);
        }
        let Findings { jobs, gone_ms_max, checkpoints_torn, twice_in_a_second, .. } = &self.findings;
        let verdict = |equal: bool| if equal { "equal" } else { "DIFFERENT" };
        let (loss, state) = (verdict(self.findings.loss_equal), verdict(self.findings.state_equal));
        let _ =
            writeln!(out, "\n  {} SIGKILLs over {jobs} jobs in {:.0} s, seed {}", self.kills, self.seconds, self.seed);
        let _ = writeln!(out, "  stalls {}; loss {loss}, state {state} to the reference run", self.stalls);
        let _ = writeln!(out, "  blamed wrongly {}, killed but not blamed {}", self.blamed_wrongly, self.unblamed);
        for wrong in &self.wrong {
            let _ = writeln!(out, "      {wrong}");
        }
        let Findings { orphans, zombies, overlaps, leaked_files, not_kept, gone_late, .. } = &self.findings;
        let leaks = leaked_files.len();
        let _ = writeln!(
            out,
            "  orphans {orphans}, zombies {zombies}, ranks beside a newer world {overlaps}, leaked files {leaks}"
        );
        for file in leaked_files {
            let _ = writeln!(out, "      {file}");
        }
        let _ = writeln!(
            out,
            "  a job without its supervisor was gone after at most {gone_ms_max:.0} ms (later than 1 s: {gone_late}); \
             ranks lost with a supervisor that they should outlive: {not_kept}"
        );
        let _ = writeln!(
            out,
            "  incomplete checkpoints {checkpoints_torn}; successors killed within 1 s: {twice_in_a_second}"
        );
        if let Some(Pause { seconds, blamed, restarts, steps_meanwhile }) = self.findings.pause {
            let _ = writeln!(
                out,
                "  the supervisor was stopped for {seconds:.0} s: blamed {blamed}, restarts {restarts}, steps trained \
                 meanwhile {steps_meanwhile}"
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Victim = Victim { rank: 1, incarnation: 2 };
    const B: Victim = Victim { rank: 3, incarnation: 2 };

    fn kill(victims: &[Victim]) -> Kill {
        let (kind, signals, named) = (Kind::MidStep, 1, BTreeSet::new());
        Kill { kind, victims: victims.to_vec(), signals, named, at_ns: 1_000_000, seen_ns: None, again_ns: None }
    }

    fn blamed(victim: Victim) -> Blamed {
        Blamed { victim: Some(victim), guard: false, what: format!("{victim:?}") }
    }

    #[test]
    fn blame_of_a_rank_that_was_not_killed_is_wrong_and_counted_once() {
        let mut books = Books { kills: vec![kill(&[A])], ..Books::default() };
        books.decided(vec![blamed(A), blamed(B)]);
        books.decided(vec![blamed(B)]);
        assert_eq!(books.wrong.len(), 1);
        books.decided(vec![Blamed { victim: None, guard: false, what: "stall in job".into() }]);
        assert_eq!(books.wrong, ["Victim { rank: 3, incarnation: 2 }", "stall in job"]);

        books.job_ended(true, true);
        books.decided(vec![blamed(A)]);
        assert_eq!(books.wrong.len(), 3, "what was killed in another job is no excuse");
    }

    #[test]
    fn a_guard_that_was_killed_is_rightly_blamed_and_stands_for_its_ranks() {
        let guard = || Blamed { victim: None, guard: true, what: "the guard".into() };
        let mut books = Books { kills: vec![kill(&[A])], ..Books::default() };
        books.decided(vec![guard()]);
        assert_eq!(books.wrong, ["the guard"], "a rank was killed");
        books = Books { kills: vec![Kill { kind: Kind::Guard, ..kill(&[A, B]) }], ..Books::default() };
        books.found(&guard(), 2_000_000);
        books.decided(vec![guard()]);
        assert_eq!((books.wrong.len(), books.unblamed(), books.kills[0].seen_ns), (0, 0, Some(2_000_000)));
    }

    #[test]
    fn a_killed_rank_that_is_not_blamed_is_counted_as_missed() {
        let mut books = Books { kills: vec![kill(&[A, B])], ..Books::default() };
        books.found(&blamed(A), 3_500_000);
        assert_eq!((books.unblamed(), books.kills[0].seen_ns), (1, Some(3_500_000)));
        books.found(&blamed(B), 9_000_000);
        assert_eq!((books.unblamed(), books.kills[0].seen_ns), (0, Some(3_500_000)));
    }

    #[test]
    fn findings_differ_after_one_job_that_differs() {
        let mut books = Books::default();
        for (loss, state) in [(true, true), (true, false), (true, true)] {
            books.job_ended(loss, state);
        }
        assert_eq!((books.findings.loss_equal, books.findings.state_equal), (true, false));
    }
}
