//! The arbiter: a pure function that picks the proposal for an incident, with the reason why each alternative lost.

use super::{Branch, Check, Checks, Chosen, Lost, Refusal};
use crate::detect::{Fault, OPERATOR};
use crate::job::{Counted, Domain, Name, Permission};
use crate::recover::{Incident, Proposal, RecoveryStrategy, possible};
use crate::state::View;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Number of consecutive uncounted recoveries after which the next one counts: a race lost that often is no accident.
pub(super) const FREE_IN_ROW_MAX: u32 = 5;

/// The arbiter's input besides the incident.
pub(super) struct ArbiterContext<'a> {
    pub(super) view: &'a View,
    pub(super) strategies: &'a [Box<dyn RecoveryStrategy>],
    pub(super) budget_left: u32,
    pub(super) free_in_row: u32,
    /// True if the budget has paid for everything in this incident but its victims.
    pub(super) paid: bool,
    /// True if a free recovery was begun for everything in this incident but its victims.
    pub(super) let_off: bool,
    /// True if hosts without a lease have stopped ranks, and nothing else is wrong.
    pub(super) fenced: bool,
    /// True if the incident consists of an operator's request only.
    pub(super) ordered: bool,
    /// True if the job continues whatever happens to the incident: see [`Incident::is_non_disruptive`].
    pub(super) is_non_disruptive: bool,
    /// Strategies that an operator has declined for this incident.
    pub(super) declined: &'a BTreeSet<Name>,
    /// Number of a strategy's attempts that were only charged to it.
    pub(super) charged: &'a BTreeMap<Name, u32>,
    /// Domains that running recoveries affect.
    pub(super) touched: Vec<Domain>,
    pub(super) checks: &'a Checks,
}

/// Price of a recovery, taken from the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Price {
    /// The recovery takes nothing from the budget: it ends the job, or is already paid for.
    #[default]
    Nothing,
    /// The recovery takes nothing from the budget, but the number of such recoveries in a row is limited.
    FreeRetry,
    /// The recovery takes one recovery from the budget.
    Token,
}

/// The arbiter's result.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) chosen: Option<Chosen>,
    /// True if the chosen proposal has to wait, because it affects the same domains as a running recovery.
    pub(super) waits: bool,
    pub(super) lost: Vec<Lost>,
    pub(super) refused: Vec<Refusal>,
    pub(super) reason: String,
    pub(super) branches: Vec<Branch>,
    /// Strategies that panicked.
    pub(super) panicked: Vec<Name>,
}

