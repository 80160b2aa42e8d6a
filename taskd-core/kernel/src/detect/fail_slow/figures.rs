//! From the times of a step to the figures of the engine: defined once, for running jobs and for recorded ones.

use super::engine::{Row, SERIES, Series};
use super::layout::{Layout, Members, Place};
use crate::job::GroupKind;
use crate::trace::StepTimes;

const MS_PER_NS: f64 = 1e-6;
/// Minimum number of ranks with figures in a step that is judged.
const RANKS_MIN: usize = 2;

/// Returns the figures of one rank in one step; `None` if they cannot be used, because records are missing or the rank
/// has no time of its own.
///
/// `is_split` is true if ranks wait for each other inside a step, as with `tp`, `pp`, `cp` or `ep` groups: the rank's
/// computation is then the part of the step without a pending collective, because its waits inside the step would count
/// as its own time otherwise.
#[must_use]
pub fn row_of(times: &StepTimes, is_split: bool) -> Option<Row> {
    let wait = if is_split { times.wait_ns.max(times.communication_ns) } else { times.wait_ns };
    let apart = [wait, times.data_loader_ns, times.save_checkpoint_ns];
    let compute = apart.into_iter().fold(times.wall_ns, u64::saturating_sub);
    let mut row = [f32::NAN; SERIES];
    row[Series::Compute as usize] = ms(compute);
    row[Series::Wait as usize] = ms(wait);
    row[Series::Data as usize] = ms(times.data_loader_ns);
    row[Series::Checkpoint as usize] = ms(times.save_checkpoint_ns);
    if times.forward_ns > 0 {
        row[Series::Forward as usize] = ms(times.forward_ns);
    }
    row[Series::Cpu as usize] = times.cpu_ns.map_or(f32::NAN, ms);
    (compute > 0 && times.lost == 0).then_some(row)
}

/// Returns a time in nanoseconds in milliseconds, the unit of a [`Row`].
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "only the first digits of a time matter"
)]
#[must_use]
pub fn ms(nanos: u64) -> f32 {
    (nanos as f64 * MS_PER_NS) as f32
}

/// Returns true if a step in which `known` of `ranks` ranks have figures is judged.
#[must_use]
pub const fn is_judged(known: usize, ranks: usize) -> bool {
    known >= RANKS_MIN && known * 2 >= ranks
}

impl Layout {
    /// Creates the layout of a job from the host of each rank (`u32::MAX`: unknown) and its communication groups. Without
    /// groups, all ranks are compared with each other.
    ///
    /// The position of a rank in its groups is its place: in a `pp` group its stage, in a `dp` group its replica.
    #[must_use]
    pub fn of_groups(hosts: &[u32], groups: Vec<Members>) -> Layout {
        // Without data-parallel groups each rank of a job without groups is a replica of its own.
        let replica = |at: u32| if groups.is_empty() { at } else { 0 };
        let place = |(at, host): (u32, &u32)| Place { host: *host, replica: replica(at), ..Place::default() };
        let mut places: Vec<Place> = (0..).zip(hosts).map(place).collect();
        for group in &groups {
            for (position, rank) in (0..).zip(&group.ranks) {
                let Some(place) = places.get_mut(*rank as usize) else { continue };
                match group.id.kind {
                    GroupKind::Dp => place.replica = position,
                    GroupKind::Tp => place.tp = position,
                    GroupKind::Pp => place.stage = position,
                    GroupKind::Ep => place.ep = position,
                    GroupKind::Cp => place.cp = position,
                    _ => {}
                }
            }
        }
        Layout::new(places, groups)
    }

    /// Returns true if ranks wait for each other inside a step: the job has a group of another kind than `dp`.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.groups().iter().any(|group| group.id.kind != GroupKind::Dp)
    }
}
