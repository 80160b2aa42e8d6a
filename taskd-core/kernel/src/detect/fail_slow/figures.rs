//! From the times of a step to the figures of the engine: defined once, for running jobs and for recorded ones.

use super::engine::{Row, SERIES, Series};
use super::layout::{Layout, Members, Place};
use crate::detect::device_steps::{Basis, DeviceFigures};
use crate::job::GroupKind;
use crate::trace::{DeviceTimes, StepTimes};
use serde::{Deserialize, Serialize};

const MS_PER_NS: f64 = 1e-6;
/// Minimum number of ranks with figures in a step that is judged.
const RANKS_MIN: usize = 2;

/// What one rank reported about one step, before it is known by which times the job is compared.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StepFigures {
    /// Figures of the process.
    row: Row,
    device: Option<DeviceFigures>,
    /// True if a collective of the process was pending in the step.
    communicates: bool,
}

impl StepFigures {
    /// Creates the figures of a step from the times of the process and those of its devices; `None` if neither can be
    /// used, because records are missing or the rank has no time of its own. For `is_split` see [`row_of`].
    #[must_use]
    pub fn new(times: &StepTimes, device: Option<&DeviceTimes>, is_split: bool) -> Option<StepFigures> {
        StepFigures::with(times, device.and_then(|device| DeviceFigures::of(device, times)), is_split)
    }

    pub(super) fn with(times: &StepTimes, device: Option<DeviceFigures>, is_split: bool) -> Option<StepFigures> {
        let row = host_row(times, is_split);
        let is_known = row[Series::Compute as usize].is_finite() || device.is_some();
        let communicates = times.communication_ns > 0 || times.wait_ns > 0;
        (is_known && times.lost == 0).then_some(StepFigures { row, device, communicates })
    }

    /// Returns true if the times of the rank's devices are known.
    #[must_use]
    pub const fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Returns the row. By the times of the devices, computation and waits of a rank without these are unknown.
    /// `has_waits` is true if the device of any rank communicates: the waits of the processes are not comparable with
    /// those of devices.
    fn row_by(&self, basis: Basis, has_waits: bool) -> Row {
        let mut row = self.row;
        if basis == Basis::Host {
            return row;
        }
        for series in [Series::Compute, Series::Forward, Series::Cpu] {
            row[series as usize] = f32::NAN; // of launches
        }
        let host_wait = if has_waits || !self.communicates { f32::NAN } else { row[Series::Wait as usize] };
        row[Series::Wait as usize] = host_wait;
        if let Some(device) = self.device {
            row[Series::Compute as usize] = ms(device.compute_ns);
            row[Series::Wait as usize] = device.wait_ns.map_or(host_wait, ms);
            row[Series::Data as usize] = ms(device.data_ns);
        }
        row
    }
}

/// Returns the rows of a step by the times that [`Bases::choose`] names. A rank without figures has a row without known
/// values.
///
/// [`Bases::choose`]: super::Bases::choose
#[must_use]
pub fn rows_by(basis: Basis, figures: &[Option<StepFigures>]) -> Vec<Row> {
    let mut devices = figures.iter().flatten().filter_map(|figures| figures.device);
    let has_waits = devices.any(|device| device.wait_ns.is_some());
    let row =
        |figures: &Option<StepFigures>| figures.map_or([f32::NAN; SERIES], |known| known.row_by(basis, has_waits));
    figures.iter().map(row).collect()
}

/// Returns the figures of one rank in one step by the times of its process; `None` if they cannot be used, because
/// records are missing or the rank has no time of its own.
///
/// `is_split` is true if ranks wait for each other inside a step, as with `tp`, `pp`, `cp` or `ep` groups: the rank's
/// computation is then the part of the step without a pending collective, because its waits inside the step would count
/// as its own time otherwise.
#[must_use]
pub fn row_of(times: &StepTimes, is_split: bool) -> Option<Row> {
    StepFigures::with(times, None, is_split).map(|figures| figures.row)
}

fn host_row(times: &StepTimes, is_split: bool) -> Row {
    let wait = if is_split { times.wait_ns.max(times.communication_ns) } else { times.wait_ns };
    let apart = [wait, times.data_loader_ns, times.save_checkpoint_ns];
    let compute = apart.into_iter().fold(times.wall_ns, u64::saturating_sub);
    let mut row = [f32::NAN; SERIES];
    if compute > 0 {
        row[Series::Compute as usize] = ms(compute);
    }
    row[Series::Wait as usize] = ms(wait);
    row[Series::Data as usize] = ms(times.data_loader_ns);
    row[Series::Checkpoint as usize] = ms(times.save_checkpoint_ns);
    if times.forward_ns > 0 {
        row[Series::Forward as usize] = ms(times.forward_ns);
    }
    row[Series::Cpu as usize] = times.cpu_ns.map_or(f32::NAN, ms);
    row
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
