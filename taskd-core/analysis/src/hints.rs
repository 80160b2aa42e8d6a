//! Observations that may help: the rules of MindSpore Insight's assistant, with its thresholds as defaults.
//!
//! The first step is left out of all means, because it includes the warm-up.

use crate::document::{Analysis, Hint, Link, Table};
use crate::tables::{float, mean, rounded, row_mean};
use std::collections::BTreeMap;

/// Maximum number of hints of one rule; the last one of a rule states how many more there are.
const OF_RULE_MAX: usize = 5;

/// Thresholds of the hints. Percentages are of the mean of all ranks, unless another base is named.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// Interval between a step's start and its forward pass above the mean of its stage; default 20.
    pub interval_percent: f64,
    /// Floating-point operations per second below the mean; default 20.
    pub flops_percent: f64,
    /// Bandwidth of a link below the mean of links of its kind with messages of the same size class, a power of two;
    /// default 20.
    pub bandwidth_percent: f64,
    /// Mean size of a message in bytes below which the latency and not the bandwidth counts; default 65,536.
    pub message_bytes_min: u64,
    /// Communication that is not overlapped, of the step; default 10. For jobs without a pipeline.
    pub communication_percent: f64,
    /// Receives that are not overlapped (the bubble), of the step; default 10. For jobs with a pipeline.
    pub receive_percent: f64,
    /// Collectives that are not overlapped, of the step; default 10. For jobs with a pipeline.
    pub collective_percent: f64,
    /// Floating-point operations of a stage above the mean of the stages; default 20.
    pub stage_flop_percent: f64,
    /// Interval of a rank of the first stage in milliseconds; default 0.5. Other stages wait for the first one.
    pub interval_ms: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            interval_percent: 20.0,
            flops_percent: 20.0,
            bandwidth_percent: 20.0,
            message_bytes_min: 65_536,
            communication_percent: 10.0,
            receive_percent: 10.0,
            collective_percent: 10.0,
            stage_flop_percent: 20.0,
            interval_ms: 0.5,
        }
    }
}

/// A measured value of a rank, before it is a hint.
#[derive(Clone, Copy, Debug)]
struct Value {
    rank: Option<u32>,
    value: f64,
    mean: f64,
}

/// Returns the hints, the largest excess of each rule first.
pub(crate) fn hints(analysis: &Analysis, thresholds: &Thresholds) -> Vec<Hint> {
    let mut hints = Vec::new();
    intervals(analysis, thresholds, &mut hints);
    flops(analysis, thresholds, &mut hints);
    bandwidths(&analysis.communication.links, thresholds, &mut hints);
    shares(analysis, thresholds, &mut hints);
    hints
}

/// Adds the hints of one rule, the farthest values first.
fn add(hints: &mut Vec<Hint>, rule: &str, unit: &str, mut values: Vec<Value>, text: impl Fn(&Value) -> String) {
    values.sort_by(|a, b| (b.value - b.mean).abs().total_cmp(&(a.value - a.mean).abs()));
    let more = values.len().saturating_sub(OF_RULE_MAX);
    values.truncate(OF_RULE_MAX);
    let last = values.len().wrapping_sub(1);
    hints.extend(values.into_iter().enumerate().map(|(at, value)| Hint {
        rule: rule.to_owned(),
        rank: value.rank,
        step: None,
        value: rounded(value.value),
        mean: rounded(value.mean),
        unit: unit.to_owned(),
        text: if at == last && more > 0 {
            format!("{} {more} more exceed this threshold.", text(&value))
        } else {
            text(&value)
        },
    }));
}

/// Means of the rows of a table as floating-point numbers.
fn row_means(table: &Table) -> Vec<Option<f64>> {
    table.iter().map(|row| row_mean(row).map(float)).collect()
}

