//! Models of ordinary traces: kernels, collectives, sends and waits for data.

use taskd_analysis::model::{Communication, Event, Group, GroupRole, Kind, RankTrace, StepSpan, Trace};
use taskd_analysis::what_if::{Findings, Model, ModelError, attribute};

const MS: i64 = 1_000_000;

/// A rank of a job with data parallelism: the wait for data, two kernels with an all-reduce of the first kernel's
/// gradients beside the second, an all-reduce of the rest, and the optimizer.
struct Rank {
    input: i64,
    kernel: i64,
}

struct Writer {
    trace: RankTrace,
}

impl Writer {
    fn new(rank: u32, group: &Group) -> Writer {
        Writer { trace: RankTrace { device: Some(rank), groups: vec![group.clone()], ..RankTrace::default() } }
    }

    fn add(&mut self, kind: Kind, lane: u32, start: i64, end: i64, communication: Option<(u64, Option<u32>)>) {
        let name = self.trace.names.intern("event");
        let communication = communication.map(|(sequence, peer)| {
            let operation = self.trace.names.intern(if peer.is_some() { "send" } else { "all_reduce" });
            let sequence = peer.is_none().then_some(sequence);
            self.trace.communications.push(Communication {
                operation,
                group: Some(0),
                sequence,
                peer,
                ..Communication::default()
            });
            u32::try_from(self.trace.communications.len() - 1).unwrap()
        });
        let duration_ns = u64::try_from(end - start).unwrap();
        self.trace.events.push(Event { start_ns: start, duration_ns, kind, lane, name, communication });
    }

    fn step(&mut self, number: u64, start: i64, end: i64) {
        self.trace.steps.push(StepSpan { number, start_ns: start, duration_ns: u64::try_from(end - start).unwrap() });
    }

    fn finish(mut self) -> RankTrace {
        self.trace.events.sort_by_key(|event| event.start_ns);
        self.trace
    }
}

fn data_parallel(ranks: u32, steps: u64, rank: impl Fn(u32, u64) -> Rank) -> Trace {
    let group = Group { name: "dp".into(), role: GroupRole::Data, members: (0..ranks).collect() };
    let mut writers: Vec<Writer> = (0..ranks).map(|rank| Writer::new(rank, &group)).collect();
    let mut begun = 0;
    for step in 0..steps {
        let now: Vec<Rank> = (0..ranks).map(|number| rank(number, step)).collect();
        let first = |rank: &Rank| begun + rank.input + rank.kernel;
        let reduced = now.iter().map(first).max().unwrap() + 20 * MS;
        let second = |rank: &Rank| first(rank) + rank.kernel;
        let end = now.iter().map(second).max().unwrap().max(reduced) + 10 * MS;
        for (writer, rank) in writers.iter_mut().zip(&now) {
            writer.add(Kind::DataLoader, 9, begun, begun + rank.input, None);
            writer.add(Kind::Compute, 0, begun + rank.input, first(rank), None);
            writer.add(Kind::Compute, 0, first(rank), second(rank), None);
            writer.add(Kind::Collective, 1, first(rank), reduced, Some((2 * step, None)));
            writer.add(Kind::Collective, 1, second(rank).max(reduced), end, Some((2 * step + 1, None)));
            writer.add(Kind::Compute, 0, end, end + 5 * MS, None);
            writer.step(step + 1, begun, end + 5 * MS);
        }
        begun = end + 5 * MS;
    }
    let ranks = (0..ranks).zip(writers).map(|(rank, writer)| (rank, writer.finish())).collect();
    Trace { ranks, ..Trace::default() }
}

fn attributed(trace: &Trace) -> Findings {
    attribute(&Model::from_trace(trace).unwrap())
}

/// Returns the times of a step without and with a deviation of at most 1 %, by rank and step.
fn usual(rank: u32, step: u64) -> i64 {
    50 * MS + i64::from(rank * 7 % 5) * MS / 20 + i64::try_from(step * 3 % 4).unwrap() * MS / 20
}

