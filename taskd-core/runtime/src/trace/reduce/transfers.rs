//! Sends and receives of a process in each step, for the times of transfers between two ranks.
//!
//! It pairs nothing: the detectors have the operations of all ranks.

use crate::trace::recorder::{Communication, Op};
use crate::trace::{CHANNELS_MAX, Channel, NameTable, StepTransfers, TRANSFERS_MAX, TimedRecord, TransferTime};

/// Names of the operations during which the calling thread waits until the data was transferred. Recorders name the
/// others, which return at once or run on a device, `isend` and `irecv`, or as their framework does.
const WAITING: [&str; 2] = ["send", "recv"];

/// A send or receive that is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    peer: u32,
    is_send: bool,
    group: u32,
    bytes: u64,
    sequence: u64,
    began: u64,
}

/// The operations of an open step.
#[derive(Clone, Debug, Default)]
pub(super) struct Transfers {
    channels: Vec<Open>,
    left_out: u32,
}

/// A channel of an open step.
#[derive(Clone, Debug)]
struct Open {
    peer: u32,
    is_send: bool,
    group: u32,
    /// Bytes of the largest operation.
    largest: u64,
    calls: u32,
    first: Vec<Done>,
    shortest_ns: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
struct Done {
    sequence: u64,
    bytes: u64,
    /// Beginning of a send, end of a receive.
    at: u64,
}

impl Operation {
    /// Returns the send or receive that a record begins; `None` for anything else, and for operations that show no time
    /// of a transfer.
    pub(super) fn of(record: &TimedRecord, what: &Communication, names: &NameTable) -> Option<Operation> {
        let is_send = what.op == Op::Send;
        if !(is_send || what.op == Op::Recv) || !WAITING.contains(&names.get(record.name)) {
            return None;
        }
        let (peer, sequence) = what.peer.zip(what.sequence)?;
        let group = crc32fast::hash(names.get(what.group).as_bytes());
        Some(Operation { peer, is_send, group, bytes: what.bytes, sequence, began: record.unix_nanos })
    }
}

impl Transfers {
    /// Adds an operation that ends now.
    pub(super) fn add(&mut self, operation: &Operation, now: u64) {
        let Operation { peer, is_send, group, bytes, sequence, began } = *operation;
        let is_its = |open: &Open| (open.peer, open.is_send, open.group) == (peer, is_send, group);
        let at = self.channels.iter().position(is_its).unwrap_or(self.channels.len());
        if at >= CHANNELS_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        if at == self.channels.len() {
            let (first, shortest_ns) = (Vec::new(), u64::MAX);
            self.channels.push(Open { peer, is_send, group, largest: 0, calls: 0, first, shortest_ns });
        }
        let open = &mut self.channels[at];
        if is_half(bytes, open.largest) {
            return;
        }
        if is_half(open.largest, bytes) {
            (open.calls, open.shortest_ns) = (0, u64::MAX);
            open.first.clear();
        }
        open.largest = open.largest.max(bytes);
        open.calls = open.calls.saturating_add(1);
        open.shortest_ns = open.shortest_ns.min(now.saturating_sub(began));
        if open.first.len() < TRANSFERS_MAX {
            open.first.push(Done { sequence, bytes, at: if is_send { began } else { now } });
        }
    }

    /// Returns the operations of a step that ends now; `None` if there are none.
    pub(super) fn finish(self, step: u64, now: u64) -> Option<StepTransfers> {
        let channel = |open: Open| {
            let counts = |done: &&Done| !is_half(done.bytes, open.largest);
            let time =
                |done: &Done| TransferTime { sequence: done.sequence, before_end_ns: now.saturating_sub(done.at) };
            let first = open.first.iter().filter(counts).map(time).collect();
            let Open { peer, is_send, group, calls, shortest_ns, .. } = open;
            Channel { peer, is_send, group, calls, shortest_ns, first }
        };
        let channels: Vec<Channel> = self.channels.into_iter().map(channel).collect();
        let left_out = self.left_out;
        (!channels.is_empty()).then_some(StepTransfers { step, ended_unix_ns: now, channels, left_out })
    }
}

/// Returns true if `bytes` are less than half of `largest`.
const fn is_half(bytes: u64, largest: u64) -> bool {
    bytes < largest / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::recorder::{DataType, Detail, Event, Kind, NameId};

    const SEND: u32 = 1;

    fn operation(name: &str, peer: u32, bytes: u64, sequence: u64, began: u64) -> Option<Operation> {
        let names: NameTable = [name, "pp|0,2"].into_iter().collect();
        let op = if name.contains("send") { Op::Send } else { Op::Recv };
        let (data_type, group) = (DataType::F32, NameId(2));
        let (peer, sequence) = (Some(peer), Some(sequence));
        let what = Communication { op, data_type, group, elements: 1, bytes, peer, sequence };
        let (event, detail) = (Event::Begin { range: 1 }, Detail::Communication(what));
        let record =
            TimedRecord { unix_nanos: began, thread: 1, kind: Kind::Communication, event, name: NameId(SEND), detail };
        Operation::of(&record, &what, &names)
    }

    #[test]
    fn operations_of_a_step_are_counted_by_channel_and_size() {
        let mut transfers = Transfers::default();
        for (sequence, bytes) in (0..).zip([8, 4096, 16, 4096, 5000]) {
            let began = 100 + 10 * sequence;
            transfers.add(&operation("send", 2, bytes, sequence, began).expect("it waits"), began + sequence);
        }
        transfers.add(&operation("recv", 2, 64, 9, 200).expect("it waits"), 230);
        let found = transfers.finish(7, 300).expect("it has operations");
        assert_eq!((found.step, found.ended_unix_ns, found.left_out), (7, 300, 0));
        let [sends, receives] = &found.channels[..] else { panic!("{found:?}") };
        assert_eq!((sends.is_send, sends.calls, sends.shortest_ns), (true, 3, 1));
        let first = |channel: &Channel| -> Vec<(u64, u64)> {
            channel.first.iter().map(|time| (time.sequence, time.before_end_ns)).collect()
        };
        assert_eq!(first(sends), [(1, 190), (3, 170), (4, 160)], "beginnings of those with many bytes");
        assert_eq!((receives.is_send, receives.shortest_ns, first(receives)), (false, 30, vec![(9, 70)]));
        assert_eq!(sends.group, receives.group);
    }

    #[test]
    fn operations_that_return_at_once_do_not_count() {
        assert!(operation("isend", 2, 8, 0, 0).is_none() && operation("irecv", 2, 8, 0, 0).is_none());
        assert!(operation("Send", 2, 8, 0, 0).is_none(), "MindSpore's run on a device");
        assert!(Transfers::default().finish(1, 1).is_none());
    }

    #[test]
    fn further_channels_are_counted_and_further_operations_not_kept() {
        let mut transfers = Transfers::default();
        for peer in 0..20 {
            transfers.add(&operation("send", peer, 8, 0, 0).expect("it waits"), 1);
        }
        (1..20).for_each(|sequence| transfers.add(&operation("send", 0, 8, sequence, 0).expect("it waits"), 1));
        let found = transfers.finish(1, 2).expect("it has operations");
        assert_eq!((found.channels.len(), found.left_out), (CHANNELS_MAX, 4));
        assert_eq!((found.channels[0].calls, found.channels[0].first.len()), (20, TRANSFERS_MAX));
    }
}
