//! The strategy suite: passes incidents to strategies, checks their proposals, and simulates carrying them out.

mod judge;
mod rehearsal;
mod scenes;
#[cfg(test)]
mod tests;

use super::verdict::{Verdict, apart, clauses, insist, words};
use super::{Clause, Report, Violation};
use crate::job::Name;
use crate::recover::{Incident, Proposal, RecoveryStrategy, RefusalError};
use crate::state::View;
use judge::Judge;
use scenes::Scene;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

clauses! { "recovery_strategy":
    PURE = "the same incident and view give the same answer, independent of earlier calls";
    NEVER_PANICS = "no call panics for any input";
    IDENTITY_CONSTANT = "name, version and configuration never change";
    DECIDES_FROM_DAMAGE = "the same damage gives the same proposal, whatever the class of the fault";
    CANNOT_MEANS_NO = "it proposes nothing for a job that it reports as unsupported";
    REASON_GIVEN = "proposals, refusals and giving up carry a reason";
    TOUCHES_COVER = "`touches` covers every domain that an action disturbs";
    INCARNATION_IS_NEXT = "a new process gets its incarnation from `View::next_incarnation`";
    WORLD_FROM_SUCCESSOR = "a new world is the successor of the one in force";
    WORLD_NAMES_STARTED = "a rank is started into a world that names this incarnation of it";
    COUNTED_AS_PROPOSED = "the new worlds of a run have one restart more exactly if the proposal is counted";
    STOP_BEFORE_START = "a process that may still run is stopped by an earlier stage than the one that starts another in its place";
    COST_ADMITS_END = "the cost states that the job ends exactly if a stage ends it";
    STAGES_CAN_SUCCEED = "there is a stage, and each can get the answers it needs in the time it has";
    ADVANCE_ENDS = "a run ends after a bounded number of stages";
}

type Answer = Result<Proposal, RefusalError>;

/// Default number of random incidents.
const SEEDS: u64 = 60;

/// Checks a strategy against the contract of [`RecoveryStrategy`].
///
/// The suite has its own incidents, from a dead rank to inconsistent input. For a strategy that refuses all of them,
/// add one that it accepts: [`with_incident`](StrategySuite::with_incident).
///
/// ```
/// use taskd_core::testing::{conformance, doubles::ReplaceStrategy};
///
/// let report = conformance::recovery_strategy(ReplaceStrategy::default).assert();
/// assert!(report.skipped().is_empty(), "{report}");
/// ```
pub fn recovery_strategy<F, S>(make: F) -> StrategySuite
where
    F: Fn() -> S + 'static,
    S: RecoveryStrategy + 'static,
{
    StrategySuite {
        make: Box::new(move || Box::new(make())),
        scenes: scenes::usual(),
        seeds: SEEDS,
        verdict: Verdict::default(),
    }
}

/// A strategy and the incidents that it is tested with, ready to be checked (see [`recovery_strategy()`]).
pub struct StrategySuite {
    make: Box<dyn Fn() -> Box<dyn RecoveryStrategy>>,
    scenes: Vec<Scene>,
    seeds: u64,
    verdict: Verdict,
}

impl StrategySuite {
    /// Adds an incident for which the suite requests a proposal of the strategy. `view` is the state of the job at that
    /// time, such as a [`Timeline`](crate::testing::Timeline)'s view.
    #[must_use]
    pub fn with_incident(mut self, incident: Incident, view: View) -> Self {
        let title = format!("the author's {}", incident.id);
        self.scenes.push(Scene { title, incident, view });
        self
    }

