//! Turns the culprits of a verdict into blames: patience, the suspects' activity and stacks, and withdrawals.
//!
//! This part of the detector schedules no looks.

use super::activity::Activity;
use super::look::Look;
use super::stacks::{Held, STACKS_MAX};
use super::verdict::{Culprit, Dispute, HangCause, HangVerdict, ranks};
use super::{ANSWERS_LATE, HangDetector, NAME, process};
use crate::detect::{Damage, Evidence, Fault, FaultClass, Findings, Health, Suspect};
use crate::job::{Domain, Incarnation, JobTime, Name, Rank};
use crate::state::View;
use crate::trace::{Probe, STACKS};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Timeout of the probe for the suspects' stacks. A blame waits for them for this time, and [`ANSWERS_LATE`].
const STACKS_WITHIN: Duration = Duration::from_millis(400);
/// Share of [`HangDetector::missing_after`], in percent, after which a missing rank is blamed if it has been blocked in a
/// disk, file server or driver for all of that time, and has computed nothing.
const BLOCKED_PERCENT: u32 = 40;

impl HangDetector {
    /// Notes what the ranks that are missing do. Ranks that are not missing any more are forgotten.
    pub(super) fn watch(&mut self, look: &Look, verdict: &HangVerdict) {
        let missing = verdict.culprits.iter().filter(|culprit| culprit.cause == HangCause::Missing);
        let missing: BTreeSet<u32> = missing.map(|culprit| culprit.rank.0).collect();
        self.state.activities.retain(|rank, _| missing.contains(rank));
        for rank in missing {
            let sighting = look.sighting(Rank(rank));
            match self.state.activities.get_mut(&rank) {
                Some(activity) => activity.add(sighting, look.began()),
                None => drop(self.state.activities.insert(rank, Activity::new(sighting, look.began()))),
            }
        }
    }

    /// Returns true if a culprit has been waited for long enough to blame it.
    fn is_due(&self, culprit: &Culprit) -> bool {
        let blocked = self.state.activities.get(&culprit.rank.0).map(Activity::blocked_for).unwrap_or_default();
        culprit.cause != HangCause::Missing
            || culprit.since >= self.missing_after
            || blocked.min(culprit.since) >= self.missing_after * BLOCKED_PERCENT / 100 && !blocked.is_zero()
    }

    /// Blames the causes found, and withdraws blames if their cause was not found again.
    pub(super) fn blame(&mut self, verdict: HangVerdict, at: JobTime, view: &View, out: &mut Findings) {
        let culprits: Vec<Culprit> = verdict.culprits.into_iter().filter(|culprit| self.is_due(culprit)).collect();
        let is_final = |dispute: &Dispute| !dispute.may_resolve || dispute.since >= self.missing_after;
        let dispute = verdict.dispute.filter(|dispute| culprits.is_empty() && is_final(dispute));
        let of = |culprit: &Culprit| (process(culprit.rank.0), class(culprit.cause));
        let mut found: BTreeMap<Domain, FaultClass> = culprits.iter().map(of).collect();
        found.extend(dispute.iter().map(|_| (Domain::Job, FaultClass::Stall)));
        for (domain, class) in std::mem::take(&mut self.state.blamed) {
            if found.get(&domain) == Some(&class) {
                self.state.blamed.insert(domain, class);
            } else if !self.state.held.as_mut().is_some_and(|held| held.drop_culprit(&domain)) {
                out.clear(domain, class);
            }
        }
        let mut new = Vec::new();
        for culprit in culprits {
            let (domain, class) = of(&culprit);
            if self.state.blamed.insert(domain, class).is_none() {
                new.push(culprit);
            }
        }
        self.hold(new, at, view, out);
        if let Some(dispute) = dispute
            && self.state.blamed.insert(Domain::Job, FaultClass::Stall).is_none()
        {
            let suspect = suspect(Domain::Job, FaultClass::Stall, Damage::default(), Suspect::BLAME_PERMILLE_MIN);
            let fault = Fault::new(NAME, at.before(dispute.since), suspect);
            out.blame(fault.with_evidence(Evidence::text("hang_dispute", dispute.to_string())));
        }
    }

