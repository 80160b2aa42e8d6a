//! The verdict on a slow rank, in words and figures.
//!
//! It decides nothing.

use super::watch::{Entry, Limits, Watch};
use super::{NAME, median};
use crate::detect::{Clue, Damage, Fault, FaultClass, Sound, Suspect};
use crate::job::{Domain, Name, NodeId, Rank, Role};
use crate::kernel::View;
use std::collections::BTreeMap;

/// It is still able to train, and is waited for: nothing is lost yet.
const SLOW: Damage = Damage { process: Sound::Yes, state: Sound::Yes, device: Sound::Unknown, program: Sound::Unknown };

/// What a blamed rank is blamed for.
pub(super) fn fault(rank: Rank, watches: &BTreeMap<u32, Watch>, limits: &Limits, view: &View) -> Option<Fault> {
    let watch = watches.get(&rank.0)?;
    let first = watch.recent.front()?;
    let figures = Figures::of(watch);
    let cause = figures.cause();
    let domain = Domain::Process(Role::Rank(rank));
    // A second figure of its own that agrees makes it surer than the others' waiting alone.
    let confidence_permille = if cause.is_some() { 900 } else { 800 };
    let suspect = Suspect { domain, class: FaultClass::Slow, damage: SLOW, confidence_permille };
    let mut fault = Fault::new(NAME, first.sample.began.min(view.now), suspect)
        .of(view.proc(&Role::Rank(rank)).map(|proc| proc.incarnation))
        .because(figures.own_time(rank, watches))
        .because(figures.waited_for())
        .because(onset_clue(first.step));
    fault.clues.extend(cause);
    let Some((host, ranks)) = slow_host(rank, watches, limits, view) else { return Some(fault) };
    let text = format!("all {ranks} ranks of {host} have become slower: it may be the host");
    let suspect =
        Suspect { domain: Domain::Node(host), class: FaultClass::Slow, damage: SLOW, confidence_permille: 600 };
    Some(fault.or(suspect).because(Clue::text("slow_host", text)))
}

fn onset_clue(step: u64) -> Clue {
    #[allow(clippy::cast_precision_loss, reason = "steps are fewer than 2^52")]
    let value = step as f64;
    Clue::figure("slow_onset_step", value, None, format!("it began at step {step}, as far as can be told"))
}

/// The rank's host, if none of its ranks is as fast as usual, and there are others.
fn slow_host(rank: Rank, watches: &BTreeMap<u32, Watch>, limits: &Limits, view: &View) -> Option<(NodeId, usize)> {
    let host_of = |rank: u32| view.proc(&Role::Rank(Rank(rank)))?.node.as_ref();
    let host = host_of(rank.0)?;
    let (here, elsewhere): (Vec<_>, Vec<_>) = watches.iter().partition(|(rank, _)| host_of(**rank) == Some(host));
    let is_slow = here.len() > 1 && here.iter().all(|(_, watch)| watch.is_suspicious(limits));
    (is_slow && !elsewhere.is_empty()).then(|| (host.clone(), here.len()))
}

/// The median step since the onset, in nanoseconds.
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

    fn own_time(&self, rank: Rank, watches: &BTreeMap<u32, Watch>) -> Clue {
        let (own, usual) = (self.own / 1e6, self.usual / 1e6);
        let text = format!(
            "{rank} needs {own:.1} ms a step for its own part, {:.0} % more than the {usual:.1} ms that would be usual \
             for it, beside the other ranks",
            (own / usual - 1.0) * 100.0
        );
        let peers = watches.keys().map(|peer| Rank(*peer)).filter(|peer| *peer != rank).collect();
        Clue { peers, ..Clue::figure("slow_own_time_ms", own, usual, text) }
    }

    fn waited_for(&self) -> Clue {
        let recent = &self.watch.recent;
        let waited = recent.iter().filter(|e| e.is_waited_for()).count();
        let (its, others) = (self.median(|e| e.sample.wait) / 1e6, self.median(|e| e.others_wait) / 1e6);
        let text = format!(
            "the others waited for it in {waited} of {} steps: {others:.1} ms a step, where it waited {its:.1} ms",
            recent.len()
        );
        Clue::figure("slow_waited_for_ms", its, others, text)
    }

    /// What the time went into, where that is known.
    fn cause(&self) -> Option<Clue> {
        let extra = self.own - self.usual;
        let (data, usual_data) = (self.median(|e| e.sample.data), self.watch.normal.data);
        if data - usual_data >= extra / 2.0 {
            let text = format!(
                "it waits for data: {:.1} ms a step, where {:.1} ms are usual: look at its loader, its files, its disk",
                data / 1e6,
                usual_data / 1e6
            );
            return Some(Clue::figure(Name::new("slow_data"), data / 1e6, usual_data / 1e6, text));
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
                "it does not get its CPU: others are on its core, or it is stopped, or sleeps, again and again",
            )
        };
        let text = format!("its thread was on a CPU for {share:.0} % of that time, usual are {usual:.0} %: {meaning}");
        Some(Clue::figure(Name::new(name), share, usual, text))
    }
}
