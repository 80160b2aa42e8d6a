//! What one rank reported about one step, as a row of the engine.

use super::engine::{Row, SERIES, Series};
use crate::detect::device_steps::{Basis, DeviceFigures};
use crate::job::JobTime;
use crate::trace::StepTimes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const MS_PER_NS: f64 = 1e-6;

/// What one rank reported about one step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Beginning of the step.
    pub(super) began: JobTime,
    /// Figures of the process.
    row: Row,
    pub(super) device: Option<DeviceFigures>,
    /// True if a collective of the process was pending in the step.
    communicates: bool,
}

impl Sample {
    /// Creates a sample; `None` if the figures cannot be used. `is_split` is true if ranks wait for each other inside a
    /// step.
    pub(super) fn of(
        times: &StepTimes,
        device: Option<DeviceFigures>,
        ended: JobTime,
        is_split: bool,
    ) -> Option<Sample> {
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
        let began = ended.before(Duration::from_nanos(times.wall_ns));
        let communicates = times.communication_ns > 0 || wait > 0;
        let is_known = compute > 0 || device.is_some();
        (is_known && times.lost == 0).then_some(Sample { began, row, device, communicates })
    }

    /// Returns true if the waits of the rank's device are known.
    pub(super) fn has_device_waits(&self) -> bool {
        self.device.is_some_and(|device| device.wait_ns.is_some())
    }

    /// Returns the row. By the times of the devices, computation and waits of a rank without these are unknown.
    /// `has_waits` is true if the device of any rank communicates: the waits of the processes are not comparable with
    /// those of devices.
    pub(super) fn row_by(&self, basis: Basis, has_waits: bool) -> Row {
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

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "only the first digits of a time matter"
)]
fn ms(nanos: u64) -> f32 {
    (nanos as f64 * MS_PER_NS) as f32
}
