//! Transfers between ranks: time, bytes, and bandwidth as bytes divided by time.
//!
//! A trace's own transfers per link count where it has them. Otherwise a send with its receive is one transfer from the
//! later start of the two to the end of the receive.

use crate::boxes::{self, Value};
use crate::document::Link;
use crate::index::Index;
use crate::matches::{Call, Matches};
use crate::model::LinkKind;
use crate::pairing::Pairs;
use crate::tables::{float, rounded};
use crate::waits::Waits;
use std::cmp::Reverse;

/// Maximum number of links in the document.
pub(crate) const LINKS_MAX: usize = 8192;

/// One transfer over a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) kind: LinkKind,
    pub(crate) column: Option<usize>,
    pub(crate) time_ns: u64,
    pub(crate) bytes: u64,
    operation: &'a str,
}

impl<'a> Transfer<'a> {
    /// Identifies the link.
    pub(crate) const fn link(&self) -> (u32, u32, LinkKind) {
        (self.source, self.destination, self.kind)
    }

    /// Name of the operation.
    pub(crate) const fn operation(&self) -> &'a str {
        self.operation
    }
}

/// Returns all transfers of a trace, sorted by link.
pub(crate) fn transfers<'a>(
    index: &Index<'a>,
    matches: &Matches<'a>,
    pairs: &Pairs,
    waits: &Waits,
) -> Vec<Transfer<'a>> {
    let mut transfers = Vec::new();
    for (row, calls) in matches.calls.iter().enumerate() {
        for call in calls {
            let operation = index.rows[row].names.get(call.event.name);
            transfers.extend(call.details.iter().flat_map(|details| &details.links).map(|link| Transfer {
                source: link.source,
                destination: link.destination,
                kind: link.link,
                column: call.column,
                time_ns: link.transit_ns,
                bytes: link.bytes,
                operation,
            }));
        }
    }
    let call = |(row, at): (u32, u32)| &matches.calls[row as usize][at as usize];
    let has_links = |call: &Call<'_>| call.details.is_some_and(|details| !details.links.is_empty());
    let bytes = |call: &Call<'_>| call.details.map_or(0, |details| details.bytes);
    for pair in &pairs.pairs {
        let (send, receive) = (call(pair.send), call(pair.receive));
        if has_links(send) || has_links(receive) {
            continue;
        }
        let wait = waits[pair.receive.0 as usize][pair.receive.1 as usize].unwrap_or_default();
        transfers.push(Transfer {
            source: index.ranks[pair.send.0 as usize],
            destination: index.ranks[pair.receive.0 as usize],
            kind: LinkKind::Unknown,
            column: send.column,
            time_ns: receive.event.duration_ns.saturating_sub(wait),
            bytes: bytes(send).max(bytes(receive)),
            operation: index.rows[pair.send.0 as usize].names.get(send.event.name),
        });
    }
    // Stable: the transfers of a link stay in the order of time.
    transfers.sort_by_key(Transfer::link);
    transfers
}

/// Returns the links, those with the largest total time if there are more than `max`, sorted by ranks; and the number of
/// links left out.
pub(crate) fn links(index: &Index<'_>, transfers: &[Transfer<'_>], max: usize) -> (Vec<Link>, u64) {
    let mut chunks: Vec<(u64, &[Transfer<'_>])> = transfers
        .chunk_by(|a, b| a.link() == b.link())
        .map(|chunk| (chunk.iter().fold(0u64, |sum, transfer| sum.saturating_add(transfer.time_ns)), chunk))
        .collect();
    let left_out = chunks.len().saturating_sub(max) as u64;
    chunks.sort_by_key(|(time, _)| Reverse(*time));
    chunks.truncate(max);
    chunks.sort_by_key(|(_, chunk)| chunk[0].link());
    (chunks.into_iter().map(|(time_ns, chunk)| link(index, time_ns, chunk)).collect(), left_out)
}

fn link(index: &Index<'_>, time_ns: u64, transfers: &[Transfer<'_>]) -> Link {
    let bytes = transfers.iter().fold(0u64, |sum, transfer| sum.saturating_add(transfer.bytes));
    let plot = |of: &dyn Fn(&Transfer<'_>) -> Option<f64>| {
        let value = |transfer: &Transfer<'_>| {
            let step = transfer.column.and_then(|column| index.steps.get(column).copied());
            Some((of(transfer)?, step))
        };
        let mut values: Vec<Value<'_>> = transfers
            .iter()
            .filter_map(|transfer| {
                value(transfer).map(|(value, step)| Value { value, step, operation: transfer.operation })
            })
            .collect();
        boxes::of(&mut values)
    };
    Link {
        source: transfers[0].source,
        destination: transfers[0].destination,
        kind: kind_name(transfers[0].kind).to_owned(),
        count: transfers.len() as u64,
        time_us: time_ns / 1000,
        bytes,
        bytes_per_second: bandwidth(bytes, time_ns).map(rounded),
        time_box: plot(&|transfer| Some(float(transfer.time_ns) / 1000.0)),
        bytes_box: plot(&|transfer| Some(float(transfer.bytes))),
        bandwidth_box: plot(&|transfer| bandwidth(transfer.bytes, transfer.time_ns)),
    }
}

