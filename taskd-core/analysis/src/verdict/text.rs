//! The verdict in words for an engineer on call: the component, the figure, the first step, and what to do.

use super::judge::Judgement;
use super::rows::Job;
use super::{Cause, SlowRank, VerdictRule, blame, evidence, series};
use crate::document::{Analysis, Blame};
use crate::tables::{capitalized, column, float, mean, median};
use std::collections::BTreeMap;
use taskd_kernel::detect::fail_slow::{self, LEARN_STEPS, WARM_UP_STEPS};

impl Cause {
    /// Name of the cause, as the supervisor's detector names it.
    const fn name(self) -> &'static str {
        match self {
            Cause::Rank => "slow-rank",
            Cause::Input => "slow-input",
            Cause::Checkpoint => "slow-checkpoint",
        }
    }
}

/// Blames each slow rank, or a host if all of its ranks are slow and another host has none.
pub(super) fn blame_ranks(analysis: &Analysis, slow: &[SlowRank]) -> Vec<Blame> {
    let mut hosts: BTreeMap<&str, usize> = BTreeMap::new();
    for host in analysis.ranks.iter().filter_map(|rank| rank.host.as_deref()) {
        *hosts.entry(host).or_default() += 1;
    }
    let mut of_host: BTreeMap<(Option<&str>, Cause), Vec<&SlowRank>> = BTreeMap::new();
    for slow in slow {
        of_host.entry((analysis.ranks[slow.row].host.as_deref(), slow.cause)).or_default().push(slow);
    }
    let mut blamed = Vec::new();
    for ((host, _), slow) in of_host {
        match host.filter(|host| slow.len() > 1 && hosts.len() > 1 && hosts.get(host) == Some(&slow.len())) {
            Some(host) => blamed.extend(merged(analysis, host, &slow)),
            None => blamed.extend(slow.iter().map(|slow| blame_rank(analysis, slow))),
        }
    }
    blamed
}

/// Blames a host with the evidence of its ranks.
fn merged(analysis: &Analysis, host: &str, slow: &[&SlowRank]) -> Option<Blame> {
    let mut all: Vec<Blame> = slow.iter().map(|slow| blame_rank(analysis, slow)).collect();
    all.sort_by(|a, b| b.slowdown_percent.total_cmp(&a.slowdown_percent));
    let mut blame = all.first()?.clone();
    blame.component = format!("host {host}");
    blame.ranks = slow.iter().map(|slow| analysis.ranks[slow.row].rank).collect();
    blame.onset_step = all.iter().filter_map(|blame| blame.onset_step).min();
    if blame.cause == Cause::Rank.name() {
        blame.cause = "slow-host".to_owned();
    }
    blame.evidence = all.into_iter().flat_map(|blame| blame.evidence).collect();
    Some(blame)
}

fn blame_rank(analysis: &Analysis, slow: &SlowRank) -> Blame {
    let rank = analysis.ranks[slow.row].rank;
    let step = analysis.steps.get(slow.onset.first).copied();
    let percent = slow.onset.level * 100.0;
    let mut blame = blame(format!("rank {rank}"), vec![rank], slow.cause.name(), step, percent, &slow.onset);
    let what = match slow.cause {
        Cause::Rank => "needs",
        Cause::Input => "with its wait for data needs",
        Cause::Checkpoint => "with its checkpoint needs",
    };
    blame.evidence.push(evidence(
        "own time per step in us",
        slow.own_us,
        Some(slow.peers_us),
        format!(
            "Rank {rank} {what} {:.2} ms of its own per step; the other ranks of its stage need {:.2} ms.",
            slow.own_us / 1000.0,
            slow.peers_us / 1000.0
        ),
    ));
    blame.evidence.push(evidence(
        "wait of a peer per step in us",
        slow.waited_us,
        None,
        format!(
            "The other ranks of its stage wait {:.2} ms per step longer than rank {rank}.",
            slow.waited_us / 1000.0
        ),
    ));
    let steps = slow.onset.end - slow.onset.first;
    blame.evidence.push(evidence(
        "affected steps in percent",
        slow.onset.share * 100.0,
        None,
        format!("{:.0} % of the steps in this range of {steps} are affected.", slow.onset.share * 100.0),
    ));
    blame
}

/// Returns the sentence that begins the page. `is_judged` is true if the engine judged steps.
pub(super) fn sentence(
    analysis: &Analysis,
    blamed: &[Blame],
    notes: &[String],
    rule: &VerdictRule,
    is_judged: bool,
) -> String {
    let Some(first) = blamed.first() else { return without_blame(analysis, notes, rule, is_judged) };
    let component = capitalized(&first.component);
    let since = first.onset_step.map_or_else(String::new, |step| format!(" since step {step}"));
    let since = first.until_step.map_or(since.clone(), |until| format!("{since} until step {until}"));
    let percent = first.slowdown_percent;
    let place = analysis
        .ranks
        .iter()
        .find(|rank| first.ranks.first() == Some(&rank.rank))
        .and_then(|rank| rank.host.clone())
        .map_or_else(String::new, |host| format!(" (host {host})"));
    let mut sentence = match first.cause.as_str() {
        "slow-link" if first.judged_by == super::BY_ENGINE => format!(
            "The transfers of {} take {percent:.0} % longer{since}, while its ranks compute as usual: check its cables, ports \
             and error counters.",
            first.component
        ),
        "slow-link" => format!(
            "{component} transfers {percent:.0} % longer than links of its kind{since}: check its cable, port and \
             error counters."
        ),
        "slow-input" => format!(
            "{component}{place} takes {percent:.0} % longer than its peers{since}, because it waits for its data: check its \
             data loader, its storage and its CPU load."
        ),
        "slow-checkpoint" => format!(
            "{component}{place} takes {percent:.0} % longer than its peers in steps with a checkpoint{since}: check the \
             storage to which it writes."
        ),
        "slow-host" => format!(
            "{component} computes {percent:.0} % longer than its peers{since}, on all of its ranks: check its power, \
             temperature and other processes, or exclude it."
        ),
        _ => format!(
            "{component}{place} computes {percent:.0} % longer than its peers{since}, and they wait for it: check the clock, \
             the temperature and other processes of its device, or exclude it."
        ),
    };
    if blamed.len() > 1 {
        let others: Vec<&str> = blamed[1..].iter().map(|blame| blame.component.as_str()).collect();
        sentence += &format!(" Also slow: {}.", others.join(", "));
    }
    sentence
}