/// Chooses the proposal for an incident among those of all strategies.
///
/// An advised proposal wins if there is one, otherwise the cheapest that is allowed, has not failed too often, and is
/// covered by the budget. At equal cost, the strategy registered first wins. A strategy that was charged too often with
/// failures beside or after its recovery is only chosen if the job would end otherwise.
pub(super) fn arbitrate(incident: &Incident, context: &ArbiterContext<'_>) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut proposals, mut charged) = (Vec::new(), Vec::new());
    for strategy in context.strategies {
        let name = strategy.name();
        match ask(strategy.as_ref(), incident, context, &mut verdict) {
            Ok(proposal) => match context.is_spent(incident, &name) {
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
    // An operator's request counts only as long as nothing has failed: a failure is recovered as usual.
    let counts = |fault: &Fault| fault.by != OPERATOR || incident.is_requested_by_operator();
    let advised = incident.faults.iter().rev().filter(|fault| counts(fault)).filter_map(|fault| fault.advice.as_ref());
    let mut advised = advised.filter_map(|advice| proposals.iter().position(|(name, _)| name == advice));
    let advice = advised.next(); // the newest: earlier advice has been tried since
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
    verdict.reason = failed_before(incident, context, &strategy) + &verdict.reason;
    verdict.lost = proposals.into_iter().map(|(name, p)| loser(name, &p, advice.is_some(), &proposal)).collect();
    verdict.waits = context.checks.has(Check::DomainExclusion)
        && proposal.affected_domains.iter().any(|t| context.touched.iter().any(|d| context.view.overlap(t, d)));
    verdict.chosen = Some(Chosen { strategy, proposal });
    verdict
}

/// Returns the other strategies that failed as often as they may, as text for the decision's reason.
///
/// For example `recover-in-place failed twice: ...; `.
fn failed_before(incident: &Incident, context: &ArbiterContext<'_>, chosen: &Name) -> String {
    let mut words = String::new();
    let names: BTreeSet<&Name> =
        incident.attempts.iter().map(|(name, _)| name).filter(|name| *name != chosen).collect();
    for name in names {
        let failures = failures(incident, name);
        if let Some(last) = failures.last().filter(|_| failures.len() >= context.max_attempts()) {
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
        (true, _) => "a detector advises another strategy".into(),
        (false, true) => "costs the same, and is later in the list".into(),
        (false, false) => format!("costs {}, the winner {}", proposal.cost, winner.cost),
    };
    Lost { strategy, cost: proposal.cost, reason }
}

/// Returns the proposal of one strategy, if it is eligible.
///
/// # Errors
/// The reason why the strategy is not eligible.
fn ask(
    strategy: &dyn RecoveryStrategy,
    incident: &Incident,
    context: &ArbiterContext<'_>,
    verdict: &mut Verdict,
) -> Result<Proposal, String> {
    let (name, policy) = (strategy.name(), &context.view.spec.policy);
    if policy.permission(&name) == Permission::Never {
        verdict.branches.push(Branch::NotAllowed);
        let why = policy.reasons.get(&name).map(|why| format!(": {why}"));
        return Err(format!("not in the allowed set{}", why.unwrap_or_default()));
    }
    if context.declined.contains(&name) {
        return Err("an operator has declined it".into());
    }
    if let Some(wanted) = wanted(incident).filter(|wanted| context.ordered && **wanted != name) {
        return Err(format!("the operator asks for {wanted}"));
    }
    let failures = failures(incident, &name);
    if let Some(last) = failures.last()
        && failures.len().saturating_sub(context.charged_to(&name)) >= context.max_attempts()
    {
        verdict.branches.push(Branch::TriedEnough);
        return Err(format!("failed {} times in this incident, last: {last}", failures.len()));
    }
    let proposal = match catch_unwind(AssertUnwindSafe(|| {
        possible(strategy, context.view)?;
        strategy.propose(incident, context.view)
    })) {
        Ok(Ok(proposal)) => proposal,
        Ok(Err(refusal)) => {
            verdict.branches.push(Branch::Refused);
            return Err(refusal.reason);
        }
        Err(_) => {
            verdict.panicked.push(name);
            return Err("the strategy panicked".into());
        }
    };
    if proposal.cost.ends_job && context.is_non_disruptive && !context.ordered {
        return Err("no rank was lost: the job continues".into());
    }
    if context.ordered && proposal.cost.ends_job {
        return Err("an operator's order does not end the job".into());
    }
    if context.ordered && !is_answer(&proposal, incident, context.view) {
        return Err("it does not do what the operator asks for".into());
    }
    if context.price(&proposal) == Price::Token && context.budget_left == 0 && context.checks.has(Check::Budget) {
        verdict.branches.push(Branch::BudgetSpent);
        let budget = policy.budget;
        let spent = format!("the recovery budget of {} is spent", budget.recoveries_max);
        return Err(match budget.refills() {
            true => format!("{spent}; one recovery is added per {:?} of healthy training", budget.refill_every),
            false => format!("{spent}, and is never refilled"),
        });
    }
    Ok(proposal)
}

/// Returns the strategy that an operator requested by name, if the incident contains nothing else.
fn wanted(incident: &Incident) -> Option<&Name> {
    let (first, others) = incident.faults.split_first()?;
    others.iter().all(|fault| fault.advice == first.advice).then_some(first.advice.as_ref()).flatten()
}

/// Returns true if the proposal affects something that an operator requested. A request that concerns the whole job is
/// met by any proposal.
fn is_answer(proposal: &Proposal, incident: &Incident, view: &View) -> bool {
    let touches = |wanted: &Domain| proposal.affected_domains.iter().any(|domain| view.overlap(domain, wanted));
    let mut wishes = incident.faults.iter().filter(|f| f.by == OPERATOR).map(|f| &f.primary_suspect().domain);
    wishes.any(|wanted| *wanted == Domain::Job || touches(wanted))
}

impl ArbiterContext<'_> {
    fn max_attempts(&self) -> usize {
        self.view.spec.policy.max_attempts as usize
    }

    fn charged_to(&self, strategy: &Name) -> usize {
        self.charged.get(strategy).map_or(0, |times| *times as usize)
    }

    /// Returns the reason why a strategy is ranked after all others, if it was charged as often as it may fail.
    fn is_spent(&self, incident: &Incident, strategy: &Name) -> Option<String> {
        let failures = failures(incident, strategy);
        let last = failures.last().filter(|_| failures.len() >= self.max_attempts())?;
        Some(format!("failed {} times, last: {last}", failures.len()))
    }

    /// Returns what the proposal takes from the budget.
    pub(super) fn price(&self, proposal: &Proposal) -> Price {
        if proposal.cost.ends_job || self.paid || self.ordered || self.fenced {
            return Price::Nothing;
        }
        match proposal.counted {
            Counted::No if self.let_off => Price::Nothing,
            Counted::No if self.free_in_row < FREE_IN_ROW_MAX => Price::FreeRetry,
            Counted::No | Counted::Yes => Price::Token,
        }
    }
}
