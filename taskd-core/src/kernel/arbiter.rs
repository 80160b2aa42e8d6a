//! The arbiter: one pure function that says what is done about an incident, and why everything else lost.

use super::{Branch, Check, Checks, Chosen, Lost, Refusal, View};
use crate::detect::{Fault, OPERATOR};
use crate::job::{Counted, Domain, Name, Permission};
use crate::recover::{Incident, Proposal, RecoveryStrategy, possible};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Uncounted recoveries in a row after which the next one counts: a race that is lost so often is no accident.
pub(super) const FREE_IN_ROW_MAX: u32 = 5;

/// What the arbiter has to know besides the incident.
pub(super) struct Bench<'a> {
    pub(super) view: &'a View,
    pub(super) strategies: &'a [Box<dyn RecoveryStrategy>],
    pub(super) budget_left: u32,
    pub(super) free_in_row: u32,
    /// The budget has paid for everything in this incident but its victims.
    pub(super) paid: bool,
    /// A recovery that costs nothing was begun for everything in it but its victims.
    pub(super) let_off: bool,
    /// It is only an operator's wish.
    pub(super) ordered: bool,
    /// The job goes on, whatever becomes of it: see [`Incident::harms_nobody`].
    pub(super) harms_nobody: bool,
    /// Strategies that an operator has declined for this incident.
    pub(super) declined: &'a BTreeSet<Name>,
    /// How many of a strategy's attempts were only charged to it.
    pub(super) charged: &'a BTreeMap<Name, u32>,
    /// Domains that running recoveries touch.
    pub(super) touched: Vec<Domain>,
    pub(super) checks: &'a Checks,
}

/// What a recovery takes from the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Price {
    /// Nothing: it ends the job, or is paid for.
    #[default]
    Nothing,
    /// Nothing now, but there may be only so many in a row.
    FreeRetry,
    /// One of the recoveries that are left.
    Token,
}

/// The arbiter's answer.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) chosen: Option<Chosen>,
    /// The chosen proposal has to wait: it touches what another recovery touches.
    pub(super) waits: bool,
    pub(super) lost: Vec<Lost>,
    pub(super) refused: Vec<Refusal>,
    pub(super) reason: String,
    pub(super) branches: Vec<Branch>,
    /// Strategies that panicked.
    pub(super) panicked: Vec<Name>,
}

/// Chooses among all strategies' proposals: an advised one if there is one, else the cheapest that is allowed, has not
/// failed too often, and is covered by the budget. Equal costs: the one registered first.
///
/// One that was charged too often with what failed beside or after it is taken only in the place of the job's end.
pub(super) fn arbitrate(incident: &Incident, bench: &Bench<'_>) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut proposals, mut charged) = (Vec::new(), Vec::new());
    for strategy in bench.strategies {
        let name = strategy.name();
        match ask(strategy.as_ref(), incident, bench, &mut verdict) {
            Ok(proposal) => match bench.is_spent(incident, &name) {
                None => proposals.push((name, proposal)),
                Some(why) => charged.push((name, proposal, why)),
            },
            Err(reason) => verdict.refused.push(Refusal { strategy: name, reason }),
        }
    }
    if !charged.is_empty() && proposals.iter().all(|(_, proposal)| proposal.cost.ends_job) {
        verdict.branches.push(Branch::ChargedTaken);
        proposals.extend(charged.drain(..).map(|(name, proposal, _)| (name, proposal)));
    }
    verdict.refused.extend(charged.into_iter().map(|(strategy, _, reason)| Refusal { strategy, reason }));
    // What an operator wants counts as long as nothing has failed: then that is mended as usual.
    let counts = |fault: &Fault| fault.by != OPERATOR || incident.is_ordered();
    let advised = incident.faults.iter().rev().filter(|fault| counts(fault)).filter_map(|fault| fault.advice.as_ref());
    let mut advised = advised.filter_map(|advice| proposals.iter().position(|(name, _)| name == advice));
    let advice = advised.next(); // the newest: what was advised before has been tried since
    let cheapest = || (0..proposals.len()).min_by_key(|i| (proposals[*i].1.cost, *i));
    let Some(winner) = advice.or_else(cheapest) else {
        verdict.branches.push(Branch::LadderEnded);
        verdict.reason = "no strategy is left".into();
        return verdict;
    };
    let (strategy, proposal) = proposals.remove(winner);
    let others = proposals.len();
    verdict.branches.push(if advice.is_some() { Branch::ChosenAdvised } else { Branch::ChosenCheapest });
    verdict.reason = match (advice.is_some(), others) {
        (true, _) => format!("{strategy}, as a detector advises: {}", proposal.reason),
        (false, 0) => format!("{strategy}, the only way left: {}", proposal.reason),
        (false, _) => format!("{strategy}, the cheapest of {}: {}", others + 1, proposal.reason),
    };
    verdict.reason = failed_before(incident, bench, &strategy) + &verdict.reason;
    verdict.lost = proposals.into_iter().map(|(name, p)| loser(name, &p, advice.is_some(), &proposal)).collect();
    verdict.waits = bench.checks.has(Check::DomainExclusion)
        && proposal.touches.iter().any(|t| bench.touched.iter().any(|d| bench.view.overlap(t, d)));
    verdict.chosen = Some(Chosen { strategy, proposal });
    verdict
}