fn without_blame(analysis: &Analysis, notes: &[String], rule: &VerdictRule, is_judged: bool) -> String {
    if let Some(incident) = analysis.incidents.first() {
        let count = analysis.incidents.len();
        return format!("The supervisor recorded {count} incident(s); the first: {}", incident.sentence);
    }
    let (ranks, steps) = (analysis.ranks.len(), analysis.steps.len());
    if ranks == 0 || steps == 0 {
        return "The trace has no events: there is nothing to judge.".to_owned();
    }
    let times = (0..steps).filter_map(|at| mean(column(&analysis.breakdown.total_us, at).map(float)));
    let step = mean(times).map_or_else(String::new, |us| format!(" A step takes {:.2} ms on average.", us / 1000.0));
    if ranks < 2 || steps <= rule.steps_min {
        return format!(
            "No component is blamed: no rank stands out from its peers in each step, and {ranks} rank(s) and {steps} step(s) \
             are too few for more, which needs two ranks of a stage and {} steps.{step}",
            rule.steps_min + 1
        );
    }
    let all = match is_judged {
        true => notes.iter().map(|note| format!(" {note}")).collect(),
        false => slower_job(analysis, rule).unwrap_or_default(),
    };
    format!("No rank or link is persistently slower than its peers ({ranks} ranks, {steps} steps).{all}{step}")
}

/// States since when the steps of the whole job are longer than in its first quarter.
fn slower_job(analysis: &Analysis, rule: &VerdictRule) -> Option<String> {
    let of_step = |at| mean(column(&analysis.breakdown.total_us, at).map(float));
    let times: Vec<(usize, f64)> = (1..analysis.steps.len()).filter_map(|at| Some((at, of_step(at)?))).collect();
    let first = times.get(..(times.len() / 4).max(rule.steps_min))?;
    let usual = median(first.iter().map(|time| time.1).collect()).filter(|usual| *usual > 0.0)?;
    let excess: Vec<f64> = times.iter().map(|time| time.1 / usual - 1.0).collect();
    let noise = series::noise([excess.as_slice()]);
    let onset = series::onset(&excess, rule.rank_percent / 100.0, noise, rule.steps_min)?;
    let step = analysis.steps.get(times.get(onset.first)?.0)?;
    Some(format!(
        " The steps of all ranks take {:.0} % longer since step {step}: look at the script, the data, or a service that all \
         ranks use.",
        onset.level * 100.0
    ))
}

/// Returns a verdict of the engine that blames no component, as a sentence.
pub(super) fn note(component: &str, verdict: &fail_slow::Verdict, until: Option<u64>) -> String {
    let (percent, step) = (verdict.slowdown_percent, verdict.onset_step);
    let until = until.map_or_else(String::new, |until| format!(" until step {until}"));
    let what = match verdict.cause {
        fail_slow::Cause::GlobalSlowdown => {
            return format!(
                "The steps of all ranks take {percent:.0} % longer since step {step}{until}: look at the script, the data, or \
                 a service that all ranks use."
            );
        }
        fail_slow::Cause::SlowStage => "computes longer than the other stages: the partition is uneven",
        fail_slow::Cause::UnevenLoad => "has more work than its peers, on several ranks alike: the load is uneven",
        fail_slow::Cause::SlowLink => "transfers longer on all ranks: look at the network",
        fail_slow::Cause::SlowInput => "waits longer for data on all ranks: look at the storage of the data",
        fail_slow::Cause::SlowCheckpoint => "saves checkpoints longer on all ranks: look at their storage",
        fail_slow::Cause::SlowRank | fail_slow::Cause::SlowHost => "computes longer",
    };
    format!("{} {what} ({percent:.0} %, since step {step}{until}); no component is blamed.", capitalized(component))
}

/// Returns which rule judged the trace, as a sentence.
pub(super) fn judged_by(analysis: &Analysis, job: &Job, judgement: &Judgement) -> String {
    let steps = analysis.steps.len();
    let needed = WARM_UP_STEPS as usize + LEARN_STEPS;
    let figures = match job.is_recorded {
        true => "with the figures that the detector of the running job gets",
        false => "with figures from the events of this trace",
    };
    match judgement.learned_at {
        Some(learned) => format!(
            "Judged by the fail-slow detector {figures}: {} steps after step {learned}, until which it learned the usual times \
             of each rank. Slow-downs that began earlier are judged by comparing the ranks of a stage in each step.",
            judgement.judged
        ),
        None => format!(
            "Judged by comparing the ranks of a stage in each of {steps} steps: the fail-slow detector of running jobs learns \
             the usual times from {needed} steps, and judges longer traces."
        ),
    }
}
