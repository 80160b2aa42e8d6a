//! Links that are slower than others of their kind with equal operations and sizes.

use super::series::{self, Onset};
use super::{VerdictRule, blame, evidence};
use crate::document::{Analysis, Blame};
use crate::links::{Transfer, kind_name};
use crate::model::LinkKind;
use crate::tables::{column, float, mean, median};
use std::collections::{BTreeMap, BTreeSet};

/// Number of links with equal transfers that are needed for a comparison.
const LINKS_MIN: usize = 3;

/// Transfers that should take equally long.
type Class<'a> = (LinkKind, &'a str, u64);

/// Transfers of one link in one step: their time, and the time of equal transfers over other links.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    time_us: f64,
    usual_us: f64,
}

/// Returns the slow links. Links of a slow rank are left out: the rank explains them.
pub(super) fn slow_links(
    analysis: &Analysis,
    transfers: &[Transfer<'_>],
    slow_ranks: &BTreeSet<u32>,
    rule: &VerdictRule,
) -> Vec<Blame> {
    let usual = usual(transfers);
    let mut blamed = Vec::new();
    for link in transfers.chunk_by(|a, b| a.link() == b.link()) {
        let (source, destination, kind) = link[0].link();
        if source == destination || slow_ranks.contains(&source) || slow_ranks.contains(&destination) {
            continue;
        }
        let mut steps: BTreeMap<usize, Step> = BTreeMap::new();
        for transfer in link {
            if let (Some(column), Some(usual)) = (transfer.column, usual.get(&class(transfer))) {
                let step = steps.entry(column).or_default();
                step.time_us += float(transfer.time_ns) / 1000.0;
                step.usual_us += usual;
            }
        }
        let steps: Vec<(usize, Step)> = steps.into_iter().filter(|(column, _)| *column > 0).collect();
        let excess: Vec<f64> = steps.iter().map(|(_, step)| step.time_us / step.usual_us - 1.0).collect();
        let noise = series::noise([excess.as_slice()]);
        let Some(onset) = series::onset(&excess, rule.link_percent / 100.0, noise, rule.steps_min) else { continue };
        let affected = &steps[onset.first..onset.end];
        let onset = Onset { first: affected[0].0, end: affected[affected.len() - 1].0 + 1, ..onset };
        blamed.extend(blame_link(analysis, (source, destination, kind), affected, &onset, rule));
    }
    blamed
}

fn class<'a>(transfer: &Transfer<'a>) -> Class<'a> {
    (transfer.kind, transfer.operation(), transfer.bytes)
}

/// Returns the usual time of each class in microseconds: the median of the medians of its links.
fn usual<'a>(transfers: &[Transfer<'a>]) -> BTreeMap<Class<'a>, f64> {
    let mut classes: BTreeMap<Class<'a>, Vec<f64>> = BTreeMap::new();
    for link in transfers.chunk_by(|a, b| a.link() == b.link()) {
        let mut of_link: BTreeMap<Class<'a>, Vec<f64>> = BTreeMap::new();
        for transfer in link {
            of_link.entry(class(transfer)).or_default().push(float(transfer.time_ns) / 1000.0);
        }
        for (class, times) in of_link {
            classes.entry(class).or_default().extend(median(times));
        }
    }
    classes.retain(|_, links| links.len() >= LINKS_MIN);
    let of = |(class, links)| Some((class, median(links).filter(|usual| *usual > 0.0)?));
    classes.into_iter().filter_map(of).collect()
}

fn blame_link(
    analysis: &Analysis,
    (source, destination, kind): (u32, u32, LinkKind),
    steps: &[(usize, Step)],
    onset: &Onset,
    rule: &VerdictRule,
) -> Option<Blame> {
    let sum =
        |of: &dyn Fn(&Step) -> f64| steps.iter().map(|(_, step)| of(step)).sum::<f64>() / float(steps.len() as u64);
    let (time, usual) = (sum(&|step| step.time_us), sum(&|step| step.usual_us));
    let totals = steps.iter().filter_map(|(at, _)| mean(column(&analysis.breakdown.total_us, *at).map(float)));
    let step = mean(totals)?;
    if (time - usual) * 100.0 < rule.link_of_step_percent * step {
        return None;
    }
    let component = format!("link {source} -> {destination}");
    let first = analysis.steps.get(onset.first).copied();
    let percent = (time / usual - 1.0) * 100.0;
    let mut blame = blame(component, vec![source, destination], "slow-link", first, percent, onset);
    let kind = kind_name(kind);
    blame.evidence.push(evidence(
        "transfer time per step in us",
        time,
        Some(usual),
        format!(
            "Transfers from rank {source} to rank {destination} ({kind}) take {:.2} ms per step; equal transfers over other \
             links of this kind take {:.2} ms.",
            time / 1000.0,
            usual / 1000.0
        ),
    ));
    blame.evidence.push(evidence(
        "excess transfer time in percent of the step",
        (time - usual) * 100.0 / step,
        Some(rule.link_of_step_percent),
        format!("The excess is {:.1} % of the mean step.", (time - usual) * 100.0 / step),
    ));
    Some(blame)
}