    /// Requests the stacks of new culprits, and holds their blames until the replies. Processes that have ended have
    /// none.
    fn hold(&mut self, culprits: Vec<Culprit>, at: JobTime, view: &View, out: &mut Findings) {
        if culprits.is_empty() {
            return;
        }
        self.release(view, out); // at most one request is open
        let live = culprits.iter().filter(|culprit| culprit.cause != HangCause::Ended);
        let asked: BTreeSet<u32> = live.map(|culprit| culprit.rank.0).take(STACKS_MAX).collect();
        let is_without = asked.is_empty();
        let tag = self.state.tag;
        if !is_without {
            let about = asked.iter().map(|rank| process(*rank)).collect();
            out.probe(Probe { by: NAME, tag, what: STACKS, about, timeout: STACKS_WITHIN });
        }
        self.state.held = Some(Held::new(culprits, asked, tag, at, view.now + STACKS_WITHIN + ANSWERS_LATE));
        if is_without {
            self.release(view, out);
        }
    }

    /// Blames the culprits that are held, with the stacks that have arrived. A rank that has failed in the meantime, or
    /// was stopped for a recovery, is none.
    pub(super) fn release(&mut self, view: &View, out: &mut Findings) {
        let Some(held) = self.state.held.take() else { return };
        let is_changing = view.stopped().next().is_some();
        for culprit in &held.culprits {
            if is_changing || view.failed().any(|rank| rank == culprit.rank) {
                self.state.blamed.remove(&process(culprit.rank.0));
                continue;
            }
            let activity = self.state.activities.get(&culprit.rank.0);
            let activity = activity.filter(|_| culprit.cause == HangCause::Missing);
            let mut fault = fault(culprit, held.at, view);
            let clues = [activity.and_then(|activity| activity.evidence(culprit.rank)), held.evidence(culprit.rank)];
            for clue in clues.into_iter().flatten() {
                fault = fault.with_evidence(clue);
            }
            out.blame(fault);
        }
    }
}

fn suspect(domain: Domain, class: FaultClass, damage: Damage, confidence_permille: u16) -> Suspect {
    Suspect { domain, class, damage, confidence_permille }
}

/// Returns the class of the fault of a culprit.
const fn class(cause: HangCause) -> FaultClass {
    match cause {
        HangCause::Frozen { .. } | HangCause::Unreported => FaultClass::Silence,
        HangCause::Ended => FaultClass::Exit,
        HangCause::Skipped | HangCause::Mismatch => FaultClass::Program,
        HangCause::Missing => FaultClass::Stall,
    }
}

/// Creates the fault for a culprit.
pub(super) fn fault(culprit: &Culprit, at: JobTime, view: &View) -> Fault {
    let there = Damage { process: Health::Healthy, ..Damage::default() };
    let (clue, damage, confidence) = match culprit.cause {
        HangCause::Frozen { is_certain } => {
            let damage = Damage { process: Health::Faulty, ..Damage::default() };
            ("hang_frozen", damage, if is_certain { 1000 } else { 850 })
        }
        HangCause::Ended => ("hang_ended", Damage::PROCESS_GONE, 900),
        HangCause::Skipped => ("hang_skipped", there, 900),
        HangCause::Mismatch => ("hang_mismatch", there, 900),
        HangCause::Missing => ("hang_missing", Damage::default(), 700),
        HangCause::Unreported => ("hang_unreported", Damage::default(), 700),
    };
    let class = class(culprit.cause);
    let domain = process(culprit.rank.0);
    let of: Option<Incarnation> = view.proc_of(&domain).map(|proc| proc.incarnation);
    let waiting_ms = culprit.since.as_secs_f64() * 1e3;
    let text = format!("waiting in it for {:.1} s: {}", culprit.since.as_secs_f64(), ranks(&culprit.waiting));
    let waiting =
        Evidence { peers: culprit.waiting.clone(), ..Evidence::figure("hang_waiting_ms", waiting_ms, None, text) };
    Fault::new(NAME, at.before(culprit.since), suspect(domain, class, damage, confidence))
        .with_incarnation(of)
        .with_evidence(Evidence::text(Name::new(clue), culprit.to_string()))
        .with_evidence(waiting)
}