/// What was tried as often as it may fail, for the decision's sentence: `recover-in-place failed twice: ...; `.
fn failed_before(incident: &Incident, bench: &Bench<'_>, chosen: &Name) -> String {
    let mut words = String::new();
    let names: BTreeSet<&Name> =
        incident.attempts.iter().map(|(name, _)| name).filter(|name| *name != chosen).collect();
    for name in names {
        let failures = failures(incident, name);
        if let Some(last) = failures.last().filter(|_| failures.len() >= bench.tries_max()) {
            let _ = write!(words, "{name} failed {}: {last}; ", times(failures.len()));
        }
    }
    words
}

fn failures<'a>(incident: &'a Incident, strategy: &Name) -> Vec<&'a str> {
    incident.attempts.iter().filter(|(name, _)| name == strategy).map(|(_, why)| why.as_str()).collect()
}

fn times(number: usize) -> String {
    match number {
        1 => "once".into(),
        2 => "twice".into(),
        _ => format!("{number} times"),
    }
}

fn loser(strategy: Name, proposal: &Proposal, advised: bool, winner: &Proposal) -> Lost {
    let reason = match (advised, proposal.cost == winner.cost) {
        (true, _) => "a detector advises another".into(),
        (false, true) => "costs as much, and comes later in the list".into(),
        (false, false) => format!("costs {}, the winner {}", proposal.cost, winner.cost),
    };
    Lost { strategy, cost: proposal.cost, reason }
}

/// One strategy's proposal, if it is in question at all.
fn ask(
    strategy: &dyn RecoveryStrategy,
    incident: &Incident,
    bench: &Bench<'_>,
    verdict: &mut Verdict,
) -> Result<Proposal, String> {
    let (name, policy) = (strategy.name(), &bench.view.spec.policy);
    if policy.permission(&name) == Permission::Never {
        verdict.branches.push(Branch::NotAllowed);
        let why = policy.reasons.get(&name).map(|why| format!(": {why}"));
        return Err(format!("not in the allowed set{}", why.unwrap_or_default()));
    }
    if bench.declined.contains(&name) {
        return Err("an operator has declined it".into());
    }
    if let Some(wanted) = wanted(incident).filter(|wanted| bench.ordered && **wanted != name) {
        return Err(format!("what the operator asks for is {wanted}"));
    }
    let failures = failures(incident, &name);
    if let Some(last) = failures.last()
        && failures.len().saturating_sub(bench.charged_to(&name)) >= bench.tries_max()
    {
        verdict.branches.push(Branch::TriedEnough);
        return Err(format!("failed {} times in this incident, last: {last}", failures.len()));
    }
    let proposal = match catch_unwind(AssertUnwindSafe(|| {
        possible(strategy, bench.view)?;
        strategy.propose(incident, bench.view)
    })) {
        Ok(Ok(proposal)) => proposal,
        Ok(Err(reason)) => {
            verdict.branches.push(Branch::Refused);
            return Err(reason);
        }
        Err(_) => {
            verdict.panicked.push(name);
            return Err("it panicked".into());
        }
    };
    if proposal.cost.ends_job && bench.harms_nobody && !bench.ordered {
        return Err("no rank was lost: the job goes on".into());
    }
    if bench.ordered && proposal.cost.ends_job {
        return Err("the job does not end over an operator's wish".into());
    }
    if bench.ordered && !is_answer(&proposal, incident, bench.view) {
        return Err("it leaves what the operator wants as it is".into());
    }
    if bench.price(&proposal) == Price::Token && bench.budget_left == 0 && bench.checks.has(Check::Budget) {
        verdict.branches.push(Branch::BudgetSpent);
        let budget = policy.budget;
        let spent = format!("the recovery budget of {} is spent", budget.recoveries_max);
        return Err(match budget.refills() {
            true => format!("{spent}; one comes back for every {:?} of healthy training", budget.refill_every),
            false => format!("{spent}, and none comes back"),
        });
    }
    Ok(proposal)
}

/// The strategy that an operator asks for by name, where the incident is nothing else.
fn wanted(incident: &Incident) -> Option<&Name> {
    let (first, others) = incident.faults.split_first()?;
    others.iter().all(|fault| fault.advice == first.advice).then_some(first.advice.as_ref()).flatten()
}

/// Whether a proposal touches something of what an operator wants. What is wanted of the whole job may leave all of it alone.
fn is_answer(proposal: &Proposal, incident: &Incident, view: &View) -> bool {
    let touches = |wanted: &Domain| proposal.touches.iter().any(|domain| view.overlap(domain, wanted));
    let mut wishes = incident.faults.iter().filter(|f| f.by == OPERATOR).map(|f| &f.prime().domain);
    wishes.any(|wanted| *wanted == Domain::Job || touches(wanted))
}

impl Bench<'_> {
    fn tries_max(&self) -> usize {
        self.view.spec.policy.tries_max as usize
    }

    fn charged_to(&self, strategy: &Name) -> usize {
        self.charged.get(strategy).map_or(0, |times| *times as usize)
    }

    /// Why a strategy comes after all others, if it was charged as often as it may fail.
    fn is_spent(&self, incident: &Incident, strategy: &Name) -> Option<String> {
        let failures = failures(incident, strategy);
        let last = failures.last().filter(|_| failures.len() >= self.tries_max())?;
        Some(format!("failed {} times, last: {last}", failures.len()))
    }

    /// What carrying the proposal out takes from the budget.
    pub(super) fn price(&self, proposal: &Proposal) -> Price {
        if proposal.cost.ends_job || self.paid || self.ordered {
            return Price::Nothing;
        }
        match proposal.counted {
            Counted::No if self.let_off => Price::Nothing,
            Counted::No if self.free_in_row < FREE_IN_ROW_MAX => Price::FreeRetry,
            Counted::No | Counted::Yes => Price::Token,
        }
    }
}
