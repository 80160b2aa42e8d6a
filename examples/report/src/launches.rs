//! Lines about launches, queues, copies and annotations by each set of rules, for a terminal.

use taskd_core::analysis::document::{KernelFigures, KernelRules};
use taskd_pytorch::kineto::{Level, Operators};

/// Returns one line for each figure and set of rules: that of the rank, stream or kind that is worst. Empty without
/// launches.
#[must_use]
pub fn lines(figures: &KernelFigures) -> Vec<String> {
    figures.rules.iter().flat_map(of_rules).map(|line| visible(&line)).collect()
}

fn of_rules(rules: &KernelRules) -> Vec<String> {
    let (name, host) = (&rules.name, &rules.host);
    let delayed = host.launches.iter().max_by(|one, other| one.delay_us.mean.total_cmp(&other.delay_us.mean));
    let launches = delayed.map(|rank| {
        format!(
            "launches      {name}: rank {} waits longest for its kernels: mean delay {:.1} us after calls of {:.1} us \
             for kernels of {:.1} us; of {} launches {} have a shorter kernel than call, {} a call above 50 us, \
             {} a delay above 100 us",
            rank.rank,
            rank.delay_us.mean,
            rank.call_us.mean,
            rank.kernel_us.mean,
            rank.call_us.count,
            rank.short_kernels,
            rank.slow_calls,
            rank.late_kernels
        )
    });
    let longest = host.queues.iter().max_by(|one, other| one.lengths.mean.total_cmp(&other.lengths.mean));
    let queue = longest.map(|queue| {
        format!(
            "queues        {name}: rank {}, stream {} has the longest queue: mean {:.1}, at most {:.0} operations, \
             full for {:.3} ms",
            queue.rank,
            queue.stream,
            queue.lengths.mean,
            queue.lengths.max,
            queue.full_us / 1000.0
        )
    });
    let slowest = host.copies.iter().filter(|copy| copy.gb_per_s.count > 0);
    let copies = slowest.min_by(|one, other| one.gb_per_s.mean.total_cmp(&other.gb_per_s.mean)).map(|copy| {
        format!(
            "copies        {name}: {} of rank {} has the lowest mean bandwidth: {:.3} GB/s, {} copies of {} bytes",
            copy.kind, copy.rank, copy.gb_per_s.mean, copy.copies, copy.bytes
        )
    });
    let annotations = host.annotations.iter().max_by(|one, other| one.sum_us.total_cmp(&other.sum_us)).map(|row| {
        let text = rules.names.get(row.name as usize).map_or("", String::as_str);
        format!(
            "annotations   {name}: {text} of rank {} has the largest sum on the {}: {:.3} ms in {} ranges",
            row.rank,
            row.class,
            row.sum_us / 1000.0,
            row.count
        )
    });
    [launches, queue, copies, annotations].into_iter().flatten().collect()
}

/// Sequences of kernels that are listed per rank.
const SEQUENCES_LISTED: usize = 10;

/// Returns the most frequent sequences of kernels of each rank's operators, one line each.
#[must_use]
pub fn operator_lines(operators: &Operators) -> Vec<String> {
    let lines = operators.ranks.iter().flat_map(|rank| {
        let rows = rank.rows.iter().take(SEQUENCES_LISTED).map(|row| {
            format!(
                "operators     rank {}: {} ({}) launched {} {} times: first launch after {:.1} us, its kernel {:.1} us later, \
                 {:.3} ms on the device",
                rank.rank,
                row.operator,
                match row.level {
                    Level::Outermost => "outermost",
                    Level::Innermost => "innermost",
                },
                row.kernels.join(" -> "),
                row.count,
                row.launch_delay_ns / 1000.0,
                row.start_delay_ns / 1000.0,
                row.device_ns as f64 / 1e6
            )
        });
        let outside = (rank.outside > 0)
            .then(|| format!("operators     rank {}: {} launches are outside of all operators", rank.rank, rank.outside));
        rows.chain(outside).collect::<Vec<String>>()
    });
    lines.map(|line| visible(&line)).collect()
}

/// Returns the text without characters that move the cursor or turn the direction: names come from traces.
fn visible(text: &str) -> String {
    let is_hidden =
        |letter: char| letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|letter| if is_hidden(letter) { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_core::analysis::document::{KernelTimes, LaunchRules, QueueFigures, Spread};

    #[test]
    fn the_worst_of_each_figure_has_a_line_without_hidden_characters() {
        let queue = |stream, mean| QueueFigures {
            rank: 1,
            stream,
            lengths: Spread { count: 4, mean, max: 9.0, ..Spread::default() },
            full_us: 1_500.0,
        };
        let annotation = KernelTimes { class: "host".into(), count: 2, sum_us: 2_500.0, ..KernelTimes::default() };
        let queues = vec![queue(7, 1.0), queue(20, 3.0)];
        let host = LaunchRules { queues, annotations: vec![annotation], ..LaunchRules::default() };
        let rules =
            KernelRules { name: "exact".into(), names: vec!["a\u{1b}[2J".into()], host, ..KernelRules::default() };
        let found = lines(&KernelFigures { rules: vec![rules, KernelRules::default()], differences: Vec::new() });
        let expected = [
            "queues        exact: rank 1, stream 20 has the longest queue: mean 3.0, at most 9 operations, full for \
             1.500 ms",
            "annotations   exact: a [2J of rank 0 has the largest sum on the host: 2.500 ms in 2 ranges",
        ];
        assert_eq!(found, expected);
    }
}