fn intervals(analysis: &Analysis, thresholds: &Thresholds, hints: &mut Vec<Hint>) {
    let mut stages: BTreeMap<Option<u32>, Vec<(u32, f64)>> = BTreeMap::new();
    for (info, us) in analysis.ranks.iter().zip(row_means(&analysis.breakdown.interval_us)) {
        stages.entry(info.stage).or_default().extend(us.map(|us| (info.rank, us / 1000.0)));
    }
    let (mut above, mut long) = (Vec::new(), Vec::new());
    for (at, ranks) in stages.into_values().enumerate() {
        let Some(mean) = mean(ranks.iter().map(|rank| rank.1)) else { continue };
        for (rank, ms) in &ranks {
            let value = Value { rank: Some(*rank), value: *ms, mean };
            if ranks.len() > 1 && *ms > mean * (1.0 + thresholds.interval_percent / 100.0) {
                above.push(value);
            } else if at == 0 && *ms > thresholds.interval_ms {
                long.push(value);
            }
        }
    }
    add(hints, "step-interval", "ms", above, |value| {
        format!(
            "Rank {} starts its forward pass {:.2} ms after the step, the mean of its stage is {:.2} ms: check its data \
             loader and the CPU of its host.",
            value.rank.unwrap_or_default(),
            value.value,
            value.mean
        )
    });
    add(hints, "iteration-interval", "ms", long, |value| {
        format!(
            "Rank {} starts its forward pass {:.2} ms after the step (more than {} ms): prefetch the next batch, or use more \
             workers of the data loader.",
            value.rank.unwrap_or_default(),
            value.value,
            thresholds.interval_ms
        )
    });
}

fn flops(analysis: &Analysis, thresholds: &Thresholds, hints: &mut Vec<Hint>) {
    let known = analysis.ranks.iter().filter_map(|rank| Some((rank.rank, rank.flop_per_second?)));
    let known: Vec<(u32, f64)> = known.collect();
    if let Some(mean) = mean(known.iter().map(|known| known.1)) {
        let low = known.iter().filter(|known| known.1 < mean * (1.0 - thresholds.flops_percent / 100.0));
        let low = low.map(|&(rank, value)| Value { rank: Some(rank), value, mean }).collect();
        add(hints, "flops", "FLOP/s", low, |value| {
            format!(
                "Rank {} computes {:.3e} FLOP/s, the mean is {mean:.3e}: check the clock and temperature of its device, and \
                 whether it waits.",
                value.rank.unwrap_or_default(),
                value.value
            )
        });
    }
    let mut stages: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for rank in &analysis.ranks {
        if let (Some(stage), Some(flop)) = (rank.stage, rank.flop_per_step) {
            stages.entry(stage).or_default().push(flop);
        }
    }
    let stages: Vec<(u32, f64)> = stages.into_iter().filter_map(|(stage, flop)| Some((stage, mean(flop)?))).collect();
    let Some(mean) = mean(stages.iter().map(|stage| stage.1)) else { return };
    for (stage, value) in
        stages.into_iter().filter(|stage| stage.1 > mean * (1.0 + thresholds.stage_flop_percent / 100.0))
    {
        add(hints, "stage-flops", "FLOP", vec![Value { rank: None, value, mean }], |_| {
            format!(
                "Stage {stage} has {value:.3e} floating-point operations per step, the mean of the stages is {mean:.3e}: move \
                 layers to other stages."
            )
        });
    }
}