    /// Sets the number of random incidents that the strategy is tested with (default: 60).
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Excludes `clause`, a requirement of the contract that the strategy does not keep: breaking it is then no
    /// violation. The [report](Report::skipped) lists the clause with the reason `why`.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Returns one [`Violation`] for each clause of the contract that the strategy broke, in the order of the contract.
    pub fn check(mut self) -> Result<Report, Vec<Violation>> {
        self.scenes.extend((0..self.seeds).map(scenes::random));
        let scenes = std::mem::take(&mut self.scenes);
        let (first, second) = (self.strategy(), self.strategy());
        let identity = self.identity(&*first);

        let answers: Vec<_> = scenes.iter().map(|scene| self.propose(&*first, scene, &scene.incident)).collect();
        for (scene, answer) in scenes.iter().zip(&answers).rev() {
            let Some(answer) = answer else { continue };
            let again = self.propose(&*first, scene, &scene.incident);
            let fresh = self.propose(&*second, scene, &scene.incident);
            for other in [again, fresh].into_iter().flatten() {
                if let Some((one, two)) = differ(answer, &other) {
                    let title = &scene.title;
                    self.verdict.broken(PURE, format!("{title}: `propose` returned {one}, and then {two}"));
                }
            }
        }
        let mut judge = Judge::new(&mut self.verdict);
        for (scene, answer) in scenes.iter().zip(&answers) {
            match answer {
                Some(Ok(proposal)) => {
                    judge.possible(&*first, scene);
                    judge.proposal(scene, proposal);
                    rehearsal::rehearse(&*first, scene, proposal, &mut judge);
                }
                Some(Err(refusal)) => judge.reason(&scene.title, "a refusal", &refusal.reason),
                None => {}
            }
        }
        judge.close();
        if !self.verdict.is_broken(PURE) {
            self.reclass(&*first, &scenes, &answers);
        }
        if self.identity(&*first) != identity {
            self.verdict.broken(IDENTITY_CONSTANT, format!("it was {identity:?} and changed"));
        }
        self.verdict.finish(ALL)
    }

    /// Runs the suite.
    ///
    /// # Panics
    /// Panics if the strategy broke a clause of the contract; the message lists each broken clause, what the strategy
    /// did, and what the clause requires.
    #[track_caller]
    pub fn assert(self) -> Report {
        insist("strategy", self.check())
    }

    fn strategy(&self) -> Box<dyn RecoveryStrategy> {
        (self.make)()
    }

    fn identity(&mut self, strategy: &dyn RecoveryStrategy) -> Option<(Name, Name, String)> {
        guarded(&mut self.verdict, "`name`", || (strategy.name(), strategy.version(), strategy.config()))
    }

    /// Calls the strategy's `propose` with an incident. Returns `None` if it panicked.
    fn propose(&mut self, strategy: &dyn RecoveryStrategy, scene: &Scene, incident: &Incident) -> Option<Answer> {
        let title = format!("{}: `propose`", scene.title);
        guarded(&mut self.verdict, &title, || strategy.propose(incident, &scene.view))
    }

    /// Checks that the strategy decides from the damage: faults of another class with the same damage lead to the same
    /// plan.
    fn reclass(&mut self, strategy: &dyn RecoveryStrategy, scenes: &[Scene], answers: &[Option<Answer>]) {
        let outline = |answer: &Answer| answer.as_ref().ok().map(scenes::outline);
        for (scene, answer) in scenes.iter().zip(answers) {
            let Some(answer) = answer else { continue };
            let Some(other) = self.propose(strategy, scene, &scenes::reclassed(&scene.incident)) else { continue };
            if outline(answer) != outline(&other)
                && let Some((one, two)) = differ(answer, &other)
            {
                let seen = format!("{}: returned {one}, and with other classes {two}", scene.title);
                self.verdict.broken(DECIDES_FROM_DAMAGE, seen);
            }
        }
    }
}

impl fmt::Debug for StrategySuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrategySuite")
            .field("scenes", &self.scenes.len())
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

/// Returns both answers of the strategy as text if they differ.
fn differ(one: &Answer, two: &Answer) -> Option<(String, String)> {
    let words = |answer: &Answer| match answer {
        Ok(proposal) => format!("the proposal {:?} for {}", proposal.reason, proposal.cost),
        Err(refusal) => format!("the refusal {:?}", refusal.reason),
    };
    let (all_of_one, all_of_two) = (format!("{one:?}"), format!("{two:?}")); // as text: a NaN does not equal a NaN
    let (short_one, short_two) = (words(one), words(two));
    let differ = all_of_one != all_of_two;
    let in_short = short_one != short_two;
    differ.then(|| if in_short { (short_one, short_two) } else { apart(&all_of_one, &all_of_two) })
}

/// Calls the strategy, and records a panic as a broken clause. Returns `None` if the strategy panicked.
fn guarded<T>(verdict: &mut Verdict, title: &str, call: impl FnOnce() -> T) -> Option<T> {
    let answer = catch_unwind(AssertUnwindSafe(call));
    let panicked = |panic: &Box<dyn std::any::Any + Send>| {
        verdict.broken(NEVER_PANICS, format!("{title} panicked: {}", words(panic.as_ref())));
    };
    answer.inspect_err(panicked).ok()
}
