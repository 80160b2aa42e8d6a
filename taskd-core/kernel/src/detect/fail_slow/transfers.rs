//! From the sends and receives of all ranks to the time of the transfers between two ranks.
//!
//! A transfer lasts from the moment at which both sides take part to the end of the receive. The wait for a late sender
//! or receiver is thus no part of it. The shortest transfer of a step counts for all of the step: a rank that is held up
//! lengthens some of its transfers, a slow link all.
//!
//! # Clocks
//! Ranks on one host have one clock. The clocks of two hosts may differ by any time, so the length of a transfer for
//! which the receiver waited is known only together with one in the other direction: the sum of both does not depend
//! on the clocks. Of all differences of the clocks that are possible the one with the shortest transfers is assumed.
//! The result is never longer than the true time, whatever the clocks show; it is shorter where a link is slow in one
//! direction only, and unknown without transfers in both directions.

use super::engine::{Row, Series};
use super::figures::ms;
use super::layout::Layout;
use crate::detect::device_steps::Basis;
use crate::trace::{Channel, StepTransfers};
use std::collections::BTreeMap;

/// The transfers of a step from one rank to another.
#[derive(Clone, Copy, Debug)]
struct Direction {
    calls: u32,
    /// Shortest receive.
    receive_ns: u64,
    /// Shortest time from the beginning of a send to the end of its receive, by two clocks.
    delay_ns: i64,
}

/// Sets the times of the transfers of each rank ([`Series::Send`]) in the rows of a step. `ranks` holds the global rank
/// of each position of the layout, in ascending order, and `transfers` what each of them has reported.
///
/// If the devices are compared, the times stay unknown, as those of a rank do that has a peer with unknown times.
pub fn add_transfers(
    rows: &mut [Row],
    basis: Basis,
    layout: &Layout,
    ranks: &[u32],
    transfers: &[Option<&StepTransfers>],
) {
    if basis == Basis::Device || transfers.iter().all(Option::is_none) {
        return;
    }
    let mut sums: Vec<Option<u64>> = vec![None; rows.len()];
    let mut is_unknown = vec![false; rows.len()];
    for ((a, b), directions) in pairs(ranks, transfers) {
        let host = |at: usize| layout.places().get(at).map(|place| place.host).filter(|host| *host != u32::MAX);
        let has_one_clock = host(a).is_some() && host(a) == host(b);
        let time = time_ns(directions, has_one_clock);
        for at in [a, b].into_iter().filter(|at| *at < rows.len()) {
            match time {
                Some(time) => sums[at] = Some(sums[at].unwrap_or_default().saturating_add(time)),
                None => is_unknown[at] = true,
            }
        }
    }
    for ((row, sum), is_unknown) in rows.iter_mut().zip(sums).zip(is_unknown) {
        if let Some(sum) = sum.filter(|_| !is_unknown) {
            row[Series::Send as usize] = ms(sum);
        }
    }
}

/// Returns the two directions between each pair of positions that have exchanged data, the lower position first. A
/// direction is unknown if the other side has not reported the same operations.
fn pairs(ranks: &[u32], transfers: &[Option<&StepTransfers>]) -> BTreeMap<(usize, usize), [Option<Direction>; 2]> {
    let mut found: BTreeMap<(usize, usize), [Option<Direction>; 2]> = BTreeMap::new();
    let reports = ranks.iter().zip(transfers).enumerate();
    for (at, (rank, own)) in reports.filter_map(|(at, (rank, own))| Some((at, (*rank, (*own)?)))) {
        for channel in &own.channels {
            let Ok(peer) = ranks.binary_search(&channel.peer) else { continue };
            if peer == at {
                continue;
            }
            let known = found.entry((at.min(peer), at.max(peer))).or_default();
            let other = transfers.get(peer).copied().flatten();
            if let Some(other) = other.filter(|_| !channel.is_send)
                && let Some(direction) = direction((channel, own), other, rank)
            {
                let known = &mut known[usize::from(peer > at)];
                *known = Some(known.map_or(direction, |known| known.and(direction)));
            }
        }
    }
    found
}

/// Returns the transfers of a channel in which the rank `receiver` receives; `None` without any operation that both sides
/// have reported.
fn direction(receives: (&Channel, &StepTransfers), other: &StepTransfers, receiver: u32) -> Option<Direction> {
    let (channel, own) = receives;
    let is_other_side = |sends: &&Channel| sends.is_send && sends.peer == receiver && sends.group == channel.group;
    let sends = other.channels.iter().find(is_other_side)?;
    let delay = |received: &crate::trace::TransferTime| {
        let sent = sends.first.iter().find(|sent| sent.sequence == received.sequence)?;
        let began = other.ended_unix_ns.saturating_sub(sent.before_end_ns);
        let ended = own.ended_unix_ns.saturating_sub(received.before_end_ns);
        Some(difference(ended, began))
    };
    let delay_ns = channel.first.iter().filter_map(delay).min()?;
    Some(Direction { calls: channel.calls.min(sends.calls), receive_ns: channel.shortest_ns, delay_ns })
}

impl Direction {
    /// Adds the transfers of a further group. The shortest one of all groups counts.
    fn and(self, other: Direction) -> Direction {
        Direction {
            calls: self.calls.saturating_add(other.calls),
            receive_ns: self.receive_ns.min(other.receive_ns),
            delay_ns: self.delay_ns.min(other.delay_ns),
        }
    }

    /// Returns the time of all transfers, of which the shortest one is no longer than `limit_ns`.
    fn total_ns(self, limit_ns: i64) -> u64 {
        self.receive_ns.min(u64::try_from(limit_ns).unwrap_or(0)).saturating_mul(u64::from(self.calls))
    }
}

/// Returns the time of the transfers of a pair in a step; `None` if it is unknown.
fn time_ns(directions: [Option<Direction>; 2], has_one_clock: bool) -> Option<u64> {
    match directions {
        [Some(there), Some(back)] if !has_one_clock => {
            // The clocks differ at most so far that the shortest transfer of one direction takes no time at all. The
            // other direction has the whole sum then.
            let sum = there.delay_ns.saturating_add(back.delay_ns);
            Some(there.total_ns(sum).min(back.total_ns(sum)))
        }
        [None, None] => None,
        _ if !has_one_clock => None,
        both => {
            Some(both.into_iter().flatten().fold(0, |sum: u64, one| sum.saturating_add(one.total_ns(one.delay_ns))))
        }
    }
}

fn difference(a: u64, b: u64) -> i64 {
    let apart = i64::try_from(a.abs_diff(b)).unwrap_or(i64::MAX);
    if a >= b { apart } else { -apart }
}
