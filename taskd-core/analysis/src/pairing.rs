//! Sends with the receives that they belong to.
//!
//! A send from a to b and a receive of b from a with the same sequence number are a pair. Where a channel has events
//! without sequence numbers, the k-th send of a step and the k-th receive of that step are a pair.

use crate::document::Pair;
use crate::index::{Index, moment_us};
use crate::matches::{Call, Matches};
use crate::model::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of pairs in the document. Above it, the pairs of evenly spaced steps are kept.
pub(crate) const PAIRS_MAX: usize = 100_000;

/// A send and its receive: rows, and indices in the calls of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) send: (u32, u32),
    pub(crate) receive: (u32, u32),
}

/// All sends and receives of a trace.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// The pairs, sorted by channel and time.
    pub(crate) pairs: Vec<Match>,
    /// Number of sends and receives without their other side.
    pub(crate) unpaired: u64,
    /// Number of sends in a step and channel that most steps and channels have.
    pub(crate) micro_batches: Option<u64>,
}

/// Calls of one channel, from one row to another: the sends and the receives.
type Channel = [Vec<(u32, u32)>; 2];

impl Pairs {
    /// Pairs all sends and receives.
    pub(crate) fn new(index: &Index<'_>, matches: &Matches<'_>) -> Pairs {
        let mut pairs = Pairs::default();
        let mut channels: BTreeMap<(usize, usize), Channel> = BTreeMap::new();
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (row, calls) in (0u32..).zip(&matches.calls) {
            let mut sends: BTreeMap<(usize, Option<u32>), u64> = BTreeMap::new();
            for (at, call) in (0u32..).zip(calls).filter(|(_, call)| call.event.kind != Kind::Collective) {
                let is_send = call.event.kind == Kind::Send;
                let peer = call.details.and_then(|details| details.peer);
                if is_send && let Some(column) = call.column {
                    *sends.entry((column, peer)).or_default() += 1;
                }
                let Some(other) = peer.and_then(|peer| index.row_of(peer)) else {
                    pairs.unpaired += 1;
                    continue;
                };
                let own = row as usize;
                let channel = if is_send { (own, other) } else { (other, own) };
                channels.entry(channel).or_default()[usize::from(!is_send)].push((row, at));
            }
            for count in sends.into_values() {
                *counts.entry(count).or_default() += 1;
            }
        }
        for [sends, receives] in channels.into_values() {
            pairs.pair(matches, sends, receives);
        }
        pairs.micro_batches = counts.into_iter().max_by_key(|(_, steps)| *steps).map(|(sends, _)| sends);
        pairs
    }

    fn pair(&mut self, matches: &Matches<'_>, sends: Vec<(u32, u32)>, receives: Vec<(u32, u32)>) {
        let call = |(row, at): (u32, u32)| &matches.calls[row as usize][at as usize];
        let sequence = |side: (u32, u32)| call(side).details.and_then(|details| details.sequence);
        let has_sequences = sends.iter().chain(&receives).all(|side| sequence(*side).is_some());
        let keyed = |sides: Vec<(u32, u32)>| -> Vec<((u64, u64), (u32, u32))> {
            let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
            let mut keyed: Vec<_> = sides
                .into_iter()
                .map(|side| {
                    let of_step = || call(side).column.map_or(u64::MAX, |column| column as u64);
                    let first = if has_sequences { sequence(side).unwrap_or_default() } else { of_step() };
                    let count = counts.entry(first).or_default();
                    *count += 1;
                    ((first, *count), side)
                })
                .collect();
            keyed.sort_unstable();
            keyed
        };
        let (sends, receives) = (keyed(sends), keyed(receives));
        let mut rest = receives.iter().peekable();
        let before = self.pairs.len();
        for (key, send) in &sends {
            while rest.peek().is_some_and(|(other, _)| other < key) {
                rest.next();
            }
            if let Some((_, receive)) = rest.next_if(|(other, _)| other == key) {
                self.pairs.push(Match { send: *send, receive: *receive });
            }
        }
        let paired = self.pairs.len() - before;
        self.unpaired += (sends.len() + receives.len() - 2 * paired) as u64;
    }