/// Bytes per second; `None` if the time is 0.
pub(crate) fn bandwidth(bytes: u64, time_ns: u64) -> Option<f64> {
    (time_ns > 0).then(|| float(bytes) * 1e9 / float(time_ns))
}

/// Name of a kind of link in the document.
pub(crate) const fn kind_name(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Sdma => "sdma",
        LinkKind::Rdma => "rdma",
        LinkKind::Hccs => "hccs",
        LinkKind::Sio => "sio",
        LinkKind::Pcie => "pcie",
        LinkKind::NvLink => "nvlink",
        LinkKind::Network => "network",
        LinkKind::Local => "local",
        LinkKind::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use crate::analyze;
    use crate::model::{Communication, Event, Kind, LinkKind, LinkTransfer, RankTrace, StepSpan, Trace};
    use crate::synthetic::{Job, trace};

    #[test]
    fn bandwidth_is_the_bytes_divided_by_the_time() {
        let mut rank = RankTrace::default();
        rank.steps.push(StepSpan { number: 5, start_ns: 0, duration_ns: 1_000_000 });
        let name = rank.names.intern("all_reduce");
        // 1 MB in 100 us and 1 MB in 300 us: 5 GB/s, not 10 + 3.3.
        for (at, us) in [(0u32, 100u64), (1, 300)] {
            let (source, destination, bytes) = (1, 2, 1_000_000);
            let link = LinkTransfer { source, destination, link: LinkKind::Sdma, bytes, transit_ns: us * 1000 };
            rank.communications.push(Communication { links: vec![link], ..Communication::default() });
            rank.events.push(Event {
                start_ns: i64::from(at) * 1000,
                duration_ns: us * 1000,
                kind: Kind::Collective,
                lane: at,
                name,
                communication: Some(at),
            });
        }
        let trace = Trace { ranks: [(1, rank)].into(), ..Trace::default() };
        let links = analyze(&trace, &Default::default()).communication.links;
        assert_eq!(links.len(), 1);
        assert_eq!((links[0].source, links[0].destination, links[0].kind.as_str()), (1, 2, "sdma"));
        assert_eq!((links[0].count, links[0].time_us, links[0].bytes), (2, 400, 2_000_000));
        assert_eq!(links[0].bytes_per_second, Some(5e9));
        let bandwidth = links[0].bandwidth_box.clone().unwrap();
        assert!((bandwidth.high - 1e10).abs() < 1.0);
    }

    #[test]
    fn transfers_of_pairs_exclude_the_wait() {
        let job = Job { tp: 1, dp: 1, pp: 2, clock_offset_ns: 0, jitter_permille: 0, ..Job::default() };
        let mut trace = trace(&job, 1);
        for rank in trace.ranks.values_mut() {
            for details in &mut rank.communications {
                details.links.clear();
            }
        }
        let links = analyze(&trace, &Default::default()).communication.links;
        let ends: Vec<_> = links.iter().map(|link| (link.source, link.destination, link.kind.as_str())).collect();
        assert_eq!(ends, [(0, 1, "unknown"), (1, 0, "unknown")]);
        // 8 MiB at 200 GB/s and 20 us of latency.
        let time = links[0].time_box.clone().unwrap();
        assert!((61.0..63.0).contains(&time.low) && (61.0..63.0).contains(&time.high), "{time:?}");
    }
}
