//! The analysis and the report of traces that a reader could make of a damaged file: times at the edges of their types,
//! references to absent names, groups and communications, and events in any order.

use super::random::Random;
use super::{Outcome, Target};
use taskd_core::analysis::model::{
    Communication, Event, Group, GroupRole, Kind, LinkKind, LinkTransfer, RankTrace, Resources, StepSpan, Trace,
};
use taskd_core::analysis::{Settings, analyze};
use taskd_examples::program::Failure;

const KINDS: [Kind; 11] = [
    Kind::Compute,
    Kind::Collective,
    Kind::Send,
    Kind::Receive,
    Kind::Forward,
    Kind::Backward,
    Kind::Optimizer,
    Kind::DataLoader,
    Kind::SaveCheckpoint,
    Kind::Copy,
    Kind::Host,
];
const ROLES: [GroupRole; 7] = [
    GroupRole::Data,
    GroupRole::Tensor,
    GroupRole::Pipeline,
    GroupRole::Context,
    GroupRole::Expert,
    GroupRole::World,
    GroupRole::Unknown,
];

struct Analysis;

pub(crate) fn target() -> Result<Box<dyn Target>, Failure> {
    Ok(Box::new(Analysis))
}

/// A moment that is usually near the others.
fn moment(random: &mut Random) -> i64 {
    if random.is_one_in(24) {
        random.extreme().cast_signed()
    } else {
        i64::try_from(random.below(5_000_000)).unwrap_or(0)
    }
}

fn length(random: &mut Random) -> u64 {
    if random.is_one_in(24) { random.extreme() } else { random.below(900_000) as u64 }
}

fn small(random: &mut Random, limit: usize) -> u32 {
    u32::try_from(random.below(limit)).unwrap_or_default()
}

fn communication(random: &mut Random, trace: &mut RankTrace, ranks: usize) -> Communication {
    let names = ["all_reduce", "send", "receive", ""];
    let links = (0..random.below(2)).map(|_| LinkTransfer {
        source: small(random, ranks + 1),
        destination: small(random, ranks + 1),
        link: if random.is_one_in(2) { LinkKind::Hccs } else { LinkKind::Unknown },
        bytes: length(random),
        transit_ns: length(random),
    });
    let links = links.collect();
    Communication {
        operation: trace.names.intern(random.pick::<&str>(&names)),
        group: if random.is_one_in(4) { None } else { Some(small(random, 3)) },
        sequence: if random.is_one_in(3) { None } else { Some(random.below(4) as u64) },
        bytes: length(random),
        peer: if random.is_one_in(3) { None } else { Some(small(random, ranks + 1)) },
        wait_ns: if random.is_one_in(3) { Some(length(random)) } else { None },
        transit_ns: if random.is_one_in(3) { Some(length(random)) } else { None },
        links,
        is_host_call: random.is_one_in(2),
    }
}

fn rank(random: &mut Random, ranks: usize) -> RankTrace {
    let mut trace = RankTrace {
        stage: if random.is_one_in(2) { None } else { Some(small(random, 3)) },
        lost: if random.is_one_in(8) { random.extreme() } else { 0 },
        ..RankTrace::default()
    };
    for number in 0..random.below(3) {
        let members = (0..=small(random, ranks)).collect();
        trace.groups.push(Group { name: format!("g{number}"), role: *random.pick(&ROLES), members });
    }
    for number in 0..random.below(5) {
        let number = if random.is_one_in(12) { random.extreme() } else { number as u64 };
        let start_ns = i64::try_from(number % 8).unwrap_or(0) * 1_000_000 + moment(random) % 1000;
        trace.steps.push(StepSpan { number, start_ns, duration_ns: length(random) });
    }
    for _ in 0..random.below(5) {
        let communication = communication(random, &mut trace, ranks);
        trace.communications.push(communication);
    }
    for _ in 0..random.below(16) {
        let kind = *random.pick(&KINDS);
        let name = trace.names.intern(random.pick::<&str>(&["gemm", "backward", ""]));
        let communication = if kind.is_communication() { Some(small(random, 6)) } else { None };
        let (start_ns, duration_ns, lane) = (moment(random), length(random), small(random, 3));
        trace.events.push(Event { start_ns, duration_ns, kind, lane, name, communication });
    }
    // Readers sort; a few traces are not.
    if !random.is_one_in(8) {
        trace.events.sort_by_key(|event| event.start_ns);
        trace.steps.sort_by_key(|step| step.start_ns);
    }
    if random.is_one_in(3) {
        let memory = (0..random.below(4)).map(|_| (moment(random), length(random))).collect();
        trace.resources =
            Resources { flop_per_step: Some(f64::from_bits(random.next())), memory, ..Resources::default() };
    }
    trace
}

impl Target for Analysis {
    fn case(&mut self, random: &mut Random) -> Outcome {
        let ranks = random.below(5);
        let mut trace = Trace::default();
        for number in 0..ranks {
            let number = if random.is_one_in(16) { u32::MAX } else { u32::try_from(number).unwrap_or_default() };
            let of_rank = rank(random, ranks);
            trace.ranks.insert(number, of_rank);
        }
        trace.began_unix_ns = if random.is_one_in(4) { None } else { Some(moment(random)) };
        let analysis = analyze(&trace, &Settings::default());
        if random.is_one_in(64) {
            drop(taskd_core::analysis::report::html(&analysis));
        }
        if analysis.missing.is_empty() { Outcome::Whole } else { Outcome::Part(analysis.missing) }
    }

    fn is_clear(&self, message: &str) -> bool {
        !message.is_empty()
    }
}
