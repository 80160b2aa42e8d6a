//! The packets of a trace in Perfetto's format: its head, descriptors of tracks, and events on them.
//!
//! `tracks` manages the assignment of events to tracks. The field numbers are those of the messages of
//! `perfetto_trace.proto`, whose fields never change their meaning.

use super::wire::Message;
use crate::job::Rank;

/// A track, by its number in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrackId(u64);

/// The parent track of all ranks.
const ROOT: TrackId = TrackId(0);

/// The sequence of all packets.
const SEQUENCE: u64 = 1;
/// `SequenceFlags`: the state in this packet applies to its sequence from now on.
const STATE_CLEARED: u64 = 1;
/// `SequenceFlags`: depends on the state in the first packet.
const STATE_NEEDED: u64 = 2;
/// `BuiltinClock`: nanoseconds since 1970.
const REALTIME: u64 = 1;
/// `ProcessOrdering`: as set in the processes' descriptors.
const PROCESSES_EXPLICIT: u64 = 1;
/// `ChildTracksOrdering`: as set in the children's descriptors.
const CHILDREN_EXPLICIT: u64 = 3;
/// The largest value of a signed 32-bit field.
const POSITIVE_MAX: u64 = i32::MAX as u64;

/// Type of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventType {
    Begin = 1,
    End = 2,
    Instant = 3,
    Counter = 4,
}

/// Name of an argument of an event. A file contains each name once, and events refer to its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argument {
    number: u64,
    name: &'static str,
}

macro_rules! arguments {
    ($($constant:ident = $number:literal $name:literal;)*) => {
        $(pub(super) const $constant: Argument = Argument { number: $number, name: $name };)*
        const ARGUMENTS: &[Argument] = &[$($constant),*];
    };
}

arguments! {
    THREAD = 1 "thread";
    STEP = 2 "step";
    CPU_MS = 3 "cpu_ms";
    OP = 4 "op";
    DATA_TYPE = 5 "data_type";
    GROUP = 6 "group";
    MEMBERS = 7 "members";
    ELEMENTS = 8 "elements";
    BYTES = 9 "bytes";
    PEER = 10 "peer";
    SEQUENCE_NUMBER = 11 "sequence";
    UNFINISHED = 12 "unfinished";
    INCARNATION = 13 "incarnation";
    PID = 14 "pid";
    RECORDS = 15 "records";
    DEVICE = 16 "device";
    STREAM = 17 "stream";
    CORRELATION = 18 "correlation";
}

/// Packets that are not in the file yet.
#[derive(Debug, Default)]
pub(super) struct Packets {
    message: Message,
    last_track: u64,
}

impl Packets {
    /// Writes the head of a file: times are calendar times, and ranks are shown in their order.
    pub(super) fn head(&mut self, nanos: u64) {
        self.packet(STATE_CLEARED, |packet| {
            packet.number(87, 1); // first_packet_on_sequence
            packet.message(59, |defaults| defaults.number(58, REALTIME)); // timestamp_clock_id
            packet.message(12, |interned| {
                for argument in ARGUMENTS {
                    interned.message(3, |name| {
                        name.number(1, argument.number);
                        name.text(2, argument.name);
                    });
                }
            });
        });
        self.packet(STATE_NEEDED, |packet| {
            packet.message(6, |snapshot| {
                snapshot.message(1, |clock| {
                    clock.number(1, REALTIME);
                    clock.number(2, nanos);
                });
                snapshot.number(2, REALTIME); // primary_trace_clock
            });
        });
        self.descriptor(ROOT, |root| root.number(19, PROCESSES_EXPLICIT));
    }

    /// Adds a rank, with tracks of its own. It is shown as a process. Processes are distinguished by their ids, but
    /// hosts and containers use the same ids for different processes, so the id here is the rank plus one.
    pub(super) fn rank(&mut self, rank: Rank) -> TrackId {
        self.new_track(|descriptor| {
            descriptor.message(3, |process| {
                process.number(1, u64::from(rank.0).saturating_add(1).min(POSITIVE_MAX));
                process.text(6, &rank.to_string());
            });
            descriptor.number(11, CHILDREN_EXPLICIT);
            descriptor.number(12, u64::from(rank.0).min(POSITIVE_MAX));
        })
    }

    /// Adds a track of a rank. Tracks of the same name are shown as one, on several lines.
    pub(super) fn track(&mut self, rank: TrackId, name: &str, order: u64) -> TrackId {
        self.new_track(|descriptor| {
            descriptor.number(5, rank.0);
            descriptor.text(2, name);
            descriptor.number(12, order.min(POSITIVE_MAX));
        })
    }

    /// Adds a track for a rank's figures.
    pub(super) fn counter_track(&mut self, rank: TrackId, name: &str, order: u64) -> TrackId {
        self.new_track(|descriptor| {
            descriptor.number(5, rank.0);
            descriptor.text(2, name);
            descriptor.message(8, |_| ());
            descriptor.number(12, order);
        })
    }

    /// Adds an event on a track; `fill` adds its name and arguments.
    pub(super) fn event(&mut self, nanos: u64, what: EventType, track: TrackId, fill: impl FnOnce(&mut Event<'_>)) {
        self.packet(STATE_NEEDED, |packet| {
            packet.number(8, nanos);
            packet.message(11, |event| {
                event.number(9, what as u64);
                event.number(11, track.0);
                fill(&mut Event(event));
            });
        });
    }

    /// Returns and removes the packets, to be written to the file.
    pub(super) fn drain(&mut self) -> impl AsRef<[u8]> {
        self.message.drain()
    }

    fn new_track(&mut self, fill: impl FnOnce(&mut Message)) -> TrackId {
        self.last_track += 1;
        self.descriptor(TrackId(self.last_track), fill);
        TrackId(self.last_track)
    }

    fn descriptor(&mut self, track: TrackId, fill: impl FnOnce(&mut Message)) {
        self.packet(STATE_NEEDED, |packet| {
            packet.message(60, |descriptor| {
                descriptor.number(1, track.0);
                fill(descriptor);
            });
        });
    }

    fn packet(&mut self, flags: u64, fill: impl FnOnce(&mut Message)) {
        self.message.message(1, |packet| {
            packet.number(10, SEQUENCE);
            packet.number(13, flags);
            fill(packet);
        });
    }
}

/// An event that is being written.
#[derive(Debug)]
pub(super) struct Event<'a>(&'a mut Message);

impl Event<'_> {
    pub(super) fn name(&mut self, name: &str) {
        self.0.text(23, name);
    }

    pub(super) fn value(&mut self, value: f64) {
        self.0.double(44, value);
    }

    pub(super) fn number(&mut self, argument: Argument, value: u64) {
        self.annotation(argument, |annotation| annotation.number(3, value));
    }

    pub(super) fn figure(&mut self, argument: Argument, value: f64) {
        self.annotation(argument, |annotation| annotation.double(5, value));
    }

    pub(super) fn text(&mut self, argument: Argument, value: &str) {
        self.annotation(argument, |annotation| annotation.text(6, value));
    }

    pub(super) fn flag(&mut self, argument: Argument) {
        self.annotation(argument, |annotation| annotation.number(2, 1));
    }

    fn annotation(&mut self, argument: Argument, fill: impl FnOnce(&mut Message)) {
        self.0.message(4, |annotation| {
            annotation.number(1, argument.number);
            fill(annotation);
        });
    }
}
