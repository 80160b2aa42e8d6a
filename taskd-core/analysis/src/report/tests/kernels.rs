//! Kernels of the documents, and what the host launched.

use super::support::{Job, Numbers};
use crate::document::*;
use crate::kernels::{Durations, KernelCollector, NamedKernels};

impl Job {
    /// Returns kernels of the ranks by two sets of rules.
    pub(super) fn kernels(&self) -> KernelFigures {
        let mut numbers = Numbers(u64::from(self.ranks) + 1);
        let mut rules = |name: &str| {
            let mut collector = KernelCollector::new(name, self.ranks as usize);
            for rank in 0..self.ranks {
                let mut us = |middle: u64| numbers.near(middle) as f64;
                let (compute_us, communication_us, idle_us) = (us(54_000), us(9_000), us(4_000));
                let device = DeviceTimes {
                    rank,
                    kernels: 900,
                    range_us: compute_us + communication_us + idle_us,
                    busy_us: compute_us + communication_us,
                    idle_us,
                    compute_us,
                    communication_us,
                    memory_us: us(500),
                    overlap_us: us(800),
                    host_wait_us: Some(us(3_000)),
                    kernel_wait_us: Some(us(300)),
                    other_wait_us: None,
                };
                add_launches(&mut collector, rank, &mut us);
                let mut kernel = |class, name| {
                    let mut durations = Durations::default();
                    (0..4).for_each(|_| durations.add(numbers.near(50_000) as i64, 100));
                    NamedKernels::of(class, name, &durations)
                };
                let kernels =
                    vec![kernel("communication", "ncclDevKernel_AllReduce_Sum_bf16"), kernel("compute", "gemm")];
                collector.add(device, kernels, self.steps.into());
            }
            KernelRules { left_out: 3, ..collector.finish() }
        };
        let rules = vec![rules("exact"), rules("hta")];
        KernelFigures { rules, differences: vec!["Idle time of rank 0 is longer by HTA's rules.".to_owned()] }
    }
}

fn add_launches(collector: &mut KernelCollector, rank: u32, us: &mut impl FnMut(u64) -> f64) {
    let mut spread = |middle: u64| {
        let median = us(middle);
        let (min, max) = (median / 4.0, median * 4.0);
        let (lower_quartile, upper_quartile) = (median / 2.0, median * 2.0);
        Spread { count: 900, mean: median * 1.5, deviation: median, min, lower_quartile, median, upper_quartile, max }
    };
    collector.add_launches(LaunchFigures {
        rank,
        call_us: spread(6),
        kernel_us: spread(60),
        delay_us: spread(90),
        short_kernels: 12,
        slow_calls: 3,
        late_kernels: 400,
    });
    let queues = [7, 20].map(|stream| QueueFigures { rank, stream, lengths: spread(300), full_us: 1_500.0 });
    collector.add_queues(queues.to_vec());
    let copies = ["Memcpy HtoD", "Memset"].map(|kind| CopyFigures {
        rank,
        kind: kind.to_owned(),
        copies: 20,
        bytes: 1 << 24,
        busy_us: 800.0,
        gb_per_s: spread(21),
    });
    collector.add_copies(copies.to_vec());
    let mut durations = Durations::default();
    durations.add(4_000_000, 4);
    let names = [("device", "Optimizer.step#AdamW.step"), ("host", "ProfilerStep#3")];
    let annotations = names.map(|(place, name)| NamedKernels::of(place, name, &durations));
    collector.add_annotations(rank, annotations.to_vec());
}
