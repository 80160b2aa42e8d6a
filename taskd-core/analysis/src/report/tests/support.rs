//! Plausible documents of any size, by seed, for the tests of the report.

use crate::document::*;
use crate::summary::summarize;

/// A generator of numbers, so that a document depends on its seed only (Steele's SplitMix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A value around `middle`, up to 2 % away.
    pub(super) fn near(&mut self, middle: u64) -> u64 {
        middle - middle / 50 + self.next() % (middle / 25).max(1)
    }
}

/// Micro-batches in a step of the documents.
const MICRO_BATCHES: u64 = 2;
/// Sends and receives that the documents list.
const PAIRS_MAX: usize = 20_000;

/// Returns the document of a job of 2 to 8 pipeline stages, in which one rank computes 50 % longer from the middle on.
pub(super) fn document(ranks: u32, steps: u32) -> Analysis {
    let stages = if ranks >= 512 {
        8
    } else if ranks >= 16 {
        4
    } else {
        2
    };
    let job = Job { ranks, steps, stages, width: ranks / stages, slow: ranks * 5 / 8, onset: steps / 2 };
    let mut analysis = Analysis {
        version: VERSION,
        title: format!("example of {ranks} ranks"),
        sources: vec!["example".to_owned()],
        began_unix_ns: Some(1_790_000_000_000_000_000),
        ..Analysis::default()
    };
    analysis.steps = (0..u64::from(steps)).map(|step| step + 10).collect();
    analysis.ranks = (0..ranks).map(|rank| job.info(rank)).collect();
    job.fill_timeline(&mut analysis);
    job.fill_links(&mut analysis);
    analysis.kernels = job.kernels();
    job.fill_verdict(&mut analysis);
    analysis.summary = summarize(&analysis);
    analysis
}

pub(super) struct Job {
    pub(super) ranks: u32,
    pub(super) steps: u32,
    stages: u32,
    width: u32,
    slow: u32,
    onset: u32,
}

impl Job {
    fn info(&self, rank: u32) -> RankInfo {
        let stage = rank / self.width;
        let rate = if rank == self.slow { 97e12 } else { 143e12 + f64::from(rank % 7) * 1e12 };
        RankInfo {
            rank,
            host: Some(format!("node-{:03}", rank / 8)),
            device: Some(rank % 8),
            stage: Some(stage),
            flop_per_step: Some(9.2e12 + f64::from(stage) * 3e11),
            flop_per_second: Some(rate),
            peak_memory_bytes: Some((38 << 30) + (u64::from(stage) << 30) + (u64::from(rank % 5) << 28)),
            memory_capacity_bytes: Some(64 << 30),
        }
    }

    fn fill_timeline(&self, analysis: &mut Analysis) {
        let names = ["load", "forward", "backward", "all_reduce", "adam", "send", "receive", "save"];
        analysis.timeline.names = names.map(str::to_owned).to_vec();
        let mut numbers = Numbers(u64::from(self.ranks));
        let rows = self.ranks as usize;
        for table in tables(analysis) {
            *table = vec![Vec::new(); rows];
        }
        analysis.timeline.spans = vec![Vec::new(); rows];
        let mut begin = 0_u64;
        for step in 0..self.steps {
            begin += self.step(analysis, &mut numbers, step, begin);
        }
        analysis.timeline.memory = (0..rows)
            .map(|row| {
                let at = |i: u64| ((i * begin / 40) as i64, (20 << 30) + ((i % 4) << 32) + ((row as u64 % 5) << 28));
                (0..40).map(at).collect()
            })
            .collect();
        let flop = |i: u64| ((i * begin / 90) as i64, (i % 6 * 40) as f64 * 1e9);
        analysis.timeline.flop = (0..rows).map(|_| (0..90).map(flop).collect()).collect();
    }