    /// Returns the pairs for the document, in the order of the steps, and the number of pairs left out.
    /// `shift`: nanoseconds to subtract from the times of each row.
    pub(crate) fn document(
        &self,
        index: &Index<'_>,
        matches: &Matches<'_>,
        shift: &[i64],
        max: usize,
    ) -> (Vec<Pair>, u64) {
        let call = |(row, at): (u32, u32)| &matches.calls[row as usize][at as usize];
        let columns: BTreeSet<Option<usize>> = self.pairs.iter().map(|pair| call(pair.send).column).collect();
        let every = self.pairs.len().div_ceil(max.max(1)).max(1);
        let kept: BTreeSet<Option<usize>> = columns.into_iter().step_by(every).collect();
        let span = |side: (u32, u32), call: &Call<'_>| {
            let shift = shift[side.0 as usize];
            (moment_us(call.event.start_ns.saturating_sub(shift)), call.event.duration_ns / 1000)
        };
        let mut document: Vec<Pair> = self
            .pairs
            .iter()
            .filter(|pair| kept.contains(&call(pair.send).column))
            .take(max)
            .map(|pair| {
                let (send, receive) = (call(pair.send), call(pair.receive));
                let bytes = |call: &Call<'_>| call.details.map_or(0, |details| details.bytes);
                Pair {
                    step: send.column.map(|column| index.steps[column]),
                    source: index.ranks[pair.send.0 as usize],
                    destination: index.ranks[pair.receive.0 as usize],
                    send: span(pair.send, send),
                    receive: span(pair.receive, receive),
                    bytes: bytes(send).max(bytes(receive)),
                }
            })
            .collect();
        document.sort_by_key(|pair| (pair.step, pair.send.0, pair.source, pair.destination));
        let left_out = self.pairs.len().saturating_sub(document.len()) as u64;
        (document, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::Pairs;
    use crate::index::Index;
    use crate::matches::Matches;
    use crate::model::{Communication, Event, Kind, RankTrace, StepSpan, Trace};

    /// Two ranks with two steps of 100 ns; per rank the calls: kind, start, sequence.
    fn trace(ranks: [&[(Kind, i64, Option<u64>)]; 2]) -> Trace {
        let mut trace = Trace::default();
        for (number, calls) in (0u32..).zip(ranks) {
            let steps = [(1, 0), (2, 100)].map(|(number, start_ns)| StepSpan { number, start_ns, duration_ns: 100 });
            let mut rank = RankTrace { steps: steps.into(), ..RankTrace::default() };
            let name = rank.names.intern("p2p");
            for (at, &(kind, start_ns, sequence)) in (0..).zip(calls) {
                let peer = Some(1 - number);
                rank.communications.push(Communication { peer, sequence, ..Communication::default() });
                rank.events.push(Event { start_ns, duration_ns: 5, kind, lane: 0, name, communication: Some(at) });
            }
            trace.ranks.insert(number, rank);
        }
        trace
    }

    /// Step, start of the send and start of the receive of a pair.
    type Found = (Option<u64>, i64, i64);

    /// Returns the pairs, and the number of those that the document leaves out.
    fn pairs(trace: &Trace, max: usize) -> (Vec<Found>, u64, Pairs) {
        let index = Index::new(trace);
        let matches = Matches::new(&index);
        let pairs = Pairs::new(&index, &matches);
        let times = |side: (u32, u32)| matches.event(side).start_ns;
        let (document, left_out) = pairs.document(&index, &matches, &[0, 0], max);
        assert_eq!(document.len() as u64 + left_out, pairs.pairs.len() as u64);
        let found = pairs
            .pairs
            .iter()
            .map(|pair| {
                let call = &matches.calls[pair.send.0 as usize][pair.send.1 as usize];
                (call.column.map(|column| index.steps[column]), times(pair.send), times(pair.receive))
            })
            .collect();
        (found, left_out, pairs)
    }

    use Kind::{Receive, Send};

    #[test]
    fn sends_and_receives_of_one_sequence_are_pairs() {
        let trace = trace([
            &[(Send, 1, Some(0)), (Send, 20, Some(1)), (Send, 40, Some(2)), (Receive, 60, Some(0))],
            &[(Receive, 3, Some(1)), (Receive, 30, Some(2)), (Receive, 50, Some(3)), (Send, 55, Some(0))],
        ]);
        let (found, _, pairs) = pairs(&trace, 10);
        assert_eq!(found, [(Some(1), 20, 3), (Some(1), 40, 30), (Some(1), 55, 60)]);
        assert_eq!(pairs.unpaired, 2);
    }

    #[test]
    fn lost_send_of_one_step_leaves_the_other_steps_paired() {
        let trace = trace([
            &[(Send, 1, None), (Send, 110, None), (Send, 120, None)],
            &[(Receive, 3, None), (Receive, 30, None), (Receive, 111, None), (Receive, 121, None)],
        ]);
        let (found, _, pairs) = pairs(&trace, 10);
        assert_eq!(found, [(Some(1), 1, 3), (Some(2), 110, 111), (Some(2), 120, 121)]);
        assert_eq!(pairs.unpaired, 1);
        assert_eq!(pairs.micro_batches, Some(2));
    }

    #[test]
    fn pairs_above_the_limit_are_counted() {
        let trace = trace([&[(Send, 1, None), (Send, 110, None)], &[(Receive, 3, None), (Receive, 111, None)]]);
        assert_eq!(pairs(&trace, 1).1, 1);
        assert_eq!(pairs(&trace, 2).1, 0);
    }
}
