//! Assignment of records to tracks of the file.

use super::packets::{Packets, TrackId};
use crate::job::Rank;
use crate::trace::export::words;
use crate::trace::recorder::{Detail, DeviceCommunication, DeviceWork, Kind};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of counter tracks in a Perfetto file. Values of further counters are not written, and counted in
/// [`Summary::left_out`](super::Summary::left_out).
pub const COUNTER_TRACKS_MAX: usize = 4096;
/// Maximum number of device streams in a Perfetto file. Work on further streams is not written, and counted in
/// [`Summary::left_out`](super::Summary::left_out).
pub const STREAMS_MAX: usize = 4096;
/// Maximum number of tracks in a Perfetto file for one device stream, or for one kind of record of a rank. Spans that
/// overlap are put on separate tracks. Spans that need a further track are not written, and counted in
/// [`Summary::left_out`](super::Summary::left_out).
pub const SPAN_TRACKS_MAX: usize = 64;

/// Order of a rank's tracks: the recorder's own, kinds by their numbers, counters, streams.
const RECORDER: u64 = 0;
const COUNTERS: u64 = 64;
const STREAMS: u64 = 65;

/// All tracks of a file. Their number grows with the ranks, the kinds that they record, the ranges of a kind that a
/// rank has open at one time, and the streams of its devices.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    ranks: BTreeMap<Rank, RankTracks>,
    counters: usize,
    streams: usize,
}

/// Subject of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// Activity of threads, of one kind.
    Kind(Kind),
    /// Activity of one stream of a device, of any kind.
    Stream { device: u32, stream: u32 },
}

impl Line {
    /// Returns the subject for a record.
    pub(super) const fn of(kind: Kind, detail: &Detail) -> Line {
        match *detail {
            Detail::Device(DeviceWork { device, stream, .. })
            | Detail::DeviceCommunication(DeviceCommunication { work: DeviceWork { device, stream, .. }, .. })
                if device != u32::MAX =>
            {
                Line::Stream { device, stream }
            }
            _ => Line::Kind(kind),
        }
    }

    fn name(self) -> Cow<'static, str> {
        match self {
            Line::Kind(kind) => words::kind(kind),
            Line::Stream { device, stream: u32::MAX } => Cow::Owned(format!("device {device}")),
            Line::Stream { device, stream } => Cow::Owned(format!("device {device} stream {stream}")),
        }
    }

    fn order(self) -> u64 {
        match self {
            Line::Kind(kind) => u64::from(kind.number()),
            Line::Stream { device, stream } => STREAMS + (u64::from(device) << 12) + u64::from(stream.min(4095)),
        }
    }
}

#[derive(Debug)]
struct RankTracks {
    track: TrackId,
    recorder: TrackId,
    lines: BTreeMap<Line, Vec<Lane>>,
    counters: BTreeMap<Box<str>, TrackId>,
}

/// One track of ranges that do not overlap. A kind has as many as it has ranges at one time.
#[derive(Debug)]
struct Lane {
    track: TrackId,
    /// End of its last range; `None` while that range is open.
    free_from: Option<u64>,
}

/// Position at which a range is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    rank: Rank,
    line: Line,
    lane: usize,
    pub(super) track: TrackId,
}

impl Tracks {
    /// Returns the track for events of a rank's recorder.
    pub(super) fn recorder(&mut self, rank: Rank, packets: &mut Packets) -> TrackId {
        self.of(rank, packets).recorder
    }

    /// Returns a position for a range that begins at `nanos`. It is occupied until it is left.
    pub(super) fn take(&mut self, rank: Rank, kind: Kind, nanos: u64, packets: &mut Packets) -> Place {
        let (line, tracks) = (Line::Kind(kind), self.of(rank, packets));
        let lanes = tracks.lines.entry(line).or_default();
        let lane = free(lanes, nanos).unwrap_or_else(|| add(lanes, tracks.track, line, packets));
        lanes[lane].free_from = None;
        Place { rank, line, lane, track: lanes[lane].track }
    }

    /// Returns a position for a complete span; `None` if a bound is reached.
    pub(super) fn fit(&mut self, rank: Rank, line: Line, span: Range<u64>, packets: &mut Packets) -> Option<Place> {
        let is_full = self.streams == STREAMS_MAX;
        let tracks = self.of(rank, packets);
        let is_new = matches!(line, Line::Stream { .. }) && !tracks.lines.contains_key(&line);
        if is_new && is_full {
            return None;
        }
        let lanes = tracks.lines.entry(line).or_default();
        let lane = match free(lanes, span.start) {
            Some(lane) => lane,
            None if lanes.len() >= SPAN_TRACKS_MAX => return None,
            None => add(lanes, tracks.track, line, packets),
        };
        lanes[lane].free_from = Some(span.end);
        let track = lanes[lane].track;
        self.streams += usize::from(is_new);
        Some(Place { rank, line, lane, track })
    }

    /// Frees a position: the range there ended at `nanos`.
    pub(super) fn leave(&mut self, place: Place, nanos: u64) {
        let lanes = self.ranks.get_mut(&place.rank).and_then(|tracks| tracks.lines.get_mut(&place.line));
        if let Some(lane) = lanes.and_then(|lanes| lanes.get_mut(place.lane)) {
            lane.free_from = Some(nanos);
        }
    }

    /// Returns the track for instants of a kind, which is its first one.
    pub(super) fn moments(&mut self, rank: Rank, kind: Kind, packets: &mut Packets) -> TrackId {
        let line = Line::Kind(kind);
        if let Some(lane) = self.of(rank, packets).lines.get(&line).and_then(|lanes| lanes.first()) {
            return lane.track;
        }
        let place = self.take(rank, kind, 0, packets);
        self.leave(place, 0);
        place.track
    }

    /// Returns the track of a counter; `None` if the bound is reached.
    pub(super) fn counter(&mut self, rank: Rank, name: &str, packets: &mut Packets) -> Option<TrackId> {
        let is_full = self.counters == COUNTER_TRACKS_MAX;
        let tracks = self.of(rank, packets);
        if let Some(track) = tracks.counters.get(name) {
            return Some(*track);
        }
        if is_full {
            return None;
        }
        let track = packets.counter_track(tracks.track, name, COUNTERS);
        tracks.counters.insert(name.into(), track);
        self.counters += 1;
        Some(track)
    }

    fn of(&mut self, rank: Rank, packets: &mut Packets) -> &mut RankTracks {
        self.ranks.entry(rank).or_insert_with(|| {
            let track = packets.rank(rank);
            let recorder = packets.track(track, "Recorder", RECORDER);
            RankTracks { track, recorder, lines: BTreeMap::new(), counters: BTreeMap::new() }
        })
    }
}

/// Returns a track without a range at this time.
fn free(lanes: &[Lane], nanos: u64) -> Option<usize> {
    lanes.iter().position(|lane| lane.free_from.is_some_and(|end| end <= nanos))
}

/// Adds a track.
fn add(lanes: &mut Vec<Lane>, rank: TrackId, line: Line, packets: &mut Packets) -> usize {
    let track = packets.track(rank, &line.name(), line.order());
    lanes.push(Lane { track, free_from: None });
    lanes.len() - 1
}