    /// Appends one step that begins at this moment to all ranks, and returns its length.
    fn step(&self, analysis: &mut Analysis, numbers: &mut Numbers, step: u32, begin: u64) -> u64 {
        let is_slow = |rank: u32| rank == self.slow && step >= self.onset;
        let work = |rank: u32, us: u64| if is_slow(rank) { us * 3 / 2 } else { us };
        let load: Vec<u64> = (0..self.ranks).map(|_| numbers.near(1_800)).collect();
        let passes: Vec<[u64; 2]> =
            (0..self.ranks).map(|rank| [work(rank, numbers.near(9_000)), work(rank, numbers.near(18_000))]).collect();
        let busiest: Vec<u64> = passes.iter().map(|[forward, backward]| (forward + backward) * MICRO_BATCHES).collect();
        let lead = |rank: u32| u64::from(rank / self.width) * 9_300;
        let meet =
            (0..self.ranks).map(|rank| load[rank as usize] + lead(rank) + busiest[rank as usize]).max().unwrap_or(0);
        let reduce = numbers.near(3_000);
        let length = meet + reduce + 2_500;
        for rank in 0..self.ranks {
            let row = rank as usize;
            let mut at = begin + load[row];
            let mut spans = vec![(begin, load[row], 5_u8, 0_u32)];
            if lead(rank) > 0 {
                spans.push((at, lead(rank), 3, 6));
                at += lead(rank);
            }
            for (pass, us) in (0_u32..).zip(&passes[row]) {
                for _ in 0..MICRO_BATCHES {
                    spans.push((at, *us, 0, 1 + pass));
                    if rank + self.width < self.ranks && pass == 0 {
                        spans.push((at + us - 400, 380, 2, 5));
                    }
                    at += us;
                }
            }
            let wait = begin + meet - at;
            spans.push((at, wait + reduce, 1, 3));
            spans.push((begin + meet + reduce, 2_400, 0, 4));
            for (place, (start, us, kind, name)) in (0_u32..).zip(spans) {
                let number = (step + 1) * 16 + place;
                analysis.timeline.spans[row].push(TimelineSpan(start as i64, us, kind, name, number));
            }
            // In the order of `tables`.
            let cells = [
                begin,
                length,
                load[row],
                busiest[row] + lead(rank),
                length - load[row] - busiest[row] - lead(rank),
                load[row],
                length - wait - reduce - lead(rank),
                wait + reduce + lead(rank),
                length - lead(rank),
                lead(rank),
                wait + reduce,
                380,
                reduce,
                wait + lead(rank),
            ];
            for (table, value) in tables(analysis).into_iter().zip(cells) {
                table[row].push(Some(value));
            }
        }
        length
    }

    fn fill_links(&self, analysis: &mut Analysis) {
        let mut numbers = Numbers(1);
        analysis.communication.steps = u64::from(self.steps) - 2;
        for rank in 0..self.ranks {
            let ring = rank / self.width * self.width + (rank % self.width + 1) % self.width;
            for (destination, kind) in [(ring, "hccs"), (rank + self.width, "rdma")] {
                if destination < self.ranks && destination != rank {
                    analysis.communication.links.push(link(rank, destination, kind, &mut numbers));
                }
            }
            analysis.communication.operations.push(OperationFigures {
                rank,
                name: "all_reduce".to_owned(),
                group: format!("dp{}", rank / self.width),
                count: u64::from(self.steps),
                total_us: numbers.near(400_000),
                wait_us: numbers.near(100_000),
                bytes: 48 << 20,
            });
        }
        for stage in 0..self.stages {
            let ranks = (stage * self.width..(stage + 1) * self.width).collect();
            let bubble_us = u64::from(stage) * 9_300;
            analysis.pipeline.stages.push(Stage { stage, ranks, stage_us: 80_000 - bubble_us, bubble_us });
        }
        analysis.pipeline.micro_batches = Some(MICRO_BATCHES);
        for step in 0..self.steps {
            for source in 0..self.ranks - self.width {
                if analysis.pipeline.pairs.len() < PAIRS_MAX {
                    let begin = analysis.breakdown.start_us[source as usize][step as usize].unwrap_or(0) as i64;
                    let lead = i64::from(source / self.width) * 9_300;
                    analysis.pipeline.pairs.push(Pair {
                        step: Some(u64::from(step) + 10),
                        source,
                        destination: source + self.width,
                        send: (begin + lead + 10_400, 380),
                        receive: (begin + lead + 1_800, 9_300),
                        bytes: 8 << 20,
                    });
                }
            }
        }
    }