fn bandwidths(links: &[Link], thresholds: &Thresholds, hints: &mut Vec<Hint>) {
    let mut kinds: BTreeMap<(&str, u32), Vec<(&Link, f64)>> = BTreeMap::new();
    for link in links.iter().filter(|link| link.source != link.destination) {
        let message = link.bytes.checked_div(link.count).unwrap_or_default();
        if let Some(bandwidth) = link.bytes_per_second.filter(|_| message >= thresholds.message_bytes_min) {
            let class = message.checked_ilog2().unwrap_or_default();
            kinds.entry((&link.kind, class)).or_default().push((link, bandwidth));
        }
    }
    for ((kind, _), links) in kinds {
        let Some(mean) = mean(links.iter().map(|link| link.1)) else { continue };
        let mut low: Vec<(&Link, f64)> = links;
        low.retain(|link| link.1 < mean * (1.0 - thresholds.bandwidth_percent / 100.0));
        low.sort_by(|a, b| a.1.total_cmp(&b.1));
        let more = low.len().saturating_sub(OF_RULE_MAX);
        let count = low.len().min(OF_RULE_MAX);
        for (at, (link, value)) in low.into_iter().take(OF_RULE_MAX).enumerate() {
            let more = if at + 1 == count && more > 0 {
                format!(" {more} more exceed this threshold.")
            } else {
                String::new()
            };
            let rank = Some(link.source);
            add(hints, "link-bandwidth", "bytes/s", vec![Value { rank, value, mean }], |_| {
                format!(
                    "The {kind} link {} -> {} has {:.2} GB/s, the mean of its kind with such messages is {:.2} GB/s: check the \
                     cable, the port and its error counters.{more}",
                    link.source,
                    link.destination,
                    value / 1e9,
                    mean / 1e9
                )
            });
        }
    }
}