#[test]
fn slow_rank_of_a_data_parallel_job_is_blamed_since_its_onset() {
    let slow = |rank, step| if rank == 2 && step >= 6 { usual(rank, step) * 3 / 2 } else { usual(rank, step) };
    let findings = attributed(&data_parallel(4, 16, |rank, step| Rank { input: 5 * MS, kernel: slow(rank, step) }));
    let [blame] = &findings.verdict.blamed[..] else { panic!("{:?}", findings.verdict) };
    assert_eq!((blame.ranks.as_slice(), blame.onset_step), (&[2][..], Some(7)));
    // A step takes 120 ms; the slow rank adds 2 x 25 ms in 10 of 16 steps.
    let expected = (120.0 * 16.0 + 50.0 * 10.0) / (120.0 * 16.0);
    assert!((findings.stragglers[0].speedup - expected).abs() < 0.02, "{:?} {expected}", findings.stragglers);
    let error = findings.what_if.modelled_us.abs_diff(findings.what_if.measured_us);
    assert!(error * 100 < findings.what_if.measured_us, "{:?}", findings.what_if);
}

#[test]
fn data_parallel_job_without_a_slow_rank_blames_none() {
    let findings = attributed(&data_parallel(4, 16, |rank, step| Rank { input: 5 * MS, kernel: usual(rank, step) }));
    assert!(findings.verdict.is_healthy, "{:?}", findings.verdict);
    assert!(findings.verdict.blamed.is_empty(), "{:?}", findings.verdict);
}

#[test]
fn slow_input_of_a_job_is_a_scenario_without_a_rank_at_fault() {
    // In every fourth step, another rank waits 100 ms for its data.
    let late = |rank: u32, step: u64| step.is_multiple_of(4) && u64::from(rank) == step / 4 % 4;
    let input = |rank, step| if late(rank, step) { 100 * MS } else { 5 * MS };
    let trace = data_parallel(4, 16, |rank, step| Rank { input: input(rank, step), kernel: usual(rank, step) });
    let findings = attributed(&trace);
    assert!(findings.verdict.blamed.is_empty(), "{:?}", findings.verdict);
    let scenario = findings.what_if.scenarios.iter().find(|scenario| scenario.without == "slow input").unwrap();
    let expected = (120.0 * 16.0 + 95.0 * 4.0) / (120.0 * 16.0);
    assert!((scenario.speedup - expected).abs() < 0.02, "{scenario:?} {expected}");
    assert!(findings.verdict.sentence.contains("slow input"), "{}", findings.verdict.sentence);
}

#[test]
fn receive_of_a_pipeline_waits_for_the_slow_sender() {
    // Two replicas of two stages; stage 0 sends after its kernel, stage 1 computes then.
    let mut trace = Trace::default();
    for replica in 0..2_u32 {
        let (first, second) = (replica * 2, replica * 2 + 1);
        let group = Group { name: format!("pp{replica}"), role: GroupRole::Pipeline, members: vec![first, second] };
        let (mut sender, mut receiver) = (Writer::new(first, &group), Writer::new(second, &group));
        for step in 0..10_u64 {
            let begun = i64::try_from(step).unwrap() * 1000 * MS;
            let kernel = if replica == 1 { 90 * MS } else { 60 * MS } + i64::try_from(step % 3).unwrap() * MS / 10;
            let sent = begun + kernel + 5 * MS;
            sender.add(Kind::Compute, 0, begun, begun + kernel, None);
            sender.add(Kind::Send, 1, begun + kernel, sent, Some((0, Some(second))));
            sender.step(step, begun, sent);
            receiver.add(Kind::Receive, 1, begun, sent, Some((0, Some(first))));
            receiver.add(Kind::Compute, 0, sent, sent + 40 * MS, None);
            receiver.step(step, begun, sent + 40 * MS);
        }
        trace.ranks.insert(first, sender.finish());
        trace.ranks.insert(second, receiver.finish());
    }
    let findings = attributed(&trace);
    let [blame] = &findings.verdict.blamed[..] else { panic!("{:?}", findings.verdict) };
    assert_eq!(blame.ranks, [2]);
    assert!((findings.stragglers[0].speedup - 135.0 / 105.0).abs() < 0.01, "{:?}", findings.stragglers);
}

#[test]
fn trace_without_steps_has_no_model() {
    let trace = Trace { ranks: [(0, RankTrace::default())].into(), ..Trace::default() };
    assert_eq!(Model::from_trace(&trace).unwrap_err(), ModelError::Empty);
}
