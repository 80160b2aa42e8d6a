//! Which track of the file a record is shown on.
//!
//! It knows what is where, and nothing of what it is.

use super::packets::{Packets, TrackId};
use crate::job::Rank;
use crate::trace::export::words;
use crate::trace::recorder::Kind;
use std::collections::BTreeMap;

/// So many tracks for counters a file has at most; a counter beyond them is left out, and counted.
pub const COUNTER_TRACKS_MAX: usize = 4096;

/// The order in which the tracks of a rank are shown: the recorder's own, kinds by their numbers, counters.
const RECORDER: u64 = 0;
const COUNTERS: u64 = 64;

/// All tracks of a file. Their number grows with the ranks, the kinds that they record and the ranges of a kind that a rank
/// has open at one time.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    ranks: BTreeMap<Rank, RankTracks>,
    counters: usize,
}

#[derive(Debug)]
struct RankTracks {
    track: TrackId,
    recorder: TrackId,
    kinds: BTreeMap<Kind, Vec<Lane>>,
    counters: BTreeMap<Box<str>, TrackId>,
}

/// One line of ranges that do not overlap. A kind has as many as it has ranges at one time.
#[derive(Debug)]
struct Lane {
    track: TrackId,
    /// The end of its last range; `None` while that is open.
    free_from: Option<u64>,
}

/// Where a range is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    rank: Rank,
    kind: Kind,
    lane: usize,
    pub(super) track: TrackId,
}

impl Tracks {
    /// The track on which is told what happened to the recorder of a rank.
    pub(super) fn recorder(&mut self, rank: Rank, packets: &mut Packets) -> TrackId {
        self.of(rank, packets).recorder
    }

    /// A place for a range that begins at `nanos`, which is taken until it is left.
    pub(super) fn take(&mut self, rank: Rank, kind: Kind, nanos: u64, packets: &mut Packets) -> Place {
        let tracks = self.of(rank, packets);
        let lanes = tracks.kinds.entry(kind).or_default();
        let free = lanes.iter().position(|lane| lane.free_from.is_some_and(|end| end <= nanos));
        let lane = free.unwrap_or_else(|| {
            let track = packets.track(tracks.track, &words::kind(kind), u64::from(kind.number()));
            lanes.push(Lane { track, free_from: None });
            lanes.len() - 1
        });
        lanes[lane].free_from = None;
        Place { rank, kind, lane, track: lanes[lane].track }
    }

    /// The range that was shown there ended at `nanos`.
    pub(super) fn leave(&mut self, place: Place, nanos: u64) {
        let lanes = self.ranks.get_mut(&place.rank).and_then(|tracks| tracks.kinds.get_mut(&place.kind));
        if let Some(lane) = lanes.and_then(|lanes| lanes.get_mut(place.lane)) {
            lane.free_from = Some(nanos);
        }
    }

    /// The track for moments of a kind, which is its first one.
    pub(super) fn moments(&mut self, rank: Rank, kind: Kind, packets: &mut Packets) -> TrackId {
        if let Some(lane) = self.of(rank, packets).kinds.get(&kind).and_then(|lanes| lanes.first()) {
            return lane.track;
        }
        let place = self.take(rank, kind, 0, packets);
        self.leave(place, 0);
        place.track
    }

    /// The track of a counter; `None` when there are too many.
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
            RankTracks { track, recorder, kinds: BTreeMap::new(), counters: BTreeMap::new() }
        })
    }
}