/// Shares of communication in the step, which is computation plus communication that is not overlapped.
fn shares(analysis: &Analysis, thresholds: &Thresholds, hints: &mut Vec<Hint>) {
    let overlap = &analysis.overlap;
    let rules: [(&str, &Table, f64, &str); 3] = [
        (
            "communication-share",
            &overlap.communication_alone_us,
            thresholds.communication_percent,
            "in communication that no computation overlaps: overlap it with the backward pass, or change the degree of \
             parallelism",
        ),
        (
            "pipeline-bubble",
            &overlap.receive_alone_us,
            thresholds.receive_percent,
            "in receives: use more micro-batches, or balance the stages",
        ),
        (
            "collective-share",
            &overlap.collective_alone_us,
            thresholds.collective_percent,
            "in collectives of its stage that no computation overlaps: overlap them, or reduce the degree of tensor parallelism",
        ),
    ];
    let has_pipeline = analysis.pipeline.stages.len() > 1;
    let steps = row_means(&analysis.breakdown.total_us);
    for (rule, table, percent, advice) in rules {
        if has_pipeline == (rule == "communication-share") {
            continue;
        }
        let share = |(row, part): (usize, Option<f64>)| {
            let step = steps.get(row).copied().flatten().filter(|step| *step > 0.0)?;
            Some((analysis.ranks.get(row)?.rank, part? * 100.0 / step))
        };
        let shares: Vec<(u32, f64)> = row_means(table).into_iter().enumerate().filter_map(share).collect();
        let Some(mean) = mean(shares.iter().map(|share| share.1)) else { continue };
        let high = shares.into_iter().filter(|share| share.1 > percent);
        let high = high.map(|(rank, value)| Value { rank: Some(rank), value, mean }).collect();
        add(hints, rule, "% of the step", high, |value| {
            let rank = value.rank.unwrap_or_default();
            format!("Rank {rank} spends {:.1} % of the step (mean {mean:.1} %) {advice}.", value.value)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Thresholds, hints};
    use crate::analyze;
    use crate::document::{Analysis, Breakdown, Hint, Link, Overlap, RankInfo, Stage};
    use crate::synthetic::{Job, trace};

    fn ranks(flop_per_second: &[f64]) -> Vec<RankInfo> {
        let info = |(rank, flop): (u32, &f64)| RankInfo { rank, flop_per_second: Some(*flop), ..RankInfo::default() };
        (0..).zip(flop_per_second).map(info).collect()
    }

    fn of_rule(analysis: &Analysis, rule: &str) -> Vec<Hint> {
        hints(analysis, &Thresholds::default()).into_iter().filter(|hint| hint.rule == rule).collect()
    }

    #[test]
    fn rank_with_few_operations_per_second_has_its_value_and_mean() {
        let analysis = Analysis { ranks: ranks(&[100.0, 100.0, 100.0, 60.0]), ..Analysis::default() };
        let hints = of_rule(&analysis, "flops");
        assert_eq!(hints.len(), 1);
        assert_eq!((hints[0].rank, hints[0].value, hints[0].mean), (Some(3), 60.0, 90.0));
        assert!(hints[0].text.contains("Rank 3"), "{}", hints[0].text);
    }

    #[test]
    fn long_interval_is_compared_with_the_mean_of_its_stage() {
        let interval_us = vec![vec![Some(9000), Some(100)], vec![None, Some(900)], vec![Some(0), Some(700)]];
        let breakdown = Breakdown { interval_us, ..Breakdown::default() };
        let mut analysis = Analysis { ranks: ranks(&[1.0, 1.0, 1.0]), breakdown, ..Analysis::default() };
        let above = of_rule(&analysis, "step-interval");
        assert_eq!(above.iter().map(|hint| hint.rank).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!(above[0].mean, 0.567); // (0.1 + 0.9 + 0.7) / 3 ms
        assert!(of_rule(&analysis, "iteration-interval").is_empty());
        analysis.ranks[1].stage = Some(1);
        assert_eq!(of_rule(&analysis, "step-interval")[0].mean, 0.4);
        assert!(of_rule(&analysis, "iteration-interval").is_empty());
        analysis.ranks.iter_mut().for_each(|info| info.stage = Some(info.rank));
        analysis.ranks[2].stage = Some(0);
        analysis.breakdown.interval_us[0][1] = Some(690);
        let long = of_rule(&analysis, "iteration-interval");
        assert!(long.len() == 2 && long.iter().all(|hint| hint.rank != Some(1)), "{long:?}");
    }

    #[test]
    fn link_is_compared_with_links_of_its_kind() {
        let link = |source, destination, kind: &str, rate: f64| Link {
            source,
            destination,
            kind: kind.to_owned(),
            count: 1,
            time_us: 1,
            bytes: 1 << 20,
            bytes_per_second: Some(rate),
            time_box: None,
            bytes_box: None,
            bandwidth_box: None,
        };
        let mut analysis = Analysis::default();
        analysis.communication.links = vec![
            link(0, 1, "rdma", 10e9),
            link(1, 2, "rdma", 10e9),
            link(2, 0, "rdma", 4e9),
            link(0, 1, "nvlink", 90e9),
            link(1, 1, "rdma", 1e9),
        ];
        let hints = of_rule(&analysis, "link-bandwidth");
        assert_eq!(hints.len(), 1);
        assert_eq!((hints[0].rank, hints[0].value, hints[0].mean), (Some(2), 4e9, 8e9));
    }

    #[test]
    fn shares_of_a_pipeline_are_bubbles_and_collectives() {
        let table = |us| vec![vec![Some(us)]];
        let stage = |stage| Stage { stage, ranks: vec![stage], stage_us: 1, bubble_us: 1 };
        let mut analysis = Analysis {
            ranks: ranks(&[1.0]),
            breakdown: Breakdown { total_us: table(1000), ..Breakdown::default() },
            overlap: Overlap {
                communication_alone_us: table(300),
                receive_alone_us: table(200),
                collective_alone_us: table(90),
                ..Overlap::default()
            },
            ..Analysis::default()
        };
        assert_eq!(of_rule(&analysis, "communication-share")[0].value, 30.0);
        analysis.pipeline.stages = vec![stage(0), stage(1)];
        assert!(of_rule(&analysis, "communication-share").is_empty());
        assert_eq!(of_rule(&analysis, "pipeline-bubble")[0].value, 20.0);
        assert!(of_rule(&analysis, "collective-share").is_empty());
    }

    #[test]
    fn hints_of_many_ranks_are_bounded() {
        let job = Job { dp: 8, tp: 2, pp: 2, steps: 3, micro_batches: 1, ..Job::default() };
        let analysis = analyze(&trace(&job, 1), &Default::default());
        let bubbles = analysis.hints.iter().filter(|hint| hint.rule == "pipeline-bubble");
        let texts: Vec<&str> = bubbles.map(|hint| hint.text.as_str()).collect();
        assert_eq!(texts.len(), super::OF_RULE_MAX);
        assert!(texts[4].contains("more exceed this threshold"), "{texts:?}");
    }
}