    fn blame(&self, analysis: &Analysis) -> Blame {
        let (slow, onset) = (self.slow, u64::from(self.onset) + 10);
        Blame {
            component: format!("rank {slow}"),
            ranks: vec![slow],
            cause: "slow-rank".to_owned(),
            onset_step: Some(onset),
            slowdown_percent: 50.2,
            confidence_permille: 987,
            evidence: vec![
                evidence(
                    "computation per step (ms)",
                    81.2,
                    54.1,
                    "It computes 50 % longer than the median of its stage.",
                ),
                evidence("wait per step (ms)", 0.4, 27.3, "It waits for no other rank, and all others wait."),
            ],
            judged_by: "fail-slow".to_owned(),
            began_us: analysis.breakdown.start_us[0][self.onset as usize].and_then(|us| i64::try_from(us).ok()),
            compared_by: "own computation".to_owned(),
            compared: (slow..self.ranks.min(slow + 4)).map(|rank| compared(rank, rank == slow)).collect(),
            ruled_out: vec![evidence(
                "slow-input: waiting for data per step in ms",
                2.0,
                2.1,
                "Not slow-input: its waiting for data takes 2.0 ms per step, 2.1 ms before: this is not the cause.",
            )],
            next: vec!["Look at the clock of the rank's device.".to_owned(), "Compare the timelines.".to_owned()],
            ..Blame::default()
        }
    }

    fn fill_verdict(&self, analysis: &mut Analysis) {
        let (slow, onset) = (self.slow, u64::from(self.onset) + 10);
        analysis.verdict = Verdict {
            sentence: format!(
                "Rank {slow} on node-{:03} computes 50 % longer than its peers since step {onset}; without it the job would run 1.44 times as fast.",
                slow / 8
            ),
            is_healthy: false,
            blamed: vec![self.blame(analysis)],
            judged_by: "Judged by the fail-slow detector: 75 steps after step 35.".to_owned(),
            notes: vec!["Stage 1 computes longer than the other stages: no component is blamed.".to_owned()],
            agreements: vec![Agreement {
                incident: 0,
                agrees: true,
                text: format!("The supervisor blamed rank {slow}, and the trace shows slow-rank: they agree."),
            }],
        };
        analysis.what_if = Some(WhatIf {
            modelled_us: 9_120_000,
            measured_us: 9_100_000,
            ideal_us: 6_330_000,
            slowdown: 1.441,
            scenarios: vec![
                scenario(&format!("slowest worker (rank {slow})"), vec![slow], 6_400_000, 1.425, 0.974),
                scenario("communication delays", Vec::new(), 9_050_000, 1.008, 0.025),
            ],
        });
        analysis.incidents.push(Incident {
            at_us: analysis.breakdown.start_us[0][self.onset as usize].unwrap_or(0) as i64 + 30_000,
            class: "slow-rank".to_owned(),
            suspect: format!("rank {slow}"),
            sentence: format!("Rank {slow} became slow; the supervisor recorded it and took no action."),
            evidence: vec![evidence("excess (%)", 50.2, 0.0, "Above the threshold for 8 steps.")],
        });
        for rank in 0..self.ranks.min(40) {
            analysis.hints.push(Hint {
                rule: "link-bandwidth".to_owned(),
                rank: Some(rank),
                step: None,
                value: 18.25,
                mean: 24.5,
                unit: "GB/s".to_owned(),
                text: format!(
                    "The link {rank} -> {} has less bandwidth than others of its kind: check cable and switch.",
                    rank + 1
                ),
            });
        }
        analysis.limits.push(Limit {
            limit: "at most 500 communication files".to_owned(),
            applies: false,
            note: "All files are read.".to_owned(),
        });
        analysis.clocks = Clocks {
            offset_us: (0..self.ranks).map(|rank| f64::from(rank % 9) * 13.25 - 40.0).collect(),
            residual_us: (0..self.ranks).map(|rank| Some(f64::from(rank % 5) * 1.5)).collect(),
            sentence: "Shared collectives end within 6 µs of each other on all ranks after the alignment.".to_owned(),
        };
        analysis.missing.push("Rank 2 has no memory figures: its profiler ran without them.".to_owned());
        self.fill_paths(analysis);
    }

