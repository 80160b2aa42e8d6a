//! Transfers between the stages of a pipeline: a slow link is named, whatever the clocks show, and no rank that only
//! is late.

use super::*;
use crate::trace::{Channel, StepTransfers, TransferTime};

/// What happens in a step, in milliseconds.
#[derive(Clone, Copy)]
struct Now {
    /// Computation of each rank before it takes part in a transfer.
    compute: [u64; 4],
    /// Time of a transfer between ranks 0 and 2, and between ranks 1 and 3.
    transfer: [u64; 2],
    /// Differences of the clocks.
    clocks: [u64; 4],
    /// Time for which each rank is held up inside of each of its transfers.
    held_up: [u64; 4],
}

const USUAL: Now = Now { compute: [100; 4], transfer: [2; 2], clocks: [0; 4], held_up: [0; 4] };
/// Micro-batches of a step.
const CALLS: u64 = 2;

/// Two stages of two replicas: ranks 0 and 1 send to ranks 2 and 3, and receive from them.
struct Pipeline {
    scene: Scene,
    detector: FailSlowDetector,
    step: u64,
}

impl Pipeline {
    fn new(hosts: &[(&'static str, u32)]) -> Pipeline {
        let mut scene = Scene::on(4, hosts);
        let group = |kind, index, ranks: [u32; 2]| (GroupId { kind, index }, ranks.map(crate::job::Rank).to_vec());
        let groups = [
            group(GroupKind::Dp, 0, [0, 1]),
            group(GroupKind::Dp, 1, [2, 3]),
            group(GroupKind::Pp, 0, [0, 2]),
            group(GroupKind::Pp, 1, [1, 3]),
        ];
        let world = (*scene.view.world).clone().with_groups(groups.into());
        scene.enter(std::sync::Arc::new(world));
        Pipeline { scene, detector: FailSlowDetector::new(), step: 0 }
    }

    fn steps(&mut self, count: u32, now: Now) -> Vec<Finding> {
        let mut found = Vec::new();
        for _ in 0..count {
            self.step += 1;
            let longest = now.compute.into_iter().max().unwrap_or_default();
            let wall = 2 * longest + 2 * CALLS * (now.transfer.into_iter().max().unwrap_or_default() + 20);
            self.scene.pass(wall);
            for rank in 0..4 {
                let transfers = self.transfers(rank, wall, now);
                found.extend(self.scene.tell(&mut self.detector, rank, Signal::StepTransfers(Box::new(transfers))));
                let noise = (self.step * 7 + u64::from(rank) * 13) % 11 * MS / 5;
                let wait_ns = (wall - now.compute[rank as usize]) * MS - noise;
                let (step, wall_ns) = (self.step, wall * MS);
                let times = StepTimes { step, wall_ns, wait_ns, communication_ns: wait_ns, ..StepTimes::default() };
                found.extend(self.scene.tell(&mut self.detector, rank, Signal::Step(Box::new(times))));
            }
        }
        found
    }

    /// Returns what a rank reports: forward, the first stage is ready after its computation, and the second one after its
    /// own; backward it is the reverse. Both channels have their operations one after another.
    fn transfers(&self, rank: u32, wall: u64, now: Now) -> StepTransfers {
        let (first, last) = (rank % 2, rank % 2 + 2);
        let ready = |rank: u32| now.compute[rank as usize];
        let (took, held) = (now.transfer[first as usize], now.held_up[first as usize] + now.held_up[last as usize]);
        let noise = (self.step * 5 + u64::from(first) * 3) % 7 * MS / 20;
        let mut forward = Vec::new();
        let mut begin = [ready(first) * MS, ready(last) * MS];
        for sequence in 0..CALLS {
            let end = begin[0].max(begin[1]) + (took + held) * MS + noise;
            forward.push((self.step * CALLS + sequence, begin, end));
            begin = [end + MS, end + 3 * MS];
        }
        let mut backward = Vec::new();
        let mut begin = [forward[1].2 + ready(last) * MS / 2, forward[1].2 + ready(first) * MS / 2];
        for sequence in 0..CALLS {
            let end = begin[0].max(begin[1]) + (took + held) * MS + noise;
            backward.push((self.step * CALLS + sequence, begin, end));
            begin = [end + 2 * MS, end + MS];
        }
        let at = |time: u64| TransferTime { sequence: 0, before_end_ns: (wall * MS).saturating_sub(time) };
        let channel = |operations: &[(u64, [u64; 2], u64)], peer: u32, is_send: bool| {
            let side = usize::from(!is_send);
            let times = operations.iter().map(|(sequence, begin, end)| TransferTime {
                sequence: *sequence,
                ..at(if is_send { begin[0] } else { *end })
            });
            let shortest_ns = operations.iter().map(|(_, begin, end)| end - begin[side]).min().unwrap_or_default();
            Channel { peer, is_send, group: 7, calls: 2, shortest_ns, first: times.collect() }
        };
        let channels = if rank == first {
            vec![channel(&forward, last, true), channel(&backward, last, false)]
        } else {
            vec![channel(&forward, first, false), channel(&backward, first, true)]
        };
        let ended_unix_ns = self.scene.view.now.as_nanos() + (1 << 50) + now.clocks[rank as usize] * MS;
        StepTransfers { step: self.step, ended_unix_ns, channels, left_out: 0 }
    }
}

/// Returns the blamed domains with the beginning of the first evidence.
fn blamed(found: &[Finding]) -> Vec<(Domain, String)> {
    let of = |finding: &Finding| match finding {
        Finding::Blame(fault) => {
            let text = &fault.evidence[0].text;
            let text = text.split_once(',').map_or(text.as_str(), |(text, _)| text);
            Some((fault.primary_suspect().domain.clone(), text.to_owned()))
        }
        _ => None,
    };
    found.iter().filter_map(of).collect()
}

/// Runs a pipeline, and then with a change.
fn after(hosts: &[(&'static str, u32)], clocks: [u64; 4], change: impl Fn(Now) -> Now) -> Vec<(Domain, String)> {
    let mut pipeline = Pipeline::new(hosts);
    let usual = Now { clocks, ..USUAL };
    let found = pipeline.steps(60, usual);
    assert_eq!(blamed(&found), [], "nothing has changed");
    blamed(&pipeline.steps(60, change(usual)))
}

const ONE: &[(&str, u32)] = &[("a", 4)];
const TWO: &[(&str, u32)] = &[("a", 2), ("b", 2)];
const CLOCKS: [[u64; 4]; 3] = [[0; 4], [0, 0, 5000, 5000], [700, 700, 0, 0]];

#[test]
fn the_pair_at_a_slow_link_is_named_whatever_the_clocks_show() {
    let slow = |now| Now { transfer: [2, 32], ..now };
    let pair = Domain::Group(GroupId { kind: GroupKind::Pp, index: 1 });
    let text = "slow-link: the link between rank 1 and rank 3 (2 rank(s))".to_owned();
    assert_eq!(after(ONE, [0; 4], slow), [(pair.clone(), text.clone())]);
    for clocks in CLOCKS {
        assert_eq!(after(TWO, clocks, slow), [(pair.clone(), text.clone())]);
    }
}

#[test]
fn late_senders_and_receivers_and_slower_jobs_name_no_link() {
    for (hosts, clocks) in [(ONE, [0; 4])].into_iter().chain(CLOCKS.map(|clocks| (TWO, clocks))) {
        for rank in 0..4 {
            let late = |now: Now| {
                let mut compute = now.compute;
                compute[rank] += 50;
                Now { compute, ..now }
            };
            let found = after(hosts, clocks, late);
            let expected = rank_domain(u32::try_from(rank).expect("small"));
            assert!(found.iter().all(|(domain, _)| *domain == expected), "rank {rank} late: {found:?}");
            let held_up = |now: Now| {
                let (mut held_up, mut late) = ([0; 4], late(now));
                held_up[rank] = 10;
                late.held_up = held_up;
                late
            };
            let found = after(hosts, clocks, held_up);
            assert!(found.iter().all(|(domain, _)| *domain == expected), "rank {rank} held up: {found:?}");
        }
        let uneven = after(hosts, clocks, |now| Now { compute: [100, 100, 160, 160], ..now });
        assert_eq!(uneven, [], "a pipeline with a longer stage waits more");
        let all = after(hosts, clocks, |now| Now { compute: [150; 4], transfer: [3; 2], ..now });
        assert_eq!(all, [], "everything is slower");
    }
}

#[test]
fn unknown_transfers_are_none() {
    let mut rows = vec![[f32::NAN; SERIES]; 4];
    let mut pipeline = Pipeline::new(TWO);
    pipeline.step = 1;
    let layout = Layout::of_groups(&[0, 0, 1, 1], Vec::new());
    let mut all: Vec<StepTransfers> = (0..4).map(|rank| pipeline.transfers(rank, 400, USUAL)).collect();
    let mut sends = |all: &[StepTransfers], basis, layout: &Layout| {
        rows.fill([f32::NAN; SERIES]);
        let all: Vec<Option<&StepTransfers>> = all.iter().map(Some).collect();
        add_transfers(&mut rows, basis, layout, &[0, 1, 2, 3], &all);
        rows.iter().map(|row| row[Series::Send as usize].is_finite()).collect::<Vec<_>>()
    };
    assert_eq!(sends(&all, Basis::Host, &layout), [true; 4]);
    assert_eq!(sends(&all, Basis::Device, &layout), [false; 4]);
    all[0].channels.retain(|channel| channel.is_send);
    assert_eq!(sends(&all, Basis::Host, &layout), [false, true, false, true], "two clocks, and one direction only");
    let one_host = Layout::of_groups(&[0; 4], Vec::new());
    assert_eq!(sends(&all, Basis::Host, &one_host), [true; 4]);
    all[1].channels.iter_mut().for_each(|channel| channel.group = 8);
    assert_eq!(sends(&all, Basis::Host, &one_host), [true, false, true, false], "operations of other groups");
}
