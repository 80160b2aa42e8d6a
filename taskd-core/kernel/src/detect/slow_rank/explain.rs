//! Formats the fault of a slow rank: evidence in words and figures.
//!
//! This module makes no decisions.

use super::watch::{Entry, Limits, Watch};
use super::{NAME, median};
use crate::detect::device_steps::Basis;
use crate::detect::{Damage, Evidence, Fault, FaultClass, Health, Suspect};
use crate::job::{Domain, Name, NodeId, Rank, Role};
use crate::state::View;
use std::collections::BTreeMap;

/// Damage of a slow rank: it is still able to train, and nothing is lost yet.
const SLOW: Damage =
    Damage { process: Health::Healthy, state: Health::Healthy, device: Health::Unknown, program: Health::Unknown };

/// Creates the fault of a blamed rank.
pub(super) fn fault(
    rank: Rank,
    watches: &BTreeMap<u32, Watch>,
    limits: &Limits,
    basis: Basis,
    view: &View,
) -> Option<Fault> {
    let watch = watches.get(&rank.0)?;
    let first = watch.recent.front()?;
    let figures = Figures::of(watch);
    let cause = figures.cause();
    let domain = Domain::Process(Role::Rank(rank));
    // A known cause, which is a second figure of the rank itself, adds confidence to the others' waiting times.
    let confidence_permille = if cause.is_some() { 900 } else { 800 };
    let suspect = Suspect { domain, class: FaultClass::Slow, damage: SLOW, confidence_permille };
    let mut fault = Fault::new(NAME, first.sample.began.min(view.now), suspect)
        .with_incarnation(view.proc(&Role::Rank(rank)).map(|proc| proc.incarnation))
        .with_evidence(figures.own_time(rank, watches))
        .with_evidence(figures.waited_for())
        .with_evidence(onset_clue(first.step));
    let is_of_device = basis == Basis::Device && cause.is_none();
    fault.evidence.extend(cause.or_else(|| is_of_device.then(device_clue)));
    let Some((host, ranks)) = slow_host(rank, watches, limits, view) else { return Some(fault) };
    let text = format!("all {ranks} ranks of {host} have become slower: the host may be the cause");
    let suspect =
        Suspect { domain: Domain::Node(host), class: FaultClass::Slow, damage: SLOW, confidence_permille: 600 };
    Some(fault.with_suspect(suspect).with_evidence(Evidence::text("slow_host", text)))
}

fn device_clue() -> Evidence {
    let text = "its device computes longer, measured by the device itself: a slower device, or more work for it";
    Evidence::text("slow_device", text)
}

fn onset_clue(step: u64) -> Evidence {
    #[allow(clippy::cast_precision_loss, reason = "steps are fewer than 2^52")]
    let value = step as f64;
    Evidence::figure("slow_onset_step", value, None, format!("the slowdown began at about step {step}"))
}

/// Returns the rank's host and its number of ranks, if all of them (at least two) are suspicious and other hosts exist.
fn slow_host(rank: Rank, watches: &BTreeMap<u32, Watch>, limits: &Limits, view: &View) -> Option<(NodeId, usize)> {
    let host_of = |rank: u32| view.proc(&Role::Rank(Rank(rank)))?.node.as_ref();
    let host = host_of(rank.0)?;
    let (here, elsewhere): (Vec<_>, Vec<_>) = watches.iter().partition(|(rank, _)| host_of(**rank) == Some(host));
    let is_slow = here.len() > 1 && here.iter().all(|(_, watch)| watch.is_suspicious(limits));
    (is_slow && !elsewhere.is_empty()).then(|| (host.clone(), here.len()))
}

/// Medians over the steps since the onset, in nanoseconds.
struct Figures<'a> {
    watch: &'a Watch,
    own: f64,
    usual: f64,
}

impl<'a> Figures<'a> {
    fn of(watch: &'a Watch) -> Figures<'a> {
        let figures = Figures { watch, own: 0.0, usual: 0.0 };
        let (own, usual) = (figures.median(|e| e.sample.own), figures.median(|e| e.usual));
        Figures { own, usual, ..figures }
    }

    fn median(&self, figure: impl Fn(&Entry) -> f64) -> f64 {
        median(self.watch.recent.iter().map(figure).collect())
    }

    fn own_time(&self, rank: Rank, watches: &BTreeMap<u32, Watch>) -> Evidence {
        let (own, usual) = (self.own / 1e6, self.usual / 1e6);
        let text = format!(
            "{rank} needs {own:.1} ms a step for its own part, {:.0} % more than the {usual:.1} ms that it usually \
             needs relative to the other ranks",
            (own / usual - 1.0) * 100.0
        );
        let peers = watches.keys().map(|peer| Rank(*peer)).filter(|peer| *peer != rank).collect();
        Evidence { peers, ..Evidence::figure("slow_own_time_ms", own, usual, text) }
    }

    fn waited_for(&self) -> Evidence {
        let recent = &self.watch.recent;
        let waited = recent.iter().filter(|e| e.is_waited_for()).count();
        let (its, others) = (self.median(|e| e.sample.wait) / 1e6, self.median(|e| e.others_wait) / 1e6);
        let text = format!(
            "the other ranks waited for it in {waited} of {} steps: {others:.1} ms a step, while it waited {its:.1} ms",
            recent.len()
        );
        Evidence::figure("slow_waited_for_ms", its, others, text)
    }

    /// Returns evidence of what the excess time was spent on, if that is known.
    fn cause(&self) -> Option<Evidence> {
        let extra = self.own - self.usual;
        let (data, usual_data) = (self.median(|e| e.sample.data), self.watch.normal.data);
        if data - usual_data >= extra / 2.0 {
            let text = format!(
                "it waits for data: {:.1} ms a step, usually {:.1} ms: check its loader, files and disk",
                data / 1e6,
                usual_data / 1e6
            );
            return Some(Evidence::figure(Name::new("slow_data"), data / 1e6, usual_data / 1e6, text));
        }
        let shares: Vec<f64> = self.watch.recent.iter().filter_map(|e| Some(e.sample.cpu? / e.sample.own)).collect();
        let usual = self.watch.normal.cpu_share.filter(|_| !shares.is_empty())? * 100.0;
        let share = median(shares) * 100.0;
        let extra_on_cpu = (share * self.own - usual * self.usual) / 100.0;
        let (name, meaning) = if extra_on_cpu >= extra / 2.0 {
            ("slow_computing", "it computes longer: more work, slower code, or a slower core")
        } else {
            (
                "slow_starved",
                "it does not get its CPU: other threads use its core, or it is stopped or sleeps repeatedly",
            )
        };
        let text = format!("its thread was on a CPU for {share:.0} % of that time, usually {usual:.0} %: {meaning}");
        Some(Evidence::figure(Name::new(name), share, usual, text))
    }
}