    fn fill_paths(&self, analysis: &mut Analysis) {
        for (column, step) in (0_u32..).zip(&analysis.steps) {
            let rank = if column >= self.onset { self.slow } else { 1 };
            let spans = &analysis.timeline.spans[rank as usize];
            let from = (column + 1) * 16;
            let segments = spans.iter().filter(|span| (from..from + 16).contains(&span.4) && span.2 != 2).map(|span| {
                CriticalSegment {
                    rank,
                    name: analysis.timeline.names[span.3 as usize].clone(),
                    kind: span.2,
                    start_us: span.0,
                    duration_us: span.1,
                }
            });
            analysis.critical_path.push(CriticalStep { step: *step, segments: segments.collect() });
        }
    }
}

/// The tables that the documents have.
fn tables(analysis: &mut Analysis) -> [&mut Table; 14] {
    let (breakdown, overlap) = (&mut analysis.breakdown, &mut analysis.overlap);
    [
        &mut breakdown.start_us,
        &mut breakdown.total_us,
        &mut breakdown.interval_us,
        &mut breakdown.forward_backward_us,
        &mut breakdown.tail_us,
        &mut breakdown.data_loader_us,
        &mut overlap.computation_us,
        &mut overlap.communication_alone_us,
        &mut overlap.stage_us,
        &mut overlap.receive_alone_us,
        &mut overlap.collective_alone_us,
        &mut overlap.overlapped_us,
        &mut analysis.communication.transfer_us,
        &mut analysis.communication.wait_us,
    ]
}

fn link(source: u32, destination: u32, kind: &str, numbers: &mut Numbers) -> Link {
    let bytes_per_us = if kind == "hccs" { 180_000_u32 } else { 24_000 };
    let speed = f64::from(bytes_per_us);
    let (count, bytes) = (98_u64, 98_u64 * (48 << 20));
    let time_us = numbers.near(bytes / u64::from(bytes_per_us));
    let mut plot = |middle: f64, outlier: f64| {
        let factor = numbers.near(1_000) as f64 / 1_000.0;
        Some(BoxPlot {
            low: middle * 0.9 * factor,
            q1: middle * 0.96 * factor,
            median: middle * factor,
            q3: middle * 1.05 * factor,
            high: middle * 1.15 * factor,
            outliers: vec![Outlier {
                value: middle * outlier,
                operation: "all_reduce bucket 3".to_owned(),
                step: Some(12),
            }],
            outlier_count: 1,
        })
    };
    Link {
        source,
        destination,
        kind: kind.to_owned(),
        count,
        time_us,
        bytes,
        bytes_per_second: Some(bytes as f64 / time_us as f64 * 1e6),
        time_box: plot(time_us as f64 / 98.0, 1.6),
        bytes_box: plot(f64::from(48 << 20), 0.5),
        bandwidth_box: plot(speed * 1e6, 0.6),
    }
}

fn evidence(what: &str, value: f64, usual: f64, text: &str) -> EvidenceItem {
    EvidenceItem { what: what.to_owned(), value: Some(value), usual: Some(usual), text: text.to_owned() }
}

fn compared(rank: u32, is_suspect: bool) -> ComparedRank {
    let since_us = Some(if is_suspect { 81_200.0 } else { 54_100.0 });
    ComparedRank { rank, is_suspect, before_us: Some(54_000.0), since_us, wait_us: Some(400.0) }
}

fn scenario(without: &str, ranks: Vec<u32>, time_us: u64, speedup: f64, share: f64) -> Scenario {
    Scenario { without: without.to_owned(), ranks, time_us, speedup, share }
}
